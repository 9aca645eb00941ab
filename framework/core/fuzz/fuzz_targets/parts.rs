//! Parts of split tensors among three processes, one of which lies about them (WIRE-1, ONE-WRITER, LEASE-2).
//! See `framework/core/src/testing/fuzz/parts.rs`.

#![no_main]

mod growth;

use libfuzzer_sys::fuzz_target;
use tensorpost_core::testing::fuzz::parts::play;

fuzz_target!(|data: &[u8]| {
    // Three transports. The threads of the last input may be on their way out.
    growth::bounded(64 << 20, 4 << 20, || {
        play(data);
    });
});
