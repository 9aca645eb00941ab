//! Why members died, as the node knows it.
//!
//! An ask that a panic cuts off says only that no answer comes; the reason is known a moment later, and the node keeps it.

use tensorpost_core::api::actor::{AskError, AskFailure, EndReason, Refusal, SendError, SendFailure};
use tensorpost_core::api::node::ProcessId;

use super::{Conductor, Death};
use crate::worker::args::Run;

/// Whether an ask that failed like this does not say why.
fn says_nothing(error: &AskError<Run>) -> bool {
    matches!(error, AskError::NoReply(AskFailure::Refused(_))) && !is_out_of_reach(error)
}

/// Whether a member of another host has ended, or that host has.
fn is_out_of_reach(error: &AskError<Run>) -> bool {
    match error {
        AskError::NoReply(AskFailure::Refused(refusal)) => matches!(refusal, Refusal::OutOfReach(_)),
        AskError::NotSent(error) => matches!(error.reason, SendFailure::GaveUp(EndReason::OutOfReach(_))),
        _ => false,
    }
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
    /// Notes the death of a member. Where its host is lost, that is heard several times: of what was under way there, and of what
    /// would have gone there. Of one life that is one death.
    pub(super) fn note_death(&mut self, index: usize, error: &AskError<Run>, death: Death) -> Death {
        let member = &self.members[index];
        if is_out_of_reach(error) {
            let life = self.told.life(member.stage as u16, member.replica);
            let at = self.out_of_reach.insert(index, (life, self.deaths.len()));
            if let Some((before, at)) = at.filter(|(before, _)| *before == life) {
                self.out_of_reach.insert(index, (before, at));
                self.deaths[at].restarted = death.restarted;
                return self.deaths[at].clone();
            }
        } else if death.restarted && says_nothing(error) {
            self.causeless.push(self.deaths.len());
        }
        self.deaths.push(death.clone());
        death
    }

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
