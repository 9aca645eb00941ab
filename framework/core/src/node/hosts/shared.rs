//! The state about other hosts that every thread of the node shares.
//!
//! `all_hosts`, `all_traces` and the supervisor's part for other hosts use it.
//!
//! **Locks.** One for each field. Only `clock` is taken inside another, `traced`. A thread that holds
//! `traced` also waits for the supervisor, whose thread never takes it.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use parking_lot::Mutex;

use super::starter::{Extent, NextLife, Orders, Roams};
use crate::ids::{ActorId, ProcessId};
use crate::observe::trace::Collector;
use crate::transport::Transport;

/// Begins the life of this number of a roaming actor, and waits; `None` if the node has ended.
type BeginLife = Box<dyn Fn(ActorId, u32, &Roams) -> Option<NextLife> + Send + Sync>;

/// The transport to the other hosts, and what this host remembers of them.
#[derive(Default)]
pub(crate) struct AllHosts {
    /// Set if there are other hosts.
    pub(in crate::node) transport: OnceLock<Weak<Transport>>,
    /// The process of the gateway, while there is one.
    pub(in crate::node) gateway: Arc<Mutex<Option<ProcessId>>>,
    /// Set with the transport.
    pub(in crate::node) begin_life: OnceLock<BeginLife>,
    /// The orders to other hosts about their workers.
    pub(in crate::node) orders: Orders,
    /// Hosts that gave no snapshot, and until when they are not asked again.
    pub(super) silent: Mutex<HashMap<u16, Instant>>,
    /// On an agent: the difference to add to a time of this host to get the head's, and its accuracy, both in
    /// nanoseconds.
    pub(in crate::node) clock: Mutex<Option<(i64, u64)>>,
    /// On an agent: the traces that it makes for the head now.
    pub(in crate::node) traced: Mutex<ForHead>,
    /// Whether this host's own program traces its run.
    traces_itself: AtomicBool,
    /// On an agent: whether the head has that trace, so that this host writes none.
    pub(in crate::node) head_has_run: AtomicBool,
}

impl AllHosts {
    /// Notes whether this host's own program traces its run.
    pub(in crate::node) fn this_host_traces(&self, its_run: bool) {
        self.traces_itself.store(its_run, Relaxed);
    }

    /// Whether this host's own program traces its run.
    pub(in crate::node) fn traces_itself(&self) -> bool {
        self.traces_itself.load(Relaxed)
    }
}

/// The traces that a host makes for its head. An interval and a run share the same memory.
#[derive(Default)]
pub(in crate::node) struct ForHead {
    pub(super) collector: Option<Arc<Collector>>,
    pub(super) interval_since: Option<u64>,
    pub(super) run_since: Option<u64>,
}

impl ForHead {
    pub(super) fn since(&mut self, extent: Extent) -> &mut Option<u64> {
        match extent {
            Extent::Interval => &mut self.interval_since,
            Extent::Run => &mut self.run_since,
        }
    }
}
