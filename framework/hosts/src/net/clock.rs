//! Measures the offset of the head's clock from an agent's, by the beats that the head answers.
//!
//! An answer says when it was given. That was some time between the beat and the answer's arrival, so the
//! middle of that interval is wrong by at most half of it, whatever the network does. Among the latest
//! answers the most accurate one counts, after adding the drift that clocks may have had since. An answer
//! that contradicts the earlier ones makes them void, because a machine was suspended.

use std::collections::VecDeque;

use rustix::time::{ClockId, clock_gettime};

use crate::limits::{CLOCK_DRIFT, MAX_BEATS};

/// The number to add to a time of this host to get the head's time, in nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offset {
    /// Head minus agent.
    pub nanos: i64,
    /// The error is at most this many nanoseconds, at this moment.
    pub within: u64,
}

/// Returns the time of this host's `CLOCK_MONOTONIC`, in nanoseconds.
pub(super) fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    // Neither is ever negative.
    now.tv_sec.cast_unsigned().saturating_mul(1_000_000_000).saturating_add(now.tv_nsec.cast_unsigned())
}

#[derive(Clone, Copy, Debug)]
struct Sample {
    /// The time of its arrival.
    at: u64,
    of: Offset,
}

impl Sample {
    fn at(self, now: u64) -> Offset {
        let drifted = now.saturating_sub(self.at) / CLOCK_DRIFT;
        Offset { nanos: self.of.nanos, within: self.of.within.saturating_add(drifted) }
    }
}

/// The unanswered beats, and the results of the last answers.
#[derive(Debug, Default)]
pub(super) struct Clock {
    sent: VecDeque<(u64, u64)>,
    samples: VecDeque<Sample>,
}

impl Clock {
    /// Records that a beat is sent.
    pub(super) fn beat(&mut self, number: u64, now: u64) {
        if self.sent.len() >= MAX_BEATS {
            self.sent.pop_front();
        }
        self.sent.push_back((number, now));
    }

    /// Handles the answer to a beat. Returns the best offset that is known now.
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
            // The two directions take different times.
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
        // A slow answer that agrees: the first one is better, though older.
        let known = ask(2, 2 * SECOND, 2 * SECOND + 300_000, 1_000_000).expect("an answer");
        assert!(known.nanos == 0 && (100_000..101_000).contains(&known.within), "{known:?}");
        // The head was suspended, and its clock stood still. This answer is as slow, but the only one that is
        // right.
        let known = ask(3, 3 * SECOND, 2 * SECOND + 500_000, 1_000_000);
        assert_eq!(known, Some(Offset { nanos: -1_000_000_000, within: 500_000 }));
        // An answer to no beat, and one with an impossible time.
        assert_eq!(clock.answered(7, 5, 5), None);
        clock.beat(8, SECOND);
        assert_eq!(clock.answered(8, u64::MAX, 2 * SECOND), None);
    }
}
