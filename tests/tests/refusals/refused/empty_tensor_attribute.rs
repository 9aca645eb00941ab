//! A check that asks for nothing.

use tensorpost::prelude::*;

#[derive(Serialize, Deserialize, GpuMessage)]
struct Frame {
    #[tensor]
    pixels: Tensor,
}

fn main() {}
