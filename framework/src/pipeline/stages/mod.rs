//! Stages that pipelines bring along, each an ordinary [`Stage`](super::Stage).

mod apply;
mod identity;
mod items;
mod sink;

pub(super) use apply::{Applied, Apply, MakeApplied};
pub(super) use identity::Identity;
pub(super) use items::{Items, Iterated, MakeIterated};
pub(super) use sink::{AsSink, Nothing};
