//! Detects when nothing is under way between the processes any more, and holds a shutdown's report.
//!
//! A message in a ring is in no process, so no process can say that all is quiet. The node asks every process
//! for the messages that it has sent and received and whether it is busy. All is quiet when two rounds of
//! answers in a row say the same, nobody is busy in either, and as many messages were received as sent
//! (Mattern's four counters). A message that was under way during the first round would have been counted as
//! sent there, and as received by the second.
//!
//! A dead process's counts are lost, and the others' counts still include their messages with it. So after a
//! death the sums mean nothing, not even if they happen to agree. Then all is quiet when nobody is busy and
//! nothing changes for `STILL_ROUNDS` rounds, a tenth of a second; an unread message makes its receiver busy
//! ([`Activity::busy`](crate::node::process_runtime::Activity)). The same holds if a process has given up a
//! peer that broke the protocol: it never receives the messages that the peer had sent and goes on sending.
//!
//! The head of several hosts asks them too: each asks its own processes, once in a round, and answers with
//! their sums. A message between two hosts is in no count, but it keeps the sender's gateway busy until the
//! other host's mailbox has taken it; an ask keeps it busy until it is answered. So a process that receives a
//! message between two rounds shows it by its counts, as within a host.

use std::collections::{HashMap, HashSet};
use std::process::ExitStatus;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ids::ProcessId;
use crate::node::process_runtime::Activity;
use crate::node::supervisor::WorkerId;
use crate::transport::lifecycle::EndReason;

/// Rounds without any change that count as quiet after a death, and the time between them.
const STILL_ROUNDS: u32 = 25;
const STILL_PAUSE: Duration = Duration::from_millis(4);

/// The shortest and the longest time between two rounds. Processes do not announce that they became quiet.
const PAUSE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(20));

/// The state after an answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Others have not answered yet.
    Waiting,
    /// Ask again after this time.
    AskAgain(Duration),
    /// Nothing is under way.
    Quiet,
}

/// A party that is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Party {
    /// A process of this host.
    Process(ProcessId),
    /// All processes of another host.
    #[cfg(feature = "hosts")]
    Host(u16),
}

impl From<ProcessId> for Party {
    fn from(process: ProcessId) -> Self {
        Party::Process(process)
    }
}

/// The rounds of one shutdown.
#[derive(Default)]
pub(crate) struct Rounds {
    round: u64,
    waiting: HashSet<Party>,
    answers: HashMap<Party, Activity>,
    before: HashMap<Party, Activity>,
    unchanged: u32,
    changed_rounds: u32,
    deaths: bool,
}

impl Rounds {
    pub(crate) fn new(deaths: bool) -> Self {
        Rounds { deaths, ..Rounds::default() }
    }

    /// Begins a round, and returns its number, with which the caller asks each of `parties`.
    pub(crate) fn begin(&mut self, parties: impl Iterator<Item = impl Into<Party>>) -> u64 {
        self.round += 1;
        self.waiting = parties.map(Into::into).collect();
        self.before = std::mem::take(&mut self.answers);
        self.round
    }

    /// Takes the answer of `party` in `round`.
    pub(crate) fn answer(&mut self, party: impl Into<Party>, round: u64, activity: Activity) -> Verdict {
        let party = party.into();
        if round != self.round || !self.waiting.remove(&party) {
            return Verdict::Waiting;
        }
        self.deaths |= activity.leaves_unread;
        self.answers.insert(party, activity);
        self.verdict()
    }

    /// Stops waiting for a party that has ended.
    pub(crate) fn left(&mut self, party: impl Into<Party>) -> Verdict {
        let party = party.into();
        self.deaths = true;
        self.answers.remove(&party);
        if self.waiting.remove(&party) { self.verdict() } else { Verdict::Waiting }
    }

    /// Returns the sums of a round that all have answered; none before the first round.
    pub(crate) fn total(&self) -> Option<Activity> {
        let none = Activity { leaves_unread: self.deaths, ..Activity::default() };
        (self.round > 0 && self.waiting.is_empty()).then(|| {
            self.answers.values().fold(none, |sum, activity| Activity {
                sent: sum.sent.wrapping_add(activity.sent),
                received: sum.received.wrapping_add(activity.received),
                busy: sum.busy || activity.busy,
                leaves_unread: sum.leaves_unread || activity.leaves_unread,
            })
        })
    }

    fn verdict(&mut self) -> Verdict {
        if !self.waiting.is_empty() {
            return Verdict::Waiting;
        }
        let busy = self.answers.values().any(|activity| activity.busy);
        if busy || self.answers != self.before {
            self.unchanged = 0;
            self.changed_rounds = self.changed_rounds.saturating_add(1);
        } else {
            self.unchanged += 1;
            if self.deaths {
                let still = self.unchanged >= STILL_ROUNDS;
                return if still { Verdict::Quiet } else { Verdict::AskAgain(STILL_PAUSE) };
            }
            if self.total().is_some_and(|total| total.sent == total.received) {
                return Verdict::Quiet;
            }
        }
        let factor = 1 << self.changed_rounds.min(8);
        Verdict::AskAgain((PAUSE.0 * factor).min(PAUSE.1))
    }
}

