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
//! | `run`, `command` | the one task that owns all of the state, and the commands that it is given |
//! | `to_node` | messages for the node that several files send |
//! | `remotes`, `locals`, `mailboxes`, `lookups` | the parts of that state: the other hosts, this host's actors, mailboxes of other hosts' actors, names |
//! | `outbound`, `inbound`, `asks` | messages to other hosts, and from them; the asks among both |
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
mod asks;
mod command;
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
mod to_node;

use std::os::fd::OwnedFd;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

use self::command::Command;
use self::proxy::Proxy;
use self::to_node::failed;
use crate::ids::ActorId;
use crate::transport::Transport;
use crate::transport::envelope::Envelope;
use crate::transport::gate::Gate;
use crate::transport::gateway_messages::ToGateway;
use crate::transport::inbox::{Inbox, LocalCredits};

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
