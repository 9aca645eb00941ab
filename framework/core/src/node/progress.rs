//! Progress for people: what is shown, and the handle of a running display. The crate that watches draws it,
//! on a thread of its own (`watcher`).

use std::fmt;
use std::io::Write;
use std::time::Duration;

use super::watcher::watcher;
use crate::observe::metrics::{Metrics, Row};

/// A snapshot to show.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ShownProgress {
    /// The name of the shown thing; empty if the name is plain from the context.
    pub title: String,
    /// The actors or stages, in the order in which they are shown.
    pub stages: Vec<ShownStage>,
    /// Bytes lent between processes at this moment.
    pub bytes_in_flight: u64,
}

/// An actor, or a stage of several.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ShownStage {
    /// The name.
    pub name: String,
    /// How many items it has handled so far. The rate is computed from this.
    pub done: u64,
    /// The total, if it is known.
    pub of: Option<u64>,
    /// Messages that wait for it.
    pub queued: usize,
    /// How long it takes for one item.
    pub each: Option<Duration>,
    /// Further text to show.
    pub note: String,
}

/// A running display of progress: rates, queues and bytes in flight.
///
/// On a terminal a few rows, one for each stage, are rewritten in place. Elsewhere (a file, a pipe, a CI log)
/// a plain line comes every few seconds. A closure supplies the snapshots, so a node or anything else can be
/// shown; [`Node::progress`](crate::node::Node::progress) shows the actors of a node. A thread of its own
/// calls the closure, so a slow source delays nobody. Write errors are ignored: progress fails nobody.
///
/// **On drop** the thread asks once more, writes that snapshot with the rates of the whole run, and has ended
/// when `drop` returns.
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// use tensorpost::observe::{ProgressDisplay, ShownProgress, ShownStage};
///
/// let frames = Arc::new(AtomicU64::new(0));
/// let counted = frames.clone();
/// let progress = ProgressDisplay::start(move || {
///     let done = counted.load(Ordering::Relaxed);
///     let stage = ShownStage { name: "frames".into(), done, of: Some(100), ..ShownStage::default() };
///     Some(ShownProgress { stages: vec![stage], ..ShownProgress::default() })
/// });
/// frames.store(100, Ordering::Relaxed);
/// drop(progress); // the last line is written
/// ```
#[derive(Debug)]
#[must_use = "the display ends when this drops"]
pub struct ProgressDisplay {
    _running: Option<RunningDisplay>,
}

/// A display that the crate that watches runs. Its drop ends it.
pub type RunningDisplay = Box<dyn fmt::Debug + Send + Sync>;

/// The source of a display's snapshots; `None` is its end.
pub type ProgressSource = Box<dyn FnMut() -> Option<ShownProgress> + Send>;

/// A file for plain lines of progress, and the time from line to line.
pub type ProgressFile = (Box<dyn Write + Send>, Duration);

impl From<&Metrics> for ShownProgress {
    fn from(metrics: &Metrics) -> Self {
        let stage = |Row { host, name, handled, queued, p50, .. }| ShownStage {
            name: host.map_or_else(|| name.clone(), |host| format!("{name} on {host}")),
            done: handled,
            of: None,
            queued,
            each: p50,
            note: String::new(),
        };
        // A row that is compared with nothing covers the time since the beginning.
        let stages = metrics.rows(&Metrics::default()).into_iter().map(stage).collect();
        ShownProgress { title: String::new(), stages, bytes_in_flight: metrics.bytes_in_flight() }
    }
}

impl ProgressDisplay {
    /// Shows the snapshots of `source` on stderr. The display ends by itself when `source` returns `None`.
    pub fn start(source: impl FnMut() -> Option<ShownProgress> + Send + 'static) -> Self {
        ProgressDisplay { _running: watcher().show_progress(Box::new(source), None) }
    }

    /// Writes a plain line to `out` every `every`: for a log file.
    pub fn plain(
        source: impl FnMut() -> Option<ShownProgress> + Send + 'static,
        out: impl Write + Send + 'static,
        every: Duration,
    ) -> Self {
        ProgressDisplay { _running: watcher().show_progress(Box::new(source), Some((Box::new(out), every))) }
    }

    /// Returns a display that shows nothing.
    pub fn off() -> Self {
        ProgressDisplay { _running: None }
    }
}
