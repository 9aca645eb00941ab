//! The progress of a running pipeline.

use std::fmt;
use std::io::{self, Stderr};
use std::sync::Arc;
use std::time::Duration;

use tensorpost_core::api::observe::{ShownProgress, ShownStage};
use tensorpost_watch::api::ProgressWriter;
use tensorpost_watch::draw::{percent, time};

use super::plan::{Kind, Plan};
use super::report::stream_waited;
use super::worker::meter::Counts;

/// How a running pipeline shows its progress.
#[derive(Clone, Default)]
pub enum Progress {
    /// Nothing.
    #[default]
    Off,
    /// On standard error: rows that are written over and over on a terminal, plain lines elsewhere.
    Auto,
    /// Plain lines on standard error.
    Lines,
    /// Calls a function with each snapshot, on the pipeline's thread.
    To(Arc<dyn Fn(&Snapshot) + Send + Sync>),
}

/// A snapshot of a pipeline.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Snapshot {
    /// The time since its sources were started.
    pub elapsed: Duration,
    /// How long its sources still go on, at the rate so far, if all of them know how many items they make.
    /// `None` before there is a rate.
    pub left: Option<Duration>,
    /// Its stages, in the order in which they were written down.
    pub stages: Vec<StageSnapshot>,
}

/// A snapshot of a stage, all replicas together.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct StageSnapshot {
    /// Its name.
    pub stage: String,
    /// The number of its replicas now.
    pub replicas: u32,
    /// Items that it has taken; for a source, items that it has made.
    pub items: u64,
    /// For a source: how many items it makes in all, if it knows.
    pub of: Option<u64>,
    /// Items a second, since the last snapshot.
    pub rate: f64,
    /// Items that it has sent and the next stages have not handled yet.
    pub in_flight: u64,
    /// Their bytes, where the next stage bounds them.
    pub bytes_in_flight: u64,
    /// Errors so far.
    pub errors: u64,
    /// Items lost so far on their way out of it.
    pub lost: u64,
    /// Items dropped in front of it so far, because it had no room.
    pub dropped: u64,
    /// For a source with a rate: times that passed without an item so far.
    pub missed: u64,
    /// Items left over in it so far.
    pub left_over: u64,
    /// Share of the time since the last snapshot that its replicas were in calls, from 0 to 1.
    pub busy: f64,
    /// Share of that time that its replicas waited for room at the next stages.
    pub waiting: f64,
    /// Waits that were put on its streams so far, because a tensor was not ready.
    pub stream_waits: u64,
    /// Share of the time since the last snapshot that its streams stood in such waits. `None` if the device
    /// does not tell, as for a GPU's stream.
    pub stream_waiting: Option<f64>,
}

impl Progress {
    /// Calls a function with each snapshot, on the pipeline's thread.
    pub fn to(tell: impl Fn(&Snapshot) + Send + Sync + 'static) -> Self {
        Progress::To(Arc::new(tell))
    }

    /// On standard error: rows that are written over and over on a terminal, plain lines elsewhere.
    pub fn auto() -> Self {
        Progress::Auto
    }

    pub(super) fn is_off(&self) -> bool {
        matches!(self, Progress::Off)
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Progress::Off => "Off",
            Progress::Auto => "Auto",
            Progress::Lines => "Lines",
            Progress::To(_) => "To(..)",
        })
    }
}

/// Makes snapshots of counts, and shows them.
pub(super) struct Reporter {
    progress: Progress,
    writer: ProgressWriter<Stderr>,
    before: (Duration, Vec<Counts>),
}

impl Reporter {
    pub(super) fn new(progress: Progress) -> Self {
        let writer = match progress {
            Progress::Auto => ProgressWriter::stderr(),
            _ => ProgressWriter::plain(io::stderr()),
        };
        Reporter { progress, writer, before: (Duration::ZERO, Vec::new()) }
    }

