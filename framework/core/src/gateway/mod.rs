//! The gateway: the one process of a host that speaks to other hosts.
//!
//! It is a worker that runs no actors. Each actor of another host that this host sends to has a mailbox here,
//! a [`proxy`]. Senders of this host reach it as they reach any local actor: routes, credits, queues and
//! errors are the same. The gateway numbers each message and posts it to the other host's gateway, undecoded,
//! with the bytes of its tensors. That gateway sends it on as a message of its own.
//!
//! | file | holds |
//! |---|---|
//! | `startup` | start: the key, the listener, joining, the hosts that may be dialled |
//! | `run` | the one task that owns all of the state, and the commands that it is given |
//! | `remotes`, `locals`, `mailboxes`, `lookups` | the parts of that state: the other hosts, this host's actors, mailboxes of other hosts' actors, names |
//! | `outbound`, `inbound` | messages to other hosts, and from them |
//! | `followers` | versions of published state: one transfer serves all followers of this host |
//! | `names` | actors, names and hosts, as the nodes tell each other |
//! | `renewal` | another host has a new gateway: messages under way are answered, all else goes on |
//! | `logs` | an agent's log, on its way to the head |
//! | `head`, `note` | the encoding of what gateways say to each other |
//! | `store`, `in_place` | memory of messages; `proxy`: mailboxes; `resting`: idle ones give up their places |
//! | `late_messages` | messages that come after their mailbox gave up its place, and the order in which hosts are asked |
//! | `roaming` | mailboxes of actors that may live on any host |
//! | `arenas` | tensors in GPU memory that go by NIXL |
//! | `copier`, `copiers` | those that go through page-locked slots; `prepare`, `preparer`: before they leave and arrive |
//!
//! **Invariants.** HOST-1: nothing that leaves here names a process, lease, chunk or ticket. HOST-3: messages
//! are in order per sender and mailbox, because a proxy's queue, a session and the other gateway's sends each
//! keep the order. HOST-5: tensors are kept until the other host has them. HOST-6: data is sent when it is
//! ready and good. HOST-9: a receipt is kept until the other host is done with its message, so the credits of
//! both hosts form one chain.
//!
//! **Threads.** The thread `tp-gateway` does everything except the following. The process's reader
//! calls the mailboxes. Waits for tensors that are still being made, and for the driver, run on threads that
//! may block. The bytes of tensors and of large bodies go over lanes, on as many threads as there are lanes
//! (`tp-lane`), so that no message waits while bytes are encrypted and copied. Each copier has a
//! thread.
//!
//! **On its crash** its node starts another (`supervisor/hosts/gateways.rs`). The new one begins with
//! what the node has kept: the socket, the list of hosts, and the moment until which an agent's workers
//! may work. The other hosts recognise a new gateway by its number, answer the messages that were under
//! way, and go on (`renewal`). **On the loss of a host** all asks to it are answered with an error that
//! names it, and the node is told that its actors are out of reach. **On a shutdown** the gateway tells
//! all hosts that it leaves.

mod arenas;
mod copier;
mod copiers;
pub(crate) mod dropped;
mod followers;
mod head;
mod in_place;
mod inbound;
mod late_messages;
mod locals;
mod logs;
mod lookups;
mod mailboxes;
mod names;
mod note;
mod outbound;
mod prepare;
mod preparer;
mod proxy;
mod remotes;
mod renewal;
mod resting;
mod roaming;
mod run;
mod startup;
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
use crate::transport::control_channel::Location;
use crate::transport::envelope::Envelope;
use crate::transport::gate::Gate;
use crate::transport::gateway_messages::{FromGateway, ToGateway};
use crate::transport::inbox::{Inbox, LocalCredits};
use crate::transport::lifecycle::Lifecycle;

/// How long a leaving gateway waits for the others to receive the word.
const LEAVE: Duration = Duration::from_secs(1);

