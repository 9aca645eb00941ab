//! Refuses pipelines that could wait for themselves, before a process starts: no deadline would end such a
//! wait.
//!
//! Three things let a sender go on only when an earlier item is done with: the bound of a loop,
//! `max_bytes_in_flight`, and the number of items that at-least-once delivery lets a source have
//! unacknowledged. A batch or a window keeps items until it has enough of them, and a `join` until a partner
//! comes. `check` sums what all of them behind one such bound can keep, and refuses the pipeline if the sum
//! can reach the bound.
//!
//! Circles are refused here and not detected at run time, but for one: a `join` at least once keeps halves
//! whose partners may never come, and only while it runs can it be seen that they do not. Each source says
//! when it makes nothing more before something is acknowledged, and what it has under way
//! (`worker/fork_tracker`); the join adds that up.

use super::error::Mistake;
use super::plan::{Plan, RESULTS};
use super::worker::args::Select;

impl Plan {
    /// Every circle.
    pub(super) fn circles(&self) -> Vec<Mistake> {
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
        }
        for source in self.sources() {
            mistakes.extend(self.keeps_too_many(source));
        }
        mistakes
    }

    fn conflict(&self, stage: usize, why: &'static str) -> Mistake {
        Mistake::Conflict { stage: self.stages[stage].name.clone(), why }
    }

    /// Items that a stage keeps until another comes, however long that takes.
    fn keeps_for_ever(&self, stage: usize) -> u32 {
        let stage = &self.stages[stage];
        stage.keeps.filter(|_| !stage.times_out).map_or(0, |keeps| keeps.saturating_sub(1))
    }

    /// Whether some fork tells a stage that pairs, on both sides, which items of a source do not come there.
    fn is_told_of(&self, stage: usize, source: usize) -> bool {
        let forks = || (0..self.stages.len()).filter(|fork| *fork == source || self.reaches(source, *fork));
        let told: Vec<_> = forks()
            .flat_map(|fork| self.partners(fork, RESULTS).into_iter().map(move |partner| (fork, partner)))
            .filter(|(_, partner)| partner.stage == stage)
            .collect();
        // Of the same branches for both sides, it says of neither whether the other comes.
        let of = |left: bool| told.iter().filter(move |(_, partner)| partner.left == left);
        of(true).any(|(fork, left)| {
            of(false).any(|(other, right)| (fork, &left.branches) != (other, &right.branches))
        })
    }

    /// Whether a stage, if it pairs, hears of each half that has no partner.
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

    /// A sender that may have so many bytes under way waits for their answers.
    fn waits_for_bytes(&self, stage: usize) -> Option<&'static str> {
        self.stages[stage].max_bytes?;
        if self.stages[stage].depth > 0 {
            return Some(
                "in a loop an item is done with when its next round has begun, which waits for those bytes; bound the items \
                 by the loop's bound, or the bytes in front of the loop",
            );
        }
        let answers_for = |other: usize| match self.at_least_once {
            // Down to the sinks.
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

    /// Whether a stage is done with an item only when another in its worker is.
    fn answers_for(&self, stage: usize, other: usize) -> bool {
        let pairs = self.stages[stage].pairs.is_some();
        let mut next =
            self.edges.iter().filter(|edge| edge.from.stage == stage && self.restarts_together(edge));
        !pairs && next.any(|edge| edge.to == other || self.answers_for(edge.to, other))
    }

    /// At least once, a source makes nothing more when so many of its items are kept.
    fn keeps_too_many(&self, source: usize) -> Option<Mistake> {
        let most = u64::from(self.at_least_once?);
        // Each branch of a fork at the source has so many of its own; a source that gives each item to one of
        // them waits for the one that is full.
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

    /// Items of sources that a stage can keep unacknowledged, all replicas together: in front of a batch of
    /// batches wait whole batches, and behind an `unbatch` a part keeps all of its batch.
    fn retained(&self, stage: usize) -> u64 {
        let each = self.kept(stage, stage, u64::from(self.keeps_for_ever(stage)), &mut Vec::new());
        each.saturating_mul(u64::from(self.stages[stage].replicas))
    }

    /// Whether parts of one batch, from an `unbatch`, may go to others than a stage that keeps some. Where
    /// they do not they come one behind the other, and what is kept is of few batches.
    fn parts_are_spread(&self, unbatch: usize, keeper: usize) -> bool {
        let between = |stage: &usize| *stage == unbatch || self.reaches(unbatch, *stage);
        let mut stages = (0..self.stages.len()).filter(between).filter(|stage| self.reaches(*stage, keeper));
        self.stages[keeper].replicas > 1
            || stages.any(|stage| {
                let outputs = &self.stages[stage].outputs;
                outputs.iter().any(|output| output.branches > 1 && output.select != Select::All)
            })
    }

    /// The stage that makes the batches that come to an `unbatch`, and how many parts a whole one has, where
    /// nothing stands between that could leave any out, as a stage of the user's could.
    fn batches_of(&self, unbatch: usize) -> Option<(usize, u64)> {
        let mut before = self.edges_to(unbatch).map(|(_, edge)| edge.from.stage);
        let first = before.next().filter(|first| self.stages[*first].packs)?;
        let parts = self.stages[first].keeps.filter(|_| before.next().is_none())?;
        Some((first, u64::from(parts)))
    }

    /// Whether parts that a batch, window, zip or join may keep come there without one of them left out.
    fn all_parts_come(&self, unbatch: usize, keeper: usize) -> bool {
        let between =
            |stage: &usize| *stage != keeper && self.reaches(unbatch, *stage) && self.reaches(*stage, keeper);
        let mut between = (0..self.stages.len()).filter(between).filter(|stage| *stage != unbatch);
        between.all(|stage| {
            let here = &self.stages[stage];
            (here.helper && here.pairs.is_none()) || (here.one_of_each && here.on_error.fails())
        })
    }

    /// The most items of sources that are unacknowledged while `keeper` has the last so many that came to a
    /// stage.
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
                // They come one behind the other, and those that are kept are of few batches: the last ones,
                // where each is whole.
                return if self.stages[batch].times_out {
                    self.kept(batch, keeper, count.saturating_add(parts - 1), on_the_way)
                } else {
                    self.kept(from, keeper, count.div_ceil(parts), on_the_way)
                };
            }
            let of_each = match (here.keeps, here.pairs) {
                (Some(keeps), _) if here.packs => count.saturating_mul(u64::from(keeps)),
                (_, Some(pairs)) if !pairs.by_id => count.saturating_mul(2),
                // Of parts each is of another batch.
                _ => count,
            };
            self.kept(from, keeper, of_each, on_the_way)
        });
        let most = made.max().unwrap_or(count);
        on_the_way.pop();
        most
    }
}
