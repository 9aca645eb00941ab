//! Waits for changes of which no event tells a test.

use std::fmt::Display;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{self, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tensorpost::node::Node;
use tensorpost::prelude::*;
use tensorpost_core::lease::Pool;

/// Looks until `seen`, and panics with `what` when it does not come.
pub fn until(what: &str, mut seen: impl FnMut() -> bool) {
    until_ok(what, || if seen() { Ok(()) } else { Err("it is not so") });
}

/// Looks until the result is `Ok`, and panics with `what` and the last error when that does not come.
pub fn until_ok<E: Display>(what: &str, mut look: impl FnMut() -> Result<(), E>) {
    // Long enough for a machine that does much else: a test that is right never waits for so long.
    let deadline = Instant::now() + Duration::from_secs(40);
    while let Err(error) = look() {
        assert!(Instant::now() < deadline, "it did not come about that {what}: {error}");
        std::thread::sleep(Duration::from_micros(500));
    }
}

/// Stops a process (`SIGSTOP`), and waits until all of its threads stand still. One thread takes the signal.
/// Where processors are few, the other threads go on and answer requests until that thread has had its turn.
pub fn stop(pid: u32) {
    let process = Pid::from_raw(pid.cast_signed()).expect("a process");
    kill_process(process, Signal::STOP).expect("it lives");
    until("all of it has stopped", || has_stopped(pid));
}

/// Returns whether each thread of a process stands still because of a signal.
pub fn has_stopped(pid: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it lives");
    threads.into_iter().all(|thread| {
        // A thread that has ended meanwhile is looked for again.
        let Ok(thread) = thread else { return false };
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        // The state is behind the name, which is in brackets.
        stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
    })
}

/// Waits until all memory of the node's own pool is free.
pub fn until_free(node: &Node) {
    until_allocations(node, 0);
}

/// Waits until `count` allocations of the node's own pool are held.
pub fn until_allocations(node: &Node, count: usize) {
    let transport = node.transport();
    let stream = node.host_stream().expect("a stream to look at the pool with");
    until_allocations_of(stream.pool(), count, || {
        // A transport takes returned leases into its lease table only when it has something else to do. This
        // call is such an occasion.
        transport.poll(&mut Default::default());
    });
}

/// Waits until `count` allocations of a pool are held, and calls `drain` before each look.
pub fn until_allocations_of(pool: &Pool, count: usize, drain: impl Fn()) {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        drain();
        let stats = pool.stats();
        if stats.allocations == count {
            return;
        }
        assert!(Instant::now() < deadline, "{count} allocations expected: {stats:?}. {}", pool.holders());
        std::thread::sleep(Duration::from_micros(500));
    }
}

/// Returns a sequence of numbers as a tensor.
pub fn numbers(stream: &DeviceStream, from: u32, count: usize) -> Tensor {
    let numbers: Vec<u32> = (from..).take(count).collect();
    stream.from_slice(&[count], &numbers).expect("room for a few numbers").freeze()
}

/// Sends with [`Node::block_on`], and panics where that fails.
pub fn deliver<M: GpuMessage>(node: &Node, address: &Address<M>, message: M) {
    node.block_on(address.send(message)).expect("it is accepted");
}

/// Asks with [`Node::block_on`], and panics where that fails.
pub fn ask<M: GpuMessage>(node: &Node, address: &Address<M>, message: M) -> <M as GpuMessage>::Reply {
    node.block_on(address.ask(message)).expect("it is answered")
}

/// Runs a future as any crate's `block_on` does.
pub fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut task::Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}
