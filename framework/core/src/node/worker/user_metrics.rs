//! Tells the node the metrics of a worker's user code: some time after a change, when the node asks, and at
//! the end.
//!
//! The control thread does this. An idle worker has nothing to tell and is not woken. While the socket is
//! full of other messages nothing is sent, and updates add up meanwhile.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::uplink::Uplink;
use crate::node::control::Up;
use crate::observe::metrics::user::{TELL_EVERY, WorkerRecorder};

/// The metrics that are not told yet. Clones share them.
#[derive(Clone)]
pub(super) struct UserMetrics {
    recorder: WorkerRecorder,
    /// When they are due, if there are any. The lock is held while they are sent, so that updates of two
    /// threads stay in order.
    at: Arc<Mutex<Option<Instant>>>,
}

impl UserMetrics {
    /// Makes the recorder of this process. A program that has installed one of its own keeps it, and then
    /// nothing is told.
    pub(super) fn install(uplink: &Arc<Uplink>) -> Self {
        let of_recorder = Arc::downgrade(uplink);
        let recorder = WorkerRecorder::new(move || {
            if let Some(uplink) = of_recorder.upgrade() {
                // A full doorbell is rung already; nothing else can fail on an eventfd of our own.
                let _ = uplink.wake().ring();
            }
        });
        if metrics::set_global_recorder(recorder.clone()).is_err() {
            tracing::info!(
                "this program installs a recorder of metrics before a worker is taken over, so this worker keeps its own \
                 metrics; install it in `main` to have all in one"
            );
        }
        UserMetrics { recorder, at: Arc::default() }
    }

    /// Sends the metrics that are due, and returns when the next ones are. For the control thread, before it
    /// waits.
    pub(super) fn due(&self, uplink: &Uplink) -> Option<Duration> {
        if !self.recorder.is_dirty() {
            return None;
        }
        let now = Instant::now();
        let at = *self.at.lock().get_or_insert(now + TELL_EVERY);
        if now < at {
            return Some(at - now);
        }
        if uplink.has_room_for_metrics() {
            self.tell(uplink);
            return None;
        }
        self.at.lock().replace(now + TELL_EVERY);
        Some(TELL_EVERY)
    }

    /// Sends the metrics now.
    pub(super) fn tell(&self, uplink: &Uplink) {
        let mut at = self.at.lock();
        *at = None;
        let (updates, dropped) = self.recorder.take();
        if !updates.is_empty() || dropped > 0 {
            // When the node is gone, so is this process in a moment.
            let _ = uplink.send(&Up::UserMetrics { updates, dropped }, Vec::new());
        }
    }
}
