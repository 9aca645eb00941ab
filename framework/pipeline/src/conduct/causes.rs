//! Why members died, as the node knows it.
//!
//! An ask that a panic cuts off says only that no answer comes; the reason is known a moment later, and the node keeps it.

use tensorpost_core::api::actor::{AskError, AskFailure, EndReason, SendError, SendFailure};
use tensorpost_core::api::node::ProcessId;

use super::Conductor;
use crate::worker::args::Run;

/// Whether an ask that failed like this does not say why.
pub(super) fn says_nothing(error: &AskError<Run>) -> bool {
    matches!(error, AskError::NoReply(AskFailure::Refused(_)))
}

/// The process that a member has died with.
pub(super) fn process_of(error: &AskError<Run>) -> Option<ProcessId> {
    match error {
        AskError::NoReply(AskFailure::ProcessExited(exited)) => Some(exited.process),
        AskError::NotSent(SendError { reason: SendFailure::ProcessExited(exited), .. }) => {
            Some(exited.process)
        }
        _ => None,
    }
}

/// Whether the node has ended the process of a member.
pub(super) fn is_killed_by_the_node(error: &AskError<Run>) -> bool {
    let exited = match error {
        AskError::NoReply(AskFailure::ProcessExited(exited)) => exited,
        AskError::NotSent(SendError { reason: SendFailure::ProcessExited(exited), .. }) => exited,
        _ => return false,
    };
    matches!(exited.worker, Some((_, EndReason::KilledByNode(_))))
}

/// Whether a member was between two lives when the node shut down.
pub(super) fn is_kept_from_its_next_life(error: &AskError<Run>) -> bool {
    matches!(error, AskError::NotSent(SendError { reason: SendFailure::GaveUp(EndReason::NodeStopped), .. }))
}

impl Conductor {
    /// Has the deaths that said nothing, and were followed by another life, say what the node knows.
    pub(super) fn name_causes(&mut self) {
        if self.causeless.is_empty() {
            return;
        }
        // A node that has shut down has it in its own report.
        let Ok((restarts, _)) = self.supervisor.report() else { return };
        for member in &self.members {
            let Some(past) = restarts.iter().find(|past| past.worker == member.worker) else { continue };
            let stage = &self.plan.stages[member.stage].name;
            let deaths = self.deaths.iter_mut().enumerate().filter(|(_, death)| {
                death.stage == *stage && death.replica == member.replica && death.restarted
            });
            let deaths: Vec<_> = deaths.collect();
            // The node keeps so many; where they are not all there, nobody knows which is which.
            if deaths.len() != past.ends.len() {
                continue;
            }
            for ((index, death), end) in deaths.into_iter().zip(&past.ends) {
                if self.causeless.contains(&index) {
                    death.why = end.to_string();
                }
            }
        }
    }
}
