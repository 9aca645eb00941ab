//! A life of a roaming actor: its parts, and how its beginning ends.

use super::messages::NewWorker;
use crate::actor::NewActor;
use crate::node::group::Group;
use crate::node::restart::Restart;

/// The parts that a life of a roaming actor is made from.
#[derive(Debug)]
pub(in crate::node) struct Roams {
    pub(in crate::node) worker: NewWorker,
    pub(in crate::node) restart: Restart,
    /// Without its name, which stays at its home.
    pub(in crate::node) actor: NewActor,
    pub(in crate::node) spares: u32,
    /// The group that it restarts with.
    pub(in crate::node) group: Option<Group>,
}

/// The outcome of an attempt to begin another life.
#[derive(Debug)]
pub(in crate::node) enum NextLife {
    /// It has begun on this host.
    Here,
    /// It has begun on that host.
    On(u16),
    /// It has not begun, for this reason.
    Failed(String),
    /// That host was asked, and did not answer.
    Unknown(u16),
}
