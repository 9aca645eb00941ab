//! Messages between hosts about groups whose actors are on several hosts.
//!
//! Used by the supervisor (`supervisor/hosts/groups.rs`), which decides: it sends messages, and hears
//! the result of each. All of them are asks of the other host's starter, so they arrive in order, and are
//! answered when they are carried out.
//!
//! **Invariants.** A message that was lost with a gateway, or whose answer was, is sent again, so it may come
//! twice. WIRE-1: a host may speak only of groups of its own program, or of groups that it has members of.
//! The supervisor checks that by the host number that this host's gateway has stamped on the message. MBX-2:
//! for each group and host one message is under way.
//!
//! **Threads.** One, from the first such group on. **On the loss** of the host its messages fail. **On the
//! end** of the node the thread ends, and nobody is told.

use std::sync::Weak;

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::sync::mpsc::UnboundedReceiver;

use super::messages::{Answer, OfGroup, Request, starter};
use super::retry::{Requests, until_heard};
use crate::node::hosts::wait::wait_for;
use crate::node::limits::MAX_FAILURE_TEXT;
use crate::observe::text::shown;
use crate::transport::Transport;

/// The callback for the result of a message.
pub(in crate::node) type Then = Box<dyn FnOnce(Result<(), String>) + Send>;

struct ToSay {
    host: u16,
    said: OfGroup,
    then: Then,
}

/// Sends messages to other hosts. See the module.
#[derive(Default)]
pub(in crate::node) struct Speaker(Requests<ToSay>);

impl Speaker {
    /// Sends a message to a host, and repeats it until it is heard. Does not wait; another thread calls
    /// `then`.
    pub(in crate::node) fn say(&mut self, transport: &Weak<Transport>, host: u16, said: OfGroup, then: Then) {
        let (to_say, transport) = (ToSay { host, said, then }, Weak::clone(transport));
        let unsaid = self.0.add(to_say, "tp-groups", move |queue| run(&transport, queue));
        if let Some((ToSay { then, .. }, error)) = unsaid {
            then(Err(format!("the node has no thread to say it with: {error}")));
        }
    }
}

fn run(transport: &Weak<Transport>, mut queue: UnboundedReceiver<ToSay>) {
    let speak = async move {
        let mut under_way = FuturesUnordered::new();
        loop {
            tokio::select! {
                next = queue.recv() => match next {
                    Some(next) => under_way.push(say(transport, next)),
                    None => return,
                },
                Some(()) = under_way.next(), if !under_way.is_empty() => {}
            }
        }
    };
    if let Err(error) = wait_for(speak) {
        tracing::error!(%error, "nothing is said to other hosts of groups");
    }
}

async fn say(transport: &Weak<Transport>, ToSay { host, said, then }: ToSay) {
    then(said_to(transport, host, &said).await);
}

async fn said_to(transport: &Weak<Transport>, host: u16, said: &OfGroup) -> Result<(), String> {
    let ask = || Request::Group(said.clone());
    let ended = || "this node has ended".to_owned();
    let asked = starter(&transport.upgrade().ok_or_else(ended)?, host).ask(ask());
    match until_heard(transport, host, asked, ask).await {
        Ok(Answer::Done) => Ok(()),
        Ok(Answer::No(why)) => Err(shown(why, MAX_FAILURE_TEXT)),
        Ok(_) => Err("it has answered something else".to_owned()),
        Err(Some(error)) => Err(error.to_string()),
        Err(None) => Err(ended()),
    }
}
