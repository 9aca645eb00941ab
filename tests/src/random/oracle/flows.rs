//! Determines, edge by edge, which items each part had to get. A part's log of the items that it got
//! determines the items that it made, so a loss shows at the edge where it happened. The receivers' logs also
//! tell each choice of the framework: whose turn it was, and which items became a batch.

use crate::random::history::{Bag, Logs, Past, Place, Step};
use crate::random::plan::{Plan, again, fails_for_good, width};
use crate::random::spec::{FlowId, Fork, Form, Op, Pick, Then, What};

/// An edge to a part that writes down what it gets.
#[derive(Clone, Debug)]
pub(super) struct Edge {
    /// The receiver.
    pub to: Place,
    /// How it takes items.
    pub taking: Taking,
    /// The items that were made for it.
    pub want: Bag,
    /// The items that it got.
    pub got: Bag,
}

/// How a part takes its items.
#[derive(Clone, Debug)]
pub(super) enum Taking {
    /// One by one.
    Each,
    /// In batches of at most this many. The last batch may be smaller; with `true`, so may any batch that
    /// waited too long.
    Batches(u32, bool),
    /// In windows of this many.
    Windows(u32),
    /// In pairs. These are the items of the right side; `want` and `got` of the edge are those of the left.
    Pairs {
        /// The items that were made for it.
        want: Bag,
        /// The items that it got.
        got: Bag,
        /// The modulus of a join; none for a zip.
        key: Option<u64>,
    },
    /// Several parts that share the items of an edge.
    Shared(Vec<Place>),
}

/// Every flow of a run.
pub(super) struct Flows<'r> {
    plan: &'r Plan,
    logs: &'r Logs,
    /// All edges, in the order in which the graph was written down.
    pub edges: Vec<Edge>,
    flows: std::collections::BTreeMap<FlowId, Bag>,
}

fn add(bag: &mut Bag, other: &Bag) {
    for (past, count) in other {
        *bag.entry(past.clone()).or_default() += count;
    }
}

/// Returns the items in packed ones.
fn members(packed: &Bag) -> Bag {
    let mut bag = Bag::new();
    for (past, count) in packed {
        *bag.entry(past.before()).or_default() += count;
        if let Some(Step::Among(_, others)) = past.steps.last() {
            for other in others {
                *bag.entry(other.clone()).or_default() += count;
            }
        }
    }
    bag
}

fn rights(pairs: &Bag) -> Bag {
    let mut bag = Bag::new();
    for (past, count) in pairs {
        if let Some(Step::With(_, right)) = past.steps.last() {
            *bag.entry((**right).clone()).or_default() += count;
        }
    }
    bag
}

fn lefts(packed: &Bag) -> Bag {
    let mut bag = Bag::new();
    for (past, count) in packed {
        *bag.entry(past.before()).or_default() += count;
    }
    bag
}