    /// Shows the latest counts of each actor, `elapsed` after the start, and the replicas of each stage.
    /// `last` says that no more counts come.
    pub(super) fn tell(
        &mut self,
        plan: &Plan,
        elapsed: Duration,
        counts: &[Counts],
        replicas: &[u32],
        last: bool,
    ) {
        if self.progress.is_off() {
            return;
        }
        let snapshot = snapshot(plan, replicas, (elapsed, counts), (self.before.0, &self.before.1));
        match &self.progress {
            Progress::Off => {}
            Progress::To(tell) => tell(&snapshot),
            Progress::Lines | Progress::Auto if last => self.writer.finish(Some(shown(plan, snapshot))),
            Progress::Lines | Progress::Auto => self.writer.show(shown(plan, snapshot)),
        }
        self.before = (elapsed, counts.to_vec());
    }
}

fn snapshot(
    plan: &Plan,
    replicas: &[u32],
    now: (Duration, &[Counts]),
    before: (Duration, &[Counts]),
) -> Snapshot {
    let seconds = now.0.saturating_sub(before.0).as_secs_f64().max(1e-9);
    let stages = plan.stages.iter().zip(replicas).enumerate().map(|(index, (stage, replicas))| {
        let replicas = *replicas;
        let sum = |counts: &[Counts], of: fn(&Counts) -> f64| -> f64 {
            counts.iter().filter(|counts| usize::from(counts.stage) == index).map(of).sum()
        };
        let items: fn(&Counts) -> f64 = |counts| counts.items_in.max(counts.items_out) as f64;
        let taken: fn(&Counts) -> f64 =
            if stage.kind == Kind::Source { items } else { |counts| counts.items_in as f64 };
        let change = |of: fn(&Counts) -> f64| (sum(now.1, of) - sum(before.1, of)).max(0.0);
        let share = |of: fn(&Counts) -> f64| (change(of) / seconds / f64::from(replicas.max(1))).min(1.0);
        let here = || now.1.iter().filter(|counts| usize::from(counts.stage) == index);
        let toward = now.1.iter().flat_map(|counts| &counts.toward);
        let toward = toward.filter(|toward| usize::from(toward.stage) == index);
        let told = here().count() >= stage.replicas as usize;
        StageSnapshot {
            stage: stage.name.clone(),
            replicas,
            items: sum(now.1, taken) as u64,
            // Each replica of a source makes as many items as it says.
            of: told
                .then(|| here().try_fold(0_u64, |sum, counts| Some(sum.saturating_add(counts.length?))))
                .flatten(),
            dropped: toward.fold(0, |sum, toward| sum.saturating_add(toward.dropped)),
            rate: change(taken) / seconds,
            in_flight: sum(now.1, |counts| counts.in_flight as f64) as u64,
            bytes_in_flight: sum(now.1, |counts| counts.bytes_in_flight as f64) as u64,
            errors: sum(now.1, |counts| counts.errors as f64) as u64,
            lost: sum(now.1, |counts| counts.lost as f64) as u64,
            missed: sum(now.1, |counts| counts.missed as f64) as u64,
            left_over: sum(now.1, |counts| counts.left_over as f64) as u64,
            busy: share(|counts| counts.busy.as_secs_f64()),
            waiting: share(|counts| counts.waiting.as_secs_f64()),
            stream_waits: sum(now.1, |counts| counts.stream_waits as f64) as u64,
            stream_waiting: stream_waited(now.1.iter().filter(|counts| usize::from(counts.stage) == index))
                .map(|_| share(|counts| counts.stream_waited.unwrap_or_default().as_secs_f64())),
        }
    });
    let stages: Vec<_> = stages.collect();
    let sources = plan.stages.iter().zip(&stages).filter(|(stage, _)| stage.kind == Kind::Source);
    // The sources run side by side, so the one that takes longest determines the end.
    let left = sources.map(|(_, source)| left(source, now.0)).reduce(|one, other| Some(one?.max(other?)));
    Snapshot { elapsed: now.0, left: left.flatten(), stages }
}

