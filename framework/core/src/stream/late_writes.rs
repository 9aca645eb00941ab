//! Clock writes that a device had no room for when they were due.
//!
//! About a thousand operations fit behind one that waits; after that, the CUDA driver blocks the thread that
//! submits another. A dropped handle owes a clock write and must not block (LEASE-2), so the write is put off
//! where much is ahead of it. Nothing is lost: the later write has the value of the last ticket that was
//! given out, and so stands for all of them. It is made here when the stream has moved on, or by the stream
//! itself before it waits for anything else. It must stay in front of every later wait of its stream, or two
//! streams could wait for each other.
//!
//! The thread lives only while a write is late. It keeps the streams alive, so a stream that is dropped
//! meanwhile makes its write first.
//!
//! Streams put themselves here, and the end of the process waits for late writes.
//!
//! **Locks.** The list may be locked under a stream's state; no state is locked under the list.
//!
//! **On a crash** of this process the node releases its clocks. **On cancellation** nothing happens: a write
//! that was left here is made.
//!
//! The driver's thousand operations include kernels that users launch, which the framework does not see: 500
//! of them behind one wait can still make a drop wait.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Stream;
use crate::clock::Ticket;
use crate::os::lock::{Condvar, Mutex};
use crate::os::vital;

/// The longest time between two looks, in case another stream than the watched one moves on.
const OTHERS_CHECK_INTERVAL: Duration = Duration::from_millis(1);

#[derive(Debug, Default)]
pub(super) struct LateWriter {
    state: Mutex<State>,
    /// Signalled when no write is late any more.
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    streams: Vec<Stream>,
    runs: bool,
}

impl LateWriter {
    /// Ensures that the stream makes the write that it owes. Returns false where that is not possible. Does
    /// not block.
    pub(super) fn put(self: &Arc<Self>, stream: &Stream) -> bool {
        let mut state = self.state.lock();
        if !state.runs {
            let this = Arc::clone(self);
            let thread = vital::spawn("tp-late-writes", move || this.run());
            if let Err(error) = thread {
                tracing::warn!(%error, "a clock write may block: there is no thread to put it off to");
                return false;
            }
            state.runs = true;
        }
        state.streams.push(stream.clone());
        true
    }

    /// Waits until no write is late any more. Returns whether any was.
    pub(super) fn await_all(&self) -> bool {
        let mut state = self.state.lock();
        let were = state.runs;
        while state.runs {
            self.ended.wait(&mut state);
        }
        were
    }

    fn run(&self) {
        loop {
            // Look at the streams without holding the list's lock: a stream with its state locked may be
            // about to put itself here. A stream that is still late is not put here a second time.
            let streams = std::mem::take(&mut self.state.lock().streams);
            let late: Vec<Stream> = streams.iter().filter(|stream| !stream.write_late()).cloned().collect();
            let mut state = self.state.lock();
            state.streams.extend(late);
            if state.streams.is_empty() {
                state.runs = false;
                self.ended.notify_all();
                return;
            }
            let next = state.streams.first().and_then(|stream| Some((stream.clone(), stream.now()?)));
            drop(state);
            let Some((stream, now)) = next else { continue };
            let moved = Ticket { value: now.value.wrapping_add(1), ..now };
            // Whether it passed or timed out, it is time to look again.
            let _ = stream.domain().wait(&moved, Some(Instant::now() + OTHERS_CHECK_INTERVAL));
        }
    }
}

#[cfg(test)]
mod tests;
