//! The gateway: the one process of a host that speaks to other hosts.
//!
//! It is a worker in which nothing else runs. An actor of another host has a mailbox here, a [`proxy`], so
//! senders of this host reach it as they reach any actor: routes, credits, queues and errors are what they
//! are. What comes there is numbered and posted to the other host's gateway, undecoded, with the bytes of its
//! tensors; that one sends it on as a message of its own.
//!
//! | file | holds |
//! |---|---|
//! | `begin` | its beginning: the key, the listener, joining, who may be dialled |
//! | `run` | the one task that owns all of the state, and what it is told |
//! | `outbound`, `inbound` | messages to other hosts, and from them |
//! | `followed` | versions of published state: one for all of this host that follow it |
//! | `names` | actors, names and hosts, as the nodes tell each other |
//! | `renewal` | another host has another gateway: what was under way is answered, all else goes on |
//! | `logs` | an agent's log, for the head |
//! | `head`, `note` | what gateways say to each other, as bytes |
//! | `store`, `in_place` | memory of messages; `proxy`: mailboxes; `resting`: those that nobody uses |
//! | `late` | messages for those that come after that: whose hosts are asked, and who waits |
//! | `roaming` | mailboxes of actors that may live on any host |
//! | `arenas` | tensors in GPU memory, by NIXL |
//! | `copier`, `copiers` | by page-locked slots; `prepare`: before they leave and come |
//!
//! **Invariants.** HOST-1: what leaves here names no process, lease, chunk or ticket. HOST-3: per sender and
//! mailbox in order, because a proxy's queue, a session, and the sends of the other gateway each are. HOST-5:
//! tensors are kept until the other host has them. HOST-6: data is sent when it is there and good. HOST-9: a
//! receipt is kept until the other host is done with its message, so credits of both are one chain.
//!
//! **Threads.** `tensorpost-gateway` does all but this: the process's reader calls the mailboxes; waits for
//! tensors that are still being made, and for the driver, have threads that may wait; the lanes, with the
//! bytes of tensors and large bodies, have as many threads as there are lanes (`tensorpost-lane`), so that no
//! message waits while these are encrypted and copied; and each copier has one.
//!
//! **On its crash** its node starts another (`node/supervisor/gateways.rs`), which begins with what the node
//! has kept: the socket, who is there, and until when an agent's workers may work. The other hosts see by its
//! number that it is another, answer what was under way, and go on (`renewal`). **On the loss of a host**
//! what it owed is answered with an error that names it, and its actors are told to be gone. **On a
//! shutdown** it says to all that it leaves.

mod arenas;
mod begin;
mod copier;
mod copiers;
mod followed;
mod head;
mod in_place;
mod inbound;
mod late;
mod logs;
mod names;
mod note;
mod outbound;
mod prepare;
mod proxy;
mod renewal;
mod resting;
mod roaming;
mod run;
mod store;
#[cfg(test)]
mod tests;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tensorpost_hosts::ids::{HostLife, Seq};
use tensorpost_hosts::join::Member;
use tensorpost_hosts::net::Peer;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

use self::inbound::Answered;
use self::outbound::Prepared;
use self::proxy::{Out, Proxy};
use self::store::Store;
use crate::ids::ActorId;
use crate::transport::Transport;
use crate::transport::control_channel::{Location, ToNode};
use crate::transport::hosts::{Beginning, FromGateway, Gate, ToGateway};
use crate::transport::inbox::{Inbox, LocalCredits};
use crate::transport::lifecycle::Lifecycle;

/// How long a gateway that leaves waits for the others to hear it.
const LEAVE: Duration = Duration::from_secs(1);

/// What the gateway's task is told.
enum Command {
    /// By its node.
    Node(ToGateway),
    /// A message for another host.
    Out(Box<Out>),
    /// The tensors of one are ready to be sent, or never will be.
    Prepared(Box<Prepared>),
    /// A tensor of a message that is under way is lost; why, where it is not that it is tainted.
    Spoilt { host: u16, session: u64, post: Seq, why: Option<String> },
    /// An actor of this host has answered one of another.
    Answered(Box<Answered>),
    /// The node has to be told still how much of a host's log was lost.
    LogLost(u16),
    /// Something has happened to an actor of this host that others know.
    Event(Lifecycle),
    /// What this host has under a name that another one looks up.
    Found { host: u16, session: u64, ticket: u64, found: Option<(ActorId, Location)> },
    /// A host is of the node now.
    Joined(Box<Newcomer>),
    /// A host was not heard for too long: it is lost.
    Verdict(u16),
    /// A host refuses this one.
    Refused { host: u16, session: u64, why: String },
    /// A mailbox has taken a message of a session that is over.
    LeftBehind { host: u16, actor: ActorId },
    /// The node is to hear that this process is not stopped.
    Beat,
    /// The head has not answered for too long: this host may not go on.
    CutOff,
    /// Some time ago a version came of what this actor publishes.
    Unfollow(ActorId),
    /// There is no memory for a message that comes.
    Hungry,
    /// This host ends.
    Stopping,
    /// Leave.
    Leave(oneshot::Sender<()>),
}

/// A host that is of the node now.
struct Newcomer {
    member: Member,
    peer: Arc<Peer>,
    store: Arc<Store>,
}

/// The way to the gateway's task.
struct Door(UnboundedSender<Command>);

impl Gate for Door {
    fn hear(&self, said: ToGateway) {
        // After its end the node hears of that.
        let _ = self.0.send(Command::Node(said));
    }

    fn late(&self, actor: ActorId) -> Arc<dyn Inbox> {
        // Its credits are those of the place that the message has named.
        Arc::new(Proxy { actor, capacity: 1, local: LocalCredits::new(1), to: self.0.clone() })
    }

    fn leave(&self) -> BoxFuture<'static, ()> {
        let (left, leaving) = oneshot::channel();
        let told = self.0.send(Command::Leave(left));
        async move {
            if told.is_ok() {
                // An error is a gateway that has ended by itself.
                let _ = leaving.await;
            }
        }
        .boxed()
    }
}

/// Makes this process the gateway, as its node says.
pub(crate) fn begin(transport: &Arc<Transport>, beginning: Beginning, socket: Option<OwnedFd>) {
    let (to, commands) = tokio::sync::mpsc::unbounded_channel();
    transport.set_gate(Arc::new(Door(to.clone())));
    let own = Arc::clone(transport);
    let thread = std::thread::Builder::new().name("tensorpost-gateway".to_owned());
    let spawned = thread.spawn(move || begin::run(&own, beginning, socket, to, commands));
    if let Err(error) = spawned {
        failed(transport, format!("there is no thread for its gateway: {error}"));
    }
}

/// Tells the node something. When the node is gone, so is this process in a moment.
fn tell(transport: &Transport, said: FromGateway) {
    let _ = transport.control().send(ToNode::Hosts(said), Vec::new());
}

/// This host is of its node, with what outlives this process: its page, and the socket at which it listens.
fn began(transport: &Transport, own: HostLife, page: OwnedFd, socket: OwnedFd) {
    let said = FromGateway::Began { result: Ok((own.host.0, own.life.0)) };
    let _ = transport.control().send(ToNode::Hosts(said), vec![page, socket]);
}

/// This host is of no node.
fn failed(transport: &Transport, why: String) {
    tell(transport, FromGateway::Began { result: Err(why) });
}

/// A host, for people.
fn shown(member: &Member) -> String {
    let number = member.who.host;
    if member.name.is_empty() {
        format!("{number} ({})", member.address)
    } else {
        format!("{number} `{}` ({})", member.name, member.address)
    }
}
