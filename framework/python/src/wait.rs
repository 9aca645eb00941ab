//! Waits for futures, from Python threads and from event loops.
//!
//! A thread that waits has released the interpreter. It takes it every [`SLICE`], to check for signals:
//! Ctrl-C ends a wait. Messages that were deferred to the handler's end are sent first ([`Together`]). One
//! thread drives the futures of all coroutines, and takes the interpreter only to report an outcome.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use tensorpost_core::bindings::{Together, Transport};
use tensorpost_core::os::PerProcess;
use tokio::runtime::{Builder, Handle};
use tokio::task::AbortHandle;

use crate::failure::exception;
use crate::garbage;
use crate::spin::{came, look_for};

/// How long a signal may wait.
const SLICE: Duration = Duration::from_millis(50);
/// How often a woken future is polled without sleeping.
const LOOKS: u32 = 16;

/// The outcome of a wait; `None` if the time was up.
pub(crate) type Outcome<T> = Option<T>;

/// Wakes a thread that waits for a future.
struct Unpark {
    thread: Thread,
    woken: AtomicBool,
}

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        // The thread's own token may be used up by whatever else parks in a poll.
        self.woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

/// Polls a future on this thread until it has an outcome, at most for `time`. The thread parks as std's
/// threads do: tokio's would wait in parking_lot's table, which a fork inherits (`os/lock.rs`).
fn on_this_thread<T>(mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>, time: Duration) -> Option<T> {
    let until = Instant::now() + time;
    let unpark = Arc::new(Unpark { thread: std::thread::current(), woken: AtomicBool::new(false) });
    let waker = Waker::from(Arc::clone(&unpark));
    loop {
        if let Poll::Ready(outcome) = poll(&mut Context::from_waker(&waker)) {
            return Some(outcome);
        }
        // A future may be woken without end.
        if Instant::now() >= until {
            return None;
        }
        while !unpark.woken.swap(false, Ordering::Acquire) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            std::thread::park_timeout(left);
        }
    }
}

/// The longest wait in seconds: our clocks do not get so far. It stands for `float("inf")` too.
const LONGEST: f64 = 1e9;

/// Reads a length of time in seconds, as Python's own functions take it.
pub(crate) fn seconds(py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Duration>> {
    let wrong = |seconds: f64| {
        let text = format!("a timeout is a number of seconds from 0 on, and not {seconds}");
        exception(py, "Error", text)
    };
    let length = |seconds: f64| {
        let bounded = if seconds > LONGEST { LONGEST } else { seconds };
        Duration::try_from_secs_f64(bounded).map_err(|_| wrong(seconds))
    };
    timeout.map(length).transpose()
}

/// Waits on this thread for a message of another process: spins first, if there are cores for that.
pub(crate) fn wait_spinning<F>(
    py: Python<'_>,
    mut future: F,
    timeout: Option<Duration>,
    transport: &Arc<Transport>,
) -> PyResult<Outcome<F::Output>>
where
    F: Future + Unpin + Send,
    F::Output: Send,
{
    let looked = py.detach(|| {
        let woken = Arc::new(Woken(AtomicBool::new(true)));
        let waker = Waker::from(Arc::clone(&woken));
        let mut context = Context::from_waker(&waker);
        // So few that no deadline and no signal is missed, even if the future is woken without end.
        for _ in 0..LOOKS {
            // Before the poll: the next look sees a change that comes after it.
            woken.0.store(false, Ordering::SeqCst);
            if let Poll::Ready(outcome) = poll(&mut future, &mut context) {
                return Some(outcome);
            }
            look_for(transport, || woken.0.load(Ordering::SeqCst).then_some(()))?;
        }
        None
    });
    if looked.is_some() {
        return Ok(looked);
    }
    let waiting = garbage::Waiting::begin(py);
    let outcome = wait(py, future, timeout);
    drop(waiting);
    came();
    outcome
}

/// Polls once. The poll may send a message that found no room before; since this thread waits, that is not
/// deferred to the end of the handler ([`Together`]).
fn poll<F: Future + Unpin>(future: &mut F, context: &mut Context<'_>) -> Poll<F::Output> {
    let polled = Pin::new(future).poll(context);
    Together::publish();
    polled
}

/// Whether a future must be polled.
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Waits on this thread.
pub(crate) fn wait<F>(
    py: Python<'_>,
    mut future: F,
    timeout: Option<Duration>,
) -> PyResult<Outcome<F::Output>>
where
    F: Future + Unpin + Send,
    F::Output: Send,
{
    let mut left = timeout;
    loop {
        let slice = left.map_or(SLICE, |left| left.min(SLICE));
        let outcome = py.detach(|| on_this_thread(|context| poll(&mut future, context), slice));
        if outcome.is_some() {
            return Ok(outcome);
        }
        py.check_signals()?;
        left = left.map(|left| left.saturating_sub(slice));
        if left == Some(Duration::ZERO) {
            return Ok(None);
        }
    }
}

/// Runs a blocking call on another thread, so that a signal ends the wait for it. The call itself goes on
/// then.
pub(crate) fn aside<T: Send + 'static>(
    py: Python<'_>,
    call: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    aside_while(py, call, || Ok(()))
}

