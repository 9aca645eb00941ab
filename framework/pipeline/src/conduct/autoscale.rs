//! Decides how many replicas a stage needs, from the reports of the stage and its senders. No I/O.
//!
//! Used by the conductor, at each of its looks. The stage gets more replicas when all are at work, more items
//! wait than there are replicas, and the cause is not that the next stages have no room. This must hold for
//! several looks in a row, so that a burst changes nothing. The stage loses a replica when the others would
//! have been enough for all work of a longer time, with some room to spare, so that the next look does not
//! bring it back. After each change the earlier looks are forgotten.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::limits::{BUSY_WHEN_SHRUNK, SAMPLES_TO_GROW, SAMPLES_TO_SHRINK};
use crate::plan::Scale;

/// The figures of a stage at one look.
#[derive(Clone, Copy, Debug)]
pub(super) struct StageSample {
    pub(super) at: Instant,
    /// Replicas that take items.
    pub(super) replicas: u32,
    /// Items that wait for it, with their senders and in its mailboxes.
    pub(super) backlog: u64,
    /// Time in calls so far, of all replicas together.
    pub(super) busy: Duration,
    /// Replicas that are silent because they are in a long call: `busy` does not contain that call yet.
    pub(super) in_calls: u32,
    /// Replicas that wait for room at the next stages.
    pub(super) held_up: u32,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Autoscale {
    scale: Scale,
    /// Looks in a row at which more replicas were needed.
    short: u32,
    /// The last looks since the number changed.
    samples: VecDeque<StageSample>,
}

impl Autoscale {
    pub(super) fn new(scale: Scale) -> Self {
        Autoscale { scale, short: 0, samples: VecDeque::new() }
    }

    /// Forgets the looks: the number has changed, or is about to.
    pub(super) fn begin_anew(&mut self) {
        self.short = 0;
        self.samples.clear();
    }

    /// Returns the wanted number of replicas, if it differs from the current one.
    pub(super) fn sample(&mut self, sample: StageSample) -> Option<u32> {
        if self.samples.back().is_some_and(|before| before.replicas != sample.replicas) {
            self.begin_anew();
        }
        self.samples.push_back(sample);
        let busy = self.busy();
        let all_at_work = busy * 2.0 >= f64::from(sample.replicas) && sample.held_up * 2 <= sample.replicas;
        let is_short = all_at_work && sample.backlog >= u64::from(sample.replicas);
        self.short = if is_short { self.short + 1 } else { 0 };
        let to = if self.short >= SAMPLES_TO_GROW {
            // The number grows by half, so that many replicas are not added one after the other.
            sample.replicas + (sample.replicas / 2).max(1)
        } else if self.samples.len() > SAMPLES_TO_SHRINK {
            self.samples.pop_front();
            let enough = f64::from(sample.replicas - 1) * f64::from(BUSY_WHEN_SHRUNK) / 100.0;
            sample.replicas - u32::from(!is_short && busy < enough.max(f64::EPSILON))
        } else {
            sample.replicas
        };
        let to = to.clamp(self.scale.least, self.scale.most);
        if to == sample.replicas {
            return None;
        }
        self.begin_anew();
        Some(to)
    }

    /// Returns how many replicas were in calls, on average.
    fn busy(&self) -> f64 {
        let (Some(first), Some(last)) = (self.samples.front(), self.samples.back()) else { return 0.0 };
        let (worked, time) = (last.busy.saturating_sub(first.busy), last.at - first.at);
        let told = if time.is_zero() { 0.0 } else { worked.as_secs_f64() / time.as_secs_f64() };
        told.max(f64::from(last.in_calls))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOK: Duration = Duration::from_millis(100);

    /// Looks at a stage with `replicas` replicas, of which `busy` are at work, for `samples` looks or until
    /// the number changes.
    fn watch(
        auto: &mut Autoscale,
        samples: u32,
        replicas: u32,
        busy: f64,
        backlog: u64,
    ) -> Option<(u32, u32)> {
        let begin = Instant::now();
        (1..=samples).find_map(|number| {
            let at = begin + LOOK * number;
            let busy = LOOK.mul_f64(busy * f64::from(number));
            let sample = StageSample { at, replicas, backlog, busy, in_calls: 0, held_up: 0 };
            auto.sample(sample).map(|to| (number, to))
        })
    }

    fn auto(least: u32, most: u32) -> Autoscale {
        Autoscale::new(Scale { least, most, auto: true })
    }

    #[test]
    fn a_backlog_that_stays_adds_replicas_up_to_the_bound_and_a_burst_does_not() {
        let mut auto = auto(1, 7);
        assert_eq!(watch(&mut auto, SAMPLES_TO_GROW, 1, 1.0, 5), None, "the first look knows of no work yet");
        auto.begin_anew();
        assert_eq!(watch(&mut auto, 20, 1, 1.0, 5), Some((SAMPLES_TO_GROW + 1, 2)));
        assert_eq!(watch(&mut auto, 20, 4, 4.0, 5), Some((SAMPLES_TO_GROW + 1, 6)));
        assert_eq!(watch(&mut auto, 20, 6, 6.0, 9), Some((SAMPLES_TO_GROW + 1, 7)));
        assert_eq!(watch(&mut auto, 20, 7, 7.0, 99), None, "that is the most");
    }

    #[test]
    fn an_idle_replica_leaves_after_a_while_and_the_least_stay() {
        let mut auto = auto(2, 8);
        let samples = SAMPLES_TO_SHRINK as u32 + 1;
        assert_eq!(watch(&mut auto, 50, 4, 1.5, 0), Some((samples, 3)));
        assert_eq!(watch(&mut auto, 50, 3, 1.5, 0), None, "two could not do it with room to spare");
        auto.begin_anew();
        assert_eq!(watch(&mut auto, 50, 3, 0.0, 0), Some((samples, 2)));
        assert_eq!(watch(&mut auto, 50, 2, 0.0, 0), None, "that is the least");
    }

    #[test]
    fn nobody_comes_to_a_stage_that_waits_for_the_next_or_is_in_no_call() {
        let mut auto = auto(1, 8);
        assert_eq!(watch(&mut auto, SAMPLES_TO_SHRINK as u32, 2, 0.2, 50), None, "its calls are short");
        auto.begin_anew();
        let begin = Instant::now();
        for number in 1..=SAMPLES_TO_SHRINK as u32 {
            let (at, busy) = (begin + LOOK * number, LOOK * 2 * number);
            let sample = StageSample { at, replicas: 2, backlog: 50, busy, in_calls: 0, held_up: 2 };
            assert_eq!(auto.sample(sample), None);
        }
    }

    #[test]
    fn a_call_that_takes_long_is_work_before_it_is_told() {
        let mut auto = auto(1, 8);
        let begin = Instant::now();
        let sample = |number: u32| StageSample {
            at: begin + LOOK * number,
            replicas: 1,
            backlog: 3,
            busy: Duration::ZERO,
            in_calls: 1,
            held_up: 0,
        };
        let found = (1..20).find_map(|number| auto.sample(sample(number)).map(|to| (number, to)));
        assert_eq!(found, Some((SAMPLES_TO_GROW, 2)));
    }
}
