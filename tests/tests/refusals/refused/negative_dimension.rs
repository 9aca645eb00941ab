//! A dimension below zero.

use tensorpost::prelude::*;

#[derive(Serialize, Deserialize, GpuMessage)]
struct Frame {
    #[tensor(shape = [3, -1])]
    pixels: Tensor,
}

fn main() {}
