//! Who reads: the reader, or for a while another thread of the process, which waits for what comes and has a
//! core to look with.
//!
//! What comes for a thread that waits on its own would cross from the reader's core to that thread's; read
//! there, it does not. What is read with ([`Looking`]) is one value that goes from hand to hand: whoever
//! holds it reads, so there is one reader at a time, and what the last one wrote is seen by the next.
//!
//! * Only a reader that looks lends it. One that sleeps has said so to the peers, who ring for it alone.
//! * The reader of a process stays awake while it is lent, for as long as it would look itself; then it
//!   sleeps until it is back, without saying so to the peers: somebody looks.
//! * Whoever wants it and has no core just then keeps nobody from it: the reader looks in between.
//!
//! **Invariants.** One reads at a time. It is never lost: it comes back where a thread unwinds, and where the
//! reader is cancelled.
//!
//! **Locks.** One, for as long as it takes to move a pointer. Nothing is done with links under it.
//!
//! **On a panic** of a look on a thread that is not the reader's the process ends, as with one on the
//! reader's.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::reader::Looking;

/// A reader that finds it where somebody wants it looks at each so many idle steps all the same.
const STEPS_PER_LOOK: u32 = 64;

/// See the module.
pub(super) struct Role {
    state: Mutex<State>,
    /// How many threads want to read.
    wanted: AtomicUsize,
    /// For a reader that sleeps.
    came_back: Notify,
}

struct State {
    /// While nobody holds it.
    looking: Option<Box<Looking>>,
    /// Whether the reader sleeps until it is back.
    awaited: bool,
}

impl Role {
    pub(super) fn new() -> Self {
        let state = State { looking: Some(Box::default()), awaited: false };
        Role { state: Mutex::new(state), wanted: AtomicUsize::new(0), came_back: Notify::new() }
    }

    /// Takes it where nobody has it.
    pub(super) fn take(&self) -> Option<Reads<'_>> {
        let looking = self.state.lock().looking.take()?;
        Some(Reads { role: self, looking: Some(looking) })
    }

    /// Returns whether a thread wants to read.
    #[inline]
    pub(super) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) > 0
    }

    /// As the reader takes it at its `step`-th step without it: not from those who want it, but for one look
    /// in many.
    pub(super) fn take_for_reader(&self, step: u32) -> Option<Reads<'_>> {
        if self.is_wanted() && !step.is_multiple_of(STEPS_PER_LOOK) { None } else { self.take() }
    }

    /// Resolves when nobody has it any more. For the reader alone.
    pub(super) async fn is_back(&self) {
        {
            let mut state = self.state.lock();
            if state.looking.is_some() {
                return;
            }
            state.awaited = true;
        }
        self.came_back.notified().await;
    }

    /// Says that a thread wants to read, until this drops.
    #[cfg(any(test, feature = "foreign"))]
    pub(super) fn want(&self) -> Wants<'_> {
        self.wanted.fetch_add(1, Ordering::Relaxed);
        Wants(self)
    }
}

/// See [`Role::want`].
#[cfg(any(test, feature = "foreign"))]
pub(super) struct Wants<'a>(&'a Role);

#[cfg(any(test, feature = "foreign"))]
impl Drop for Wants<'_> {
    fn drop(&mut self) {
        self.0.wanted.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Held by who reads; back where it came from when it drops.
pub(super) struct Reads<'a> {
    role: &'a Role,
    /// There until it drops.
    looking: Option<Box<Looking>>,
}

impl Deref for Reads<'_> {
    type Target = Looking;

    fn deref(&self) -> &Looking {
        let Some(looking) = &self.looking else { unreachable!("it is taken when this drops") };
        looking
    }
}

impl DerefMut for Reads<'_> {
    fn deref_mut(&mut self) -> &mut Looking {
        let Some(looking) = &mut self.looking else { unreachable!("it is taken when this drops") };
        looking
    }
}

impl Drop for Reads<'_> {
    fn drop(&mut self) {
        let Some(mut looking) = self.looking.take() else { return };
        // What this thread keeps of it is this thread's.
        looking.leave_thread();
        let awaited = {
            let mut state = self.role.state.lock();
            state.looking = Some(looking);
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

    /// However the two cross: the reader is woken, or does not sleep.
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
