//! A key that `#[gpu_message(..)]` does not have.

use tensorpost::prelude::*;

#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(result = u32)]
struct Frame {
    pixels: Tensor,
}

fn main() {}
