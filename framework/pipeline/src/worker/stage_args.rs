//! The arguments of the actors around sources and stages: the user's, and those of `args`.

use serde::{Deserialize, Serialize};

use super::args::{Config, OutletArgs};
use crate::traits::{Source, Stage};

/// The arguments of a source's actor.
#[derive(Serialize, Deserialize)]
#[serde(bound = "")]
pub(crate) struct SourceArgs<S: Source> {
    pub(crate) user: S::Args,
    pub(crate) config: Config,
    pub(crate) results: OutletArgs,
}

/// The arguments of a stage's actor.
#[derive(Serialize, Deserialize)]
#[serde(bound = "")]
pub(crate) struct StageArgs<S: Stage> {
    pub(crate) user: S::Args,
    pub(crate) config: Config,
    pub(crate) results: OutletArgs,
    pub(crate) dead: OutletArgs,
}