/// Returns how long a source still goes on at its rate so far.
fn left(source: &StageSnapshot, elapsed: Duration) -> Option<Duration> {
    let (of, made) = (source.of?, source.items);
    let seconds = elapsed.as_secs_f64() * of.saturating_sub(made) as f64 / made as f64;
    Duration::try_from_secs_f64(seconds).ok()
}

fn shown(plan: &Plan, snapshot: Snapshot) -> ShownProgress {
    let bytes = snapshot.stages.iter().map(|stage| stage.bytes_in_flight);
    let bytes_in_flight = bytes.fold(0, u64::saturating_add);
    let stages = snapshot.stages.into_iter().zip(&plan.stages).map(|(stage, planned)| {
        let mut note = note(&stage);
        if planned.scales() {
            note = format!("{} of {} replicas, {note}", stage.replicas, planned.replicas);
        }
        ShownStage { name: stage.stage, done: stage.items, of: stage.of, note, ..ShownStage::default() }
    });
    let left = snapshot.left.filter(|left| !left.is_zero());
    let left = left.map_or_else(String::new, |left| format!(" ({} left)", time(left)));
    ShownProgress { title: plan.name.clone() + &left, stages: stages.collect(), bytes_in_flight }
}

/// Returns a stage's figures beyond its rate, in words.
fn note(stage: &StageSnapshot) -> String {
    let mut note = format!("busy {}, waiting {}", percent(stage.busy), percent(stage.waiting));
    if let Some(share) = stage.stream_waiting {
        note += &format!(", stream waits {}", percent(share));
    }
    let counts = [
        (stage.in_flight, "under way"),
        (stage.errors, "errors"),
        (stage.lost, "lost"),
        (stage.dropped, "dropped"),
        (stage.missed, "missed"),
        (stage.left_over, "left over"),
    ];
    for (count, what) in counts.into_iter().filter(|(count, _)| *count > 0) {
        note += &format!(", {count} {what}");
    }
    note
}

#[cfg(test)]
mod tests {
    use super::super::plan::{RESULTS, StagePlan, Tap};
    use super::super::worker::meter::Toward;
    use super::*;

    /// Two sources that send to one sink.
    fn plan() -> Plan {
        let mut plan = Plan::new("films".to_owned());
        let sources = ["one", "other"].map(|name| plan.add(StagePlan::new(Kind::Source, name), &[]));
        let taps = sources.map(|stage| Tap { stage, output: RESULTS, branch: 0 });
        plan.add(StagePlan::new(Kind::Sink, "show"), &taps);
        plan
    }

    fn source(stage: u16, made: u64, length: Option<u64>, dropped: u64) -> Counts {
        let toward = vec![Toward { stage: 2, handled: made - dropped, dropped, ..Toward::default() }];
        Counts { stage, items_out: made, length, toward, ..Counts::default() }
    }

    #[test]
    fn the_last_source_says_how_long_it_takes_and_drops_are_at_the_stage_that_did_without() {
        let (plan, elapsed) = (plan(), Duration::from_secs(10));
        let counts = [source(0, 50, Some(100), 3), source(1, 20, Some(80), 4)];
        let snapshot = snapshot(&plan, &[1; 3], (elapsed, &counts), (Duration::ZERO, &[]));
        assert_eq!(snapshot.left, Some(Duration::from_secs(30)), "60 are left of one that makes 2 a second");
        assert_eq!([0, 1, 2].map(|stage| snapshot.stages[stage].of), [Some(100), Some(80), None]);
        assert_eq!([0, 1, 2].map(|stage| snapshot.stages[stage].dropped), [0, 0, 7]);
    }

    #[test]
    fn nothing_is_known_while_one_source_does_not_know_its_length_or_has_made_nothing() {
        let (plan, elapsed) = (plan(), Duration::from_secs(10));
        for other in [source(1, 20, None, 0), source(1, 0, Some(80), 0)] {
            let counts = [source(0, 50, Some(100), 0), other];
            assert_eq!(snapshot(&plan, &[1; 3], (elapsed, &counts), (Duration::ZERO, &[])).left, None);
        }
    }
}
