//! The check of a plan before a process starts: every mistake, with its stage and the remedy.

use std::collections::HashSet;

use tensorpost_core::api::actor::MAX_MAILBOX;
use tensorpost_core::api::node::{Node, Restart};

use super::{DEAD, Kind, Plan, Tap};
use crate::error::{Mistake, PipelineError};
use crate::limits::{MAX_BATCH, MAX_REPLICAS};
use crate::worker::args::Select;

impl Plan {
    /// Returns every mistake in the plan.
    pub(crate) fn mistakes(&self) -> Vec<Mistake> {
        let mut mistakes = Vec::new();
        if !self.stages.iter().any(|stage| stage.kind == Kind::Source) {
            mistakes.push(Mistake::NoSource);
        }
        let mut names = HashSet::new();
        for (index, stage) in self.stages.iter().enumerate() {
            let name = || stage.name.clone();
            if !names.insert(&stage.name) {
                mistakes.push(Mistake::DuplicateName { stage: name() });
            }
            if let Err(source) = stage.on.find() {
                mistakes.push(Mistake::Device { stage: name(), device: stage.on.to_string(), source });
            }
            let numbers = [
                ("replicas", u64::from(stage.replicas), u64::from(MAX_REPLICAS)),
                ("mailbox", stage.mailbox.map_or(1, u64::from), u64::from(MAX_MAILBOX)),
                ("bound", stage.window.map_or(1, u64::from), u64::from(MAX_MAILBOX / 2 - 2)),
                ("count", stage.keeps.map_or(1, u64::from), u64::from(MAX_BATCH)),
                (
                    "mailbox with all that it keeps or that may be unacknowledged",
                    u64::from(self.places_needed(index)),
                    u64::from(MAX_MAILBOX),
                ),
                ("spares", u64::from(stage.spares.max(1)), u64::from(Node::MAX_SPARES)),
                ("max_bytes_in_flight", stage.max_bytes.unwrap_or(1), u64::MAX),
            ];
            for (what, value, most) in numbers {
                if !(1..=most).contains(&value) {
                    mistakes.push(Mistake::OutOfRange { stage: name(), what, value, least: 1, most });
                }
            }
            if stage.ordered && stage.select == Select::All && stage.replicas > 1 {
                let why =
                    "every replica takes every item, so there is no order to restore; leave `ordered` out";
                mistakes.push(Mistake::Conflict { stage: name(), why });
            }
            if stage.drops.is_some() {
                let why = if self.at_least_once.is_some() {
                    Some("it drops items, and at least once means that none is; leave one of the two out")
                } else if stage.depth > 0 {
                    Some(
                        "an item that a stage of a loop drops would have left the loop unseen; drop in front of the loop",
                    )
                } else if stage.pairs.is_some() {
                    Some(
                        "the partner of an item that it drops would wait for ever; drop in front of the fork",
                    )
                } else if stage.select == Select::All && stage.replicas > 1 {
                    Some(
                        "every replica takes every item, so none can be dropped for one that is busy; leave `to_all` out",
                    )
                } else {
                    None
                };
                mistakes.extend(why.map(|why| Mistake::Conflict { stage: name(), why }));
            }
            if stage.ordered && stage.depth > 0 {
                let why = "items in a loop have no order to restore; leave `ordered` out";
                mistakes.push(Mistake::Conflict { stage: name(), why });
            }
            if stage.is_fed && (stage.replicas > 1 || self.restart(index) != Restart::never()) {
                let why =
                    "the program sends it each item once, to one place; leave `replicas` and `restart` out";
                mistakes.push(Mistake::Conflict { stage: name(), why });
            }
            mistakes.extend(self.scale_mistakes(index));
            mistakes.extend(self.host_mistakes(index));
            mistakes.extend(self.python_mistake(index).map(|why| Mistake::Conflict { stage: name(), why }));
            if stage.spares > 0 && self.restart(index) == Restart::never() {
                let why = "its spares would never be used, because nothing comes back without a policy; add `.restart(..)`";
                mistakes.push(Mistake::Conflict { stage: name(), why });
            }
            if stage.beside.is_some_and(|beside| self.stages[beside].replicas > 1) {
                let why = "a stage with several replicas is in several workers, so nothing can be beside it";
                mistakes.push(Mistake::Conflict { stage: name(), why });
            }
        }
        mistakes.extend(self.cycles());
        for tap in &self.open {
            let what = if tap.output == DEAD { "the dead letters".to_owned() } else { self.what(*tap) };
            mistakes.push(Mistake::Unconnected { stage: self.stages[tap.stage].name.clone(), what });
        }
        mistakes
    }

    fn what(&self, tap: Tap) -> String {
        let branches = self.stages[tap.stage].outputs[usize::from(tap.output)].branches;
        if branches > 1 { format!("branch {} of the results", tap.branch) } else { "the results".to_owned() }
    }

    pub(crate) fn check(&self) -> Result<(), PipelineError> {
        let mistakes = self.mistakes();
        if mistakes.is_empty() {
            return Ok(());
        }
        Err(PipelineError::Graph { pipeline: self.name.clone(), mistakes })
    }
}