impl<'r> Flows<'r> {
    /// Computes the flows from the logs of a run.
    pub(super) fn new(plan: &'r Plan, logs: &'r Logs) -> Flows<'r> {
        let mut flows = Flows { plan, logs, edges: Vec::new(), flows: Default::default() };
        for (at, op) in plan.spec.ops.iter().enumerate() {
            flows.op(at, op, plan.numbers[at]);
        }
        flows
    }

    fn taken(&self, op: &Op, which: usize) -> Bag {
        op.takes.get(which).and_then(|flow| self.flows.get(flow)).cloned().unwrap_or_default()
    }

    fn op(&mut self, at: usize, op: &Op, number: u16) {
        let first = self.taken(op, 0);
        let log = self.logs.bag(Place::of(number));
        match &op.what {
            // A source writes down what it makes: there is no edge before it that could lose an item.
            What::Source(_) => drop(self.flows.insert((at, 0), log)),
            What::Merge => {
                let mut sum = Bag::new();
                (0..op.takes.len()).for_each(|which| add(&mut sum, &self.taken(op, which)));
                self.flows.insert((at, 0), sum);
            }
            What::Zip { .. } | What::Join { .. } if op.takes.len() == 2 => {
                let key = if let What::Join { modulus, .. } = op.what { Some(modulus) } else { None };
                let taking = Taking::Pairs { want: self.taken(op, 1), got: rights(&log), key };
                self.edges.push(Edge { to: Place::of(number), taking, want: first, got: lefts(&log) });
                self.flows.insert((at, 0), log);
            }
            What::Fork(fork, ways) => self.fork(at, *fork, *ways, first),
            What::Sink { .. } => self.each(op, Place::of(number), first),
            What::Stage(_) if op.settings.dead => {
                let dead = self.dead(op, number);
                let out = self.in_line(op, number, first, None);
                self.flows.insert((at, 0), out);
                let place = Place { op: number, dead: true };
                self.edges.push(Edge {
                    to: place,
                    taking: Taking::Each,
                    want: dead,
                    got: self.logs.bag(place),
                });
                // The flow goes on with the items that arrived: a loss shows at this edge, not at the next.
                let passed = self.logs.bag(place);
                let passed = passed.into_iter().map(|(past, count)| (past.then(Step::Dead(number)), count));
                self.flows.insert((at, 1), passed.collect());
            }
            _ => {
                let out = self.in_line(op, number, first, None);
                self.flows.insert((at, 0), out);
            }
        }
    }

    /// Adds an edge to a part whose replicas all take each item, and so get it once each.
    fn each(&mut self, op: &Op, to: Place, mut want: Bag) {
        if op.settings.pick == Pick::All {
            want.values_mut().for_each(|count| *count *= op.settings.replicas);
        }
        self.edges.push(Edge { to, taking: Taking::Each, want, got: self.logs.bag(to) });
    }

    fn dead(&self, op: &Op, number: u16) -> Bag {
        let mut dead = self.logs.bag(Place::of(number));
        dead.retain(|past, _| fails_for_good(op, past.number));
        dead
    }

    /// Returns the results of an operator with one input and one output.
    fn in_line(&mut self, op: &Op, number: u16, came: Bag, turn: Option<u16>) -> Bag {
        let log = self.logs.bag(Place::of(number));
        match &op.what {
            What::Stage(stage) => {
                self.each(op, Place::of(number), came);
                let mut out = Bag::new();
                for (past, count) in log.iter().filter(|(past, _)| !fails_for_good(op, past.number)) {
                    for result in results(stage.form, number, past) {
                        *out.entry(result).or_default() += count;
                    }
                }
                out
            }
            What::Batch { then: Then::Unbatch, .. } => came,
            What::Batch { of, within, .. } => {
                let taking = Taking::Batches(*of, within.is_some());
                self.edges.push(Edge { to: Place::of(number), taking, want: came, got: members(&log) });
                log
            }
            What::Window { of, .. } => {
                let taking = Taking::Windows(*of);
                self.edges.push(Edge { to: Place::of(number), taking, want: came, got: lefts(&log) });
                log
            }
            What::Loop { rounds, body, .. } => {
                let inner = number + 1;
                // The log of the body's first stage tells which items that stage makes, so the circle has a
                // beginning.
                let (mut next, mut current) = (inner, Bag::new());
                let edges = self.edges.len();
                for op in body {
                    current = self.in_line(op, next, current, Some(inner));
                    next += width(op);
                }
                let goes_on = |past: &Past| again(past, *rounds, inner, turn);
                let back: Bag =
                    current.iter().filter(|(past, _)| goes_on(past)).map(|(p, n)| (p.clone(), *n)).collect();
                if let Some(first) = self.edges.get_mut(edges) {
                    add(&mut first.want, &came);
                    add(&mut first.want, &back);
                }
                current.retain(|past, _| !goes_on(past));
                current
            }
            _ => came,
        }
    }

    fn fork(&mut self, at: usize, fork: Fork, ways: u8, came: Bag) {
        match fork {
            Fork::All => {
                for way in 0..ways {
                    self.flows.insert((at, way), came.clone());
                }
            }
            Fork::Split(k) => {
                let (first, second) = came.into_iter().partition(|(past, _)| past.number.is_multiple_of(k));
                self.flows.insert((at, 0), first);
                self.flows.insert((at, 1), second);
            }
            Fork::Turns | Fork::Least | Fork::Key(_) => {
                // The part that took an item has logged it.
                let mut all = Bag::new();
                let mut takers = Vec::new();
                for way in 0..ways {
                    let Some((taker, _)) = self.plan.taker((at, way)) else { continue };
                    let (op, number) = (&self.plan.spec.ops[taker], self.plan.numbers[taker]);
                    let log = self.logs.bag(Place::of(number));
                    let got = if matches!(op.what, What::Batch { .. }) { members(&log) } else { log };
                    add(&mut all, &got);
                    self.flows.insert((at, way), got);
                    takers.push(Place::of(number));
                }
                let to = Place::of(self.plan.numbers[at]);
                self.edges.push(Edge { to, taking: Taking::Shared(takers), want: came, got: all });
            }
        }
    }
}

fn results(form: Form, number: u16, past: &Past) -> Vec<Past> {
    match form {
        Form::Filter(k) if past.number.is_multiple_of(k) => Vec::new(),
        Form::Filter(_) => vec![past.clone()],
        Form::FlatMap(k) => {
            (0..(past.number % k) as u16).map(|copy| past.then(Step::At(number, copy))).collect()
        }
        _ => vec![past.then(Step::At(number, 0))],
    }
}
