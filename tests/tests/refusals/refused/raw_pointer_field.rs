//! A raw pointer.

use tensorpost::prelude::*;

#[derive(GpuMessage)]
struct Frame {
    data: *const f32,
    pixels: Tensor,
}

fn main() {}
