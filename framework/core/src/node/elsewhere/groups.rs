//! What hosts say to each other of groups whose actors are on several.
//!
//! Used by the supervisor (`supervisor/groups/elsewhere.rs`), which decides: it has things said, and hears
//! what became of each. All goes as asks of the other host's starter, so it comes in order, and is answered
//! when it was done.
//!
//! **Invariants.** What was lost with a gateway, on its way there or back, is said again: it may come twice.
//! WIRE-1: a host speaks of groups of its own program, or of those that it has members of, as the supervisor
//! sees by the number that this host's gateway has stamped on it. MBX-2: for each group and host one thing is
//! on its way.
//!
//! **Threads.** One, from the first such group on. **On the loss** of the host what was said to it has
//! failed. **On the end** of the node the thread ends, and nobody is told.

use std::sync::Weak;

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::heard::until_heard;
use super::{Answer, Request, starter};
use crate::node::limits::MAX_FAILURE_TEXT;
use crate::node::supervisor::{Step, Supervisor};
use crate::node::wait::wait_for;
use crate::observe::text::shown;
use crate::transport::Transport;

/// Of a group, by its number on its home.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::node) struct OfGroup {
    /// Its number.
    pub(in crate::node) group: u64,
    pub(in crate::node) says: Says,
}

/// What is said of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::node) enum Says {
    /// Its home: do this, because of that. Where it is to `give_up`, those that end do not come back.
    /// Answered when it is done.
    Do { step: Step, why: String, gives_up: bool },
    /// To its home: a member has failed here whose life was of this round, and its policy brings it back
    /// after so many milliseconds.
    Failed { begun: u64, delay: u64, why: String },
}

/// A member of a group, as it is started on another host than the group's home.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::node) struct InGroup {
    pub(in crate::node) group: u64,
    pub(in crate::node) name: String,
    /// The last round of it.
    pub(in crate::node) round: u64,
}

/// What became of something that was said.
pub(in crate::node) type Then = Box<dyn FnOnce(Result<(), String>) + Send>;

struct ToSay {
    host: u16,
    said: OfGroup,
    then: Then,
}

/// Has things said to other hosts. See the module.
#[derive(Default)]
pub(in crate::node) struct Speaker(Option<UnboundedSender<ToSay>>);

impl Speaker {
    /// Says this to a host, as often as it takes. Does not wait; `then` is called on another thread.
    pub(in crate::node) fn say(&mut self, transport: &Weak<Transport>, host: u16, said: OfGroup, then: Then) {
        let to_say = match &self.0 {
            Some(speaker) => match speaker.send(ToSay { host, said, then }) {
                Ok(()) => return,
                Err(unsaid) => unsaid.0,
            },
            None => ToSay { host, said, then },
        };
        let (speaker, queue) = unbounded_channel();
        let transport = Weak::clone(transport);
        let thread = std::thread::Builder::new().name("tensorpost-groups".to_owned());
        match thread.spawn(move || run(&transport, queue)) {
            Ok(_) => {
                // It listens.
                let _ = speaker.send(to_say);
                self.0 = Some(speaker);
            }
            Err(error) => (to_say.then)(Err(format!("the node has no thread to say it with: {error}"))),
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

/// Hears what a host says, and waits until it is done.
pub(super) fn hear(supervisor: &Supervisor, host: u16, mut said: OfGroup) -> Result<(), String> {
    let (Says::Do { why, .. } | Says::Failed { why, .. }) = &mut said.says;
    *why = shown(std::mem::take(why), MAX_FAILURE_TEXT);
    supervisor.hear_of_group(host, said).map_err(|closed| closed.to_string())?
}
