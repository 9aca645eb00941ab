//! How long a stage works and waits, measured where it happens: on its stream and between its messages.

#[cfg(feature = "cuda")]
mod timed;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tensorpost::prelude::*;
use tokio::sync::Notify;
use tokio::task::spawn_blocking;

use super::messages::{Failure, StageReport};

/// Measurements of one stage. Clones share them; kernels on the stream's thread write into them too.
#[derive(Clone, Debug, Default)]
pub struct Meter(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// The last job that was begun has ended.
    idle: Notify,
    #[cfg(feature = "cuda")]
    timed: timed::Timed,
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

/// One frame's work in this stage, in one or several parts; clones are of the same frame. When the last is dropped the
/// frame is counted. If a part was begun and not done then, the stage's report says that the frame was lost.
#[derive(Clone, Debug)]
pub struct Job(Arc<OfFrame>);

#[derive(Debug)]
struct OfFrame {
    meter: Meter,
    stage: &'static str,
    frame: u64,
    parts: Mutex<Parts>,
}

#[derive(Debug, Default)]
struct Parts {
    begun: u32,
    done: u32,
    time: Duration,
}

impl Meter {
    /// The work on `frame` was put on the stream, or is about to be.
    pub fn begin(&self, stage: &'static str, frame: u64) -> Job {
        self.state().begun += 1;
        let parts = Mutex::default();
        Job(Arc::new(OfFrame { meter: self.clone(), stage, frame, parts }))
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

    /// Resolves when every job that was begun has ended, and what was put on the stream of `gpu` is done.
    ///
    /// # Errors
    /// Work on the stream failed.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn idle(&self, gpu: &Gpu) -> Result<(), TensorError> {
        let stream = gpu.clone();
        // On a thread of its own, because nobody is told when a GPU is done.
        let done = spawn_blocking(move || stream.synchronize()).await;
        #[cfg(feature = "cuda")]
        self.0.timed.collect_all();
        loop {
            // Before the look, so that an end between the two is not missed.
            let ended = self.0.idle.notified();
            if self.is_idle() {
                break;
            }
            ended.await;
        }
        // A failure to join is a runtime that ends, and nobody waits any more.
        done.unwrap_or(Ok(()))
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

    fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.0.state)
    }
}

impl Job {
    /// Does a part of the work here and now, and measures it.
    ///
    /// # Errors
    /// What `work` returns.
    pub fn attempt<T, E>(&self, work: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        self.parts().begun += 1;
        let since = Instant::now();
        let result = work();
        self.done(since.elapsed());
        result
    }

    /// Has `launch` put a part of the work on the stream of `gpu`, and measures how long the stream is at it: between
    /// two closures on the host, between two events on a GPU.
    ///
    /// # Errors
    /// What `launch` returns, and what the stream said.
    pub fn launch<T, E: From<TensorError>>(
        &self,
        gpu: &Gpu,
        launch: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        #[cfg(feature = "cuda")]
        if gpu.kind() == DeviceKind::Cuda {
            return self.0.meter.0.timed.launch(self, gpu, launch);
        }
        let began = Arc::new(Mutex::new(None));
        let begin = Arc::clone(&began);
        gpu.run((), move |()| *locked(&begin) = Some(Instant::now()))?;
        let launched = launch()?;
        let job = self.clone();
        job.parts().begun += 1;
        gpu.run((), move |()| {
            let began = *locked(&began);
            job.done(began.map(|began| began.elapsed()).unwrap_or_default());
        })?;
        Ok(launched)
    }

    fn done(&self, time: Duration) {
        let mut parts = self.parts();
        parts.done += 1;
        parts.time += time;
    }

    fn parts(&self) -> MutexGuard<'_, Parts> {
        locked(&self.0.parts)
    }
}

impl Drop for OfFrame {
    fn drop(&mut self) {
        let Parts { begun, done, time } = *locked(&self.parts);
        if begun != done {
            let why = "its kernel panicked or was not run; the worker's log says why".to_owned();
            self.meter.fail(Failure { stage: self.stage.to_owned(), frame: Some(self.frame), why });
        }
        let mut state = self.meter.state();
        state.ended += 1;
        state.total += time;
        state.max = state.max.max(time);
        drop(state);
        self.meter.0.idle.notify_waiters();
    }
}

/// Nothing that can panic runs under these locks, so a poisoned one holds sound values.
fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
