//! What `#[tensorpost::test]` puts before the body of a test.
//!
//! A worker is the program again from its beginning. The program of a test is libtest's: with the arguments that it was
//! given, a worker would run all tests that the node runs. So the workers of such a test get the arguments that have
//! libtest run this test and no other; there it comes to the start of its node, from which a worker does not return.

use std::ffi::OsString;

use parking_lot::{Mutex, MutexGuard};

use crate::fault;
use crate::node::arguments::instead;

/// Faults are armed, and leaks counted, in the process as a whole.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// While it is there, nodes that this thread starts have workers that run this test. On drop the next test begins.
#[derive(Debug)]
pub struct Begun {
    _turn: MutexGuard<'static, ()>,
}

/// Begins the test whose path is `path`, with the name of its crate in front, on this thread.
pub fn begin(path: &str) -> Begun {
    let turn = ONE_AT_A_TIME.lock();
    // libtest's names have no crate in front.
    let name = path.split_once("::").map_or(path, |(_, name)| name);
    let arguments = [name, "--exact", "--include-ignored", "--nocapture", "--test-threads=1", "--quiet"];
    instead::set(Some(arguments.map(OsString::from).to_vec()));
    Begun { _turn: turn }
}

impl Drop for Begun {
    fn drop(&mut self) {
        instead::set(None);
        fault::disarm();
    }
}
