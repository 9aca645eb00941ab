//! Chooses the links that a reader polls if it has many: those that had something lately each time, and each
//! quiet one in its turn. Without this every message would pay for every quiet link, 54 ns each (one H200's
//! host).
//!
//! Only the reader uses it, and owns it.
//!
//! **Invariants.**
//! * Each link is polled at least once in [`TURNS`] rounds, and in every round that asks for all links, such
//!   as the last one before the reader sleeps. So a message on a quiet link waits no longer than that.
//! * Each round begins with another link. When the same one was always first, the last of eight senders at
//!   full speed got 0.5 to 0.7 of the first one's rate.
//!
//! **Locks.** None.
//!
//! **On a crash** of a peer nothing changes here until its link is removed. **On cancellation** nothing is
//! lost: the next reader makes it anew.

use std::collections::HashMap;
use std::sync::Arc;

use super::link::Link;
use super::links::Links;
use crate::ids::ProcessId;

/// The number of rounds in which each quiet link is polled once. The first message on a quiet link pays for
/// it: some 5 us with a few dozen links, and some 25 with 248. Polling all of them takes more than half of
/// those 25, in any number of rounds.
const TURNS: usize = 128;

/// Up to this many links, all are polled each time.
const FEW: usize = 8;

/// If there is only one lively link, it becomes quiet after this many polls in vain, which is longer than a
/// reader polls before it sleeps. Several lively links share this number: when each of 249 links had all of
/// it, a process that had just met all others did little but poll them.
const VAIN_POLLS: u32 = 4096;

/// Each lively link has at least this many.
const LEAST_VAIN_POLLS: u32 = 64;

/// The result of polling a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PollResult {
    Something,
    Nothing,
    /// The link is being made. The first message over it should not wait for the link's turn.
    NotYet,
}

