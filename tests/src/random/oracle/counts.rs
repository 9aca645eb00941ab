//! Checks that the report adds up: its numbers against the logs, where no process ended that took some
//! numbers with it.

use std::collections::BTreeMap;

use tensorpost::pipeline::Report;

use super::flows::{Flows, Taking};
use super::{Case, End, Kind};
use crate::random::history::{Bag, Past, Place, Step};
use crate::random::plan::{
    Numbered, Plan, dead_name, fail_times, fails_for_good, helper_name, stage_name, writes,
};
use crate::random::spec::{Then, What};

pub(super) fn compare(case: &Case<'_>, flows: &Flows<'_>, say: &mut dyn FnMut(Kind, String)) {
    let Some(report) = case.seen.end.report() else { return };
    if (report.lost.len() as u64) > report.lost_count
        || (report.left_over.len() as u64) > report.left_over_count
    {
        say(Kind::Counts, "more are named than counted".into());
    }
    if case.deaths || matches!(case.seen.end, End::Killed(_)) {
        return;
    }
    if report.lost_count > 0 {
        let first = report.lost.first().map(|lost| format!("{} at {}: {}", lost.id, lost.stage, lost.why));
        say(Kind::Counts, format!("{} are lost though nobody died; {first:?}", report.lost_count));
    }
    for op in case.plan.all().into_iter().filter(|op| writes(&op.op.what)) {
        stage(case, report, op, say);
    }
    if !case.at_least_once && !case.is_over_early() {
        for edge in &flows.edges {
            if let Taking::Pairs { want, got, .. } = &edge.taking {
                left_over(case, report, (edge.to, [(&edge.want, &edge.got), (want, got)]), say);
            }
        }
    }
}

fn stage(case: &Case<'_>, report: &Report, op: Numbered<'_>, say: &mut dyn FnMut(Kind, String)) {
    let name = stage_name(op.number, &op.op.what);
    let Some(line) = report.stage(&name) else {
        return say(Kind::Counts, format!("the report has no {name}"));
    };
    let log = case.seen.logs.bag(Place::of(op.number));
    let sum = |keep: &dyn Fn(u64) -> u64| {
        log.iter().map(|(past, n)| u64::from(*n) * keep(past.number)).sum::<u64>()
    };
    let mut compare = |what: &str, said: u64, found: u64| {
        if said != found {
            say(Kind::Counts, format!("{name}: the report says {said} {what}, and it was {found}"));
        }
    };
    let fatal_here = case.fatal && op.op.settings.on_error.fails();
    let all = sum(&|_| 1);
    if op.op.settings.drops.is_none() {
        compare("dropped", line.dropped, 0);
    }
    match &op.op.what {
        What::Source(source) => {
            compare("items out", line.items_out, all);
            // Each comes after the one before it, so there is one interval fewer than items.
            let intervals = (all / u64::from(line.replicas.max(1))).saturating_sub(1);
            let least = (intervals * source.every) as f64 / 1e6;
            if line.missed > 0 && source.every == 0 {
                say(Kind::Counts, format!("{name}: it has no rate, and has missed {}", line.missed));
            }
            if report.seconds < least {
                say(Kind::Counts, format!("{name}: {all} items in {} s, not in {least} s", report.seconds));
            }
        }
        What::Stage(spec) => {
            if !fatal_here {
                compare("items in", line.items_in, all);
            }
            let for_good = |number| u64::from(fails_for_good(op.op, number));
            let retries = op.op.settings.on_error.retries();
            compare("errors", line.errors, sum(&for_good));
            compare("retries", line.retries, sum(&|n| u64::from(fail_times(spec.fails, n).min(retries))));
            let keeps = op.op.settings.dead;
            // Where no stage takes them, they are counted all the same.
            let letters = if op.op.settings.on_error.keeps() { sum(&for_good) } else { 0 };
            compare("dead letters", line.dead_letters, letters);
            if keeps {
                let dead: u32 = case.seen.logs.bag(Place { op: op.number, dead: true }).values().sum();
                let taken = report.stage(&dead_name(op.number)).map_or(0, |line| line.items_in);
                compare("dead letters taken", taken, u64::from(dead));
            }
        }
        _ if !fatal_here => compare("items in", line.items_in, all),
        _ => {}
    }
}

/// Returns the ids by which the framework knows an item: of a batch those of all its items, of a window that
/// of the newest, of a pair those of both unless they begin with the same.
fn names(plan: &Plan, past: &Past) -> Vec<(u16, u64)> {
    let mut names = vec![(past.source, past.number)];
    for step in &past.steps {
        match step {
            Step::Among(op, others) if !is_window(plan, *op) => {
                names.extend(others.iter().flat_map(|other| self::names(plan, other)));
            }
            Step::With(_, right) if (right.source, right.number) != (past.source, past.number) => {
                names.extend(self::names(plan, right));
            }
            _ => {}
        }
    }
    names
}

fn is_window(plan: &Plan, op: u16) -> bool {
    plan.op(op).is_some_and(|op| matches!(op.op.what, What::Window { .. }))
}

/// Returns whether items of several ids may get others, because a batch of such items is taken apart.
fn renames(plan: &Plan) -> bool {
    let has = |kind: fn(&What) -> bool| plan.all().iter().any(|op| kind(&op.op.what));
    has(|what| matches!(what, What::Batch { then: Then::Unbatch, .. }))
        && has(|what| matches!(what, What::Join { .. } | What::Batch { then: Then::Pack | Then::Gather, .. }))
}

/// Checks that every half without a partner is named, once.
fn left_over(
    case: &Case<'_>,
    report: &Report,
    (to, sides): (Place, [(&Bag, &Bag); 2]),
    say: &mut dyn FnMut(Kind, String),
) {
    if renames(case.plan) {
        return;
    }
    let sources = case.plan.sources();
    let mut alone: BTreeMap<(u16, u64), i64> = BTreeMap::new();
    for (want, got) in sides {
        for (past, count) in want {
            let count = i64::from(*count) - i64::from(got.get(past).copied().unwrap_or(0));
            names(case.plan, past).into_iter().for_each(|id| *alone.entry(id).or_default() += count);
        }
    }
    let helper = helper_name(to.op);
    if report.left_over_count > report.left_over.len() as u64 {
        return;
    }
    for left in report.left_over.iter().filter(|left| left.stage == helper) {
        let source = sources.get(usize::from(left.id.source)).copied().unwrap_or(u16::MAX);
        *alone.entry((source, left.id.number)).or_default() -= 1;
    }
    let wrong: Vec<_> = alone.into_iter().filter(|(_, count)| *count != 0).take(6).collect();
    if !wrong.is_empty() {
        say(
            Kind::Counts,
            format!("{helper}: halves without a partner that are not named once each: {wrong:?}"),
        );
    }
}
