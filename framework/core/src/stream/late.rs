//! Clock writes that a device had no room for when they were due.
//!
//! About a thousand operations fit behind one that waits; after that, the CUDA driver blocks whoever submits
//! another. A handle that is dropped owes a clock write and must not block (LEASE-2), so with much ahead of
//! it, the write is put off. Nothing is lost: the write that is made later has the value of the last ticket
//! that was given out, and so stands for all of them. It is made here when the stream has moved on, or by the
//! stream itself before it waits for anything else: a write must stay in front of every later wait of its
//! stream, or two streams could wait for each other.
//!
//! The thread is there only while something is late. It keeps the streams, so one that is dropped meanwhile
//! writes first.
//!
//! Used by streams, which put themselves here, and at the end of the process, which waits for what is late.
//!
//! **Locks.** The list may be locked under a stream's state; no state is locked under the list.
//!
//! **On a crash** of this process the node releases its clocks. **On cancellation** nothing happens: a write
//! that was put here is made.
//!
//! The driver's thousand includes kernels that users launch, which nobody here sees: 500 of them behind one
//! wait can still make a drop wait.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::Stream;
use crate::clock::Ticket;
use crate::os::vital;

/// Longest time between two looks, in case the stream that is watched is not the one that moves on.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

#[derive(Debug, Default)]
pub(super) struct LateWriter {
    state: Mutex<State>,
    /// Nothing is late any more.
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    streams: Vec<Stream>,
    runs: bool,
}

impl LateWriter {
    /// Sees to it that the stream makes the write that it owes; false where that is not possible. Does not
    /// block.
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

    /// Waits until no write is late any more; whether any was.
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
            // Not under the lock: a stream that is locked may be about to put itself here. Nobody puts one
            // here again that is still late.
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
            // Passed or timed out, it is time to look again.
            let _ = stream.domain().wait(&moved, Some(Instant::now() + LOOK_AGAIN));
        }
    }
}

#[cfg(test)]
mod tests;
