//! Spins for a while before sleeping: waking a thread costs more than a message.
//!
//! Threads do this that wait for a message, a reply or the answer of another thread, without the interpreter,
//! and only if there are cores to spare. `tensorpost_core` decides how long, and when it is of no use
//! ([`Spin`]). A thread is patient, as the reader is: if messages come at intervals, such as the time of a
//! kernel, it spins through them.

use std::cell::RefCell;
use std::sync::Arc;

use tensorpost_core::bindings::Transport;
use tensorpost_core::transport::spin::{Spin, SpinStep};

thread_local! {
    static SPIN: RefCell<Spin> = RefCell::new(patient());
}

fn patient() -> Spin {
    let mut spin = Spin::new();
    spin.set_patient(true);
    spin
}

/// Looks until `find` has found something, for about as long as waking up would take. It reads for the
/// process meanwhile, so a message for this thread does not have to cross from another thread's core. If
/// nothing was found by then, the caller sleeps, and calls [`came`] when it has woken up.
pub(crate) fn look_for<T>(transport: &Arc<Transport>, mut find: impl FnMut() -> Option<T>) -> Option<T> {
    if !transport.has_spare_cores() {
        return find();
    }
    SPIN.with_borrow_mut(|spin| {
        let mut helper = None;
        loop {
            if let Some(found) = find() {
                spin.found();
                return Some(found);
            }
            // Messages for other threads are no reason to look for longer: deadlines and signals wait.
            helper.get_or_insert_with(|| transport.help_to_read()).read();
            match spin.idle() {
                SpinStep::Poll => std::hint::spin_loop(),
                SpinStep::Yield => std::thread::yield_now(),
                SpinStep::GiveWay => spin.give_way(),
                SpinStep::Park => return find(),
            }
        }
    })
}

/// Notes that the awaited event has come while this thread slept: the time that it took determines how long
/// to look the next time.
pub(crate) fn came() {
    SPIN.with_borrow_mut(Spin::found);
}
