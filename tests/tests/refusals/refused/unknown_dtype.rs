//! A dtype that does not exist: the error lists those that do.

use tensorpost::prelude::*;

#[derive(Serialize, Deserialize, GpuMessage)]
struct Frame {
    #[tensor(dtype = float32)]
    pixels: Tensor,
}

fn main() {}
