//! Messages that must not overtake what a worker had sent before it ended: the word that nothing more comes
//! from it.
//!
//! Whoever learns of an end hears it over another link than the last messages of the dead, which may lie in a
//! ring, or wait in a gateway for their tensors. So the message takes their way: the node of the host that
//! the worker was on waits until the receiver, or its own gateway where that is on another host, has taken
//! all that was sent there by then (a [fence](crate::transport::control_channel::FromNode::Fence)), and sends
//! it from there. From a gateway on, the messages to one mailbox keep their order (HOST-3).
//!
//! Used by the pipelines' conductor, which is on one host.
//!
//! **Invariants.** WIRE-1: a host has nothing sent to a starter in another's name. MBX-2: so many wait at a
//! time, as for starts.
//!
//! **On the loss** of the worker's host, and where its node cannot do it, the message is sent from here: what
//! the dead had sent and has not come by then may come behind it.

use futures_util::future::{FutureExt as _, LocalBoxFuture};
use serde::{Deserialize, Serialize};

use super::elsewhere::{Answer, Request, starter};
use super::supervisor::{Supervisor, WorkerId};
use super::wait::wait_for;
use crate::actor::Address;
use crate::ids::{ActorId, ProcessId};
use crate::limits::DEFAULT_MAILBOX;
use crate::message::raw::RawMessage;
use crate::message::{GpuMessage, codec, message_key};
use crate::transport::control_channel::Location;
use crate::transport::hosts::starter_of;

/// A message that another host's node is to send.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Behind {
    to: ActorId,
    key: u64,
    body: Vec<u8>,
}

impl Supervisor {
    /// Sends a message without tensors to an actor, behind everything that a worker, which is on any host and
    /// may have ended, has sent to it. Resolves when it was accepted, or never will be.
    #[doc(hidden)] // for the pipelines, which are another crate
    pub fn send_behind<M: GpuMessage>(
        &self,
        worker: WorkerId,
        to: &Address<M>,
        message: M,
    ) -> LocalBoxFuture<'static, ()> {
        let sent = |sending: crate::actor::Send<M>| async move { drop(sending.await) }.boxed_local();
        let Some(transport) = self.elsewhere() else { return sent(to.send(message)) };
        let to = to.clone();
        if let Some((host, _)) = worker.elsewhere() {
            let Ok(encoded) = codec::encode_in(&message, Vec::new(), transport.domain()) else {
                return sent(to.send(message));
            };
            let behind = Behind { to: to.actor(), key: message_key::<M>(), body: encoded.body };
            let asked = starter(&transport, host).ask(Request::Behind(Box::new(behind)));
            return async move {
                if !matches!(asked.await, Ok(Answer::PassedOn)) {
                    let _ = to.send(message).await;
                }
            }
            .boxed_local();
        }
        if to.actor().host() == transport.host() && !to.actor().roams() {
            return sent(to.send(message));
        }
        let read = self.fence(to.actor());
        async move {
            let _ = read.await;
            let _ = to.send(message).await;
        }
        .boxed_local()
    }
}

/// Sends a message for another host, which wrote it (WIRE-1).
pub(super) fn pass_on(supervisor: &Supervisor, Behind { to, key, body }: Behind) -> Result<Answer, String> {
    if to == starter_of(to.host()) {
        return Err("a host speaks to a starter in its own name alone".to_owned());
    }
    let transport = supervisor.elsewhere().ok_or("this host is alone")?;
    let location = wait_for(supervisor.fence(to)).map_err(|error| error.to_string())?;
    let location = location.map_err(|_| "the node has ended".to_owned())?;
    // Of an actor of a third host it means nothing here (HOST-2).
    let nowhere = Location { process: ProcessId::NODE, index: 0, capacity: DEFAULT_MAILBOX };
    let address = Address::<RawMessage>::new(transport, to, location.unwrap_or(nowhere));
    let sending = address.with_key(key).send(RawMessage { key, body, tensors: Vec::new() });
    let sent = wait_for(sending).map_err(|error| error.to_string())?;
    sent.map(|()| Answer::PassedOn).map_err(|error| error.to_string())
}
