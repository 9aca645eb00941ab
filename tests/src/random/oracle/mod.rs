//! The oracle judges a run by the spec, the logs and the report.
//!
//! - Without deaths every item that was made comes, or is named as left over or failed. It comes exactly once
//!   (a clone for each branch of a broadcast), on the right branch and in the promised order. The report's
//!   counts are those of the logs.
//! - An item that a stage drops for want of room is not named. Without deaths as many items are missing there
//!   as the report says, and the others keep their order; with deaths no more are missing.
//! - At most once, with deaths: no item comes twice, and each item that does not come is named. The
//!   exceptions of `PIPELINES.md` are in `excuse`.
//! - At least once, with deaths: each item comes at least once, or is named.
//! - A killed pipeline ends, and the items that came out of it are right.

mod counts;
mod excuse;
mod flows;
mod order;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};
use tensorpost::pipeline::Report;

use super::history::{Bag, Logs, Past, Place};
use super::plan::{Plan, stage_name};
use super::spec::{Ending, Fault, What};
use excuse::Excuses;
#[cfg(not(test))]
pub(crate) use excuse::home;
use flows::{Edge, Flows, Taking};

/// A violated expectation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Its kind.
    pub kind: Kind,
    /// A description for people.
    pub what: String,
}

/// The kinds of violations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Kind {
    /// The run did not end.
    Hang,
    /// The node's process ended by itself.
    Crash,
    /// A tensor had other elements than it should have.
    Content,
    /// An item did not come, and nothing names it.
    Missing,
    /// An item came twice.
    Doubled,
    /// An item came where it does not belong.
    Astray,
    /// Items came in another order than promised.
    Disorder,
    /// A batch, a window or a pair was not what it should be.
    Group,
    /// The report's numbers are not those of the logs.
    Counts,
    /// The run ended in another way than it had to.
    Result,
    /// The run did not start.
    Start,
    /// Something was left behind.
    Leak,
    /// The log has a complaint though no failure was played.
    Complaint,
}

/// How a run ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum End {
    /// `Ok`.
    Fine(Report),
    /// [`PipelineError::Failed`](tensorpost::pipeline::PipelineError::Failed), with its text.
    Failed(String, Report),
    /// [`PipelineError::Died`](tensorpost::pipeline::PipelineError::Died): the stage, the replica.
    Died(String, u16, Report),
    /// [`PipelineError::Killed`](tensorpost::pipeline::PipelineError::Killed).
    Killed(Report),
    /// [`PipelineError::Incomplete`](tensorpost::pipeline::PipelineError::Incomplete).
    Incomplete(Report),
    /// Another error with a report.
    Other(String, Report),
    /// Another error.
    Error(String),
    /// The `Running` was dropped.
    Dropped,
}

impl End {
    /// Returns the report.
    pub fn report(&self) -> Option<&Report> {
        match self {
            End::Fine(report)
            | End::Failed(_, report)
            | End::Died(_, _, report)
            | End::Killed(report)
            | End::Incomplete(report)
            | End::Other(_, report) => Some(report),
            End::Error(_) | End::Dropped => None,
        }
    }
}

/// The observations of a run.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The items that every part got.
    pub logs: Logs,
    /// How it ended.
    pub end: End,
    /// Tensors that were wrong.
    pub wrong: Vec<String>,
    /// The faults that struck, by their place in the spec.
    pub struck: Vec<usize>,
    /// Whether the ending that the spec wants was caused before the run had ended.
    pub ended: bool,
}

/// The run to judge.
struct Case<'r> {
    plan: &'r Plan,
    seen: &'r Seen,
    /// Whether any process ended.
    deaths: bool,
    /// Whether a stage that was told to fail on an item got that item, and this fails the pipeline.
    fatal: bool,
    /// The same, leaving out sources that may have been stopped before they could fail.
    certainly_fatal: bool,
    at_least_once: bool,
}

