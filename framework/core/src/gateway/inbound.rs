//! Messages from other hosts: into memory, and on to their actors; and the replies to asks among them.
//!
//! A message is sent on with the call in which its session tells of it, so that those to one mailbox keep
//! their order (HOST-3); it waits for room as any sender of this host does. Its place in the mailbox is given
//! back when the actor's mailbox has taken it, or when the reply has gone.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use tensorpost_hosts::frame::{Post, Target as To};
use tensorpost_hosts::ids::{Correlation, Seq};
use tensorpost_hosts::net::Peer;
use tensorpost_hosts::session::{PostError, To as PostTo};

use super::followed::Asked;
use super::head::{Head, HeadBody};
use super::note::{NoAnswer, tainted};
use super::outbound::{Of, post_as};
use super::prepare::{aside, make_ready, targets};
use super::run::{Gateway, Remote};
use super::store::Target;
use super::{Command, shown};
use crate::actor::{AskError, SendError};
use crate::ids::{ActorId, DeviceId};
use crate::lease::PoolError;
use crate::limits::MAX_INLINE_BODY;
use crate::message::raw::{RawMessage, RawReply};
use crate::stream::turn::Turn;
use crate::tensor::{Tensor, TensorError};
use crate::transport::hosts::{from_host, starter_of};
use crate::transport::inbox::Refusal;

/// So long a message waits for memory before that of versions which nobody need have is given back.
const PATIENCE: Duration = Duration::from_millis(50);

/// The same for a large body, once some was given back.
const LATER: Duration = Duration::from_secs(1);

/// Who asked, in which session, and whom.
#[derive(Clone, Copy)]
pub(super) struct Asking {
    host: u16,
    session: u64,
    actor: ActorId,
}

/// What came of an ask of another host.
pub(super) struct Answered {
    of: Asking,
    post: Seq,
    correlation: Correlation,
    reply: Result<RawReply, AskError<RawMessage>>,
}

/// A reply on its way to another host.
pub(super) struct Replying {
    of: Asking,
    /// The ask that it answers.
    post: Seq,
    correlation: Correlation,
    body: Bytes,
    tensors: Vec<Tensor>,
}

impl Gateway {
    /// The head of a message came whose pieces need memory.
    pub(super) fn arriving(&mut self, host: u16, post: Seq, message: &Post) {
        let Some(remote) = self.hosts.get(&host) else { return };
        remote.store.expect(post);
        let Ok(head) = Head::decode(message.head.clone(), &message.spans) else {
            // It is refused when it is whole: until then its pieces come, and go nowhere.
            let nowhere = message.spans.iter().map(|_| Target::Nowhere(String::new())).collect();
            return remote.store.prepared(post, nowhere);
        };
        let receiver = self.receiver_of(host, message.target);
        let (store, stream) = (Arc::clone(&remote.store), self.stream.clone());
        let (copiers, turn) = (Arc::clone(&self.copiers), Arc::clone(&self.memory));
        let to = self.to.clone();
        tokio::spawn(async move {
            let _turn = turn.lock().await;
            let mut targets = std::pin::pin!(targets(&head, &stream, &copiers, receiver));
            let targets = match tokio::time::timeout(PATIENCE, &mut targets).await {
                Ok(targets) => targets,
                Err(_) => {
                    let _ = to.send(Command::Hungry);
                    targets.await
                }
            };
            store.prepared(post, targets);
        });
    }

    /// Where the tensors of a message that comes belong, if anywhere: on the device of its actor, or of who
    /// asked.
    fn receiver_of(&self, host: u16, to: To) -> Option<DeviceId> {
        let To::Reply(correlation) = to else {
            return self.locals.get(&ActorId(to.actor()?.0))?.device;
        };
        let asker = self.hosts.get(&host)?.asks.get(&correlation)?.receipt.sender();
        let (process, device) = self.gpus.get(&asker.slot())?;
        (*process == asker).then_some(*device)
    }

