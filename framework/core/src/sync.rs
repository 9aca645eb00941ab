//! The atomics, locks and threads of the code that loom explores. Here they are those of std and parking_lot.
//!
//! The models (`tests/loom_*.rs`) compile the very files that use this module, with a `sync` of their own in
//! its place. So such a file takes from here whatever threads share, and no test module stands in it.

pub(crate) use std::sync::Arc;
pub(crate) use std::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};
pub(crate) use std::thread;

pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard};
