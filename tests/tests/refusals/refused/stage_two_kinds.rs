//! A stage and a source at once.

use tensorpost::prelude::*;

#[derive(Clone, Serialize, Deserialize, GpuMessage)]
struct Frame(Tensor);

#[derive(Default)]
struct Both;

#[stage]
impl Both {
    fn process(&mut self, frame: Frame) -> Frame {
        frame
    }

    fn next(&mut self) -> Option<Frame> {
        None
    }
}

fn main() {}
