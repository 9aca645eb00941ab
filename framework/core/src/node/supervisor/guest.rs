//! The name of a life of a roaming actor.

use crate::ids::ActorId;

/// A life of an actor that roams, on a host that did not give it its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(in crate::node) struct Guest {
    pub(in crate::node) actor: ActorId,
    /// The number of the life.
    pub(in crate::node) life: u32,
}
