//! Messages whose types are known only where they are handled: an actor takes all messages that it does not
//! list.
//!
//! Such a message is mostly handled on a thread of another language, to which the actor hands it. Its
//! [answer](RawAnswer) is sent from there, without the actor's own thread. [`HandedOff`] counts the messages
//! that are under way there, so that an actor that is told to stop waits for them.

use std::sync::{Arc, Weak};
use std::task::{Poll, Waker};

use actix::{Context, Handler};
use futures_util::future::LocalBoxFuture;

use super::{
    Accept, AnyEnvelope, BoxedEnvelope, Decode, Done, Entry, Envelope, Handles, accept, decode_acknowledged,
    finish,
};
use crate::actor::RemoteActor;
use crate::actor::dead_letter::DeadLetter;
use crate::actor::handed_off::HandedOff;
use crate::actor::receive::Receive;
use crate::device::DeviceError;
use crate::ids::ActorId;
use crate::message::GpuMessage;
use crate::message::raw::{RawMessage, RawReply};
use crate::observe::trace::FrameId;
use crate::stream::Stream;
use crate::transport::Transport;
use crate::transport::inbox::{self, Delivery, Refusal, Undelivered};

/// An actor that takes messages of all types.
pub trait TakesRaw: RemoteActor {
    /// Returns the sink of the actor's messages.
    fn sink(&self) -> Arc<dyn RawSink>;
}

/// The queue of messages that wait for their handlers elsewhere.
pub trait RawSink: Send + Sync {
    /// Takes a message. `answer` is kept until the message is handled. Called on any thread; never waits.
    fn put(&self, message: RawMessage, answer: RawAnswer);
}

/// Answers a message, once, from any thread. If it is dropped, the message counts as handled, and an asker is
/// told that there is no reply.
pub struct RawAnswer {
    done: Option<Done<RawReply>>,
    handed_off: Arc<HandedOff>,
    /// Whether the message still waits for its handler.
    queued: bool,
}

impl RawAnswer {
    /// Returns whether the sender waits for a reply.
    pub fn wants_reply(&self) -> bool {
        self.done.as_ref().is_some_and(Done::wants_reply)
    }

    /// Notes that the message's handler begins. Until then the message counts as one in the actor's mailbox.
    pub fn begin(&mut self) {
        if std::mem::take(&mut self.queued) {
            self.handed_off.one_begins();
        }
    }

    /// Notes that the message is handled: sends the reply, if one is wanted.
    pub fn send(mut self, reply: RawReply) {
        if let Some(done) = self.done.take_if(|done| !done.is_inherited()) {
            finish::<RawMessage>(done, reply);
        }
    }
}

impl Drop for RawAnswer {
    fn drop(&mut self) {
        if self.done.as_ref().is_some_and(Done::is_inherited) {
            // A forked child has the answer, and its parent sends it.
            std::mem::forget(self.done.take());
            return;
        }
        // The credit goes back before the answer is counted.
        drop(self.done.take());
        self.begin();
        self.handed_off.one_less();
    }
}

impl std::fmt::Debug for RawAnswer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RawAnswer").field("wants_reply", &self.wants_reply()).finish_non_exhaustive()
    }
}

impl<A: RemoteActor> Handles<A> {
    /// Adds messages of all other types, wherever their schemas are. The actor itself refuses those that have
    /// no handler.
    #[doc(hidden)]
    pub fn raw(&mut self) -> &mut Self
    where
        A: TakesRaw,
    {
        let (decode, accept) = (decode_raw::<A> as Decode<A>, accept_raw::<A> as Accept<A>);
        self.any = Some(Entry {
            name: RawMessage::NAME,
            type_name: RawMessage::NAME,
            decode,
            accept,
            describe: None,
        });
        self
    }

    /// Adds messages of all other types, each read as an `M`, which holds their values as they are. Their
    /// replies are published as for [`acknowledged`](Self::acknowledged).
    #[doc(hidden)]
    pub fn raw_within<M>(&mut self) -> &mut Self
    where
        M: GpuMessage,
        A: Handler<M>,
    {
        let (decode, accept) = (decode_acknowledged::<A, M> as Decode<A>, accept::<A, M> as Accept<A>);
        self.any = Some(Entry { name: M::NAME, type_name: M::NAME, decode, accept, describe: None });
        self
    }
}