/// Part of the error of a message that is nested too deeply.
const TOO_DEEP: &str = "nested deeper than";

/// Returns everything that is wrong with a run, or nothing if it is as it has to be.
pub fn judge(plan: &Plan, seen: &Seen) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    let mut say = |kind: Kind, what: String| verdicts.push(Verdict { kind, what });
    for wrong in &seen.wrong {
        say(Kind::Content, wrong.clone());
    }
    if let End::Error(error) = &seen.end {
        say(Kind::Start, error.clone());
        return verdicts;
    }
    // A stage that packs items around a loop may pack an item that holds an older pack, which holds an older
    // one, and so on. An item that is too deep to be sent is refused, and the pipeline fails with that; the
    // rest of the run says nothing.
    if matches!(&seen.end, End::Failed(why, _) if why.contains(TOO_DEEP)) {
        return verdicts;
    }
    let killing = |fault: &usize| match plan.spec.faults.get(*fault) {
        Some(Fault::Outside { stop, .. }) => stop.is_none(),
        Some(Fault::Inside { .. }) => true,
        None => false,
    };
    let reported = seen.end.report().is_some_and(|report| !report.deaths.is_empty());
    let case = Case {
        plan,
        seen,
        deaths: reported || seen.struck.iter().any(killing),
        fatal: told_to_fail(plan, seen, true),
        certainly_fatal: told_to_fail(plan, seen, !matches!(plan.spec.ending, Ending::Cancel(_))),
        at_least_once: plan.spec.at_least_once.is_some(),
    };
    let flows = Flows::new(plan, &seen.logs);
    let excuses = Excuses::new(&case);
    for edge in &flows.edges {
        case.arrivals(edge, &excuses, &mut say);
    }
    let restorers_live = !case.deaths;
    if !(case.deaths && case.at_least_once) {
        for what in order::disorder(plan, &seen.logs, restorers_live) {
            say(Kind::Disorder, what);
        }
    }
    case.result(&mut say);
    counts::compare(&case, &flows, &mut say);
    verdicts
}

/// Returns whether a stage that was told to fail, and whose failure fails the pipeline, got an item to fail
/// on, or whether a source came that far.
fn told_to_fail(plan: &Plan, seen: &Seen, sources: bool) -> bool {
    plan.all().into_iter().any(|op| {
        if !op.op.settings.on_error.fails() {
            return false;
        }
        match &op.op.what {
            What::Source(_) if !sources => false,
            What::Source(source) => source.fails.iter().any(|number| {
                // The source fails before it makes the item with that number, if it gets that far.
                *number == 0
                    || seen.logs.lines(Place::of(op.number)).any(|(_, past)| past.number + 1 >= *number)
            }),
            _ => {
                let mut lines = seen.logs.lines(Place::of(op.number));
                lines.any(|(_, past)| super::plan::fails_for_good(op.op, past.number))
            }
        }
    })
}

