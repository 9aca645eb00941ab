//! How long a stage works and waits, measured where it happens: in its host kernels and between its messages.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::messages::{Failure, StageReport};

/// Measurements of one stage. Clones share them; kernels on the stream's thread write into them too.
#[derive(Clone, Debug, Default)]
pub struct Meter(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// The last job that was begun has ended.
    idle: Notify,
}

#[derive(Debug, Default)]
struct State {
    begun: u64,
    ended: u64,
    total: Duration,
    max: Duration,
    waiting: Duration,
    in_place: u64,
    failure: Option<Failure>,
    /// The failure was told to the program, and stays.
    told: bool,
}

/// One frame's work, to be taken into the kernel that does it. If it is dropped before it has run, the stage's report
/// says that the frame was lost.
#[derive(Debug)]
#[must_use = "a job that is dropped counts as a failure"]
pub struct Job {
    meter: Meter,
    stage: &'static str,
    frame: u64,
    done: bool,
}

impl Meter {
    /// The work on `frame` was put on the stream, or is about to be.
    pub fn begin(&self, stage: &'static str, frame: u64) -> Job {
        self.state().begun += 1;
        Job { meter: self.clone(), stage, frame, done: false }
    }

    /// Adds to the time spent waiting.
    pub fn waited(&self, time: Duration) {
        self.state().waiting += time;
    }

    /// Counts a frame whose result lies in the memory that it came in.
    pub fn in_place(&self) {
        self.state().in_place += 1;
    }

    /// Notes a failure. The first stays, unless a closer look comes before anybody was told of it.
    pub fn fail(&self, failure: Failure) {
        let mut state = self.state();
        if !state.told {
            state.failure = Some(failure);
        }
    }

    /// The failure, once.
    pub fn untold(&self) -> Option<Failure> {
        let mut state = self.state();
        let untold = if state.told { None } else { state.failure.clone() };
        state.told |= untold.is_some();
        untold
    }

    /// Whether something failed. What comes then is dropped.
    pub fn has_failed(&self) -> bool {
        self.state().failure.is_some()
    }

    /// Resolves when every job that was begun has ended.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn idle(&self) {
        loop {
            // Before the look, so that an end between the two is not missed.
            let ended = self.0.idle.notified();
            if self.is_idle() {
                return;
            }
            ended.await;
        }
    }

    fn is_idle(&self) -> bool {
        let state = self.state();
        state.ended == state.begun
    }

    /// What was measured, for the stage `stage` whose actor is called `name`.
    pub fn report(&self, stage: &str, name: &str, bytes_not_copied: u64) -> StageReport {
        let state = self.state();
        StageReport {
            stage: stage.to_owned(),
            name: name.to_owned(),
            pid: std::process::id(),
            frames: state.ended,
            total_us: micros(state.total),
            max_us: micros(state.max),
            waiting_us: micros(state.waiting),
            in_place: state.in_place,
            bytes_not_copied,
            failure: state.failure.clone(),
        }
    }

    /// Nothing that can panic runs under the lock, so a poisoned one holds sound values.
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Job {
    /// Does the work and measures it. An error is noted as the stage's failure, and returned.
    ///
    /// # Errors
    /// What `work` returns.
    pub fn run<T, E: std::fmt::Display>(self, work: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let (meter, stage, frame) = (self.meter.clone(), self.stage, self.frame);
        self.attempt(|| {
            work().inspect_err(|error| {
                meter.fail(Failure { stage: stage.to_owned(), frame: Some(frame), why: error.to_string() });
            })
        })
    }

    /// [`run`](Self::run) for work whose error is not the stage's failure: its caller decides.
    ///
    /// # Errors
    /// What `work` returns.
    pub fn attempt<T, E>(mut self, work: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let since = Instant::now();
        let result = work();
        let time = since.elapsed();
        self.done = true;
        let mut state = self.meter.state();
        state.total += time;
        state.max = state.max.max(time);
        drop(state);
        result
    }

    fn fail(&self, why: String) {
        self.meter.fail(Failure { stage: self.stage.to_owned(), frame: Some(self.frame), why });
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if !self.done {
            self.fail("its kernel panicked or was not run; the worker's log says why".to_owned());
        }
        self.meter.state().ended += 1;
        self.meter.0.idle.notify_waiters();
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
