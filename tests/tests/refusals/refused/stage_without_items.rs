//! Neither `process` nor `next` nor `consume`.

use tensorpost::prelude::*;

#[derive(Default)]
struct Invert;

#[stage]
impl Invert {
    fn invert(&mut self) {}
}

fn main() {}
