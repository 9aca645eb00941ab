//! The faults of a run, drawn from a seed.

use std::fmt;
use std::time::Duration;

use tensorpost::testing::fault::{Action, Fault, POINTS};

/// A generator of numbers that are the same for a seed on every machine (SplitMix64, Steele and others 2014).
#[derive(Clone, Debug)]
pub struct Draw(u64);

impl Draw {
    /// Begins at a seed.
    pub fn new(seed: u64) -> Self {
        Draw(seed)
    }

    /// Draws 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Draws a number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.bits() % bound.max(1) as u64) as usize
    }
}

/// Returns a seed that nobody has had, short enough to be typed again.
pub fn fresh_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    // A hasher's keys are random for each process, and differ from call to call.
    RandomState::new().hash_one(std::process::id()) >> 24
}

/// Spreads the bits of a number.
pub fn mix(n: u64) -> u64 {
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

/// One fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// These workers are killed, one right after the other.
    Kill(Vec<usize>),
    /// One worker is stopped, and continued after a while.
    Stop(usize, Duration),
    /// One worker is armed with a fault. A worker that the fault stops is continued after a while.
    Arm(usize, Fault),
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Kill(victims) => write!(f, "kill {victims:?}"),
            Event::Stop(victim, time) => write!(f, "stop {victim} for {time:?}"),
            Event::Arm(victim, fault) => write!(f, "arm {victim} with {fault}"),
        }
    }
}

/// The endless sequence of events of a seed.
#[derive(Clone, Debug)]
pub struct Plan {
    draw: Draw,
    workers: usize,
}

impl Plan {
    /// Draws events for this many workers.
    pub fn new(seed: u64, workers: usize) -> Self {
        Plan { draw: Draw::new(seed), workers }
    }

    /// Draws the pause before the next event.
    pub fn pause(&mut self) -> Duration {
        Duration::from_micros(self.draw.below(20_000) as u64)
    }

    /// Draws the next event.
    pub fn event(&mut self) -> Event {
        let victim = self.draw.below(self.workers);
        match self.draw.below(100) {
            0..25 => Event::Kill(vec![victim]),
            25..35 => {
                let others = 1 + self.draw.below(2);
                let others = (0..others).map(|_| self.draw.below(self.workers));
                let mut victims: Vec<_> = std::iter::once(victim).chain(others).collect();
                victims.sort_unstable();
                victims.dedup();
                Event::Kill(victims)
            }
            35..45 => Event::Stop(victim, Duration::from_millis(1 + self.draw.below(60) as u64)),
            kind => {
                let action = match kind {
                    45..85 => Action::Kill,
                    85..95 => Action::Stop,
                    95..98 => Action::Delay(Duration::from_millis(1 + self.draw.below(30) as u64)),
                    _ => Action::Panic,
                };
                let (point, _) = POINTS[self.draw.below(POINTS.len())];
                let nth = 1 + self.draw.below(12) as u64;
                Event::Arm(victim, Fault::new(point, action).at(nth))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_says_everything() {
        let events = |seed| {
            let mut plan = Plan::new(seed, 7);
            (0..200).map(|_| (plan.pause(), plan.event())).collect::<Vec<_>>()
        };
        assert_eq!(events(5), events(5));
        assert_ne!(events(5), events(6));
        let all: String = events(7).iter().map(|(_, event)| event.to_string()).collect();
        for kind in ["kill [", "stop ", "=kill", "=stop", "=panic", "=delay"] {
            assert!(all.contains(kind), "no `{kind}` in 200 events");
        }
    }
}
