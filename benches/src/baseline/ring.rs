//! The data ring between two threads that poll it: the least that a message between two processes can cost
//! here.

use std::hint::spin_loop;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use tensorpost_core::transport::ring::data::in_memory;
use tensorpost_core::transport::ring::{Consumer, Producer};
use tensorpost_core::transport::spin::{Spin, SpinStep};

use super::{MESSAGE, RING};
use crate::cores::pin;

/// Messages published at once in a stream, as a turn of the framework does.
const BATCH: u64 = 64;

/// Sends `count` messages there and back, one at a time.
///
/// # Panics
/// The ring is broken.
pub fn round_trips(count: u64) -> Duration {
    let (mut there, mut inbox) = in_memory(RING).expect("a valid capacity");
    let (mut back, mut replies) = in_memory(RING).expect("a valid capacity");
    let start = Barrier::new(2);
    thread::scope(|scope| {
        scope.spawn(|| {
            pin(1);
            let mut buffer = Vec::new();
            start.wait();
            for _ in 0..count {
                receive(&mut inbox, &mut buffer);
                inbox.publish_head();
                send(&mut back, &buffer);
                back.publish();
            }
        });
        pin(0);
        let (message, mut buffer) = ([1; MESSAGE], Vec::new());
        start.wait();
        let since = Instant::now();
        for _ in 0..count {
            send(&mut there, &message);
            there.publish();
            receive(&mut replies, &mut buffer);
            replies.publish_head();
        }
        since.elapsed()
    })
}

/// Sends `count` messages in one direction.
///
/// # Panics
/// The ring is broken.
pub fn one_way(count: u64) -> Duration {
    let (mut there, mut inbox) = in_memory(RING).expect("a valid capacity");
    let start = Barrier::new(2);
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            pin(1);
            let mut buffer = Vec::new();
            start.wait();
            for number in 1..=count {
                receive(&mut inbox, &mut buffer);
                if number % BATCH == 0 {
                    inbox.publish_head();
                }
            }
        });
        pin(0);
        let message = [1; MESSAGE];
        start.wait();
        let since = Instant::now();
        for number in 1..=count {
            send(&mut there, &message);
            if number % BATCH == 0 {
                there.publish();
            }
        }
        there.publish();
        reader.join().expect("the reader ends");
        since.elapsed()
    })
}

fn send(ring: &mut Producer, message: &[u8]) {
    loop {
        if let Ok(mut room) = ring.reserve(message.len()) {
            room.write(0, message);
            room.commit();
            return;
        }
        ring.publish();
        spin_loop();
    }
}

fn receive(ring: &mut Consumer, buffer: &mut Vec<u8>) {
    let mut spin: Spin = Spin::new();
    while ring.peek(buffer).expect("an intact ring").is_none() {
        ring.publish_head();
        match spin.idle() {
            SpinStep::Poll => spin_loop(),
            SpinStep::Yield | SpinStep::GiveWay | SpinStep::Park => thread::yield_now(),
        }
    }
    ring.consume();
}
