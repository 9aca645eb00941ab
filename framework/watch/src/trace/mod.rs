//! Writes the file of a trace: the records of all processes, as events in the Chrome trace event format.

pub mod chrome;
mod file;
pub(crate) mod timeline;

use std::path::Path;

use tensorpost_core::api::observe::{TraceError, TraceSummary};
use tensorpost_core::api::watch::trace::{HostTrace, Process};

use self::chrome::Args;

/// Writes the file. Events that have not ended get the end of the trace as theirs. The processes of `others`
/// come behind those of this host, by the host's name.
pub(crate) fn write(
    path: &Path,
    own: &HostTrace,
    others: &[(String, HostTrace)],
) -> Result<TraceSummary, TraceError> {
    let all = || own.processes.iter().chain(others.iter().flat_map(|(_, of)| &of.processes));
    let mut summary = TraceSummary::default();
    summary.processes = all().count();
    for Process { seen, .. } in all() {
        summary.records += seen.records.len() as u64;
        summary.dropped = summary.dropped.saturating_add(seen.dropped);
        summary.damaged += seen.damaged;
    }
    let hosts = others.iter().map(|(name, of)| (Some(name.as_str()), of.processes.as_slice(), of.until));
    let events = timeline::events(std::iter::once((None, own.processes.as_slice(), own.until)).chain(hosts));
    let forgotten = others.iter().fold(own.forgotten, |sum, (_, of)| sum.saturating_add(of.forgotten));
    let about = Args::default()
        .text("version", concat!("tensorpost ", env!("CARGO_PKG_VERSION")))
        .text("clock", "CLOCK_MONOTONIC")
        .number("records", summary.records)
        .number("dropped", summary.dropped)
        .number("damaged", summary.damaged)
        .number("dropped_names", all().map(|process| process.seen.names_dropped).fold(0, u64::saturating_add))
        .number("forgotten_processes", forgotten);
    let about = others.iter().fold(about, |about, (name, of)| {
        let (nanos, within) = of.clock;
        let shifted = format!("its times are shifted by {nanos} ns, which is right to {within} ns");
        about.text(&format!("clock of host {name}"), shifted)
    });
    chrome::write_file(path, &events, about).map(|()| summary).map_err(|source| TraceError::new(path, source))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_written_is_named() {
        let nothing = HostTrace { processes: Vec::new(), forgotten: 0, until: 0, clock: (0, 0) };
        let error = write(Path::new("/nowhere/trace.json"), &nothing, &[]).unwrap_err().to_string();
        assert!(error.contains("/nowhere/trace.json") && error.contains("folder"), "{error}");
    }
}
