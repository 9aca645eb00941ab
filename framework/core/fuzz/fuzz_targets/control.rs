//! Anything that workers say on their control sockets, as the node takes it (WIRE-1, MBX-2, LEASE-4). See
//! `framework/core/src/testing/fuzz/control.rs`.

#![no_main]

mod growth;

use libfuzzer_sys::fuzz_target;
use tensorpost_core::testing::fuzz::control::{Files, play};

thread_local! {
    static FILES: Files = Files::create();
}

fuzz_target!(|data: &[u8]| {
    FILES.with(|files| {
        // A message of at most 2 MiB in its forms: drawn, encoded, read, written and read again; and what 96
        // of them make the node keep.
        growth::bounded(32 << 20, 1 << 16, || {
            play(files, data);
        });
    });
});