    /// A message is whole.
    pub(super) fn arrived(&mut self, host: u16, post: Seq, message: Post) {
        let Some(remote) = self.hosts.get_mut(&host) else { return };
        let targets = if message.spans.is_empty() { Vec::new() } else { remote.store.take(post) };
        let (name, session) = (remote.shown(), remote.session);
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
            let reply = reply.map_err(|why| NoAnswer::decode(&NoAnswer::BadReply(why).encode(), &name));
            return self.pass_back(asked, reply);
        }
        let refuse = |why: NoAnswer, actor: Option<ActorId>| {
            tracing::warn!(?why, from = name, "a message of another host was dropped");
            self.transport.dead_letter();
            peer.with(|session| {
                if let To::Ask(_, correlation) = message.target {
                    session.refuse(correlation, why.encode());
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
            Err(why) => return refuse(NoAnswer::Undelivered(why), actor),
        };
        if actor == Some(starter_of(self.own())) {
            body = from_host(host, &body);
        }
        let local = actor.and_then(|actor| self.locals.get(&actor));
        let Some(address) = local.and_then(|local| local.address.as_ref()) else {
            return refuse(NoAnswer::NoSuchActor, actor);
        };
        let is_large = body.len() > MAX_INLINE_BODY;
        let (address, raw) = (address.with_key(key), RawMessage { key, body, tensors });
        match message.target {
            To::Ask(actor, correlation) => {
                let asking = address.ask(raw);
                let of = Asking { host, session, actor: ActorId(actor.0) };
                tokio::spawn(ask((asking, is_large), peer, of, post, correlation, self.to.clone()));
            }
            // The first attempt is made here. Where it finds no room, a task waits.
            _ => {
                let mut sending = address.send(raw);
                let (transport, to) = (Arc::clone(&self.transport), self.to.clone());
                let actor = address.actor();
                let sent = move |result: Result<(), SendError<RawMessage>>| {
                    if let Err(error) = result {
                        tracing::warn!(%error, from = name, "a message of another host was dropped");
                        transport.dead_letter();
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

    /// The reply to an ask has come, or what came is none: it goes to who asked, and to all who asked the
    /// same.
    fn pass_back(&mut self, asked: Asked, reply: Result<(Vec<u8>, Vec<Tensor>), Refusal>) {
        let Asked { actor, receipt, question } = asked;
        // Its frame, and what its tensors' leases need, in one.
        let _turn = Turn::begin();
        let mut followed = self.mailboxes.get_mut(&actor).map(|mailbox| &mut mailbox.followed);
        match reply {
            Ok((body, tensors)) => {
                let forgets = followed.is_some_and(|followed| followed.answered(question, &body, &tensors));
                receipt.reply(RawReply::Value { body, tensors });
                if forgets {
                    self.unfollow_later(actor);
                }
            }
            Err(why) => {
                followed.iter_mut().for_each(|followed| followed.refused(question, &why));
                receipt.refuse(&why);
            }
        }
        self.less_under_way(actor);
    }

    /// An actor has answered an ask of another host, or never will.
    pub(super) fn answered(&mut self, Answered { of, post, correlation, reply }: Answered) {
        let own = shown(&self.node.own);
        let (body, tensors) = match reply {
            Ok(RawReply::Value { body, tensors }) => (Bytes::from(body), tensors),
            Ok(RawReply::None(_)) => return self.refuse_ask(of, post, correlation, NoAnswer::NoReply),
            Err(error) => return self.refuse_ask(of, post, correlation, NoAnswer::of(error, &own)),
        };
        let replying = Replying { of, post, correlation, body, tensors };
        if self.copiers.are_ready(&replying.tensors) {
            return self.reply(replying);
        }
        // It waits for no memory: who asked may wait for the reply with that.
        let (tensors, stream) = (replying.tensors.clone(), self.stream.clone());
        let copiers = Arc::clone(&self.copiers);
        let ready = aside(move || make_ready(&tensors, &stream, &copiers));
        drop(self.tell_prepared(0, Of::Reply(replying), ready));
    }

    /// The tensors of a reply are there now, or never will be.
    pub(super) fn reply_prepared(
        &mut self,
        mut replying: Replying,
        tensors: Result<Vec<Tensor>, TensorError>,
    ) {
        match tensors {
            Ok(tensors) => {
                replying.tensors = tensors;
                self.reply(replying);
            }
            Err(error) => {
                let is_full = matches!(error, TensorError::Pool(PoolError::Full { .. }));
                let why = match error {
                    TensorError::Tainted { .. } => NoAnswer::Other(tainted(&shown(&self.node.own))),
                    other => NoAnswer::BadReply(other.to_string()),
                };
                if is_full {
                    self.forget_versions();
                }
                self.refuse_ask(replying.of, replying.post, replying.correlation, why);
            }
        }
    }

    fn reply(&mut self, replying: Replying) {
        let host = replying.of.host;
        let Some(remote) = self.asker(replying.of) else { return };
        remote.replies.push_back(replying);
        self.send_replies(host);
    }

    /// Posts the replies that there is room for.
    pub(super) fn send_replies(&mut self, host: u16) {
        let Some(remote) = self.hosts.get_mut(&host) else { return };
        while let Some(replying) = remote.replies.pop_front() {
            let Replying { post, correlation, body, tensors, .. } = &replying;
            let head = Head::of(0, body, tensors);
            match post_as(remote, PostTo::Reply(*correlation), &head, tensors, body, &self.copiers) {
                Ok(_) => remote.peer.with(|session| session.done(*post)),
                Err(PostError::NoWindow { .. }) => {
                    // The session says when there is room.
                    remote.replies.push_front(replying);
                    return;
                }
                Err(error) => {
                    let why = NoAnswer::BadReply(error.to_string()).encode();
                    remote.peer.with(|session| {
                        session.refuse(*correlation, why);
                        session.done(*post);
                    });
                }
            }
        }
    }

    /// The host that asked, in the session in which it did. One of which that is over waits for no answer.
    fn asker(&mut self, of: Asking) -> Option<&mut Remote> {
        self.hosts.get_mut(&of.host).filter(|remote| remote.session == of.session)
    }

    fn refuse_ask(&mut self, of: Asking, post: Seq, correlation: Correlation, why: NoAnswer) {
        let Some(remote) = self.asker(of) else { return };
        remote.peer.with(|session| {
            session.refuse(correlation, why.encode());
            session.done(post);
        });
    }
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
    // With the gateway, the session ends, and its asks with it.
    let _ = to.send(Command::Answered(Box::new(Answered { of, post, correlation, reply })));
}

/// Waits for room; where it is for a large body and takes long, it may be memory that it waits for.
async fn patient<F: Future + Unpin>(
    mut waiting: F,
    is_large: bool,
    to: &tokio::sync::mpsc::UnboundedSender<Command>,
) -> F::Output {
    if !is_large {
        return waiting.await;
    }
    let mut patience = PATIENCE;
    loop {
        if let Ok(done) = tokio::time::timeout(patience, &mut waiting).await {
            return done;
        }
        let _ = to.send(Command::Hungry);
        patience = LATER;
    }
}

/// A piece of a message that is whole has no lane any more.
const STILL_WRITTEN: &str = "some of it is still being written";

/// The body and the tensors of a message that is whole.
///
/// # Errors
/// There was no memory for it.
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
