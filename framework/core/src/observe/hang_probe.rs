//! Snapshot for hang detection: what a process shows of its queues and waits. See
//! [`NodeBuilder::hang_limit`](crate::node::NodeBuilder::hang_limit). A thread that runs no actor takes it.
//!
//! Without a hang limit nothing is noted for it: a message or a wait costs no lock, no clock read and no
//! write.

use std::fmt;
#[cfg(feature = "testing")]
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use super::list::at_most;
use crate::ids::{ActorId, DeviceId, ProcessId};
use crate::limits::{MAX_ACTORS, MAX_PROCESSES};

/// The number of notes that this process has made, see [`notes`].
#[cfg(feature = "testing")]
static NOTES: AtomicU64 = AtomicU64::new(0);

/// Returns how often this process has noted something that only hang reports read.
#[cfg(feature = "testing")]
#[doc(hidden)]
pub fn notes() -> u64 {
    NOTES.load(Ordering::Relaxed)
}

/// Counts a note that only hang reports read.
#[inline]
pub(crate) fn count_note() {
    #[cfg(feature = "testing")]
    NOTES.fetch_add(1, Ordering::Relaxed);
}

/// A snapshot of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HangProbe {
    /// Its actors.
    #[serde(deserialize_with = "at_most::<MAX_ACTORS, _, _>")]
    pub actors: Vec<ActorProbe>,
    /// The process's threads and streams that wait for a clock.
    #[serde(deserialize_with = "at_most::<MAX_PROCESSES, _, _>")]
    pub waits: Vec<WaitProbe>,
}

/// One actor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActorProbe {
    /// The actor's identity in the node.
    pub actor: ActorId,
    /// The actor's name.
    pub name: String,
    /// Messages accepted and not handled yet. For an actor [that may wait](crate::actor::Handles::waits), the
    /// one that is being handled.
    pub open: u64,
    /// Grows with every handler call that returns, and with every handler's result that resolves.
    pub moved: u64,
    /// Whether a handler is being called now.
    pub handling: bool,
}

/// A wait for a clock. The node itself reads the clock, and measures how long the wait lasts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitProbe {
    /// The thread or stream that waits.
    pub waits_in: WaitsIn,
    /// The process that owns the clock and should advance it.
    pub on: ProcessId,
    /// The number of the clock among that process's clocks.
    pub clock: u16,
    /// The value that is waited for.
    pub value: u64,
}

/// The place in a process that waits for a clock.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum WaitsIn {
    /// In a thread.
    Thread(String),
    /// In a stream, on any device.
    Stream {
        /// The clock that the stream itself advances. It identifies the stream in its process.
        clock: u16,
        /// The device.
        device: DeviceId,
    },
}

impl fmt::Display for WaitsIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WaitsIn::Thread(name) => write!(f, "thread `{name}`"),
            WaitsIn::Stream { clock, device } => write!(f, "its stream {clock} on {device}"),
        }
    }
}
