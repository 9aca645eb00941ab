//! What a process shows of itself to whoever looks for what stands still: see
//! [`NodeBuilder::hang_limit`](crate::node::NodeBuilder::hang_limit). Told by a thread that runs no actor.

use serde::{Deserialize, Serialize};

use crate::ids::{ActorId, ProcessId};

/// One look at a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sight {
    /// Its actors.
    pub actors: Vec<ActorSight>,
    /// Its threads and host streams that wait for a clock.
    pub waits: Vec<WaitSight>,
}

/// One actor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActorSight {
    /// Its identity in the node.
    pub actor: ActorId,
    /// Its name.
    pub name: String,
    /// Messages accepted and not done with.
    pub open: u64,
    /// Grows with every handler call that returns, and with every handler's result that resolves.
    pub moved: u64,
    /// Whether a handler is being called now.
    pub handling: bool,
}

/// A wait for a clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitSight {
    /// The thread that waits; `tp-stream-3` is that of the host stream with clock 3.
    pub thread: String,
    /// The process whose clock it is: it should advance it.
    pub on: ProcessId,
    /// Which of its clocks.
    pub clock: u16,
    /// The value that is waited for.
    pub value: u64,
    /// What the clock shows.
    pub now: u64,
    /// How long it has waited, in nanoseconds.
    pub waited: u64,
}
