//! Messages to actors of other hosts. Each mailbox sends in order, when the tensors of its first message are
//! ready and there is room.

use std::collections::hash_map::Entry;

use bytes::Bytes;
use tensorpost_hosts::session::{OnDevice, PostError, To};

use super::asks::PendingAsk;
use super::command::{Of, Out, Prepared};
use super::copiers::Copiers;
use super::head::Head;
use super::mailboxes::{Mailbox, MailboxPlace, QueuedMessage, refuse};
use super::note::decode_refusal;
use super::remotes::Remote;
use super::roaming::last_life_over;
use super::run::Gateway;
use super::store::{Source, sources};
use crate::ids::ActorId;
use crate::tensor::{Tensor, TensorError};
use crate::transport::inbox::Refusal;

impl Gateway {
    /// Takes a message for an actor of another host.
    pub(super) fn take_out(&mut self, out: Box<Out>) {
        let actor = out.actor;
        let ready = self.node.copiers.are_ready(&out.tensors);
        let item = self.mailboxes.next_item();
        if !self.hosts.is_in_reach(actor, self.node.number()) {
            // Its sender has not heard yet that the host is gone.
            let why = format!("host {} is not of this node any more; the message was not sent", actor.host());
            return refuse(&self.transport, out.receipt, &Refusal::NotPassedOn(why));
        }
        if self.roaming.is_over(actor) {
            // It was sent to a life that is over, and must not reach another one.
            return refuse(&self.transport, out.receipt, &last_life_over());
        }
        if let Entry::Vacant(none) = self.mailboxes.entry(actor) {
            // The actor rests, or has ended; in that case its host says so.
            none.insert(Mailbox::new(MailboxPlace::Nowhere, 0));
            self.comes_late(actor, out.receipt.sender());
        } else {
            self.late.comes_again(actor, out.receipt.sender());
        }
        let Some(mailbox) = self.mailboxes.get_mut(&actor) else {
            // The actor lives here, or its host did not take the question and was given up.
            let why = format!("{actor} is not reached by this way any more; the message was not sent");
            return refuse(&self.transport, out.receipt, &Refusal::NotPassedOn(why));
        };
        mailbox.used = item;
        let Some(out) = mailbox.followed.ask(out, self.is_stopping) else { return };
        let preparing = (!ready).then(|| self.preparer.message(item, actor, out.tensors.clone()));
        if let Some(mailbox) = self.mailboxes.get_mut(&actor) {
            mailbox.queue.push_back(QueuedMessage { item, out, preparing });
        }
        self.send_on(actor);
    }

