//! An agent's log on its way to the head: the records that the agent's journal writes, within bounds, queued
//! for the gateway.
//!
//! Records are numbered as they come, also those that find no room, so that the head knows how many are
//! missing. The journal gives records and the supervisor takes batches, where its gateway has room for them:
//! neither waits.
//!
//! **Bounds** (MBX-2, HOST-9). [`LOG_RATE`] bytes a second and [`LOG_BURST`] at once. At most [`LOG_BURST`]
//! bytes wait while the gateway reads nothing.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;
use tensorpost_hosts::limits::{LOG_BASE, LOG_BURST, LOG_RATE, MAX_LOG_RECORDS};
use tensorpost_hosts::net::Allowance;
use tensorpost_hosts::verdict::Moment;

use crate::node::journal::BesideLog;
use crate::node::limits::MAX_LOG_BATCH;
use crate::observe::log::LogRecord;
use crate::transport::gateway_messages::{HostRecord, ToGateway};

/// How soon the head is told of dropped records if no later record shows it.
pub(crate) const TELL_DROPPED: Duration = Duration::from_millis(250);

/// The most records that one dropped record can stand for.
const MOST_DROPPED: u64 = 1 << 32;

/// See the module.
#[derive(Debug)]
pub(crate) struct HeadLog {
    allowance: Allowance,
    waiting: VecDeque<(u64, u64, HostRecord)>,
    /// The bytes of the waiting records, as the bounds count them.
    bytes: u64,
    /// The number of the next record.
    next: u64,
    /// The number up to which the head was told, and when.
    told: u64,
    told_at: Option<Moment>,
}

impl Default for HeadLog {
    fn default() -> Self {
        let allowance = Allowance::new(LOG_RATE, LOG_BURST);
        HeadLog { allowance, waiting: VecDeque::new(), bytes: 0, next: 1, told: 1, told_at: None }
    }
}

impl BesideLog for Mutex<HeadLog> {
    fn put(&self, worker: &str, record: &LogRecord, stands_for: u64) {
        self.lock().put(worker, record, stands_for);
    }
}

impl HeadLog {
    /// Queues a record, or drops and counts it. `stands_for` is the number of earlier dropped records that
    /// this one reports, or 1. If this record is dropped, those count as dropped here.
    fn put(&mut self, worker: &str, record: &LogRecord, stands_for: u64) {
        self.put_at(worker, record, stands_for, Moment::now());
    }

    fn put_at(&mut self, worker: &str, record: &LogRecord, stands_for: u64, now: Moment) {
        let number = self.next;
        self.next += 1;
        let bytes = LOG_BASE + (worker.len() + record.bytes()) as u64;
        if self.bytes + bytes <= LOG_BURST && self.allowance.take(bytes, now) {
            self.bytes += bytes;
            let record = HostRecord { worker: worker.to_owned(), record: record.clone() };
            self.waiting.push_back((number, bytes, record));
        } else {
            // The count is a worker's word, so it is bounded.
            self.next += stands_for.clamp(1, MOST_DROPPED) - 1;
        }
    }

    /// Returns the next batch for the head. A batch without records says how many were dropped.
    pub(crate) fn batch(&mut self) -> Option<ToGateway> {
        self.batch_at(Moment::now())
    }

    fn batch_at(&mut self, now: Moment) -> Option<ToGateway> {
        let first = self.waiting.front().map_or(self.next, |(number, ..)| *number);
        let (mut records, mut batch) = (Vec::new(), 0);
        while let Some((number, bytes, _)) = self.waiting.front() {
            let follows = *number == first + records.len() as u64;
            let fits = batch == 0 || batch + bytes <= MAX_LOG_BATCH as u64;
            if !follows || !fits || records.len() >= MAX_LOG_RECORDS {
                break;
            }
            let Some((_, bytes, record)) = self.waiting.pop_front() else { break };
            self.bytes -= bytes;
            batch += bytes;
            records.push(record);
        }
        if records.is_empty() {
            let is_due = self.told_at.is_none_or(|at| now.since(at) >= TELL_DROPPED);
            if !self.owes() || !is_due || !self.allowance.take(LOG_BASE, now) {
                return None;
            }
        }
        self.told_at = Some(now);
        self.told = first + records.len() as u64;
        Some(ToGateway::Log { first, records })
    }

