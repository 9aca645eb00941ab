//! The counts that members report, life by life.
//!
//! Used by the conductor. Counts of a life that has ended are kept beside those of the running life, and may
//! still change. If a process outlives the panic of one of its actors, it follows the items of that actor to
//! their end. And the last report of a process may be read after its end. Each life counts once. If there are
//! many lives, the counts of the first are added up (MBX-2).

use std::collections::HashMap;

use crate::limits::MAX_LIVES;
use crate::worker::meter::Counts;

/// See the module.
#[derive(Default)]
pub(super) struct LifeCounts {
    /// The latest counts of the running life, as far as is known, by stage and replica.
    latest: HashMap<(u16, u16), Counts>,
    /// The last life of each member that has answered or reported.
    lives: HashMap<(u16, u16), u64>,
    /// The counts of lives that have ended.
    past: Vec<Counts>,
    /// One sum for each place: the counts of replicas that have left, and of lives past the first
    /// [`MAX_LIVES`]. `life` is the last life in it.
    left: HashMap<(u16, u16), Counts>,
}

impl LifeCounts {
    /// Notes the progress of a life. Returns it if that is the running life.
    pub(super) fn note(&mut self, counts: Counts) -> Option<&Counts> {
        let member = (counts.stage, counts.replica);
        if self.left.get(&member).is_some_and(|left| left.life >= counts.life) {
            return None; // its last counts are in the sum
        }
        self.is_at(&counts);
        if self.lives[&member] > counts.life || self.is_past(&counts) {
            self.keep(counts);
            return None;
        }
        Some(self.latest.entry(member).insert_entry(counts).into_mut())
    }

    /// Notes that a life has answered or reported, so the lives before it have ended.
    pub(super) fn is_at(&mut self, counts: &Counts) {
        let member = (counts.stage, counts.replica);
        let life = self.lives.entry(member).or_default();
        *life = counts.life.max(*life);
        let life = *life;
        if self.latest.get(&member).is_some_and(|latest| latest.life < life) {
            self.ended(member.0, member.1);
        }
    }

    /// Notes that the running life has ended.
    pub(super) fn ended(&mut self, stage: u16, replica: u16) {
        if let Some(latest) = self.latest.remove(&(stage, replica)) {
            self.keep(latest);
        }
    }

    /// Notes the last counts of a replica that has left: another may take its place.
    pub(super) fn left(&mut self, counts: Counts) {
        self.latest.remove(&(counts.stage, counts.replica));
        self.add_up(counts.of_the_past());
    }

    fn add_up(&mut self, counts: Counts) {
        let (member, life) = ((counts.stage, counts.replica), counts.life);
        match self.left.get_mut(&member) {
            Some(sum) => {
                sum.absorb(counts);
                sum.life = life.max(sum.life);
            }
            None => drop(self.left.insert(member, counts)),
        }
    }

    /// Keeps the counts of a life that has ended.
    pub(super) fn keep(&mut self, counts: Counts) {
        let counts = counts.of_the_past();
        match self.past.iter_mut().find(|past| is_same(past, &counts)) {
            // From its end on, the bytes that its process has not copied are no longer its own.
            Some(past) => *past = Counts { bytes_not_copied: past.bytes_not_copied, ..counts },
            None => {
                let member = (counts.stage, counts.replica);
                self.past.push(counts);
                let of_it = |of: &&Counts| (of.stage, of.replica) == member;
                if self.past.iter().filter(of_it).count() > MAX_LIVES
                    && let Some(first) = self.past.iter().filter(of_it).map(|of| of.life).min()
                    && let Some(at) = self.past.iter().position(|of| of_it(&of) && of.life == first)
                {
                    let first = self.past.swap_remove(at);
                    self.add_up(first);
                }
            }
        }
    }

    /// Returns the last counts that the running life has reported.
    pub(super) fn latest(&self, stage: u16, replica: u16) -> Option<&Counts> {
        self.latest.get(&(stage, replica))
    }

    /// Returns the last counts of each life that has ended.
    pub(super) fn past(&self) -> impl Iterator<Item = &Counts> {
        self.past.iter().chain(self.left.values())
    }

    fn is_past(&self, counts: &Counts) -> bool {
        self.past.iter().any(|past| is_same(past, counts))
    }
}

fn is_same(one: &Counts, other: &Counts) -> bool {
    (one.stage, one.replica, one.life) == (other.stage, other.replica, other.life)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(life: u64, items_in: u64) -> Counts {
        Counts { stage: 1, life, items_in, ..Counts::default() }
    }

    /// The known counts of items: of the running life, and of each that has ended.
    fn known(told: &LifeCounts) -> (Option<u64>, Vec<u64>) {
        let past = told.past().map(|counts| counts.items_in).collect();
        (told.latest(1, 0).map(|counts| counts.items_in), past)
    }

    #[test]
    fn what_a_life_that_has_ended_tells_is_not_taken_for_the_next_ones() {
        let mut told = LifeCounts::default();
        assert!(told.note(counts(0, 5)).is_some());
        told.ended(1, 0);
        assert!(told.note(counts(0, 6)).is_none(), "it has ended");
        assert_eq!(known(&told), (None, vec![6]));
        assert!(told.note(counts(1, 2)).is_some());
        assert!(told.note(counts(0, 7)).is_none());
        assert_eq!(known(&told), (Some(2), vec![7]));
        told.ended(1, 0);
        assert_eq!(known(&told), (None, vec![7, 2]), "each counts once");
    }

    #[test]
    fn of_replicas_that_have_left_one_sum_is_kept_and_their_last_word_is_in_it() {
        let mut told = LifeCounts::default();
        for life in 0..100 {
            assert!(told.note(counts(life, 1)).is_some());
            told.is_at(&counts(life, 2));
            told.left(counts(life, 2));
            assert!(told.note(counts(life, 1)).is_none(), "what is read late is in the sum");
        }
        assert_eq!(known(&told), (None, vec![200]));
    }

    /// MBX-2: a worker that makes lives up counts no more items than it reports, and takes no more room.
    #[test]
    fn of_many_lives_the_first_are_added_up() {
        let mut told = LifeCounts::default();
        for life in 0..10_000 {
            told.note(counts(life, 1));
        }
        let (latest, past) = known(&told);
        assert_eq!(latest.unwrap_or(0) + past.iter().sum::<u64>(), 10_000);
        assert!(past.len() <= MAX_LIVES + 1, "{}", past.len());
        // The same backwards: each life is reported after its end.
        let mut told = LifeCounts::default();
        for life in (0..10_000).rev() {
            told.note(counts(life, u64::MAX));
        }
        assert!(known(&told).1.len() <= MAX_LIVES + 1);
    }

    #[test]
    fn a_life_that_had_told_nothing_when_it_ended_counts_too() {
        let mut told = LifeCounts::default();
        told.ended(1, 0);
        // It is taken for the running life: it is not known that this life has ended.
        assert!(told.note(counts(0, 6)).is_some());
        assert!(told.note(counts(1, 1)).is_some());
        assert_eq!(known(&told), (Some(1), vec![6]));
        let mut told = LifeCounts::default();
        told.is_at(&counts(1, 9));
        assert!(told.note(counts(0, 6)).is_none(), "the next one is done");
        assert_eq!(known(&told), (None, vec![6]));
    }
}
