//! A check on the type instead of on a field, and the reverse.

use tensorpost::prelude::*;

#[derive(Serialize, Deserialize, GpuMessage)]
#[tensor(dtype = f32)]
struct Frame {
    #[gpu_message(reply = u32)]
    pixels: Tensor,
}

fn main() {}
