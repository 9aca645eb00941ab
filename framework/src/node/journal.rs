//! The node's log, written by a thread of its own.
//!
//! The supervisor must not wait for anybody, and a subscriber may: its terminal is paused, its pipe is full. So events
//! of the workers and of the supervisor itself go through a bounded queue; what finds no room is counted, and the count
//! is reported when there is room again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use tracing::Dispatch;
use tracing::subscriber::NoSubscriber;

use crate::node::limits::JOURNAL_EVENTS;
use crate::observe::log::{LogRecord, Severity, emit};

enum Entry {
    Worker(Arc<str>, LogRecord),
    Node(Severity, Option<Arc<str>>, String),
}

/// The queue to the log's thread. Dropping it lets what is in it be written, for at most a second.
pub(crate) struct Journal {
    entries: Option<SyncSender<Entry>>,
    dropped: Arc<AtomicU64>,
    done: Receiver<()>,
}

impl Journal {
    /// Starts the thread. It writes to the subscriber of the calling thread, if that has one of its own.
    pub(crate) fn start() -> std::io::Result<Self> {
        let (entries, queue) = sync_channel(JOURNAL_EVENTS);
        let (done_sender, done) = sync_channel(0);
        let dropped = Arc::new(AtomicU64::new(0));
        let counted = dropped.clone();
        let dispatch = tracing::dispatcher::get_default(Dispatch::clone);
        std::thread::Builder::new().name("tensorpost-log".to_owned()).spawn(move || {
            let _done = done_sender;
            if dispatch.is::<NoSubscriber>() {
                write(&queue, &counted);
            } else {
                tracing::dispatcher::with_default(&dispatch, || write(&queue, &counted));
            }
        })?;
        Ok(Journal { entries: Some(entries), dropped, done })
    }

    /// An event of a worker.
    pub(crate) fn worker(&self, name: &Arc<str>, record: LogRecord) {
        self.put(Entry::Worker(name.clone(), record));
    }

    /// An event of the node itself, about a worker or not.
    pub(crate) fn node(&self, severity: Severity, worker: Option<&Arc<str>>, text: String) {
        self.put(Entry::Node(severity, worker.cloned(), text));
    }

    fn put(&self, entry: Entry) {
        if self.entries.as_ref().is_none_or(|entries| entries.try_send(entry).is_err()) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.entries = None;
        // Disconnected: the thread is done. Timeout: its subscriber is stuck, and that must not hold the node.
        let _: Result<(), RecvTimeoutError> = self.done.recv_timeout(Duration::from_secs(1));
    }
}

fn write(queue: &Receiver<Entry>, dropped: &AtomicU64) {
    for entry in queue {
        match entry {
            Entry::Worker(worker, record) => emit(&worker, &record),
            Entry::Node(severity, worker, text) => note(severity, worker.as_deref(), &text),
        }
        report_dropped(dropped);
    }
    report_dropped(dropped);
}

fn report_dropped(dropped: &AtomicU64) {
    let lost = dropped.swap(0, Ordering::Relaxed);
    if lost > 0 {
        note(Severity::Warn, None, &format!("{lost} events of the log were dropped: its reader is too slow"));
    }
}

fn note(severity: Severity, worker: Option<&str>, text: &str) {
    macro_rules! event {
        ($level:ident) => {
            tracing::event!(target: "tensorpost::node", tracing::Level::$level, worker, "{text}")
        };
    }
    match severity {
        Severity::Error => event!(ERROR),
        Severity::Warn => event!(WARN),
        Severity::Info => event!(INFO),
        Severity::Debug => event!(DEBUG),
        Severity::Trace => event!(TRACE),
    }
}
