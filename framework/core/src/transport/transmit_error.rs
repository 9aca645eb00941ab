//! Why a frame does not go out, or not now.

use super::LinkRefused;
use crate::ids::ProcessId;
use crate::lease::PoolError;
use crate::message::EncodeError;
use crate::tensor::TensorError;

/// The resource that a frame still lacks. Waiting helps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotNow {
    /// The link is being made.
    Connecting,
    /// The mailbox has as many unhandled messages of this process as it takes.
    MailboxFull,
    /// The ring to the process is full.
    RingFull,
    /// The receiving process holds as many leases on this process's memory as it may.
    LeasesOut,
    /// Other processes have as much of this process's memory as they may; or, in the gateway, there is no
    /// memory for the body.
    MemoryOut,
}

/// Why a frame cannot go out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TransmitError {
    #[error("not now: {0:?}")]
    NotNow(NotNow),
    #[error("there is no such actor (any more)")]
    NoSuchActor,
    #[error("the actor failed and is being restarted")]
    Restarting,
    #[error("process {0} has ended")]
    Exited(ProcessId),
    #[error("{0}")]
    NoLink(LinkRefused),
    #[error("its body of {bytes} bytes needs host memory: {error}")]
    Body { bytes: usize, error: PoolError },
    #[error("a tensor in it depends on work that {0} had not done when it died")]
    Tainted(ProcessId),
    #[error(transparent)]
    Tensor(#[from] TensorError),
    #[error(transparent)]
    Encode(#[from] EncodeError),
}
