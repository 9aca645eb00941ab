//! A name with nothing in it.

use tensorpost::prelude::*;

#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(name = "")]
struct Frame {
    pixels: Tensor,
}

fn main() {}
