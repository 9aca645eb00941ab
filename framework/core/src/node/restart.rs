//! Restart policies and their budgets: whether an actor that ended is started anew, and when.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::limits::{ENDLESS, MAX_RESTARTS};
use crate::transport::lifecycle::{EndReason, RestartWhen};

/// Whether an actor that ended is started anew, from its arguments, in a new process.
///
/// A budget bounds the restarts, over the actor's whole life or in any window of time. An end past the budget
/// is final. Before each restart the supervisor waits twice as long as before the last one.
///
/// ```
/// use std::time::Duration;
/// use tensorpost::node::Restart;
///
/// // At most five restarts in any minute, 100 ms after the first end, 200 ms after the second, 2 s at most.
/// let policy = Restart::on_failure(5)
///     .within(Duration::from_secs(60))
///     .backoff(Duration::from_millis(100), Duration::from_secs(2));
/// assert_ne!(policy, Restart::never());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Restart {
    when: RestartWhen,
    budget: u32,
    window: Option<Duration>,
    first: Duration,
    most: Duration,
    /// Whether an actor that was started on another host may continue on a third.
    on_other_hosts: bool,
}

impl Restart {
    /// Makes a policy without restarts: an actor that ended is gone. This is the default.
    pub const fn never() -> Self {
        Restart::new(RestartWhen::Never, 0)
    }

    /// Allows at most `budget` restarts, after failures. Every end is a failure (a panic in a handler, an
    /// exit of its process, a signal) except a stop that the actor asked for itself. A `budget` above 65,536
    /// counts as 65,536.
    pub const fn on_failure(budget: u32) -> Self {
        Restart::new(RestartWhen::Failed, budget)
    }

    /// Allows at most `budget` restarts, also after the actor stopped by itself; not after a shutdown of the
    /// node.
    pub const fn always(budget: u32) -> Self {
        Restart::new(RestartWhen::Ended, budget)
    }

    const fn new(when: RestartWhen, budget: u32) -> Self {
        let budget = if budget < MAX_RESTARTS { budget } else { MAX_RESTARTS };
        let (first, most) = (Duration::from_millis(10), Duration::from_secs(5));
        Restart { when, budget, window: None, first, most, on_other_hosts: false }
    }

    /// Counts only the restarts in the last `window`. Without this, all restarts count.
    pub const fn within(mut self, window: Duration) -> Self {
        self.window = Some(window);
        self
    }

    /// Waits for `first` before the first of the restarts that count, twice as long before each further one,
    /// and never longer than `most`; the defaults are 10 ms and 5 s.
    pub const fn backoff(mut self, first: Duration, most: Duration) -> Self {
        self.first = first;
        self.most = most;
        self
    }

    /// Lets an actor that is started [on another host](super::Spawn::on) continue on a third host, or on the
    /// host that started it, when its host is lost or leaves the node. It continues on the host with the
    /// fewest actors at that moment. Without this setting it is given up with its host.
    ///
    /// Each life is made from the same arguments, under the same identity: its addresses stay valid on all
    /// hosts, it keeps its names, and its watchers hear of the end and of the next life. Messages in its
    /// mailbox or on their way are lost, and an ask that it had accepted ends with an error that names the
    /// lost host. Senders wait meanwhile. A next life begins only when nothing of the last one can run any
    /// more: 15 s after a host fell silent, or when it has left in order. This policy counts and spaces
    /// losses of hosts. Each host counts its own restarts of the actor by the same policy, separately and
    /// from zero.
    ///
    /// The host that started the actor knows where it lives, so the actor ends with that host. The setting
    /// changes nothing for an actor that is started on this host, nor for the stages of a pipeline.
    #[cfg(feature = "hosts")]
    pub const fn on_other_hosts(mut self) -> Self {
        self.on_other_hosts = true;
        self
    }

    /// Whether an actor with this policy outlives its host.
    pub(crate) fn roams(&self) -> bool {
        self.on_other_hosts && self.when != RestartWhen::Never
    }

    /// Bounds a policy that another process has sent.
    pub(crate) fn bounded(self) -> Self {
        Restart { budget: self.budget.min(MAX_RESTARTS), ..self }
    }

    pub(crate) fn when(&self) -> RestartWhen {
        self.when
    }

