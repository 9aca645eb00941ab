//! A mailbox without an actor: for the program that started the node, which has no actor.

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc;

use crate::ids::{ActorId, ProcessId};
use crate::message::{GpuMessage, codec, message_key};
use crate::observe::trace::Of;
use crate::os::Inert;
use crate::os::block_on;
use crate::os::fork::INHERITED;
use crate::transport::inbox::{Delivery, Inbox, LocalCredits, LocalMessage, Refusal, Undelivered};
use crate::transport::{LeaseLimit, Transport};

use super::super::handles::{self, Done};

/// The receiving end: messages of type `M` that were sent to its address. Dropping it closes the mailbox.
/// Messages that nobody takes hold their senders' credits, and delay a shutdown until its deadline.
///
/// ```
/// use tensorpost::prelude::*;
///
/// #[derive(Serialize, Deserialize, GpuMessage)]
/// struct Done(u32);
///
/// # fn main() -> anyhow::Result<()> {
/// let node = Node::builder().start()?;
/// let (done, mut results) = node.channel::<Done>()?;
/// // `done` would go to an actor, in its arguments or in a message.
/// node.block_on(done.send(Done(1)))?;
/// assert_eq!(node.block_on(results.recv())?.0, 1);
/// assert!(results.try_recv().is_none());
/// # Ok(())
/// # }
/// ```
pub struct Channel<M: GpuMessage> {
    envelopes: Inert<mpsc::UnboundedReceiver<handles::Envelope<M>>>,
    transport: Weak<Transport>,
    index: u16,
    ended: Option<Box<dyn FnOnce() + Send + Sync>>,
}

/// No message came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChannelError {
    /// The node shuts down.
    #[error("the node is shutting down; no more messages will come")]
    NodeStopping,
    /// There was none before the deadline of [`recv_timeout`](Channel::recv_timeout).
    #[error("no message came before the deadline")]
    TimedOut,
    /// There was none before the deadline, and this process holds as many tensors of another as it may: that
    /// one sends it no more until it drops some.
    #[error("no message came before the deadline: {}", limit(*.holder, *.owner, *.leases, *.most))]
    LeasesOut {
        /// This process.
        holder: ProcessId,
        /// The process whose memory they are in.
        owner: ProcessId,
        /// How many it holds.
        leases: usize,
        /// How many it may hold.
        most: usize,
    },
    /// This process was forked from the process of the channel.
    #[error("{INHERITED}")]
    Forked,
}

fn limit(holder: ProcessId, owner: ProcessId, leases: usize, most: usize) -> LeaseLimit {
    LeaseLimit { holder, owner, leases, most }
}

impl<M: GpuMessage> Channel<M> {
    pub(crate) fn new(
        actor: ActorId,
        index: u16,
        capacity: u32,
        transport: &Arc<Transport>,
        ended: Box<dyn FnOnce() + Send + Sync>,
        key: Option<u64>,
    ) -> (Arc<ChannelInbox<M>>, Self) {
        // The channel is unbounded only in form: credits bound it to `capacity` per sending process (MBX-2).
        let (sender, envelopes) = mpsc::unbounded_channel();
        let key = key.unwrap_or_else(message_key::<M>);
        transport.domain().tracer().name(Of::Message, key, M::NAME);
        let transport = Arc::downgrade(transport);
        let local = LocalCredits::new(capacity);
        let inbox = ChannelInbox { actor, capacity, key, local, sender: Mutex::new(sender) };
        (Arc::new(inbox), Channel { envelopes: Inert::new(envelopes), transport, index, ended: Some(ended) })
    }

    /// Returns the next message. Taking it hands its sender's credit back. An ask whose reply is `()` is
    /// answered; any other asker is told that there is no reply. A message with a tensor that was lost with a
    /// process is logged and skipped.
    ///
    /// # Errors
    /// The node has shut down, or this process is a forked child.
    ///
    /// # Cancel safety
    /// Dropping the future loses no message.
    pub async fn recv(&mut self) -> Result<M, ChannelError> {
        self.recv_from().await.map(|(_, message)| message)
    }

    /// As [`recv`](Self::recv), with the process that has sent the message. A sender may lie in its message,
    /// but not about this.
    ///
    /// # Errors
    /// As [`recv`](Self::recv).
    ///
    /// # Cancel safety
    /// As [`recv`](Self::recv).
    pub async fn recv_from(&mut self) -> Result<(ProcessId, M), ChannelError> {
        loop {
            self.check_fork()?;
            let message = self.envelopes.recv().await.ok_or(ChannelError::NodeStopping)?;
            if let Some(received) = self.open(message) {
                return Ok(received);
            }
        }
    }

