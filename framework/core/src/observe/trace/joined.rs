//! A trace of another host, as bytes: its processes' records of an interval, for the file of the host that
//! asked.
//!
//! The host that traced writes it, and the command that makes the file reads it. The head between them looks
//! only at its length. It holds records and names, not rings, which are mostly empty. Its times are of the
//! traced host's own clock, and it holds the offset to the head's clock; the reader shifts them.
//!
//! **Bounds** (MBX-2): it holds a limited number of records, the latest of each process, and a limited number
//! of bytes of names. Records that are left out are counted. WIRE-1: the reader checks it record by record,
//! as it does a ring.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::collect::TracedProcess;
use super::record::{Record, WORDS};
use super::ring::{Of, Snapshot};
#[cfg(any(test, feature = "hosts"))]
use crate::limits::{MAX_HOST_TRACE, MAX_HOST_TRACE_NAMES, MAX_HOST_TRACE_RECORDS};
use crate::limits::{MAX_PROCESSES, MAX_TRACE_ENDED, MAX_TRACE_NAME};
use crate::observe::text::printable;

/// A life of a process, and its records.
#[derive(Debug)]
pub struct Process {
    pub of: TracedProcess,
    pub seen: Snapshot,
}

/// The trace of a host.
#[derive(Debug)]
pub struct HostTrace {
    pub processes: Vec<Process>,
    /// Processes that took part and ended, and are not remembered.
    pub forgotten: u64,
    /// When the trace ended.
    pub until: u64,
    /// The offset to the head's clock and its precision, in nanoseconds.
    pub clock: (i64, u64),
}

/// Why bytes are no trace of a host.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BadTrace {
    #[error("its beginning cannot be read: {0}")]
    Head(#[from] serde_json::Error),
    #[error("it has {0} bytes of records, which it does not speak of")]
    Length(usize),
    #[error("it has {0} processes or records, which are too many")]
    TooMany(usize),
}

#[derive(Serialize, Deserialize)]
struct Head {
    processes: Vec<HeadProcess>,
    forgotten: u64,
    until: u64,
    clock: (i64, u64),
}

#[derive(Serialize, Deserialize)]
struct HeadProcess {
    of: TracedProcess,
    records: usize,
    dropped: u64,
    damaged: u64,
    names_dropped: u64,
    names: Vec<(u8, u64, String)>,
}

const RECORD: usize = WORDS * 8;

impl HostTrace {
    /// Encodes the trace, in at most [`MAX_HOST_TRACE`] bytes.
    #[cfg(any(test, feature = "hosts"))]
    pub(crate) fn encode(&self) -> Result<Vec<u8>, BadTrace> {
        let each = MAX_HOST_TRACE_RECORDS / self.processes.len().max(1);
        let mut names_left = MAX_HOST_TRACE_NAMES;
        let mut words = Vec::new();
        let processes = self.processes.iter().map(|Process { of, seen }| {
            // Each process gets the same share, so a busy one cannot crowd out the others. The latest are
            // kept.
            let skipped = seen.records.len().saturating_sub(each);
            let kept = &seen.records[skipped..];
            words.extend(kept.iter().flat_map(|record| record.to_words()).flat_map(u64::to_le_bytes));
            let mut names = Vec::new();
            for ((kind, id), name) in &seen.names {
                if let Some(left) = names_left.checked_sub(name.len() + 32) {
                    names_left = left;
                    names.push((*kind as u8, *id, name.clone()));
                }
            }
            HeadProcess {
                of: of.clone(),
                records: kept.len(),
                dropped: seen.dropped + skipped as u64,
                damaged: seen.damaged,
                names_dropped: seen.names_dropped + (seen.names.len() - names.len()) as u64,
                names,
            }
        });
        let processes = processes.collect();
        let (forgotten, until, clock) = (self.forgotten, self.until, self.clock);
        let head = serde_json::to_vec(&Head { processes, forgotten, until, clock })?;
        let mut out = u32::try_from(head.len()).unwrap_or(u32::MAX).to_le_bytes().to_vec();
        out.extend(head);
        out.append(&mut words);
        if out.len() > MAX_HOST_TRACE { Err(BadTrace::Length(out.len())) } else { Ok(out) }
    }

    /// Decodes a trace, with all times shifted to the head's clock.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, BadTrace> {
        let cut = || BadTrace::Length(bytes.len());
        let (length, rest) = bytes.split_first_chunk::<4>().ok_or_else(cut)?;
        let (head, mut words) =
            rest.split_at_checked(u32::from_le_bytes(*length) as usize).ok_or_else(cut)?;
        let Head { processes, forgotten, until, clock } = serde_json::from_slice(head)?;
        if processes.len() > MAX_PROCESSES + MAX_TRACE_ENDED {
            return Err(BadTrace::TooMany(processes.len()));
        }
        let shifted = |at: u64| at.saturating_add_signed(clock.0);
        let mut read = Vec::new();
        for HeadProcess { mut of, records, dropped, damaged, names_dropped, names } in processes {
            // WIRE-1: the number is the other host's claim, and must fit the bytes that are there.
            let bytes = records.checked_mul(RECORD).ok_or(BadTrace::TooMany(records))?;
            let (own, others) = words.split_at_checked(bytes).ok_or_else(cut)?;
            words = others;
            let mut seen = Snapshot { dropped, damaged, names_dropped, ..Snapshot::default() };
            for record in own.chunks_exact(RECORD) {
                let mut words = [0; WORDS];
                for (word, bytes) in words.iter_mut().zip(record.as_chunks::<8>().0) {
                    *word = u64::from_le_bytes(*bytes);
                }
                // The second word is the record's time.
                words[1] = shifted(words[1]);
                match Record::from_words(words) {
                    Some(record) => seen.records.push(record),
                    None => seen.damaged = seen.damaged.saturating_add(1),
                }
            }
            seen.names = names.into_iter().filter_map(name).collect::<HashMap<_, _>>();
            of.name = short(&of.name);
            of.since = shifted(of.since);
            of.ended = of.ended.map(|(at, how)| (shifted(at), short(&how)));
            read.push(Process { of, seen });
        }
        if !words.is_empty() {
            return Err(BadTrace::Length(words.len()));
        }
        Ok(HostTrace { processes: read, forgotten, until: shifted(until), clock })
    }
}

