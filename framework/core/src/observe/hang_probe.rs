//! Snapshot for hang detection: what a process shows of its queues and waits. See
//! [`NodeBuilder::hang_limit`](crate::node::NodeBuilder::hang_limit). A thread that runs no actor takes it.
//!
//! Without a limit nothing is noted for it: no lock, no time and no write on a message's way or in a wait.

use std::fmt;
#[cfg(feature = "testing")]
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use super::list::at_most;
use crate::ids::{ActorId, DeviceId, ProcessId};
use crate::limits::{MAX_ACTORS, MAX_PROCESSES};

/// The notes that this process has made, see [`notes`].
#[cfg(feature = "testing")]
static NOTES: AtomicU64 = AtomicU64::new(0);

/// How often this process has noted something that only hang reports read.
#[cfg(feature = "testing")]
#[doc(hidden)]
pub fn notes() -> u64 {
    NOTES.load(Ordering::Relaxed)
}

/// Something is noted that only hang reports read.
#[inline]
pub(crate) fn count_note() {
    #[cfg(feature = "testing")]
    NOTES.fetch_add(1, Ordering::Relaxed);
}

/// One look at a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HangProbe {
    /// Its actors.
    #[serde(deserialize_with = "at_most::<MAX_ACTORS, _, _>")]
    pub actors: Vec<ActorProbe>,
    /// Its threads and streams that wait for a clock.
    #[serde(deserialize_with = "at_most::<MAX_PROCESSES, _, _>")]
    pub waits: Vec<WaitProbe>,
}

/// One actor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActorProbe {
    /// Its identity in the node.
    pub actor: ActorId,
    /// Its name.
    pub name: String,
    /// Messages accepted and not done with; of an actor [that may wait](crate::actor::Handles::waits), the
    /// one that is being handled.
    pub open: u64,
    /// Grows with every handler call that returns, and with every handler's result that resolves.
    pub moved: u64,
    /// Whether a handler is being called now.
    pub handling: bool,
}

/// A wait for a clock. The node sees for itself what the clock shows, and how long the wait lasts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitProbe {
    /// The thread or stream that waits.
    pub waits_in: WaitsIn,
    /// The process whose clock it is: it should advance it.
    pub on: ProcessId,
    /// Which of its clocks.
    pub clock: u16,
    /// The value that is waited for.
    pub value: u64,
}

/// Where in a process something waits for a clock.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum WaitsIn {
    /// In a thread.
    Thread(String),
    /// In a stream, on whichever device.
    Stream {
        /// The clock of its own that the stream advances: which of the process's streams it is.
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
