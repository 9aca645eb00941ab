//! The policies for errors of a stage.

use serde::{Deserialize, Serialize};

/// The policy that decides what happens when a stage returns an error for an item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnError {
    /// The pipeline stops its sources and fails with this error. The replica drops each further item, counted
    /// as skipped, and names those it kept. The others finish.
    #[default]
    Fail,
    /// The item is dropped; the report names it.
    Skip,
    /// Calls the stage again with a clone of the item, up to so many times; then the pipeline fails.
    Retry(u32),
    /// As `Retry`, but the item is dropped in the end.
    RetryThenSkip(u32),
    /// The item goes to the stage that takes the dead letters, with the error; if none does, this is as
    /// `Skip`.
    DeadLetter,
    /// As `Retry`, but the item becomes a dead letter in the end.
    RetryThenDeadLetter(u32),
}

impl OnError {
    /// Returns how many more attempts there are after the first.
    pub fn retries(self) -> u32 {
        match self {
            OnError::Retry(n) | OnError::RetryThenSkip(n) | OnError::RetryThenDeadLetter(n) => n,
            OnError::Fail | OnError::Skip | OnError::DeadLetter => 0,
        }
    }

    /// Whether the pipeline fails in the end.
    pub fn fails(self) -> bool {
        matches!(self, OnError::Fail | OnError::Retry(_))
    }

    /// Whether the item becomes a dead letter in the end.
    pub fn keeps(self) -> bool {
        matches!(self, OnError::DeadLetter | OnError::RetryThenDeadLetter(_))
    }
}
