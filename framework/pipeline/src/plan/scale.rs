//! Stages whose number of replicas changes while the pipeline runs.
//!
//! A plan has a place for each replica that such a stage may have: mailboxes, lanes and orders are sized
//! once, for all of them. At first only the places of the replicas that it begins with are taken. The first
//! place always has a replica.

use std::time::Duration;

use super::{Plan, StagePlan};
use crate::error::Mistake;
use crate::limits::{MAX_REPLICAS, SCALE_LOOK};
use crate::settings::Settings;
use crate::worker::args::Select;

/// How the number of a stage's replicas may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scale {
    pub(crate) least: u32,
    pub(crate) most: u32,
    /// Whether the pipeline changes the number by itself, from the backlog.
    pub(crate) auto: bool,
}

impl StagePlan {
    /// The most replicas that it can have.
    pub(crate) fn most_replicas(&self) -> u32 {
        self.scale.map_or(self.replicas, |scale| scale.most)
    }

    /// Fills in the numbers of replicas. Called once.
    pub(super) fn complete(&mut self) {
        self.begins_with = self.replicas;
        if let Some(scale) = self.scale {
            if scale.auto && scale.least <= scale.most {
                self.begins_with = self.replicas.clamp(scale.least, scale.most);
            }
            self.replicas = scale.most;
        }
    }

    /// Whether the number of its replicas can change.
    pub(crate) fn scales(&self) -> bool {
        self.scale.is_some_and(|scale| scale.most > 1)
    }
}

impl Plan {
    /// How often actors report: if the number of any stage's replicas changes by itself, often enough for
    /// that.
    pub(crate) fn told_every(&self, settings: &Settings) -> Duration {
        let told_every = settings.told_every();
        let by_itself = self.stages.iter().any(|stage| stage.scale.is_some_and(|scale| scale.auto));
        if by_itself { told_every.min(SCALE_LOOK) } else { told_every }
    }

    /// Returns the mistakes in the number of a stage's replicas, if that number changes.
    pub(super) fn scale_mistakes(&self, index: usize) -> Vec<Mistake> {
        let stage = &self.stages[index];
        let Some(scale) = stage.scale else { return Vec::new() };
        let name = || stage.name.clone();
        let numbers = [
            ("replicas to begin with", stage.begins_with, scale.most.min(MAX_REPLICAS)),
            ("the least number of replicas", scale.least, scale.most.min(MAX_REPLICAS)),
        ];
        let out_of_range = numbers.into_iter().filter(|(_, value, most)| !(1..=*most).contains(value));
        let mut mistakes: Vec<_> = out_of_range
            .map(|(what, value, most)| Mistake::OutOfRange {
                stage: name(),
                what,
                value: value.into(),
                least: 1,
                most: most.into(),
            })
            .collect();
        if !stage.scales() {
            return mistakes;
        }
        let pairs_again = self.at_least_once.is_some()
            && (0..self.stages.len())
                .any(|other| self.stages[other].pairs.is_some() && self.reaches(index, other));
        let conflicts = [
            (
                matches!(stage.select, Select::By(_)),
                "what a replica knows of its keys does not move to another, so the number of replicas cannot change; leave \
                 `by_key` out, or say the number with `replicas(..)`",
            ),
            (
                stage.select == Select::All,
                "every replica takes every item, and one that comes later has missed some; leave `to_all` out, or say the \
                 number with `replicas(..)`",
            ),
            (
                stage.depth > 0,
                "the number of replicas of a stage in a loop cannot change; say it with `replicas(..)`, or take the stage out \
                 of the loop",
            ),
            (
                stage.pairs.is_some(),
                "halves that wait in a replica do not move to another; leave the number of replicas as it is",
            ),
            (
                stage.beside.is_some(),
                "it is in the worker of another stage, so its replicas have no processes of their own; leave `beside` out",
            ),
            (
                pairs_again,
                "at least once, a `zip` or `join` behind it has to know its senders; say their number with `replicas(..)`",
            ),
        ];
        let conflicts = conflicts.into_iter().filter(|(holds, _)| *holds);
        mistakes.extend(conflicts.map(|(_, why)| Mistake::Conflict { stage: name(), why }));
        mistakes
    }
}
