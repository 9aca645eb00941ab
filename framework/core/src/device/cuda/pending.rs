//! The things that a stream's unfinished work uses, and the times at which they can be dropped.
//!
//! The held things are numbered by *marks*: values that the stream writes to a word of its own behind the
//! work. A mark covers everything since the one before, so it is enqueued together with a clock write and
//! costs no call of its own.

use std::collections::VecDeque;

use crate::clock::passed;

/// After this many operations a mark is due, even if there is no clock write.
const MARK_EVERY: u64 = 32;

/// A queue of held things, in the stream's order.
pub(super) struct Pending<T> {
    held: VecDeque<(u64, T)>,
    /// For each mark that is not known to be reached: its value, and the operations issued up to it.
    marks: VecDeque<(u64, u64)>,
    /// The value of the last mark that was enqueued.
    marked: u64,
    /// The operations ever issued, those covered by the last mark, and those known to be done.
    issued: u64,
    covered: u64,
    done: u64,
}

impl<T> Pending<T> {
    /// Makes an empty queue; the word stands at `mark`.
    pub(super) fn new(mark: u64) -> Self {
        Pending {
            held: VecDeque::new(),
            marks: VecDeque::new(),
            marked: mark,
            issued: 0,
            covered: 0,
            done: 0,
        }
    }

    /// Counts operations that were just enqueued, and holds the things that they use.
    pub(super) fn issue(&mut self, ops: usize, hold: Option<T>) {
        self.issued += ops as u64;
        if let Some(hold) = hold {
            self.held.push_back((self.marked.wrapping_add(1), hold));
        }
    }

    /// Returns the mark to enqueue by itself, if work has come since the last one.
    pub(super) fn next_mark(&self) -> Option<u64> {
        (self.issued > self.covered).then(|| self.marked.wrapping_add(1))
    }

    /// Returns the mark to enqueue along with other operations, if something is held that no mark covers.
    pub(super) fn cheap_mark(&self) -> Option<u64> {
        let next = self.marked.wrapping_add(1);
        let is_held = self.held.back().is_some_and(|(mark, _)| *mark == next);
        (is_held || self.due_mark().is_some()).then_some(next)
    }

    /// Returns the mark to enqueue by itself, if there are enough operations since the last one.
    pub(super) fn due_mark(&self) -> Option<u64> {
        if self.issued - self.covered >= MARK_EVERY { self.next_mark() } else { None }
    }

    /// Notes that [`next_mark`](Self::next_mark) was enqueued, behind all operations issued so far.
    pub(super) fn set_mark(&mut self) {
        self.marked = self.marked.wrapping_add(1);
        self.covered = self.issued;
        self.marks.push_back((self.marked, self.issued));
    }

    /// Takes out the things that can be dropped now that the word stands at `mark`.
    #[must_use]
    pub(super) fn reach(&mut self, mark: u64) -> Vec<T> {
        while let Some(&(value, issued)) = self.marks.front()
            && passed(mark, value)
        {
            self.done = issued;
            self.marks.pop_front();
        }
        let over = self.held.iter().take_while(|(value, _)| passed(mark, *value)).count();
        self.held.drain(..over).map(|(_, hold)| hold).collect()
    }

    /// Returns how many operations may not be done yet.
    pub(super) fn ahead(&self) -> u64 {
        self.issued - self.done
    }

    /// Returns whether nothing is held and no mark is on its way.
    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty() && self.marks.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_covers_everything_since_the_last() {
        let mut pending = Pending::new(7);
        assert!(pending.is_empty() && pending.next_mark().is_none());
        pending.issue(2, Some('a'));
        pending.issue(1, Some('b'));
        assert_eq!((pending.next_mark(), pending.due_mark(), pending.ahead()), (Some(8), None, 3));
        pending.set_mark();
        assert!(pending.next_mark().is_none());
        pending.issue(1, Some('c'));
        // The word is where it was, so nothing is done.
        assert!(pending.reach(7).is_empty());
        assert_eq!(pending.reach(8), ['a', 'b']);
        assert_eq!((pending.ahead(), pending.is_empty(), pending.cheap_mark()), (1, false, Some(9)));
        // Work that no mark covers does not count as done, however far the word is.
        assert!(pending.reach(8).is_empty());
        pending.set_mark();
        assert_eq!(pending.reach(9), ['c']);
        assert!(pending.is_empty());
        // A clock write by itself needs no mark.
        pending.issue(1, None);
        assert!(pending.cheap_mark().is_none() && pending.is_empty() && pending.next_mark().is_some());
    }

    #[test]
    fn marks_go_round_and_come_due() {
        let mut pending = Pending::new(u64::MAX);
        for _ in 0..MARK_EVERY - 1 {
            pending.issue(1, Some(()));
        }
        assert!(pending.due_mark().is_none());
        pending.issue(1, None);
        assert_eq!(pending.due_mark(), Some(0));
        pending.set_mark();
        assert!(pending.reach(u64::MAX).is_empty());
        assert_eq!(pending.reach(0).len() as u64, MARK_EVERY - 1);
        assert!(pending.is_empty());
    }
}
