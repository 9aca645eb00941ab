//! Tensors that go back to Python libraries, whose deleters need the interpreter.
//!
//! Such a tensor is dropped on a Rust thread: on the reader's, when the last lease on it is given back, or on
//! the core's collector. If that thread took the interpreter, it would take it from the thread that handles
//! messages, in the middle of a message; then each would wait for the other, and waking up costs more than
//! the message. So the tensor is only put here. A Python thread drops it at its next message, when it has the
//! interpreter anyway ([`clear`]). If no Python thread has a message within a [`TICK`], or one waits for
//! memory to come back, a thread of this module takes the interpreter and drops the tensor.
//!
//! **Invariants.** A tensor that was put here is dropped once, with the interpreter, or stays until the
//! process ends ([`capsule::drop_with_interpreter`]). `put` never waits: it may be called with locks of the
//! core held (LEASE-2).
//!
//! **Locks.** The list's, for as long as it takes to move a tensor; nothing is dropped under it.
//!
//! **A forked child** has a list of its own, and leaves its parent's as it is.

use std::any::Any;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use pyo3::prelude::*;
use tensorpost_core::os::PerProcess;
use tensorpost_core::os::lock::{Condvar, Mutex};

use crate::capsule;
use crate::failure::exception;

/// How long a tensor here waits for a Python thread. Waking this module's thread costs a few microseconds,
/// and is not done for each message.
const TICK: Duration = Duration::from_millis(1);

/// After so many ticks without a tensor the thread sleeps until one comes.
const IDLE_TICKS: u32 = 100;

type Held = Box<dyn Any + Send>;

#[derive(Default)]
struct State {
    held: Vec<Held>,
    /// How often a Python thread has taken all tensors.
    cleared: u64,
    /// Whether this module's thread sleeps and must be woken.
    sleeps: bool,
}

#[derive(Default)]
struct List {
    state: Mutex<State>,
    changed: Condvar,
    /// The number of tensors here. It is written under the lock, and read without it.
    count: AtomicUsize,
    /// Python threads that sleep in a send or an ask, which may wait for memory to come back.
    waiting: AtomicUsize,
    /// Whether this module's thread runs.
    opened: OnceLock<Result<(), String>>,
}

static LIST: PerProcess<List> = PerProcess::new(List::default);

/// Starts this module's thread, before a tensor is made that will be put here.
pub(crate) fn open(py: Python<'_>) -> PyResult<()> {
    let list = LIST.get();
    let opened = list.opened.get_or_init(|| {
        let thread = std::thread::Builder::new().name("tp-drop".to_owned());
        thread.spawn(|| run(list)).map(drop).map_err(|error| error.to_string())
    });
    opened.clone().map_err(|why| {
        let why = format!("the system gave no thread to let go of other libraries' tensors on: {why}");
        exception(py, "TensorError", why)
    })
}

/// Puts here a value that must be dropped with the interpreter. Never waits.
pub(crate) fn put(held: Held) {
    let list = LIST.get();
    let wakes = {
        let mut state = list.state.lock();
        state.held.push(held);
        list.count.store(state.held.len(), Ordering::Relaxed);
        state.sleeps || list.waiting.load(Ordering::Relaxed) > 0
    };
    if wakes {
        list.changed.notify_one();
    }
}

/// Drops all values here. Python threads call it at each message that they handle or send.
#[inline]
pub(crate) fn clear(_: Python<'_>) {
    let list = LIST.get();
    if list.count.load(Ordering::Relaxed) > 0 {
        let held = {
            let mut state = list.state.lock();
            state.cleared += 1;
            list.take(&mut state)
        };
        drop(held);
    }
}

impl List {
    fn take(&self, state: &mut State) -> Vec<Held> {
        self.count.store(0, Ordering::Relaxed);
        std::mem::take(&mut state.held)
    }
}

/// Marks that a Python thread sleeps in a send or an ask: a value that is put here meanwhile is dropped at
/// once.
pub(crate) struct Waiting(&'static List);

impl Waiting {
    pub(crate) fn begin(py: Python<'_>) -> Self {
        let list = LIST.get();
        list.waiting.fetch_add(1, Ordering::Relaxed);
        // After the count: a value that is put later wakes the thread that drops it. A value in between waits
        // for a tick.
        clear(py);
        Waiting(list)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Runs this module's thread.
fn run(list: &List) {
    let mut idle = 0;
    let mut state = list.state.lock();
    loop {
        if state.held.is_empty() {
            idle += 1;
            while idle > IDLE_TICKS && state.held.is_empty() {
                state.sleeps = true;
                list.changed.wait(&mut state);
            }
            state.sleeps = false;
        }
        if !state.held.is_empty() {
            idle = 0;
        }
        let cleared = state.cleared;
        let is_urgent = |state: &State| !state.held.is_empty() && list.waiting.load(Ordering::Relaxed) > 0;
        if !is_urgent(&state) {
            list.changed.wait_for(&mut state, TICK);
        }
        if !state.held.is_empty() && (state.cleared == cleared || is_urgent(&state)) {
            let held = list.take(&mut state);
            drop(state);
            capsule::drop_with_interpreter(held);
            state = list.state.lock();
        }
    }
}
