//! Stepping aside for other tasks without a system call: the task wakes itself.
//!
//! Tokio's `yield_now` makes the runtime poll its descriptors before it goes on, which is a system call for
//! each message. Every eighth step still is a `yield_now`: for timers, for the user's own descriptors, and
//! for tasks that `yield_now` put off.

use std::future::poll_fn;
use std::task::Poll;

/// Lets the other tasks of this thread run, and then the caller again. Unlike `tokio::task::yield_now` it
/// does not make the runtime poll its descriptors and timers first, which is a system call each time. The
/// runtime polls them after every 61 tasks, and in a worker after every few polls of the reader.
///
/// # Cancel safety
/// The future holds nothing.
pub async fn step_aside() {
    let mut has_stepped = false;
    poll_fn(|cx| {
        if has_stepped {
            return Poll::Ready(());
        }
        has_stepped = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn others_run_in_between() {
        let local = tokio::task::LocalSet::new();
        let turns = Rc::new(Cell::new(0));
        let other = Rc::clone(&turns);
        local.spawn_local(async move {
            while other.get() < 100 {
                other.set(other.get() + 1);
                step_aside().await;
            }
        });
        let seen = local
            .run_until(async {
                tokio::task::spawn_local(async move {
                    for _ in 0..50 {
                        step_aside().await;
                    }
                    turns.get()
                })
                .await
            })
            .await;
        assert!(matches!(seen, Ok(49..=51)), "each has as many turns as the other: {seen:?}");
    }
}
