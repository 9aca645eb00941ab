//! Makes a failing spec smaller, for as long as it fails.

use std::collections::BTreeMap;

use tensorpost::pipeline::OnError;

use super::plan::Plan;
use super::spec::{
    Ending, Fault, FlowId, Form, Op, Pick, Settings, Source, Spec, Stage, Tensors, What, When, Work,
};

/// Returns the smallest spec found that still fails. Calls `fails` at most `most` times.
pub fn shrink(spec: &Spec, most: usize, mut fails: impl FnMut(&Spec) -> bool) -> Spec {
    let (mut best, mut asked) = (spec.clone(), 0);
    'again: loop {
        for candidate in smaller(&best) {
            if asked == most {
                return best;
            }
            asked += 1;
            if fails(&candidate) {
                best = candidate;
                continue 'again;
            }
        }
        return best;
    }
}

/// Candidates, each a change of one spec.
struct Candidates<'s> {
    spec: &'s Spec,
    all: Vec<Spec>,
}

impl Candidates<'_> {
    fn with(&mut self, change: impl FnOnce(&mut Spec)) {
        let mut changed = self.spec.clone();
        change(&mut changed);
        if changed != *self.spec {
            self.all.push(changed);
        }
    }
}

/// Returns every spec that is a step smaller, the large steps first.
fn smaller(spec: &Spec) -> Vec<Spec> {
    let mut to = Candidates { spec, all: Vec::new() };
    to.with(|spec| spec.faults.clear());
    to.with(|spec| spec.ending = Ending::Natural);
    to.with(|spec| spec.runs = 0);
    to.with(|spec| spec.runs = spec.runs.min(1));
    for at in 0..spec.faults.len() {
        to.with(|spec| drop(spec.faults.remove(at)));
    }
    for (at, op) in spec.ops.iter().enumerate() {
        for output in 0..op.what.outputs(&op.settings).max(1) {
            to.all.extend(without(spec, at, output, false));
        }
        if let What::Fork(_, ways @ 3..) = op.what {
            to.all.extend((0..ways).filter_map(|way| without(spec, at, way, true)));
        }
        if let What::Loop { body, .. } = &op.what {
            to.all.extend((1..body.len()).map(|inside| without_inside(spec, at, inside)));
        }
    }
    to.with(|spec| spec.at_least_once = None);
    to.with(|spec| (spec.progress, spec.trace, spec.complete) = (None, false, false));
    for at in 0..spec.ops.len() {
        to.with(|spec| each(&mut spec.ops[at], &mut |op| op.settings = plain(&op.settings)));
        to.with(|spec| each(&mut spec.ops[at], &mut |op| simpler(&mut op.what)));
    }
    for at in 0..spec.ops.len() {
        for change in TUNING {
            to.with(|spec| each(&mut spec.ops[at], &mut |op| change(&mut op.settings)));
        }
        for change in PARTS {
            to.with(|spec| each(&mut spec.ops[at], &mut |op| change(&mut op.what)));
        }
    }
    for at in 0..spec.faults.len() {
        to.with(|spec| match &mut spec.faults[at] {
            Fault::Inside { times, .. } => *times = 1,
            Fault::Outside { victims, .. } => victims.truncate(1),
        });
        // Then the operator that the fault was about can go.
        to.with(|spec| match &mut spec.faults[at] {
            Fault::Inside { op, .. } => *op = 0,
            Fault::Outside { victims, .. } => victims.iter_mut().for_each(|victim| *victim = (0, 0)),
        });
        to.with(|spec| {
            if let Fault::Inside { at, .. } = &mut spec.faults[at] {
                *at /= 2;
            }
        });
    }
    to.all
}

/// Changes an operator, and those in it.
fn each(op: &mut Op, change: &mut dyn FnMut(&mut Op)) {
    change(op);
    if let What::Loop { body, .. } = &mut op.what {
        body.iter_mut().for_each(|op| each(op, change));
    }
}

/// Returns default settings that keep the same outputs.
fn plain(settings: &Settings) -> Settings {
    let on_error = if settings.dead { OnError::DeadLetter } else { settings.on_error };
    Settings { dead: settings.dead, on_error, restart: settings.restart, ..Settings::default() }
}

const TUNING: &[fn(&mut Settings)] = &[
    |settings| {
        (settings.replicas, settings.scales) = (1, false);
        (settings.pick, settings.ordered) = (Pick::Turns, false);
    },
    |settings| settings.scales = false,
    |settings| settings.pick = Pick::Turns,
    |settings| settings.ordered = false,
    |settings| settings.beside = false,
    |settings| settings.own_thread = false,
    |settings| settings.mailbox = None,
    |settings| settings.drops = None,
    |settings| settings.max_bytes = None,
    |settings| settings.restart = None,
    |settings| {
        if !settings.dead {
            settings.on_error = OnError::Fail;
        }
    },
];

