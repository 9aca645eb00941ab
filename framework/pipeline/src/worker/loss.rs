//! Tells errors that mean "lost with a process" (DEATH-3) from all others, and whether the loss concerns the
//! current item.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;

use tensorpost_core::api::device::DeviceError;
use tensorpost_core::api::node::ProcessId;
use tensorpost_core::api::tensor::{NotSole, NotSoleReason, TensorError};

use crate::many::GatherError;

/// Returns the process with which data was lost, if the error reports that (DEATH-3).
pub(super) fn lost_with(error: &anyhow::Error) -> Option<ProcessId> {
    error.chain().find_map(|cause| {
        if let Some(cause) = cause.downcast_ref::<TensorError>() {
            return cause.lost_with();
        }
        // These errors show their cause's text as their own, and so leave the cause out of the chain.
        if let Some(NotSole { why: NotSoleReason::Tensor(cause), .. }) = cause.downcast_ref() {
            return cause.lost_with();
        }
        if let Some(GatherError::Tensor(cause)) = cause.downcast_ref() {
            return cause.lost_with();
        }
        cause.downcast_ref().and_then(DeviceError::lost_with)
    })
}

/// The losses that the calls of a stage have met.
///
/// The stage never gets an item that is known to be lost; that can only turn out while the stage works on it.
/// So an error that reports a loss is about the item if this process has learnt of losses since the call
/// before, or has not met a loss with that dead process yet. Otherwise it is about data that the stage
/// remembers, and it is a failure: a stage that goes on failing must not name one good item after the other
/// as lost.
#[derive(Default)]
pub(super) struct Losses {
    /// The dead processes with which a call has lost something.
    with: RefCell<HashSet<ProcessId>>,
    /// How often this process had [learnt](tensorpost_core::api::actor::Env::losses_learnt) of losses at the
    /// end of the last call, before the next item was checked.
    learnt: Cell<u64>,
}

impl Losses {
    /// Notes a call that succeeded.
    #[inline]
    pub(super) fn none_by(&self, learnt: u64) {
        self.learnt.set(learnt);
    }

    /// Notes a call that ended with this error, and returns whether the error is about its item.
    pub(super) fn is_of_the_item(&self, error: &anyhow::Error, learnt: u64) -> bool {
        let grown = self.learnt.replace(learnt) != learnt;
        lost_with(error).is_some_and(|by| self.with.borrow_mut().insert(by) || grown)
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn the_dead_is_found_behind_what_a_stage_says_about_it() {
        let by = ProcessId::NODE;
        let error = || TensorError::Tainted { by };
        let plain: Result<(), _> = Err(error());
        assert_eq!(lost_with(&plain.context("reading the picture").unwrap_err()), Some(by));
        assert_eq!(lost_with(&GatherError::Tensor(error()).into()), Some(by));
        assert_eq!(lost_with(&TensorError::TimedOut.into()), None);
        assert_eq!(lost_with(&anyhow::anyhow!("something else")), None);
    }

    #[test]
    fn two_items_may_be_lost_with_one_process_and_what_a_stage_remembers_is_no_item() {
        let lost = || anyhow::Error::from(TensorError::Tainted { by: ProcessId::NODE });
        let losses = Losses::default();
        losses.none_by(0);
        assert!(!losses.is_of_the_item(&anyhow::anyhow!("something else"), 1));
        // Learnt before this call: it is still the first loss with this process.
        assert!(losses.is_of_the_item(&lost(), 1));
        assert!(!losses.is_of_the_item(&lost(), 1), "nothing is new: the item was good");
        losses.none_by(1);
        // A second item: while the stage works on it, this process learns that the loss has spread to it.
        assert!(losses.is_of_the_item(&lost(), 2));
        assert!(!losses.is_of_the_item(&lost(), 2));
    }
}