/// A command for the gateway's task.
enum Command {
    /// From its node.
    Node(ToGateway),
    /// A message for another host.
    Out(Box<Out>),
    /// The tensors of a message are ready to be sent, or never will be.
    Prepared(Box<Prepared>),
    /// A tensor of a message that is under way is lost. `why` is the reason, `None` if the tensor is tainted.
    Spoilt { host: u16, session: u64, post: Seq, why: Option<String> },
    /// An actor of this host has answered an ask of another host.
    Answered(Box<Answered>),
    /// The node is still to be told how many records of a host's log were lost.
    LogLost(u16),
    /// Something happened to an actor of this host that other hosts know.
    Event(Lifecycle),
    /// The answer of this host's node to another host's look-up of a name.
    Found { host: u16, session: u64, ticket: u64, found: Option<(ActorId, Location)> },
    /// A host has joined the node.
    Joined(Box<Newcomer>),
    /// The head's verdict: a host was not heard for too long and is lost.
    Verdict(u16),
    /// A host refuses connections from this one.
    Refused { host: u16, session: u64, why: String },
    /// A mailbox has taken a message of a session that has ended.
    LeftBehind { host: u16, actor: ActorId },
    /// Time to tell the node that this process still makes progress.
    Beat,
    /// The head has not answered for too long: this host has to stop.
    CutOff,
    /// Some time has passed since a version of this actor's published state arrived.
    Unfollow(ActorId),
    /// A message that is arriving finds no memory.
    Hungry,
    /// This host shuts down.
    Stopping,
    /// Leave the node.
    Leave(oneshot::Sender<()>),
}

/// A host that has joined the node.
struct Newcomer {
    member: Member,
    peer: Arc<Peer>,
    store: Arc<Store>,
}

/// The sending end of the gateway's command channel.
struct Door(UnboundedSender<Command>);

impl Gate for Door {
    fn hear(&self, said: &Envelope) {
        match ToGateway::open(said) {
            // If the task has ended, the node hears of that by itself.
            Ok(said) => _ = self.0.send(Command::Node(said)),
            Err(error) => tracing::error!(%error, "the node says what its gateway cannot read"),
        }
    }

    fn late(&self, actor: ActorId) -> Arc<dyn Inbox> {
        // The message was charged to the credits of the place that it named, so this mailbox needs none of
        // its own.
        Arc::new(Proxy { actor, capacity: 1, local: LocalCredits::new(1), to: self.0.clone() })
    }

    fn leave(&self) -> BoxFuture<'static, ()> {
        let (left, leaving) = oneshot::channel();
        let told = self.0.send(Command::Leave(left));
        async move {
            if told.is_ok() {
                // On an error the gateway has already ended by itself.
                let _ = leaving.await;
            }
        }
        .boxed()
    }
}

/// Makes the memory of the messages for one session with another host.
fn store_for(host: u16, session: u64, gateway: UnboundedSender<Command>) -> Arc<Store> {
    Arc::new(Store::new(move |post, why| {
        // An error means that the gateway has ended, and the message with it.
        let _ = gateway.send(Command::Spoilt { host, session, post, why });
    }))
}

/// Turns this process into the gateway that its node asks for. If another gateway was here before, its
/// listening socket comes along.
pub(crate) fn begin(transport: &Arc<Transport>, said: &Envelope, socket: Option<OwnedFd>) {
    let beginning = match ToGateway::open(said) {
        Ok(ToGateway::Begin(beginning)) => *beginning,
        Ok(_) => return tracing::error!("the node takes this process for the gateway, which it is not"),
        Err(error) => return tracing::error!(%error, "the node says what no gateway can read"),
    };
    let (to, commands) = tokio::sync::mpsc::unbounded_channel();
    transport.set_gate(Arc::new(Door(to.clone())));
    let own = Arc::clone(transport);
    let thread = std::thread::Builder::new().name("tp-gateway".to_owned());
    let spawned = thread.spawn(move || startup::run(&own, beginning, socket, to, commands));
    if let Err(error) = spawned {
        failed(transport, format!("there is no thread for its gateway: {error}"));
    }
}

/// Tells the node something. Errors are ignored: if the node is gone, this process ends in a moment.
fn tell(transport: &Transport, said: FromGateway) {
    let _ = transport.control.send(said.sealed(), Vec::new());
}

/// Tells the node that this host has joined, and hands over what outlives this process: its page and its
/// listening socket.
fn began(transport: &Transport, own: HostLife, page: OwnedFd, socket: OwnedFd) {
    let said = FromGateway::Began { result: Ok((own.host.0, own.life.0)) };
    let _ = transport.control.send(said.sealed(), vec![page, socket]);
}

/// Tells the node that this host could not join.
fn failed(transport: &Transport, why: String) {
    tell(transport, FromGateway::Began { result: Err(why) });
}

/// Describes a host for people.
fn shown(member: &Member) -> String {
    let number = member.who.host;
    if member.name.is_empty() {
        format!("{number} ({})", member.address)
    } else {
        format!("{number} `{}` ({})", member.name, member.address)
    }
}
