//! Which links a reader looks at, where it has many: those that had something lately each time, and of the
//! quiet ones each in its turn. Without this every quiet link would be paid for by every message, 54 ns each
//! (one H200's host).
//!
//! Used by the reader alone, which owns it.
//!
//! **Invariants.**
//! * Each link is looked at at least once in [`TURNS`] looks, and at every look that asks for all of them, as
//!   the last one before the reader sleeps does: nothing waits for a quiet link longer than that.
//! * At each look another link is the first: where the same one always was, the last of eight senders that
//!   all send as fast as they can got 0.5 to 0.7 of what the first one got.
//!
//! **Locks.** None.
//!
//! **On a crash** of a peer nothing changes here until its link is gone. **On cancellation** nothing is lost:
//! it is made anew.

use std::collections::HashMap;
use std::sync::Arc;

use super::link::Link;
use super::links::Links;
use crate::ids::ProcessId;

/// In so many looks each quiet link is looked at once. That is what a link that has been quiet pays for its
/// first message: with a few dozen links some 5 us, with 248 some 25, of which the looks at all of them take
/// more than half in whatever number of turns.
const TURNS: usize = 128;

/// With so few links all are looked at each time.
const FEW: usize = 8;

/// A link is quiet after so many looks in vain, where it is the only lively one: longer than a reader looks
/// before it sleeps. Where there are more they share them: where 249 had each of them so many, a process that
/// has just met all others looked at little else.
const PATIENCE: u32 = 4096;

/// Each has at least so many.
const LEAST_PATIENCE: u32 = 64;

/// What a look at a link has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Something,
    Nothing,
    /// The link is being made: what comes first over it does not wait for its turn.
    NotYet,
}

