//! Why members died, as the node knows it.
//!
//! An ask that a panic cuts off says only that no answer comes; the reason is known a moment later, and the node keeps it.

use tensorpost_core::api::actor::{AskError, AskFailure};

use super::Conductor;
use crate::worker::args::Run;

/// Whether an ask that failed like this does not say why.
pub(super) fn says_nothing(error: &AskError<Run>) -> bool {
    matches!(error, AskError::NoReply(AskFailure::Refused(_)))
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
