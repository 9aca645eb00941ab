//! Process lifecycles: the processes that have exited, the watchers of actors, and the stage of this
//! process's own life.
//!
//! The links use it (is the peer still there?), the directory (what became of it?), the reader (go on?), and
//! the actors of this process, which it tells of a shutdown.
//!
//! **Invariants.** An exit is remembered for good and never taken back: a slot is given out again only after
//! its last process has ended (see [`ExitedProcesses`]). The flags of this process itself are set once.
//!
//! **Locks.** [`Watching`] has two of its own, taken one after the other, and sends to the node under one of
//! them. Everything else is atomic.
//!
//! **On a crash** of a peer the node reports it, and the crash is noted here before anything else is done
//! about it. **On cancellation** of a wait for a shutdown nothing is left behind.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::watch;

use super::exited::ExitedProcesses;
use super::watching::Watching;
use crate::ids::ProcessId;

/// See the module.
pub(crate) struct ProcessLifecycle {
    /// Processes that exited; other processes may get their slots.
    pub(super) exited: ExitedProcesses,
    /// The watchers of actors in this process.
    pub(crate) watching: Watching,
    /// See [`ProcessLifecycle::leaves_unread`].
    leaves_unread: AtomicBool,
    /// Whether a shutdown of the node has begun.
    stopping: watch::Sender<bool>,
    /// Whether the reader is to end.
    stopped: AtomicBool,
    /// Whether the process is about to end, and its actors with a policy for that live on elsewhere.
    leaving: AtomicBool,
    /// The process is to look dead: nothing that it does is visible any more.
    #[cfg(any(test, feature = "testing"))]
    abandoned: AtomicBool,
}

impl ProcessLifecycle {
    /// Makes the lifecycle of process `me`, which begins.
    pub(super) fn begin(me: ProcessId) -> Self {
        let exited = ExitedProcesses::new();
        // LEASE-4: memory of earlier processes of this slot may reach this one.
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

    /// Returns whether this process has given up a live peer. Messages from that peer, which their senders
    /// have counted, are then never read although no process died.
    pub(crate) fn leaves_unread(&self) -> bool {
        self.leaves_unread.load(Ordering::SeqCst)
    }

    /// Notes that a live peer was given up, with messages that it had sent.
    pub(super) fn leave_unread(&self) {
        self.leaves_unread.store(true, Ordering::SeqCst);
    }

    /// Notes that a shutdown of the node has begun, and wakes the callers of
    /// [`until_stopping`](Self::until_stopping).
    pub(crate) fn begin_stopping(&self) {
        self.stopping.send_replace(true);
    }

    /// Returns whether the actors of this process are to end.
    pub(crate) fn is_stopping(&self) -> bool {
        *self.stopping.borrow()
    }

    /// Resolves when a shutdown of the node has begun; at once if it already has.
    pub(super) fn until_stopping(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut stopping = self.stopping.subscribe();
        async move {
            // An error means that the transport has closed, and the process with it.
            let _ = stopping.wait_for(|stopping| *stopping).await;
        }
    }

    /// Notes that the process is about to end. Its actors that are restarted after failures live on
    /// elsewhere.
    pub(crate) fn begin_leaving(&self) {
        self.leaving.store(true, Ordering::Release);
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Acquire)
    }

    /// Tells the reader to end.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Makes everything that this process does from now on invisible.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn abandon(&self) {
        self.abandoned.store(true, Ordering::SeqCst);
    }

    #[cfg(any(test, feature = "testing"))]
    pub(super) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }
}
