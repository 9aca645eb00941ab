//! Refuses pipelines that could wait for themselves, before a process starts: no deadline would end such a
//! wait.
//!
//! Three bounds let a sender go on only when an earlier item has been handled: the bound of a loop,
//! `max_bytes_in_flight`, and the number of items that a source may have unacknowledged under at-least-once
//! delivery. A batch or a window keeps items until it has enough of them, and a `join` until a partner comes.
//! `check` adds up the items that all of them behind one such bound can keep, and refuses the pipeline if the
//! sum can reach the bound.
//!
//! A fourth is the width of an order. At most once, a sender to `ordered` replicas stops some numbers ahead
//! of the oldest item that one of them keeps. At least once, so many items may be unanswered, which is no
//! less than may be unacknowledged (`Plan::ahead`).
//!
//! Cycles are refused here and not detected at run time, with one exception. Under at-least-once delivery a
//! `join` keeps halves whose partners may never come, and only at run time can it tell that they do not. Each
//! source reports when it makes nothing more before something is acknowledged, with the items that it has
//! under way (`worker/fork_tracker`). The join combines these reports.

use super::error::Mistake;
use super::plan::{Plan, RESULTS};
use super::worker::args::Select;

impl Plan {
    /// Returns a mistake for every cycle.
    pub(super) fn cycles(&self) -> Vec<Mistake> {
        let mut mistakes = Vec::new();
        for stage in 0..self.stages.len() {
            mistakes.extend(self.waits_in_a_loop(stage).map(|why| self.conflict(stage, why)));
            if self.pairs_untold(stage) {
                let why = "at least once, its two sides get items of one source by ways that no fork tells apart (the results \
                           and the dead letters of a stage, say), so nobody knows of a half whether its partner comes; \
                           fork the flow once for both sides, or leave `at_least_once` out";
                mistakes.push(self.conflict(stage, why));
            }
            mistakes.extend(self.waits_for_bytes(stage).map(|why| self.conflict(stage, why)));
            mistakes.extend(self.waits_for_numbers(stage).map(|why| self.conflict(stage, why)));
        }
        for source in self.sources() {
            mistakes.extend(self.keeps_too_many(source));
        }
        mistakes
    }

    fn conflict(&self, stage: usize, why: &'static str) -> Mistake {
        Mistake::Conflict { stage: self.stages[stage].name.clone(), why }
    }

    /// How many items a stage keeps until another comes, however long that takes.
    fn keeps_for_ever(&self, stage: usize) -> u32 {
        let stage = &self.stages[stage];
        stage.keeps.filter(|_| !stage.times_out).map_or(0, |keeps| keeps.saturating_sub(1))
    }

    /// Whether forks tell a stage that pairs, for both of its sides, which items of a source do not come
    /// there.
    fn is_told_of(&self, stage: usize, source: usize) -> bool {
        let forks = || (0..self.stages.len()).filter(|fork| *fork == source || self.reaches(source, *fork));
        let told: Vec<_> = forks()
            .flat_map(|fork| self.partners(fork, RESULTS).into_iter().map(move |partner| (fork, partner)))
            .filter(|(_, partner)| partner.stage == stage)
            .collect();
        // A fork that uses the same branches for both sides cannot tell for either whether the other half
        // comes.
        let of = |left: bool| told.iter().filter(move |(_, partner)| partner.left == left);
        of(true).any(|(fork, left)| {
            of(false).any(|(other, right)| (fork, &left.branches) != (other, &right.branches))
        })
    }

    /// Whether a stage, if it pairs, learns of each half that has no partner.
    fn is_told(&self, stage: usize) -> bool {
        let Some(pairs) = self.stages[stage].pairs else { return true };
        let mut sources = pairs.sides.iter().flat_map(|side| self.sources_of(*side));
        pairs.by_id && sources.all(|source| self.is_told_of(stage, source))
    }

    /// Whether items of a source come to both sides of a stage that pairs, by ways that no fork tells apart:
    /// the results and the dead letters of one stage, for example.
    fn pairs_untold(&self, stage: usize) -> bool {
        let Some(pairs) = self.stages[stage].pairs.filter(|_| self.at_least_once.is_some()) else {
            return false;
        };
        let [left, right] = pairs.sides;
        let mut both = self.sources_of(left).filter(|source| self.reaches(*source, right));
        both.any(|source| !self.is_told_of(stage, source))
    }

