//! A writable tensor, at the top and inside a container.

use tensorpost::prelude::*;

#[derive(GpuMessage)]
struct Frame {
    pixels: TensorMut,
    regions: Vec<(u32, Option<TensorMut>)>,
}

fn main() {}
