//! The report of a run: what each stage did, what was lost, and why.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tensorpost_core::api::observe::Histogram;
use tensorpost_watch::draw::{Cell, Table};

use super::limits::MAX_NAMED;
use super::plan::{Kind, Plan, RESULTS};
use super::worker::args::Select;
use super::worker::meter::{Counts, Failure, LostItem};

/// The report of a run, as a table ([`Display`](fmt::Display)) and as JSON ([`to_json`](Self::to_json)).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Report {
    /// Its name.
    pub pipeline: String,
    /// From the start of its sources to its end, in seconds.
    pub seconds: f64,
    /// Whether it was cancelled before its sources ended.
    pub cancelled: bool,
    /// Its stages, in the order in which they were written down.
    pub stages: Vec<StageReport>,
    /// Items on which stages failed; if there are many, the first of each replica.
    pub failures: Vec<Failure>,
    /// Items that were lost with a process that died, in it or because they depended on work that it had not
    /// done; if there are many, the first of each sender.
    pub lost: Vec<LostItem>,
    /// The number of all lost items.
    pub lost_count: u64,
    /// How many of them no death explains. If there is one, [`run`](super::Pipeline::run) returns an error.
    #[serde(default)]
    pub lost_unexplained: u64,
    /// Items that were left over in stages that work, because the partners for which a `zip` or `join` had
    /// kept them did not come. If there are many, the first of each replica.
    #[serde(default)]
    pub left_over: Vec<LostItem>,
    /// The number of all items left over.
    #[serde(default)]
    pub left_over_count: u64,
    /// Replicas that died.
    pub deaths: Vec<Death>,
    /// For each replica that had not ended when the pipeline was killed: what it waited for.
    #[serde(default)]
    pub waiting: Vec<Waiting>,
    /// Why stages in several workers took turns on one GPU; `None` if their kernels overlapped, or no GPU had
    /// several workers. See [`Sharing`](tensorpost_core::api::node::Sharing).
    #[serde(default)]
    pub time_slices: Option<String>,
    /// Replicas that died for good with their host: stage, replica and the number of the host. An error's
    /// text uses them.
    #[serde(skip)]
    pub(super) lost_hosts: Vec<(String, u16, u16)>,
}

/// A replica that had not finished, and what it waited for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Waiting {
    /// The stage.
    pub stage: String,
    /// The number of the replica.
    pub replica: u16,
    /// Whether it stood in a call of the stage's own code: then others wait for it.
    #[serde(default)]
    pub in_call: bool,
    /// The end, the answers or the room that it waited for, in words, with the names of stages.
    pub what: String,
}

/// The work of a stage, all replicas together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StageReport {
    /// Its name.
    pub stage: String,
    /// Its type.
    pub label: String,
    /// Whether it is a source.
    #[serde(default)]
    pub is_source: bool,
    /// The number of its replicas; if that changes, the number in the end.
    pub replicas: u32,
    /// The most that it had at one time.
    #[serde(default)]
    pub most_replicas: u32,
    /// Whether its counts may be too low, because a replica died: about the last moments of that replica the
    /// report only knows the progress that it had reported, and the counts of its neighbours. The display
    /// marks such counts: `60+`.
    #[serde(default)]
    pub at_least: bool,
    /// Items that came.
    pub items_in: u64,
    /// Items that it made and the next stages accepted.
    pub items_out: u64,
    /// Errors that it returned for good.
    pub errors: u64,
    /// Attempts after an error.
    pub retries: u64,
    /// Items of which nothing came because of an error.
    pub skipped: u64,
    /// Items that became dead letters.
    pub dead_letters: u64,
    /// Items that were dropped in front of it because it had no room:
    /// [`drop_oldest`](super::Flow::drop_oldest) and `drop_newest`. They are no loss, and not among those
    /// that came.
    #[serde(default)]
    pub dropped: u64,
    /// For a source with a rate ([`every`](super::Flow::every)): whole times that passed without an item,
    /// because the source or its receiver was late.
    #[serde(default)]
    pub missed: u64,
    /// Items that were sent again after a death.
    pub resent: u64,
    /// Items a second, from the first to the last.
    pub rate: f64,
    /// Half of its calls took no longer, in microseconds, accurate to an eighth. Work that a call puts on a
    /// stream goes on after the call and is not counted.
    pub p50_us: f64,
    /// 99 of 100 calls took no longer, in microseconds, accurate to an eighth.
    pub p99_us: f64,
    /// Seconds in its calls, of all replicas together.
    pub busy: f64,
    /// Seconds in which it waited for room at the next stages, of all replicas together.
    pub waiting: f64,
    /// Waits that were put on its streams, because a tensor was not ready when it came or was used.
    #[serde(default)]
    pub stream_waits: u64,
    /// Seconds for which its streams stood in these waits, of all replicas together. `None` if the device
    /// does not tell, as for a GPU's stream.
    #[serde(default)]
    pub stream_waited: Option<f64>,
    /// Bytes of tensors that its workers handed to other processes without copying them; each tensor counts
    /// with all the memory that it lies in. The bytes of several stages in one worker are counted at the
    /// stage that the others are beside.
    #[serde(default)]
    pub bytes_not_copied: u64,
}

