//! Waiting: for futures, from threads of Python and from its event loops.
//!
//! A thread that waits has let go of the interpreter. It takes it every [`SLICE`], to see whether there is a
//! signal: Ctrl-C ends a wait. What its handler's end has put off goes out first ([`Together`]). A
//! coroutine's future is driven on one thread for all of them, which takes the interpreter only to tell the
//! outcome.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use pyo3::prelude::*;
use tensorpost_core::foreign::{Together, Transport};
use tensorpost_core::os::PerProcess;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::AbortHandle;

use crate::failure::exception;
use crate::garbage;
use crate::look::{came, look_for};

/// How long a signal may wait.
const SLICE: Duration = Duration::from_millis(50);
/// How often what has been woken is looked at without sleeping.
const LOOKS: u32 = 16;

/// `None` where the time was up.
pub(crate) type Outcome<T> = Option<T>;

thread_local! {
    static RUNTIME: OnceLock<Runtime> = const { OnceLock::new() };
}

fn runtime() -> std::io::Result<Runtime> {
    Builder::new_current_thread().enable_time().build()
}

fn on_this_thread<T>(future: impl Future<Output = T>) -> std::io::Result<T> {
    RUNTIME.with(|known| {
        if known.get().is_none() {
            let _ = known.set(runtime()?);
        }
        match known.get() {
            Some(runtime) => Ok(runtime.block_on(future)),
            None => Err(std::io::Error::other("there is no runtime on this thread")),
        }
    })
}

/// No wait is longer: no clock of ours gets so far. It stands for `float("inf")` too.
const LONGEST: f64 = 1e9;

/// A length of time in seconds, as Python's own functions take it.
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

/// Waits on this thread for what other processes are about to say: looks for it first, where there are cores
/// for that.
pub(crate) fn wait_looking<F>(
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
        // So few that no deadline is missed for it, and no signal, whoever wakes it without end.
        for _ in 0..LOOKS {
            // Before the poll: what changes behind it is seen by the next look.
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

/// One poll, which may send what found no room before: who waits does not put it off to the end of a handler
/// ([`Together`]).
fn poll<F: Future + Unpin>(future: &mut F, context: &mut Context<'_>) -> Poll<F::Output> {
    let polled = Pin::new(future).poll(context);
    Together::publish();
    polled
}

/// Whether a future is to be polled.
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
        let polled = py.detach(|| {
            let polled = poll_fn(|context| poll(&mut future, context));
            on_this_thread(async { tokio::time::timeout(slice, polled).await })
        });
        if let Ok(outcome) = polled? {
            return Ok(Some(outcome));
        }
        py.check_signals()?;
        left = left.map(|left| left.saturating_sub(slice));
        if left == Some(Duration::ZERO) {
            return Ok(None);
        }
    }
}

/// Runs what blocks on another thread, so that a signal ends the wait for it. What was begun goes on then.
pub(crate) fn aside<T: Send + 'static>(
    py: Python<'_>,
    call: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    Together::publish();
    let (done, outcome) = mpsc::sync_channel(1);
    std::thread::Builder::new().name("tensorpost-call".to_owned()).spawn(move || {
        // Whoever asked may have gone.
        let _ = done.send(call());
    })?;
    // A receiver is one thread's at a time, and `detach` wants what may go to others.
    let outcome = parking_lot::Mutex::new(outcome);
    loop {
        match py.detach(|| outcome.lock().recv_timeout(SLICE)) {
            Ok(outcome) => return Ok(outcome),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
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

/// The thread that drives the futures of coroutines.
fn driver() -> std::io::Result<&'static Handle> {
    static DRIVER: PerProcess<std::io::Result<Handle>> = PerProcess::new(|| {
        let runtime = runtime()?;
        let handle = runtime.handle().clone();
        std::thread::Builder::new().name("tensorpost-asyncio".to_owned()).spawn(move || {
            runtime.block_on(std::future::pending::<()>());
        })?;
        // Where two threads were here at once, one driver has nothing to do.
        Ok(handle)
    });
    DRIVER.get().as_ref().map_err(|error| std::io::Error::new(error.kind(), error.to_string()))
}

/// A future that is being driven for a coroutine.
#[pyclass(frozen, module = "tensorpost._native")]
pub(crate) struct Driven(AbortHandle);

#[pymethods]
impl Driven {
    /// Nobody waits for it any more.
    fn cancel(&self) {
        self.0.abort();
    }
}

/// Drives a future, and calls `told` with what `outcome` makes of it: a value and an exception, one of them
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
        let done = match timeout {
            Some(timeout) => tokio::time::timeout(timeout, future).await.ok(),
            None => Some(future.await),
        };
        // At the interpreter's end there is nobody to tell.
        Python::try_attach(|py| {
            let told = match outcome(py, done) {
                Ok(value) => told.call1(py, (value, py.None())),
                Err(error) => told.call1(py, (py.None(), error)),
            };
            // The event loop has been closed: nobody waits there.
            drop(told);
        });
    });
    Ok(Driven(driven.abort_handle()))
}

/// What a future has come to by now.
pub(crate) fn at_once<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    match poll(future, &mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => Some(outcome),
        Poll::Pending => None,
    }
}
