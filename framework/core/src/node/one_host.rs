//! The node without other hosts: what `node/hosts.rs` and the files below it answer in a build without the
//! feature `hosts`.

use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use super::console::NodeSnapshot;
use super::deferred::Deferred;
use super::spawn::{ActorError, Ready, Spawn};
use super::spawned::Spawned;
use super::supervisor::{NodeClosed, Shared, Supervisor, WorkerId, WorkerOrder};
use super::{Node, NodeError, NodeReport, Processes};
use crate::actor::RemoteActor;
use crate::ids::DeviceId;
use crate::observe::metrics::Metrics;
use crate::os::peer_fd;
use crate::transport::Transport;
use crate::transport::envelope::Envelope;

/// The role of this host in a node of several: there is none.
pub(super) enum Hosts {}

impl Hosts {
    pub(super) fn only_serves(&self) -> bool {
        match *self {}
    }
}

/// The host that a spawn names: it names none.
#[derive(Clone, Copy)]
pub(super) enum OnHost {}

/// The part of a spawn that matters to a start on another host: nothing.
pub(super) struct Elsewhere;

impl Elsewhere {
    pub(super) fn of<A: RemoteActor, By>(spawn: &Spawn<'_, A, By>) -> Self {
        match spawn.on {
            None => Elsewhere,
            Some(nobody) => match nobody {},
        }
    }
}

impl<A: RemoteActor> Deferred<A> {
    /// Returns nothing: no worker is of another host.
    pub(super) fn start_in_host_of(
        &self,
        _worker: WorkerId,
        _device: DeviceId,
    ) -> Result<Option<Spawned<A>>, ActorError> {
        Ok(None)
    }
}

impl<A: RemoteActor> Ready<A> {
    /// Starts nothing.
    pub(super) fn start_elsewhere(self) -> Result<ControlFlow<Spawned<A>, Self>, ActorError> {
        let Elsewhere = self.elsewhere;
        Ok(ControlFlow::Continue(self))
    }
}

impl Node {
    /// Does nothing.
    pub(super) fn take_part(self, _only_serves: bool) -> Result<Node, NodeError> {
        Ok(self)
    }
}

impl Processes {
    pub(super) fn become_one_of(&self, hosts: Hosts) -> Result<(), NodeError> {
        match hosts {}
    }
}

/// The way to other hosts: there is none.
#[derive(Default)]
pub(crate) struct AllHosts;

impl AllHosts {
    /// Does nothing: no host asks for this one's trace.
    pub(in crate::node) fn this_host_traces(&self, _its_run: bool) {}
}

/// Makes this process the gateway to other hosts: never.
pub(super) fn begin_gateway(_transport: &Arc<Transport>, _said: &Envelope, descriptors: Vec<OwnedFd>) {
    peer_fd::close(descriptors);
    tracing::error!("the node takes this process for the gateway, which it is not");
}

impl Shared {
    /// As [`snapshot`](Self::snapshot).
    pub(crate) fn snapshot_of_all(&self, patience: Duration) -> Result<Option<NodeSnapshot>, NodeClosed> {
        self.snapshot(patience)
    }

    /// Does nothing.
    pub(crate) fn begin_trace_of_hosts(&self) {}

    /// Returns nothing.
    pub(crate) fn end_trace_of_hosts(&self) -> (Vec<(String, Vec<u8>)>, Vec<String>) {
        Default::default()
    }

    /// Does nothing.
    pub(crate) fn drop_trace_of_hosts(&self) {}
}

impl Supervisor {
    /// As [`metrics`](Self::metrics).
    pub(crate) fn metrics_of_all(&self) -> Result<Metrics, NodeClosed> {
        self.metrics()
    }

    /// Returns what has gone wrong so far on this host.
    pub(crate) fn report_of_all(&self) -> Result<NodeReport, NodeClosed> {
        let (restarts, hangs) = self.report()?;
        Ok(NodeReport { workers: self.workers(), restarts, hangs, silent: Vec::new() })
    }

    /// Returns false: no worker is of another host.
    pub(in crate::node) fn tell_host_of(&self, _worker: WorkerId, _order: WorkerOrder) -> bool {
        false
    }
}
