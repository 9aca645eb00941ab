//! Dead letters: items that a stage could not handle, with the error.

use serde::{Deserialize, Serialize};

use super::item::Item;

/// An item on which a stage failed, for the stage that takes its dead letters.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(bound = "")]
#[non_exhaustive]
pub struct DeadItem<T: Item> {
    /// The item as it came.
    pub item: T,
    /// The stage.
    pub stage: String,
    /// The stage's error, with its causes.
    pub why: String,
    /// How often it was tried.
    pub attempts: u32,
}

super::item::message!(DeadItem<T>, |dead| dead.item.check());
