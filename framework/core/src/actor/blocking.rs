//! Calls that may not wait, and the refusal of waits in them.
//!
//! A worker's reader runs on the thread of its actors. Plain code there that blocks until a message is
//! accepted, or an ask answered, keeps the reader from making that happen, and hangs for ever. So code that
//! runs such a call declares it ([`Env::without_waiting`], [`Call::begin`]), and a send or ask that would
//! have to wait in it fails instead. The framework declares it for `create` and for handlers, unless the
//! actor has a thread of its own. There the reader goes on, so the call may block. Sends that its turn has
//! put off are published first, or nobody would hear of the message whose result it waits for.
//!
//! Some blocking goes unnoticed: in an `async` block, `prepare` among them (a poll that blocks looks like one
//! that awaits), in actix's `started` and `stopped`, in timers, and on a thread that the actor waits for.
//!
//! Only a pending poll and a lookup check this, so a message that is accepted at once pays nothing. A poll
//! with a waker that wakes nobody is no wait: its caller only looks.

use std::cell::Cell;
use std::future::poll_fn;
use std::task::{Context, Poll, Waker};

use super::Env;
use crate::stream::turn::flush_now;

thread_local! {
    /// The kind of call that this thread is in.
    static IN_CALL: Cell<Kind> = const { Cell::new(Kind::None) };
}

#[derive(Clone, Copy)]
enum Kind {
    None,
    /// The call may not wait.
    Plain,
    /// Blocking delays only the actor itself.
    Alone,
}

/// A call of user code that is no future. Its drop ends the call, also after a panic.
pub(super) struct Call {
    outer: Kind,
}

impl Call {
    /// Begins a call of an actor. `own_thread` says whether the process's reader is on another thread.
    pub(super) fn begin(own_thread: bool) -> Self {
        Call { outer: IN_CALL.replace(if own_thread { Kind::Alone } else { Kind::Plain }) }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        IN_CALL.set(self.outer);
    }
}

impl Env {
    /// Runs plain code on this thread. A send, an ask or a lookup in it fails if it would have to wait,
    /// because [blocking](super::SendFailure::Blocking) on it would hang for ever. A pipeline runs the code
    /// of its stages this way. The framework runs an actor's `create` and handlers this way, if the actor has
    /// no thread of its own.
    pub fn without_waiting<R>(&self, call: impl FnOnce() -> R) -> R {
        let _call = Call::begin(false);
        call()
    }
}

/// Returns whether a pending poll with this waker is a wait in a call that may not wait.
#[cold]
pub(super) fn is_blocking_poll(cx: &Context<'_>) -> bool {
    let waker = cx.waker();
    let only_looks =
        || waker.will_wake(Waker::noop()) || waker.will_wake(futures_util::task::noop_waker_ref());
    match IN_CALL.get() {
        Kind::None => false,
        Kind::Plain => !only_looks(),
        Kind::Alone => {
            if !only_looks() {
                flush_now();
            }
            false
        }
    }
}

/// Returns whether waiting for another thread's answer now would be a wait in a call that may not wait.
/// Callers check this before they ask the question. Otherwise a poll may find the answer already there, and
/// the same code would hang another time.
pub(crate) async fn would_block() -> bool {
    poll_fn(|cx| Poll::Ready(is_blocking_poll(cx))).await
}