/// A replica that died.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Death {
    /// The stage.
    pub stage: String,
    /// The number of the replica.
    pub replica: u16,
    /// The known cause.
    pub why: String,
    /// Whether it was started again. The report knows the work of its earlier life only from the progress
    /// that it had reported.
    pub restarted: bool,
}

impl Report {
    pub(super) fn new(plan: &Plan, seconds: Duration, counts: &[Counts], deaths: &[Death]) -> Self {
        let mut report =
            Report { pipeline: plan.name.clone(), seconds: seconds.as_secs_f64(), ..Report::default() };
        report.deaths = deaths.to_vec();
        let (mut unread, mut explained) = (0, 0);
        for (index, stage) in plan.stages.iter().enumerate() {
            let of = counts.iter().filter(|counts| usize::from(counts.stage) == index);
            let mut line = StageReport {
                stage: stage.name.clone(),
                label: stage.label.clone(),
                is_source: stage.kind == Kind::Source,
                replicas: stage.replicas,
                most_replicas: stage.replicas,
                ..StageReport::default()
            };
            let mut calls = Histogram::default();
            let mut active = Duration::ZERO;
            for counts in of {
                line.add(counts);
                calls.merge(&counts.calls);
                active = active.max(counts.active);
                if plan.home(index) == index {
                    add(&mut line.bytes_not_copied, counts.bytes_not_copied);
                }
                add(&mut report.lost_count, counts.lost);
                add(&mut unread, counts.lost_unread);
                add(&mut explained, counts.lost_tainted.saturating_add(counts.lost_outside));
                report.failures.extend_from_slice(&counts.failures);
                report.lost.extend_from_slice(&counts.lost_items);
                add(&mut report.left_over_count, counts.left_over);
                report.left_over.extend_from_slice(&counts.left_over_items);
            }
            let toward = counts.iter().flat_map(|counts| &counts.toward);
            let toward = toward.filter(|toward| usize::from(toward.stage) == index);
            let (mut dropped, mut handled) = (0, 0);
            for toward in toward {
                add(&mut dropped, toward.dropped);
                add(&mut handled, toward.handled);
            }
            line.dropped = dropped;
            line.at_least = deaths.iter().any(|death| death.stage == stage.name);
            // The senders' counts survive a death.
            line.items_in = if line.at_least { line.items_in.max(handled) } else { line.items_in };
            line.stream_waited =
                stream_waited(counts.iter().filter(|counts| usize::from(counts.stage) == index));
            let micros = |q| calls.quantile(q).unwrap_or_default().as_secs_f64() * 1e6;
            (line.p50_us, line.p99_us) = (micros(0.5), micros(0.99));
            let items = line.items_in.max(line.items_out);
            line.rate = if active.is_zero() { 0.0 } else { items as f64 / active.as_secs_f64() };
            report.stages.push(line);
        }
        report.count_what_arrived(plan);
        // The death of a receiver explains its losses. A death here or elsewhere on the node explains tainted
        // data, and items that an actor outside had.
        let ended = report.lost_count.saturating_sub(unread).saturating_sub(explained);
        report.lost_unexplained = unread.saturating_add(if report.deaths.is_empty() { ended } else { 0 });
        report.failures.truncate(MAX_NAMED);
        report.lost.sort_by_key(|lost| lost.id);
        report.lost.truncate(MAX_NAMED);
        report.left_over.sort_by_key(|left| left.id);
        report.left_over.truncate(MAX_NAMED);
        report
    }

