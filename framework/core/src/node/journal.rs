//! The node's log, written by a thread of its own.
//!
//! The supervisor waits for nobody, but a subscriber may have to wait: its terminal is paused, or its pipe is
//! full. So events of the workers and of the supervisor go through a queue. Events that find no room are
//! dropped and counted, and the count is reported when there is room again (MBX-2). The queue is bounded in
//! events and in bytes. Workers' events leave a part of it for the node's own events, so the flood of one
//! worker's log does not displace the supervisor's events about that worker.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use tracing::Dispatch;
use tracing::subscriber::NoSubscriber;

use crate::node::console::LogRing;
use crate::node::limits::{JOURNAL_BYTES, JOURNAL_EVENTS, JOURNAL_RESERVE};
use crate::observe::log::{LogRecord, Severity, emit, event_of};

enum Entry {
    /// An event of a worker, with its host if that is another one.
    Worker(Option<Arc<str>>, Arc<str>, LogRecord),
    Node(Severity, Option<Arc<str>>, String),
}

/// The present size of the queue.
#[derive(Default)]
struct Queued {
    events: AtomicUsize,
    bytes: AtomicUsize,
}

impl Queued {
    fn written(&self, bytes: usize) {
        self.events.fetch_sub(1, Relaxed);
        self.bytes.fetch_sub(bytes, Relaxed);
    }
}

/// A reader of the log beside the log's thread. It never waits.
pub(crate) trait BesideLog: Send + Sync {
    /// Takes a record of a worker, or of the node. `stands_for` is the number of earlier dropped records that
    /// this one reports, or 1.
    fn put(&self, worker: &str, record: &LogRecord, stands_for: u64);
}

/// The queue to the log's thread. Dropping it waits until its events are written, for at most a second.
pub(crate) struct Journal {
    entries: Option<SyncSender<(Entry, usize)>>,
    queued: Arc<Queued>,
    dropped: Arc<AtomicU64>,
    done: Receiver<()>,
    /// On an agent of several hosts: takes the records for the head.
    pub(crate) beside: Option<Arc<dyn BesideLog>>,
}

impl Journal {
    /// Starts the thread. It writes to the subscriber of the calling thread, if that has one of its own, and
    /// keeps the latest records in `ring`.
    pub(crate) fn start(ring: Option<Arc<LogRing>>) -> std::io::Result<Self> {
        let (entries, queue) = sync_channel(JOURNAL_EVENTS);
        let (done_sender, done) = sync_channel(0);
        let dropped = Arc::new(AtomicU64::new(0));
        let counted = dropped.clone();
        let queued = Arc::<Queued>::default();
        let in_queue = Arc::clone(&queued);
        let dispatch = tracing::dispatcher::get_default(Dispatch::clone);
        std::thread::Builder::new().name("tp-log".to_owned()).spawn(move || {
            let _done = done_sender;
            if dispatch.is::<NoSubscriber>() {
                write(&queue, &in_queue, &counted, ring);
            } else {
                tracing::dispatcher::with_default(&dispatch, || write(&queue, &in_queue, &counted, ring));
            }
        })?;
        Ok(Journal { entries: Some(entries), queued, dropped, done, beside: None })
    }

    /// Logs an event of a worker.
    pub(crate) fn worker(&self, name: &Arc<str>, record: LogRecord) {
        if let Some(beside) = &self.beside {
            beside.put(name, &record, 1);
        }
        self.worker_here(name, record);
    }

    /// Logs an event of a worker that no other host is told of.
    pub(crate) fn worker_here(&self, name: &Arc<str>, record: LogRecord) {
        let bytes = record.bytes();
        self.put_of_worker(Entry::Worker(None, name.clone(), record), bytes, JOURNAL_RESERVE);
    }

    /// Logs an event of another host. All other hosts together take half of the queue at most, so that a host
    /// that floods its log hides nothing of this host's workers.
    #[cfg(feature = "hosts")]
    pub(crate) fn of_host(&self, host: &Arc<str>, worker: &str, record: LogRecord) {
        let bytes = record.bytes();
        self.put_of_worker(Entry::Worker(Some(host.clone()), worker.into(), record), bytes, 2);
    }

    /// Tells the reader beside the log of an event of the node, as the record of a worker.
    fn tell_beside(&self, severity: Severity, worker: Option<&Arc<str>>, text: &str, stands_for: u64) {
        let Some(beside) = &self.beside else { return };
        let (target, message) = ("tensorpost::node".to_owned(), text.to_owned());
        let record =
            LogRecord { severity, target, message, fields: Vec::new(), spans: Vec::new(), location: None };
        beside.put(worker.map_or("node", |worker| worker), &record, stands_for);
    }

    /// Logs an error of the node about a worker's message. The worker can cause any number of them, so they
    /// count as the worker's.
    pub(crate) fn about(&self, name: &Arc<str>, text: String) {
        self.tell_beside(Severity::Error, Some(name), &text, 1);
        let bytes = text.len();
        self.put_of_worker(Entry::Node(Severity::Error, Some(name.clone()), text), bytes, JOURNAL_RESERVE);
    }

