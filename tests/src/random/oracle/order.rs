//! Checks the promised orders: items of one source come in the order of their numbers wherever all of them,
//! or all with the same key, went the same way.

use std::collections::BTreeMap;

use crate::random::history::{Logs, Place};
use crate::random::plan::Plan;
use crate::random::spec::{FlowId, Form, Op, Pick, Settings, Then, What};

/// The sources whose items come to a place, each with its order. The items with the same number modulo this
/// value come in the order of their numbers; 0 stands for no order.
type Order = BTreeMap<u16, u64>;

/// Returns every violation of a promised order. With `intact`, no process died that would have restored an
/// order.
pub(super) fn disorder(plan: &Plan, logs: &Logs, intact: bool) -> Vec<String> {
    let mut orders: BTreeMap<FlowId, Order> = BTreeMap::new();
    let mut found = Vec::new();
    for (at, op) in plan.spec.ops.iter().enumerate() {
        let number = plan.numbers[at];
        let taken: Vec<Order> =
            op.takes.iter().map(|flow| orders.get(flow).cloned().unwrap_or_default()).collect();
        let first = taken.first().cloned().unwrap_or_default();
        let looked_at = match op.what {
            What::Stage(_) | What::Sink { .. } | What::Window { .. } => true,
            What::Batch { then, .. } => then != Then::Unbatch,
            _ => false,
        };
        // An operator's log has its items as they came, so it is held against the order of its input.
        if looked_at {
            look(logs, Place::of(number), &first, &mut found);
        }
        match &op.what {
            What::Source(_) => drop(orders.insert((at, 0), [(number, 1)].into())),
            What::Merge => drop(orders.insert((at, 0), merged(&taken))),
            What::Fork(_, ways) => {
                for way in 0..*ways {
                    orders.insert((at, way), first.clone());
                }
            }
            What::Stage(_) | What::Window { .. } => {
                orders.insert((at, 0), behind(op, &first, intact));
                if op.settings.dead {
                    // No restorer stands in front of dead letters, so only the replicas' own order is left.
                    let plain = Op { settings: Settings { ordered: false, ..op.settings }, ..op.clone() };
                    let dead = behind(&plain, &first, intact);
                    look(logs, Place { op: number, dead: true }, &dead, &mut found);
                    orders.insert((at, 1), dead);
                }
            }
            What::Batch { then: Then::Unbatch, .. } => drop(orders.insert((at, 0), first)),
            What::Batch { .. } => drop(orders.insert((at, 0), behind(op, &first, intact))),
            // Pairs come when they are complete, and items leave a loop after different numbers of rounds.
            What::Zip { .. } | What::Join { .. } | What::Loop { .. } | What::Sink { .. } => {
                let sources = taken.iter().flat_map(|order| order.keys());
                orders.insert((at, 0), sources.map(|source| (*source, 0)).collect());
            }
        }
    }
    found
}

/// Returns the order that is left behind several replicas of a stage.
fn behind(op: &Op, order: &Order, intact: bool) -> Order {
    let settings = &op.settings;
    // A held item takes the place of the item with which it is emitted.
    let holds = matches!(&op.what, What::Stage(stage) if matches!(stage.form, Form::Hold(_)));
    if settings.replicas == 1 || (settings.ordered && intact && !holds) {
        return order.clone();
    }
    match settings.pick {
        Pick::Key(k) => order.iter().map(|(source, modulus)| (*source, lcm(*modulus, k))).collect(),
        _ => order.keys().map(|source| (*source, 0)).collect(),
    }
}

fn merged(orders: &[Order]) -> Order {
    let mut merged = Order::new();
    for (source, modulus) in orders.iter().flatten() {
        // Two ways of one source are not in step.
        merged.entry(*source).and_modify(|there| *there = 0).or_insert(*modulus);
    }
    merged
}

fn lcm(a: u64, b: u64) -> u64 {
    let gcd = |mut a: u64, mut b: u64| {
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    if a == 0 { 0 } else { a / gcd(a, b).max(1) * b }
}

fn look(logs: &Logs, place: Place, order: &Order, found: &mut Vec<String>) {
    for actor in logs.0.get(&place).into_iter().flatten() {
        let mut last: BTreeMap<(u32, u16, u64), u64> = BTreeMap::new();
        for (life, past) in actor {
            let Some(modulus) = order.get(&past.source).filter(|modulus| **modulus > 0) else { continue };
            let before = last.entry((*life, past.source, past.number % modulus)).or_default();
            if past.number < *before {
                found.push(format!("{place}: {past} came after number {before} of that source"));
            }
            *before = past.number;
        }
    }
}
