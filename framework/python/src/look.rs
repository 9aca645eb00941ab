//! Looking for a while before sleeping: to wake a thread costs more than a message.
//!
//! It is done by threads that wait for a message, a reply or the answer of another thread, without the
//! interpreter, and only where there are cores to spare. How long, and when it is no use, `tensorpost_core`
//! knows ([`Spin`]). A thread is patient, as the reader is: where what it waits for comes at intervals, such
//! as the time of a kernel, it looks through them.

use std::cell::RefCell;
use std::sync::Arc;

use tensorpost_core::foreign::Transport;
use tensorpost_core::transport::spin::{Spin, Step};

thread_local! {
    static SPIN: RefCell<Spin> = RefCell::new(patient());
}

fn patient() -> Spin {
    let mut spin = Spin::new();
    spin.set_patient(true);
    spin
}

/// Looks until `find` has found something, for about as long as waking up would take, and reads for the
/// process meanwhile: what comes for this thread does not cross from another's core then. Where it has not by
/// then, the caller sleeps, and says when it has [come](came).
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
            // What it finds for others is no reason to look for longer: deadlines and signals wait.
            helper.get_or_insert_with(|| transport.help_to_read()).look();
            match spin.idle() {
                Step::Poll => std::hint::spin_loop(),
                Step::Yield => std::thread::yield_now(),
                Step::GiveWay => spin.give_way(),
                Step::Park => return find(),
            }
        }
    })
}

/// What this thread slept for is there: how long that took says how long to look the next time.
pub(crate) fn came() {
    SPIN.with_borrow_mut(Spin::found);
}
