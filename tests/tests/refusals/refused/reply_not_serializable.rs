//! A reply that cannot be sent back.

use tensorpost::prelude::*;

struct Stats;

#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Stats)]
struct Frame {
    pixels: Tensor,
}

fn main() {}
