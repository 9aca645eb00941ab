//! The trace of the head's run: the other hosts trace too, and the head has their records before their
//! gateways end.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::observe::log::Severity;
use crate::observe::trace::joined::{HostTrace, decode_all};

use super::super::Shared;
use super::super::node_state::NodeState;
use super::Hosts;
use super::steps::run;

/// The other hosts' part in the trace of the head's run.
#[derive(Default)]
pub(super) struct TracedHosts {
    /// All hosts that have joined, with their names.
    known: BTreeMap<u16, String>,
    /// Whether they were asked for their traces.
    are_asked: bool,
    came: Option<Vec<(String, HostTrace)>>,
}

/// Runs `what` on another thread, because the supervisor waits for no host (CON-1).
fn aside(shared: &Arc<Shared>, what: impl FnOnce(&Shared) + Send + 'static) -> io::Result<()> {
    let shared = Arc::clone(shared);
    let thread = std::thread::Builder::new().name("tp-traces".to_owned());
    thread.spawn(move || what(&shared)).map(drop)
}

impl Hosts {
    /// Tells hosts that have joined to trace too, if the head traces its run.
    pub(super) fn trace_hosts(&mut self, node: &mut NodeState) {
        let is_on = node.settings.trace.is_some() && node.broker.roster.host == 0;
        // The transport to them exists once the node has started.
        if !is_on || node.shared.all_hosts.transport.get().is_none() {
            return;
        }
        let others = self.members.iter().filter(|host| host.number != 0);
        let before = self.traced.known.len();
        self.traced.known.extend(others.map(|host| (host.number, host.short())));
        // A host's number is never used twice, so a new host always lengthens the list.
        if self.traced.known.len() > before
            && let Err(error) = aside(&node.shared, Shared::begin_run_of_hosts)
        {
            let text = format!("hosts that have joined are not traced: {error}");
            node.journal.node(Severity::Warn, None, text);
        }
    }

    /// Whether the other hosts have sent their traces of the run, or there is none to send. They are asked
    /// when nothing is under way any more, and before this host's gateway ends. The shutdown's deadline ends
    /// the wait in any case.
    pub(super) fn has_traces_of_hosts(&mut self, node: &mut NodeState) -> bool {
        let known = &self.traced.known;
        if !self.members.iter().any(|host| known.contains_key(&host.number)) {
            return true;
        }
        if !std::mem::replace(&mut self.traced.are_asked, true) {
            let asked = aside(&node.shared, |shared| {
                let (read, bad) = decode_all(shared.end_run_of_hosts());
                // After the node's end nobody waits for the answer.
                let _ = run(shared, move |hosts, node| hosts.traced.hosts_traced(node, read, bad));
            });
            if asked.is_err() {
                // `traced_by_hosts` then names them as missing.
                self.traced.came = Some(Vec::new());
            }
        }
        self.traced.came.is_some()
    }
}

impl TracedHosts {
    fn hosts_traced(&mut self, node: &mut NodeState, read: Vec<(String, HostTrace)>, bad: Vec<String>) {
        for why in bad {
            node.journal.node(Severity::Warn, None, format!("a trace of the run cannot be read, of {why}"));
        }
        self.came = Some(read);
    }

    /// Returns the other hosts' traces of the run, and logs the names of hosts without one.
    pub(super) fn traced_by_hosts(&mut self, node: &mut NodeState, path: &Path) -> Vec<(String, HostTrace)> {
        let TracedHosts { known, came, .. } = std::mem::take(self);
        let came = came.unwrap_or_default();
        let missing: Vec<_> =
            known.into_values().filter(|name| came.iter().all(|(host, _)| host != name)).collect();
        if !missing.is_empty() {
            let text = format!(
                "the trace in {} has nothing of these hosts, which have left before the end or did not say in time what they did: {}",
                path.display(),
                missing.join(", ")
            );
            node.journal.node(Severity::Warn, None, text);
        }
        came
    }
}
