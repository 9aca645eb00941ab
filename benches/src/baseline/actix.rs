//! actix in one process: a message between two actors on one thread, and on two.

use std::time::{Duration, Instant};

use actix::{Actor, Addr, Arbiter, Context, Handler, Message};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use super::MESSAGE;
use crate::cores::pin;

/// How the two threads wait for work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// Both actors on one thread.
    One,
    /// Two threads, which sleep when they are idle: actix as it is.
    Two,
    /// Two threads that never sleep: a task on each yields in a loop.
    TwoBusy,
}

#[derive(Message)]
#[rtype(result = "()")]
struct Raw(#[expect(dead_code, reason = "the bytes are carried, not looked at")] [u8; MESSAGE]);

#[derive(Message)]
#[rtype(result = "()")]
struct Begin {
    peer: Addr<Peer>,
    count: u64,
    back: bool,
}

/// Sends every message back while there are some left to count.
struct Peer {
    peer: Option<Addr<Peer>>,
    left: u64,
    since: Instant,
    done: Option<UnboundedSender<Duration>>,
}

impl Actor for Peer {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(1 << 16);
    }
}

impl Handler<Begin> for Peer {
    type Result = ();

    fn handle(&mut self, begin: Begin, _: &mut Context<Self>) {
        self.left = begin.count;
        self.since = Instant::now();
        if begin.back {
            self.peer = Some(begin.peer.clone());
            begin.peer.do_send(Raw([1; MESSAGE]));
        }
    }
}

impl Handler<Raw> for Peer {
    type Result = ();

    fn handle(&mut self, message: Raw, _: &mut Context<Self>) {
        if let Some(done) = &self.done {
            self.left -= 1;
            if self.left == 0 {
                // The receiver is this function's caller.
                let _ = done.send(self.since.elapsed());
                return;
            }
        }
        if let Some(peer) = &self.peer {
            peer.do_send(message);
        }
    }
}

fn actor(done: Option<UnboundedSender<Duration>>, peer: Option<Addr<Peer>>) -> Peer {
    Peer { peer, left: 0, since: Instant::now(), done }
}

async fn never_sleep() {
    loop {
        tokio::task::yield_now().await;
    }
}

/// Sends `count` messages there and back, one at a time.
///
/// # Panics
/// actix cannot start a thread.
pub fn round_trips(count: u64, threads: Threads) -> Duration {
    actix::System::new().block_on(async move {
        let (done, mut result) = unbounded_channel();
        let (first, second) = (Arbiter::new(), Arbiter::new());
        first.spawn_fn(|| pin(0));
        second.spawn_fn(|| pin(1));
        if threads == Threads::TwoBusy {
            first.spawn(never_sleep());
            second.spawn(never_sleep());
        }
        let pinger = Peer::start_in_arbiter(&first.handle(), |_| actor(Some(done), None));
        let peer = pinger.clone();
        let there = if threads == Threads::One { first.handle() } else { second.handle() };
        let ponger = Peer::start_in_arbiter(&there, |_| actor(None, Some(peer)));
        pinger.do_send(Begin { peer: ponger, count, back: true });
        let time = result.recv().await.expect("the pinger answers");
        first.stop();
        second.stop();
        time
    })
}

/// Sends `count` messages in one direction between two threads; the sender waits where the mailbox is full.
///
/// # Panics
/// actix cannot start a thread.
pub fn one_way(count: u64) -> Duration {
    actix::System::new().block_on(async move {
        let (done, mut result) = unbounded_channel();
        let there = Arbiter::new();
        there.spawn_fn(|| pin(1));
        let sink = Peer::start_in_arbiter(&there.handle(), |_| actor(Some(done), None));
        sink.send(Begin { peer: sink.clone(), count, back: false }).await.expect("the sink runs");
        let sender = Arbiter::new();
        sender.spawn_fn(|| pin(0));
        sender.spawn(async move {
            for _ in 0..count {
                while sink.try_send(Raw([1; MESSAGE])).is_err() {
                    tokio::task::yield_now().await;
                }
            }
        });
        let time = result.recv().await.expect("the sink answers");
        there.stop();
        sender.stop();
        time
    })
}