    /// Returns how long to wait after an end, when `count` earlier restarts count.
    pub(crate) fn delay(&self, count: u32) -> Duration {
        let factor = 1u32.checked_shl(count).unwrap_or(u32::MAX);
        self.first.saturating_mul(factor).min(self.most).min(ENDLESS)
    }
}

impl Default for Restart {
    fn default() -> Self {
        Restart::never()
    }
}

/// The decision after an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// A restart, after this time.
    Restart(Duration),
    /// No restart: the budget is used up.
    UsedUp,
    /// No restart: the policy is not for such an end.
    Final,
}

/// A policy, and the restarts that count against it.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    policy: Restart,
    recent: VecDeque<Instant>,
}

impl Budget {
    pub(crate) fn new(policy: Restart) -> Self {
        Budget { policy, recent: VecDeque::new() }
    }

    pub(crate) fn policy(&self) -> Restart {
        self.policy
    }

    /// Decides about an actor's end, and counts the restart if there is one.
    pub(crate) fn spend(&mut self, reason: &EndReason, now: Instant) -> Verdict {
        if !self.policy.when.after(reason.is_failure()) {
            return Verdict::Final;
        }
        if let Some(window) = self.policy.window {
            let over = |at: &Instant| now.saturating_duration_since(*at) >= window;
            while self.recent.front().is_some_and(over) {
                self.recent.pop_front();
            }
        }
        let count = self.recent.len() as u32; // at most the budget
        if count >= self.policy.budget {
            return Verdict::UsedUp;
        }
        self.recent.push_back(now);
        Verdict::Restart(self.policy.delay(count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAILED: EndReason = EndReason::Signal(9);

    fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    #[test]
    fn a_delay_without_end_can_be_added_to_an_instant() {
        let endless = Restart::on_failure(2).backoff(Duration::MAX, Duration::MAX);
        assert_eq!(endless.delay(1), ENDLESS);
        assert!(Instant::now().checked_add(endless.delay(0)).is_some());
    }

    #[test]
    fn a_budget_is_for_the_whole_life_unless_there_is_a_window() {
        let now = Instant::now();
        let mut life = Budget::new(Restart::on_failure(2));
        assert_eq!(life.spend(&FAILED, now), Verdict::Restart(ms(10)));
        assert_eq!(life.spend(&FAILED, now + ms(1 << 30)), Verdict::Restart(ms(20)));
        assert_eq!(life.spend(&FAILED, now + ms(1 << 31)), Verdict::UsedUp);

        let mut window = Budget::new(Restart::on_failure(2).within(ms(1000)));
        assert_eq!(window.spend(&FAILED, now), Verdict::Restart(ms(10)));
        assert_eq!(window.spend(&FAILED, now + ms(600)), Verdict::Restart(ms(20)));
        assert_eq!(window.spend(&FAILED, now + ms(999)), Verdict::UsedUp);
        assert_eq!(window.spend(&FAILED, now + ms(1000)), Verdict::Restart(ms(20)), "the first is over");
        assert_eq!(window.spend(&FAILED, now + ms(9000)), Verdict::Restart(ms(10)), "all are");
    }

    #[test]
    fn only_the_ends_that_a_policy_is_for_lead_to_a_restart() {
        let now = Instant::now();
        for (policy, normal, failed) in [
            (Restart::never(), Verdict::Final, Verdict::Final),
            (Restart::on_failure(1), Verdict::Final, Verdict::Restart(ms(10))),
            (Restart::always(1), Verdict::Restart(ms(10)), Verdict::Restart(ms(10))),
            (Restart::on_failure(0), Verdict::Final, Verdict::UsedUp),
        ] {
            assert_eq!(Budget::new(policy).spend(&EndReason::Normal, now), normal, "{policy:?}");
            assert_eq!(Budget::new(policy).spend(&FAILED, now), failed, "{policy:?}");
        }
    }

    #[test]
    fn the_wait_doubles_up_to_its_bound_however_many_there_were() {
        let mut budget = Budget::new(Restart::on_failure(u32::MAX).backoff(ms(3), ms(50)));
        let now = Instant::now();
        let waits: Vec<_> = (0..100).map(|_| budget.spend(&FAILED, now)).collect();
        let expected = [3, 6, 12, 24, 48, 50, 50].map(|wait| Verdict::Restart(ms(wait)));
        assert_eq!(waits[..7], expected);
        assert_eq!(waits[99], Verdict::Restart(ms(50)));
    }
}
