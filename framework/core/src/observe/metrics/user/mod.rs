//! Metrics of user code. A worker's calls of `metrics::counter!`, `gauge!` and `histogram!` reach the
//! recorder of the process that has the node.
//!
//! In a worker [`WorkerRecorder`] is the recorder. It adds up. The worker's control thread sends the changes
//! to the node as [`Update`]s: [`TELL_EVERY`] after the first change, when the node asks for metrics, and at
//! a clean end. So nothing is sent or allocated per message, and an idle worker is not woken. In the node,
//! [`Intake`] gives the updates to the recorder there, with the labels `actor` and `worker`. It does so on a
//! thread of its own, so that the supervisor never waits.
//!
//! **Bounded (MBX-2).** Series, names, labels and values have limits (`limits.rs`), which the node checks
//! again (WIRE-1). Updates past them are dropped and counted in [`DROPPED`], and the log says so once for
//! each worker.
//!
//! A description (`describe_counter!`) is sent once for each metric and worker. The recorder gets the first
//! one from any worker.
//!
//! **On a crash** the updates that the worker had not sent are lost. A counter goes on from the recorder's
//! value, because workers send additions and no sums.

mod intake;
mod owner;
mod recorder;

use std::borrow::Cow;
use std::collections::HashSet;
use std::time::Duration;

use metrics::{Key, Label};
use serde::{Deserialize, Serialize};

pub(crate) use intake::{Intake, PendingUpdates};
pub(crate) use owner::Owner;
pub(crate) use recorder::WorkerRecorder;

use crate::limits::{MAX_METRIC_LABELS, MAX_METRIC_NAME, MAX_METRIC_TEXT};
use crate::observe::text::shown;

/// How long after a change a worker sends its updates to the node.
pub(crate) const TELL_EVERY: Duration = Duration::from_millis(500);

/// The counter of dropped updates, by worker.
pub(crate) const DROPPED: &str = "tensorpost_user_metrics_dropped_total";

/// The change of a series since it was last sent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Update {
    /// The name of the actor whose code made the change, if that is known.
    pub(crate) actor: Option<String>,
    pub(crate) name: String,
    pub(crate) labels: Vec<(String, String)>,
    pub(crate) change: Change,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Change {
    Counter {
        added: u64,
        /// The largest value that user code has set the counter to.
        at_least: u64,
    },
    Gauge(f64),
    /// Values, each with the number of times that it came.
    Histogram(Vec<(f64, u64)>),
    /// The description that user code gives a metric. It belongs to the metric, and is no series.
    Description {
        kind: Kind,
        /// The unit as `metrics::Unit` names it.
        unit: Option<String>,
        text: String,
    },
}

/// The three kinds of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

impl Update {
    /// Returns the key for the node's recorder, or why there is none (WIRE-1).
    pub(crate) fn key(&self, worker: &str) -> Result<Key, &'static str> {
        let labels = || self.labels.iter().map(|(name, value)| (&**name, &**value));
        check(&self.name, labels())?;
        let mut all = Vec::with_capacity(self.labels.len() + 2);
        if let Some(actor) = &self.actor {
            all.push(Label::new("actor", shown(actor.clone(), MAX_METRIC_TEXT)));
        }
        all.push(Label::new("worker", worker.to_owned()));
        let own = labels().map(|(name, value)| {
            Label::new(label_name(name).into_owned(), shown(value.to_owned(), MAX_METRIC_TEXT))
        });
        all.extend(own);
        Ok(Key::from_parts(self.name.clone(), all))
    }
}

/// Returns the name under which a label arrives. Two names are the framework's, and a user's label of that
/// name is renamed, as in Prometheus.
fn label_name(name: &str) -> Cow<'_, str> {
    if matches!(name, "actor" | "worker") { format!("exported_{name}").into() } else { name.into() }
}

/// Checks that a series may be sent.
pub(crate) fn check<'a>(
    name: &str,
    labels: impl ExactSizeIterator<Item = (&'a str, &'a str)>,
) -> Result<(), &'static str> {
    if labels.len() > MAX_METRIC_LABELS {
        return Err("it has more than 16 labels; put what tells it apart into fewer");
    }
    check_name(name)?;
    if name.starts_with("tensorpost_") {
        return Err("names that begin with `tensorpost_` are the framework's own");
    }
    let mut bytes = name.len();
    let mut names = HashSet::new();
    for (name, value) in labels {
        check_name(name)?;
        bytes += name.len() + value.len();
        if !names.insert(label_name(name)) {
            return Err("it has a label twice");
        }
    }
    if bytes > MAX_METRIC_TEXT {
        return Err("its name and its labels have more than 1024 bytes; make them shorter");
    }
    Ok(())
}

fn check_name(name: &str) -> Result<(), &'static str> {
    if !(1..=MAX_METRIC_NAME).contains(&name.len()) {
        return Err("a name of a metric or a label has 1 to 200 bytes; make it shorter");
    }
    if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_:.-/".contains(&byte)) {
        return Err("a name of a metric or a label has letters, digits and _ : . - / only");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn update(name: &str, labels: &[(&str, &str)]) -> Update {
        let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Update {
            actor: Some("detect.0".into()),
            name: name.into(),
            labels,
            change: Change::Counter { added: 1, at_least: 0 },
        }
    }

    #[test]
    fn a_series_arrives_with_its_actor_and_its_worker() {
        let key = update("frames", &[("kind", "a\nb"), ("worker", "mine")]).key("detect").unwrap();
        let labels: Vec<_> = key.labels().map(|label| (label.key(), label.value())).collect();
        let expected = [
            ("actor", "detect.0"),
            ("worker", "detect"),
            ("kind", "a\n    | b"),
            ("exported_worker", "mine"),
        ];
        assert_eq!((key.name(), labels), ("frames", expected.to_vec()));
    }

    // WIRE-1.
    #[test]
    fn what_is_no_name_or_too_long_is_refused() {
        let long = "x".repeat(MAX_METRIC_NAME + 1);
        let value = "v".repeat(MAX_METRIC_TEXT);
        let many: Vec<_> = (0..=MAX_METRIC_LABELS).map(|i| i.to_string()).collect();
        let many: Vec<_> = many.iter().map(|name| (name.as_str(), "")).collect();
        let bad: &[(&str, &[(&str, &str)])] = &[
            ("", &[]),
            ("a b", &[]),
            ("größe", &[]),
            (&long, &[]),
            ("tensorpost_frames_sent_total", &[]),
            ("x", &[("", "")]),
            ("x", &[("k", &value)]),
            ("x", &[("k", "1"), ("k", "2")]),
            ("x", &[("actor", "1"), ("exported_actor", "2")]),
            ("x", &many),
        ];
        for (name, labels) in bad {
            assert!(update(name, labels).key("w").is_err(), "{name} {labels:?}");
        }
    }
}