/// Decodes the traces of several hosts, by name. Also returns an error for each host whose bytes are no
/// trace; the others' are good.
pub fn decode_all(
    traces: impl IntoIterator<Item = (String, Vec<u8>)>,
) -> (Vec<(String, HostTrace)>, Vec<String>) {
    let (mut read, mut bad) = (Vec::new(), Vec::new());
    for (name, trace) in traces {
        match HostTrace::decode(&trace) {
            Ok(trace) => read.push((name, trace)),
            Err(error) => bad.push(format!("host {name}: {error}")),
        }
    }
    (read, bad)
}

fn name((kind, id, name): (u8, u64, String)) -> Option<((Of, u64), String)> {
    Some(((Of::from_byte(kind)?, id), short(&name)))
}

fn short(text: &str) -> String {
    printable(&text[..text.floor_char_boundary(MAX_TRACE_NAME)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{ActorId, ProcessId};
    use crate::observe::trace::record::{Track, What};

    fn process(records: usize, name: &str) -> Process {
        let id = ProcessId::new(1, 0).expect("a slot");
        let of = TracedProcess {
            process: id,
            name: name.to_owned(),
            pid: 7,
            since: 1000,
            is_new: false,
            ended: Some((9000, "ended\n".to_owned())),
        };
        let record = |at: usize| Record {
            at: 2000 + at as u64,
            track: Track::Actor(ActorId(4)),
            what: What::HandlerEnded { key: 9, frame: None, took: 5 },
        };
        let names =
            HashMap::from([((Of::Actor, 4), "blur".to_owned()), ((Of::Message, 9), "Frame".to_owned())]);
        let seen = Snapshot {
            records: (0..records).map(record).collect(),
            dropped: 3,
            names,
            ..Snapshot::default()
        };
        Process { of, seen }
    }

    fn trace(processes: Vec<Process>, clock: (i64, u64)) -> HostTrace {
        HostTrace { processes, forgotten: 2, until: 10_000, clock }
    }

    #[test]
    fn it_comes_back_by_the_heads_clock() {
        let sent = trace(vec![process(3, "a"), process(0, "b")], (-500, 40));
        let bytes = sent.encode().expect("it is short");
        let came = HostTrace::decode(&bytes).expect("it is one");
        assert_eq!((came.forgotten, came.until, came.clock), (2, 9500, (-500, 40)));
        let Process { of, seen } = &came.processes[0];
        assert_eq!((of.since, of.ended.clone()), (500, Some((8500, "ended ".to_owned()))));
        let times: Vec<_> = seen.records.iter().map(|record| record.at).collect();
        assert_eq!((times, seen.dropped), (vec![1500, 1501, 1502], 3));
        assert_eq!((&seen.names, came.processes[1].of.name.as_str()), (&process(0, "").seen.names, "b"));
        // WIRE-1: the bytes are cut, continued, or hold an invalid record.
        assert!((0..bytes.len()).all(|length| HostTrace::decode(&bytes[..length]).is_err()));
        assert!(HostTrace::decode(&[&bytes[..], &[0; RECORD]].concat()).is_err());
        let mut odd = bytes.clone();
        let last = odd.len() - RECORD;
        odd[last..].fill(0xff);
        let odd = HostTrace::decode(&odd).expect("the others are good");
        assert_eq!((odd.processes[0].seen.records.len(), odd.processes[0].seen.damaged), (2, 1));
        // The clock is far before the beginning of time, or behind its end.
        for nanos in [i64::MIN, i64::MAX] {
            let bytes = trace(vec![process(2, "a")], (nanos, 0)).encode().expect("it is short");
            assert!(HostTrace::decode(&bytes).is_ok());
        }
    }

    // MBX-2.
    #[test]
    fn the_latest_records_of_each_process_fit_and_the_others_are_counted() {
        let much = trace(vec![process(MAX_HOST_TRACE_RECORDS, "a"), process(10, "b")], (0, 0));
        let bytes = much.encode().expect("it fits");
        assert!(bytes.len() <= MAX_HOST_TRACE);
        let came = HostTrace::decode(&bytes).expect("it is one");
        let (a, b) = (&came.processes[0].seen, &came.processes[1].seen);
        assert_eq!((a.records.len(), b.records.len()), (MAX_HOST_TRACE_RECORDS / 2, 10));
        assert_eq!(a.dropped as usize, 3 + MAX_HOST_TRACE_RECORDS / 2);
        assert_eq!(a.records.last().expect("some").at as usize, 2000 + MAX_HOST_TRACE_RECORDS - 1);
    }
}
