//! The shortest way between two actors that a ring and actix allow. On each of two threads there is an actor,
//! and a task that reads the ring, hands each message to the actor, and spins as the framework's reader does.
//! There are no checks, no encoding, no credits, and no leases.

use std::hint::spin_loop;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use actix::{Actor, Addr, Context, Handler, Message, System};
use tensorpost_core::transport::ring::data::in_memory;
use tensorpost_core::transport::ring::{Consumer, Producer};
use tensorpost_core::transport::spin::{Spin, SpinStep};
use tokio::sync::oneshot;

use super::{MESSAGE, RING};
use crate::cores::pin;

/// Messages that the reader takes before it lets the actor run.
const BATCH: usize = 128;

#[derive(Message)]
#[rtype(result = "()")]
struct Raw([u8; MESSAGE]);

#[derive(Message)]
#[rtype(result = "()")]
struct Begin;

/// Sends every message on into its ring, and counts.
struct Relay {
    out: Option<Producer>,
    left: u64,
    since: Instant,
    done: Option<oneshot::Sender<Duration>>,
}

impl Actor for Relay {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(1 << 16);
    }
}

impl Relay {
    fn post(&mut self, bytes: &[u8; MESSAGE]) {
        let Some(out) = &mut self.out else { return };
        let mut room = out.reserve(MESSAGE).expect("one message at a time fits");
        room.write(0, bytes);
        room.commit();
        out.publish();
    }
}

impl Handler<Begin> for Relay {
    type Result = ();

    fn handle(&mut self, _: Begin, _: &mut Context<Self>) {
        self.since = Instant::now();
        self.post(&[1; MESSAGE]);
    }
}

impl Handler<Raw> for Relay {
    type Result = ();

    fn handle(&mut self, Raw(bytes): Raw, _: &mut Context<Self>) {
        self.left -= 1;
        if self.left == 0
            && let Some(done) = self.done.take()
        {
            // The reader of this thread waits for it.
            let _ = done.send(self.since.elapsed());
        }
        if self.left > 0 || self.done.is_none() {
            self.post(&bytes);
        }
    }
}

async fn read(mut ring: Consumer, actor: Addr<Relay>, mut done: oneshot::Receiver<Duration>) -> Duration {
    let mut buffer = Vec::new();
    let mut spin: Spin = Spin::new();
    loop {
        let mut any = false;
        for _ in 0..BATCH {
            if ring.peek(&mut buffer).expect("an intact ring").is_none() {
                break;
            }
            if let Ok(bytes) = <[u8; MESSAGE]>::try_from(buffer.as_slice()) {
                actor.do_send(Raw(bytes));
            }
            ring.consume();
            any = true;
        }
        if any {
            ring.publish_head();
            spin.found();
            tokio::task::yield_now().await;
        } else {
            match spin.idle() {
                SpinStep::Poll => spin_loop(),
                SpinStep::Yield | SpinStep::GiveWay | SpinStep::Park => tokio::task::yield_now().await,
            }
        }
        if let Ok(time) = done.try_recv() {
            return time;
        }
    }
}

/// Sends `count` messages there and back, one at a time.
///
/// # Panics
/// The ring is broken.
pub fn round_trips(count: u64) -> Duration {
    let (there, inbox) = in_memory(RING).expect("a valid capacity");
    let (back, replies) = in_memory(RING).expect("a valid capacity");
    let start = Barrier::new(2);
    let run = |out, ring, begins: bool| {
        pin(usize::from(!begins));
        System::new().block_on(async {
            let (done, result) = oneshot::channel();
            let relay = Relay { out: Some(out), left: count, since: Instant::now(), done: Some(done) };
            let actor = relay.start();
            start.wait();
            if begins {
                actor.do_send(Begin);
            }
            read(ring, actor, result).await
        })
    };
    thread::scope(|scope| {
        // The answering side sends the last message before it ends, the beginning side does not.
        scope.spawn(|| run(back, inbox, false));
        run(there, replies, true)
    })
}

/// Sends `count` messages in one direction, published in batches.
///
/// # Panics
/// The ring is broken.
pub fn one_way(count: u64) -> Duration {
    let (mut there, inbox) = in_memory(RING).expect("a valid capacity");
    let start = Barrier::new(2);
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            pin(1);
            System::new().block_on(async {
                let (done, result) = oneshot::channel();
                let relay = Relay { out: None, left: count, since: Instant::now(), done: Some(done) };
                let actor = relay.start();
                start.wait();
                read(inbox, actor, result).await
            })
        });
        pin(0);
        start.wait();
        let since = Instant::now();
        for number in 1..=count {
            loop {
                if let Ok(mut room) = there.reserve(MESSAGE) {
                    room.write(0, &[1; MESSAGE]);
                    room.commit();
                    break;
                }
                there.publish();
                spin_loop();
            }
            if number % 64 == 0 {
                there.publish();
            }
        }
        there.publish();
        reader.join().expect("the reader ends");
        since.elapsed()
    })
}
