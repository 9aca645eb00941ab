//! A host has more actors than another host's gateway has places for: unused actors give their places up, and
//! nobody notices.

use std::time::{Duration, Instant};

use tensorpost::actor::AskFailure;
use tensorpost::prelude::*;
use tensorpost_tests::cases;
use tensorpost_tests::harness::{Builder, Case};
use tensorpost_tests::wait::{ask, deliver, numbers, until_free};

use crate::actors::{Count, Counter, Echo, Echoer, Fail, HowMany, Never, Spread};
use crate::{Other, find, head};

/// A gateway has places for 256.
fn many() -> usize {
    if std::env::var_os("TENSORPOST_THOROUGH").is_some() { 600 } else { 280 }
}

/// How many messages another process sends to all counters but three; the head sends as many to those three.
const ROUNDS: u32 = 4;

/// A message that has not come by then does not come.
const LONG: Duration = Duration::from_secs(90);

/// A process has clocks for 30.
const IN_EACH: usize = 20;

pub(crate) fn start_many(node: &Node) -> Vec<Spawned<Counter>> {
    let workers = 0..many() / IN_EACH;
    let workers: Vec<_> = workers.map(|at| node.worker(&format!("many-{at}")).expect("a worker")).collect();
    let counter = |at: usize| {
        let worker = workers[at / IN_EACH];
        node.spawn::<Counter>(()).worker(worker).name(name(at)).mailbox(4)
    };
    (0..many()).map(|at| counter(at).start().expect("an actor")).collect()
}

fn name(at: usize) -> String {
    format!("counter {at}")
}

fn more_actors_than_places_are_reached_in_turn_and_nothing_is_lost(builder: Builder) {
    let node = head(builder);
    let other = Other::with_many(&node);
    // These are used before all others: the one with an ask that has no answer keeps its place, and the
    // watched one's end is reported.
    let (again, fail) = (find::<Echo>(&node, "again"), find::<Fail>(&node, "again"));
    let mut watch = node.watch(&again);
    ask(&node, &again, Echo::empty());
    let mut open = find::<Never>(&node, "echo").ask(Never);
    node.block_on(open.accepted()).expect("it is accepted");

    let counters: Vec<_> = (0..many()).map(|at| find::<Count>(&node, &name(at))).collect();
    let stream = node.host_stream().expect("a stream");
    let count = |number| Count { number, tensor: numbers(&stream, number, 5) };
    // In turn, and back to the first, whose place belongs to another actor by then.
    counters.iter().for_each(|counter| deliver(&node, counter, count(0)));
    counters
        .iter()
        .take(3)
        .for_each(|counter| (1..=ROUNDS).for_each(|number| deliver(&node, counter, count(number))));
    // Now another process of this host sends to all at a time. More actors than there are places wait for
    // one. Messages that it sends before it hears that a place was given up come late, to more actors than
    // are asked for at a time.
    let spreader = node.spawn::<Echoer>(()).start().expect("an actor");
    let wrong =
        ask(&node, &spreader.address(), Spread { to: counters[3..].to_vec(), from: 1, rounds: ROUNDS });
    assert_eq!(wrong, Vec::<String>::new());
    // Another process sent it, so it need not be there before this question; a message to the same mailbox
    // has to be.
    let started = Instant::now();
    for at in (0..many()).step_by(if many() < 600 { 8 } else { 1 }) {
        let how_many = find::<HowMany>(&node, &name(at));
        loop {
            let (came, wrong) = ask(&node, &how_many, HowMany);
            assert_eq!(wrong, Vec::<String>::new(), "{at}");
            if came == 1 + ROUNDS {
                break;
            }
            assert!(came <= ROUNDS && started.elapsed() < LONG, "{at}: {came} came");
        }
    }

    deliver(&node, &fail, Fail);
    let down = watch.blocking_recv().expect("an event");
    assert!(matches!(&down, Lifecycle::Down { will_restart: true, .. }), "{down}");
    let up = watch.blocking_recv().expect("an event");
    assert!(matches!(&up, Lifecycle::Up { incarnation: 1, .. }), "{up}");
    assert_eq!(ask(&node, &again, Echo::empty()).number, 1);
    deliver(&node, &find::<Fail>(&node, "echo"), Fail);
    let unanswered = node.block_on(open).expect_err("it has failed");
    assert!(matches!(unanswered, AskError::NoReply(AskFailure::Refused(_))), "{unanswered:?}");
    drop(spreader);
    until_free(&node);
    other.end();
}

pub(crate) fn cases() -> Vec<Case> {
    // Places are given up and asked for again some hundred times, in turn.
    let cases = cases![more_actors_than_places_are_reached_in_turn_and_nothing_is_lost];
    cases.into_iter().map(|case| case.within(Duration::from_secs(180))).collect()
}
