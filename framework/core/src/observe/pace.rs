//! The pace of lines of the log about one thing that can happen any number of times: one a second.
//!
//! A process that can make another write a line could fill its disk otherwise (MBX-2). Lines that are left
//! out are counted, and the next line has their number.

use std::time::{Duration, Instant};

/// The shortest time between two lines.
const PAUSE: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    told: Option<Instant>,
    /// How many were left out since the last line.
    left_out: u64,
}

impl Pace {
    /// Returns when the next line may come, once there was one.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.told.map(|told| told + PAUSE)
    }

    /// Counts one more. If the log should have this one, returns the number of those before it that were left
    /// out.
    pub(crate) fn tell(&mut self, now: Instant) -> Option<u64> {
        if self.told.is_some_and(|told| now.saturating_duration_since(told) < PAUSE) {
            self.left_out += 1;
            return None;
        }
        self.told = Some(now);
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_has_one_a_second_and_the_number_of_the_rest() {
        let (mut pace, begin) = (Pace::default(), Instant::now());
        let at = |millis| begin + Duration::from_millis(millis);
        assert_eq!(pace.tell(at(0)), Some(0));
        let told: Vec<_> = (1..=3000).filter_map(|millis| pace.tell(at(millis))).collect();
        assert_eq!(told, [999, 999, 999]);
    }
}
