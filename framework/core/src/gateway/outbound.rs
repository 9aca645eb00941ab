//! Messages to actors of other hosts: each mailbox's in order, when their tensors are there and there is room.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use tensorpost_hosts::ids::Seq;
use tensorpost_hosts::session::{PostError, To};

use super::head::Head;
use super::note::{NoAnswer, tainted};
use super::proxy::Out;
use super::run::{Gateway, Remote};
use super::store::{make_ready, sources};
use super::{Command, shown};
use crate::ids::{ActorId, DeviceId};
use crate::tensor::{Tensor, TensorError};
use crate::transport::inbox::{Receipt, Refusal};

/// The mailbox here of an actor of another host: what was not posted yet.
pub(super) struct Mailbox {
    /// Its index in this process.
    pub(super) index: u16,
    pub(super) queue: VecDeque<Waiting>,
}

/// A message that was not posted yet.
pub(super) struct Waiting {
    item: u64,
    out: Box<Out>,
    /// Whether its tensors are there, as they are to be sent.
    ready: bool,
}

/// What came of the wait for the tensors of a message, or of a reply.
pub(super) struct Prepared {
    pub(super) item: u64,
    pub(super) of: Of,
    pub(super) tensors: Result<Vec<Tensor>, TensorError>,
}

/// Whose tensors were waited for.
pub(super) enum Of {
    Message(ActorId),
    Reply(super::inbound::Replying),
}

impl Gateway {
    /// A message for an actor of another host came.
    pub(super) fn take_out(&mut self, out: Box<Out>) {
        let actor = out.actor;
        if let Some(device) = foreign_device(&out.tensors) {
            // Senders of ours refuse that themselves.
            let why =
                format!("a tensor in it is in the memory of {device}, which does not go between hosts yet");
            return refuse(&self.transport, out.receipt, &Refusal::Undelivered(why));
        }
        let ready = out.tensors.iter().all(Tensor::is_packed_and_ready);
        self.last_item += 1;
        let item = self.last_item;
        if !ready {
            self.make_ready(item, Of::Message(actor), out.tensors.clone());
        }
        if !self.hosts.contains_key(&actor.host()) {
            // Its sender has not heard of that yet.
            let why = format!("host {} is not of this node any more; the message was not sent", actor.host());
            return refuse(&self.transport, out.receipt, &Refusal::NotPassedOn(why));
        }
        let Some(mailbox) = self.mailboxes.get_mut(&actor) else {
            // It crossed the withdrawal.
            return refuse(&self.transport, out.receipt, &Refusal::NoSuchActor);
        };
        mailbox.queue.push_back(Waiting { item, out, ready });
        self.send_on(actor);
    }

    /// Waits for tensors on a thread that may.
    pub(super) fn make_ready(&self, item: u64, of: Of, tensors: Vec<Tensor>) {
        let (stream, to) = (self.stream.clone(), self.to.clone());
        tokio::task::spawn_blocking(move || {
            let tensors = make_ready(&tensors, &stream);
            // With the gateway, the message ends too.
            let _ = to.send(Command::Prepared(Box::new(Prepared { item, of, tensors })));
        });
    }

    /// The tensors of a message are there now, or never will be.
    pub(super) fn prepared(&mut self, Prepared { item, of, tensors }: Prepared) {
        let actor = match of {
            Of::Reply(replying) => return self.reply_prepared(replying, tensors),
            Of::Message(actor) => actor,
        };
        let Some(mailbox) = self.mailboxes.get_mut(&actor) else { return };
        let Some(at) = mailbox.queue.iter().position(|waiting| waiting.item == item) else { return };
        match tensors {
            Ok(tensors) => {
                let waiting = &mut mailbox.queue[at];
                (waiting.out.tensors, waiting.ready) = (tensors, true);
            }
            Err(error) => {
                // HOST-6: it is not sent.
                if let Some(Waiting { out, .. }) = mailbox.queue.remove(at) {
                    let why = match error {
                        TensorError::Tainted { by } => Refusal::Tainted(by),
                        other => Refusal::Undelivered(other.to_string()),
                    };
                    refuse(&self.transport, out.receipt, &why);
                }
            }
        }
        self.send_on(actor);
    }

    /// Posts what can be, of all that goes to a host.
    pub(super) fn send_all(&mut self, host: u16) {
        self.send_replies(host);
        let actors: Vec<_> = self.mailboxes.keys().filter(|actor| actor.host() == host).copied().collect();
        actors.into_iter().for_each(|actor| self.send_on(actor));
    }