/// The phase of a worker when its time was up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Phase {
    /// It had not become ready yet.
    Starting,
    /// Messages were still under way, in it or elsewhere.
    Draining,
    /// It had not stopped its actors.
    StoppingActors,
    /// It had stopped its actors and did not exit.
    Exiting,
}

impl std::fmt::Display for Phase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Phase::Starting => "while it was starting",
            Phase::Draining => "while messages were still under way",
            Phase::StoppingActors => "while its actors were still stopping",
            Phase::Exiting => "after its actors had stopped, but before it exited",
        })
    }
}

/// How one worker ended in a shutdown.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WorkerEnd {
    /// The worker.
    pub worker: WorkerId,
    /// Its name.
    pub name: String,
    /// Its exit status; `None` if it could not be had.
    pub exit: Option<ExitStatus>,
    /// The phase in which it was killed because the time was up, if it was.
    pub killed: Option<Phase>,
}

/// How often a worker, or an actor in it, was restarted, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RestartReport {
    /// The worker.
    pub worker: WorkerId,
    /// Its name.
    pub name: String,
    /// How often.
    pub restarts: u32,
    /// Why each of its lives ended, the last 32 of them. There is one more than `restarts` if the last end
    /// was final.
    pub ends: Vec<EndReason>,
}

/// How a shutdown went.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ShutdownReport {
    /// Whether every message that was under way was handled.
    pub drained: bool,
    /// The workers that were there when it began.
    pub workers: Vec<WorkerEnd>,
    /// The earlier ends of workers with a restart policy.
    pub restarts: Vec<RestartReport>,
    /// How long it took.
    pub took: Duration,
}

impl ShutdownReport {
    /// Whether everything was drained and every worker exited with status 0.
    pub fn is_clean(&self) -> bool {
        self.drained && self.workers.iter().all(|worker| worker.exit.is_some_and(|exit| exit.success()))
    }
}

