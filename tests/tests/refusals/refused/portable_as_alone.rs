//! What a field is in a portable message, in one that is not.

use tensorpost::prelude::*;

#[derive(Serialize, Deserialize, GpuMessage)]
struct Frame {
    #[portable(as = u32)]
    size: u32,
}

fn main() {}
