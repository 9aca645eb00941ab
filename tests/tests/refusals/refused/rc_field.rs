//! A type that cannot leave its thread.

use tensorpost::prelude::*;

#[derive(GpuMessage)]
struct Frame {
    labels: std::rc::Rc<Vec<String>>,
    pixels: Tensor,
}

fn main() {}
