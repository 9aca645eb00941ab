//! The node's side of a trace: maps the rings of all its processes, and hands over their records, for the
//! file, or the rings themselves. The command that asks for an interval reads these and writes that file
//! itself. The events of a file take ten times the memory of their records and seconds of a processor, which
//! a node in the middle of its work should not spend.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::joined::{HostTrace, Process};
use super::ring::{BadRing, Ring};
use crate::ids::ProcessId;
use crate::limits::MAX_TRACE_ENDED;
use crate::os::{monotonic_ns, remedy};

/// A trace that could not be written.
#[derive(Debug, thiserror::Error)]
#[error(
    "the trace could not be written to {}: {source}{}; is the folder there, and is there room?",
    .path.display(), remedy(.source)
)]
pub struct TraceError {
    /// The path of the file.
    path: PathBuf,
    /// The system's error.
    source: io::Error,
}

impl TraceError {
    #[doc(hidden)] // for `tensorpost-watch`
    pub fn new(path: impl Into<PathBuf>, source: io::Error) -> Self {
        TraceError { path: path.into(), source }
    }
}

/// The numbers of records in a trace file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TraceSummary {
    /// Processes whose records are in it, each life of a restarted worker for itself.
    pub processes: usize,
    /// Records.
    pub records: u64,
    /// Records that were overwritten before anybody read them: the oldest of their process.
    pub dropped: u64,
    /// Records that were half written when their process ended, or that are invalid.
    pub damaged: u64,
}

impl fmt::Display for TraceSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TraceSummary { processes, records, dropped, damaged } = self;
        write!(f, "{records} records of {processes} processes, {dropped} older ones were dropped")?;
        if *damaged > 0 {
            write!(f, ", {damaged} were damaged")?;
        }
        Ok(())
    }
}

/// A life of a process in a trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TracedProcess {
    /// The slot and life of the process.
    pub process: ProcessId,
    /// The name of the process.
    pub name: String,
    /// The system's number for the process.
    pub pid: u32,
    /// When its trace began, in nanoseconds of `CLOCK_MONOTONIC`.
    pub since: u64,
    /// Whether its life began with the trace.
    pub is_new: bool,
    /// When and how it ended.
    pub ended: Option<(u64, String)>,
}

/// The rings of a node's processes.
#[derive(Debug)]
pub(crate) struct Collector {
    records: u32,
    state: Mutex<State>,
}

/// The rings of a trace, for another process to read.
#[derive(Debug)]
pub(crate) struct Rings {
    /// Records of each ring.
    pub(crate) records: u32,
    /// The processes of the rings.
    pub(crate) processes: Vec<TracedProcess>,
    /// One ring for each process.
    pub(crate) rings: Vec<OwnedFd>,
    /// Processes that have ended and are not remembered.
    pub(crate) forgotten: u64,
}

#[derive(Debug, Default)]
struct State {
    sources: Vec<Source>,
    forgotten: u64,
}

#[derive(Clone, Debug)]
struct Source {
    of: TracedProcess,
    ring: Arc<Ring>,
}

impl Collector {
    /// Makes a collector of rings of `records` records each.
    pub(crate) fn new(records: usize) -> Self {
        let records = u32::try_from(records).unwrap_or(u32::MAX);
        Collector { records, state: Mutex::default() }
    }

    /// Returns the number of records that each process keeps.
    pub(crate) fn records(&self) -> u32 {
        self.records
    }

    /// Makes the ring of the node's own process and returns it.
    pub(crate) fn own(&self, is_new: bool) -> io::Result<Arc<Ring>> {
        let ring = Arc::new(Ring::create(self.records as usize)?);
        self.add(ProcessId::NODE, "node", std::process::id(), is_new, Arc::clone(&ring));
        Ok(ring)
    }

    /// Takes the ring that a worker has sent. `is_new` says that the worker's life begins with it.
    pub(crate) fn joined(
        &self,
        id: ProcessId,
        name: &str,
        pid: u32,
        is_new: bool,
        ring: OwnedFd,
    ) -> Result<(), BadRing> {
        let ring = Ring::open(ring, self.records as usize)?;
        self.add(id, name, pid, is_new, Arc::new(ring));
        Ok(())
    }

    fn add(&self, process: ProcessId, name: &str, pid: u32, is_new: bool, ring: Arc<Ring>) {
        let of =
            TracedProcess { process, name: name.to_owned(), pid, since: monotonic_ns(), is_new, ended: None };
        let mut state = self.state.lock();
        // Keeps only the first ring of a life: a worker that sends another one gains nothing.
        if state.sources.iter().all(|source| source.of.process != process) {
            state.sources.push(Source { of, ring });
        }
    }

    /// Notes that a worker's process has ended.
    pub(crate) fn ended(&self, id: ProcessId, how: String) {
        let mut state = self.state.lock();
        if let Some(source) = state.sources.iter_mut().find(|source| source.of.process == id) {
            source.of.ended = Some((monotonic_ns(), how));
        }
        let dead = state.sources.iter().filter(|source| source.of.ended.is_some()).count();
        if dead > MAX_TRACE_ENDED
            && let Some(oldest) = state.sources.iter().position(|source| source.of.ended.is_some())
        {
            state.sources.remove(oldest);
            state.forgotten += 1;
        }
    }

    /// Returns everything that is known now, by this host's own clock. The processes may go on meanwhile.
    pub(crate) fn so_far(&self) -> HostTrace {
        let (sources, forgotten) = self.sources();
        let processes = sources.into_iter().map(|Source { of, ring }| Process { of, seen: ring.snapshot() });
        HostTrace { processes: processes.collect(), forgotten, until: monotonic_ns(), clock: (0, 0) }
    }

    /// Returns the rings, for another process to write the file.
    pub(crate) fn hand_over(&self) -> io::Result<Rings> {
        let (sources, forgotten) = self.sources();
        let rings = sources.iter().map(|source| source.ring.export()).collect::<io::Result<_>>()?;
        let processes = sources.into_iter().map(|source| source.of).collect();
        Ok(Rings { records: self.records, processes, rings, forgotten })
    }

    /// Returns the records of each process in an interval, and the number of ended processes that are not
    /// remembered.
    #[cfg(feature = "hosts")]
    pub(crate) fn snapshot_of(&self, interval: std::ops::RangeInclusive<u64>) -> (Vec<Process>, u64) {
        let (sources, forgotten) = self.sources();
        let of = |Source { of, ring }| Process { of, seen: ring.snapshot_of(interval.clone()) };
        (sources.into_iter().map(of).collect(), forgotten)
    }

    fn sources(&self) -> (Vec<Source>, u64) {
        let state = self.state.lock();
        (state.sources.clone(), state.forgotten)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // MBX-2.
    #[test]
    fn the_dead_that_are_remembered_are_bounded() {
        let collector = Collector::new(16);
        for life in 0..MAX_TRACE_ENDED as u32 + 10 {
            let id = ProcessId::new(1, life).unwrap();
            collector.joined(id, "w", 1, true, Ring::create(16).unwrap().export().unwrap()).unwrap();
            collector.ended(id, "ended".into());
        }
        let rings = collector.hand_over().unwrap();
        assert_eq!(
            (rings.processes.len(), rings.rings.len(), rings.forgotten),
            (MAX_TRACE_ENDED, MAX_TRACE_ENDED, 10)
        );
        assert_eq!(rings.processes[0].process.incarnation(), 10, "the first to end went first");
    }
}