    /// Queues an event, and leaves one `reserve`th of the queue to others.
    fn put_of_worker(&self, entry: Entry, bytes: usize, reserve: usize) {
        let (events, waiting) = (self.queued.events.load(Relaxed), self.queued.bytes.load(Relaxed));
        let most = |all: usize| all - all / reserve;
        if events >= most(JOURNAL_EVENTS) || waiting + bytes > most(JOURNAL_BYTES) {
            self.dropped.fetch_add(1, Relaxed);
            return;
        }
        self.put(entry, bytes);
    }

    /// Logs an event of the node itself, about a worker or not.
    pub(crate) fn node(&self, severity: Severity, worker: Option<&Arc<str>>, text: String) {
        self.tell_beside(severity, worker, &text, 1);
        let bytes = text.len();
        self.put(Entry::Node(severity, worker.cloned(), text), bytes);
    }

    /// Logs that a worker has dropped `count` events.
    pub(crate) fn worker_dropped(&self, name: &Arc<str>, count: u64) {
        let text = format!("{count} events of its log were dropped: there was no room for them");
        self.tell_beside(Severity::Warn, Some(name), &text, count);
        let bytes = text.len();
        self.put(Entry::Node(Severity::Warn, Some(name.clone()), text), bytes);
    }

    fn put(&self, entry: Entry, bytes: usize) {
        self.queued.events.fetch_add(1, Relaxed);
        self.queued.bytes.fetch_add(bytes, Relaxed);
        if self.entries.as_ref().is_none_or(|entries| entries.try_send((entry, bytes)).is_err()) {
            self.queued.written(bytes);
            self.dropped.fetch_add(1, Relaxed);
        }
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.entries = None;
        // Disconnected: the thread is done. Timeout: its subscriber is stuck, and that must not hold up the
        // node.
        let _: Result<(), RecvTimeoutError> = self.done.recv_timeout(Duration::from_secs(1));
    }
}

fn write(queue: &Receiver<(Entry, usize)>, queued: &Queued, dropped: &AtomicU64, ring: Option<Arc<LogRing>>) {
    let ring = ring.as_deref();
    for (entry, bytes) in queue {
        queued.written(bytes);
        match entry {
            Entry::Worker(host, worker, record) => {
                let host = host.as_deref();
                // Before the subscriber, which may be stuck.
                if let Some(ring) = ring {
                    ring.worker(host, &worker, &record);
                }
                emit(host, &worker, &record);
            }
            Entry::Node(severity, worker, text) => note(severity, worker.as_deref(), &text, ring),
        }
        report_dropped(dropped, ring);
    }
    report_dropped(dropped, ring);
}

fn report_dropped(dropped: &AtomicU64, ring: Option<&LogRing>) {
    let lost = dropped.swap(0, Relaxed);
    if lost > 0 {
        let text = format!("{lost} events of the log were dropped: its reader is too slow");
        note(Severity::Warn, None, &text, ring);
    }
}

fn note(severity: Severity, worker: Option<&str>, text: &str, ring: Option<&LogRing>) {
    if let Some(ring) = ring {
        ring.node(severity, worker, text);
    }
    event_of!(severity, target: "tensorpost::node", worker, "{text}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::MAX_LOG_TEXT;

    /// A subscriber that takes nothing until the test allows it.
    struct Stuck(parking_lot::Mutex<Receiver<()>>);

    impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Stuck {
        fn on_event(&self, _: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
            // An error means that the test has ended.
            let _ = self.0.lock().recv();
        }
    }

    // MBX-2.
    #[test]
    fn a_worker_that_floods_its_log_fills_no_memory_and_hides_nothing_of_the_nodes() {
        use tracing_subscriber::layer::SubscriberExt;

        let (go, wait) = sync_channel::<()>(0);
        let subscriber = tracing_subscriber::registry().with(Stuck(parking_lot::Mutex::new(wait)));
        let journal = tracing::subscriber::with_default(subscriber, || Journal::start(None).unwrap());
        let name: Arc<str> = "evil".into();
        let record = LogRecord {
            severity: Severity::Info,
            target: "t".into(),
            message: "x".repeat(MAX_LOG_TEXT),
            fields: vec![],
            spans: vec![],
            location: None,
        };
        for _ in 0..2 * JOURNAL_EVENTS {
            journal.worker(&name, record.clone());
        }
        assert!(journal.queued.bytes.load(Relaxed) <= JOURNAL_BYTES);
        let dropped = journal.dropped.load(Relaxed);
        assert!(dropped > 0);
        (0..100).for_each(|_| journal.node(Severity::Error, Some(&name), "it is killed".to_owned()));
        assert_eq!(journal.dropped.load(Relaxed), dropped, "the node's own events found room");
        drop(go);
    }
}
