//! What an actor of a pipeline waits for, told with its progress: what a pipeline that does not end stands in.

use serde::{Deserialize, Serialize};

use crate::item::ItemId;

/// Something that an actor cannot go on without. Stages are named by their index in the plan, senders by their lane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Wait {
    /// Items, or the end, of these senders.
    Senders(Vec<u32>),
    /// Room at a stage for an item.
    Room { stage: u16, id: ItemId },
    /// That a stage answers for so many.
    Answers { stage: u16, count: u32 },
    /// More items, or partners, for those that it keeps.
    Kept(usize),
}