/// As [`aside`], for a caller whose signal handlers raise nothing: an error of `goes_on` ends the wait too.
pub(crate) fn aside_while<T: Send + 'static>(
    py: Python<'_>,
    call: impl FnOnce() -> T + Send + 'static,
    goes_on: impl Fn() -> PyResult<()>,
) -> PyResult<T> {
    Together::publish();
    let (done, outcome) = mpsc::sync_channel(1);
    std::thread::Builder::new().name("tp-call".to_owned()).spawn(move || {
        // The caller may have stopped waiting.
        let _ = done.send(call());
    })?;
    // A receiver may be used by only one thread at a time, and `detach` needs a value that may be shared.
    let outcome = parking_lot::Mutex::new(outcome);
    loop {
        match py.detach(|| outcome.lock().recv_timeout(SLICE)) {
            Ok(outcome) => return Ok(outcome),
            Err(RecvTimeoutError::Timeout) => {
                py.check_signals()?;
                goes_on()?;
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(exception(
                    py,
                    "Error",
                    "what was asked for panicked; its message is on stderr".to_owned(),
                ));
            }
        }
    }
}

/// Returns the thread that drives the futures of coroutines, and starts it if needed.
fn driver() -> std::io::Result<&'static Handle> {
    static DRIVER: PerProcess<std::io::Result<Handle>> = PerProcess::new(|| {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        std::thread::Builder::new().name("tp-asyncio".to_owned()).spawn(move || {
            runtime.block_on(std::future::pending::<()>());
        })?;
        // If two threads were here at once, one driver has nothing to do.
        Ok(handle)
    });
    DRIVER.get().as_ref().map_err(|error| std::io::Error::new(error.kind(), error.to_string()))
}

/// A future that is being driven for a coroutine.
#[pyclass(frozen, module = "tensorpost._native")]
pub(crate) struct Driven(AbortHandle);

#[pymethods]
impl Driven {
    /// Cancels the future: the coroutine no longer waits for it.
    fn cancel(&self) {
        self.0.abort();
    }
}

/// Drives a future, and calls `told` with the result of `outcome`: a value and an exception, one of them
/// None.
pub(crate) fn drive<F>(
    told: Py<PyAny>,
    future: F,
    timeout: Option<Duration>,
    outcome: impl FnOnce(Python<'_>, Outcome<F::Output>) -> PyResult<Py<PyAny>> + Send + 'static,
) -> PyResult<Driven>
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    Together::publish();
    let driven = driver()?.spawn(async move {
        // Kept until the outcome is told: memory that came back with it would hide that there was too little.
        let mut future = std::pin::pin!(future);
        let done = match timeout {
            Some(timeout) => tokio::time::timeout(timeout, future.as_mut()).await.ok(),
            None => Some(future.await),
        };
        // If the interpreter is ending, the outcome is not reported.
        Python::try_attach(|py| {
            let told = match outcome(py, done) {
                Ok(value) => told.call1(py, (value, py.None())),
                Err(error) => told.call1(py, (py.None(), error)),
            };
            // An error means that the event loop has been closed, so no coroutine waits there.
            drop(told);
        });
    });
    Ok(Driven(driven.abort_handle()))
}

/// Polls a future once, and returns its outcome if it has one.
pub(crate) fn at_once<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    match poll(future, &mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => Some(outcome),
        Poll::Pending => None,
    }
}
