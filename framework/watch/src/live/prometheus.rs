//! The metrics of a snapshot in Prometheus' text form, version 0.0.4.
//!
//! Source: "Exposition formats" in the documentation of Prometheus. The names are those that the recorder of
//! the `metrics` crate gets. Instead of that recorder's quantiles over a whole life, this has a histogram,
//! from which a reader can compute the last minutes. Its bounds are powers of two nanoseconds, where the
//! counts are exact: no bucket of [`Histogram`](tensorpost_core::api::observe::Histogram) crosses one.
//!
//! Two series with the same labels would make the whole scrape fail, so a second process or actor of one name
//! gets a number behind its name.

use std::collections::HashMap;
use std::fmt::{Display, Write};
use std::ops::RangeInclusive;

use tensorpost_core::api::node::ProcessId;

use crate::console::{GpuShare, NodeSnapshot, ProcessState};
use crate::draw::printable;
use crate::series;

/// The bounds of a histogram, as powers of two nanoseconds: 1 us to 17 s.
const BOUNDS: RangeInclusive<u32> = 10..=34;

/// Series by metric.
#[derive(Default)]
struct Text {
    /// In the order of their first use: name, kind, help, series.
    families: Vec<(&'static str, &'static str, &'static str, String)>,
}

impl Text {
    fn family(&mut self, name: &'static str, kind: &'static str, help: &'static str) -> &mut String {
        let at = self.families.iter().position(|(known, ..)| *known == name).unwrap_or_else(|| {
            self.families.push((name, kind, help, String::new()));
            self.families.len() - 1
        });
        &mut self.families[at].3
    }

    fn counter(&mut self, name: &'static str, help: &'static str, labels: &str, value: u64) {
        line(self.family(name, "counter", help), name, labels, value);
    }

    fn gauge(&mut self, name: &'static str, help: &'static str, labels: &str, value: impl Display) {
        line(self.family(name, "gauge", help), name, labels, value);
    }

