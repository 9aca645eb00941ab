//! The items that may be missing: those that the report names, and those that nobody names according to
//! `PIPELINES.md`.

use std::collections::{BTreeMap, BTreeSet};

use super::{Case, End};
use crate::random::history::{Past, Place, Step};
use crate::random::plan::{Plan, dead_name, location_of};
use crate::random::spec::{Fault, Fork, Form, What};

/// The excuses for missing items in a run.
pub(super) struct Excuses<'r> {
    case: &'r Case<'r>,
    /// Items of sources that the report names.
    named: BTreeSet<(u16, u64)>,
    /// Whether the report's lists are cut.
    cut: bool,
    /// Operators of which a process ended, and how often.
    died: BTreeMap<u16, usize>,
    /// Those of which one process did not come back.
    died_for_good: BTreeSet<u16>,
    /// The unit that ended with each operator: its process, its actor alone, or each of them at different
    /// times.
    ended_with: BTreeMap<u16, BTreeSet<Ended>>,
    /// The operators that each one's items come from, in any number of steps.
    before: BTreeMap<u16, BTreeSet<u16>>,
    /// The last item of each life of a source.
    last_made: BTreeSet<Past>,
    /// The operators behind each fork that does not look at the items.
    forks: Vec<Vec<u16>>,
}

/// A unit that ends as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Ended {
    /// The workers of an operator, with everything in them.
    Workers(u16),
    /// The worker that takes the dead letters of an operator.
    DeadLetters(u16),
    /// An operator's actor alone: it panicked.
    Actor(u16),
}

