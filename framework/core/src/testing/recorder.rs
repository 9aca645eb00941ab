//! A recorder of the crate `metrics`, for tests.

use std::collections::BTreeMap;
use std::sync::Arc;

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};
use parking_lot::Mutex;

/// A recorder that keeps the last value of each gauge and the sum of each counter. It also counts how
/// often a gauge was described.
#[derive(Clone, Default)]
pub struct Kept(Arc<Mutex<BTreeMap<String, f64>>>);

struct Cell(Kept, String);

impl CounterFn for Cell {
    fn increment(&self, value: u64) {
        *self.0.0.lock().entry(self.1.clone()).or_default() += value as f64;
    }
    fn absolute(&self, value: u64) {
        self.0.0.lock().insert(self.1.clone(), value as f64);
    }
}

impl GaugeFn for Cell {
    fn increment(&self, _: f64) {}
    fn decrement(&self, _: f64) {}
    fn set(&self, value: f64) {
        self.0.0.lock().insert(self.1.clone(), value);
    }
}

impl Kept {
    /// Returns the values by name and labels.
    pub fn seen(&self) -> BTreeMap<String, f64> {
        self.0.lock().clone()
    }

    fn cell(&self, key: &Key) -> Arc<Cell> {
        let labels: Vec<_> = key.labels().map(|label| label.value().to_owned()).collect();
        Arc::new(Cell(self.clone(), format!("{} {}", key.name(), labels.join("/"))))
    }
}

impl Recorder for Kept {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, name: KeyName, unit: Option<Unit>, text: SharedString) {
        let unit = unit.map_or_else(String::new, |unit| format!(" in {unit:?}"));
        *self.0.lock().entry(format!("{}{unit}: {text}", name.as_str())).or_default() += 1.0;
    }
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.cell(key))
    }
    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.cell(key))
    }
    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}