fn simpler(what: &mut What) {
    match what {
        What::Source(source) => {
            *source = Source { count: source.count, closure: true, ..Source::default() };
        }
        What::Stage(stage) => {
            *stage = Stage { form: stage.form, fails: stage.fails, ..Stage::default() };
        }
        What::Sink { closure, slow } => (*closure, *slow) = (true, 0),
        _ => {}
    }
}

const PARTS: &[fn(&mut What)] = &[
    |what| {
        if let What::Source(source) = what {
            source.count /= 2;
        }
    },
    |what| {
        if let What::Source(source) = what {
            source.every = 0;
        }
    },
    |what| {
        if let What::Source(source) = what {
            source.count -= source.count.min(1);
        }
    },
    |what| {
        if let What::Source(source) = what {
            source.tensors = Tensors {
                seed: source.tensors.seed,
                count: source.tensors.count.min(1),
                ..Tensors::default()
            };
        }
    },
    |what| {
        if let What::Source(source) = what {
            source.tensors = Tensors::default();
        }
    },
    |what| {
        if let What::Source(source) = what {
            (source.fails, source.slow) = (Vec::new(), 0);
        }
    },
    |what| {
        if let What::Stage(stage) = what {
            stage.form = Form::Map;
        }
    },
    |what| {
        if let What::Stage(stage) = what {
            stage.fails = None;
        }
    },
    |what| {
        if let What::Stage(stage) = what {
            stage.work = Work::Pass;
        }
    },
    |what| {
        if let What::Stage(stage) = what {
            (stage.slow, stage.late, stage.keeps) = (0, 0, false);
        }
    },
    |what| {
        if let What::Loop { rounds, .. } = what {
            *rounds = 1 + (*rounds - 1) / 2;
        }
    },
    |what| {
        if let What::Batch { of, .. } | What::Window { of, .. } = what {
            *of = 1 + (*of - 1) / 2;
        }
    },
];

/// Operators with their old numbers, and the old numbers of the operators in them.
type Kept = Vec<(Op, Vec<u16>)>;

/// Returns the spec without an operator: its input takes the place of one of its outputs, and its other
/// outputs vanish. With `only_output`, leaves out only that output.
fn without(spec: &Spec, at: usize, output: u8, only_output: bool) -> Option<Spec> {
    if matches!(spec.ops[at].what, What::Sink { .. }) {
        return None;
    }
    let plan = Plan::new(spec);
    let mut flows: BTreeMap<FlowId, Option<FlowId>> = BTreeMap::new();
    let mut kept = Kept::new();
    for (old, op) in spec.ops.iter().enumerate() {
        let takes: Vec<FlowId> =
            op.takes.iter().filter_map(|flow| flows.get(flow).copied().flatten()).collect();
        // An operator that is left with one input where it had several is left out too.
        let passes = match op.what {
            _ if old == at => !only_output,
            What::Merge | What::Zip { .. } | What::Join { .. } => takes.len() == 1,
            _ => false,
        };
        let vanishes = takes.is_empty() && !matches!(op.what, What::Source(_));
        let outputs = op.what.outputs(&op.settings);
        if passes || vanishes {
            // Its takers take its input instead, or nothing.
            for out in 0..outputs {
                let alias = takes.first().copied().filter(|_| old != at || out == output);
                flows.insert((old, out), alias);
            }
            continue;
        }
        let mut op = Op { takes, ..op.clone() };
        if let (true, true, What::Fork(_, ways)) = (old == at, only_output, &mut op.what) {
            *ways -= 1;
        }
        for out in 0..outputs {
            let gone = old == at && only_output && out == output;
            let before = u8::from(old == at && only_output && out > output);
            flows.insert((old, out), (!gone).then_some((kept.len(), out - before)));
        }
        let first = plan.numbers[old];
        let numbers = (first..first + super::plan::width(&op)).collect();
        kept.push((op, numbers));
    }
    if !kept.iter().any(|(op, _)| matches!(op.what, What::Source(_))) {
        return None;
    }
    // Each flow that nobody takes any more ends in a sink.
    for (from, outputs) in
        kept.iter().map(|(op, _)| op.what.outputs(&op.settings)).enumerate().collect::<Vec<_>>()
    {
        for flow in (0..outputs).map(|output| (from, output)) {
            if !kept.iter().any(|(op, _)| op.takes.contains(&flow)) {
                let what = What::Sink { closure: true, slow: 0 };
                kept.push((Op { takes: vec![flow], what, settings: Settings::default() }, vec![u16::MAX]));
            }
        }
    }
    Some(renumbered(spec, kept))
}

