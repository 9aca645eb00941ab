//! Calls in which nothing can be awaited, and what is refused in them.
//!
//! A worker's reader runs on the thread of its actors. Plain code there that blocks until a message is
//! accepted, or an ask answered, keeps the reader from making that happen, and stands still for ever. So
//! whoever runs such code says so ([`Env::without_waiting`], [`Call::begin`]), and what would have to wait in
//! it fails instead. The framework says so of `create` and of handlers, unless the actor has a thread of its
//! own. There the reader goes on, so it may block; what its turn has put off until its end is published
//! first, or nobody would hear of what it waits for.
//!
//! Not seen is what blocks in an `async` block, `prepare` among them (a poll of it that blocks looks like one
//! that awaits), in actix's `started` and `stopped`, in timers, and on a thread that the actor waits for.
//!
//! Only a poll that is pending looks here, and a lookup, so no message that is accepted at once pays for it.
//! A poll with a waker that wakes nobody is no wait: its caller only looks.

use std::cell::Cell;
use std::future::poll_fn;
use std::task::{Context, Poll, Waker};

use super::Env;
use crate::stream::turn::flush_now;

thread_local! {
    /// The call that this thread is in.
    static IN_CALL: Cell<Kind> = const { Cell::new(Kind::None) };
}

#[derive(Clone, Copy)]
enum Kind {
    None,
    /// Nothing can be awaited in it.
    Plain,
    /// Blocking holds up nobody but the actor itself.
    Alone,
}

/// A call of user code that is no future. Its drop ends it, also by a panic.
pub(super) struct Call {
    outer: Kind,
}

impl Call {
    /// Of an actor; `own_thread`: whether the process's reader is on another.
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
    /// Runs plain code on this thread. A send, an ask or a lookup that would have to be waited for in it
    /// fails, where [blocking](super::SendFailure::Blocking) on it would stand still for ever. A pipeline
    /// runs the code of its stages so, and the framework an actor's `create` and handlers, where the actor
    /// has no thread of its own.
    pub fn without_waiting<R>(&self, call: impl FnOnce() -> R) -> R {
        let _call = Call::begin(false);
        call()
    }
}

/// Whether what is pending with this waker is waited for in a call in which nothing can be.
#[cold]
pub(super) fn stands_still(cx: &Context<'_>) -> bool {
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

/// Whether an answer that another thread brings would be waited for in a call in which nothing can be. To be
/// asked before the question is: a poll may find the answer already there, and the same code would stand
/// still another time.
pub(super) async fn would_stand() -> bool {
    poll_fn(|cx| Poll::Ready(stands_still(cx))).await
}
