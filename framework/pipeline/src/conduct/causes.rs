//! The causes of deaths, as the node knows them.
//!
//! The error of an ask that a panic cuts off says only that no answer comes. The node learns the cause a
//! moment later, and keeps it.

use std::collections::HashMap;

use tensorpost_core::api::actor::{AskError, AskFailure, EndReason, Refusal, SendError, SendFailure};
use tensorpost_core::api::node::ProcessId;

use super::{Conductor, Death};
#[cfg(feature = "hosts")]
use crate::limits::VERDICT_IS_TOLD;
use crate::worker::args::Run;

/// Whether the error of a failed ask does not tell the cause.
fn says_nothing(error: &AskError<Run>) -> bool {
    matches!(error, AskError::NoReply(AskFailure::Refused(_)))
}

/// Whether the error of a failed ask does not mean the end of the member: a gateway between two hosts has
/// ended, and the member is asked again.
pub(super) fn is_lost_on_the_way(error: &AskError<Run>) -> bool {
    matches!(error, AskError::NoReply(AskFailure::Refused(Refusal::GatewayEnded(_))))
}

/// Whether a failed ask had reached no life of its member, and so does not mean the end of one.
fn came_to_nobody(error: &AskError<Run>) -> bool {
    match error {
        AskError::NoReply(AskFailure::Refused(refusal)) => {
            matches!(refusal, Refusal::NoSuchActor | Refusal::NotPassedOn(_))
        }
        AskError::NotSent(_) => true,
        _ => false,
    }
}

/// Whether the error of a failed ask, after an error without a cause, reports the same end: no other life of
/// the member had taken the ask. A panic fails the ask that it cuts off, and the next ask fails because the
/// actor is gone.
fn tells_of_a_panic_again(error: &AskError<Run>) -> bool {
    let is_of_an_actor = |reason: &EndReason| {
        matches!(reason, EndReason::HandlerPanic(_) | EndReason::Linked(_) | EndReason::Normal)
    };
    match error {
        AskError::NotSent(SendError { reason: SendFailure::GaveUp(reason), .. }) => is_of_an_actor(reason),
        AskError::NotSent(SendError { reason: SendFailure::NoSuchActor, .. }) => true,
        AskError::NotSent(SendError { reason: SendFailure::ProcessExited(exited), .. })
        | AskError::NoReply(AskFailure::ProcessExited(exited)) => {
            exited.worker.as_ref().is_some_and(|(_, reason)| is_of_an_actor(reason))
        }
        AskError::NoReply(AskFailure::Refused(refusal)) => matches!(refusal, Refusal::NoSuchActor),
        _ => false,
    }
}

/// The last death of each member on another host. Only that host knows whether another life follows, so the
/// member is asked again. The asks that fail then may report the same end, once or several times, if they
/// cross the news that the actor is gone.
#[derive(Debug, Default)]
struct DeathsOnOtherHosts(HashMap<usize, usize>);

impl DeathsOnOtherHosts {
    /// Returns the death that is reported again. Otherwise the error means a new death, which has the number
    /// `next`.
    fn heard_again(&mut self, index: usize, error: &AskError<Run>, next: usize) -> Option<usize> {
        let before = self.0.get(&index).copied().filter(|_| came_to_nobody(error));
        if before.is_none() {
            self.0.insert(index, next);
        }
        before
    }
}

/// Returns the process that a member has died with.
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

/// The deaths of members.
#[derive(Default)]
pub(super) struct Deaths {
    pub(super) all: Vec<Death>,
    /// The deaths whose error does not tell the cause, by index.
    causeless: Vec<usize>,
    on_other_hosts: DeathsOnOtherHosts,
    /// The first death after which no other life or replica took over.
    pub(super) fatal: Option<Death>,
}

impl Deaths {
    /// Notes the death of a member, which is on another host if `elsewhere`. One life has one death, however
    /// often it is reported.
    pub(super) fn note(
        &mut self,
        index: usize,
        elsewhere: bool,
        error: &AskError<Run>,
        death: Death,
    ) -> Death {
        if elsewhere {
            if let Some(at) = self.on_other_hosts.heard_again(index, error, self.all.len()) {
                self.all[at].restarted = death.restarted;
                return self.all[at].clone();
            }
        } else if let Some(at) = self.panic_before(&death).filter(|_| tells_of_a_panic_again(error)) {
            let Death { why, restarted, .. } = death;
            (self.all[at].why, self.all[at].restarted) = (why, restarted);
            return self.all[at].clone();
        } else if death.restarted && says_nothing(error) {
            self.causeless.push(self.all.len());
        }
        self.all.push(death.clone());
        death
    }

