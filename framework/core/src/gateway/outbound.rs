//! Messages to actors of other hosts: each mailbox's in order, when their tensors are there and there is
//! room.

use std::collections::VecDeque;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use bytes::Bytes;
use tensorpost_hosts::ids::Seq;
use tensorpost_hosts::session::{OnDevice, PostError, To};
use tokio::task::AbortHandle;

use super::copiers::Copiers;
use super::followed::{Asked, Followed};
use super::head::Head;
use super::note::{NoAnswer, tainted};
use super::prepare::ready;
use super::proxy::Out;
use super::roaming::last_life_over;
use super::run::{Gateway, Remote};
use super::store::{Source, sources};
use super::{Command, shown};
use crate::ids::ActorId;
use crate::tensor::{Tensor, TensorError};
use crate::transport::inbox::{Receipt, Refusal};

/// The mailbox here of an actor of another host: what was not posted yet.
pub(super) struct Mailbox {
    pub(super) place: Place,
    /// So many messages its host takes for it at a time; while there are none, they wait here.
    pub(super) offered: u32,
    pub(super) queue: VecDeque<Waiting>,
    /// Messages that its host is not done with, and asks without an answer.
    pub(super) under_way: usize,
    /// What others of this host follow there.
    pub(super) followed: Followed,
    /// When a message last came, or it got its place, in messages that came here.
    pub(super) used: u64,
}

/// Where senders of this host reach it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// At this index of this process.
    At(u16),
    /// It was there until now: the node is about to tell everybody.
    GivenUp,
    /// What comes was sent before that was heard.
    Nowhere,
}

impl Mailbox {
    pub(super) fn new(place: Place, offered: u32) -> Self {
        Mailbox {
            place,
            offered,
            queue: VecDeque::new(),
            under_way: 0,
            followed: Followed::default(),
            used: 0,
        }
    }
}

/// A message that was not posted yet.
pub(super) struct Waiting {
    item: u64,
    pub(super) out: Box<Out>,
    /// Until its tensors are there, as they are to be sent.
    preparing: Option<Preparing>,
}

/// Tensors that are made ready. Dropped, nobody waits for them any more.
struct Preparing(AbortHandle);

