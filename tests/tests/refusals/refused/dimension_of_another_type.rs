//! A dimension that is a constant, but no `usize`.

use tensorpost::prelude::*;

const CHANNELS: i32 = 3;

#[derive(Serialize, Deserialize, GpuMessage)]
struct Frame {
    #[tensor(shape = [CHANNELS, _])]
    pixels: Tensor,
}

fn main() {}
