//! The recorder of a worker.
//!
//! **Locks.** `series` is held for the call of a macro, and a histogram's own lock for a value. Nothing but
//! `HashMap`s is called under either. **On the path of a message** none of this runs.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};
use parking_lot::{Mutex, RwLock};

use super::{Change, Kind, Update, check, owner};
use crate::limits::{
    MAX_METRIC_SAMPLES, MAX_METRIC_SERIES, MAX_METRIC_TEXT, MAX_METRIC_VALUES, MAX_WORKER_METRIC_VALUES,
};

/// The bits that are cut off an inexact value: the rest is right to 1 in 256, and never too large.
const CUT_BITS: u64 = (1 << 44) - 1;

/// Adds up the metrics of a worker's code. Clones are the same recorder.
#[derive(Clone)]
pub(crate) struct WorkerRecorder(Arc<Shared>);

struct Shared {
    series: RwLock<HashMap<Arc<str>, OfActor>>,
    count: AtomicUsize,
    descriptions: Mutex<Descriptions>,
    /// The number of histogram values that were not sent yet.
    values: AtomicUsize,
    dropped: AtomicU64,
    /// Whether the log has said that values were dropped.
    told: AtomicBool,
    /// Whether there is a change to send.
    dirty: AtomicBool,
    /// Called at the first change.
    wake: Box<dyn Fn() + Send + Sync>,
}

/// The series of an actor, or those that belong to no actor.
#[derive(Default)]
struct OfActor {
    counters: HashMap<Key, Arc<CounterCell>>,
    gauges: HashMap<Key, Arc<GaugeCell>>,
    histograms: HashMap<Key, Arc<HistogramCell>>,
}

/// The descriptions of metrics.
#[derive(Default)]
struct Descriptions {
    /// The metrics that have a description.
    of: HashSet<(Kind, String)>,
    /// The descriptions that were not sent yet.
    untold: Vec<Update>,
}

struct CounterCell {
    shared: Arc<Shared>,
    added: AtomicU64,
    at_least: AtomicU64,
    /// True until the counter was sent once. A counter is sent when it is first named, with 0, so that a
    /// reader finds it.
    fresh: AtomicBool,
}

struct GaugeCell {
    shared: Arc<Shared>,
    bits: AtomicU64,
    changed: AtomicBool,
}

struct HistogramCell {
    shared: Arc<Shared>,
    values: Mutex<Values>,
}

#[derive(Default)]
struct Values {
    /// Counts, by the bits of the value.
    counts: HashMap<u64, u64>,
    samples: u64,
}

/// The stand-in for a series that was refused.
struct Refused(Arc<Shared>);

impl WorkerRecorder {
    /// Makes a recorder. It calls `wake` on any thread when there is a change to send, once for each
    /// [`take`](Self::take).
    pub(crate) fn new(wake: impl Fn() + Send + Sync + 'static) -> Self {
        WorkerRecorder(Arc::new(Shared {
            series: RwLock::default(),
            count: AtomicUsize::new(0),
            descriptions: Mutex::default(),
            values: AtomicUsize::new(0),
            dropped: AtomicU64::new(0),
            told: AtomicBool::new(false),
            dirty: AtomicBool::new(false),
            wake: Box::new(wake),
        }))
    }

    /// Returns whether there is a change to send.
    pub(crate) fn is_dirty(&self) -> bool {
        self.0.dirty.load(Acquire)
    }

    /// Returns the changes since the last call, and how many were dropped.
    pub(crate) fn take(&self) -> (Vec<Update>, u64) {
        // Cleared before the changes are read: a change after this wakes again.
        self.0.dirty.swap(false, AcqRel);
        // Descriptions go first, so a recorder that makes a series from the first value knows its
        // description.
        let mut updates = std::mem::take(&mut self.0.descriptions.lock().untold);
        for (actor, of) in &*self.0.series.read() {
            let mut told = |key: &Key, change: Option<Change>| {
                updates.extend(change.map(|change| Update {
                    actor: Some(&**actor).filter(|actor| !actor.is_empty()).map(str::to_owned),
                    name: key.name().to_owned(),
                    labels: key.labels().map(|label| (label.key().into(), label.value().into())).collect(),
                    change,
                }));
            };
            of.counters.iter().for_each(|(key, cell)| told(key, cell.take()));
            of.gauges.iter().for_each(|(key, cell)| told(key, cell.take()));
            of.histograms.iter().for_each(|(key, cell)| told(key, cell.take()));
        }
        (updates, self.0.dropped.swap(0, Relaxed))
    }

