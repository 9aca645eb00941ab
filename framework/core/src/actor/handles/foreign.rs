//! Messages whose types are known only where they are handled: an actor takes all that it does not list.

use actix::Handler;

use super::{Accept, BoxedEnvelope, Decode, Done, Entry, Envelope, Handles, accept, decode_acknowledged};
use std::sync::Arc;

use crate::actor::RemoteActor;
use crate::message::GpuMessage;
use crate::message::raw::RawMessage;
use crate::transport::Transport;
use crate::transport::inbox::{Delivery, Refusal, Undelivered};

impl<A: RemoteActor> Handles<A> {
    /// Messages of all other types, whoever has their schemas: what has no handler, the actor refuses itself.
    #[doc(hidden)]
    pub fn foreign(&mut self) -> &mut Self
    where
        A: Handler<RawMessage>,
    {
        let (decode, accept) = (decode_raw::<A> as Decode<A>, accept::<A, RawMessage> as Accept<A>);
        self.any = Some(Entry { name: RawMessage::NAME, decode, accept, describe: None });
        self
    }

    /// Messages of all other types, each read as an `M`, in which their values stand as they are. They are asked as by
    /// [`acknowledged`](Self::acknowledged).
    #[doc(hidden)]
    pub fn foreign_within<M>(&mut self) -> &mut Self
    where
        M: GpuMessage,
        A: Handler<M>,
    {
        let (decode, accept) = (decode_acknowledged::<A, M> as Decode<A>, accept::<A, M> as Accept<A>);
        self.any = Some(Entry { name: M::NAME, decode, accept, describe: None });
        self
    }
}

fn decode_raw<A>(_: &Arc<Transport>, delivery: Delivery<'_>) -> Result<BoxedEnvelope<A>, Undelivered>
where
    A: RemoteActor + Handler<RawMessage>,
{
    let Delivery { key, body, tensors, tickets, receipt, context } = delivery;
    match RawMessage::arrived(key, body, tensors) {
        Ok(message) => Ok(Box::new(Envelope { message, tickets, context, done: Done::Remote(receipt) })),
        Err(error) => {
            let why = error.to_string();
            receipt.refuse(&Refusal::Undelivered(why.clone()));
            Err(Undelivered::Malformed { message: RawMessage::NAME, why })
        }
    }
}
