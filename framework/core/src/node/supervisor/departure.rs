//! The end of one life of a worker, as far as the node knows of it: why it ends, and how long it may take.
//!
//! The supervisor's record of the worker owns it. **Invariants.** The first cause counts, and it comes before
//! the exit status: what happens to a worker afterwards follows from it. It is killed at the earliest of the
//! times that were set; they are put off only by as long as the node itself stood still.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Instant;

use crate::node::shutdown::Phase;
use crate::transport::lifecycle::EndReason;

/// See the module.
#[derive(Default)]
pub(super) struct Departure {
    /// Whether it was told to exit.
    pub(super) told_to_exit: bool,
    /// Whether it ends as soon as nothing is left in it.
    pub(super) leaves: bool,
    /// When to kill it.
    pub(super) kill_at: Option<Instant>,
    /// The phase of the shutdown in which it was killed.
    pub(super) killed: Option<Phase>,
    /// The reason of its end as text, from the worker or from the node. The first one counts.
    pub(super) why: Option<String>,
    /// Why it ends, if its exit status does not show it.
    pub(super) cause: Option<EndReason>,
}

impl Departure {
    /// Notes why it ends, as text too.
    pub(super) fn because(&mut self, cause: impl FnOnce(String) -> EndReason, why: String) {
        self.cause.get_or_insert_with(|| cause(why.clone()));
        self.why.get_or_insert(why);
    }

    /// Has it killed at this time, unless it is killed earlier.
    pub(super) fn by(&mut self, at: Instant) {
        self.kill_at = Some(self.kill_at.map_or(at, |earlier| earlier.min(at)));
    }

    /// Whether the node knows of no reason for it to end.
    pub(super) fn is_unknown(&self) -> bool {
        !self.told_to_exit && self.cause.is_none() && self.kill_at.is_none()
    }

    /// Returns whether an end with this status is no failure.
    pub(super) fn is_in_order(&self, exit: Option<ExitStatus>) -> bool {
        // A shutdown waits for no worker that is still starting.
        self.killed == Some(Phase::Starting) || self.told_to_exit && exit.is_some_and(|exit| exit.success())
    }

    /// Returns why it has ended. A cause that the node knows comes before the exit status.
    pub(super) fn reason(&self, exit: Option<ExitStatus>) -> EndReason {
        if let Some(cause) = &self.cause {
            return cause.clone();
        }
        match exit {
            Some(exit) if self.told_to_exit && exit.success() => EndReason::Normal,
            Some(exit) => match exit.signal() {
                Some(signal) => EndReason::Signal(signal),
                None => EndReason::Exit(exit.code().unwrap_or(-1)),
            },
            None => EndReason::Exit(-1),
        }
    }
}
