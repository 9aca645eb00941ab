//! The node's side of a trace: maps the rings of all its processes, and writes the file.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::chrome::{self, Args};
use super::ring::{BadRing, Ring};
use super::timeline::{self, Process};
use crate::ids::ProcessId;
use crate::os::{monotonic_ns, remedy};

/// Processes that have ended whose records are kept; those of the first to end go first, and are counted (MBX-2).
const MAX_ENDED: usize = 64;

/// A trace that could not be written.
#[derive(Debug, thiserror::Error)]
#[error(
    "the trace could not be written to {}: {source}{}; is the folder there, and is there room?",
    .path.display(), remedy(.source)
)]
pub struct TraceError {
    /// The file.
    path: PathBuf,
    /// What the system says.
    source: io::Error,
}

/// The contents of a trace file, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceSummary {
    /// Processes whose records are in it, each life of a restarted worker for itself.
    pub processes: usize,
    /// Records.
    pub records: u64,
    /// Records that were written over before anybody looked: the oldest of their process.
    pub dropped: u64,
    /// Records that were half written when their process ended, or that are none.
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

/// The rings of a node's processes.
#[derive(Debug)]
pub(crate) struct Collector {
    path: PathBuf,
    records: u32,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    sources: Vec<Source>,
    forgotten: u64,
}

#[derive(Debug)]
struct Source {
    id: ProcessId,
    name: String,
    pid: u32,
    since: u64,
    ended: Option<(u64, String)>,
    ring: Arc<Ring>,
}

impl Collector {
    /// For a node whose trace goes to `path`; each process keeps `records` records.
    pub(crate) fn new(path: PathBuf, records: usize) -> Self {
        let records = u32::try_from(records).unwrap_or(u32::MAX);
        Collector { path, records, state: Mutex::default() }
    }

    /// Records that each process keeps.
    pub(crate) fn records(&self) -> u32 {
        self.records
    }

    /// Where the trace goes when the node ends.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The node's own process; what it notes goes into the ring that is returned.
    pub(crate) fn own(&self) -> io::Result<Arc<Ring>> {
        let ring = Arc::new(Ring::create(self.records as usize)?);
        self.add(ProcessId::NODE, "node", std::process::id(), Arc::clone(&ring));
        Ok(ring)
    }

    /// A worker has sent its ring.
    pub(crate) fn joined(&self, id: ProcessId, name: &str, pid: u32, ring: OwnedFd) -> Result<(), BadRing> {
        let ring = Ring::open(ring, self.records as usize)?;
        self.add(id, name, pid, Arc::new(ring));
        Ok(())
    }

    fn add(&self, id: ProcessId, name: &str, pid: u32, ring: Arc<Ring>) {
        let (name, since) = (name.to_owned(), monotonic_ns());
        let mut state = self.state.lock();
        // One ring per life, the first: a worker that sends another one gains nothing.
        if state.sources.iter().all(|source| source.id != id) {
            state.sources.push(Source { id, name, pid, since, ended: None, ring });
        }
    }

    /// A worker's process has ended.
    pub(crate) fn ended(&self, id: ProcessId, how: String) {
        let mut state = self.state.lock();
        if let Some(source) = state.sources.iter_mut().find(|source| source.id == id) {
            source.ended = Some((monotonic_ns(), how));
        }
        let dead = state.sources.iter().filter(|source| source.ended.is_some()).count();
        if dead > MAX_ENDED
            && let Some(oldest) = state.sources.iter().position(|source| source.ended.is_some())
        {
            state.sources.remove(oldest);
            state.forgotten += 1;
        }
    }

    /// Writes everything that is known now to `path`. The processes may go on meanwhile.
    pub(crate) fn write_to(&self, path: &Path) -> Result<TraceSummary, TraceError> {
        let (processes, forgotten) = self.processes();
        let mut summary = TraceSummary { processes: processes.len(), ..TraceSummary::default() };
        for Process { seen, .. } in &processes {
            summary.records += seen.records.len() as u64;
            summary.dropped += seen.dropped;
            summary.damaged += seen.damaged;
        }
        let events = timeline::events(&processes, monotonic_ns());
        let about = Args::default()
            .text("version", concat!("tensorpost ", env!("CARGO_PKG_VERSION")))
            .text("clock", "CLOCK_MONOTONIC")
            .number("records", summary.records)
            .number("dropped", summary.dropped)
            .number("damaged", summary.damaged)
            .number("dropped_names", processes.iter().map(|process| process.seen.names_dropped).sum())
            .number("forgotten_processes", forgotten);
        chrome::write_file(path, &events, about)
            .map(|()| summary)
            .map_err(|source| TraceError { path: path.to_owned(), source })
    }

    fn processes(&self) -> (Vec<Process>, u64) {
        let state = self.state.lock();
        let sources = state.sources.iter().map(|source| {
            let Source { id, name, pid, since, ended, ring } = source;
            (*id, name.clone(), *pid, *since, ended.clone(), Arc::clone(ring))
        });
        let (sources, forgotten) = (sources.collect::<Vec<_>>(), state.forgotten);
        drop(state);
        let process = |(id, name, pid, since, ended, ring): (_, _, _, _, _, Arc<Ring>)| Process {
            id,
            name,
            pid,
            since,
            ended,
            seen: ring.snapshot(),
        };
        (sources.into_iter().map(process).collect(), forgotten)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // MBX-2.
    #[test]
    fn the_dead_that_are_remembered_are_bounded() {
        let collector = Collector::new("unused".into(), 16);
        for life in 0..MAX_ENDED as u32 + 10 {
            let id = ProcessId::new(1, life).unwrap();
            collector.joined(id, "w", 1, Ring::create(16).unwrap().export().unwrap()).unwrap();
            collector.ended(id, "ended".into());
        }
        let (processes, forgotten) = collector.processes();
        assert_eq!((processes.len(), forgotten), (MAX_ENDED, 10));
        assert_eq!(processes[0].id.incarnation(), 10, "the first to end went first");
    }

    #[test]
    fn a_file_that_cannot_be_written_is_named() {
        let collector = Collector::new("unused".into(), 16);
        let error = collector.write_to(Path::new("/nowhere/trace.json")).unwrap_err().to_string();
        assert!(error.contains("/nowhere/trace.json") && error.contains("folder"), "{error}");
    }
}