    fn waits_in_a_loop(&self, stage: usize) -> Option<&'static str> {
        let here = &self.stages[stage];
        if here.depth > 0 && here.keeps.is_some() && !here.times_out {
            return Some(
                "in a loop, what waits for more items may wait for ever; give the batch a time with `within`",
            );
        }
        let leaves = |stage: usize| {
            let edges = self.edges.iter().filter(move |edge| edge.to == stage && !edge.feedback);
            edges.map(|edge| edge.from.stage).find(|from| self.stages[*from].depth > self.stages[stage].depth)
        };
        if let Some(from) = leaves(stage)
            && self.home(from) == self.home(stage)
        {
            return Some(
                "what comes out of a loop is done with there, so a stage behind it cannot be in the worker of one in it; \
                 leave `beside` out",
            );
        }
        // At least once, an item stays in the loop until it is acknowledged.
        let behind_a_loop = self.at_least_once.is_some()
            && (0..self.stages.len())
                .any(|exit| leaves(exit).is_some() && (exit == stage || self.reaches(exit, stage)));
        if behind_a_loop && self.keeps_for_ever(stage) > 0 {
            return Some(
                "at least once, an item stays in its loop until it is acknowledged, so a batch or window behind the loop \
                 may wait for ever; give the batch a time with `within`, or put it in front of the loop",
            );
        }
        if behind_a_loop && !self.is_told(stage) {
            return Some(
                "at least once, an item stays in its loop until it is acknowledged, so a `zip` or `join` behind the loop, \
                 which no fork tells whether a partner comes, may wait for ever; put it in front of the loop, or leave \
                 `at_least_once` out",
            );
        }
        None
    }

    /// Checks `max_bytes_in_flight`: a sender with so many bytes under way waits for their answers.
    fn waits_for_bytes(&self, stage: usize) -> Option<&'static str> {
        self.stages[stage].max_bytes?;
        if self.stages[stage].depth > 0 {
            return Some(
                "in a loop an item is done with when its next round has begun, which waits for those bytes; bound the items \
                 by the loop's bound, or the bytes in front of the loop",
            );
        }
        let answers_for = |other: usize| match self.at_least_once {
            // An item is answered when everything down to the sinks was.
            Some(_) => other == stage || self.reaches(stage, other),
            None => other == stage || self.answers_for(stage, other),
        };
        let mut others = (0..self.stages.len()).filter(|other| answers_for(*other));
        let waits = |other: &usize| {
            self.keeps_for_ever(*other) > 0 || (self.at_least_once.is_some() && !self.is_told(*other))
        };
        others.any(|other| waits(&other)).then_some(
            "`max_bytes_in_flight` counts what a batch, window or `join` behind it keeps, which may need more than that to \
             go on; give the batch a time with `within`, or bound the bytes of a stage behind it",
        )
    }

    /// Checks the width of an order: replicas that wait for more items get none past that.
    fn waits_for_numbers(&self, stage: usize) -> Option<&'static str> {
        let (here, kept) = (&self.stages[stage], self.keeps_for_ever(stage));
        if kept == 0 || self.at_least_once.is_some() || !self.loses_order(stage) {
            return None;
        }
        // All items of a key go to one replica, and another may get none.
        let alone = matches!(here.select, Select::By(_));
        (alone || kept.saturating_mul(here.replicas) >= self.ahead(stage)).then_some(
            "its senders stop some way ahead of the oldest item that one of its `ordered` replicas keeps, so replicas that \
             wait for more items may get none; give the batch a time with `within`, or leave `ordered` out",
        )
    }

    /// Whether a stage has handled an item only when another in its worker has.
    fn answers_for(&self, stage: usize, other: usize) -> bool {
        let pairs = self.stages[stage].pairs.is_some();
        let mut next =
            self.edges.iter().filter(|edge| edge.from.stage == stage && self.restarts_together(edge));
        !pairs && next.any(|edge| edge.to == other || self.answers_for(edge.to, other))
    }

    /// Checks the bound of at-least-once delivery: a source makes nothing more when so many of its items are
    /// kept.
    fn keeps_too_many(&self, source: usize) -> Option<Mistake> {
        let most = u64::from(self.at_least_once?);
        // Each branch of a fork at the source has this bound for itself. A source that gives each item to one
        // branch waits for the branch that is full.
        let output = &self.stages[source].outputs[usize::from(RESULTS)];
        let edges = self.edges_from(source, RESULTS);
        let alone = output.branches > 1 && output.select != Select::All;
        let beginnings: Vec<Vec<usize>> = if alone {
            edges.iter().map(|(_, edge)| vec![edge.to]).collect()
        } else {
            vec![edges.iter().map(|(_, edge)| edge.to).collect()]
        };
        beginnings.iter().find_map(|beginning| {
            let behind = |stage: &usize| beginning.iter().any(|from| self.reaches(*from, *stage));
            let keepers: Vec<_> = (0..self.stages.len())
                .filter(|stage| self.keeps_for_ever(*stage) > 0)
                .filter(behind)
                .collect();
            let retained: u64 =
                keepers.iter().map(|stage| self.retained(*stage)).fold(0, u64::saturating_add);
            let stage = self.stages[*keepers.last()?].name.clone();
            (retained >= most).then_some(Mistake::Retained { stage, retained, most, stages: keepers.len() })
        })
    }

    /// How many items of sources a stage can keep unacknowledged, all replicas together. A batch of batches
    /// keeps whole batches, and behind an `unbatch` one part keeps its whole batch unacknowledged.
    fn retained(&self, stage: usize) -> u64 {
        let each = self.kept(stage, stage, u64::from(self.keeps_for_ever(stage)), &mut Vec::new());
        each.saturating_mul(u64::from(self.stages[stage].replicas))
    }

    /// Whether parts of one batch, from an `unbatch`, may go to other receivers than the stage that keeps
    /// some of them. If not, the parts come one behind the other, and the kept parts belong to few batches.
    fn parts_are_spread(&self, unbatch: usize, keeper: usize) -> bool {
        let between = |stage: &usize| *stage == unbatch || self.reaches(unbatch, *stage);
        let mut stages = (0..self.stages.len()).filter(between).filter(|stage| self.reaches(*stage, keeper));
        self.stages[keeper].replicas > 1
            || stages.any(|stage| {
                let outputs = &self.stages[stage].outputs;
                outputs.iter().any(|output| output.branches > 1 && output.select != Select::All)
            })
    }

    /// Returns the stage that makes the batches that come to an `unbatch`, and how many parts a whole batch
    /// has. `None` if a stage between the two, such as one of the user's, could leave parts out.
    fn batches_of(&self, unbatch: usize) -> Option<(usize, u64)> {
        let mut before = self.edges_to(unbatch).map(|(_, edge)| edge.from.stage);
        let first = before.next().filter(|first| self.stages[*first].packs)?;
        let parts = self.stages[first].keeps.filter(|_| before.next().is_none())?;
        Some((first, u64::from(parts)))
    }

    /// Whether all parts reach the batch, window, zip or join that may keep them, with none left out on the
    /// way.
    fn all_parts_come(&self, unbatch: usize, keeper: usize) -> bool {
        let between =
            |stage: &usize| *stage != keeper && self.reaches(unbatch, *stage) && self.reaches(*stage, keeper);
        let mut between = (0..self.stages.len()).filter(between).filter(|stage| *stage != unbatch);
        between.all(|stage| {
            let here = &self.stages[stage];
            (here.helper && here.pairs.is_none()) || (here.one_of_each && here.on_error.fails())
        })
    }

    /// The most items of sources that are unacknowledged while `keeper` holds the last `count` items that
    /// came to a stage.
    fn kept(&self, stage: usize, keeper: usize, count: u64, on_the_way: &mut Vec<usize>) -> u64 {
        if count == 0 || on_the_way.contains(&stage) {
            return count; // Around a loop, in which nothing is kept for ever.
        }
        on_the_way.push(stage);
        let before = self.edges_to(stage).filter(|(_, edge)| !edge.feedback).map(|(_, edge)| edge.from.stage);
        let made = before.map(|from| {
            let here = &self.stages[from];
            if here.takes_apart
                && self.all_parts_come(from, keeper)
                && !self.parts_are_spread(from, keeper)
                && let Some((batch, parts)) = self.batches_of(from)
            {
                // The parts come one behind the other, and those that are kept belong to few batches: the
                // last ones, if each is whole.
                return if self.stages[batch].times_out {
                    self.kept(batch, keeper, count.saturating_add(parts - 1), on_the_way)
                } else {
                    self.kept(from, keeper, count.div_ceil(parts), on_the_way)
                };
            }
            let of_each = match (here.keeps, here.pairs) {
                (Some(keeps), _) if here.packs => count.saturating_mul(u64::from(keeps)),
                (_, Some(pairs)) if !pairs.by_id => count.saturating_mul(2),
                // Each part may belong to another batch.
                _ => count,
            };
            self.kept(from, keeper, of_each, on_the_way)
        });
        let most = made.max().unwrap_or(count);
        on_the_way.pop();
        most
    }
}
