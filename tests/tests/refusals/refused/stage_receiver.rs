//! The wrong receivers, all of them named at once.

use tensorpost::prelude::*;

#[derive(Clone, Serialize, Deserialize, GpuMessage)]
struct Frame(Tensor);

#[derive(Default)]
struct Invert;

#[stage]
impl Invert {
    fn create(&self) -> Self {
        Invert
    }

    fn process(self, frame: Frame) -> Frame {
        frame
    }

}

#[derive(Default)]
struct Wait;

#[stage]
impl Wait {
    fn process(&mut self, frame: Frame) -> Frame {
        frame
    }

    fn wake_at(&mut self) -> Option<std::time::Instant> {
        None
    }

    fn finish() {}
}

fn main() {}
