//! A device that does not exist, in a field of a tuple variant.

use tensorpost::prelude::*;

#[derive(Serialize, Deserialize, GpuMessage)]
enum Job {
    Stop,
    Blur(u32, #[tensor(device = gpu)] Tensor),
}

fn main() {}