    /// Notes the description of a metric; the first one counts.
    fn describe(&self, kind: Kind, name: &KeyName, unit: Option<Unit>, text: &str) {
        if let Err(why) = check(name.as_str(), std::iter::empty()) {
            self.0.refuse(name.as_str(), why);
            return;
        }
        let mut descriptions = self.0.descriptions.lock();
        if descriptions.of.len() >= MAX_METRIC_SERIES {
            drop(descriptions);
            self.0.refuse(
                name.as_str(),
                "this worker has described 1024 metrics, as many as one may; describe each once",
            );
            return;
        }
        if descriptions.of.insert((kind, name.as_str().to_owned())) {
            descriptions.untold.push(Update {
                actor: None,
                name: name.as_str().to_owned(),
                labels: Vec::new(),
                change: Change::Description {
                    kind,
                    unit: unit.map(|unit| unit.as_str().to_owned()),
                    text: text[..text.floor_char_boundary(MAX_METRIC_TEXT)].to_owned(),
                },
            });
            drop(descriptions);
            self.0.touch();
        }
    }

    /// Returns the cell of a series of the actor whose code runs, or `None` if it may not have one.
    fn cell<C>(
        &self,
        key: &Key,
        cells: impl Fn(&OfActor) -> &HashMap<Key, Arc<C>>,
        cells_mut: impl Fn(&mut OfActor) -> &mut HashMap<Key, Arc<C>>,
        make: impl FnOnce(Arc<Shared>) -> C,
    ) -> Option<Arc<C>> {
        let actor = owner::current().unwrap_or_default();
        // Nearly all calls end here, under the read lock.
        if let Some(cell) = self.0.series.read().get(&actor).and_then(|of| cells(of).get(key)) {
            return Some(Arc::clone(cell));
        }
        let labels: Vec<_> = key.labels().map(|label| (label.key(), label.value())).collect();
        if let Err(why) = check(key.name(), labels.into_iter()) {
            self.0.refuse(key.name(), why);
            return None;
        }
        let mut series = self.0.series.write();
        // Looked up again: another thread may have made the cell between the two locks.
        match cells_mut(series.entry(actor).or_default()).entry(key.clone()) {
            Entry::Occupied(cell) => Some(Arc::clone(cell.get())),
            Entry::Vacant(place) if self.0.count.load(Relaxed) < MAX_METRIC_SERIES => {
                self.0.count.fetch_add(1, Relaxed);
                Some(Arc::clone(place.insert(Arc::new(make(Arc::clone(&self.0))))))
            }
            Entry::Vacant(_) => {
                // `refuse` writes to the log, which must not happen under the lock.
                drop(series);
                self.0.refuse(
                    key.name(),
                    "this worker has 1024 series, as many as one may; give labels fewer values",
                );
                None
            }
        }
    }
}

impl Shared {
    fn touch(&self) {
        // A swap with no load before it: it is in one order with that of `take`, so a change that `take` does
        // not see wakes.
        if !self.dirty.swap(true, AcqRel) {
            (self.wake)();
        }
    }

    fn drop_some(&self, count: u64) {
        self.dropped.fetch_add(count, Relaxed);
        self.touch();
    }

    #[cold]
    fn refuse(&self, name: &str, why: &str) {
        if !self.told.swap(true, Relaxed) {
            tracing::warn!(
                target: "tensorpost::metrics",
                name,
                why,
                "a metric of this worker is dropped; what else is, is counted and not said again"
            );
        }
    }
}

impl CounterCell {
    fn take(&self) -> Option<Change> {
        let (fresh, added) = (self.fresh.swap(false, AcqRel), self.added.swap(0, AcqRel));
        let at_least = self.at_least.swap(0, AcqRel);
        (fresh || added > 0 || at_least > 0).then_some(Change::Counter { added, at_least })
    }
}

impl CounterFn for CounterCell {
    fn increment(&self, value: u64) {
        self.added.fetch_add(value, AcqRel);
        self.shared.touch();
    }

    fn absolute(&self, value: u64) {
        self.at_least.fetch_max(value, AcqRel);
        self.shared.touch();
    }
}

impl GaugeCell {
    fn take(&self) -> Option<Change> {
        let changed = self.changed.swap(false, AcqRel);
        changed.then(|| Change::Gauge(f64::from_bits(self.bits.load(Acquire))))
    }

    fn update(&self, to: impl Fn(f64) -> f64) {
        let next = |bits| Some(to(f64::from_bits(bits)).to_bits());
        // It cannot fail: there always is a next value.
        let _ = self.bits.fetch_update(AcqRel, Acquire, next);
        self.changed.store(true, Release);
        self.shared.touch();
    }
}

impl GaugeFn for GaugeCell {
    fn increment(&self, value: f64) {
        self.update(|before| before + value);
    }

    fn decrement(&self, value: f64) {
        self.update(|before| before - value);
    }

    fn set(&self, value: f64) {
        self.update(|_| value);
    }
}

