//! A shape without brackets.

use tensorpost::prelude::*;

#[derive(Serialize, Deserialize, GpuMessage)]
struct Frame {
    #[tensor(shape = 3)]
    pixels: Tensor,
}

fn main() {}
