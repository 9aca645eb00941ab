//! `process` that takes nothing, and ones that make nothing or twice.

use tensorpost::prelude::*;

#[derive(Clone, Serialize, Deserialize, GpuMessage)]
struct Frame(Tensor);

#[derive(Default)]
struct TakesNothing;

#[stage]
impl TakesNothing {
    fn process(&mut self, _: &mut Out<Frame>) -> anyhow::Result<()> {
        Ok(())
    }
}

#[derive(Default)]
struct MakesNothing;

#[stage]
impl MakesNothing {
    fn process(&mut self, _: Frame) -> anyhow::Result<()> {
        Ok(())
    }
}

#[derive(Default)]
struct MakesTwice;

#[stage]
impl MakesTwice {
    fn process(&mut self, frame: Frame, _: &mut Out<Frame>) -> anyhow::Result<Frame> {
        Ok(frame)
    }
}

#[derive(Default)]
struct TakesMore;

#[stage]
impl TakesMore {
    fn process(&mut self, frame: Frame, _: &Env) -> anyhow::Result<Frame> {
        Ok(frame)
    }

    fn finish(&mut self, _: &mut Out<Frame>) -> anyhow::Result<Frame> {
        unreachable!()
    }
}

/// The stage's results cannot be seen through another name.
type Made = Out<Frame>;

#[derive(Default)]
struct SaysNothing;

#[stage]
impl SaysNothing {
    fn process(&mut self, _: Frame, _: &mut Made) -> anyhow::Result<()> {
        Ok(())
    }
}

#[derive(Default)]
struct NeverEnds;

#[stage]
impl NeverEnds {
    fn next(&mut self) -> anyhow::Result<Frame> {
        unreachable!()
    }
}

fn main() {}
