//! A check on a field that is not sent.

use tensorpost::prelude::*;

#[derive(Serialize, Deserialize, GpuMessage)]
struct Frame {
    #[serde(skip)]
    #[tensor(dtype = f32)]
    pixels: Option<Tensor>,
}

fn main() {}
