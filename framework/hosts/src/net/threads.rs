//! Threads for lanes, so that no message waits while the bytes of a tensor are encrypted, copied and sent.
//!
//! Used by [`Dial`](super::Dial) and [`Listener`](super::Listener). Each thread has a runtime of its own, and
//! a lane stays on one thread, with its socket, its TLS and its HTTP/2. The lanes of a connection are spread
//! over all threads.
//!
//! *When they are dropped*, the lanes end with their threads, which are joined: none of them uses memory
//! after that.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread::{self, JoinHandle};

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use crate::limits::MAX_LANES;

/// The threads of lanes; see the module.
#[derive(Debug)]
pub struct LaneThreads {
    threads: Vec<LaneThread>,
    next: AtomicUsize,
}

#[derive(Debug)]
struct LaneThread {
    runtime: Handle,
    /// Dropping it ends the thread.
    open: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl LaneThreads {
    /// Starts this many threads: 1 to [`MAX_LANES`].
    ///
    /// # Errors
    /// The system has no thread, or no descriptors for its runtime.
    pub fn start(count: u16) -> io::Result<Arc<Self>> {
        let threads =
            (0..count.clamp(1, MAX_LANES)).map(|_| LaneThread::start()).collect::<io::Result<_>>()?;
        Ok(Arc::new(LaneThreads { threads, next: AtomicUsize::new(0) }))
    }

    /// Returns the runtimes of all threads.
    pub(super) fn all(&self) -> impl Iterator<Item = &Handle> {
        self.threads.iter().map(|thread| &thread.runtime)
    }

    /// Returns the runtime for the next lane.
    pub(super) fn next(&self) -> &Handle {
        let at = self.next.fetch_add(1, Relaxed) % self.threads.len(); // there is at least one
        &self.threads[at].runtime
    }
}

impl LaneThread {
    fn start() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (open, closed) = oneshot::channel::<()>();
        let thread = thread::Builder::new().name("tp-lane".to_owned()).spawn(move || {
            // Nothing is ever sent: it resolves when the sender is dropped.
            let _ = runtime.block_on(closed);
        })?;
        Ok(LaneThread { runtime: handle, open: Some(open), thread: Some(thread) })
    }
}

impl Drop for LaneThreads {
    fn drop(&mut self) {
        // All are told before any is joined.
        self.threads.iter_mut().for_each(|thread| drop(thread.open.take()));
        let threads = self.threads.iter_mut().filter_map(|thread| thread.thread.take());
        // A lane that is being made may drop the last handle on its own thread.
        for thread in threads.filter(|thread| thread.thread().id() != thread::current().id()) {
            if thread.join().is_err() {
                tracing::error!(target: "tensorpost::hosts", "a thread of this host's lanes panicked");
            }
        }
    }
}
