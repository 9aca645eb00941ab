//! A field's portable form in a message that is not portable.

use tensorpost::prelude::*;

#[derive(Serialize, Deserialize, GpuMessage)]
struct Frame {
    #[portable(as = u32)]
    size: u32,
}

fn main() {}
