//! Messages from other hosts: into memory, and on to their actors; and the replies to asks among them.
//!
//! A message is sent on in the same call in which its session reports it, so messages to one mailbox keep
//! their order (HOST-3). It waits for room as a message of any sender of this host does. Its place in the
//! mailbox is given back when the actor's mailbox has taken it, or when the reply has gone.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use tensorpost_hosts::frame::{Post, Target as To};
use tensorpost_hosts::ids::{Correlation, Seq};
use tensorpost_hosts::net::Peer;
use tensorpost_hosts::session::{PostError, To as PostTo};

use super::asks::{Answered, Asking, PendingAsk, Replying};
use super::command::Command;
use super::copiers::Copiers;
use super::dropped::dropped;
use super::followers::unfollow_later;
use super::head::{Head, HeadBody};
use super::locals::Locals;
use super::note::{encode_refusal, refusal_of, tainted};
use super::outbound::post_as;
use super::preparer::WAIT_FOR_MEMORY;
use super::remotes::{Remote, Remotes, shown};
use super::run::Gateway;
use super::store::Target;
use crate::actor::SendError;
use crate::ids::{ActorId, DeviceId, ProcessId};
use crate::lease::PoolError;
use crate::limits::MAX_INLINE_BODY;
use crate::message::raw::{RawMessage, RawReply};
use crate::stream::turn::Turn;
use crate::tensor::{Tensor, TensorError};
use crate::transport::gateway_messages::{from_host, starter_of};
use crate::transport::inbox::Refusal;

/// How long a large body waits for memory again, after versions were given back once.
const LATER: Duration = Duration::from_secs(1);

impl Gateway {
    /// Finds memory for the pieces of a message whose head has come.
    pub(super) fn arriving(&mut self, host: u16, post: Seq, message: &Post) {
        let Some(remote) = self.hosts.get(&host) else { return };
        remote.store.expect(post);
        let Ok(head) = Head::decode(message.head.clone(), &message.spans) else {
            // The message is refused when it is complete. Until then its pieces are dropped as they come.
            let nowhere = message.spans.iter().map(|_| Target::Nowhere(String::new())).collect();
            return remote.store.prepared(post, nowhere);
        };
        let receiver = receiver_of(message.target, remote, &self.locals, &self.gpus);
        self.preparer.find_memory(head, receiver, Arc::clone(&remote.store), post);
    }

    /// Passes on a message that is complete.
    pub(super) fn arrived(&mut self, host: u16, post: Seq, message: Post) {
        let Some(remote) = self.hosts.get_mut(&host) else { return };
        let targets = if message.spans.is_empty() { Vec::new() } else { remote.store.take(post) };
        let session = remote.session;
        let content = match Head::decode(message.head, &message.spans) {
            Ok(head) => content(&head, targets).map(|(body, tensors)| (head.key, body, tensors)),
            Err(error) => Err(format!("it is malformed: {error}")),
        };
        let peer = Arc::clone(&remote.peer);
        if let To::Reply(correlation) = message.target {
            let asked = remote.asks.remove(&correlation);
            peer.with(|session| session.passed_on(post));
            let Some(asked) = asked else { return };
            let reply = content.map(|(_, body, tensors)| (body, tensors));
            let reply = reply.map_err(|why| Refusal::BadReply(why).bounded());
            return self.pass_back(asked, reply);
        }
        let refuse = |why: Refusal, actor: Option<ActorId>| {
            dropped(host, &format_args!("a message: {why:?}"));
            self.transport.counters.dead_letter();
            peer.with(|session| {
                if let To::Ask(_, correlation) = message.target {
                    session.refuse(correlation, encode_refusal(why));
                }
                session.done(post);
            });
            if let Some(actor) = actor.filter(|_| peer.is_over()) {
                let _ = self.to.send(Command::LeftBehind { host, actor });
            }
        };
        let actor = message.target.actor().map(|actor| ActorId(actor.0));
        let (key, mut body, tensors) = match content {
            Ok(content) => content,
            Err(why) => return refuse(Refusal::Undelivered(why), actor),
        };
        if actor == Some(starter_of(self.node.number())) {
            body = from_host(host, &body);
        }
        let local = actor.and_then(|actor| self.locals.get(&actor));
        let Some(address) = local.and_then(|local| local.address.as_ref()) else {
            return refuse(Refusal::NoSuchActor, actor);
        };
        let is_large = body.len() > MAX_INLINE_BODY;
        let (address, raw) = (address.with_key(key), RawMessage { key, body, tensors });
        match message.target {
            To::Ask(actor, correlation) => {
                let asking = address.ask(raw);
                let of = Asking { host, session, actor: ActorId(actor.0) };
                tokio::spawn(ask((asking, is_large), peer, of, post, correlation, self.to.clone()));
            }
            // The first attempt is made in this call, to keep the order. If it finds no room, a task waits.
            _ => {
                let mut sending = address.send(raw);
                let (transport, to) = (Arc::clone(&self.transport), self.to.clone());
                let actor = address.actor();
                let sent = move |result: Result<(), SendError<RawMessage>>| {
                    if let Err(error) = result {
                        dropped(host, &format_args!("a message: {error}"));
                        transport.counters.dead_letter();
                    }
                    let is_over = peer.with(|session| {
                        session.done(post);
                        session.has_ended()
                    });
                    if is_over {
                        let _ = to.send(Command::LeftBehind { host, actor });
                    }
                };
                match (&mut sending).now_or_never() {
                    Some(result) => sent(result),
                    None => {
                        let hungry = self.to.clone();
                        drop(tokio::spawn(async move { sent(patient(sending, is_large, &hungry).await) }));
                    }
                }
            }
        }
    }