    /// Raises the count of a stage that died to the number of items that its only receiver got from it: the
    /// stage has made at least those.
    fn count_what_arrived(&mut self, plan: &Plan) {
        if plan.at_least_once.is_some() {
            return; // items that were sent again have arrived twice
        }
        // From the sinks on: the counts there correct those of the stages before.
        for index in plan.sinks_first() {
            let [(_, edge)] = plan.edges_from(index, RESULTS)[..] else { continue };
            let to = &plan.stages[edge.to];
            let all = to.select == Select::All && to.replicas > 1;
            if !self.stages[index].at_least || all || plan.edges_to(edge.to).count() > 1 {
                continue;
            }
            let arrived = self.stages[edge.to].items_in.saturating_add(self.stages[edge.to].dropped);
            self.stages[index].items_out = self.stages[index].items_out.max(arrived);
        }
    }

    /// Whether all items that the sources made came to their end: nothing was lost, and nothing left over.
    /// Items that stages dropped themselves, or skipped on an error as their policy says, count as having
    /// come to their end.
    pub fn is_complete(&self) -> bool {
        self.lost_count == 0 && self.left_over_count == 0
    }

    /// Says in one line why the run is not complete; `None` if it is.
    pub(super) fn incomplete(&self) -> Option<String> {
        if self.is_complete() {
            return None;
        }
        let ids = |some: &[LostItem], count: u64| {
            let named: Vec<_> = some.iter().take(8).map(|lost| lost.id.to_string()).collect();
            let more = if count > named.len() as u64 { ", …" } else { "" };
            format!("{count} ({}{more})", named.join(", "))
        };
        let mut parts = Vec::new();
        if self.lost_count > 0 {
            parts.push(format!("lost {}", ids(&self.lost, self.lost_count)));
        }
        if self.lost_unexplained > 0 {
            let why = self.lost.first().map_or("", |lost| &lost.why);
            parts.push(format!("no death explains {} of them: {why}", self.lost_unexplained));
        }
        if self.left_over_count > 0 {
            parts.push(format!("left over {}", ids(&self.left_over, self.left_over_count)));
        }
        Some(parts.join("; "))
    }

    /// Returns the report of the stage with this name.
    pub fn stage(&self, name: &str) -> Option<&StageReport> {
        self.stages.iter().find(|stage| stage.stage == name)
    }

    /// Returns all of it as JSON, in one line. Its fields are those of this type.
    pub fn to_json(&self) -> String {
        // Numbers, texts and lists of them can always be written as JSON.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// Adds a number that a worker has reported, without overflow.
fn add(sum: &mut u64, more: u64) {
    *sum = sum.saturating_add(more);
}

/// Adds up the seconds in which streams waited; `None` if one of them is on a device that does not tell, or
/// there is none.
pub(super) fn stream_waited<'c>(counts: impl Iterator<Item = &'c Counts>) -> Option<f64> {
    counts
        .map(|counts| counts.stream_waited.map(|waited| waited.as_secs_f64()))
        .reduce(|sum, one| Some(sum? + one?))?
}

impl StageReport {
    fn replicas_in_words(&self) -> String {
        match self.most_replicas > self.replicas {
            true => format!("{} of {}", self.replicas, self.most_replicas),
            false => self.replicas.to_string(),
        }
    }

