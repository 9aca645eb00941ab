//! Waiting for a future in code that blocks, and for a call that blocks in async code.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use tokio::sync::oneshot;

/// Blocks the thread until `future` is done. It needs no runtime and may be called inside one. The budget by
/// which tokio makes a task yield does not count here: the future would wait for a scheduler that this call
/// keeps from running.
#[doc(hidden)] // the pipeline, which is another crate, has it by `api::node`
pub fn block_on<F: Future>(future: F) -> F::Output {
    pollster::block_on(tokio::task::unconstrained(future))
}

/// Runs a call that blocks on a thread of its own, and resolves with its result. A panic of the call goes on
/// in the caller.
///
/// # Errors
/// The system has no thread to give; the call was not made.
///
/// # Cancel safety
/// The call goes on if the future is dropped, and its thread drops the result, unless that was there already.
#[doc(hidden)] // the pipeline, which is another crate, has it by `api::node`
pub async fn on_own_thread<T: Send + 'static>(
    name: &str,
    call: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let (answer, result) = oneshot::channel();
    std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        // The caller may have stopped waiting.
        let _ = answer.send(catch_unwind(AssertUnwindSafe(call)));
    })?;
    match result.await {
        Ok(Ok(result)) => Ok(result),
        Ok(Err(panic)) => resume_unwind(panic),
        Err(_) => Err(io::Error::other("the thread ended without a result")),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::task::{Context, Waker};

    use super::*;

    /// Tells the name of the thread that drops it.
    struct Tells(mpsc::Sender<Option<String>>);

    impl Drop for Tells {
        fn drop(&mut self) {
            let _ = self.0.send(std::thread::current().name().map(str::to_owned));
        }
    }

    #[test]
    fn a_call_that_nobody_awaits_goes_on_and_drops_its_result() {
        let (dropped, told) = mpsc::channel();
        let (go, may_go) = mpsc::channel::<()>();
        let mut call = Box::pin(on_own_thread("tp-test", move || {
            let _ = may_go.recv();
            Tells(dropped)
        }));
        assert!(call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        drop(call);
        drop(go);
        assert_eq!(told.recv().unwrap().as_deref(), Some("tp-test"));
    }

    #[test]
    fn a_result_and_a_panic_of_the_call_are_the_callers() {
        assert_eq!(block_on(on_own_thread("tp-test", || 7)).unwrap(), 7);
        let falls = || block_on(on_own_thread::<()>("tp-test", || resume_unwind(Box::new("it fell"))));
        let panic = catch_unwind(falls).unwrap_err();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"it fell"));
    }
}
