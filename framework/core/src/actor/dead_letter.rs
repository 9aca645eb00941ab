//! Messages that reach no handler, because a tensor in them was lost with a process.

use std::any::Any;
use std::fmt;

use crate::ids::ProcessId;
use crate::message::GpuMessage;

/// A message whose handler was not called, see [`RemoteActor::dead_letter`](super::RemoteActor::dead_letter).
/// [`Tensor::status`](crate::tensor::Tensor::status) tells which of its tensors are tainted; the others can
/// be used.
pub struct DeadLetter {
    message: Box<dyn Any + Send>,
    name: &'static str,
    reason: DeadReason,
    sender: ProcessId,
}

/// Why a message is a dead letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeadReason {
    /// A tensor in the message depends on work that a process had not done when it died (DEATH-3).
    #[error("a tensor in it depends on work that {by} had not done when it died")]
    Tainted {
        /// The process that died.
        by: ProcessId,
    },
}

impl DeadLetter {
    pub(super) fn tainted<M: GpuMessage>(message: M, by: ProcessId, sender: ProcessId) -> Self {
        let reason = DeadReason::Tainted { by };
        DeadLetter { message: Box::new(message), name: M::NAME, reason, sender }
    }

    /// Returns the name of the message's type.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns why no handler gets the message.
    pub fn reason(&self) -> DeadReason {
        self.reason
    }

    /// Returns the process that sent the message, which may be this one.
    pub fn sender(&self) -> ProcessId {
        self.sender
    }

    /// Returns the message, if it is an `M`.
    pub fn message<M: GpuMessage>(&self) -> Option<&M> {
        self.message.downcast_ref()
    }

    /// Returns the message, if it is an `M`.
    ///
    /// # Errors
    /// The letter, if it is not.
    pub fn into_message<M: GpuMessage>(self) -> Result<M, Self> {
        match self.message.downcast() {
            Ok(message) => Ok(*message),
            Err(message) => Err(DeadLetter { message, ..self }),
        }
    }
}

impl fmt::Debug for DeadLetter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeadLetter({} from {}: {})", self.name, self.sender, self.reason)
    }
}
