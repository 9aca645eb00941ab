//! The arguments that this program gives to itself when it starts again, as a worker or as the keeper of an MPS daemon.

use std::ffi::OsString;

/// Its own, without its name; in a test under libtest those that lead to that test.
pub(crate) fn arguments() -> Vec<OsString> {
    #[cfg(feature = "testing")]
    if let Some(instead) = instead::get() {
        return instead;
    }
    std::env::args_os().skip(1).collect()
}

/// Other arguments for the nodes that one thread starts.
#[cfg(feature = "testing")]
pub(crate) mod instead {
    use std::cell::RefCell;
    use std::ffi::OsString;

    thread_local! {
        static INSTEAD: RefCell<Option<Vec<OsString>>> = const { RefCell::new(None) };
    }

    pub(super) fn get() -> Option<Vec<OsString>> {
        INSTEAD.with_borrow(Clone::clone)
    }

    /// From now on on this thread; `None` for the program's own again.
    pub(crate) fn set(arguments: Option<Vec<OsString>>) {
        INSTEAD.set(arguments);
    }
}
