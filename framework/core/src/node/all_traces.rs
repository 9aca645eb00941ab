//! An interval that is traced on all hosts: each traces itself, and the head has what they noted when it is over.
//!
//! The head's console asks the other hosts' starters to begin and to end (`node/all_hosts.rs`). A host keeps its own time, and says with
//! what it noted how far the head's clock is from its own, as the beats have measured it; whoever writes the file shifts by that
//! (`observe/trace/joined.rs`). A host that does not answer, or does not know the head's clock, is named as silent.
//!
//! **On the loss** of the head an agent ends. **Where a watcher goes away** in the middle the others are told to end, and what they noted
//! is dropped.

use std::sync::Arc;
use std::time::Duration;

use super::all_hosts::Show;
use super::limits::{HOST_LOOK_DEADLINE, HOST_TRACE_DEADLINE, MAX_ALL_HOSTS_TRACES};
use super::supervisor::{Shared, Supervisor};
use crate::limits::MAX_HOST_TRACE;
use crate::observe::trace::Collector;
use crate::observe::trace::joined::HostTrace;
use crate::os::monotonic_ns;

/// How long the supervisor of a host may take.
const PATIENCE: Duration = Duration::from_secs(1);

/// What a host traces for its head.
pub(super) struct Traced {
    since: u64,
    collector: Arc<Collector>,
}

/// Begins to trace here. `Err`: why not.
pub(super) fn begin(supervisor: &Supervisor) -> Result<Vec<u8>, String> {
    let shared = supervisor.shared();
    let mut traced = shared.all_hosts.traced.lock();
    if traced.take().is_some() {
        // That its watcher went away was not heard.
        shared.end_trace();
    }
    let since = monotonic_ns();
    let begun = shared.begin_trace(PATIENCE).map_err(|closed| closed.to_string())?;
    let collector = begun.ok_or("its supervisor does not answer")?.map_err(|error| error.to_string())?;
    // The workers have heard of it before they answer this.
    let _ = shared.look(PATIENCE);
    *traced = Some(Traced { since, collector });
    Ok(Vec::new())
}

/// Ends it: what was noted.
pub(super) fn end(supervisor: &Supervisor) -> Result<Vec<u8>, String> {
    let shared = supervisor.shared();
    let Traced { since, collector } =
        shared.all_hosts.traced.lock().take().ok_or("nothing is traced here")?;
    shared.end_trace();
    // The workers have heard that before they answer this, so what their memory holds stays as it is.
    let _ = shared.look(PATIENCE);
    let clock = *shared.all_hosts.clock.lock();
    let clock = clock.ok_or("how far its clock is from the head's is not known yet")?;
    let until = monotonic_ns();
    let (processes, forgotten) = collector.snapshot_of(since..=until);
    HostTrace { processes, forgotten, until, clock }.encode().map_err(|error| error.to_string())
}

impl Shared {
    /// Has the other hosts begin to trace, and waits until they have, or do not answer.
    pub(crate) fn begin_trace_of_hosts(&self) {
        // One that does not answer is named at the end.
        drop(self.raw_answers(self.ask_hosts(Show::TraceBegin, HOST_LOOK_DEADLINE), 0, 0));
    }

    /// Has them end: what each has noted, by its number and name, and those that have not said it.
    pub(crate) fn end_trace_of_hosts(&self) -> (Vec<(String, Vec<u8>)>, Vec<String>) {
        let (mut traces, mut silent) = (Vec::new(), Vec::new());
        let asked = self.ask_hosts(Show::TraceEnd, HOST_TRACE_DEADLINE);
        for (host, answer) in self.raw_answers(asked, MAX_HOST_TRACE, MAX_ALL_HOSTS_TRACES) {
            match answer {
                Some(trace) => traces.push((host.short(), trace)),
                None => silent.push(format!("host {}", host.short())),
            }
        }
        (traces, silent)
    }

    /// Has them end, and does not wait: nobody wants to know.
    pub(crate) fn drop_trace_of_hosts(&self) {
        // A question is sent when it is asked.
        drop(self.ask_hosts(Show::TraceEnd, HOST_TRACE_DEADLINE));
    }
}