fn decode_raw<A: TakesRaw>(delivery: Delivery<'_>) -> Result<BoxedEnvelope<A>, Undelivered> {
    let Delivery { key, body, tensors, tickets, receipt, context } = delivery;
    match RawMessage::arrived(key, body, tensors) {
        Ok(message) => {
            Ok(Box::new(RawEnvelope(Envelope { message, tickets, context, done: Done::Remote(receipt) })))
        }
        Err(error) => Err(receipt.malformed(RawMessage::NAME, error.to_string())),
    }
}

fn accept_raw<A: TakesRaw>(message: inbox::LocalMessage) -> Result<BoxedEnvelope<A>, inbox::LocalMessage> {
    let envelope: Box<Envelope<RawMessage>> = message.downcast()?;
    Ok(Box::new(RawEnvelope(*envelope)))
}

/// The envelope of a message whose handler is elsewhere.
struct RawEnvelope(Envelope<RawMessage>);

impl<A: TakesRaw> AnyEnvelope<A> for RawEnvelope {
    fn open(
        self: Box<Self>,
        actor: &mut A,
        ctx: &mut Context<A>,
        stream: &Stream,
        transport: &Weak<Transport>,
        handed_off: &Arc<HandedOff>,
    ) -> Option<LocalBoxFuture<'static, ()>> {
        let sink = handed_off.sink(|| actor.sink());
        // CLOCK-1 is kept when a tensor is used. This begins the handler's part of the stream.
        if let Err(error) = stream.begin(&[]) {
            self.unready(&error);
            return None;
        }
        // The taint may be known now that was not known when the message was sent.
        if let Some(by) = self.0.taint(stream.domain()) {
            let (message, sender) = self.0.refuse_tainted(by, transport.upgrade());
            actor.dead_letter(DeadLetter::tainted(message, by, sender), ctx);
            return None;
        }
        self.hand_over(sink, handed_off);
        None
    }

    fn put(
        self: Box<Self>,
        own: ActorId,
        stream: &Stream,
        handed_off: &Arc<HandedOff>,
    ) -> Result<(), BoxedEnvelope<A>> {
        // A message with lost data becomes a dead letter, which the actor itself handles.
        let Some(sink) = handed_off.known_sink().filter(|_| !stream.domain().has_taint()) else {
            return Err(self);
        };
        if let Err(error) = stream.begin(&[]) {
            self.unready(&error);
            return Ok(());
        }
        let _handling = stream.domain().tracer().handler(own, || self.0.comes_from());
        self.hand_over(sink, handed_off);
        Ok(())
    }

    fn fetch(&mut self, receive: &Receive, waker: &Waker) -> Poll<Result<(), String>> {
        self.0.fetch_by(receive, waker)
    }

    fn refuse(self: Box<Self>, why: String) {
        self.0.done.refuse(Refusal::Undelivered(why));
    }

    fn turn_away(self: Box<Self>) {
        let Envelope { message, done, .. } = self.0;
        drop(message);
        done.refuse(Refusal::Restarting);
    }

    fn name(&self) -> &'static str {
        RawMessage::NAME
    }

    fn origin(&self) -> (u64, Option<FrameId>) {
        self.0.comes_from()
    }
}

impl RawEnvelope {
    fn hand_over(self, sink: &dyn RawSink, handed_off: &Arc<HandedOff>) {
        let Envelope { message, done, .. } = self.0;
        handed_off.one_more();
        let answer = RawAnswer { done: Some(done), handed_off: Arc::clone(handed_off), queued: true };
        sink.put(message, answer);
    }

    #[cold]
    fn unready(self, error: &DeviceError) {
        tracing::error!(%error, "a message was dropped: the actor's stream takes no work");
        let Envelope { message, done, .. } = self.0;
        done.refuse(Refusal::Undelivered(error.to_string()));
        drop(message);
    }
}