    /// Returns the last death of a replica, if its error did not tell the cause.
    fn panic_before(&self, death: &Death) -> Option<usize> {
        let same = |other: &Death| other.stage == death.stage && other.replica == death.replica;
        let last = self.all.iter().rposition(same)?;
        self.causeless.contains(&last).then_some(last)
    }

    /// Whether any life of a replica has died.
    pub(super) fn of(&self, stage: &str, replica: u16) -> bool {
        self.all.iter().any(|dead| dead.stage == stage && dead.replica == replica)
    }

    /// Whether a replica has died and does not come back.
    pub(super) fn is_gone(&self, stage: &str, replica: u16) -> bool {
        self.all.iter().any(|dead| dead.stage == stage && dead.replica == replica && !dead.restarted)
    }
}

impl Conductor {
    /// Adds what the node knows: the causes of deaths whose error did not tell one and after which another
    /// life followed, and deaths that no ask has reported.
    pub(super) fn name_causes(&mut self) {
        if self.deaths.causeless.is_empty() {
            return;
        }
        // A node that has shut down has the causes in its own report.
        let Ok((restarts, _)) = self.supervisor.report() else { return };
        for member in &self.members {
            let Some(past) = restarts.iter().find(|past| past.worker == member.worker) else { continue };
            let of = (self.plan.stages[member.stage].name.as_str(), member.replica);
            let is_shared = self.members.iter().filter(|other| other.worker == member.worker).any(|other| {
                let other = (self.plan.stages[other.stage].name.as_str(), other.replica);
                other != of && self.deaths.of(other.0, other.1)
            });
            if !is_shared {
                add_unheard(
                    &mut self.deaths.all,
                    &mut self.deaths.causeless,
                    of,
                    past.ends.len(),
                    past.restarts as usize,
                );
            }
            let deaths = self.deaths.all.iter_mut().enumerate();
            let mut deaths: Vec<_> =
                deaths.filter(|(_, death)| (death.stage.as_str(), death.replica) == of).collect();
            // The node's report leaves out the last death if no policy applies to it.
            if deaths.len() == past.ends.len() + 1 {
                deaths.pop_if(|(_, death)| !death.restarted);
            }
            // The node keeps a bounded number of ends; if some are missing, it is not known which is which.
            if deaths.len() != past.ends.len() {
                continue;
            }
            for ((index, death), end) in deaths.into_iter().zip(&past.ends) {
                if self.deaths.causeless.contains(&index) {
                    death.why = end.to_string();
                }
            }
        }
    }
}

/// Adds deaths that no ask has reported: if a life ends before it was asked, the ask waits for the next life.
/// If the node knows all ends of a member, and they are more than were reported, the missing ones are added
/// before the last that was reported, and are `causeless` too.
fn add_unheard(
    deaths: &mut Vec<Death>,
    causeless: &mut Vec<usize>,
    of: (&str, u16),
    ends: usize,
    restarts: usize,
) {
    let heard = || deaths.iter().enumerate().filter(|(_, death)| (death.stage.as_str(), death.replica) == of);
    // An end that is final for the node and not here is of another kind: a run that was killed has one.
    let is_all = |death: &Death| ends == restarts + usize::from(!death.restarted);
    let Some((last, _)) = heard().next_back().filter(|(_, death)| is_all(death)) else { return };
    let unheard = ends.saturating_sub(heard().count());
    let death = Death { restarted: true, ..deaths[last].clone() };
    deaths.splice(last..last, std::iter::repeat_n(death, unheard));
    for index in causeless.iter_mut().filter(|index| **index >= last) {
        *index += unheard;
    }
    causeless.extend(last..last + unheard);
}

