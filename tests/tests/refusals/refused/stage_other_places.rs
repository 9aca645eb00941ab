//! Where the attributes do not belong, and what they do not know.

use tensorpost::prelude::*;

#[derive(Clone, Serialize, Deserialize, GpuMessage)]
struct Frame(Tensor);

#[stage]
struct Invert;

#[stage]
impl Sink for Invert {
    type Args = ();
    type In = Frame;

    fn create((): (), _: &Env) -> anyhow::Result<Self> {
        Ok(Invert)
    }

    fn consume(&mut self, _: Frame) -> anyhow::Result<()> {
        Ok(())
    }
}

#[derive(Default)]
struct Show;

#[stage(replicas = 2)]
impl Show {
    fn consume<T>(&mut self, _: Frame) {}
}

#[derive(Default)]
struct Print;

#[stage]
impl Print {
    #[cfg(all())]
    fn consume(&mut self, _: Frame) {}

    fn create() {}
}

#[actor]
fn main() {}