impl HistogramCell {
    fn take(&self) -> Option<Change> {
        let Values { counts, .. } = std::mem::take(&mut *self.values.lock());
        self.shared.values.fetch_sub(counts.len(), Relaxed);
        let values: Vec<_> = counts.into_iter().map(|(bits, count)| (f64::from_bits(bits), count)).collect();
        (!values.is_empty()).then_some(Change::Histogram(values))
    }

    /// Adds `count` samples of a value. Returns false if there is no room.
    fn add(&self, value: f64, count: u64) -> bool {
        let mut values = self.values.lock();
        if values.samples.saturating_add(count) > MAX_METRIC_SAMPLES {
            return false;
        }
        let known = values.counts.len();
        let exact = known < MAX_METRIC_VALUES / 2 || values.counts.contains_key(&value.to_bits());
        let bits = if exact { value.to_bits() } else { value.to_bits() & !CUT_BITS };
        let room =
            || known < MAX_METRIC_VALUES && self.shared.values.load(Relaxed) < MAX_WORKER_METRIC_VALUES;
        match values.counts.entry(bits) {
            Entry::Occupied(mut here) => *here.get_mut() += count,
            Entry::Vacant(place) if room() => {
                place.insert(count);
                self.shared.values.fetch_add(1, Relaxed);
            }
            Entry::Vacant(_) => return false,
        }
        values.samples += count;
        true
    }
}

impl HistogramFn for HistogramCell {
    fn record(&self, value: f64) {
        self.record_many(value, 1);
    }

    fn record_many(&self, value: f64, count: usize) {
        let count = count as u64;
        if count > 0 && !self.add(value, count) {
            self.shared.refuse("", "a histogram has more values than can be told");
            self.shared.drop_some(count);
        }
        self.shared.touch();
    }
}

impl CounterFn for Refused {
    fn increment(&self, _: u64) {
        self.0.drop_some(1);
    }

    fn absolute(&self, _: u64) {
        self.0.drop_some(1);
    }
}

impl GaugeFn for Refused {
    fn increment(&self, _: f64) {
        self.0.drop_some(1);
    }

    fn decrement(&self, _: f64) {
        self.0.drop_some(1);
    }

    fn set(&self, _: f64) {
        self.0.drop_some(1);
    }
}

impl HistogramFn for Refused {
    fn record(&self, _: f64) {
        self.0.drop_some(1);
    }

    fn record_many(&self, _: f64, count: usize) {
        self.0.drop_some(count as u64);
    }
}

impl Recorder for WorkerRecorder {
    fn describe_counter(&self, name: KeyName, unit: Option<Unit>, text: SharedString) {
        self.describe(Kind::Counter, &name, unit, &text);
    }

    fn describe_gauge(&self, name: KeyName, unit: Option<Unit>, text: SharedString) {
        self.describe(Kind::Gauge, &name, unit, &text);
    }

