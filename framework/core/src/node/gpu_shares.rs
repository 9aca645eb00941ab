//! The processes' use of the GPUs, for snapshots of the console. A thread of its own asks the watcher,
//! because a call into a driver that hangs does not return. A snapshot takes the latest answer and
//! asks for the next one, so the first snapshot of a node has none.

use std::collections::HashMap;
use std::fmt;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::console::{GpuShare, NodeSnapshot};
use super::watcher::{AskShares, watcher};
use crate::ids::DeviceId;

/// An older answer says nothing about the present.
const STALE: Duration = Duration::from_secs(10);

/// Each process's use of all GPUs, by its process id.
type Shares = HashMap<u32, GpuShare>;

/// See the module.
#[derive(Default)]
pub(crate) struct GpuShares {
    asking: OnceLock<SyncSender<()>>,
    latest: Arc<Mutex<Option<(Instant, Shares)>>>,
}

impl fmt::Debug for GpuShares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GpuShares").finish_non_exhaustive()
    }
}

impl GpuShares {
    /// Adds the known shares to a snapshot, and asks for new ones. If no process has memory on a GPU, nothing
    /// is asked.
    pub(crate) fn add_to(&self, snapshot: &mut NodeSnapshot) {
        if snapshot.pools.iter().any(|of| of.pool.device != DeviceId::HOST) {
            self.add(snapshot, || watcher().ask_shares());
        }
    }

    fn add(&self, snapshot: &mut NodeSnapshot, begin: fn() -> Option<AskShares>) {
        if let Some((at, shares)) = &*self.latest.lock()
            && at.elapsed() < STALE
        {
            // A process that has not answered may have ended, and its process id may belong to another.
            for of in snapshot.processes.iter_mut().filter(|of| of.metrics.is_some()) {
                of.gpu = shares.get(&of.pid).copied();
            }
        }
        let asking = self.asking.get_or_init(|| {
            let (asking, asked) = sync_channel(1);
            let latest = Arc::clone(&self.latest);
            let thread = thread::Builder::new().name("tp-nvml".to_owned());
            // Without a thread nobody answers, and nothing is known.
            let _ = thread.spawn(move || {
                let Some(mut ask) = begin() else { return };
                while asked.recv().is_ok() {
                    let shares = ask();
                    *latest.lock() = Some((Instant::now(), shares));
                }
            });
            asking
        });
        // Full: the question is pending already. Closed: nobody knows.
        let _ = asking.try_send(());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::console::sample;

    const SHARE: GpuShare = GpuShare { bytes: Some(5 << 20), busy: Some(40) };

    fn known() -> Option<AskShares> {
        Some(Box::new(|| HashMap::from([(101, SHARE)])))
    }

    #[test]
    fn a_look_has_the_latest_answer_for_those_who_are_there() {
        let shares = GpuShares::default();
        let mut snapshot = sample::snapshot(0, [1, 1]);
        shares.add(&mut snapshot, known);
        assert!(snapshot.processes.iter().all(|of| of.gpu.is_none()), "nothing was asked before");
        let until = Instant::now() + Duration::from_secs(60);
        while shares.latest.lock().is_none() {
            assert!(Instant::now() < until, "nobody asks");
            thread::yield_now();
        }
        shares.add(&mut snapshot, known);
        let of = |pid| snapshot.processes.iter().find(|of| of.pid == pid).unwrap().gpu;
        assert_eq!((of(100), of(101)), (None, Some(SHARE)));

        let mut snapshot = sample::snapshot(0, [1, 1]);
        snapshot.processes.iter_mut().for_each(|of| of.metrics = None);
        shares.add(&mut snapshot, known);
        assert!(snapshot.processes.iter().all(|of| of.gpu.is_none()), "they may be others by now");
    }

    #[test]
    fn nobody_is_asked_where_there_is_no_gpu() {
        let shares = GpuShares::default();
        shares.add_to(&mut sample::snapshot(0, [1, 1]));
        assert!(shares.asking.get().is_none());
    }

    #[test]
    fn without_the_library_nothing_is_known() {
        let shares = GpuShares::default();
        let mut snapshot = sample::snapshot(0, [1, 1]);
        for _ in 0..3 {
            shares.add(&mut snapshot, || None);
        }
        assert!(snapshot.processes.iter().all(|of| of.gpu.is_none()));
    }
}
