//! An agent's log on its way to the head, as bytes between the two gateways. Each gateway bounds it (HOST-9).
//!
//! Records that find no room on the way are dropped, and counted where the next records arrive.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tensorpost_hosts::frame::Log;
use tensorpost_hosts::limits::{LOG_PAUSE, MAX_LOG, MAX_LOG_RECORDS};
use tokio::sync::mpsc::UnboundedSender;

use super::command::Command;
use super::remotes::Remotes;
use crate::transport::Transport;
use crate::transport::gateway_messages::{FromGateway, HostRecord};

/// Encodes these records as a frame; `None` if they do not fit one.
fn encode(first: u64, records: &[HostRecord]) -> Option<Log> {
    let mut out = Vec::new();
    for record in records {
        // The records hold texts and numbers, which MessagePack always takes.
        record.serialize(&mut rmp_serde::Serializer::new(&mut out)).ok()?;
    }
    let count = u16::try_from(records.len()).ok().filter(|count| usize::from(*count) <= MAX_LOG_RECORDS)?;
    (out.len() <= MAX_LOG).then(|| Log { first, count, records: Bytes::from(out) })
}

/// Decodes the records of a frame, and counts the invalid ones (WIRE-1).
fn decode(log: &Log) -> (Vec<HostRecord>, u64) {
    let mut from = rmp_serde::Deserializer::from_read_ref(&log.records[..]);
    let mut records = Vec::new();
    // After an invalid record nobody knows where the next begins.
    while records.len() < usize::from(log.count) {
        let Ok(HostRecord { worker, record }) = HostRecord::deserialize(&mut from) else { break };
        records.push(HostRecord { worker, record: record.bounded() });
    }
    let none = u64::from(log.count) - records.len() as u64;
    (records, none)
}

impl Remotes {
    /// Sends records of this host's log to the head.
    pub(super) fn tell_log(&self, first: u64, records: &[HostRecord]) {
        let log = encode(first, records);
        if let Some((head, log)) = self.get(&0).zip(log) {
            head.peer.tell_log(log);
        }
    }

    /// Passes records of another host's log to this host's node. `lost` is the number of records that did not
    /// arrive.
    pub(super) fn log_of(
        &mut self,
        host: u16,
        lost: u64,
        log: &Log,
        transport: &Transport,
        to: &UnboundedSender<Command>,
    ) {
        let Some(remote) = self.get_mut(&host) else { return };
        let (records, none) = decode(log);
        let (lost, came) = (remote.log_lost + lost + none, records.len() as u64);
        let said = FromGateway::Log { host, lost, records };
        let told = transport.control.send_if_room(said.sealed());
        remote.log_lost = if told { 0 } else { lost + came };
        if !told && !std::mem::replace(&mut remote.owes_log, true) {
            // No more records may follow, so a command reports the loss later.
            let to = to.clone();
            tokio::spawn(async move {
                tokio::time::sleep(LOG_PAUSE).await;
                // An error means that the gateway has ended, and with it the log.
                let _ = to.send(Command::LogLost(host));
            });
        }
    }

    /// Tells this host's node how many records of another host's log were lost, if no records have come
    /// since.
    pub(super) fn log_lost(&mut self, host: u16, transport: &Transport, to: &UnboundedSender<Command>) {
        if let Some(remote) = self.get_mut(&host) {
            remote.owes_log = false;
            if remote.log_lost > 0 {
                self.log_of(host, 0, &Log::default(), transport, to);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{MAX_LOG_FIELDS, MAX_LOG_RECORD, MAX_LOG_SPANS};
    use crate::node::limits::MAX_NAME;
    use crate::observe::log::{LogRecord, Severity};

    fn record(text: &str, fields: usize) -> HostRecord {
        let record = LogRecord {
            severity: Severity::Warn,
            target: text.to_owned(),
            message: text.to_owned(),
            fields: vec![(text.to_owned(), text.to_owned()); fields],
            spans: vec![text.to_owned(); MAX_LOG_SPANS],
            location: Some((text.to_owned(), 7)),
        };
        HostRecord { worker: text.to_owned(), record }
    }

    #[test]
    fn records_come_back_and_what_is_none_is_counted() {
        let records = [record("a", 2), record("b", 0), record("", 1)];
        let log = encode(5, &records).expect("they fit");
        assert_eq!((log.first, log.count), (5, 3));
        assert_eq!(decode(&log), (records.to_vec(), 0));
        // WIRE-1.
        let cut = Log { records: log.records.slice(..log.records.len() - 1), ..log.clone() };
        assert_eq!(decode(&cut), (records[..2].to_vec(), 1));
        let more = Log { count: 9, ..log };
        assert_eq!(decode(&more).1, 6);
        let garbage = Log { first: 1, count: 200, records: Bytes::from(vec![0xdd; 5000]) };
        assert_eq!(decode(&garbage), (vec![], 200));
    }

    #[test]
    fn the_longest_record_fits_and_one_of_a_liar_is_cut_and_plain() {
        let longest = HostRecord {
            worker: "w".repeat(MAX_NAME),
            record: record(&"x".repeat(MAX_LOG_RECORD), MAX_LOG_FIELDS).record.bounded(),
        };
        assert!(longest.record.bytes() > MAX_LOG_RECORD - 1024);
        assert!(encode(1, std::slice::from_ref(&longest)).is_some());
        let liar = record("well\n\u{1b}[2J", 4000);
        let mut out = Vec::new();
        liar.serialize(&mut rmp_serde::Serializer::new(&mut out)).expect("texts");
        let (records, none) = decode(&Log { first: 1, count: 1, records: Bytes::from(out) });
        assert!(none == 0 && records[0].record.fields.len() == MAX_LOG_FIELDS);
        assert_eq!(records[0].record.message, "well\n    | \\u{1b}[2J");
    }
}
