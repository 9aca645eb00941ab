//! Sleeps that end on time.
//!
//! The kernel may end a thread's sleep late by the thread's timer slack, 50 us unless set otherwise, to wake
//! several threads at once.

use std::num::NonZeroU64;

use rustix::thread::{current_timer_slack, set_current_timer_slack};

/// The smallest slack, in nanoseconds; 0 would mean the usual slack.
const LEAST: NonZeroU64 = NonZeroU64::MIN;

/// A guard: while it lives, sleeps of this thread end within a microsecond or so of their time; afterwards
/// they end as before. Where the system refuses, nothing changes.
#[derive(Debug)]
pub struct Punctual {
    before: Option<NonZeroU64>,
}

impl Punctual {
    /// Begins for this thread.
    pub fn begin() -> Self {
        let before = current_timer_slack().ok().and_then(NonZeroU64::new);
        let set = before.is_some() && set_current_timer_slack(Some(LEAST)).is_ok();
        Punctual { before: before.filter(|_| set) }
    }
}

impl Drop for Punctual {
    fn drop(&mut self) {
        if self.before.is_some() {
            // Ignore errors: setting the slack was allowed a moment ago.
            let _ = set_current_timer_slack(self.before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slack_is_set_and_set_back() {
        let before = current_timer_slack().unwrap();
        let punctual = Punctual::begin();
        assert_eq!(current_timer_slack().unwrap(), 1);
        drop(punctual);
        assert_eq!(current_timer_slack().unwrap(), before);
    }
}
