//! Calls in which nothing can be awaited, and what is refused in them.
//!
//! A worker's reader runs on the thread of its actors. Plain code there that blocks until a message is accepted, or an
//! ask answered, keeps the reader from making that happen, and stands still for ever. So whoever runs such code says so
//! ([`Env::without_waiting`]), and what would have to wait in it fails instead.
//!
//! Only a poll that is pending looks here, so nothing that succeeds at once pays for it. A poll with a waker that wakes
//! nobody is no wait: its caller only looks.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use super::Env;

thread_local! {
    /// Whether this thread is in such a call.
    static IN_CALL: Cell<bool> = const { Cell::new(false) };
}

/// Ends the call, also by a panic.
struct Call {
    outer: bool,
}

impl Drop for Call {
    fn drop(&mut self) {
        IN_CALL.set(self.outer);
    }
}

impl Env {
    /// Runs plain code on this thread. A send, an ask or a lookup that would have to be waited for in it fails, where
    /// [blocking](super::SendFailure::Blocking) on it would stand still for ever. A pipeline runs the code of its stages
    /// so.
    pub fn without_waiting<R>(&self, call: impl FnOnce() -> R) -> R {
        let _call = Call { outer: IN_CALL.replace(true) };
        call()
    }
}

/// Whether what is pending with this waker is waited for in a call in which nothing can be.
#[cold]
pub(super) fn stands_still(cx: &Context<'_>) -> bool {
    let waker = cx.waker();
    let only_looks =
        || waker.will_wake(Waker::noop()) || waker.will_wake(futures_util::task::noop_waker_ref());
    IN_CALL.get() && !only_looks()
}

/// The future's output; `None` where it would be waited for in a call in which nothing can be.
pub(super) async fn unless_standing<F: Future>(future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending if stands_still(cx) => Poll::Ready(None),
        Poll::Pending => Poll::Pending,
    })
    .await
}