    fn done(self) -> String {
        let mut text = String::new();
        for (name, kind, help, series) in self.families {
            // Formatting into a string does not fail.
            let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{series}");
        }
        text
    }
}

fn line(text: &mut String, name: &str, labels: &str, value: impl Display) {
    // Formatting into a string does not fail.
    let _ = match labels {
        "" => writeln!(text, "{name} {value}"),
        _ => writeln!(text, "{name}{{{labels}}} {value}"),
    };
}

/// Returns all metrics of a node.
pub(super) fn text(snapshot: &NodeSnapshot) -> String {
    let mut text = Text::default();
    of_host(&mut text, snapshot, "");
    for host in &snapshot.hosts {
        let of_it = label("host", &host.name);
        let answers = u8::from(host.snapshot.is_some());
        text.gauge("tensorpost_host_up", "1 where another host answers", &of_it, answers);
        if let Some(snapshot) = &host.snapshot {
            of_host(&mut text, snapshot, &of_it);
        }
    }
    text.done()
}

/// Joins labels; `host` may be empty.
fn with(host: &str, labels: &str) -> String {
    if host.is_empty() { labels.to_owned() } else { format!("{host},{labels}") }
}

/// Adds all metrics of a host. `host` is its label, if it is another host.
fn of_host(text: &mut Text, snapshot: &NodeSnapshot, host: &str) {
    let NodeSnapshot { node, hangs, .. } = snapshot;
    for (name, help, value) in [
        ("tensorpost_up_seconds", "For how long the node has run", node.up.as_secs_f64()),
        ("tensorpost_stopping", "1 while the node shuts down", f64::from(node.stopping)),
        ("tensorpost_hangs", "Hangs that the node has reported, the last 64", hangs.len() as f64),
    ] {
        text.gauge(name, help, host, value);
    }
    let names = names(snapshot.processes.iter().map(|of| ((), of.name.as_str())));
    let names: HashMap<ProcessId, String> =
        snapshot.processes.iter().map(|of| of.process).zip(names).collect();
    processes(text, snapshot, &names, host);
    actors(text, snapshot, &names, host);
    for of in &snapshot.pools {
        let device = NodeSnapshot::device(of.pool.device);
        let labels = format!("{},{}", label("process", name(&names, of.owner)), label("device", &device));
        let labels = with(host, &labels);
        for (name, help, bytes) in [
            ("tensorpost_pool_budget_bytes", "What the memory of a process may take", of.pool.budget),
            ("tensorpost_pool_chunk_bytes", "What it takes", of.pool.chunks),
            ("tensorpost_pool_held_bytes", "What of it somebody holds", of.pool.held),
            ("tensorpost_pool_lent_bytes", "What of it other processes have leases on", of.pool.in_flight),
        ] {
            text.gauge(name, help, &labels, bytes);
        }
    }
}

fn processes(text: &mut Text, snapshot: &NodeSnapshot, names: &HashMap<ProcessId, String>, host: &str) {
    for of in &snapshot.processes {
        let labels = with(host, &label("process", name(names, of.process)));
        // A spare answers nothing before it is ready.
        let is_spare = of.state == ProcessState::Spare && of.metrics.is_some();
        let is_up = u8::from(is_spare || of.state == ProcessState::Running);
        text.gauge("tensorpost_process_up", "1 where a process runs and answers", &labels, is_up);
        let restarts = u64::from(of.restarts);
        let help = "How often a process was restarted, or an actor in it";
        text.counter("tensorpost_restarts_total", help, &labels, restarts);
        if let Some(share) = of.gpu {
            gpu(text, &labels, share);
        }
        let Some(metrics) = &of.metrics else { continue };
        for (name, help, count) in series::counters(metrics) {
            text.counter(name, help, &labels, count);
        }
        for (name, help, value) in series::gauges(metrics) {
            text.gauge(name, help, &labels, value);
        }
    }
}

/// Adds a process's use of the GPUs.
fn gpu(text: &mut Text, labels: &str, gpu: GpuShare) {
    if let Some(bytes) = gpu.bytes {
        let help = "Bytes of GPUs' memory in use, contexts too";
        text.gauge("tensorpost_gpu_memory_bytes", help, labels, bytes);
    }
    if let Some(percent) = gpu.busy {
        let help = "The share of the time in which kernels ran, 0 to 1 for each GPU";
        text.gauge("tensorpost_gpu_busy_ratio", help, labels, f64::from(percent) / 100.0);
    }
}

fn actors(text: &mut Text, snapshot: &NodeSnapshot, processes: &HashMap<ProcessId, String>, host: &str) {
    let names = names(snapshot.actors.iter().map(|of| (of.process, of.name.as_str())));
    for (of, actor) in snapshot.actors.iter().zip(names) {
        let labels = format!("{},{}", label("process", name(processes, of.process)), label("actor", &actor));
        let labels = with(host, &labels);
        let is_up = u8::from(of.state == ProcessState::Running);
        text.gauge("tensorpost_actor_up", "1 where an actor runs, and its process answers", &labels, is_up);
        text.gauge("tensorpost_mailbox_capacity", "Room for each sending process", &labels, of.capacity);
        if let Some(waiting) = snapshot.waiting(of) {
            let help = "Messages that wait for an actor, or that it is at";
            text.gauge("tensorpost_mailbox_messages", help, &labels, waiting);
        }
        let Some(metrics) = &of.metrics else { continue };
        for ((name, help, count), counted) in series::counters_of_actor(metrics) {
            // A metric is always described.
            let lines = text.family(name, "counter", help);
            if counted {
                line(lines, name, &labels, count);
            }
        }
        if let Some(waited) = metrics.waited {
            let help = "How long its stream stood in waits";
            text.gauge("tensorpost_stream_waited_seconds", help, &labels, waited.as_secs_f64());
        }
        let family = "tensorpost_handler_seconds";
        let lines = text.family(family, "histogram", "How long handler calls took");
        for power in BOUNDS {
            let bound = (1_u64 << power) as f64 / 1e9;
            let below = metrics.handler.below(power);
            line(lines, &format!("{family}_bucket"), &format!("{labels},le=\"{bound}\""), below);
        }
        // Use the histogram's count, so that all of its lines are of one moment.
        let count = metrics.handler.count();
        line(lines, &format!("{family}_bucket"), &format!("{labels},le=\"+Inf\""), count);
        line(lines, &format!("{family}_sum"), &labels, metrics.busy.as_secs_f64());
        line(lines, &format!("{family}_count"), &labels, count);
    }
}

/// Returns the names as plain labels: the second of one name in one place becomes `name#2`.
fn names<'a, P: Eq + std::hash::Hash>(all: impl Iterator<Item = (P, &'a str)>) -> Vec<String> {
    let mut seen: HashMap<(P, String), u32> = HashMap::new();
    let one = |(place, name): (P, &'a str)| {
        let name = printable(name);
        let count = seen.entry((place, name.clone())).or_default();
        *count += 1;
        if *count == 1 { name } else { format!("{name}#{count}") }
    };
    all.map(one).collect()
}

