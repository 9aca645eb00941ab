//! Nothing says how it is made.

use tensorpost::prelude::*;

#[derive(Clone, Serialize, Deserialize, GpuMessage)]
struct Frame(Tensor);

struct Invert(DeviceStream);

#[stage]
impl Invert {
    fn process(&mut self, frame: Frame) -> anyhow::Result<Frame> {
        let _ = &self.0;
        Ok(frame)
    }
}

fn main() {}
