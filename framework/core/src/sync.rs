//! The atomics, locks and threads of the code that loom explores. This module takes them from std and from
//! [`os::lock`](crate::os::lock).
//!
//! The models (`tests/loom_*.rs`) compile the very files that use this module, with a `sync` of their own in
//! its place. So such a file takes everything that threads share from here, and has no test module in it.

pub(crate) use std::sync::Arc;
pub(crate) use std::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};
pub(crate) use std::thread;

pub(crate) use crate::os::lock::{Condvar, Mutex, MutexGuard};