fn name(names: &HashMap<ProcessId, String>, process: ProcessId) -> &str {
    names.get(&process).map_or("", String::as_str)
}

/// Makes a label, with special characters in its value escaped.
fn label(name: &str, value: &str) -> String {
    let value = printable(value).replace('\\', "\\\\").replace('"', "\\\"");
    format!("{name}=\"{value}\"")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::console::{HostFacts, sample};
    use crate::draw::is_odd;

    #[test]
    fn each_metric_is_described_once_and_each_series_is_there_once() {
        let mut snapshot = sample::snapshot(0, [100, 20]);
        snapshot.actors[0].name = "a \"b\"\\\n\u{1b}[2J\u{202e}".to_owned();
        // Two processes of one name, and two actors of one name in one process.
        snapshot.processes[2].name = snapshot.processes[1].name.clone();
        snapshot.actors[1].process = snapshot.actors[0].process;
        // A different name that becomes the same when it is made plain.
        snapshot.actors[1].name = snapshot.actors[0].name.replace('\n', "\r");
        // The same snapshot once more, on another host.
        let there = Some(Box::new(snapshot.clone()));
        snapshot.hosts = vec![HostFacts { number: 1, name: "1 left".to_owned(), snapshot: there }];
        snapshot.hosts.push(HostFacts { number: 2, name: "2 x".to_owned(), snapshot: None });
        let text = text(&snapshot);
        assert!(!text.contains(|letter| letter != '\n' && is_odd(letter)), "{text:?}");
        let mut series = std::collections::HashSet::new();
        let mut described = std::collections::HashSet::new();
        for line in text.lines() {
            match line.strip_prefix("# TYPE ") {
                Some(rest) => assert!(described.insert(rest.split(' ').next()), "{line}"),
                None if line.starts_with('#') => {}
                None => {
                    let (labels, value) = line.rsplit_once(' ').unwrap();
                    assert!(series.insert(labels), "{line}");
                    assert!(value.parse::<f64>().is_ok(), "{line}");
                    let family = labels.split('{').next().unwrap();
                    let of = ["_bucket", "_sum", "_count"].iter().find_map(|end| family.strip_suffix(end));
                    assert!(described.contains(&Some(family)) || described.contains(&of), "{line}");
                }
            }
        }
        assert!(text.contains("tensorpost_process_up{process=\"camera.0#2\"} 1\n"), "{text}");
        assert!(text.contains("tensorpost_process_up{host=\"1 left\",process=\"camera.0#2\"} 1\n"), "{text}");
        assert!(text.contains("tensorpost_host_up{host=\"2 x\"} 0\n"), "{text}");
        let labels = "process=\"camera.0\",actor=\"a \\\"b\\\"\\\\  [2J \"";
        assert!(text.contains(&format!("tensorpost_messages_handled_total{{{labels}}} 100\n")), "{text}");
        assert!(text.contains("actor=\"a \\\"b\\\"\\\\  [2J #2\""), "{text}");
        // 150 us each: below 2^18 ns and not below 2^17.
        for (le, count) in [("0.000131072", 0), ("0.000262144", 100), ("17.179869184", 100), ("+Inf", 100)] {
            let bucket = format!("tensorpost_handler_seconds_bucket{{{labels},le=\"{le}\"}} {count}\n");
            assert!(text.contains(&bucket), "{bucket} {text}");
        }
        assert!(text.contains(&format!("tensorpost_handler_seconds_sum{{{labels}}} 0.015\n")), "{text}");
    }
}