/// The difference between the items that were made and those that came.
struct Difference<'e> {
    missing: Vec<(&'e Past, u32)>,
    more: Vec<(&'e Past, u32, u32)>,
}

fn differ<'e>(want: &'e Bag, got: &'e Bag) -> Difference<'e> {
    let of = |bag: &Bag, past: &Past| bag.get(past).copied().unwrap_or(0);
    let missing = want.iter().filter_map(|(past, want)| Some((past, want.checked_sub(of(got, past))?)));
    let more = got.iter().map(|(past, got)| (past, of(want, past), *got)).filter(|(_, want, got)| got > want);
    Difference { missing: missing.filter(|(_, count)| *count > 0).collect(), more: more.collect() }
}

impl Case<'_> {
    fn arrivals(&self, edge: &Edge, excuses: &Excuses<'_>, say: &mut dyn FnMut(Kind, String)) {
        let to = edge.to;
        self.no_more_than_made(to, &edge.want, &edge.got, say);
        match &edge.taking {
            Taking::Each
                if !to.dead && self.plan.op(to.op).is_some_and(|op| op.op.settings.drops.is_some()) =>
            {
                self.only_dropped(to, self.missing(&edge.want, &edge.got), excuses, say);
            }
            Taking::Each => {
                self.nothing_missing(to, self.missing(&edge.want, &edge.got), excuses, say);
            }
            Taking::Shared(takers) => {
                let mut missing = self.missing(&edge.want, &edge.got);
                // Any of the takers may have been the one that was to have it.
                missing.retain(|(past, _)| !takers.iter().any(|taker| excuses.excuse(past, *taker)));
                self.nothing_missing(to, missing, excuses, say);
            }
            Taking::Batches(of, times_out) => {
                self.nothing_missing(to, self.missing(&edge.want, &edge.got), excuses, say);
                self.batches(to, *of, *times_out, say);
            }
            Taking::Windows(of) => self.windows(edge, *of, excuses, say),
            Taking::Pairs { want, got, key } => {
                self.no_more_than_made(to, want, got, say);
                self.pairs(edge, (want, got), *key, excuses, say);
            }
        }
    }

    /// Checks that no item comes that was not made, and none twice.
    fn no_more_than_made(&self, to: Place, want: &Bag, got: &Bag, say: &mut dyn FnMut(Kind, String)) {
        for (past, want, got) in differ(want, got).more {
            if want == 0 {
                say(Kind::Astray, format!("{past} came to {to}, and was not made for it"));
            } else if !(self.at_least_once && self.deaths) {
                say(Kind::Doubled, format!("{past} came {got} times to {to}, and was made {want} times"));
            }
        }
    }

    fn nothing_missing(
        &self,
        to: Place,
        mut missing: Vec<(&Past, u32)>,
        excuses: &Excuses<'_>,
        say: &mut dyn FnMut(Kind, String),
    ) {
        missing.retain(|(past, _)| !excuses.excuse(past, to));
        if !missing.is_empty() {
            let shown: Vec<_> = missing.iter().take(6).map(|(past, _)| past.to_string()).collect();
            let what =
                format!("{} did not come to {to} and are not named: {}", missing.len(), shown.join(", "));
            say(Kind::Missing, what);
        }
    }

    /// An item that does not come to a stage that drops is counted, and not named.
    fn only_dropped(
        &self,
        to: Place,
        mut missing: Vec<(&Past, u32)>,
        excuses: &Excuses<'_>,
        say: &mut dyn FnMut(Kind, String),
    ) {
        // Without a report nobody says how many.
        let Some(report) = self.seen.end.report() else { return };
        let name = self.plan.op(to.op).map_or_else(String::new, |op| stage_name(op.number, &op.op.what));
        let dropped = report.stage(&name).map_or(0, |stage| stage.dropped);
        if self.deaths || self.is_over_early() {
            // A sender that died has taken its count of dropped items with it.
            missing.retain(|(past, _)| !excuses.excuse(past, to) && !excuses.sender_died(to));
        }
        let all: u64 = missing.iter().map(|(_, count)| u64::from(*count)).sum();
        if all > dropped {
            let shown: Vec<_> = missing.iter().take(6).map(|(past, _)| past.to_string()).collect();
            let what =
                format!("{all} did not come to {to}, which has dropped {dropped}: {}", shown.join(", "));
            say(Kind::Missing, what);
        } else if all < dropped && !self.deaths && !self.is_over_early() {
            say(Kind::Counts, format!("{name}: the report says {dropped} dropped, and it was {all}"));
        }
    }

    /// Returns the items that were made and did not come. When items are sent again, one may be made more
    /// often than it had to come.
    fn missing<'e>(&self, want: &'e Bag, got: &'e Bag) -> Vec<(&'e Past, u32)> {
        let mut missing = differ(want, got).missing;
        if self.at_least_once && self.deaths {
            missing.retain(|(past, _)| !got.contains_key(past));
        }
        missing
    }

    fn batches(&self, to: Place, of: u32, times_out: bool, say: &mut dyn FnMut(Kind, String)) {
        let sizes: Vec<_> = self.seen.logs.lines(to).map(|(_, past)| group(past)).collect();
        if let Some(size) = sizes.iter().find(|size| **size > of as usize) {
            say(Kind::Group, format!("a batch at {to} has {size} items, more than {of}"));
        }
        let partial = sizes.iter().filter(|size| **size < of as usize).count();
        let packs = self.plan.op(to.op).map_or(1, |op| op.op.settings.replicas as usize);
        if partial > packs && !times_out && !self.deaths {
            say(Kind::Group, format!("{partial} batches at {to} have fewer items than {of}"));
        }
    }

    fn windows(&self, edge: &Edge, of: u32, excuses: &Excuses<'_>, say: &mut dyn FnMut(Kind, String)) {
        let to = edge.to;
        for (_, past) in self.seen.logs.lines(to) {
            if group(past) != of as usize {
                say(
                    Kind::Group,
                    format!("a window at {to} has {} items instead of {of}: {past}", group(past)),
                );
            }
        }
        let came: u32 = edge.want.values().sum();
        let windows: u32 = edge.got.values().sum();
        let wanted = (came + 1).saturating_sub(of);
        let first = of.saturating_sub(1) as usize;
        // The first items come in the window of a later one, or in none where there are too few.
        let mut missing = self.missing(&edge.want, &edge.got);
        missing.retain(|(past, _)| !excuses.excuse(past, to));
        if self.deaths {
            let members = |past: &Past| {
                let lines = self.seen.logs.lines(to);
                lines.into_iter().any(|(_, window)| contains(window, past))
            };
            missing.retain(|(past, _)| !members(past));
            let lives = 1 + excuses.deaths_at(to);
            if missing.len() > first * lives {
                self.nothing_missing(to, missing, excuses, say);
            }
        } else if missing.len() > first.min(came as usize) {
            let what = format!("{windows} windows at {to} of {came} items instead of {wanted}");
            say(Kind::Missing, what);
        }
    }

    fn pairs(
        &self,
        edge: &Edge,
        (want, got): (&Bag, &Bag),
        key: Option<u64>,
        excuses: &Excuses<'_>,
        say: &mut dyn FnMut(Kind, String),
    ) {
        let to = edge.to;
        let bond = |past: &Past| match key {
            None => (past.source, past.number),
            Some(modulus) => (0, super::plan::join_key(past, modulus)),
        };
        for (_, past) in self.seen.logs.lines(to) {
            if let Some(super::history::Step::With(_, right)) = past.steps.last()
                && bond(right) != bond(&past.before())
            {
                say(Kind::Group, format!("two are a pair at {to} that do not belong together: {past}"));
            }
        }
        let mut halves: std::collections::BTreeMap<(u16, u64), [i64; 3]> = Default::default();
        for (index, bag) in [&edge.want, want, &edge.got].into_iter().enumerate() {
            for (past, count) in bag {
                halves.entry(bond(past)).or_default()[index] += i64::from(*count);
            }
        }
        let mut alone = self.missing(&edge.want, &edge.got);
        alone.extend(self.missing(want, got));
        // A source with replicas makes pairs of one replica's items alone. A history does not tell the
        // replicas apart.
        let told_apart = self.plan.sources().len()
            == self.plan.spec.ops.iter().filter(|op| matches!(op.what, What::Source(_))).count();
        if !self.deaths && !self.at_least_once && told_apart && !self.is_over_early() {
            for (bond, [left, right, pairs]) in &halves {
                if pairs != left.min(right) {
                    let what = format!("{pairs} pairs of {left} and {right} of {bond:?} at {to}");
                    say(Kind::Missing, what);
                }
            }
        }
        // Without a report nobody can name a half that was left over.
        if !matches!(self.seen.end, End::Dropped) {
            self.nothing_missing(to, alone, excuses, say);
        }
    }

    /// Returns whether the run was ended before everything under way was finished.
    fn is_over_early(&self) -> bool {
        self.fatal
            || matches!(self.seen.end, End::Killed(_) | End::Failed(..) | End::Died(..) | End::Other(..))
    }

    /// Checks how the run ended.
    fn result(&self, say: &mut dyn FnMut(Kind, String)) {
        let report = self.seen.end.report();
        let unreplaced = report.and_then(|report| {
            let dead = |stage: &str, replica: u16| {
                let mut deaths = report.deaths.iter();
                deaths.any(|death| death.stage == stage && death.replica == replica && !death.restarted)
            };
            report.deaths.iter().find(|death| {
                let replicas = report.stage(&death.stage).map_or(1, |stage| stage.replicas) as u16;
                let is_source = report.stage(&death.stage).is_some_and(|stage| stage.is_source);
                // For a stage that scales, `replicas` counts the replicas that are open in the end, and none
                // that died.
                let scales = super::plan::location_of(&death.stage).is_some_and(|at| {
                    !at.dead && self.plan.op(at.op).is_some_and(|op| op.op.settings.scales)
                });
                let others = if scales {
                    replicas > 0
                } else {
                    (0..replicas).any(|other| other != death.replica && !dead(&death.stage, other))
                };
                !death.restarted && (is_source || !(self.at_least_once && others))
            })
        });
        match &self.seen.end {
            End::Fine(report) => {
                if self.certainly_fatal && !self.deaths {
                    say(Kind::Result, "it is fine though a stage was to fail".into());
                }
                if let Some(death) = unreplaced {
                    say(Kind::Result, format!("it is fine though {} died for good", death.stage));
                }
                if report.lost_unexplained > 0 || report.lost_count > 0 && report.deaths.is_empty() {
                    let what = format!("it is fine though {} were lost without a death", report.lost_count);
                    say(Kind::Result, what);
                }
                if self.plan.spec.complete && !report.is_complete() {
                    say(Kind::Result, "it is fine though it had to be complete and is not".into());
                }
            }
            End::Failed(why, _) => {
                if !self.fatal {
                    say(Kind::Result, format!("it failed though nothing was told to: {why}"));
                }
            }
            End::Died(stage, replica, report) => {
                let named = report
                    .deaths
                    .iter()
                    .any(|death| death.stage == *stage && death.replica == *replica && !death.restarted);
                if !named {
                    say(
                        Kind::Result,
                        format!("{stage} is said to have died for good, and the report does not say so"),
                    );
                }
                if !self.deaths {
                    say(Kind::Result, format!("{stage} died, and nothing was told to"));
                }
            }
            End::Killed(_) => {
                if !matches!(self.plan.spec.ending, super::spec::Ending::Kill(_)) {
                    say(Kind::Result, "it was killed though nobody did that".into());
                }
            }
            End::Incomplete(report) => {
                if report.lost_unexplained > 0 {
                    let what = format!("no death explains {} losses", report.lost_unexplained);
                    say(Kind::Result, what);
                } else if !self.plan.spec.complete || report.is_complete() {
                    say(Kind::Result, "it is said to be incomplete, and need not be or is not".into());
                }
            }
            End::Other(error, _) => say(Kind::Result, error.clone()),
            End::Error(_) | End::Dropped => {}
        }
    }
}

/// Returns the number of items in a packed one.
fn group(past: &Past) -> usize {
    match past.steps.last() {
        Some(super::history::Step::Among(_, others)) => 1 + others.len(),
        _ => 1,
    }
}

fn contains(window: &Past, past: &Past) -> bool {
    window.before() == *past
        || matches!(window.steps.last(), Some(super::history::Step::Among(_, others)) if others.contains(past))
}