impl<'r> Excuses<'r> {
    pub(super) fn new(case: &'r Case<'r>) -> Excuses<'r> {
        let (plan, seen) = (case.plan, case.seen);
        let (mut named, mut cut, mut died) = (BTreeSet::new(), false, BTreeMap::new());
        let mut died_for_good = BTreeSet::new();
        let mut ended_with: BTreeMap<u16, BTreeSet<Ended>> = BTreeMap::new();
        let sources = plan.sources();
        if let Some(report) = seen.end.report() {
            let failed = report.failures.iter().filter_map(|failure| failure.id);
            let lost = report.lost.iter().chain(&report.left_over).map(|lost| lost.id);
            let name =
                |id: tensorpost::pipeline::ItemId| Some((*sources.get(usize::from(id.source))?, id.number));
            named.extend(failed.chain(lost).filter_map(name));
            cut = report.lost_count > report.lost.len() as u64
                || report.left_over_count > report.left_over.len() as u64;
            for (death, op) in
                report.deaths.iter().filter_map(|death| Some((death, location_of(&death.stage)?.op)))
            {
                *died.entry(op).or_default() += 1;
                let shares = |other: u16| other != op && home(plan, other) == home(plan, op);
                let alone =
                    death.why.contains(" panicked") && plan.all().iter().any(|other| shares(other.number));
                // The dead letters of an operator, and the stages beside them, are in a worker of their own.
                let of_dead = death.why.starts_with(&format!("worker `{}`", dead_name(home(plan, op))));
                let ended = match (alone, of_dead) {
                    (true, _) => Ended::Actor(op),
                    (false, true) => Ended::DeadLetters(home(plan, op)),
                    (false, false) => Ended::Workers(home(plan, op)),
                };
                ended_with.entry(op).or_default().insert(ended);
            }
            let for_good = report.deaths.iter().filter(|death| !death.restarted);
            died_for_good.extend(for_good.filter_map(|death| Some(location_of(&death.stage)?.op)));
        }
        for fault in &seen.struck {
            match plan.spec.faults.get(*fault) {
                Some(Fault::Inside { op, .. }) => {
                    died.entry(*op).or_insert(1);
                }
                Some(Fault::Outside { victims, stop: None, .. }) => {
                    for (op, _) in victims {
                        died.entry(*op).or_insert(1);
                    }
                }
                _ => {}
            }
        }
        let mut last_made = BTreeSet::new();
        for op in plan.all().into_iter().filter(|op| matches!(op.op.what, What::Source(_))) {
            let logs = seen.logs.0.get(&Place::of(op.number));
            last_made.extend(logs.into_iter().flatten().filter_map(|log| Some(log.last()?.1.clone())));
        }
        for op in died.keys() {
            // No report says how it ended.
            ended_with.entry(*op).or_insert_with(|| [Ended::Workers(home(plan, *op))].into());
        }
        let (before, forks) = (before(plan), forks(plan));
        Excuses { case, named, cut, died, died_for_good, ended_with, before, last_made, forks }
    }

    /// Returns how often a process of an operator ended.
    pub(super) fn deaths_at(&self, place: Place) -> usize {
        self.died.get(&place.op).copied().unwrap_or(0)
    }

    /// Returns whether a process ended that sends to a place, or another stage in its worker ended.
    pub(super) fn sender_died(&self, to: Place) -> bool {
        let plan = self.case.plan;
        let Some(at) = plan.numbers.iter().position(|number| *number == to.op) else { return false };
        makers(plan, at).into_iter().any(|maker| {
            let first = plan.numbers[maker];
            let mut all = first..first + crate::random::plan::width(&plan.spec.ops[maker]);
            all.any(|op| self.died.contains_key(&op) || self.died.contains_key(&self.home(op)))
        })
    }

    /// Returns whether an item that did not come to a place may be missing there.
    pub(super) fn excuse(&self, past: &Past, to: Place) -> bool {
        let case = self.case;
        if self.cut || matches!(case.seen.end, End::Killed(_)) || self.is_named(past) {
            return true;
        }
        if matches!(case.seen.end, End::Dropped) && (case.deaths || case.fatal) {
            // The report went with the `Running`, so nobody can name it.
            return true;
        }
        self.failed(to) || case.deaths && self.by_death(past, to)
    }

    fn is_named(&self, past: &Past) -> bool {
        past.atoms().iter().any(|atom| self.named.contains(atom))
    }

    /// A stage that has failed the pipeline takes no further item; the report counts those.
    fn failed(&self, to: Place) -> bool {
        let Some(op) = self.case.plan.op(to.op) else { return false };
        if !self.case.fatal || !op.op.settings.on_error.fails() {
            return false;
        }
        let mut lines = self.case.seen.logs.lines(Place::of(to.op));
        lines.any(|(_, past)| crate::random::plan::fails_for_good(op.op, past.number))
    }

    fn by_death(&self, past: &Past, to: Place) -> bool {
        let none = BTreeSet::new();
        let before = self.before.get(&to.op).unwrap_or(&none);
        let dead_before: Vec<u16> = before.iter().copied().filter(|op| self.died.contains_key(op)).collect();
        let kind = |op: u16| self.case.plan.op(op).map(|op| &op.op.what);
        // "A source that dies loses the items that it had not sent": the item that it was about to send, and
        // the items that had not left its worker.
        if self.died.contains_key(&past.source)
            && (self.last_made.contains(past) || self.is_at_its_source(past))
        {
            return true;
        }
        let waited = matches!(kind(to.op), Some(What::Zip { .. } | What::Join { .. }))
            && self.died.contains_key(&to.op);
        if self.case.at_least_once {
            // An earlier life of it had left this over, and had told nobody yet.
            if waited {
                return true;
            }
            // A source that died sends nothing again. Items behind a stage that does not come back are lost.
            // Their senders name them, but those may have died as well.
            let source_died = dead_before.iter().any(|op| matches!(kind(*op), Some(What::Source(_))));
            let for_good = dead_before.iter().chain([&to.op]).any(|op| self.died_for_good.contains(op));
            let several = dead_before.len() > 1 || self.died.contains_key(&to.op);
            return (source_died || for_good) && several
                || self.is_made_anew(past, to)
                || self.came_again_where_it_had_failed(past, before);
        }
        // "Items that a stage kept with `hold`, and items that waited in a `zip` or `join`, are not named."
        let kept = |op: u16| match kind(op) {
            Some(What::Stage(stage)) => matches!(stage.form, Form::Hold(_)),
            _ => false,
        };
        if waited || dead_before.iter().any(|op| kept(*op)) {
            return true;
        }
        // The process that would name it has died as well, with its knowledge: "for a life that ended, the
        // report counts the progress that the life had reported".
        let involved = dead_before.iter().chain([&to.op]);
        let dead: BTreeSet<_> = involved.filter_map(|op| self.ended_with.get(op)).flatten().collect();
        dead.len() > 1
    }

    /// Returns whether the origins of an item went another way when they were sent again. They may have gone
    /// to another branch of a fork that does not look at items, into another batch, or to another partner in
    /// a join. Branches of such a fork are searched for them too.
    fn is_made_anew(&self, past: &Past, to: Place) -> bool {
        let took = |op: u16, item: &Past| {
            let mut lines = self.case.seen.logs.lines(Place::of(op));
            lines.any(|(_, line)| line == item || super::contains(line, item))
        };
        let is_before = |op: u16| self.before.get(&to.op).is_some_and(|before| before.contains(&op));
        let elsewhere = |at: usize| {
            let op = past.steps.get(at).map_or(to.op, Step::op);
            let before = Past { steps: past.steps[..at].to_vec(), ..past.clone() };
            // A filter that it has passed leaves no step.
            let passed = |taker: u16| taker == op || is_before(taker) && took(taker, &before);
            self.forks.iter().any(|takers| {
                takers
                    .iter()
                    .filter(|taker| passed(**taker))
                    .any(|taker| takers.iter().any(|other| other != taker && took(*other, &before)))
            })
        };
        let in_another = || {
            // In this place, or in another branch of the fork before it.
            let beside = self.forks.iter().filter(|takers| takers.contains(&to.op)).flatten();
            let places: Vec<_> = beside.map(|op| Place::of(*op)).chain([to]).collect();
            past.atoms().iter().all(|atom| {
                let mut lines = places.iter().flat_map(|place| self.case.seen.logs.lines(*place));
                lines.any(|(_, line)| line.atoms().contains(atom))
            })
        };
        let in_a_group = past.steps.iter().any(|step| match step {
            Step::Among(..) => true,
            // A `zip` finds the same partner again.
            Step::With(op, _) => {
                self.case.plan.op(*op).is_some_and(|op| matches!(op.op.what, What::Join { .. }))
            }
            Step::At(..) | Step::Dead(_) => false,
        });
        (0..=past.steps.len()).any(elsewhere) || in_a_group && in_another()
    }

    /// Returns whether the origins of an item may have been sent again to a replica that had failed the
    /// pipeline: a stage had them, one of its replicas died, and one has failed.
    fn came_again_where_it_had_failed(&self, past: &Past, before: &BTreeSet<u16>) -> bool {
        let is_made_of = |line: &Past| {
            (line.source, line.number) == (past.source, past.number) && past.steps.starts_with(&line.steps)
        };
        before.iter().copied().filter(|op| self.died.contains_key(op)).map(Place::of).any(|place| {
            self.failed(place) && self.case.seen.logs.lines(place).any(|(_, line)| is_made_of(line))
        })
    }

    /// Returns whether all stages that an item has passed are in the worker of its source.
    fn is_at_its_source(&self, past: &Past) -> bool {
        let mut steps = past.steps.iter().map(Step::op);
        steps.all(|op| self.home(op) == past.source) && self.leaves_late(past)
    }

    /// Returns whether a stage that holds part of the item next to its source can be in that worker.
    fn leaves_late(&self, past: &Past) -> bool {
        self.case.plan.op(past.source).is_some_and(|op| op.op.settings.replicas == 1)
    }

    /// Returns the operator in whose workers another runs.
    fn home(&self, op: u16) -> u16 {
        home(self.case.plan, op)
    }
}

