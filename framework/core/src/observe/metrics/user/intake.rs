//! The node's side: gives the workers' updates to the recorder of the program.
//!
//! A recorder is the program's code and may take its time, so a thread of its own calls it. Updates that find
//! no room in the queue to that thread are dropped and counted. A request for metrics empties the queue too,
//! so that the recorder has all updates that the answers are about.
//!
//! **Locks.** `known` is held while the recorder is called; inside it `queue`, for a moment. The supervisor
//! takes `queue` alone. **On a panic** of the recorder the thread logs it and ends; the node goes on.

use std::collections::{HashMap, HashSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use metrics::{Key, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use parking_lot::Mutex;

use super::{Change, DROPPED, Kind, Update};
use crate::limits::{
    MAX_METRIC_SAMPLES, MAX_METRIC_SERIES, MAX_METRIC_TEXT, MAX_METRIC_UPDATES, MAX_NODE_METRIC_SERIES,
    MAX_WORKER_METRIC_VALUES,
};
use crate::observe::text::shown;

/// See the module. Dropping it lets the recorder take the waiting updates, for at most a second, in case it
/// is stuck.
pub(crate) struct Intake {
    waiting: Arc<PendingUpdates>,
    /// Wakes the thread. `None` from the drop on, which ends the thread.
    bell: Option<SyncSender<()>>,
    done: Receiver<()>,
}

/// Updates that have arrived and that the recorder has not got.
#[derive(Default)]
pub(crate) struct PendingUpdates {
    queue: Mutex<Queue>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Queue {
    told: VecDeque<Told>,
    updates: usize,
}

/// The updates that a worker sent at once.
struct Told {
    worker: Arc<str>,
    updates: Vec<Update>,
    dropped: u64,
}

/// The series that the recorder has.
#[derive(Default)]
struct Known {
    of: HashMap<Arc<str>, OfWorker>,
    count: usize,
    /// The metrics that were described.
    described: HashSet<(Kind, String)>,
}

#[derive(Default)]
struct OfWorker {
    series: HashSet<Key>,
    /// Whether the log has said that updates of this worker were dropped.
    complained: bool,
}

impl Intake {
    /// Starts the thread.
    pub(crate) fn start() -> std::io::Result<Self> {
        let (bell, rung) = sync_channel(1);
        let (done_sender, done) = sync_channel::<()>(0);
        let waiting = Arc::<PendingUpdates>::default();
        let of_thread = Arc::clone(&waiting);
        std::thread::Builder::new().name("tp-metrics".to_owned()).spawn(move || {
            let _done = done_sender;
            let give = || {
                rung.iter().for_each(|()| of_thread.give());
                of_thread.give();
            };
            if catch_unwind(AssertUnwindSafe(give)).is_err() {
                tracing::error!(target: "tensorpost::node", "the recorder panicked: it gets no more metrics of workers");
            }
        })?;
        Ok(Intake { waiting, bell: Some(bell), done })
    }

    /// Returns the queue, for a caller that wants the recorder to have all that has arrived.
    pub(crate) fn waiting(&self) -> Arc<PendingUpdates> {
        Arc::clone(&self.waiting)
    }

    /// Takes a worker's updates. Never waits.
    pub(crate) fn put(&self, worker: &Arc<str>, mut updates: Vec<Update>, mut dropped: u64) {
        let mut queue = self.waiting.queue.lock();
        if queue.updates + updates.len() > MAX_METRIC_UPDATES {
            dropped = dropped.saturating_add(updates.len() as u64);
            updates.clear();
        }
        // A count of dropped updates alone needs no new entry, so there are no more entries than updates, and
        // one for each worker.
        if updates.is_empty()
            && let Some(last) = queue.told.iter_mut().rev().find(|told| told.worker == *worker)
        {
            last.dropped = last.dropped.saturating_add(dropped);
            return;
        }
        queue.updates += updates.len();
        queue.told.push_back(Told { worker: Arc::clone(worker), updates, dropped });
        drop(queue);
        if let Some(bell) = &self.bell {
            // A bell that is rung already will do.
            let _ = bell.try_send(());
        }
    }
}

impl Drop for Intake {
    fn drop(&mut self) {
        self.bell = None;
        // Disconnected: the thread is done. Timeout: the recorder is stuck, which must not hold up the node.
        let _: Result<(), RecvTimeoutError> = self.done.recv_timeout(Duration::from_secs(1));
    }
}

impl PendingUpdates {
    /// Gives the recorder all waiting updates, on this thread.
    pub(crate) fn give(&self) {
        let mut known = self.known.lock();
        loop {
            let told = {
                let mut queue = self.queue.lock();
                let Some(told) = queue.told.pop_front() else { return };
                queue.updates -= told.updates.len();
                told
            };
            known.apply(told);
        }
    }
}

impl Known {
    fn apply(&mut self, Told { worker, updates, mut dropped }: Told) {
        let mut values = 0;
        for update in updates {
            let taken = match update.key(&worker) {
                Ok(_) if matches!(update.change, Change::Description { .. }) => self.describe(update),
                Ok(key) if self.may_have(&worker, &key) => record(&key, update.change, &mut values),
                Ok(_) => Err("there are as many series of metrics of workers as may be"),
                Err(why) => Err(why),
            };
            if let Err(why) = taken {
                dropped = dropped.saturating_add(1);
                self.complain(&worker, why);
            }
        }
        if dropped > 0 {
            counter!(DROPPED, "worker" => worker.to_string()).increment(dropped);
        }
    }

    /// Gives the recorder a description, unless it has one of that metric.
    fn describe(&mut self, update: Update) -> Result<(), &'static str> {
        let Update { name, change: Change::Description { kind, unit, text }, .. } = update else {
            return Ok(());
        };
        if text.len() > MAX_METRIC_TEXT {
            return Err("a description has more than 1024 bytes");
        }
        if self.described.len() >= MAX_NODE_METRIC_SERIES {
            return Err("there are as many descriptions of metrics as may be");
        }
        if !self.described.insert((kind, name.clone())) {
            return Ok(());
        }
        let text = shown(text, MAX_METRIC_TEXT);
        match (kind, unit.and_then(|unit| Unit::from_string(&unit))) {
            (Kind::Counter, Some(unit)) => describe_counter!(name, unit, text),
            (Kind::Counter, None) => describe_counter!(name, text),
            (Kind::Gauge, Some(unit)) => describe_gauge!(name, unit, text),
            (Kind::Gauge, None) => describe_gauge!(name, text),
            (Kind::Histogram, Some(unit)) => describe_histogram!(name, unit, text),
            (Kind::Histogram, None) => describe_histogram!(name, text),
        }
        Ok(())
    }

    /// Returns whether there is room for a series, counted over all lives of a worker.
    fn may_have(&mut self, worker: &Arc<str>, key: &Key) -> bool {
        let of = self.of.entry(Arc::clone(worker)).or_default();
        if of.series.contains(key) {
            return true;
        }
        let room = of.series.len() < MAX_METRIC_SERIES && self.count < MAX_NODE_METRIC_SERIES;
        if room {
            of.series.insert(key.clone());
            self.count += 1;
        }
        room
    }

    fn complain(&mut self, worker: &Arc<str>, why: &str) {
        let of = self.of.entry(Arc::clone(worker)).or_default();
        if !std::mem::replace(&mut of.complained, true) {
            tracing::warn!(
                target: "tensorpost::node",
                worker = &**worker,
                why,
                "a metric of a worker was dropped; what else is, is counted in {DROPPED} and not said again"
            );
        }
    }
}

/// Gives a change to the recorder. `values` counts the histogram values among the updates that a worker sent
/// at once.
fn record(key: &Key, change: Change, values: &mut usize) -> Result<(), &'static str> {
    // The macros take a name and labels; cloning the key is cheap.
    let (name, labels) = key.clone().into_parts();
    let name = name.into_inner();
    match change {
        Change::Counter { added, at_least } => {
            let counter = counter!(name, labels);
            if at_least > 0 {
                counter.absolute(at_least);
            }
            counter.increment(added);
        }
        Change::Gauge(value) => gauge!(name, labels).set(value),
        Change::Description { .. } => {}
        Change::Histogram(samples) => {
            *values += samples.len();
            // An honest worker's sum never wraps, so it saturates.
            let count = samples.iter().fold(0_u64, |sum, (_, count)| sum.saturating_add(*count));
            if *values > MAX_WORKER_METRIC_VALUES || count > MAX_METRIC_SAMPLES {
                return Err("a histogram has more values than can be told");
            }
            let histogram = histogram!(name, labels);
            for (value, count) in samples {
                histogram.record_many(value, usize::try_from(count).unwrap_or(usize::MAX));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::tests::update;
    use super::*;
    use crate::testing::recorder::Kept;

    fn told(worker: &str, updates: Vec<Update>) -> Told {
        Told { worker: worker.into(), updates, dropped: 0 }
    }

    #[test]
    fn what_lives_of_a_worker_add_goes_on_from_what_the_recorder_has() {
        let (kept, mut known) = (Kept::default(), Known::default());
        metrics::with_local_recorder(&kept, || {
            for _ in 0..3 {
                known.apply(told("detect", vec![update("frames", &[("kind", "big")])]));
            }
        });
        assert_eq!(kept.seen()["frames detect.0/detect/big"], 3.0);
    }

    // MBX-2, WIRE-1.
    #[test]
    fn a_worker_that_keeps_to_no_bound_has_no_more_series_than_others() {
        let (kept, mut known) = (Kept::default(), Known::default());
        metrics::with_local_recorder(&kept, || {
            for life in 0..3 {
                let series = (0..MAX_METRIC_SERIES)
                    .map(|number| update("frames", &[("number", &format!("{life}.{number}"))]));
                known.apply(told("evil", series.collect()));
            }
            known.apply(told("evil", vec![update("no name", &[])]));
            let endless = Change::Histogram(vec![(1.0, u64::MAX)]);
            known.apply(told("other", vec![Update { change: endless, ..update("h", &[]) }]));
            known.apply(told("other", vec![update("frames", &[])]));
        });
        let seen = kept.seen();
        assert_eq!(seen.len(), MAX_METRIC_SERIES + 3);
        assert_eq!(seen[&format!("{DROPPED} evil")], 2.0 * MAX_METRIC_SERIES as f64 + 1.0);
        assert_eq!((seen[&format!("{DROPPED} other")], seen["frames detect.0/other"]), (1.0, 1.0));
    }

    // MBX-2, WIRE-1.
    #[test]
    fn the_recorder_gets_the_first_description_of_a_metric() {
        let (kept, mut known) = (Kept::default(), Known::default());
        let described = |name: &str, text: &str| {
            let (unit, text) = (Some("seconds".to_owned()), text.to_owned());
            Update { change: Change::Description { kind: Kind::Gauge, unit, text }, ..update(name, &[]) }
        };
        metrics::with_local_recorder(&kept, || {
            known.apply(told("one", vec![described("age", "of a frame")]));
            known.apply(told("two", vec![described("age", "of nothing")]));
            known.apply(told("evil", vec![described("long", &"x".repeat(MAX_METRIC_TEXT + 1))]));
            let many = (0..2 * MAX_NODE_METRIC_SERIES).map(|number| described(&format!("g{number}"), ""));
            known.apply(told("endless", many.collect()));
        });
        let seen = kept.seen();
        assert_eq!(seen["age in Seconds: of a frame"], 1.0);
        assert_eq!(seen[&format!("{DROPPED} evil")], 1.0);
        assert_eq!(seen[&format!("{DROPPED} endless")], MAX_NODE_METRIC_SERIES as f64 + 1.0);
    }

    // MBX-2.
    #[test]
    fn a_recorder_that_is_stuck_fills_no_memory() {
        let intake = Intake::start().unwrap();
        let waiting = intake.waiting();
        let known = waiting.known.lock(); // as if it stood in the recorder
        let worker: Arc<str> = "w".into();
        for _ in 0..3 * MAX_METRIC_UPDATES {
            intake.put(&worker, vec![update("frames", &[])], 0);
        }
        let queue = waiting.queue.lock();
        assert!(queue.updates <= MAX_METRIC_UPDATES && queue.told.len() <= MAX_METRIC_UPDATES);
        let dropped: u64 = queue.told.iter().map(|told| told.dropped).sum();
        assert_eq!(queue.updates as u64 + dropped, 3 * MAX_METRIC_UPDATES as u64);
        drop((queue, known));
        drop(intake);
        assert!(waiting.queue.lock().told.is_empty());
    }
}