impl std::fmt::Display for ShutdownReport {
    /// Writes a line on the whole, and one on each worker that did not end well or was restarted before.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let drained = match self.drained {
            true if self.is_clean() => "everything was handled",
            true => "everything was handled but what the workers had that did not end in order",
            false => "not everything was handled",
        };
        let (count, seconds) = (self.workers.len(), self.took.as_secs_f64());
        let workers = if count == 1 { "worker" } else { "workers" };
        write!(f, "{count} {workers} ended in {seconds:.3} s; {drained}")?;
        for WorkerEnd { name, exit, killed, .. } in &self.workers {
            match (killed, exit) {
                (Some(phase), _) => write!(f, "\nkilled: {name}, {phase}")?,
                (None, None) => write!(f, "\nended: {name}, nobody knows how")?,
                (None, Some(exit)) if !exit.success() => write!(f, "\nended: {name}, {exit}")?,
                (None, Some(_)) => {}
            }
        }
        for RestartReport { name, restarts, ends, .. } in &self.restarts {
            let times = if *restarts == 1 { "once".to_owned() } else { format!("{restarts} times") };
            write!(f, "\nrestarted: {name}, {times}")?;
            if let Some(last) = ends.last() {
                write!(f, "; it ended last because of this: {last}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_worker_had_that_ended_otherwise_was_not_handled() {
        use std::os::unix::process::ExitStatusExt;

        let said = |exit| {
            let (worker, name) = (WorkerId(1), "save".to_owned());
            let workers =
                vec![WorkerEnd { worker, name, exit: Some(ExitStatus::from_raw(exit)), killed: None }];
            let took = Duration::from_secs(1);
            ShutdownReport { drained: true, workers, restarts: Vec::new(), took }.to_string()
        };
        assert_eq!(said(0), "1 worker ended in 1.000 s; everything was handled");
        assert_eq!(
            said(9),
            "1 worker ended in 1.000 s; everything was handled but what the workers had that did not end in order\n\
             ended: save, signal: 9 (SIGKILL)"
        );
    }

    #[test]
    fn a_shutdown_says_in_lines_what_was_not_in_order() {
        use std::os::unix::process::ExitStatusExt;

        let end = |name: &str, exit: i32, killed: Option<Phase>| WorkerEnd {
            worker: WorkerId(1),
            name: name.to_owned(),
            exit: Some(ExitStatus::from_raw(exit)),
            killed,
        };
        let restarts = RestartReport {
            worker: WorkerId(2),
            name: "detect.0".to_owned(),
            restarts: 2,
            ends: vec![EndReason::Exit(1), EndReason::Signal(9)],
        };
        let report = ShutdownReport {
            drained: false,
            workers: vec![
                end("save", 0, None),
                end("camera", 9, Some(Phase::Draining)),
                end("shrink", 3 << 8, None),
            ],
            restarts: vec![restarts],
            took: Duration::from_millis(1500),
        };
        assert_eq!(
            report.to_string(),
            "3 workers ended in 1.500 s; not everything was handled\n\
             killed: camera, while messages were still under way\n\
             ended: shrink, exit status: 3\n\
             restarted: detect.0, 2 times; it ended last because of this: signal: 9 (SIGKILL)"
        );
    }

    fn process(slot: u16) -> ProcessId {
        ProcessId::new(slot, 0).unwrap()
    }

    fn activity(sent: u64, received: u64, busy: bool) -> Activity {
        Activity { sent, received, busy, leaves_unread: false }
    }

    fn round(rounds: &mut Rounds, answers: &[Activity]) -> Verdict {
        let number = rounds.begin((0..answers.len()).map(|slot| process(slot as u16)));
        let mut verdict = Verdict::Waiting;
        for (slot, answer) in answers.iter().enumerate() {
            assert_eq!(verdict, Verdict::Waiting);
            verdict = rounds.answer(process(slot as u16), number, *answer);
        }
        verdict
    }

    #[test]
    fn quiet_needs_two_equal_rounds_with_equal_sums_and_nobody_busy() {
        let mut rounds = Rounds::new(false);
        let quiet = [activity(5, 2, false), activity(2, 5, false)];
        assert!(matches!(round(&mut rounds, &quiet), Verdict::AskAgain(_)));
        assert_eq!(round(&mut rounds, &quiet), Verdict::Quiet);

        let mut rounds = Rounds::new(false);
        let busy = [activity(5, 2, false), activity(2, 5, true)];
        for _ in 0..100 {
            assert!(matches!(round(&mut rounds, &busy), Verdict::AskAgain(_)));
        }
        let lost = [activity(6, 2, false), activity(2, 5, false)];
        for _ in 0..100 {
            assert!(matches!(round(&mut rounds, &lost), Verdict::AskAgain(_)), "a message is in a ring");
        }
        // The sums agree, but the counts moved since the last round.
        assert!(matches!(
            round(&mut rounds, &[activity(6, 2, false), activity(2, 6, false)]),
            Verdict::AskAgain(_)
        ));
    }

    #[test]
    fn an_answer_from_an_earlier_round_or_a_stranger_is_no_answer() {
        let mut rounds = Rounds::new(false);
        let first = rounds.begin([process(0)].into_iter());
        rounds.answer(process(0), first, Activity::default());
        let second = rounds.begin([process(0)].into_iter());
        assert_eq!(rounds.answer(process(0), first, Activity::default()), Verdict::Waiting);
        assert_eq!(rounds.answer(process(3), second, Activity::default()), Verdict::Waiting);
        assert_eq!(rounds.answer(process(0), second, Activity::default()), Verdict::Quiet);
    }

    /// The process that gave up a peer never receives the peer's messages, and the peer goes on sending.
    #[test]
    fn who_has_given_up_a_peer_does_not_hang_a_shutdown() {
        let mut rounds = Rounds::new(false);
        let gave_up = Activity { leaves_unread: true, ..activity(2, 2, false) };
        let answers = [activity(6, 2, false), gave_up];
        assert!((1..100).any(|_| round(&mut rounds, &answers) == Verdict::Quiet));
    }

    #[test]
    fn a_death_takes_its_counts_with_it_and_does_not_hang_a_shutdown() {
        let mut rounds = Rounds::new(false);
        let answers = [activity(5, 0, false), activity(0, 4, false)];
        round(&mut rounds, &answers);
        let number = rounds.begin([process(0), process(1)].into_iter());
        assert_eq!(rounds.answer(process(0), number, answers[0]), Verdict::Waiting);
        assert!(matches!(rounds.left(process(1)), Verdict::AskAgain(_)));
        let still = |rounds: &mut Rounds, answers: &[Activity]| {
            let rounds = (1..100).find(|_| round(rounds, answers) == Verdict::Quiet);
            // The first one may have none before it to compare with.
            assert!(rounds == Some(STILL_ROUNDS) || rounds == Some(STILL_ROUNDS + 1), "{rounds:?}");
        };
        still(&mut rounds, &answers[..1]);
        // One death long ago is enough to make the sums worthless, also where they agree by accident.
        still(&mut Rounds::new(true), &answers);
        still(&mut Rounds::new(true), &[activity(5, 5, false)]);
    }

    #[test]
    fn after_a_death_a_change_or_somebody_busy_begins_the_wait_anew() {
        let mut rounds = Rounds::new(true);
        let quiet = [activity(5, 0, false)];
        for disturbance in [activity(5, 0, true), activity(6, 0, false)] {
            for _ in 0..STILL_ROUNDS {
                assert!(matches!(round(&mut rounds, &quiet), Verdict::AskAgain(_)));
            }
            assert!(matches!(round(&mut rounds, &[disturbance]), Verdict::AskAgain(_)));
        }
    }
}
