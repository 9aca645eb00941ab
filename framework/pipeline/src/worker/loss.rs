//! Tells errors that mean "lost with a process" (DEATH-3) from all others, and whether what was lost is the
//! item.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;

use tensorpost_core::api::device::DeviceError;
use tensorpost_core::api::node::ProcessId;
use tensorpost_core::api::tensor::{NotSole, NotSoleReason, TensorError};

use crate::many::GatherError;

/// The process with which the data was lost that an error is about, if that is what it is about (DEATH-3).
pub(super) fn lost_with(error: &anyhow::Error) -> Option<ProcessId> {
    error.chain().find_map(|cause| {
        if let Some(cause) = cause.downcast_ref::<TensorError>() {
            return cause.lost_with();
        }
        // These pass their cause's text on as their own, and so leave it out of the chain.
        if let Some(NotSole { why: NotSoleReason::Tensor(cause), .. }) = cause.downcast_ref() {
            return cause.lost_with();
        }
        if let Some(GatherError::Tensor(cause)) = cause.downcast_ref() {
            return cause.lost_with();
        }
        cause.downcast_ref().and_then(DeviceError::lost_with)
    })
}

/// What the calls of a stage have lost.
///
/// No item is given to the stage that is known to be lost; it can only turn out to be while the stage works
/// on it. So an error that says so is about the item where this process has learnt of losses since the call
/// before, or has not met one with that dead process yet. Otherwise it is about what the stage remembers, and
/// a failure: a stage that goes on failing is not to name one good item after the other as lost.
#[derive(Default)]
pub(super) struct Losses {
    /// The dead with whom a call has lost something.
    with: RefCell<HashSet<ProcessId>>,
    /// How often this process had [learnt](tensorpost_core::api::actor::Env::losses_learnt) of losses at the
    /// end of the last call: before the next item was looked at.
    learnt: Cell<u64>,
}

impl Losses {
    /// A call has ended well.
    #[inline]
    pub(super) fn none_by(&self, learnt: u64) {
        self.learnt.set(learnt);
    }

    /// A call has ended with this error: whether that is about its item.
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
        // Learnt before that one: still the first with this process.
        assert!(losses.is_of_the_item(&lost(), 1));
        assert!(!losses.is_of_the_item(&lost(), 1), "nothing is new: the item was good");
        losses.none_by(1);
        // Of a second one, that other work has spread it is learnt while the stage has it.
        assert!(losses.is_of_the_item(&lost(), 2));
        assert!(!losses.is_of_the_item(&lost(), 2));
    }
}
