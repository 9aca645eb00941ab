//! The errors of sends and asks. An error gives the message back wherever the message still exists.

use std::fmt;

use crate::ids::ProcessId;
use crate::lease::PoolError;
use crate::message::{EncodeError, TensorCheckError};
use crate::os::fork::INHERITED;
use crate::tensor::TensorError;
use crate::transport::AskFailure;
use crate::transport::lifecycle::{EndReason, ExitedProcess};

/// A message that was not accepted, with the reason. Its tensors are as they were.
#[non_exhaustive]
pub struct SendError<M> {
    /// The message.
    pub message: M,
    /// Why it was not accepted.
    pub reason: SendFailure,
}

impl<M> SendError<M> {
    /// Gives a message back.
    #[doc(hidden)] // for code in front of an address, as a pipeline's input is
    pub fn new(message: M, reason: SendFailure) -> Self {
        SendError { message, reason }
    }
}

/// Why a message was not accepted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendFailure {
    /// The mailbox holds as many unhandled messages of this process as it takes, or the ring to it is full.
    #[error("the mailbox is full; wait with `send`, or try again later")]
    Full,
    /// This process has sent nothing to the actor's process before, and the link is still being made.
    #[error("the way to the actor's process is still being made; wait with `send`, or try again in a moment")]
    Connecting,
    /// The deadline came before there was room.
    #[error(
        "the mailbox, or the ring to its process, was full until the deadline; the actor is slower than its senders, or stuck"
    )]
    TimedOut,
    /// The actor's process holds as many tensors of this process as it may, and this message has more.
    /// [`Address::send`](super::Address::send) fails so at its deadline.
    #[error("there is no room for its tensors: {0}")]
    LeasesOut(String),
    /// The actor has stopped, or never existed.
    #[error("there is no such actor (any more)")]
    NoSuchActor,
    /// The actor is between two lives: its supervisor restarts it.
    #[error("the actor is being restarted; wait with `send`, or try again later")]
    Restarting,
    /// The actor's restarts are used up and it ended once more, for this reason; or the node shuts down, or
    /// the actor's host is lost.
    #[error("{}", gave_up(.0))]
    GaveUp(EndReason),
    /// The actor's process has ended, and the actor is not restarted.
    #[error("{0}")]
    ProcessExited(ExitedProcess),
    /// This process, the actor's or the node lacks memory or descriptors for a link, as the text says.
    /// Nothing else is lost; the next send tries again.
    #[error("there is no way to the actor's process: {0}")]
    NoLink(String),
    /// The sender would have to wait in a call that may not wait
    /// ([`Env::without_waiting`](super::Env::without_waiting)), such as a handler or the call of a pipeline's
    /// stage: the waiting thread is the one that would make room.
    #[error(
        "there is no room now, and this call cannot wait for it: its thread is the one that makes room; in a stage, give it to \
         the pipeline with `out.send(&address, message)` or `.sink_to(&address)`; in an actor, await it in the future that the \
         handler returns (`ResponseFuture`) or in `prepare`; or use `try_send`"
    )]
    Blocking,
    /// This process was forked from the process of the address.
    #[error("{INHERITED}")]
    Forked,
    /// The actor does not take this type.
    #[error("the actor does not handle {0}; list it in `RemoteActor::handles` with `on.message::<{0}>()`")]
    Unregistered(&'static str),
    /// A tensor does not fit its `#[tensor(…)]` attribute.
    #[error(transparent)]
    Check(#[from] TensorCheckError),
    /// The message cannot be encoded.
    #[error("the message cannot be sent: {0}")]
    Encode(#[from] EncodeError),
    /// A tensor in the message depends on work that a process had not done when it died (DEATH-3).
    #[error("a tensor in it depends on work that {0} had not done when it died; make it again")]
    Tainted(ProcessId),
    /// The pool has no host memory for a large body now.
    #[error("there is no room for the message's body: {0}")]
    Body(PoolError),
    /// The host device failed.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

impl SendFailure {
    /// Returns whether the same message may be accepted later.
    pub fn is_retryable(&self) -> bool {
        match self {
            SendFailure::Full
            | SendFailure::Connecting
            | SendFailure::TimedOut
            | SendFailure::LeasesOut(_)
            | SendFailure::Restarting
            | SendFailure::NoLink(_)
            | SendFailure::Blocking => true,
            SendFailure::Body(error) => matches!(error, PoolError::Full { .. }),
            _ => false,
        }
    }
}

impl<M> SendError<M> {
    /// Returns whether the same message may be accepted later.
    pub fn is_retryable(&self) -> bool {
        self.reason.is_retryable()
    }
}

impl<M> fmt::Debug for SendError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendError").field("reason", &self.reason).finish_non_exhaustive()
    }
}

impl<M> fmt::Display for SendError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} was not sent: {}", short_name::<M>(), self.reason)
    }
}

impl<M> std::error::Error for SendError<M> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.reason)
    }
}

/// An ask that got no reply.
#[non_exhaustive]
pub enum AskError<M> {
    /// The message was not accepted; it is in the error.
    NotSent(SendError<M>),
    /// The message was accepted, and no reply will come. The message is gone.
    NoReply(AskFailure),
    /// The message was accepted, and the reply did not come before the deadline. The actor has the message.
    TimedOut,
    /// As [`TimedOut`](Self::TimedOut), and this process holds as many tensors of another process as it may,
    /// as the text says: the reply may wait for that.
    LeasesOut(String),
}

impl<M> AskError<M> {
    /// Returns whether it makes sense to ask again.
    pub fn is_retryable(&self) -> bool {
        match self {
            AskError::NotSent(error) => error.is_retryable(),
            AskError::NoReply(failure) => failure.is_retryable(),
            AskError::TimedOut | AskError::LeasesOut(_) => true,
        }
    }
}

impl<M> fmt::Debug for AskError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AskError::NotSent(error) => f.debug_tuple("NotSent").field(error).finish(),
            AskError::NoReply(failure) => f.debug_tuple("NoReply").field(failure).finish(),
            AskError::TimedOut => f.write_str("TimedOut"),
            AskError::LeasesOut(limit) => f.debug_tuple("LeasesOut").field(limit).finish(),
        }
    }
}

impl<M> fmt::Display for AskError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AskError::NotSent(error) => error.fmt(f),
            AskError::NoReply(failure) => write!(f, "{} got no reply: {failure}", short_name::<M>()),
            AskError::TimedOut => write!(f, "{} got no reply before the deadline", short_name::<M>()),
            AskError::LeasesOut(limit) => {
                write!(f, "{} got no reply before the deadline: {limit}", short_name::<M>())
            }
        }
    }
}

impl<M> std::error::Error for AskError<M> {}

fn gave_up(reason: &EndReason) -> String {
    match reason {
        EndReason::NodeStopped => format!("the actor has ended: {reason}"),
        EndReason::OutOfReach(_) => format!("the actor is out of reach: {reason}"),
        reason => format!("the actor has ended, and its restarts are used up: {reason}"),
    }
}

/// Returns the last part of a type's path.
fn short_name<M>() -> &'static str {
    let name = std::any::type_name::<M>();
    let end = name.find('<').unwrap_or(name.len());
    name[..end].rfind("::").map_or(name, |at| &name[at + 2..])
}
