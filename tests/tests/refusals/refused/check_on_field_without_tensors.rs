//! A check on a field whose type has no tensors in it.

use tensorpost::prelude::*;

#[derive(Serialize, Deserialize, GpuMessage)]
struct Frame {
    #[tensor(dtype = f32)]
    label: String,
    pixels: Tensor,
}

fn main() {}
