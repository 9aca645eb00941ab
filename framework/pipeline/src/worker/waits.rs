//! The reasons for which an actor of a pipeline waits. They are sent with the progress, and show where a
//! pipeline that does not end is stuck.

use serde::{Deserialize, Serialize};

use crate::item::ItemId;

/// Something that an actor cannot go on without. Stages are named by their index in the plan, senders by
/// their lane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Wait {
    /// Items, or the end, of these senders.
    Senders(Vec<u32>),
    /// Room at a stage for an item.
    Room { stage: u16, id: ItemId },
    /// Answers of a stage, for so many items.
    Answers { stage: u16, count: u32 },
    /// An actor outside of the pipeline that has to take a message, or to answer it.
    Actor { actor: String },
    /// Answers of actors outside of the pipeline, for so many messages.
    Actors(u32),
    /// More items, or partners, for the items that it keeps.
    Retained(usize),
    /// The time for its next item, or the time at which it is called without one. It goes on by itself.
    Time,
}
