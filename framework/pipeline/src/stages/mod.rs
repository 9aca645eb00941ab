//! The stages that the framework itself puts into pipelines, each an ordinary [`Stage`](super::Stage).

mod apply;
mod batch;
mod halves;
mod identity;
mod items;
mod send_to;
mod sink;
mod zip;

pub(super) use apply::{Applied, Apply};
pub(super) use batch::{AsMany, Batcher, Gathered, Unbatch, Windows};
pub(super) use identity::Identity;
pub(super) use items::{Items, Iterated, MakeIterated};
pub(super) use send_to::SendTo;
pub(super) use sink::{AsSink, Nothing};
#[cfg(test)]
pub(super) use zip::too_many_wait;
pub(super) use zip::{Lift, Zip};