    /// Whether the head still has to hear how many were dropped.
    pub(crate) fn owes(&self) -> bool {
        self.told != self.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{MAX_LOG_RECORD, MAX_LOG_TEXT};
    use crate::observe::log::Severity;

    fn record(bytes: usize) -> LogRecord {
        LogRecord {
            severity: Severity::Info,
            target: "t".to_owned(),
            message: "x".repeat(bytes),
            fields: vec![],
            spans: vec![],
            location: None,
        }
    }

    fn at(millis: u64) -> Moment {
        Moment::since_boot(Duration::from_millis(millis))
    }

    fn told(log: &mut HeadLog, now: Moment) -> Vec<(u64, usize)> {
        let batch = std::iter::from_fn(|| log.batch_at(now));
        let batch = batch.map(|batch| match batch {
            ToGateway::Log { first, records } => {
                let bytes: usize = records.iter().map(|of| of.record.bytes()).sum();
                assert!(records.len() <= 1 || bytes <= MAX_LOG_BATCH);
                (first, records.len())
            }
            other => panic!("{other:?}"),
        });
        batch.collect()
    }

    #[test]
    fn what_follows_goes_together_in_bounded_batches() {
        let mut log = HeadLog::default();
        assert!(told(&mut log, at(0)).is_empty() && !log.owes());
        (0..10).for_each(|_| log.put_at("w", &record(MAX_LOG_TEXT), 1, at(0)));
        let batches = told(&mut log, at(0));
        assert_eq!(batches.iter().map(|(_, count)| count).sum::<usize>(), 10);
        assert_eq!(batches[0], (1, MAX_LOG_BATCH / (MAX_LOG_TEXT + LOG_BASE as usize)));
        // The longest possible record goes alone.
        log.put_at("w", &record(MAX_LOG_RECORD), 1, at(0));
        assert_eq!(told(&mut log, at(0)), [(11, 1)]);
        (0..1000).for_each(|_| log.put_at("w", &record(1), 1, at(2000)));
        assert_eq!(
            told(&mut log, at(2000)).into_iter().map(|(_, count)| count).max(),
            Some(MAX_LOG_BATCH / 67)
        );
    }

    // HOST-9: bounded by bytes and by rate, and counted.
    #[test]
    fn a_flood_is_cut_to_the_rate_and_what_was_dropped_is_said() {
        let mut log = HeadLog::default();
        // Nobody takes a batch meanwhile.
        (0..10_000).for_each(|_| log.put_at("w", &record(1000), 1, at(0)));
        // One record reports that the worker itself had dropped some.
        log.put_at("w", &record(1000), 7, at(0));
        log.put_at("w", &record(1000), u64::MAX, at(0));
        assert!(log.bytes <= LOG_BURST && log.owes());
        let kept = log.waiting.len() as u64;
        let batches = told(&mut log, at(0));
        assert_eq!(batches.iter().map(|(_, count)| *count as u64).sum::<u64>(), kept);
        // The number is sent a little later, unless another record shows it.
        assert!(log.owes() && told(&mut log, at(249)).is_empty());
        assert_eq!(told(&mut log, at(250)), [(10_008 + MOST_DROPPED, 0)]);
        assert!(!log.owes() && told(&mut log, at(1000)).is_empty());
        // In ten seconds ten times the rate.
        let mut bytes = 0;
        while log.allowance.take(1, at(1000)) {}
        for millis in 1001..=11_000 {
            (0..10).for_each(|_| log.put_at("w", &record(1000), 1, at(millis)));
            while let Some(ToGateway::Log { records, .. }) = log.batch_at(at(millis)) {
                bytes += records.iter().map(|of| of.record.bytes() as u64).sum::<u64>();
            }
        }
        assert!((9 * LOG_RATE..=10 * LOG_RATE).contains(&bytes), "{bytes}");
    }
}