    /// Formats a count for the display.
    fn count(&self, count: u64) -> String {
        format!("{count}{}", if self.at_least { "+" } else { "" })
    }

    fn add(&mut self, counts: &Counts) {
        add(&mut self.items_in, counts.items_in);
        add(&mut self.items_out, counts.items_out);
        add(&mut self.missed, counts.missed);
        add(&mut self.errors, counts.errors);
        add(&mut self.retries, counts.retries);
        add(&mut self.skipped, counts.skipped);
        add(&mut self.dead_letters, counts.dead_letters);
        add(&mut self.resent, counts.resent);
        add(&mut self.stream_waits, counts.stream_waits);
        self.busy += counts.busy.as_secs_f64();
        self.waiting += counts.waiting.as_secs_f64();
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = Table::of(
            &self.stages,
            &[],
            &[
                ("stage", |of| of.stage.clone().into()),
                (">replicas", |of| of.replicas_in_words().into()),
                (">in", |of| of.count(of.items_in).into()),
                (">out", |of| of.count(of.items_out).into()),
                (">errors", |of| Cell::count(Some(of.errors))),
                (">items/s", |of| format!("{:.1}", of.rate).into()),
                (">p50 us", |of| format!("{:.1}", of.p50_us).into()),
                (">p99 us", |of| format!("{:.1}", of.p99_us).into()),
                (">busy s", |of| format!("{:.3}", of.busy).into()),
                (">waiting s", |of| format!("{:.3}", of.waiting).into()),
                (">stream waits s", |of| {
                    of.stream_waited.map_or_else(|| "n/a".to_owned(), |of| format!("{of:.3}")).into()
                }),
            ],
        );
        f.write_str(&table.plain())?;
        let end = if self.cancelled { "cancelled after" } else { "took" };
        write!(f, "{} {end} {:.3} s", self.pipeline, self.seconds)?;
        if let Some(incomplete) = self.incomplete() {
            write!(f, "\nincomplete: {incomplete}")?;
        }
        for stage in self.stages.iter().filter(|stage| stage.dropped > 0) {
            write!(f, "\ndropped: {} in front of {}", stage.dropped, stage.stage)?;
        }
        for stage in self.stages.iter().filter(|stage| stage.missed > 0) {
            write!(f, "\nlate: {} missed {} of its times", stage.stage, stage.missed)?;
        }
        if let Some(why) = &self.time_slices {
            write!(f, "\ntime slices: stages on one GPU took turns, some 145 us each: {why}")?;
        }
        for death in &self.deaths {
            let then = if death.restarted { "died and was restarted" } else { "died" };
            write!(f, "\n{then}: {} (replica {}): {}", death.stage, death.replica, death.why)?;
        }
        for waiting in self.waiting.iter().take(20) {
            write!(f, "\nwaiting: {waiting}")?;
        }
        for failure in self.failures.iter().take(10) {
            let id = failure.id.map_or_else(String::new, |id| format!(" on {id}"));
            write!(f, "\nfailed: {}{id}: {}", failure.stage, failure.why)?;
        }
        for lost in self.lost.iter().take(10) {
            write!(f, "\nlost: {} at {}: {}", lost.id, lost.stage, lost.why)?;
        }
        if self.lost_count > 10 {
            write!(f, "\nlost: {} in all", self.lost_count)?;
        }
        for left in self.left_over.iter().take(10) {
            write!(f, "\nleft over: {} at {}: {}", left.id, left.stage, left.why)?;
        }
        if self.left_over_count > 10 {
            write!(f, "\nleft over: {} in all", self.left_over_count)?;
        }
        Ok(())
    }
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`", self.stage)?;
        if self.replica > 0 {
            write!(f, " (replica {})", self.replica)?;
        }
        write!(f, " waits for {}", self.what)
    }
}
