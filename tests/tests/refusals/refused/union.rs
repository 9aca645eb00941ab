//! A union.

use tensorpost::prelude::*;

#[derive(GpuMessage)]
union Frame {
    id: u64,
    bits: [u8; 8],
}

fn main() {}
