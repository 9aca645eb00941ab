//! Borrowed fields, each with what to own instead. (serde is left out: it has errors of its own to add.)

use tensorpost::prelude::*;

#[derive(GpuMessage)]
struct Frame {
    label: &'static str,
    bytes: Option<&'static [u8]>,
    pixels: Tensor,
}

fn main() {}
