//! How far the head's clock is from that of an agent, by the beats that the head answers.
//!
//! An answer says when it was given. That was some time between the beat and the answer's arrival; so the
//! middle of that time is wrong by half of it at most, whatever the network does. Of the latest answers the
//! one counts that is right to the least, with what clocks may have drifted since. One that contradicts what
//! was measured before makes it void: a machine was suspended.

use std::collections::VecDeque;

use rustix::time::{ClockId, clock_gettime};

use crate::limits::{CLOCK_DRIFT, MAX_BEATS};

/// What is to be added to a time of this host for the head's: both in nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offset {
    /// Head minus agent.
    pub nanos: i64,
    /// It is right to so many nanoseconds, at this moment.
    pub within: u64,
}

/// Nanoseconds of this host's `CLOCK_MONOTONIC`.
pub(super) fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    // Neither is ever negative.
    now.tv_sec.cast_unsigned().saturating_mul(1_000_000_000).saturating_add(now.tv_nsec.cast_unsigned())
}

#[derive(Clone, Copy, Debug)]
struct Sample {
    /// When it came.
    at: u64,
    of: Offset,
}

impl Sample {
    fn at(self, now: u64) -> Offset {
        let drifted = now.saturating_sub(self.at) / CLOCK_DRIFT;
        Offset { nanos: self.of.nanos, within: self.of.within.saturating_add(drifted) }
    }
}

/// The beats that have no answer, and what the last answers said.
#[derive(Debug, Default)]
pub(super) struct Clock {
    sent: VecDeque<(u64, u64)>,
    samples: VecDeque<Sample>,
}

impl Clock {
    /// A beat is sent.
    pub(super) fn beat(&mut self, number: u64, now: u64) {
        if self.sent.len() >= MAX_BEATS {
            self.sent.pop_front();
        }
        self.sent.push_back((number, now));
    }

    /// It was answered: what is the best that is known now.
    pub(super) fn answered(&mut self, number: u64, theirs: u64, now: u64) -> Option<Offset> {
        let at = self.sent.iter().position(|(sent, _)| *sent == number)?;
        let (_, sent) = self.sent.drain(..=at).next_back()?;
        let within = now.saturating_sub(sent).div_ceil(2);
        let nanos = i64::try_from(i128::from(theirs) - i128::from(sent) - i128::from(within)).ok()?;
        let new = Offset { nanos, within };
        let agrees = |known: &Sample| {
            let known = known.at(now);
            known.nanos.abs_diff(nanos) <= known.within.saturating_add(within)
        };
        if !self.samples.iter().all(agrees) {
            self.samples.clear();
        }
        if self.samples.len() >= MAX_BEATS {
            self.samples.pop_front();
        }
        self.samples.push_back(Sample { at: now, of: new });
        self.samples.iter().map(|sample| sample.at(now)).min_by_key(|offset| offset.within)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn it_is_never_further_off_than_it_says_and_gets_better_with_a_quick_answer() {
        let (ahead, mut random) = (7_000_000_000_i64, Random::new(5));
        let (mut clock, mut best) = (Clock::default(), u64::MAX);
        for number in 1..100 {
            let sent = number * SECOND;
            clock.beat(number, sent);
            // The two ways take what they take.
            let (there, back) = (random.below(3_000_000), random.below(900_000));
            let theirs = (sent + there).wrapping_add_signed(ahead);
            let known = clock.answered(number, theirs, sent + there + back).expect("an answer");
            assert!(known.nanos.abs_diff(ahead) <= known.within, "{known:?}");
            assert!(known.within <= (there + back).div_ceil(2));
            best = best.min(known.within);
        }
        assert!(best < 300_000, "{best}");
    }

    #[test]
    fn an_answer_that_contradicts_the_others_makes_them_void() {
        let mut clock = Clock::default();
        let mut ask = |number: u64, sent: u64, theirs: u64, took: u64| {
            clock.beat(number, sent);
            clock.answered(number, theirs, sent + took)
        };
        assert_eq!(ask(1, SECOND, SECOND + 500, 1000), Some(Offset { nanos: 0, within: 500 }));
        // A slow answer that says the same: the first is better, though older.
        let known = ask(2, 2 * SECOND, 2 * SECOND + 300_000, 1_000_000).expect("an answer");
        assert!(known.nanos == 0 && (100_000..101_000).contains(&known.within), "{known:?}");
        // The head was suspended: its clock stood still. As slow, and the only one that is right.
        let known = ask(3, 3 * SECOND, 2 * SECOND + 500_000, 1_000_000);
        assert_eq!(known, Some(Offset { nanos: -1_000_000_000, within: 500_000 }));
        // An answer to nothing, and one of a time that there is not.
        assert_eq!(clock.answered(7, 5, 5), None);
        clock.beat(8, SECOND);
        assert_eq!(clock.answered(8, u64::MAX, 2 * SECOND), None);
    }
}
