//! A message without the serde derives.

use tensorpost::prelude::*;

#[derive(GpuMessage)]
struct Frame {
    pixels: Tensor,
}

fn main() {}