impl From<bool> for Found {
    fn from(any: bool) -> Self {
        if any { Found::Something } else { Found::Nothing }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Attention {
    /// The list that the indices below are of, with its version: to take it anew at each look would cost a
    /// lock.
    list: Option<Arc<[Arc<Link>]>>,
    version: u64,
    /// Whose links they are: what is known of them is kept where the list changes, and 249 of 250 links are
    /// not new when one is.
    peers: HashMap<ProcessId, usize>,
    rounds: Rounds,
}

impl Attention {
    /// Looks at links with `look`; true if it has found something to do at any.
    pub(super) fn look(
        &mut self,
        links: &Links,
        all: bool,
        mut look: impl FnMut(&Arc<Link>) -> Found,
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
            self.rounds.look(list.len(), all, |index| list.get(index).map_or(Found::Nothing, &mut look));
        self.list = Some(list);
        any
    }

    /// The list is another one.
    fn learn(&mut self, list: &[Arc<Link>]) {
        if list.len() <= FEW {
            (self.peers, self.rounds) = Default::default();
            return;
        }
        let before = |index: usize| list.get(index).and_then(|link| self.peers.get(&link.peer)).copied();
        self.rounds = self.rounds.changed(list.len(), before);
        self.peers = list.iter().enumerate().map(|(index, link)| (link.peer, index)).collect();
    }

    /// Lets go of the links, which may end while the reader sleeps. What is known of them stays.
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

/// The same by indices.
#[derive(Debug, Default)]
struct Rounds {
    /// Those that are looked at each time, and how many looks were in vain.
    lively: Vec<(usize, u32)>,
    is_lively: Vec<bool>,
    /// The quiet ones go on here.
    next: usize,
    /// Where there are few: the first of this look.
    first: usize,
}

impl Rounds {
    /// The same with `count` links, each of which had the index `before` of it. Those that had none are
    /// lively: whoever is new may be about to say something.
    fn changed(&self, count: usize, before: impl Fn(usize) -> Option<usize>) -> Self {
        let mut vain = vec![PATIENCE; self.is_lively.len()];
        self.lively.iter().for_each(|&(index, looks)| vain[index] = looks);
        let looks = |index| before(index).and_then(|before| vain.get(before)).copied().unwrap_or(0);
        let lively: Vec<_> =
            (0..count).map(|index| (index, looks(index))).filter(|(_, vain)| *vain < PATIENCE).collect();
        let mut is_lively = vec![false; count];
        lively.iter().for_each(|&(index, _)| is_lively[index] = true);
        // Where others come and go all the time, those at the end have their turn too.
        Rounds { lively, is_lively, next: self.next % count.max(1), ..Self::default() }
    }

    fn look(&mut self, count: usize, all: bool, mut look: impl FnMut(usize) -> Found) -> bool {
        if count <= FEW {
            self.first = if self.first + 1 < count { self.first + 1 } else { 0 };
            let look = |any, index| (look(index) == Found::Something) | any;
            return (self.first..count).chain(0..self.first).fold(false, look);
        }
        let mut any = false;
        if self.lively.len() > 1 {
            self.lively.rotate_left(1);
        }
        let is_lively = &mut self.is_lively;
        let patience = (PATIENCE / self.lively.len().max(1) as u32).max(LEAST_PATIENCE);
        self.lively.retain_mut(|(index, vain)| {
            match look(*index) {
                Found::Something => (*vain, any) = (0, true),
                Found::Nothing => *vain += 1,
                Found::NotYet => {}
            }
            is_lively[*index] = *vain < patience;
            is_lively[*index]
        });
        let turn = if all { count } else { count.div_ceil(TURNS) };
        for _ in 0..turn {
            let index = self.next;
            self.next = (index + 1) % count;
            // Those that became quiet just now have been looked at, and are again: that is rare.
            let found = if self.is_lively[index] { Found::Nothing } else { look(index) };
            if found != Found::Nothing {
                any |= found == Found::Something;
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

    /// Each quiet one has its turn exactly once in [`TURNS`] looks.
    const MANY: usize = 4 * TURNS;

    fn new(count: usize) -> Rounds {
        Rounds::default().changed(count, |_| None)
    }

    /// Looks once; those at `news` have something. Returns who was looked at, and the answer.
    fn look(rounds: &mut Rounds, all: bool, news: &[usize]) -> (Vec<usize>, bool) {
        let mut seen = Vec::new();
        let any = rounds.look(MANY, all, |index| {
            seen.push(index);
            news.contains(&index).into()
        });
        (seen, any)
    }

    /// All of them quiet but those that say something each time.
    fn after_a_while(busy: &[usize]) -> Rounds {
        let mut rounds = new(MANY);
        (0..PATIENCE).for_each(|_| drop(look(&mut rounds, false, busy)));
        rounds
    }

    /// Whoever is always behind the others gets less than they do.
    #[test]
    fn each_is_the_first_as_often_as_the_others() {
        for (count, mut rounds) in [(FEW, Rounds::default()), (FEW + 1, new(FEW + 1))] {
            let mut firsts = vec![0; count];
            for _ in 0..3 * count {
                let mut first = None;
                // All have something, as where all send as fast as they can.
                rounds.look(count, false, |index| {
                    first.get_or_insert(index);
                    Found::Something
                });
                firsts[first.expect("there are links")] += 1;
            }
            assert_eq!(firsts, vec![3; count]);
        }
    }

    #[test]
    fn who_speaks_is_looked_at_each_time_and_each_quiet_one_in_its_turn() {
        let mut rounds = after_a_while(&[3, 77]);
        let mut looks = [0; MANY];
        for _ in 0..TURNS {
            let (seen, any) = look(&mut rounds, false, &[3, 77]);
            assert!(any && seen.len() <= 2 + MANY.div_ceil(TURNS), "{seen:?}");
            seen.into_iter().for_each(|index| looks[index] += 1);
        }
        assert_eq!((looks[3], looks[77]), (TURNS, TURNS));
        assert!(looks.iter().all(|&times| times > 0), "{looks:?}");
    }

    #[test]
    fn a_quiet_one_that_speaks_is_looked_at_each_time_from_then_on() {
        let mut rounds = after_a_while(&[]);
        let found = (0..TURNS).any(|_| look(&mut rounds, false, &[50]).1);
        assert!(found);
        for _ in 1..PATIENCE {
            assert!(look(&mut rounds, false, &[]).0.contains(&50));
        }
        look(&mut rounds, false, &[]);
        let looks = (0..TURNS).filter(|_| look(&mut rounds, false, &[]).0.contains(&50)).count();
        assert_eq!(looks, 1, "it is quiet again");
    }

    #[test]
    fn many_that_are_silent_are_quiet_sooner_than_a_few() {
        let looks_of = |count: usize| {
            let mut rounds = new(count);
            let mut looks = 0;
            while !rounds.lively.is_empty() {
                rounds.look(count, false, |_| {
                    looks += 1;
                    Found::Nothing
                });
            }
            looks
        };
        let (some, many) = (looks_of(16), looks_of(MANY));
        assert!(some < 6 * PATIENCE, "{some}");
        assert!(many < 2 * MANY as u32 * LEAST_PATIENCE, "{many}");
    }

    #[test]
    fn a_quiet_one_stays_quiet_where_others_come_and_go() {
        let rounds = after_a_while(&[3, 77]);
        // The first two have gone, and there is another one at the end.
        let mut rounds = rounds.changed(MANY - 1, |index| (index + 2 < MANY).then_some(index + 2));
        let lively = |rounds: &Rounds| rounds.lively.iter().map(|(index, _)| *index).collect::<Vec<_>>();
        assert_eq!(lively(&rounds), [1, 75, MANY - 2]);
        let looks: usize = (0..TURNS)
            .map(|_| usize::from(rounds.look(MANY - 1, false, |index| (index == 100).into())))
            .sum();
        assert!(looks > 0, "and is looked at in its turn");
        assert!(lively(&rounds).contains(&100));
    }

    #[test]
    fn those_at_the_end_have_their_turn_where_others_come_and_go_at_each_look() {
        let mut rounds = after_a_while(&[]);
        let mut seen = [false; MANY];
        for _ in 0..TURNS {
            rounds = rounds.changed(MANY, Some);
            look(&mut rounds, false, &[]).0.into_iter().for_each(|index| seen[index] = true);
        }
        assert!(seen.iter().all(|seen| *seen));
    }

    /// Whoever has made a link waits for what comes over it first.
    #[test]
    fn a_link_that_is_being_made_is_looked_at_each_time_until_it_is_there() {
        let mut rounds = new(MANY);
        let mut looks = 0;
        let mut look = |rounds: &mut Rounds, made: bool| {
            looks = 0;
            rounds.look(MANY, false, |index| match (index, made) {
                (7, false) => {
                    looks += 1;
                    Found::NotYet
                }
                (7, true) => {
                    looks += 1;
                    Found::Nothing
                }
                _ => Found::Nothing,
            });
            looks
        };
        for _ in 0..2 * PATIENCE {
            assert_eq!(look(&mut rounds, false), 1);
        }
        // The only lively one by now, and with all of its patience.
        for _ in 0..PATIENCE {
            assert_eq!(look(&mut rounds, true), 1);
        }
        assert!((0..TURNS).map(|_| look(&mut rounds, true)).sum::<u32>() == 1, "it is quiet");
    }

    #[test]
    fn a_look_at_all_leaves_nobody_out() {
        let mut rounds = after_a_while(&[9]);
        for news in 0..MANY {
            let (mut seen, any) = look(&mut rounds, true, &[news]);
            seen.sort_unstable();
            seen.dedup();
            assert!(any && seen.len() == MANY);
        }
    }

    #[test]
    fn few_are_all_looked_at_and_new_ones_are_lively() {
        let mut rounds = Rounds::default();
        for _ in 0..2 * PATIENCE {
            let mut seen = 0;
            assert!(rounds.look(FEW, false, |index| {
                seen += 1;
                (index == FEW - 1).into()
            }));
            assert_eq!(seen, FEW);
        }
        assert_eq!(look(&mut new(MANY), false, &[]).0.len(), MANY);
    }
}
