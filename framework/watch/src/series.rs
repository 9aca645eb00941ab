//! The framework's own metrics by their names: for the live page, and for the program's recorder of the crate
//! `metrics`, if it has installed one (`metrics::set_global_recorder`).

use metrics::{Label, counter, gauge};
use tensorpost_core::api::observe::{ActorMetrics, Metrics, NamedProcess, ProcessMetrics};

/// A series: its name, its meaning and its value.
type Series = (&'static str, &'static str, u64);

/// Returns the counts of a process.
pub(crate) fn counters(of: &ProcessMetrics) -> [Series; 5] {
    [
        ("tensorpost_frames_sent_total", "Frames sent to other processes", of.sent),
        ("tensorpost_frames_received_total", "Frames taken from other processes", of.received),
        ("tensorpost_frames_rejected_total", "Frames that were malformed or forged", of.rejected),
        ("tensorpost_dead_letters_total", "Messages that no actor took", of.dead_letters),
        ("tensorpost_bytes_not_copied_total", "Bytes of tensors that were lent", of.bytes_not_copied),
    ]
}

/// Returns the present values of a process.
pub(crate) fn gauges(of: &ProcessMetrics) -> [Series; 5] {
    [
        ("tensorpost_messages_open", "Messages delivered and not done with", of.open as u64),
        ("tensorpost_bytes_in_flight", "Own bytes that others have leases on", of.bytes_in_flight),
        ("tensorpost_bytes_held", "Own bytes that anybody holds", of.bytes_held),
        ("tensorpost_pool_bytes", "Bytes of all pools, used or not", of.pool_bytes),
        ("tensorpost_resident_bytes", "Bytes of host memory in use", of.resident_bytes),
    ]
}

/// Returns the counts of an actor, and whether it counts that. Most actors count no items, and have no such
/// series.
pub(crate) fn counters_of_actor(of: &ActorMetrics) -> [(Series, bool); 5] {
    let [emitted, dropped, missed] = of.counted;
    [
        (("tensorpost_messages_handled_total", "Handler calls", of.handled), true),
        (("tensorpost_items_emitted_total", "What an actor made and passed on", of.emitted), emitted),
        (("tensorpost_items_dropped_total", "What it dropped for want of room", of.dropped), dropped),
        (("tensorpost_items_missed_total", "What it was too late to make", of.missed), missed),
        (("tensorpost_stream_waits_total", "Waits put on its stream", of.waits), true),
    ]
}

/// Returns the labels of a process, with its host if that is another one.
fn labels(host: Option<&String>, process: &str) -> Vec<Label> {
    let host = host.map(|host| Label::new("host", host.clone()));
    std::iter::once(Label::new("process", process.to_owned())).chain(host).collect()
}

/// Hands everything to the recorder: counts as counters, everything else as gauges in bytes, seconds and
/// messages. Without a recorder this does nothing.
pub(crate) fn export(metrics: &Metrics) {
    for NamedProcess { host, name, metrics: process, .. } in &metrics.processes {
        let labels = labels(host.as_ref(), name);
        for (name, _, count) in counters(process) {
            counter!(name, labels.clone()).absolute(count);
        }
        for (name, _, value) in gauges(process) {
            gauge!(name, labels.clone()).set(value as f64);
        }
        process.actors.iter().for_each(|actor| export_actor(labels.clone(), actor));
    }
}

fn export_actor(mut labels: Vec<Label>, actor: &ActorMetrics) {
    labels.push(Label::new("actor", actor.name.clone()));
    for ((name, _, count), _) in counters_of_actor(actor).into_iter().filter(|(_, counted)| *counted) {
        counter!(name, labels.clone()).absolute(count);
    }
    let quantile = |q| actor.handler.quantile(q).map(|took| took.as_secs_f64());
    for (name, value) in [
        ("tensorpost_mailbox_messages", Some(actor.queued as f64)),
        ("tensorpost_handler_busy_seconds", Some(actor.busy.as_secs_f64())),
        ("tensorpost_handler_p50_seconds", quantile(0.5)),
        ("tensorpost_handler_p99_seconds", quantile(0.99)),
        ("tensorpost_stream_waited_seconds", actor.waited.map(|waited| waited.as_secs_f64())),
    ] {
        if let Some(value) = value {
            gauge!(name, labels.clone()).set(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tensorpost_core::testing::recorder::Kept;

    use super::*;
    use crate::console::sample;

    /// Makes the metrics of a process `w` with an actor that has handled 10 messages.
    fn metrics(host: Option<&str>, counted: [bool; 3]) -> Metrics {
        let snapshot = sample::snapshot(0, [10, 0]);
        let mut actor = snapshot.actors[0].metrics.clone().expect("it has answered");
        (actor.emitted, actor.missed, actor.counted, actor.queued) = (20, 4, counted, 3);
        actor.name = "blur".to_owned();
        let mut of = snapshot.processes[1].metrics.clone().expect("it has answered");
        (of.bytes_in_flight, of.actors) = (4096, vec![actor]);
        let process = json!({
            "host": host, "process": snapshot.processes[1].process, "name": "w", "state": "running",
            "restarts": 0, "metrics": of,
        });
        let mut metrics = Metrics::default();
        metrics.processes = vec![serde_json::from_value(process).expect("the fields of a process")];
        metrics
    }

    #[test]
    fn a_recorder_gets_every_metric_by_process_and_actor() {
        let kept = Kept::default();
        let export_to = |metrics: &Metrics| metrics::with_local_recorder(&kept, || export(metrics));
        let some = metrics(None, [true, false, true]);
        export_to(&some);
        let seen = kept.seen();
        assert_eq!(seen["tensorpost_messages_handled_total w/blur"], 10.0);
        assert_eq!(seen["tensorpost_items_emitted_total w/blur"], 20.0);
        assert_eq!(seen["tensorpost_items_missed_total w/blur"], 4.0);
        assert!(!seen.contains_key("tensorpost_items_dropped_total w/blur"), "it does not count that");
        assert_eq!(seen["tensorpost_bytes_in_flight w"], 4096.0);
        assert_eq!(seen["tensorpost_mailbox_messages w/blur"], 3.0);
        assert!((seen["tensorpost_handler_p99_seconds w/blur"] - 1.5e-4).abs() < 3e-5);
        export_to(&metrics(Some("1 left"), [true; 3]));
        assert_eq!(kept.seen()["tensorpost_messages_handled_total w/1 left/blur"], 10.0);
        assert_eq!(kept.seen()["tensorpost_items_dropped_total w/1 left/blur"], 0.0, "it may come to drop");
        assert!(!kept.seen().contains_key("tensorpost_items_dropped_total w/blur"), "this host's");
        export(&some); // without a recorder: nothing
    }
}
