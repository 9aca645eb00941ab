//! Lives and their ends: which processes have exited, who watches which actor, and how far this process is
//! itself.
//!
//! Used by the links (is the peer still there?), by the directory (what became of it?), by the reader (go
//! on?), and by the actors of this process, which are told of a shutdown.
//!
//! **Invariants.** An exit is remembered for good and never taken back: a slot's next life begins only after
//! the last has ended (see [`ExitedProcesses`]). What is set here of this process itself is set once.
//!
//! **Locks.** [`Watching`] has two of its own, taken one after the other, and sends to the node under one of
//! them. Everything else is atomic.
//!
//! **On a crash** of a peer the node says so, and it is noted here before anything else is done about it.
//! **On cancellation** of who waits for a shutdown nothing is left behind.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::watch;

use super::exited::ExitedProcesses;
use super::watching::Watching;
use crate::ids::ProcessId;

/// See the module.
pub(super) struct ProcessLifecycle {
    /// Processes that exited; their slots may come back in another life.
    pub(super) exited: ExitedProcesses,
    /// Who in this process watches which actor.
    pub(super) watching: Watching,
    /// See [`ProcessLifecycle::leaves_unread`].
    leaves_unread: AtomicBool,
    /// Whether a shutdown of the node has begun.
    stopping: watch::Sender<bool>,
    /// Whether the reader is to end.
    stopped: AtomicBool,
    /// Whether the process is about to end, and its actors with a policy for that live on elsewhere.
    leaving: AtomicBool,
    /// Its process is to be taken for dead: nothing that it does is seen any more.
    #[cfg(any(test, feature = "testing"))]
    abandoned: AtomicBool,
}

impl ProcessLifecycle {
    /// Of process `me`, which begins to live.
    pub(super) fn begin(me: ProcessId) -> Self {
        let exited = ExitedProcesses::new();
        // LEASE-4: what the earlier lives of this process made may come to it.
        exited.note_before(me);
        ProcessLifecycle {
            exited,
            watching: Watching::default(),
            leaves_unread: AtomicBool::new(false),
            stopping: watch::Sender::new(false),
            stopped: AtomicBool::new(false),
            leaving: AtomicBool::new(false),
            #[cfg(any(test, feature = "testing"))]
            abandoned: AtomicBool::new(false),
        }
    }

    /// Returns whether messages to it, which their senders have counted, will never be read though nobody has
    /// died: it has given up a peer.
    pub(super) fn leaves_unread(&self) -> bool {
        self.leaves_unread.load(Ordering::SeqCst)
    }

    /// A living peer was given up, with what it had sent.
    pub(super) fn leave_unread(&self) {
        self.leaves_unread.store(true, Ordering::SeqCst);
    }

    /// A shutdown of the node has begun: whoever waits in [`until_stopping`](Self::until_stopping) is told.
    pub(super) fn begin_stopping(&self) {
        self.stopping.send_replace(true);
    }

    /// Returns whether what runs here is to end.
    pub(super) fn is_stopping(&self) -> bool {
        *self.stopping.borrow()
    }

    /// Resolves when a shutdown of the node has begun, at once if that was before.
    pub(super) fn until_stopping(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut stopping = self.stopping.subscribe();
        async move {
            // An error is a transport that closed, and with it the process.
            let _ = stopping.wait_for(|stopping| *stopping).await;
        }
    }

    /// The process is about to end, and its actors that come back after failures live on elsewhere.
    pub(super) fn begin_leaving(&self) {
        self.leaving.store(true, Ordering::Release);
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Acquire)
    }

    /// The reader is to end.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// From now on nothing that this process does is to be seen.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn abandon(&self) {
        self.abandoned.store(true, Ordering::SeqCst);
    }

    #[cfg(any(test, feature = "testing"))]
    pub(super) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }
}
