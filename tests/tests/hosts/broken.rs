//! A relay between two nodes that cuts their connections, in order and with resets, half-opens them, and
//! slows them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use tensorpost::prelude::*;
use tensorpost_core::os::thorough;
use tensorpost_tests::cases;
use tensorpost_tests::faults::plan::{Draw, fresh_seed};
use tensorpost_tests::harness::{Builder, Case};
use tensorpost_tests::wait::{ask, deliver, numbers, until_free};

use crate::actors::{Count, Echo, HowMany, Item, PassOn};
use crate::relay::{Relay, Weather};
use crate::{Other, address, find, head};

const LANES: u16 = 2;
/// Items of the other host, which come beside as many messages to it.
const ITEMS: u32 = 30;
/// Gives the seed of the breaks.
const SEED: &str = "TENSORPOST_BREAK_SEED";
/// Seeds that a run of all tests plays, beside a fresh one.
const RECORDED: &[u64] = &[0x1d5e_a5ed, 1, 2];

/// Draws a break, and causes it.
async fn break_one(relay: &Relay, draw: &mut Draw, half_open: bool) {
    let whole = usize::from(LANES) + 1;
    // Otherwise the break falls into a handshake.
    if draw.below(4) > 0 {
        relay.until_made(whole).await;
    }
    // The break comes somewhere within the next messages.
    tokio::time::sleep(Duration::from_micros(draw.bits() % 15_000)).await;
    relay.until_made(1).await;
    let which = (draw.below(3) > 0).then(|| draw.bits());
    if draw.below(4) == 0 {
        relay.change(None, Weather::Slow(Duration::from_millis(draw.bits() % 5)));
    }
    let weather = if half_open { Weather::HalfOpen } else { Weather::Cut { reset: draw.below(2) == 0 } };
    relay.change(which, weather);
}

/// HOST-3, HOST-4: messages and tensors go in both directions, at all times, between this host and one with
/// the actors of [`be_the_other`](crate::be_the_other), until `is_over`. None is lost, doubled or reordered.
/// `rounds` counts the answers.
pub(crate) fn talk(node: &Node, rounds: &AtomicU32, is_over: impl Fn() -> bool) {
    let (counter, how_many) = (find::<Count>(node, "counter"), find::<HowMany>(node, "counter"));
    let (echo, pass_on) = (find::<Echo>(node, "echo"), find::<PassOn>(node, "echo"));
    let (to, mut items) = node.channel::<Item>().expect("a channel");
    let stream = node.host_stream().expect("a stream");
    let mut sent = 0;
    while !is_over() || sent < 3 * ITEMS {
        deliver(node, &pass_on, PassOn { to: to.clone(), items: ITEMS });
        for _ in 0..ITEMS {
            // The lengths make no pieces, one, and several.
            let length = [0, 100, 100_000][sent as usize % 3];
            deliver(node, &counter, Count { number: sent, tensor: numbers(&stream, sent, length) });
            sent += 1;
        }
        let echoed = ask(node, &echo, Echo { number: sent.into(), ..Echo::empty() });
        assert_eq!(echoed.number, u64::from(sent));
        for number in 0..ITEMS {
            let item = items.blocking_recv().expect("it comes");
            let should: Vec<u32> = (number..).take(100).collect();
            assert_eq!((item.number, item.tensor.to_vec::<u32>().expect("numbers")), (number, should));
        }
        assert!(items.try_recv().is_none(), "an item more than was sent");
        rounds.fetch_add(1, Relaxed);
    }
    assert_eq!(ask(node, &how_many, HowMany), (sent, Vec::new()));
    until_free(node);
}

/// Returns the seeds of the breaks.
fn seeds() -> Vec<u64> {
    if let Ok(seed) = std::env::var(SEED) {
        return vec![seed.parse().expect("a number")];
    }
    let fresh = fresh_seed();
    if thorough() { [RECORDED, &[fresh]].concat() } else { vec![fresh] }
}

fn broken_connections_lose_double_and_reorder_nothing(_: Builder) {
    for seed in seeds() {
        println!("breaks of seed {seed}: {SEED}={seed} has them again");
        breaks_of(seed);
    }
}

fn breaks_of(seed: u64) {
    let breaks = if thorough() { 1_000 / (RECORDED.len() as u32 + 1) } else { 12 };
    let node = head(Node::builder());
    let to = address(&node).parse().expect("an address");
    let (calm, broken) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let (until_calm, count) = (Arc::clone(&calm), Arc::clone(&broken));
    let (started, relay_at) = std::sync::mpsc::channel();
    let (join, joined) = tokio::sync::oneshot::channel::<()>();
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let breaking = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let relay = Relay::start(to).await;
            started.send(relay.address).expect("somebody waits");
            joined.await.expect("it joins");
            let mut draw = Draw::new(seed);
            for number in 0..breaks {
                // A half-open connection is noticed after 4 s, so only one break in a hundred is one.
                break_one(&relay, &mut draw, number % 100 == 5).await;
                count.fetch_add(1, Relaxed);
            }
            relay.change(None, Weather::Fair);
            until_calm.store(true, Relaxed);
            // Everything that passes until then passes through the relay.
            let _ = ended.await;
        });
    });
    let relay_at = relay_at.recv().expect("it starts");
    // The head's tensors go as they lie; those of the other host go by slots, as those of a GPU do.
    let other = Other::staging_at(&relay_at.to_string(), LANES);
    join.send(()).expect("it waits");
    talk(&node, &AtomicU32::new(0), || calm.load(Relaxed));
    assert_eq!(broken.load(Relaxed), breaks);
    other.end();
    drop(end);
    breaking.join().expect("it went well");
}

pub(crate) fn cases() -> Vec<Case> {
    // In its full length the test waits for ten half-open connections, and a thousand others.
    let deadline = Duration::from_secs(if thorough() { 400 } else { 60 });
    let cases = cases![broken_connections_lose_double_and_reorder_nothing];
    cases.into_iter().map(|case| case.within(deadline)).collect()
}
