//! What the C library's allocator does with memory that was freed.
//!
//! By itself it asks the system for each allocation from 128 KiB on, and gives it back when it is freed: a message of a megabyte is
//! then a quarter of a thousand page faults for its receiver, each time, which takes longer than to copy it. A worker that gets such
//! messages gets more of them. So here somewhat larger ones come from memory that the process keeps, up to a bound.
//!
//! Used by a worker when it begins. The process of the node is the user's, and stays as it is.

#![expect(unsafe_code, reason = "sets numbers of the C library")]

/// Larger allocations are given back to the system at once, in bytes.
#[cfg(target_env = "gnu")]
const KEPT_SIZE: i32 = 4 << 20;
/// So many free bytes at the end of the heap are kept.
#[cfg(target_env = "gnu")]
const KEPT_BYTES: i32 = 16 << 20;

/// By these a user says it otherwise.
#[cfg(target_env = "gnu")]
const VARIABLES: [&str; 3] = ["MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"];

/// Keeps freed memory for the next message, unless the environment says how it is to be.
pub fn keep_freed() {
    #[cfg(target_env = "gnu")]
    if VARIABLES.iter().all(|name| std::env::var_os(name).is_none()) {
        // SAFETY: it sets a number under the allocator's own lock; of values that it does not take it says so, and nothing changes.
        let set = |number, value| unsafe { libc::mallopt(number, value) } != 0;
        if !set(libc::M_MMAP_THRESHOLD, KEPT_SIZE) || !set(libc::M_TRIM_THRESHOLD, KEPT_BYTES) {
            tracing::debug!("the allocator gives freed memory back as ever");
        }
    }
}
