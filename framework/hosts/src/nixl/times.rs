//! The times of runs, on either side of a lane. They show why a lane is slower than NIXL alone.
//!
//! They are kept for each burst of runs, and logged (at `debug`, for `tensorpost::hosts`) when no run
//! followed. They give the mean and the longest time of each step, in microseconds. They also give the share
//! of the burst's time that the side spent in each state, which shows the side that waits and so the slow
//! one. Nothing is kept for a single run.

use std::fmt;
use std::time::Duration;

/// A pause that does not count to a burst.
const PAUSE: Duration = Duration::from_millis(20);
/// The silence after which a burst is over.
const QUIET: Duration = Duration::from_millis(100);
/// A burst that does not end is logged in parts of this length.
const LONGEST: Duration = Duration::from_secs(10);

/// The durations of a step: their number, sum and maximum.
#[derive(Debug, Default)]
pub(super) struct Sum {
    count: u32,
    total: Duration,
    longest: Duration,
}

impl Sum {
    pub(super) fn add(&mut self, took: Duration) {
        self.count += 1;
        self.total += took;
        self.longest = self.longest.max(took);
    }
}

impl fmt::Display for Sum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        write!(f, "{:.0} ({:.0})", micros(self.total) / f64::from(self.count.max(1)), micros(self.longest))
    }
}

/// The time that each of `N` states held.
#[derive(Debug)]
pub(super) struct Shares<const N: usize> {
    spent: [Duration; N],
    state: usize,
    last: Duration,
}

impl<const N: usize> Default for Shares<N> {
    fn default() -> Self {
        Shares { spent: [Duration::ZERO; N], state: 0, last: Duration::ZERO }
    }
}

impl<const N: usize> Shares<N> {
    /// Enters this state, given by its index.
    pub(super) fn now(&mut self, state: usize, now: Duration) {
        let held = now.saturating_sub(self.last);
        if held < PAUSE
            && let Some(spent) = self.spent.get_mut(self.state)
        {
            *spent += held;
        }
        (self.state, self.last) = (state, now.max(self.last));
    }

    fn all(&self) -> Duration {
        self.spent.iter().sum()
    }

    fn share(&self, state: usize) -> f64 {
        let spent = self.spent.get(state).copied().unwrap_or_default();
        spent.as_secs_f64() / self.all().as_secs_f64().max(f64::MIN_POSITIVE)
    }

    /// Returns whether the burst is over, or long enough to be logged.
    fn is_due(&self, now: Duration) -> bool {
        now.saturating_sub(self.last) >= QUIET || self.all() >= LONGEST
    }
}

/// The times of the side that sends.
#[derive(Debug, Default)]
pub(super) struct Sent {
    pub(super) bytes: u64,
    /// From the grant until this side has a slot.
    pub(super) waited: Sum,
    /// From then until the copy into it was heard to be complete.
    pub(super) copied: Sum,
    /// From then until the write was heard to be complete.
    pub(super) written: Sum,
    /// Parts of that: the call that begins the write, and from its end until NIXL reports completion.
    pub(super) begun: Sum,
    pub(super) took: Sum,
    /// The states: some write is under way; else some copy is; else nothing was granted.
    pub(super) shares: Shares<3>,
}

impl fmt::Display for Sent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Sent { bytes, waited, copied, written, begun, took, shares } = self;
        write!(
            f,
            "{} runs, {:.1} GB/s; {:.2} of the time writing, {:.2} only copying in, {:.2} without a grant; us each, mean (longest): \
             waiting for a slot {waited}, copied in {copied}, written {written}, of which to begin {begun}, until done {took}",
            written.count,
            *bytes as f64 / 1e9 / shares.all().as_secs_f64().max(f64::MIN_POSITIVE),
            shares.share(0),
            shares.share(1),
            shares.share(2),
        )
    }
}

/// The times of the side that receives.
#[derive(Debug, Default)]
pub(super) struct Came {
    /// From a want until the span has memory.
    pub(super) placed: Sum,
    /// From then until it has its first slot.
    pub(super) queued: Sum,
    /// From the grant of a slot until the other side says that it wrote.
    pub(super) granted: Sum,
    /// From then until the copy out of it was heard to be complete.
    pub(super) copied: Sum,
    /// The states: some slot is granted; else some slot is being copied out; else some span has no memory
    /// yet; else nothing is wanted.
    pub(super) shares: Shares<4>,
}

impl fmt::Display for Came {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Came { placed, queued, granted, copied, shares } = self;
        write!(
            f,
            "{} runs; {:.2} of the time granted, {:.2} only copying out, {:.2} only without memory, {:.2} without a want; us each, \
             mean (longest): for memory {placed}, for a slot {queued}, granted until written {granted}, copied out {copied}",
            copied.count,
            shares.share(0),
            shares.share(1),
            shares.share(2),
            shares.share(3),
        )
    }
}

/// The times of both directions.
#[derive(Debug, Default)]
pub(super) struct Times {
    pub(super) sent: Sent,
    pub(super) came: Came,
}

impl Times {
    /// Returns whether there is something to log.
    pub(super) fn has_some(&self) -> bool {
        self.sent.written.count + self.came.copied.count > 0
    }

    /// Logs a burst that is over.
    pub(super) fn tick(&mut self, peer: impl fmt::Display, now: Duration) {
        if self.sent.written.count > 0 && self.sent.shares.is_due(now) {
            let sent = std::mem::take(&mut self.sent);
            tracing::debug!(target: "tensorpost::hosts", "by NIXL to {peer}: {sent}");
        }
        if self.came.copied.count > 0 && self.came.shares.is_due(now) {
            let came = std::mem::take(&mut self.came);
            tracing::debug!(target: "tensorpost::hosts", "by NIXL from {peer}: {came}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_the_time_without_pauses() {
        let at = Duration::from_millis;
        let mut came = Came::default();
        came.shares.now(0, at(1000));
        came.shares.now(1, at(1010));
        came.shares.now(3, at(1040)); // a pause
        came.shares.now(0, at(1050));
        came.shares.now(3, at(1060));
        let shares = [0, 1, 2, 3].map(|state| (came.shares.share(state) * 3.0).round());
        assert_eq!(shares, [2.0, 0.0, 0.0, 1.0]);
        assert!(!came.shares.is_due(at(1159)) && came.shares.is_due(at(1160)));
    }

    #[test]
    fn a_burst_is_logged_once_it_is_over() {
        let at = Duration::from_millis;
        let mut times = Times::default();
        assert!(!times.has_some());
        times.sent.shares.now(0, at(5));
        times.sent.written.add(at(2));
        times.sent.written.add(at(4));
        assert!(
            times.sent.to_string().contains("2 runs")
                && times.sent.to_string().contains("written 3000 (4000)")
        );
        times.tick("a host", at(6));
        assert!(times.has_some());
        times.tick("a host", at(200));
        assert!(!times.has_some());
    }
}
