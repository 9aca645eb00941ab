//! Everything that is wrong is reported at once.

use tensorpost::prelude::*;

#[derive(Serialize, Deserialize, GpuMessage)]
struct Frame {
    #[tensor(dtype = float)]
    pixels: Tensor,
    #[tensor(rank = 3)]
    mask: Tensor,
}

fn main() {}
