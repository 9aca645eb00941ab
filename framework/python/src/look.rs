//! Looking for a while before sleeping: to wake a thread costs more than a message.
//!
//! It is done by threads of Python that wait for a message or a reply, without the interpreter, and only where there are cores to spare:
//! the process's reader looks for what comes on another. How long, and when it is no use, `tensorpost_core` knows ([`Spin`]).

use std::cell::RefCell;

use tensorpost_core::foreign::Transport;
use tensorpost_core::transport::spin::{Spin, Step};

thread_local! {
    static SPIN: RefCell<Spin> = RefCell::new(Spin::new());
}

/// Looks until `there` is, for about as long as waking up would take. Where it is not by then, the caller sleeps.
pub(crate) fn look_for(transport: &Transport, there: impl Fn() -> bool) -> bool {
    if !transport.has_spare_cores() {
        return there();
    }
    SPIN.with_borrow_mut(|spin| {
        loop {
            if there() {
                spin.found();
                return true;
            }
            match spin.idle() {
                Step::Poll => std::hint::spin_loop(),
                Step::Yield => std::thread::yield_now(),
                Step::Park => return false,
            }
        }
    })
}
