//! The same key twice, on a field and on the type.

use tensorpost::prelude::*;

#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = u32, reply = u64)]
struct Frame {
    #[tensor(dtype = f32, dtype = f16)]
    pixels: Tensor,
}

fn main() {}
