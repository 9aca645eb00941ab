//! The role of reading, which the reader has, or for a while another thread of the process that waits for a
//! message and has a core to poll with.
//!
//! A message for a thread that waits on its own would have to cross from the reader's core to that thread's
//! core. If that thread reads it, it does not. The state for reading ([`ReaderState`]) is one value that
//! passes from thread to thread. The thread that holds it reads, so only one thread reads at a time, and each
//! sees everything that the last one wrote.
//!
//! * Only a reader that is awake lends it. A sleeping reader has told its peers so, and they ring for it
//!   alone.
//! * While it is lent, the reader stays awake for as long as it would poll itself. Then it sleeps until the
//!   value is back, and does not tell the peers, because another thread polls.
//! * A thread that wants it but has no core at the moment does not block reading: the reader polls in
//!   between.
//!
//! **Invariants.** One thread reads at a time. The value is never lost: it comes back when a thread unwinds,
//! and when the reader is cancelled.
//!
//! **Locks.** One, for as long as it takes to move a pointer. No link is touched under it.
//!
//! **On a panic** while another thread reads, the process ends, as it does after a panic on the reader's
//! thread.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::reader_state::ReaderState;

/// A reader that could take the role while another thread wants it still polls once in this many idle steps.
const STEPS_PER_LOOK: u32 = 64;

/// See the module.
pub(super) struct Role {
    state: Mutex<State>,
    /// How many threads want to read.
    wanted: AtomicUsize,
    /// Wakes a reader that sleeps.
    came_back: Notify,
}

struct State {
    /// The state for reading, while no thread holds it.
    reading: Option<Box<ReaderState>>,
    /// Whether the reader sleeps until it is back.
    awaited: bool,
}

impl Role {
    pub(super) fn new() -> Self {
        let state = State { reading: Some(Box::default()), awaited: false };
        Role { state: Mutex::new(state), wanted: AtomicUsize::new(0), came_back: Notify::new() }
    }

    /// Takes the role, if no thread has it.
    pub(super) fn take(&self) -> Option<Reads<'_>> {
        let reading = self.state.lock().reading.take()?;
        Some(Reads { role: self, reading: Some(reading) })
    }

    /// Returns whether a thread wants to read.
    #[inline]
    pub(super) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) > 0
    }

    /// Takes the role for the reader, at its `step`-th step without it. It leaves the role to threads that
    /// want it, except for one poll in many.
    pub(super) fn take_for_reader(&self, step: u32) -> Option<Reads<'_>> {
        if self.is_wanted() && !step.is_multiple_of(STEPS_PER_LOOK) { None } else { self.take() }
    }

    /// Resolves when no thread has the role any more. Only the reader calls it.
    pub(super) async fn is_back(&self) {
        {
            let mut state = self.state.lock();
            if state.reading.is_some() {
                return;
            }
            state.awaited = true;
        }
        self.came_back.notified().await;
    }

    /// Says that a thread wants to read, until this drops.
    #[cfg(any(test, feature = "bindings"))]
    pub(super) fn want(&self) -> Wants<'_> {
        self.wanted.fetch_add(1, Ordering::Relaxed);
        Wants(self)
    }
}

/// See [`Role::want`].
#[cfg(any(test, feature = "bindings"))]
pub(super) struct Wants<'a>(&'a Role);

#[cfg(any(test, feature = "bindings"))]
impl Drop for Wants<'_> {
    fn drop(&mut self) {
        self.0.wanted.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Held by the thread that reads; gives the role back when it drops.
pub(super) struct Reads<'a> {
    role: &'a Role,
    /// `Some` until it drops.
    reading: Option<Box<ReaderState>>,
}

impl Deref for Reads<'_> {
    type Target = ReaderState;

    fn deref(&self) -> &ReaderState {
        let Some(reading) = &self.reading else { unreachable!("it is taken when this drops") };
        reading
    }
}

impl DerefMut for Reads<'_> {
    fn deref_mut(&mut self) -> &mut ReaderState {
        let Some(reading) = &mut self.reading else { unreachable!("it is taken when this drops") };
        reading
    }
}

impl Drop for Reads<'_> {
    fn drop(&mut self) {
        let Some(mut reading) = self.reading.take() else { return };
        // Anything in it that belongs to this thread stays with this thread.
        reading.leave_thread();
        let awaited = {
            let mut state = self.role.state.lock();
            state.reading = Some(reading);
            std::mem::take(&mut state.awaited)
        };
        if awaited {
            self.role.came_back.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn one_reads_at_a_time() {
        let role = Role::new();
        let reads = role.take();
        assert!(reads.is_some());
        assert!(role.take().is_none(), "there is one");
        drop(reads);
        assert!(role.take().is_some(), "it is back");
    }

    #[test]
    fn the_reader_leaves_it_to_who_wants_it_but_for_one_look_in_many() {
        let role = Role::new();
        let wants = role.want();
        assert!((1..STEPS_PER_LOOK).all(|step| role.take_for_reader(step).is_none()));
        assert!(role.take_for_reader(STEPS_PER_LOOK).is_some(), "who wants it may have no core");
        drop(wants);
        assert!(role.take_for_reader(1).is_some());
    }

    #[test]
    fn it_comes_back_from_a_thread_that_unwinds() {
        let role = Arc::new(Role::new());
        let of_thread = Arc::clone(&role);
        let thread = std::thread::spawn(move || {
            let _reads = of_thread.take();
            panic!("in the middle of a look");
        });
        assert!(thread.join().is_err());
        assert!(role.take().is_some());
    }

    /// In every interleaving of the two, the reader is woken or does not sleep.
    #[test]
    fn a_reader_that_sleeps_is_woken() {
        let role = Arc::new(Role::new());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let Ok(runtime) = runtime else { panic!("no runtime") };
        for _ in 0..2_000 {
            let of_thread = Arc::clone(&role);
            let (taken, is_taken) = std::sync::mpsc::channel();
            let thread = std::thread::spawn(move || {
                let reads = of_thread.take();
                let _ = taken.send(());
                drop(reads);
            });
            assert!(is_taken.recv().is_ok());
            let limit = std::time::Duration::from_secs(20);
            let woken = runtime.block_on(async { tokio::time::timeout(limit, role.is_back()).await });
            assert!(woken.is_ok(), "it sleeps on");
            assert!(thread.join().is_ok());
        }
    }
}
