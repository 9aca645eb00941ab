//! Two checks on one field.

use tensorpost::prelude::*;

#[derive(Serialize, Deserialize, GpuMessage)]
struct Frame {
    #[tensor(dtype = f32)]
    #[tensor(device = cuda)]
    pixels: Tensor,
}

fn main() {}