/// Returns the operator in whose workers another runs.
pub(crate) fn home(plan: &Plan, op: u16) -> u16 {
    let Some(at) = plan.numbers.iter().position(|number| *number == op) else { return op };
    let op_at = &plan.spec.ops[at];
    if !op_at.settings.beside || matches!(op_at.what, What::Zip { .. } | What::Join { .. }) {
        return op;
    }
    match makers(plan, at)[..] {
        [maker, ..] => home(plan, plan.numbers[maker]),
        [] => op,
    }
}

/// Returns the operators with stages whose items an operator takes.
fn makers(plan: &Plan, at: usize) -> Vec<usize> {
    let mut found = Vec::new();
    for (from, _) in &plan.spec.ops[at].takes {
        match plan.spec.ops[*from].what {
            What::Fork(..) | What::Merge => found.extend(makers(plan, *from)),
            _ => found.push(*from),
        }
    }
    found
}

/// Returns the operators behind each fork that does not look at the items.
fn forks(plan: &Plan) -> Vec<Vec<u16>> {
    let ops = plan.spec.ops.iter().enumerate();
    let forks = ops.filter_map(|(at, op)| match op.what {
        What::Fork(Fork::Turns | Fork::Least | Fork::Key(_), ways) => Some((at, ways)),
        _ => None,
    });
    let takers = |(at, ways)| (0..ways).filter_map(move |way| Some(plan.numbers[plan.taker((at, way))?.0]));
    forks.map(|fork| takers(fork).collect()).collect()
}

fn before(plan: &Plan) -> BTreeMap<u16, BTreeSet<u16>> {
    let mut before: BTreeMap<u16, BTreeSet<u16>> = BTreeMap::new();
    for (at, op) in plan.spec.ops.iter().enumerate() {
        let number = plan.numbers[at];
        let body: Vec<u16> = (number + 1..number + crate::random::plan::width(op)).collect();
        let mut all: BTreeSet<u16> = body.iter().copied().collect();
        for (from, _) in &op.takes {
            let from = plan.numbers[*from];
            all.insert(from);
            all.extend(before.get(&from).into_iter().flatten().copied());
        }
        for inside in body {
            // In a loop every operator is before every other.
            before.insert(inside, all.clone());
        }
        before.insert(number, all);
    }
    before
}