impl From<bool> for PollResult {
    fn from(any: bool) -> Self {
        if any { PollResult::Something } else { PollResult::Nothing }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Attention {
    /// The list that the indices below refer to, with its version. Taking the list anew for each round would
    /// cost a lock.
    list: Option<Arc<[Arc<Link>]>>,
    version: u64,
    /// The index of each peer's link. It carries the state of the links over when the list changes: when one
    /// of 250 links is new, 249 are not.
    peers: HashMap<ProcessId, usize>,
    rounds: Rounds,
}

impl Attention {
    /// Polls links with `poll`; returns true if any had something to do.
    pub(super) fn poll(
        &mut self,
        links: &Links,
        all: bool,
        mut poll: impl FnMut(&Arc<Link>) -> PollResult,
    ) -> bool {
        let known = self.list.take().filter(|_| self.version == links.version());
        let list = known.unwrap_or_else(|| {
            let (list, version) = links.all_with_version();
            if self.version != version {
                self.version = version;
                self.learn(&list);
            }
            links.keep(&list, version);
            list
        });
        let any =
            self.rounds.poll(list.len(), all, |index| list.get(index).map_or(PollResult::Nothing, &mut poll));
        self.list = Some(list);
        any
    }

    /// Carries the state over to a new list.
    fn learn(&mut self, list: &[Arc<Link>]) {
        if list.len() <= FEW {
            (self.peers, self.rounds) = Default::default();
            return;
        }
        let before = |index: usize| list.get(index).and_then(|link| self.peers.get(&link.peer)).copied();
        self.rounds = self.rounds.changed(list.len(), before);
        self.peers = list.iter().enumerate().map(|(index, link)| (link.peer, index)).collect();
    }

    /// Drops the references to the links, which may end while the reader sleeps, and keeps their state.
    pub(super) fn let_go(&mut self) {
        self.list = None;
        Links::let_go_of_kept();
    }
}

impl Drop for Attention {
    fn drop(&mut self) {
        self.let_go();
    }
}

/// The choice of links, by index.
#[derive(Debug, Default)]
struct Rounds {
    /// The links that are polled each time, and how many polls of each were in vain.
    lively: Vec<(usize, u32)>,
    is_lively: Vec<bool>,
    /// The quiet link whose turn is next.
    next: usize,
    /// With few links: the first one of this round.
    first: usize,
}

impl Rounds {
    /// Returns the state for `count` links, each of which had the index `before` of its new one. New links
    /// are lively, because a new peer may be about to send something.
    fn changed(&self, count: usize, before: impl Fn(usize) -> Option<usize>) -> Self {
        let mut vain = vec![VAIN_POLLS; self.is_lively.len()];
        self.lively.iter().for_each(|&(index, polls)| vain[index] = polls);
        let polls = |index| before(index).and_then(|before| vain.get(before)).copied().unwrap_or(0);
        let lively: Vec<_> =
            (0..count).map(|index| (index, polls(index))).filter(|(_, vain)| *vain < VAIN_POLLS).collect();
        let mut is_lively = vec![false; count];
        lively.iter().for_each(|&(index, _)| is_lively[index] = true);
        // `next` is kept, so that the links at the end have their turn even if others come and go all the
        // time.
        Rounds { lively, is_lively, next: self.next % count.max(1), ..Self::default() }
    }

    fn poll(&mut self, count: usize, all: bool, mut poll: impl FnMut(usize) -> PollResult) -> bool {
        if count <= FEW {
            self.first = if self.first + 1 < count { self.first + 1 } else { 0 };
            let poll = |any, index| (poll(index) == PollResult::Something) | any;
            return (self.first..count).chain(0..self.first).fold(false, poll);
        }
        let mut any = false;
        if self.lively.len() > 1 {
            self.lively.rotate_left(1);
        }
        let is_lively = &mut self.is_lively;
        let patience = (VAIN_POLLS / self.lively.len().max(1) as u32).max(LEAST_VAIN_POLLS);
        self.lively.retain_mut(|(index, vain)| {
            match poll(*index) {
                PollResult::Something => (*vain, any) = (0, true),
                PollResult::Nothing => *vain += 1,
                PollResult::NotYet => {}
            }
            is_lively[*index] = *vain < patience;
            is_lively[*index]
        });
        let turn = if all { count } else { count.div_ceil(TURNS) };
        for _ in 0..turn {
            let index = self.next;
            self.next = (index + 1) % count;
            // A link that has just become quiet may be polled twice; that is rare.
            let found = if self.is_lively[index] { PollResult::Nothing } else { poll(index) };
            if found != PollResult::Nothing {
                any |= found == PollResult::Something;
                self.is_lively[index] = true;
                self.lively.push((index, 0));
            }
        }
        any
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With this many links each quiet one has its turn exactly once in [`TURNS`] rounds.
    const MANY: usize = 4 * TURNS;

    fn new(count: usize) -> Rounds {
        Rounds::default().changed(count, |_| None)
    }

    /// Polls one round, in which the links at `news` have something. Returns the polled links, and the
    /// answer.
    fn poll(rounds: &mut Rounds, all: bool, news: &[usize]) -> (Vec<usize>, bool) {
        let mut seen = Vec::new();
        let any = rounds.poll(MANY, all, |index| {
            seen.push(index);
            news.contains(&index).into()
        });
        (seen, any)
    }

    /// Returns the state in which all links are quiet but the busy ones.
    fn after_a_while(busy: &[usize]) -> Rounds {
        let mut rounds = new(MANY);
        (0..VAIN_POLLS).for_each(|_| drop(poll(&mut rounds, false, busy)));
        rounds
    }

    /// A link that is always polled last gets less than the others.
    #[test]
    fn each_is_the_first_as_often_as_the_others() {
        for (count, mut rounds) in [(FEW, Rounds::default()), (FEW + 1, new(FEW + 1))] {
            let mut firsts = vec![0; count];
            for _ in 0..3 * count {
                let mut first = None;
                // All have something, as if all peers sent at full speed.
                rounds.poll(count, false, |index| {
                    first.get_or_insert(index);
                    PollResult::Something
                });
                firsts[first.expect("there are links")] += 1;
            }
            assert_eq!(firsts, vec![3; count]);
        }
    }

    #[test]
    fn who_speaks_is_looked_at_each_time_and_each_quiet_one_in_its_turn() {
        let mut rounds = after_a_while(&[3, 77]);
        let mut polls = [0; MANY];
        for _ in 0..TURNS {
            let (seen, any) = poll(&mut rounds, false, &[3, 77]);
            assert!(any && seen.len() <= 2 + MANY.div_ceil(TURNS), "{seen:?}");
            seen.into_iter().for_each(|index| polls[index] += 1);
        }
        assert_eq!((polls[3], polls[77]), (TURNS, TURNS));
        assert!(polls.iter().all(|&times| times > 0), "{polls:?}");
    }

    #[test]
    fn a_quiet_one_that_speaks_is_looked_at_each_time_from_then_on() {
        let mut rounds = after_a_while(&[]);
        let found = (0..TURNS).any(|_| poll(&mut rounds, false, &[50]).1);
        assert!(found);
        for _ in 1..VAIN_POLLS {
            assert!(poll(&mut rounds, false, &[]).0.contains(&50));
        }
        poll(&mut rounds, false, &[]);
        let polls = (0..TURNS).filter(|_| poll(&mut rounds, false, &[]).0.contains(&50)).count();
        assert_eq!(polls, 1, "it is quiet again");
    }

    #[test]
    fn many_that_are_silent_are_quiet_sooner_than_a_few() {
        let looks_of = |count: usize| {
            let mut rounds = new(count);
            let mut polls = 0;
            while !rounds.lively.is_empty() {
                rounds.poll(count, false, |_| {
                    polls += 1;
                    PollResult::Nothing
                });
            }
            polls
        };
        let (some, many) = (looks_of(16), looks_of(MANY));
        assert!(some < 6 * VAIN_POLLS, "{some}");
        assert!(many < 2 * MANY as u32 * LEAST_VAIN_POLLS, "{many}");
    }

    #[test]
    fn a_quiet_one_stays_quiet_where_others_come_and_go() {
        let rounds = after_a_while(&[3, 77]);
        // The first two links are gone, and there is a new one at the end.
        let mut rounds = rounds.changed(MANY - 1, |index| (index + 2 < MANY).then_some(index + 2));
        let lively = |rounds: &Rounds| rounds.lively.iter().map(|(index, _)| *index).collect::<Vec<_>>();
        assert_eq!(lively(&rounds), [1, 75, MANY - 2]);
        let polls: usize = (0..TURNS)
            .map(|_| usize::from(rounds.poll(MANY - 1, false, |index| (index == 100).into())))
            .sum();
        assert!(polls > 0, "and is looked at in its turn");
        assert!(lively(&rounds).contains(&100));
    }

    #[test]
    fn those_at_the_end_have_their_turn_where_others_come_and_go_at_each_look() {
        let mut rounds = after_a_while(&[]);
        let mut seen = [false; MANY];
        for _ in 0..TURNS {
            rounds = rounds.changed(MANY, Some);
            poll(&mut rounds, false, &[]).0.into_iter().for_each(|index| seen[index] = true);
        }
        assert!(seen.iter().all(|seen| *seen));
    }

    /// A process that has made a link waits for the first message over it.
    #[test]
    fn a_link_that_is_being_made_is_looked_at_each_time_until_it_is_there() {
        let mut rounds = new(MANY);
        let mut polls = 0;
        let mut poll = |rounds: &mut Rounds, made: bool| {
            polls = 0;
            rounds.poll(MANY, false, |index| match (index, made) {
                (7, false) => {
                    polls += 1;
                    PollResult::NotYet
                }
                (7, true) => {
                    polls += 1;
                    PollResult::Nothing
                }
                _ => PollResult::Nothing,
            });
            polls
        };
        for _ in 0..2 * VAIN_POLLS {
            assert_eq!(poll(&mut rounds, false), 1);
        }
        // By now it is the only lively link, so it has all of the patience.
        for _ in 0..VAIN_POLLS {
            assert_eq!(poll(&mut rounds, true), 1);
        }
        assert!((0..TURNS).map(|_| poll(&mut rounds, true)).sum::<u32>() == 1, "it is quiet");
    }

    #[test]
    fn a_look_at_all_leaves_nobody_out() {
        let mut rounds = after_a_while(&[9]);
        for news in 0..MANY {
            let (mut seen, any) = poll(&mut rounds, true, &[news]);
            seen.sort_unstable();
            seen.dedup();
            assert!(any && seen.len() == MANY);
        }
    }

    #[test]
    fn few_are_all_looked_at_and_new_ones_are_lively() {
        let mut rounds = Rounds::default();
        for _ in 0..2 * VAIN_POLLS {
            let mut seen = 0;
            assert!(rounds.poll(FEW, false, |index| {
                seen += 1;
                (index == FEW - 1).into()
            }));
            assert_eq!(seen, FEW);
        }
        assert_eq!(poll(&mut new(MANY), false, &[]).0.len(), MANY);
    }
}
