//! Messages that must not overtake the last messages of a worker that ended: the notice that nothing more
//! comes from it.
//!
//! The news of an end takes another link than the dead worker's last messages, which may lie in a ring, or
//! wait in a gateway for their tensors. So the notice follows their path. The node of the worker's host waits
//! until the receiver, or its own gateway if the receiver is on another host, has taken all messages sent to
//! it so far (a [fence](crate::transport::control_channel::FromNode::Fence)). Then it sends the notice from
//! there. From a gateway on, the messages to one mailbox keep their order (HOST-3).
//!
//! Used by the pipelines' conductor, which is on one host.
//!
//! **Invariants.** WIRE-1: no host can send to a starter in another host's name. MBX-2: the messages that
//! wait are bounded like starts.
//!
//! **On the loss** of the worker's host, or if its node cannot do it, the message is sent from here: late
//! messages of the dead worker may then come behind it.

use futures_util::future::{FutureExt as _, LocalBoxFuture};

use super::starter::{Answer, FencedMessage, Request, starter};
use crate::actor::Address;
use crate::ids::ProcessId;
use crate::limits::DEFAULT_MAILBOX;
use crate::message::raw::RawMessage;
use crate::message::{GpuMessage, codec, message_key};
use crate::node::hosts::wait::wait_for;
use crate::node::supervisor::hosts::fence;
use crate::node::supervisor::{Supervisor, WorkerId};
use crate::transport::control_channel::Location;
use crate::transport::gateway_messages::starter_of;

impl Supervisor {
    /// Sends a message without tensors to an actor, behind all messages that a worker has sent to it. The
    /// worker may be on any host, and may have ended. Resolves when the message was accepted, or never will
    /// be.
    #[doc(hidden)] // for the pipelines, which are another crate
    pub fn send_fenced<M: GpuMessage>(
        &self,
        worker: WorkerId,
        to: &Address<M>,
        message: M,
    ) -> LocalBoxFuture<'static, ()> {
        let sent = |sending: crate::actor::SendFuture<M>| async move { drop(sending.await) }.boxed_local();
        let Some(transport) = self.transport_to_hosts() else { return sent(to.send(message)) };
        let to = to.clone();
        if let Some((host, _)) = worker.host_and_number() {
            let Ok(encoded) = codec::encode_in(&message, Vec::new(), transport.domain()) else {
                return sent(to.send(message));
            };
            let fenced = FencedMessage { to: to.actor(), key: message_key::<M>(), body: encoded.body };
            let asked = starter(&transport, host).ask(Request::Behind(Box::new(fenced)));
            return async move {
                if !matches!(asked.await, Ok(Answer::Done)) {
                    let _ = to.send(message).await;
                }
            }
            .boxed_local();
        }
        if to.actor().host() == transport.directory.host() && !to.actor().roams() {
            return sent(to.send(message));
        }
        let read = fence(self, to.actor());
        async move {
            let _ = read.await;
            let _ = to.send(message).await;
        }
        .boxed_local()
    }
}

/// Sends a message for another host. Its content comes from that host (WIRE-1).
pub(in crate::node) fn pass_on(
    supervisor: &Supervisor,
    FencedMessage { to, key, body }: FencedMessage,
) -> Result<Answer, String> {
    if to == starter_of(to.host()) {
        return Err("a host speaks to a starter in its own name alone".to_owned());
    }
    let transport = supervisor.transport_to_hosts().ok_or("this host is alone")?;
    let location = wait_for(fence(supervisor, to)).map_err(|error| error.to_string())?;
    let location = location.map_err(|_| "the node has ended".to_owned())?;
    // For an actor of a third host the location has no meaning here (HOST-2).
    let nowhere = Location { process: ProcessId::NODE, index: 0, capacity: DEFAULT_MAILBOX };
    let address = Address::<RawMessage>::new(transport, to, location.unwrap_or(nowhere));
    let sending = address.with_key(key).send(RawMessage { key, body, tensors: Vec::new() });
    let sent = wait_for(sending).map_err(|error| error.to_string())?;
    sent.map(|()| Answer::Done).map_err(|error| error.to_string())
}
