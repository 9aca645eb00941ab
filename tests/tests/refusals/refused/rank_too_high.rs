//! More dimensions than a tensor can have.

use tensorpost::prelude::*;

#[derive(Serialize, Deserialize, GpuMessage)]
struct Frame {
    #[tensor(shape = [1, 2, 3, 4, 5, 6, 7, 8, 9])]
    pixels: Tensor,
}

fn main() {}