    fn describe_histogram(&self, name: KeyName, unit: Option<Unit>, text: SharedString) {
        self.describe(Kind::Histogram, &name, unit, &text);
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        let make = |shared: Arc<Shared>| CounterCell {
            shared,
            added: AtomicU64::new(0),
            at_least: AtomicU64::new(0),
            fresh: AtomicBool::new(true),
        };
        match self.cell(key, |of| &of.counters, |of| &mut of.counters, make) {
            Some(cell) => Counter::from_arc(cell),
            None => Counter::from_arc(Arc::new(Refused(Arc::clone(&self.0)))),
        }
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        let make = |shared| GaugeCell { shared, bits: AtomicU64::new(0), changed: AtomicBool::new(false) };
        match self.cell(key, |of| &of.gauges, |of| &mut of.gauges, make) {
            Some(cell) => Gauge::from_arc(cell),
            None => Gauge::from_arc(Arc::new(Refused(Arc::clone(&self.0)))),
        }
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        let make = |shared| HistogramCell { shared, values: Mutex::default() };
        match self.cell(key, |of| &of.histograms, |of| &mut of.histograms, make) {
            Some(cell) => Histogram::from_arc(cell),
            None => Histogram::from_arc(Arc::new(Refused(Arc::clone(&self.0)))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Owner;
    use super::*;
    use crate::ids::ActorId;
    use metrics::{
        counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram, with_local_recorder,
    };

    fn recorder() -> (WorkerRecorder, Arc<AtomicUsize>) {
        let woken = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&woken);
        (WorkerRecorder::new(move || assert!(counted.fetch_add(1, Relaxed) < 1 << 20)), woken)
    }

    fn changes(recorder: &WorkerRecorder) -> Vec<(String, Change)> {
        let (updates, dropped) = recorder.take();
        assert_eq!(dropped, 0);
        updates.into_iter().map(|update| (update.name, update.change)).collect()
    }

    #[test]
    fn what_was_told_is_told_once_and_as_what_was_added() {
        let (recorder, woken) = recorder();
        with_local_recorder(&recorder, || {
            counter!("frames").increment(2);
            counter!("frames").increment(3);
            assert_eq!(changes(&recorder), [("frames".into(), Change::Counter { added: 5, at_least: 0 })]);
            assert!(!recorder.is_dirty() && changes(&recorder).is_empty());
            counter!("frames").absolute(40);
            assert_eq!(changes(&recorder), [("frames".into(), Change::Counter { added: 0, at_least: 40 })]);
            gauge!("depth").set(4.0);
            gauge!("depth").decrement(1.5);
            assert_eq!(changes(&recorder), [("depth".into(), Change::Gauge(2.5))]);
            histogram!("took").record(0.25);
            histogram!("took").record(0.25);
            assert_eq!(changes(&recorder), [("took".into(), Change::Histogram(vec![(0.25, 2)]))]);
        });
        assert_eq!(woken.load(Relaxed), 4, "once for each time that it was told");
    }

    // MBX-2.
    #[test]
    fn a_description_is_told_once_and_before_its_series() {
        let (recorder, _) = recorder();
        with_local_recorder(&recorder, || {
            counter!("frames").increment(1);
            for _ in 0..2 {
                describe_counter!("frames", Unit::Count, "what the camera took");
            }
            describe_histogram!("frames", "é".repeat(MAX_METRIC_TEXT));
            describe_gauge!("no name", "?");
            let told = changes(&recorder);
            let [(_, first), (_, second), (_, Change::Counter { added: 1, .. })] = &told[..] else {
                panic!("{told:?}")
            };
            let (unit, text) = (Some("count".to_owned()), "what the camera took".to_owned());
            assert_eq!(*first, Change::Description { kind: Kind::Counter, unit, text });
            assert!(matches!(second, Change::Description { kind: Kind::Histogram, unit: None, text }
                if text.len() == MAX_METRIC_TEXT));
            (0..2 * MAX_METRIC_SERIES).for_each(|number| describe_gauge!(format!("g{number}"), ""));
            assert_eq!(changes(&recorder).len(), MAX_METRIC_SERIES - 2);
        });
    }

    // MBX-2.
    #[test]
    fn series_without_end_are_refused_and_counted() {
        let (recorder, _) = recorder();
        with_local_recorder(&recorder, || {
            for number in 0..MAX_METRIC_SERIES + 7 {
                counter!("c", "number" => number.to_string()).increment(1);
            }
            counter!("not a name").increment(1);
        });
        let (updates, dropped) = recorder.take();
        assert_eq!((updates.len(), dropped), (MAX_METRIC_SERIES, 8));
    }

    // MBX-2.
    #[test]
    fn a_histogram_keeps_the_count_of_what_it_cannot_keep_exactly() {
        let (recorder, _) = recorder();
        let (few, many) = (MAX_METRIC_VALUES / 2, 100_000);
        with_local_recorder(&recorder, || {
            let histogram = histogram!("h");
            (0..few).for_each(|value| histogram.record(value as f64));
            // All values are in one octave, which has 256 parts.
            (0..many)
                .for_each(|value| histogram.record(1024.0 + 1000.0 * f64::from(value) / f64::from(many)));
            histogram.record(3.0);
        });
        let (updates, dropped) = recorder.take();
        let Change::Histogram(values) = &updates[0].change else { panic!("{updates:?}") };
        assert_eq!((values.iter().map(|(_, count)| count).sum::<u64>(), dropped), (few as u64 + 100_001, 0));
        assert!(values.len() <= MAX_METRIC_VALUES && values.contains(&(3.0, 2)));
        with_local_recorder(&recorder, || histogram!("h").record_many(1.0, usize::MAX));
        assert_eq!(recorder.take().1, usize::MAX as u64);
    }

    #[test]
    fn a_series_is_the_actors_whose_code_runs() {
        let (recorder, _) = recorder();
        let (first, second) = (Owner::new(ActorId(1), "first"), Owner::new(ActorId(2), "second"));
        let actors = || -> Vec<_> { recorder.take().0.into_iter().map(|update| update.actor).collect() };
        with_local_recorder(&recorder, || {
            let kept = {
                let _first = first.enter();
                {
                    let _second = second.enter();
                    counter!("c").increment(1);
                    assert_eq!(actors(), [Some("second".to_owned())]);
                }
                counter!("c")
            };
            actors();
            kept.increment(1);
            assert_eq!(actors(), [Some("first".to_owned())], "of a handle: who made it");
            counter!("c").increment(1);
            assert_eq!(actors(), [None], "nobody, in a process of several");
            drop(first);
            gauge!("g").set(1.0);
            assert_eq!(actors(), [Some("second".to_owned())], "the only one");
        });
    }
}
