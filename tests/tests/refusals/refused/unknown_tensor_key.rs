//! A key that `#[tensor(..)]` does not have.

use tensorpost::prelude::*;

#[derive(Serialize, Deserialize, GpuMessage)]
struct Frame {
    #[tensor(dtypes = f32)]
    pixels: Tensor,
}

fn main() {}
