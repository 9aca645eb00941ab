//! Exports metrics to the program's recorder, if it has installed one (`metrics::set_global_recorder`).
//! Without a recorder this does nothing.

use metrics::{Label, counter, gauge};

use super::{ActorMetrics, Metrics, NamedProcess};

/// Returns the labels of a process, with its host if that is another one.
fn labels(host: Option<&String>, process: &str) -> Vec<Label> {
    let host = host.map(|host| Label::new("host", host.clone()));
    std::iter::once(Label::new("process", process.to_owned())).chain(host).collect()
}

/// Hands everything to the recorder: counts as counters, everything else as gauges in bytes, seconds and
/// messages.
pub(crate) fn export(metrics: &Metrics) {
    for NamedProcess { host, name, metrics: process, .. } in &metrics.processes {
        let labels = || labels(host.as_ref(), name);
        let of_process = labels();
        for (name, _, count) in process.counters() {
            counter!(name, of_process.clone()).absolute(count);
        }
        for (name, _, value) in process.gauges() {
            gauge!(name, of_process.clone()).set(value as f64);
        }
        process.actors.iter().for_each(|actor| export_actor(labels(), actor));
    }
}

fn export_actor(mut labels: Vec<Label>, actor: &ActorMetrics) {
    labels.push(Label::new("actor", actor.name.clone()));
    for (name, _, count, _) in actor.counters().into_iter().filter(|(.., counted)| *counted) {
        counter!(name, labels.clone()).absolute(count);
    }
    gauge!("tensorpost_mailbox_messages", labels.clone()).set(actor.queued as f64);
    gauge!("tensorpost_handler_busy_seconds", labels.clone()).set(actor.busy.as_secs_f64());
    for (name, quantile) in
        [("tensorpost_handler_p50_seconds", 0.5), ("tensorpost_handler_p99_seconds", 0.99)]
    {
        if let Some(took) = actor.handler.quantile(quantile) {
            gauge!(name, labels.clone()).set(took.as_secs_f64());
        }
    }
    if let Some(waited) = actor.waited {
        gauge!("tensorpost_stream_waited_seconds", labels.clone()).set(waited.as_secs_f64());
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use metrics::{
        Counter, CounterFn, Gauge, GaugeFn, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit,
    };
    use parking_lot::Mutex;
    use std::collections::BTreeMap;
    use std::sync::Arc;

    /// A recorder that keeps the last value of each gauge and the sum of each counter. It also counts how
    /// often a gauge was described.
    #[derive(Clone, Default)]
    pub(crate) struct Kept(Arc<Mutex<BTreeMap<String, f64>>>);

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
        pub(crate) fn seen(&self) -> BTreeMap<String, f64> {
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

    #[test]
    fn a_recorder_gets_every_metric_by_process_and_actor() {
        let kept = Kept::default();
        metrics::with_local_recorder(&kept, || export(&super::super::tests::metrics(5, 10)));
        let seen = kept.seen();
        assert_eq!(seen["tensorpost_messages_handled_total w/blur"], 10.0);
        assert_eq!(seen["tensorpost_items_emitted_total w/blur"], 20.0);
        assert_eq!(seen["tensorpost_items_missed_total w/blur"], 4.0);
        assert!(!seen.contains_key("tensorpost_items_dropped_total w/blur"), "it does not count that");
        assert_eq!(seen["tensorpost_bytes_in_flight w"], 4096.0);
        assert_eq!(seen["tensorpost_mailbox_messages w/blur"], 3.0);
        assert!((seen["tensorpost_handler_p99_seconds w/blur"] - 1e-4).abs() < 2e-5);
        let mut elsewhere = super::super::tests::metrics(5, 3);
        elsewhere.processes[0].host = Some("1 left".to_owned());
        metrics::with_local_recorder(&kept, || export(&elsewhere));
        assert_eq!(kept.seen()["tensorpost_messages_handled_total w/1 left/blur"], 3.0);
        assert_eq!(kept.seen()["tensorpost_messages_handled_total w/blur"], 10.0, "this host's");
        let mut drops = super::super::tests::metrics(5, 10);
        drops.processes[0].metrics.actors[0].counted = [true; 3];
        metrics::with_local_recorder(&kept, || export(&drops));
        assert_eq!(kept.seen()["tensorpost_items_dropped_total w/blur"], 0.0, "it may come to drop");
        export(&super::super::tests::metrics(5, 10)); // without a recorder: nothing
    }
}