    /// Passes a reply, or the reason why it is not valid, to the asker and to all that asked the same.
    fn pass_back(&mut self, asked: PendingAsk, reply: Result<(Vec<u8>, Vec<Tensor>), Refusal>) {
        let PendingAsk { actor, receipt, question } = asked;
        // The reply's frame and the messages for its tensors' leases go out together.
        let _turn = Turn::begin();
        let mut followed = self.mailboxes.get_mut(&actor).map(|mailbox| &mut mailbox.followed);
        match reply {
            Ok((body, tensors)) => {
                let forgets = followed.is_some_and(|followed| followed.answered(question, &body, &tensors));
                receipt.reply(RawReply::Value { body, tensors });
                if forgets {
                    unfollow_later(&self.to, actor);
                }
            }
            Err(why) => {
                followed.iter_mut().for_each(|followed| followed.refused(question, &why));
                receipt.refuse(&why);
            }
        }
        self.less_under_way(actor);
    }

    /// Handles the end of an ask that another host made to an actor.
    pub(super) fn answered(&mut self, Answered { of, post, correlation, reply }: Answered) {
        let own = shown(&self.node.own);
        let (body, tensors) = match reply {
            Ok(RawReply::Value { body, tensors }) => (Bytes::from(body), tensors),
            Ok(RawReply::None(_)) => return self.hosts.refuse_ask(of, post, correlation, Refusal::NoReply),
            Err(error) => return self.hosts.refuse_ask(of, post, correlation, refusal_of(error, &own)),
        };
        let replying = Replying { of, post, correlation, body, tensors };
        if self.node.copiers.are_ready(&replying.tensors) {
            return self.hosts.reply(replying, &self.node.copiers);
        }
        let tensors = replying.tensors.clone();
        self.preparer.reply(replying, tensors);
    }

    /// Handles the outcome of the wait for a reply's tensors.
    pub(super) fn reply_prepared(
        &mut self,
        mut replying: Replying,
        tensors: Result<Vec<Tensor>, TensorError>,
    ) {
        match tensors {
            Ok(tensors) => {
                replying.tensors = tensors;
                self.hosts.reply(replying, &self.node.copiers);
            }
            Err(error) => {
                let is_full = matches!(error, TensorError::Pool(PoolError::Full { .. }));
                let why = match error {
                    TensorError::Tainted { .. } => Refusal::OutOfReach(tainted(&shown(&self.node.own))),
                    other => Refusal::BadReply(other.to_string()),
                };
                if is_full {
                    self.mailboxes.forget_versions();
                }
                self.hosts.refuse_ask(replying.of, replying.post, replying.correlation, why);
            }
        }
    }
}

impl Remotes {
    /// Sends a reply when there is room for it.
    fn reply(&mut self, replying: Replying, copiers: &Copiers) {
        let host = replying.of.host;
        let Some(remote) = self.asker(replying.of) else { return };
        remote.replies.push_back(replying);
        self.send_replies(host, copiers);
    }