impl Drop for Preparing {
    fn drop(&mut self) {
        self.0.abort();
    }
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
        let ready = self.copiers.are_ready(&out.tensors);
        self.last_item += 1;
        let item = self.last_item;
        if !self.is_in_reach(actor) {
            // Its sender has not heard of that yet.
            let why = format!("host {} is not of this node any more; the message was not sent", actor.host());
            return refuse(&self.transport, out.receipt, &Refusal::NotPassedOn(why));
        }
        if self.roaming.is_over(actor) {
            // It was sent to a life that is over, and comes to no other.
            return refuse(&self.transport, out.receipt, &last_life_over());
        }
        if let Entry::Vacant(none) = self.mailboxes.entry(actor) {
            // The actor rests, or has ended, which its host says then.
            none.insert(Mailbox::new(Place::Nowhere, 0));
            self.comes_late(actor, out.receipt.sender());
        } else {
            self.late.comes_again(actor, out.receipt.sender());
        }
        let Some(mailbox) = self.mailboxes.get_mut(&actor) else {
            // It lives here, or its host did not take the question and was given up.
            let why = format!("{actor} is not reached by this way any more; the message was not sent");
            return refuse(&self.transport, out.receipt, &Refusal::NotPassedOn(why));
        };
        mailbox.used = item;
        let Some(out) = mailbox.followed.ask(out, self.is_stopping) else { return };
        let preparing = (!ready).then(|| self.prepare(item, actor, out.tensors.clone()));
        if let Some(mailbox) = self.mailboxes.get_mut(&actor) {
            mailbox.queue.push_back(Waiting { item, out, preparing });
        }
        self.send_on(actor);
    }

    /// Waits until tensors of a message are ready to be sent, as long as the message does.
    fn prepare(&self, item: u64, actor: ActorId, tensors: Vec<Tensor>) -> Preparing {
        let hungry = self.to.clone();
        let hungry = move || drop(hungry.send(Command::Hungry));
        let packing = Arc::clone(&self.packing);
        let ready = ready(tensors, self.stream.clone(), Arc::clone(&self.copiers), packing, hungry);
        Preparing(self.tell_prepared(item, Of::Message(actor), ready))
    }

    /// Has it said what comes of the wait for tensors.
    pub(super) fn tell_prepared(
        &self,
        item: u64,
        of: Of,
        ready: impl Future<Output = Result<Vec<Tensor>, TensorError>> + Send + 'static,
    ) -> AbortHandle {
        let to = self.to.clone();
        let told = tokio::spawn(async move {
            let tensors = ready.await;
            // With the gateway, the message ends too.
            let _ = to.send(Command::Prepared(Box::new(Prepared { item, of, tensors })));
        });
        told.abort_handle()
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
                (waiting.out.tensors, waiting.preparing) = (tensors, None);
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
        let actors: Vec<_> =
            self.mailboxes.keys().filter(|actor| self.host_of(**actor) == Some(host)).copied().collect();
        actors.into_iter().for_each(|actor| self.send_on(actor));
    }

    /// Posts what can be of a mailbox.
    pub(super) fn send_on(&mut self, actor: ActorId) {
        let host = self.host_of(actor);
        let Some(mailbox) = self.mailboxes.get_mut(&actor).filter(|mailbox| mailbox.offered > 0) else {
            return;
        };
        let Some(remote) = host.and_then(|host| self.hosts.get_mut(&host)) else { return };
        while mailbox.queue.front().is_some_and(|waiting| waiting.preparing.is_none()) {
            let Some(Waiting { item, out, preparing }) = mailbox.queue.pop_front() else { return };
            match post(remote, out, &self.copiers) {
                Ok(under_way) => mailbox.under_way += under_way,
                // The session says when there is room; when it has ended, the next one asks for the mailbox,
                // or the host is gone.
                Err((out, PostError::Full { .. } | PostError::NoWindow { .. } | PostError::Ended { .. })) => {
                    mailbox.queue.push_front(Waiting { item, out, preparing });
                    return;
                }
                // The offer was taken back, because the actor has ended, or had rested when it was made.
                Err((out, PostError::NotServed { .. })) => {
                    mailbox.queue.push_front(Waiting { item, out, preparing });
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

    /// A tensor of a message that is under way is lost; why, where it is not that it is tainted (HOST-6).
    pub(super) fn spoilt(&mut self, host: u16, session: u64, post: Seq, why: Option<String>) {
        let own = shown(&self.node.own);
        let why =
            why.map_or_else(|| tainted(&own), |why| format!("a tensor in it cannot be read on {own}: {why}"));
        let why = NoAnswer::Other(why).encode();
        if let Some(remote) = self.hosts.get(&host).filter(|remote| remote.session == session) {
            remote.peer.with(|session| session.abort(post, why));
        }
    }

    /// There will be no reply to an ask.
    pub(super) fn refused(&mut self, host: u16, correlation: u64, why: &Bytes) {
        let Some(remote) = self.hosts.get_mut(&host) else { return };
        if let Some(Asked { actor, receipt, question }) = remote.asks.remove(&correlation) {
            let why = NoAnswer::decode(why, &remote.shown());
            if let Some(mailbox) = self.mailboxes.get_mut(&actor) {
                mailbox.followed.refused(question, &why);
            }
            receipt.refuse(&why);
            self.less_under_way(actor);
        }
    }

    /// A message is done with on its host: with the receipt goes the sender's credit.
    pub(super) fn done(&mut self, host: u16, post: Seq) {
        let done = self.hosts.get_mut(&host).and_then(|remote| remote.open.remove(&post));
        if let Some((actor, receipt)) = done {
            drop(receipt);
            self.less_under_way(actor);
        }
    }

    /// Nothing goes to an actor's host any more: the messages that wait are refused, for this reason.
    pub(super) fn refuse_waiting(&mut self, actor: ActorId, why: &Refusal) {
        let Some(mailbox) = self.mailboxes.get_mut(&actor) else { return };
        mailbox.followed.end(why);
        for Waiting { out, .. } in std::mem::take(&mut mailbox.queue) {
            refuse(&self.transport, out.receipt, why);
        }
    }

    /// The mailbox of an actor takes no messages any more: those that wait are refused, for this reason.
    pub(super) fn close(&mut self, actor: ActorId, why: &Refusal) {
        let Some(mut mailbox) = self.mailboxes.remove(&actor) else { return };
        self.late.is_over(actor);
        if let Place::At(index) = mailbox.place {
            self.transport.pause(index);
        }
        mailbox.followed.end(why);
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

/// Posts a message, with its spans lent before a lane can ask for them. How many ends of it will be told:
/// that it is done with, and for an ask its answer.
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
    // What is sent is lent by now; what has no bytes is needed no more.
    drop(tensors);
    let Some(correlation) = posted.correlation else {
        remote.open.insert(posted.post, (actor, Some(receipt)));
        return Ok(1);
    };
    remote.open.insert(posted.post, (actor, None));
    remote.asks.insert(correlation, Asked { actor, receipt, question });
    Ok(2)
}

/// Offers those that lie in memory of a device.
fn offer_all(sources: &[Source], copiers: &Copiers, offer: &mut dyn FnMut(OnDevice)) {
    for (index, source) in sources.iter().enumerate() {
        if let Source::Staged(tensor, _) = source
            && let Some(device) = copiers.number(tensor.device())
        {
            offer(OnDevice { span: index as u16, device, bytes: tensor.bytes() }); // MAX_SPANS
        }
    }
}

/// Posts the head of a message, or of a reply, and lends its spans.
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
