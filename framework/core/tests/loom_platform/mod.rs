//! Loom's memory under the production protocols, and the runners of models, those that must fail included.

#[allow(dead_code, reason = "some models explore code that is generic over its platform")]
pub(crate) mod sync;

use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use loom::cell::Cell;
use loom::sync::atomic::{AtomicU64, fence};
use loom::sync::{Condvar, Mutex};
use tensorpost_core::transport::ring::{Bytes, Platform, Word};

/// Loom's atomics, and bytes whose every access loom checks for a race.
#[derive(Debug)]
#[allow(dead_code, reason = "models of what is not generic take `sync`")]
pub(crate) struct Loom;

impl Platform for Loom {
    type Word = LoomWord;
    type Bytes = LoomBytes;

    fn fence_seq_cst() {
        fence(Ordering::SeqCst);
    }
}

#[derive(Clone, Debug)]
#[allow(dead_code, reason = "as above")]
pub(crate) struct LoomWord(Arc<AtomicU64>);

#[allow(dead_code, reason = "as above")]
impl LoomWord {
    pub(crate) fn zero() -> Self {
        LoomWord(Arc::new(AtomicU64::new(0)))
    }
}

impl Word for LoomWord {
    fn load(&self, order: Ordering) -> u64 {
        self.0.load(order)
    }

    fn store(&self, value: u64, order: Ordering) {
        self.0.store(value, order);
    }
}

/// Each 8 bytes are a cell.
#[derive(Clone, Debug)]
pub(crate) struct LoomBytes(Arc<Cells>);

#[derive(Debug)]
struct Cells(Vec<Cell<u64>>);

// `Cell` is never `Sync`; loom's cell has to be shared so that loom can see a race.
#[expect(
    unsafe_code,
    reason = "sharing unsynchronised cells between the model's threads is what is under test"
)]
mod shared {
    // SAFETY: loom runs one thread of a model at a time, and panics on the first access to a cell that
    // another thread's access does not happen before.
    unsafe impl Sync for super::Cells {}
    // SAFETY: as above; the cells are plain numbers.
    unsafe impl Send for super::Cells {}
}

impl LoomBytes {
    pub(crate) fn zeroed(len: usize) -> Self {
        LoomBytes(Arc::new(Cells((0..len / 8).map(|_| Cell::new(0)).collect())))
    }

    fn cell(&self, offset: usize) -> &Cell<u64> {
        &self.0.0[offset / 8]
    }
}

impl Bytes for LoomBytes {
    fn read(&self, offset: usize, into: &mut [u8]) {
        for (i, chunk) in into.chunks_mut(8).enumerate() {
            chunk.copy_from_slice(&self.cell(offset + 8 * i).get().to_ne_bytes()[..chunk.len()]);
        }
    }

    fn write(&self, offset: usize, from: &[u8]) {
        for (i, chunk) in from.chunks(8).enumerate() {
            let mut bytes = [0; 8];
            bytes[..chunk.len()].copy_from_slice(chunk);
            self.cell(offset + 8 * i).set(u64::from_ne_bytes(bytes));
        }
    }

    fn read_word(&self, offset: usize) -> u64 {
        self.cell(offset).get()
    }

    fn write_word(&self, offset: usize, value: u64) {
        self.cell(offset).set(value);
    }

    fn len(&self) -> usize {
        self.0.0.len() * 8
    }
}

/// Models the eventfd: it keeps a ring from before the sleep, and merges several into one. (Loom's parking
/// does not fit: its `unpark` also ends a `join`.)
#[derive(Clone)]
#[allow(dead_code, reason = "not every model sleeps")]
pub(crate) struct Bell(Arc<(Mutex<bool>, Condvar)>);

#[allow(dead_code, reason = "as above")]
impl Bell {
    pub(crate) fn new() -> Self {
        Bell(Arc::new((Mutex::new(false), Condvar::new())))
    }

    pub(crate) fn ring(&self) {
        *self.0.0.lock().expect("no thread panicked") = true;
        self.0.1.notify_one();
    }

    pub(crate) fn wait(&self) {
        let mut rung = self.0.0.lock().expect("no thread panicked");
        while !*rung {
            rung = self.0.1.wait(rung).expect("no thread panicked");
        }
        *rung = false;
    }
}

/// Explores every interleaving. With a bound, explores those with at most `preemptions` switches away from a
/// thread that could have gone on, and any number of other switches.
pub(crate) fn explore(preemptions: Option<usize>, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.check(model);
}

/// Runs `model` and returns what loom found wrong with it.
///
/// Panics if loom finds nothing: then the barrier that was taken away was never needed, or the model is
/// blind.
pub(crate) fn failure_of(preemptions: Option<usize>, model: impl Fn() + Send + Sync + 'static) -> String {
    let found = panic::catch_unwind(AssertUnwindSafe(|| explore(preemptions, model)))
        .expect_err("loom found nothing wrong without the barrier");
    match found.downcast::<String>() {
        Ok(message) => *message,
        Err(other) => (*other.downcast::<&str>().expect("a panic with a message")).to_owned(),
    }
}
