//! A thread that answers watchers from outside: the console's, and that of each live page.
//!
//! The thread waits for its listener, for its connections and for its [`End`]. Its owner asks for the end by
//! dropping [`Serving`]. Each of the two protocols keeps its own connections.
//!
//! **On a crash** of the node the thread and its sockets are gone with it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::PollFd;

use super::wait;
use crate::os::EventFd;

/// Connections taken before any is answered. The live page has room for more, so that none is dropped before
/// it was read.
const ACCEPT_TURN: usize = 16;
/// How long no connection is taken after the system had no descriptor for one.
pub const NO_DESCRIPTOR: Duration = Duration::from_secs(1);

/// The thread. Dropping it ends it.
pub struct Serving {
    end: End,
    done: Mutex<Receiver<()>>,
}

/// The order to end. From then on it is readable.
#[derive(Clone)]
pub struct End(Arc<(EventFd, AtomicBool)>);

impl End {
    /// Returns whether the owner has asked for the end.
    pub fn is_asked_for(&self) -> bool {
        self.0.1.load(Ordering::Acquire)
    }
}

impl AsFd for End {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.0.as_fd()
    }
}

impl Serving {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system refuses a descriptor or a thread.
    pub fn start(name: &str, serve: impl FnOnce(End) + Send + 'static) -> io::Result<Self> {
        let end = End(Arc::new((EventFd::create()?, AtomicBool::new(false))));
        let (done_sender, done) = sync_channel(0);
        let order = end.clone();
        std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            let _done = done_sender;
            serve(order);
        })?;
        Ok(Serving { end, done: Mutex::new(done) })
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let (wake, end) = &*self.end.0;
        end.store(true, Ordering::Release);
        // A full doorbell is rung already; nothing else can fail on an eventfd of our own.
        let _ = wake.ring();
        // Disconnected: the thread has ended. Timeout: a descriptor of a watcher closes slowly, or the thread
        // waits for the supervisor, which is ending too. Neither must hold up the node.
        let _ = self.done.lock().recv_timeout(Duration::from_secs(1));
    }
}

/// Waits until one of these is ready, at most until `until`. Returns for each whether it is.
///
/// # Errors
/// The system cannot wait for them.
pub fn ready(mut fds: Vec<PollFd<'_>>, until: Option<Instant>) -> io::Result<Vec<bool>> {
    wait::poll(&mut fds, until.map(|until| until.saturating_duration_since(Instant::now())))?;
    Ok(fds.iter().map(|fd| !fd.revents().is_empty()).collect())
}

/// Calls `take`, which takes one connection, until none waits or it was this thread's turn for long enough.
///
/// # Errors
/// The system has no descriptor for a connection.
pub fn accept(mut take: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    for _ in 0..ACCEPT_TURN {
        match take().map_err(|error| (error.kind(), error)) {
            Ok(()) | Err((io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted, _)) => {}
            Err((io::ErrorKind::WouldBlock, _)) => break,
            Err((_, error)) => return Err(error),
        }
    }
    Ok(())
}
