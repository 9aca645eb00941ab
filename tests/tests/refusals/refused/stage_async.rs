//! A stage that would have to wait on the thread of all, and the way that there is.

use tensorpost::prelude::*;

#[derive(Clone, Serialize, Deserialize, GpuMessage)]
struct Frame(Tensor);

struct Invert;

#[stage]
impl Invert {
    async fn create() -> anyhow::Result<Self> {
        Ok(Invert)
    }

    async fn process(&mut self, frame: Frame) -> anyhow::Result<Frame> {
        Ok(frame)
    }
}

fn main() {}