    /// Handles the outcome of the wait for a message's tensors.
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
                (waiting.out.tensors, waiting.preparing) = (tensors, None);
            }
            Err(error) => {
                // HOST-6: a message with lost data is not sent.
                if let Some(QueuedMessage { out, .. }) = mailbox.queue.remove(at) {
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

    /// Posts as much as possible of everything that goes to a host.
    pub(super) fn send_all(&mut self, host: u16) {
        self.hosts.send_replies(host, &self.node.copiers);
        let goes_there = |actor: &&ActorId| self.roaming.host_of(**actor, &self.hosts) == Some(host);
        let actors: Vec<_> = self.mailboxes.keys().filter(goes_there).copied().collect();
        actors.into_iter().for_each(|actor| self.send_on(actor));
    }

    /// Posts as many messages of a mailbox as possible.
    pub(super) fn send_on(&mut self, actor: ActorId) {
        let host = self.roaming.host_of(actor, &self.hosts);
        let Some(mailbox) = self.mailboxes.get_mut(&actor).filter(|mailbox| mailbox.offered > 0) else {
            return;
        };
        let Some(remote) = host.and_then(|host| self.hosts.get_mut(&host)) else { return };
        while mailbox.queue.front().is_some_and(|waiting| waiting.preparing.is_none()) {
            let Some(QueuedMessage { item, out, preparing }) = mailbox.queue.pop_front() else { return };
            match post(remote, out, &self.node.copiers) {
                Ok(under_way) => mailbox.under_way += under_way,
                // The session reports when there is room. If it has ended, the next session asks for the
                // mailbox, or the host is gone.
                Err((out, PostError::Full { .. } | PostError::NoWindow { .. } | PostError::Ended { .. })) => {
                    mailbox.queue.push_front(QueuedMessage { item, out, preparing });
                    return;
                }
                // The offer was taken back, because the actor has ended, or was resting when the offer was
                // made.
                Err((out, PostError::NotServed { .. })) => {
                    mailbox.queue.push_front(QueuedMessage { item, out, preparing });
                    mailbox.offered = 0;
                    return self.want(actor);
                }
                Err((out, error)) => {
                    let why = Refusal::Undelivered(error.to_string());
                    mailbox.followed.refused(out.question, &why);
                    refuse(&self.transport, out.receipt, &why);
                }
            }
        }
        self.settle(actor);
    }

    /// Refuses an ask to which there will be no reply.
    pub(super) fn refused(&mut self, host: u16, correlation: u64, why: &Bytes) {
        let Some(remote) = self.hosts.get_mut(&host) else { return };
        if let Some(PendingAsk { actor, receipt, question }) = remote.asks.remove(&correlation) {
            let why = decode_refusal(why, &remote.shown());
            if let Some(mailbox) = self.mailboxes.get_mut(&actor) {
                mailbox.followed.refused(question, &why);
            }
            receipt.refuse(&why);
            self.less_under_way(actor);
        }
    }

    /// Closes the mailbox of an actor, and refuses the waiting messages.
    pub(super) fn close(&mut self, actor: ActorId, why: &Refusal) {
        let Some(mut mailbox) = self.mailboxes.remove(&actor) else { return };
        self.late.is_over(actor);
        if let MailboxPlace::At(index) = mailbox.place {
            self.transport.actors.pause(index, &self.transport.links);
        }
        mailbox.followed.end(why);
        for QueuedMessage { out, .. } in mailbox.queue {
            refuse(&self.transport, out.receipt, why);
        }
    }
}

/// Posts a message, and lends its spans before a lane can ask for them. Returns how many reports its end has:
/// one that it is done with, and for an ask also the answer.
fn post(remote: &mut Remote, out: Box<Out>, copiers: &Copiers) -> Result<usize, (Box<Out>, PostError)> {
    let (actor, head) = (out.actor, Head::of(out.key, &out.body, &out.tensors));
    let target = tensorpost_hosts::ids::ActorId(actor.0);
    let to = if out.receipt.wants_reply() { To::Ask(target) } else { To::Send(target) };
    let posted = post_as(remote, to, &head, &out.tensors, &out.body, copiers);
    let posted = match posted {
        Ok(posted) => posted,
        Err(error) => return Err((out, error)),
    };
    let Out { actor, receipt, tensors, question, .. } = *out;
    // The bytes are lent by now, and tensors without bytes are not needed any more.
    drop(tensors);
    let Some(correlation) = posted.correlation else {
        remote.open.insert(posted.post, (actor, Some(receipt)));
        return Ok(1);
    };
    remote.open.insert(posted.post, (actor, None));
    remote.asks.insert(correlation, PendingAsk { actor, receipt, question });
    Ok(2)
}

/// Offers the spans that lie in memory of a device to the NIXL lanes.
fn offer_all(sources: &[Source], copiers: &Copiers, offer: &mut dyn FnMut(OnDevice)) {
    for (index, source) in sources.iter().enumerate() {
        if let Source::Staged(tensor, _) = source
            && let Some(device) = copiers.number(tensor.device())
        {
            offer(OnDevice { span: index as u16, device, bytes: tensor.bytes() }); // MAX_SPANS
        }
    }
}

/// Posts the head of a message or a reply, and lends its spans.
pub(super) fn post_as(
    remote: &Remote,
    to: To,
    head: &Head,
    tensors: &[Tensor],
    body: &Bytes,
    copiers: &Copiers,
) -> Result<tensorpost_hosts::session::Posted, PostError> {
    remote.peer.post(to, head.encode(), head.spans(), |post, offer| {
        let sources = sources(head, tensors, body, copiers);
        offer_all(&sources, copiers, offer);
        remote.store.lend(post, sources);
    })
}
