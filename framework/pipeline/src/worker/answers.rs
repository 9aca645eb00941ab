//! Classifies the errors of an ask: the item was not accepted, or not answered.

use tensorpost_core::api::actor::{AskError, AskFailure, Refusal, SendFailure};

use super::meter::Cause;
use crate::item::{EdgeMessage, Item};

/// Why an item was not answered.
pub(super) enum Unanswered {
    /// Its data was lost with a process (DEATH-3). The receiver goes on.
    Tainted,
    /// The receiver could not read it, and goes on.
    Refused,
    /// The item, or something that came of it, was lost in a receiver that may go on.
    Lost,
    /// The receiver has ended.
    Exited,
}

impl Unanswered {
    pub(super) fn of<T: Item>(error: &AskError<EdgeMessage<T>>) -> Self {
        match error {
            AskError::NoReply(AskFailure::Refused(Refusal::Tainted(_))) => Unanswered::Tainted,
            AskError::NoReply(AskFailure::Refused(Refusal::Undelivered(_))) => Unanswered::Refused,
            // When a gateway ends, the messages on their way through it are lost, and their receivers go on.
            AskError::NoReply(AskFailure::Refused(Refusal::NoReply | Refusal::GatewayEnded(_))) => {
                Unanswered::Lost
            }
            _ => Unanswered::Exited,
        }
    }
}

impl Unanswered {
    /// The cause under which the item counts as lost.
    pub(super) fn cause(&self) -> Cause {
        match self {
            Unanswered::Tainted => Cause::Tainted,
            Unanswered::Refused => Cause::Unread,
            Unanswered::Lost | Unanswered::Exited => Cause::Ended,
        }
    }
}

/// Whether the receiver takes no more items.
pub(super) fn is_exited(reason: &SendFailure) -> bool {
    matches!(reason, SendFailure::ProcessExited(_) | SendFailure::NoSuchActor | SendFailure::GaveUp(_))
}

/// Whether no later life of the receiver takes the item either.
pub(super) fn is_final<T: Item>(error: &AskError<EdgeMessage<T>>) -> bool {
    matches!(error, AskError::NotSent(error) if is_exited(&error.reason))
}

/// Says why an item was not answered, without the message's type.
pub(super) fn why<T: Item>(error: &AskError<EdgeMessage<T>>) -> String {
    match error {
        AskError::NotSent(error) => error.reason.to_string(),
        AskError::NoReply(failure) => failure.to_string(),
        _ => "it was not answered in time".to_owned(),
    }
}
