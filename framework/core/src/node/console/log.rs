//! The latest records of a node's log, for `tensorpost log`.
//!
//! The thread that writes the log puts them in and the console's takes them out. The supervisor takes no part
//! in that, so no watcher makes it wait (CON-1). Records are bounded in number and in bytes (CON-3).

use std::collections::VecDeque;
use std::time::SystemTime;

use parking_lot::Mutex;

use super::protocol::LogLine;
use crate::node::limits::{MAX_LOG_ANSWER, MAX_LOG_BYTES, MAX_LOG_LINE, MAX_LOG_LINES};
use crate::observe::log::{LogRecord, Pairs, Severity};
use crate::observe::text::{cut, shown};

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct LogRing(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    lines: VecDeque<LogLine>,
    bytes: usize,
    last: u64,
}

impl LogRing {
    /// Adds a record of a worker, on another host if `host` names one. Its texts are bounded and plain
    /// already.
    pub(crate) fn worker(&self, host: Option<&str>, worker: &str, record: &LogRecord) {
        let fields: Vec<_> = record.fields.iter().collect();
        let between = if fields.is_empty() || record.message.is_empty() { "" } else { " " };
        let text = format!("{}{between}{}", record.message, Pairs(&fields));
        self.put(record.severity, host, Some(worker), &record.target, text);
    }

    /// Adds a record of the node itself, about a worker or not.
    pub(crate) fn node(&self, severity: Severity, worker: Option<&str>, text: &str) {
        self.put(severity, None, worker, "tensorpost::node", shown(text.to_owned(), MAX_LOG_LINE));
    }

    fn put(&self, severity: Severity, host: Option<&str>, worker: Option<&str>, target: &str, text: String) {
        let unix_ms = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let mut state = self.0.lock();
        state.last += 1;
        let line = LogLine {
            number: state.last,
            unix_ms: unix_ms.map_or(0, |since| since.as_millis() as u64),
            severity,
            host: host.map(str::to_owned),
            worker: worker.map(str::to_owned),
            target: target.to_owned(),
            text: cut(text, MAX_LOG_LINE),
        };
        state.bytes += bytes(&line);
        state.lines.push_back(line);
        while state.bytes > MAX_LOG_BYTES || state.lines.len() > MAX_LOG_LINES {
            let Some(oldest) = state.lines.pop_front() else { break };
            state.bytes -= bytes(&oldest);
        }
    }

    /// Returns the first records with a number above `after`.
    pub(crate) fn after(&self, after: u64) -> Vec<LogLine> {
        let state = self.0.lock();
        let first = state.lines.partition_point(|line| line.number <= after);
        state.lines.range(first..).take(MAX_LOG_ANSWER).cloned().collect()
    }
}

fn bytes(line: &LogLine) -> usize {
    let names = [&line.host, &line.worker].into_iter().flatten().map(String::len);
    line.text.len() + line.target.len() + names.sum::<usize>() + size_of::<LogLine>()
}

#[cfg(test)]
mod tests {
    use super::*;

    // CON-3.
    #[test]
    fn it_keeps_the_latest_and_no_more_than_its_bounds() {
        let ring = LogRing::default();
        (0..3 * MAX_LOG_LINES).for_each(|i| ring.node(Severity::Info, None, &format!("event {i}")));
        let first = ring.after(0);
        assert_eq!(first.len(), MAX_LOG_ANSWER);
        assert_eq!(first[0].number, (2 * MAX_LOG_LINES + 1) as u64);
        let last = ring.after((3 * MAX_LOG_LINES - 1) as u64);
        assert_eq!((last.len(), last[0].text.as_str()), (1, "event 3071"));
        assert!(ring.after(u64::MAX).is_empty());
        (0..MAX_LOG_LINES).for_each(|_| ring.node(Severity::Info, Some("w"), &"x\n".repeat(MAX_LOG_LINE)));
        let state = ring.0.lock();
        assert!(state.bytes <= MAX_LOG_BYTES && state.lines.len() < MAX_LOG_LINES);
        assert_eq!(state.bytes, state.lines.iter().map(bytes).sum::<usize>());
    }

    #[test]
    fn a_workers_record_has_its_fields_behind_it() {
        let ring = LogRing::default();
        let fields = vec![("frame".to_owned(), "7".to_owned()), ("late".to_owned(), "true".to_owned())];
        let (target, message) = ("demo".to_owned(), "dropped".to_owned());
        let severity = Severity::Warn;
        let record = LogRecord { severity, target, message, fields, spans: vec![], location: None };
        ring.worker(None, "blur", &record);
        ring.worker(Some("1 left"), "blur", &record);
        let (line, of_host) = (&ring.after(0)[0], &ring.after(1)[0]);
        assert_eq!((line.text.as_str(), line.worker.as_deref()), ("dropped frame=7 late=true", Some("blur")));
        assert_eq!((line.host.as_deref(), of_host.host.as_deref()), (None, Some("1 left")));
    }
}