#[cfg(feature = "hosts")]
impl Conductor {
    /// Returns the members that died for good on a host that has left the node: stage, replica and host.
    pub(super) fn on_lost_hosts(&self) -> Vec<(String, u16, u16)> {
        let dead = self.members.iter().filter_map(|member| {
            let (host, stage) = (member.worker.host()?, &self.plan.stages[member.stage].name);
            self.deaths.is_gone(stage, member.replica).then(|| (stage.clone(), member.replica, host))
        });
        let mut dead: Vec<_> = dead.collect();
        if dead.is_empty() {
            return dead;
        }
        let hosts: Vec<_> = dead.iter().map(|(_, _, host)| *host).collect();
        let left = self.supervisor.hosts_but_for(&hosts, VERDICT_IS_TOLD);
        dead.retain(|(_, _, host)| left.as_ref().is_ok_and(|left| !left.contains(host)));
        dead
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(refusal: Refusal) -> AskError<Run> {
        AskError::NoReply(AskFailure::Refused(refusal))
    }

    fn gave_up(reason: EndReason) -> AskError<Run> {
        AskError::NotSent(SendError::new(Run { key: None }, SendFailure::GaveUp(reason)))
    }

    /// Returns how many deaths are counted for these errors of one member's asks.
    fn deaths(errors: &[AskError<Run>]) -> usize {
        let (mut deaths_on_other_hosts, mut count) = (DeathsOnOtherHosts::default(), 0);
        for error in errors {
            count += usize::from(deaths_on_other_hosts.heard_again(3, error, count).is_none());
        }
        count
    }

    #[test]
    fn one_end_on_another_host_is_one_death_however_often_it_is_heard_of() {
        let lost = || refused(Refusal::OutOfReach("host 1 is lost".to_owned()));
        let not_sent = || refused(Refusal::NotPassedOn("host 1 is lost".to_owned()));
        let gone = || gave_up(EndReason::OutOfReach("host 1 is lost".to_owned()));
        // A host is lost: the next ask goes to the gateway before the node reports it, or while the mailbox
        // there closes, or not at all.
        assert_eq!(deaths(&[lost(), gone()]), 1);
        assert_eq!(deaths(&[lost(), not_sent(), not_sent(), refused(Refusal::NoSuchActor), gone()]), 1);
        // The member had not been asked.
        assert_eq!(deaths(&[refused(Refusal::NoSuchActor), gone()]), 1);
        // Restarts that are used up, of processes and of a panic.
        let ended = || refused(Refusal::OutOfReach("its worker has ended".to_owned()));
        assert_eq!(
            deaths(&[ended(), ended(), refused(Refusal::NoSuchActor), gave_up(EndReason::Signal(6))]),
            2
        );
        assert_eq!(
            deaths(&[refused(Refusal::Panicked(String::new())), not_sent(), gave_up(EndReason::Exit(1))]),
            1
        );
        // A life that had reported nothing before the next end.
        assert_eq!(deaths(&[ended(), lost(), gone()]), 2);
    }

    /// Three lives panicked, and the second had not been asked.
    #[test]
    fn lives_that_ended_unheard_are_told_by_the_node() {
        let death = |replica: u16, restarted: bool| Death {
            stage: "obey".to_owned(),
            replica,
            why: "no reply".to_owned(),
            restarted,
        };
        let heard = || (vec![death(0, true), death(1, true), death(0, false), death(1, true)], vec![0, 1, 3]);
        let (mut deaths, mut causeless) = heard();
        add_unheard(&mut deaths, &mut causeless, ("obey", 0), 3, 2);
        let shown: Vec<_> = deaths.iter().map(|death| (death.replica, death.restarted)).collect();
        assert_eq!(shown, [(0, true), (1, true), (0, true), (0, false), (1, true)]);
        assert_eq!(causeless, [0, 1, 4, 2]);
        // All deaths were reported, or the node has forgotten some, or it has ended the last life itself, or
        // the deaths are another replica's.
        for (of, ends, restarts) in [(0, 2, 1), (0, 32, 40), (1, 3, 2), (2, 3, 2)] {
            let (mut deaths, mut causeless) = heard();
            add_unheard(&mut deaths, &mut causeless, ("obey", of), ends, restarts);
            assert_eq!((deaths.len(), causeless.len()), (4, 3), "{of}");
        }
    }
}
