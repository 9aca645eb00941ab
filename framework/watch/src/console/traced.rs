//! A trace that a node has handed over: the memory of its processes, from which this process makes the file.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use tensorpost_core::api::watch::trace::{HostTrace, Process, Ring, decode_all};

use super::client::ConsoleError;
use super::{TraceError, TraceFacts, TraceSummary};
use crate::draw::printable;
use crate::trace;

/// The trace of a node's processes in an interval.
#[derive(Debug)]
pub struct Traced {
    facts: TraceFacts,
    rings: Vec<Ring>,
    hosts: Vec<(String, HostTrace)>,
}

impl Traced {
    /// Takes the parts that came over the socket. Each ring is checked (WIRE-1).
    pub(super) fn new(
        mut facts: TraceFacts,
        rings: Vec<OwnedFd>,
        hosts: Vec<Vec<u8>>,
    ) -> Result<Self, ConsoleError> {
        if facts.processes.len() != rings.len() || facts.hosts.len() != hosts.len() {
            return Err(ConsoleError::Garbage("more memory than processes in a trace".to_owned()));
        }
        let open = |ring| Ring::open(ring, facts.records as usize);
        let rings = rings.into_iter().map(open).collect::<Result<_, _>>();
        let rings = rings.map_err(|error| ConsoleError::Garbage(error.to_string()))?;
        let named = facts.hosts.iter().map(|(name, _)| printable(name)).zip(hosts);
        let (hosts, bad) = decode_all(named);
        facts.silent.extend(bad);
        Ok(Traced { facts, rings, hosts })
    }

    /// Returns the length of the interval.
    pub fn took(&self) -> Duration {
        Duration::from_nanos(self.facts.until.saturating_sub(self.facts.since))
    }

    /// Returns the names of the processes and other hosts that did not answer at the end: their records may
    /// be missing.
    pub fn silent(&self) -> &[String] {
        &self.facts.silent
    }

    /// Writes the file, in the Chrome trace event format, which <https://ui.perfetto.dev> opens.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write_to(&self, path: impl AsRef<Path>) -> Result<TraceSummary, TraceError> {
        let all = self.facts.processes.iter().zip(&self.rings);
        let interval = self.facts.since..=self.facts.until;
        let processes =
            all.map(|(of, ring)| Process { of: of.clone(), seen: ring.snapshot_of(interval.clone()) });
        let (forgotten, until) = (self.facts.forgotten, self.facts.until);
        let own = HostTrace { processes: processes.collect(), forgotten, until, clock: (0, 0) };
        trace::write(path.as_ref(), &own, &self.hosts)
    }
}
