//! A spec with everything numbered: the pipeline is built from it, and the oracle judges by it.

use super::history::{Past, Place};
use super::spec::{FlowId, Op, Settings, Spec, What};

/// A spec with its numbers.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The spec.
    pub spec: Spec,
    /// The numbers of [`Spec::ops`]; the operators in a loop's body have those that follow the loop's.
    pub numbers: Vec<u16>,
}

/// An operator with its number and its loops.
#[derive(Clone, Copy, Debug)]
pub struct Numbered<'p> {
    /// Its number.
    pub number: u16,
    /// The operator.
    pub op: &'p Op,
    /// The loops that it is in, from the outermost: the number of each one's first stage, and of its rounds.
    pub depth: usize,
}

impl Plan {
    /// Numbers a spec.
    pub fn new(spec: &Spec) -> Plan {
        let mut next = 0;
        let numbers = spec.ops.iter().map(|op| number(op, &mut next)).collect();
        Plan { spec: spec.clone(), numbers }
    }

    /// Returns all operators, including those in loops.
    pub fn all(&self) -> Vec<Numbered<'_>> {
        let mut all = Vec::new();
        for (op, number) in self.spec.ops.iter().zip(&self.numbers) {
            let mut next = *number;
            list(op, &mut next, 0, &mut all);
        }
        all
    }

    /// Returns the operator with a number.
    pub fn op(&self, number: u16) -> Option<Numbered<'_>> {
        self.all().into_iter().find(|op| op.number == number)
    }

    /// Returns the taker of a flow: its place in [`Spec::ops`], and the flow's index among those that it
    /// takes.
    pub fn taker(&self, flow: FlowId) -> Option<(usize, usize)> {
        self.spec
            .ops
            .iter()
            .enumerate()
            .find_map(|(at, op)| op.takes.iter().position(|taken| *taken == flow).map(|which| (at, which)))
    }

    /// Returns the operator of each source id. Ids count up, and an operator has as many as it has replicas.
    pub fn sources(&self) -> Vec<u16> {
        let sources = self.spec.ops.iter().zip(&self.numbers);
        let sources = sources.filter(|(op, _)| matches!(op.what, What::Source(_)));
        sources.flat_map(|(op, number)| (0..op.settings.replicas).map(|_| *number)).collect()
    }

    /// Returns roughly how many processes it needs.
    pub fn processes(&self) -> u32 {
        let own = |op: &Op| if op.settings.beside { 0 } else { op.settings.replicas };
        let of = |op: Numbered<'_>| match op.op.what {
            What::Fork(..) | What::Merge | What::Loop { .. } => 0,
            What::Zip { .. } | What::Join { .. } => 1 + own(op.op),
            What::Stage(_) => own(op.op) + u32::from(op.op.settings.dead),
            What::Batch { then: super::spec::Then::Unbatch, .. } => 0,
            _ => own(op.op),
        };
        self.all().into_iter().map(of).sum()
    }
}

fn number(op: &Op, next: &mut u16) -> u16 {
    let number = *next;
    *next += 1;
    if let What::Loop { body, .. } = &op.what {
        for op in body {
            self::number(op, next);
        }
    }
    number
}

fn list<'p>(op: &'p Op, next: &mut u16, depth: usize, all: &mut Vec<Numbered<'p>>) {
    all.push(Numbered { number: *next, op, depth });
    *next += 1;
    if let What::Loop { body, .. } = &op.what {
        body.iter().for_each(|op| list(op, next, depth + 1, all));
    }
}

/// Returns the name of an operator's stage, the one that writes its log.
pub fn stage_name(number: u16, what: &What) -> String {
    let kind = match what {
        What::Source(_) => "source",
        What::Stage(_) => "stage",
        What::Sink { .. } => "sink",
        _ => "pack",
    };
    format!("{kind}-{number}")
}

/// Returns the name of the stage that an operator puts in before its own.
pub fn helper_name(number: u16) -> String {
    format!("helper-{number}")
}

/// Returns the name of the stage that takes the dead letters of an operator.
pub fn dead_name(number: u16) -> String {
    format!("dead-{number}")
}

/// Returns the operator to which a stage's name belongs, and whether the stage is the one behind its dead
/// letters.
pub fn location_of(name: &str) -> Option<Place> {
    let (kind, number) = name.split_once('-')?;
    let known = ["source", "stage", "sink", "pack", "helper", "dead", "unbatch"].contains(&kind);
    let number = number.split([' ', '.']).next()?;
    Some(Place { op: number.parse().ok().filter(|_| known)?, dead: kind == "dead" })
}

/// Returns whether an operator writes a log: those without are seen only by the items that pass through.
pub fn writes(what: &What) -> bool {
    !matches!(
        what,
        What::Fork(..)
            | What::Merge
            | What::Loop { .. }
            | What::Batch { then: super::spec::Then::Unbatch, .. }
    )
}

/// Returns whether a stage fails on a number for good.
pub fn fails_for_good(op: &Op, number: u64) -> bool {
    let What::Stage(stage) = &op.what else { return false };
    fail_times(stage.fails, number) > op.settings.on_error.retries()
}

/// Returns how often a stage fails on a number.
pub fn fail_times(fails: Option<super::spec::Fails>, number: u64) -> u32 {
    fails.filter(|fails| number % fails.every == fails.at).map_or(0, |fails| fails.times)
}

/// Returns the settings of the stage that takes dead letters, or of another that has none of its own.
pub fn plain() -> Settings {
    Settings::default()
}

/// Returns how many numbers an operator takes: its own and those of its body.
pub fn width(op: &Op) -> u16 {
    let body = if let What::Loop { body, .. } = &op.what { body.as_slice() } else { &[] };
    1 + body.iter().map(width).sum::<u16>()
}

/// Returns the key by which a `join` pairs items.
pub fn join_key(past: &Past, modulus: u64) -> u64 {
    if modulus == 0 { past.number } else { past.number % modulus }
}

/// Returns whether an item goes around once more in the loop whose first stage is `turn`, which is in the
/// loop of `outer`.
pub fn again(past: &Past, rounds: u64, turn: u16, outer: Option<u16>) -> bool {
    past.rounds(turn, outer) <= past.number % rounds
}