    /// Posts what can be of a mailbox.
    pub(super) fn send_on(&mut self, actor: ActorId) {
        let Some(mailbox) = self.mailboxes.get_mut(&actor) else { return };
        let Some(remote) = self.hosts.get_mut(&actor.host()) else { return };
        while mailbox.queue.front().is_some_and(|waiting| waiting.ready) {
            let Some(Waiting { item, out, ready }) = mailbox.queue.pop_front() else { return };
            match post(remote, out) {
                Ok(()) => {}
                Err((out, PostError::Full { .. } | PostError::NoWindow { .. })) => {
                    // The session says when there is room.
                    mailbox.queue.push_front(Waiting { item, out, ready });
                    return;
                }
                Err((out, PostError::NotServed { .. })) => {
                    refuse(&self.transport, out.receipt, &Refusal::NoSuchActor);
                }
                Err((out, error)) => {
                    refuse(&self.transport, out.receipt, &Refusal::Undelivered(error.to_string()));
                }
            }
        }
    }

    /// A tensor of a message that is under way is lost.
    pub(super) fn spoilt(&mut self, host: u16, post: Seq) {
        let why = NoAnswer::Other(tainted(&shown(&self.node.own))).encode();
        if let Some(remote) = self.hosts.get(&host) {
            remote.peer.with(|session| session.abort(post, why));
        }
    }

    /// There will be no reply to an ask.
    pub(super) fn refused(&mut self, host: u16, correlation: u64, why: &Bytes) {
        let Some(remote) = self.hosts.get_mut(&host) else { return };
        if let Some(receipt) = remote.asks.remove(&correlation) {
            receipt.refuse(&NoAnswer::decode(why, &remote.shown()));
        }
    }

    /// Nothing goes to an actor's host any more: the messages that wait are refused, for this reason.
    pub(super) fn refuse_waiting(&mut self, actor: ActorId, why: &Refusal) {
        let Some(mailbox) = self.mailboxes.get_mut(&actor) else { return };
        for Waiting { out, .. } in std::mem::take(&mut mailbox.queue) {
            refuse(&self.transport, out.receipt, why);
        }
    }

    /// The mailbox of an actor takes no messages any more: those that wait are refused, for this reason.
    pub(super) fn close(&mut self, actor: ActorId, why: &Refusal) {
        let Some(mailbox) = self.mailboxes.remove(&actor) else { return };
        self.transport.withdraw(mailbox.index);
        for Waiting { out, .. } in mailbox.queue {
            refuse(&self.transport, out.receipt, why);
        }
    }
}

/// A message that does not go on: its asker is told, and it is counted.
pub(super) fn refuse(transport: &crate::transport::Transport, receipt: Receipt, why: &Refusal) {
    if !receipt.wants_reply() {
        tracing::warn!(?why, "a message to another host was dropped");
    }
    receipt.refuse(why);
    transport.dead_letter();
}

/// The device of a tensor that does not go between hosts.
pub(super) fn foreign_device(tensors: &[Tensor]) -> Option<DeviceId> {
    tensors.iter().map(Tensor::device).find(|device| *device != DeviceId::HOST)
}

/// Posts a message, with its spans lent before a lane can ask for them.
fn post(remote: &mut Remote, out: Box<Out>) -> Result<(), (Box<Out>, PostError)> {
    let head = Head::of(out.key, &out.body, &out.tensors);
    let actor = tensorpost_hosts::ids::ActorId(out.actor.0);
    let to = if out.receipt.wants_reply() { To::Ask(actor) } else { To::Send(actor) };
    let posted = post_as(remote, to, &head, &out.tensors, &out.body);
    let posted = match posted {
        Ok(posted) => posted,
        Err(error) => return Err((out, error)),
    };
    let Out { receipt, tensors, .. } = *out;
    // What is sent is lent by now; what has no bytes is needed no more.
    drop(tensors);
    match posted.correlation {
        Some(correlation) => drop(remote.asks.insert(correlation, receipt)),
        None => drop(remote.open.insert(posted.post, receipt)),
    }
    Ok(())
}

/// Posts the head of a message, or of a reply, and lends its spans.
pub(super) fn post_as(
    remote: &Remote,
    to: To,
    head: &Head,
    tensors: &[Tensor],
    body: &Bytes,
) -> Result<tensorpost_hosts::session::Posted, PostError> {
    let (spans, encoded, store) = (head.spans(), head.encode(), Arc::clone(&remote.store));
    remote.peer.with(|session| {
        let has_spans = !spans.is_empty();
        let posted = session.post(to, encoded, spans)?;
        if has_spans {
            store.lend(posted.post, sources(head, tensors, body));
        }
        Ok(posted)
    })
}
