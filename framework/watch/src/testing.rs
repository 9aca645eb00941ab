//! The trace of a process that writes arbitrary bytes into its memory, as the node reads it (WIRE-1, MBX-2).
//!
//! For any words in the memory, a look takes no more records than the ring has. The result is always a file
//! that readers accept: slices are nested or disjoint, arrows begin before they end, and everything that
//! begins ends.

use std::collections::HashMap;

use tensorpost_core::api::node::ProcessId;
use tensorpost_core::api::watch::TracedProcess;
use tensorpost_core::api::watch::trace::{Process, Ring, WORDS};

use crate::trace::chrome::{self, Args, Event, Step};
use crate::trace::timeline;

/// Records of each ring.
pub const RECORDS: usize = 64;

/// Number of processes with rings: arrows lead from one process to another.
const PROCESSES: u16 = 2;

/// The memory of a few processes, made once and cleared between inputs.
pub struct Rings(Vec<(Ring, Ring)>);

impl Rings {
    /// Makes the rings.
    ///
    /// # Panics
    /// The system has no memory.
    pub fn create() -> Self {
        let pair = |_| {
            let writer = Ring::create(RECORDS).expect("memory");
            let reader = Ring::open(writer.export().expect("a descriptor"), RECORDS).expect("its own");
            (writer, reader)
        };
        Rings((0..PROCESSES).map(pair).collect())
    }

    /// Clears all rings.
    pub fn clear(&self) {
        self.0.iter().for_each(|(writer, _)| writer.forge_clear());
    }

    /// Makes the process `which` write a record of these words, with a right or a wrong stamp.
    pub fn record(&self, which: u8, words: [u64; WORDS], stamped: bool) {
        self.0[usize::from(which) % self.0.len()].0.forge_record(words, stamped);
    }

    /// Makes the process write these bytes where its names are, and claim that there are `len` of them.
    pub fn names(&self, which: u8, bytes: &[u8], len: u64) {
        self.0[usize::from(which) % self.0.len()].0.forge_names(bytes, len);
    }

    /// Makes the process move its cursor.
    pub fn cursor(&self, which: u8, to: u64) {
        self.0[usize::from(which) % self.0.len()].0.forge_cursor(to);
    }

    /// Looks at all rings and makes the file.
    ///
    /// # Panics
    /// The file breaks a rule.
    pub fn look(&self, now: u64, ended: Option<u64>) {
        let process = |(index, (_, reader)): (usize, &(Ring, Ring))| {
            let seen = reader.snapshot();
            assert!(seen.records.len() as u64 + seen.damaged <= RECORDS as u64, "more than the ring has");
            let of = TracedProcess {
                process: ProcessId::new(index as u16, 0).expect("a small slot"),
                name: format!("worker-{index}"),
                pid: index as u32,
                since: 1,
                is_new: true,
                ended: ended.filter(|_| index == 1).map(|at| (at, "ended".to_owned())),
            };
            Process { of, seen }
        };
        let processes: Vec<_> = self.0.iter().enumerate().map(process).collect();
        // Another host may have the same processes.
        let hosts = [(None, processes.as_slice(), now), (Some("1 left"), processes.as_slice(), now)];
        let events = timeline::events(hosts);
        well_formed(&events);
        let mut file = Vec::new();
        chrome::write(&mut file, &events, Args::default()).expect("memory takes everything");
        let read: serde_json::Value = serde_json::from_slice(&file).expect("a file that can be read");
        assert_eq!(read["traceEvents"].as_array().map(Vec::len), Some(events.len()));
    }
}

/// Panics where readers would not accept `events`.
pub(crate) fn well_formed(events: &[Event]) {
    let mut around: HashMap<u32, Vec<u64>> = HashMap::new();
    let (mut flows, mut lasting) = (HashMap::new(), HashMap::new());
    for event in events {
        match event {
            Event::Slice { tid, at, took, .. } => {
                let around = around.entry(*tid).or_default();
                while around.last().is_some_and(|end| end <= at) {
                    around.pop();
                }
                let end = at.checked_add(*took).expect("a slice ends");
                assert!(*took > 0 && around.last().is_none_or(|outer| end <= *outer), "{event:?}");
                around.push(end);
            }
            Event::Flow { step, tid, at, id, .. } => {
                let open = around.get(tid).is_some_and(|around| around.iter().any(|end| end > at));
                assert!(open, "no slice around {event:?}");
                let before = flows.insert(*id, (*step, *at));
                assert_eq!(before.is_none(), *step == Step::Begin, "{event:?}");
                assert!(before.is_none_or(|(before, then)| before != Step::End && then <= *at), "{event:?}");
            }
            Event::Async { step, id, .. } => match step {
                Step::Begin => assert!(lasting.insert(id.clone(), ()).is_none(), "{event:?} twice"),
                Step::Middle => assert!(lasting.contains_key(id), "{event:?}"),
                Step::End => assert!(lasting.remove(id).is_some(), "{event:?}"),
            },
            Event::Name { .. } | Event::Instant { .. } => {}
        }
    }
    assert!(flows.values().all(|(step, _)| *step == Step::End), "every arrow ends");
    assert!(lasting.is_empty(), "everything that began has ended");
}