/// Returns the spec without an operator in a loop.
fn without_inside(spec: &Spec, at: usize, inside: usize) -> Spec {
    let plan = Plan::new(spec);
    let mut kept = Kept::new();
    for (old, op) in spec.ops.iter().enumerate() {
        let mut op = op.clone();
        let first = plan.numbers[old];
        let mut numbers: Vec<u16> = (first..first + super::plan::width(&op)).collect();
        if let (true, What::Loop { body, .. }) = (old == at, &mut op.what) {
            let before =
                1 + body[..inside].iter().map(|op| usize::from(super::plan::width(op))).sum::<usize>();
            let gone = usize::from(super::plan::width(&body[inside]));
            numbers.drain(before..before + gone);
            body.remove(inside);
        }
        kept.push((op, numbers));
    }
    renumbered(spec, kept)
}

/// Returns the spec with these operators; faults at an operator follow it to its new number.
fn renumbered(spec: &Spec, kept: Kept) -> Spec {
    let new: BTreeMap<u16, u16> = kept
        .iter()
        .flat_map(|(_, numbers)| numbers)
        .enumerate()
        .map(|(new, old)| (*old, new as u16))
        .collect();
    let moment = |when: When| match when {
        When::Items(op, items) => new.get(&op).map_or(When::Micros(2_000), |op| When::Items(*op, items)),
        when @ When::Micros(_) => when,
    };
    let fault = |fault: &Fault| match fault {
        Fault::Inside { op, at, how, times } => {
            Some(Fault::Inside { op: *new.get(op)?, at: *at, how: *how, times: *times })
        }
        Fault::Outside { when, victims, stop } => {
            let victims: Vec<_> =
                victims.iter().filter_map(|(op, replica)| Some((*new.get(op)?, *replica))).collect();
            (!victims.is_empty()).then(|| Fault::Outside { when: moment(*when), victims, stop: *stop })
        }
    };
    Spec {
        faults: spec.faults.iter().filter_map(fault).collect(),
        ending: match spec.ending {
            Ending::Natural => Ending::Natural,
            Ending::Cancel(when) => Ending::Cancel(moment(when)),
            Ending::Kill(when) => Ending::Kill(moment(when)),
            Ending::Drop(when) => Ending::Drop(moment(when)),
        },
        ops: kept.into_iter().map(|(op, _)| op).collect(),
        ..spec.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::super::draw::{Faults, draw};
    use super::*;

    fn has(spec: &Spec, kind: fn(&What) -> bool) -> bool {
        Plan::new(spec).all().iter().any(|op| kind(&op.op.what))
    }

    #[test]
    fn a_planted_defect_is_all_that_is_left() {
        let is_window = |what: &What| matches!(what, What::Window { .. });
        let is_fork = |what: &What| matches!(what, What::Fork(..));
        let fails = |spec: &Spec| has(spec, is_window) && has(spec, is_fork) && !spec.faults.is_empty();
        let mut tried = 0;
        for spec in (0..400).map(|seed| draw(seed, Faults::Some)).filter(fails) {
            let small = shrink(&spec, usize::MAX, fails);
            let kinds = |kind: fn(&What) -> bool| small.ops.iter().filter(|op| kind(&op.what)).count();
            assert_eq!((kinds(is_window), kinds(is_fork), small.faults.len()), (1, 1, 1), "{small:?}");
            // The two operators, and at most a source and a sink more than needed, where they are on
            // different ways.
            assert!(small.ops.len() <= 7, "{small:?}");
            assert_eq!((small.ending, small.runs, small.at_least_once), (Ending::Natural, 0, None));
            tried += 1;
        }
        assert!(tried > 5, "{tried}");
    }

    #[test]
    fn every_smaller_spec_is_whole() {
        for seed in 0..60 {
            for small in smaller(&draw(seed, Faults::Some)) {
                let plan = Plan::new(&small);
                for (at, op) in small.ops.iter().enumerate() {
                    assert!(op.takes.iter().all(|(from, _)| *from < at), "{small:?}");
                    for output in 0..op.what.outputs(&op.settings) {
                        let takers =
                            small.ops.iter().flat_map(|op| &op.takes).filter(|flow| **flow == (at, output));
                        assert_eq!(takers.count(), 1, "{small:?}");
                    }
                }
                for fault in &small.faults {
                    let ops: Vec<u16> = match fault {
                        Fault::Inside { op, .. } => vec![*op],
                        Fault::Outside { victims, .. } => victims.iter().map(|(op, _)| *op).collect(),
                    };
                    assert!(ops.iter().all(|op| plan.op(*op).is_some()), "{small:?}");
                }
            }
        }
    }
}