    /// Posts the replies for which there is room.
    pub(super) fn send_replies(&mut self, host: u16, copiers: &Copiers) {
        let Some(remote) = self.get_mut(&host) else { return };
        while let Some(replying) = remote.replies.pop_front() {
            let Replying { post, correlation, body, tensors, .. } = &replying;
            let head = Head::of(0, body, tensors);
            match post_as(remote, PostTo::Reply(*correlation), &head, tensors, body, copiers) {
                Ok(_) => remote.peer.with(|session| session.done(*post)),
                Err(PostError::NoWindow { .. }) => {
                    // The session reports when there is room.
                    remote.replies.push_front(replying);
                    return;
                }
                Err(error) => {
                    let why = encode_refusal(Refusal::BadReply(error.to_string()));
                    remote.peer.with(|session| {
                        session.refuse(*correlation, why);
                        session.done(*post);
                    });
                }
            }
        }
    }

    /// Returns the host that asked, if its session has not ended. After that nobody waits for the answer.
    fn asker(&mut self, of: Asking) -> Option<&mut Remote> {
        self.get_mut(&of.host).filter(|remote| remote.session == of.session)
    }

    fn refuse_ask(&mut self, of: Asking, post: Seq, correlation: Correlation, why: Refusal) {
        let Some(remote) = self.asker(of) else { return };
        remote.peer.with(|session| {
            session.refuse(correlation, encode_refusal(why));
            session.done(post);
        });
    }
}

/// Returns the device on which the tensors of a message of `remote` belong, if any: that of its actor, or of
/// the asker for a reply.
fn receiver_of(
    to: To,
    remote: &Remote,
    locals: &Locals,
    gpus: &HashMap<usize, (ProcessId, DeviceId)>,
) -> Option<DeviceId> {
    let To::Reply(correlation) = to else {
        return locals.get(&ActorId(to.actor()?.0))?.device;
    };
    let asker = remote.asks.get(&correlation)?.receipt.sender();
    let (process, device) = gpus.get(&asker.slot())?;
    (*process == asker).then_some(*device)
}

/// Waits for an actor's answer to an ask of another host.
async fn ask(
    (mut asking, is_large): (crate::actor::Ask<RawMessage>, bool),
    peer: Arc<Peer>,
    of: Asking,
    post: Seq,
    correlation: Correlation,
    to: tokio::sync::mpsc::UnboundedSender<Command>,
) {
    let accepted = patient(std::pin::pin!(asking.accepted()), is_large, &to).await;
    let is_over = peer.with(|session| {
        session.passed_on(post);
        session.has_ended()
    });
    if is_over {
        let (host, actor) = (of.host, of.actor);
        let _ = to.send(Command::LeftBehind { host, actor });
    }
    let reply = match accepted {
        Ok(()) => asking.await,
        Err(error) => Err(error),
    };
    // An error means that the gateway has ended, and with it the session and its asks.
    let _ = to.send(Command::Answered(Box::new(Answered { of, post, correlation, reply })));
}

/// Waits for room. A large body that waits long may be waiting for memory, so the versions kept for followers
/// are given back.
async fn patient<F: Future + Unpin>(
    mut waiting: F,
    is_large: bool,
    to: &tokio::sync::mpsc::UnboundedSender<Command>,
) -> F::Output {
    if !is_large {
        return waiting.await;
    }
    let mut patience = WAIT_FOR_MEMORY;
    loop {
        if let Ok(done) = tokio::time::timeout(patience, &mut waiting).await {
            return done;
        }
        let _ = to.send(Command::Hungry);
        patience = LATER;
    }
}

/// A lane still holds a piece of a complete message, which should not happen.
const STILL_WRITTEN: &str = "some of it is still being written";

/// Takes the body and the tensors of a complete message out of its targets.
///
/// # Errors
/// There was no memory for one of its spans.
fn content(head: &Head, targets: Vec<Target>) -> Result<(Vec<u8>, Vec<Tensor>), String> {
    let lost = |target| match target {
        Some(Target::Nowhere(why)) => Err(why),
        _ => Err("its tensors are not what they were said to be".to_owned()),
    };
    let mut targets = targets.into_iter();
    let mut tensors = Vec::with_capacity(head.tensors.len());
    for _ in &head.tensors {
        let tensor = match targets.next() {
            Some(Target::InPlace(memory)) => memory.into_tensor().ok_or(STILL_WRITTEN)?,
            Some(Target::Staged(landing)) => landing.into_tensor().ok_or(STILL_WRITTEN)?,
            other => return lost(other),
        };
        tensors.push(tensor.freeze());
    }
    let body = match &head.body {
        HeadBody::Here(body) => body.to_vec(),
        HeadBody::Span(_) => match targets.next() {
            Some(Target::InPlace(memory)) => memory.into_body().ok_or(STILL_WRITTEN)?,
            other => return lost(other),
        },
    };
    Ok((body, tensors))
}