    /// As [`recv`](Self::recv), for at most `timeout`, counted from the first poll. Needs a tokio runtime
    /// with time, which workers and [`Node::block_on`](crate::node::Node::block_on) have.
    ///
    /// # Errors
    /// As [`recv`](Self::recv), and [`ChannelError::TimedOut`] or [`ChannelError::LeasesOut`] if no message
    /// came in time.
    ///
    /// # Cancel safety
    /// As [`recv`](Self::recv).
    pub async fn recv_timeout(&mut self, timeout: Duration) -> Result<M, ChannelError> {
        if let Ok(received) = tokio::time::timeout(timeout, self.recv()).await {
            return received;
        }
        let limit = self.transport.upgrade().and_then(|transport| transport.held_to_the_limit());
        let Some(LeaseLimit { holder, owner, leases, most }) = limit else {
            return Err(ChannelError::TimedOut);
        };
        Err(ChannelError::LeasesOut { holder, owner, leases, most })
    }

    /// As [`recv`](Self::recv), but blocks the thread.
    ///
    /// # Errors
    /// As [`recv`](Self::recv).
    pub fn blocking_recv(&mut self) -> Result<M, ChannelError> {
        block_on(self.recv())
    }

    /// Returns the next message if there is one.
    pub fn try_recv(&mut self) -> Option<M> {
        self.try_recv_from().map(|(_, message)| message)
    }

    /// Returns the next message if there is one, with the process that has sent it.
    pub fn try_recv_from(&mut self) -> Option<(ProcessId, M)> {
        loop {
            self.check_fork().ok()?;
            let message = self.envelopes.try_recv().ok()?;
            if let Some(received) = self.open(message) {
                return Some(received);
            }
        }
    }

    /// Fails in a forked child: the messages are the parent's, which takes them.
    fn check_fork(&self) -> Result<(), ChannelError> {
        if self.envelopes.is_inherited() { Err(ChannelError::Forked) } else { Ok(()) }
    }

    /// Returns the message, unless a tensor in it was lost with a process. Then the message is logged and
    /// counted, and nobody gets it (DEATH-3).
    fn open(&self, message: handles::Envelope<M>) -> Option<(ProcessId, M)> {
        let transport = self.transport.upgrade();
        let tainted = transport.as_ref().and_then(|transport| message.taint(transport.domain()));
        let Some(by) = tainted else {
            let handles::Envelope { message, done, .. } = message;
            let sender = done.sender();
            done.taken();
            return Some((sender, message));
        };
        let (message, sender) = message.refuse_tainted(by, transport);
        tracing::warn!(message = M::NAME, %sender, %by, "a dead letter: a tensor in it was lost with a process");
        drop(message);
        None
    }
}

impl<M: GpuMessage> Drop for Channel<M> {
    fn drop(&mut self) {
        if self.envelopes.is_inherited() {
            std::mem::forget(self.ended.take());
            return;
        }
        if let Some(transport) = self.transport.upgrade() {
            transport.withdraw(self.index);
        }
        if let Some(ended) = self.ended.take() {
            ended();
        }
    }
}

impl<M: GpuMessage> std::fmt::Debug for Channel<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Channel<{}>", M::NAME)
    }
}

/// The sending end, in the transport.
pub(crate) struct ChannelInbox<M: GpuMessage> {
    actor: ActorId,
    capacity: u32,
    /// The message type's key on the wire.
    key: u64,
    local: Arc<LocalCredits>,
    /// In a lock because a message need not be `Sync`.
    sender: Mutex<mpsc::UnboundedSender<handles::Envelope<M>>>,
}

impl<M: GpuMessage> Inbox for ChannelInbox<M> {
    fn actor(&self) -> ActorId {
        self.actor
    }

    fn capacity(&self) -> u32 {
        self.capacity
    }

    fn deliver(&self, delivery: Delivery<'_>) -> Result<(), Undelivered> {
        let Delivery { key, body, tensors, tickets, receipt, context } = delivery;
        if key != self.key {
            let error = Undelivered::Unregistered { key };
            receipt.refuse(&Refusal::Undelivered(error.to_string()));
            return Err(error);
        }
        let transport = Arc::<Transport>::clone(receipt.transport());
        let decoded = codec::decode::<M>(body, tensors, Some(transport)).map_err(|error| error.to_string());
        match decoded.and_then(|message| message.check().map(|()| message).map_err(|error| error.to_string()))
        {
            #[cfg_attr(not(feature = "raw"), expect(unused_mut, reason = "only values of others know a key"))]
            Ok(mut message) => {
                #[cfg(feature = "raw")]
                message.set_run_time_key(key);
                let message = handles::Envelope { message, tickets, context, done: Done::Remote(receipt) };
                self.sender.lock().send(message).map_err(|_| Undelivered::Stopped)
            }
            Err(why) => Err(receipt.malformed(M::NAME, why)),
        }
    }

    fn offer(&self, key: u64, message: LocalMessage) -> Result<(), (LocalMessage, Undelivered)> {
        match message.downcast::<handles::Envelope<M>>() {
            Ok(message) => match self.sender.lock().send(*message) {
                Ok(()) => Ok(()),
                Err(error) => Err((Box::new(error.0), Undelivered::Stopped)),
            },
            Err(message) => Err((message, Undelivered::Unregistered { key })),
        }
    }

    fn local(&self) -> &Arc<LocalCredits> {
        &self.local
    }
}
