//! A writable tensor in the reply.

use tensorpost::prelude::*;

#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Vec<TensorMut>)]
struct Frame {
    pixels: Tensor,
}

fn main() {}
