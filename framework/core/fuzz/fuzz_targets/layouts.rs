//! Any bytes as a layout from a peer, and operations on it (LAYOUT-1 to LAYOUT-3, WIRE-1).

#![no_main]

mod growth;

use libfuzzer_sys::fuzz_target;
use tensorpost_core::tensor::layout::WIRE_BYTES;
use tensorpost_core::testing::fuzz::layouts;

const WORDS: usize = WIRE_BYTES / 8;

/// Half of the inputs are short, and made long: a layout of small numbers is worth more than one of 2^60
/// elements, and few of the 144 bytes of its form matter.
fn small(data: &[u8]) -> Vec<u8> {
    let mut form = vec![0; WIRE_BYTES];
    let Some((&rank, rest)) = data.split_first() else { return form };
    let rank = usize::from(rank % 10);
    form[0] = rest.first().copied().unwrap_or(0) % 16;
    form[1] = rank as u8;
    for axis in 0..rank.min(8) {
        form[8 * (2 + axis)] = rest.get(1 + axis).copied().unwrap_or(1) % 8;
        form[8 * (2 + (WORDS - 2) / 2 + axis)] = rest.get(9 + axis).copied().unwrap_or(1) % 64;
    }
    form[8] = rest.get(17).copied().unwrap_or(0);
    form
}

fuzz_target!(|data: &[u8]| {
    let Some((&how, data)) = data.split_first() else { return };
    // Everything is small; what is listed is bounded.
    growth::bounded(1 << 20, 1 << 16, || {
        if how & 1 == 0 {
            layouts::look(&small(data), data.get(19..).unwrap_or_default());
        } else {
            let (form, operations) = data.split_at(data.len().min(WIRE_BYTES));
            layouts::look(form, operations);
        }
    });
});
