//! Tells errors that mean "lost with a process" (DEATH-3) from all others.

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
}
