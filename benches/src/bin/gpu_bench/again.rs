//! The time from the death of a stage until it serves again, with a spare worker and without.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process};
use tensorpost::actor::Lifecycle;
use tensorpost::node::{Spawned, WorkerState};
use tensorpost::prelude::*;

use crate::WAIT_FOR_ANSWER;
use crate::kernels::Kernels;
use crate::outcome::Outcome;
use crate::report::median;

/// Elements of the tensor that is made for each question.
const ELEMENTS: usize = 1 << 10;

/// A stage that makes a tensor with a kernel.
pub(crate) struct Mortal {
    stream: DeviceStream,
    kernels: Kernels,
}

/// "Make one." The reply is the process, sent when the device has finished.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Outcome<u32>)]
pub(crate) struct Serve;

/// "Panic." The actor never replies.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Outcome<u32>)]
pub(crate) struct Die;

impl Actor for Mortal {
    type Context = Context<Self>;
}

impl RemoteActor for Mortal {
    type Args = ();

    fn create((): (), env: &Env) -> anyhow::Result<Self> {
        let stream = env.stream();
        Ok(Mortal { kernels: Kernels::load(&stream)?, stream })
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Serve>();
        on.message::<Die>();
    }
}

impl Mortal {
    fn serve(&self) -> anyhow::Result<u32> {
        let mut tensor = self.stream.empty(DType::F32, &[ELEMENTS])?;
        self.kernels.fill(&self.stream, &mut tensor, 3.0, Duration::ZERO)?;
        let found = self.stream.download::<f32>(&tensor.freeze())?;
        anyhow::ensure!(found.iter().all(|found| *found == 3.0), "the tensor is wrong");
        Ok(std::process::id())
    }
}

impl Handler<Serve> for Mortal {
    type Result = Outcome<u32>;

    fn handle(&mut self, _: Serve, _: &mut Context<Self>) -> Self::Result {
        self.serve().map_err(|error| format!("{error:#}"))
    }
}

impl Handler<Die> for Mortal {
    type Result = Outcome<u32>;

    fn handle(&mut self, _: Die, _: &mut Context<Self>) -> Self::Result {
        panic!("as it was told")
    }
}

/// How the stage ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// By `SIGKILL`, with nothing under way.
    Killed,
    /// By a panic: its process exits.
    Panics,
}

/// A stage on a node of its own, and how long it was away each time.
pub(crate) struct Again {
    node: Node,
    stage: Spawned<Mortal>,
    spares: u32,
    /// From the death until the node has seen the end of the process, until the next life has begun, and
    /// until that life has served, in microseconds.
    times: [Vec<f64>; 3],
}

/// The steps that are timed, by the suffixes of their rows' names; the last is the row itself.
pub(crate) const STEPS: [&str; 3] = [".down", ".up", ""];

impl Again {
    pub(crate) fn start(node: Node, device: &Device, spares: u32) -> anyhow::Result<Self> {
        // Each death is the first one in its window, so the backoff is that of a first restart: 10 ms.
        let policy = Restart::on_failure(1).within(Duration::from_millis(1));
        let stage = node.spawn::<Mortal>(()).name("mortal").device(device.clone());
        let stage = stage.restart(policy).spares(spares).start()?;
        Ok(Again { node, stage, spares, times: Default::default() })
    }

    pub(crate) fn measure(&mut self, end: End) -> anyhow::Result<()> {
        self.await_spares()?;
        let mut watch = self.node.watch(&self.stage.address::<Serve>());
        let before = self.serve()?;
        let mut times = std::mem::take(&mut self.times);
        let start = Instant::now();
        match end {
            End::Killed => {
                let pid = Pid::from_raw(before.cast_signed()).context("no such process")?;
                kill_process(pid, Signal::KILL)?;
            }
            // The answer is an error: there is no reply.
            End::Panics => drop(self.node.block_on(self.stage.ask(Die))),
        }
        // The ask is made at once, so that it is served first.
        let (after, served) = std::thread::scope(|scope| -> anyhow::Result<_> {
            let serving = scope.spawn(|| self.serve_next(before).map(|after| (after, start.elapsed())));
            for times in &mut times[..2] {
                match watch.blocking_recv() {
                    Some(Lifecycle::Down { .. } | Lifecycle::Up { .. }) => {
                        times.push(start.elapsed().as_secs_f64() * 1e6);
                    }
                    other => anyhow::bail!("it does not come back: {other:?}"),
                }
            }
            serving.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })?;
        times[2].push(served.as_secs_f64() * 1e6);
        self.times = times;
        anyhow::ensure!(after != before, "it has not ended");
        Ok(())
    }

    /// Asks until another process answers.
    fn serve_next(&self, before: u32) -> anyhow::Result<u32> {
        loop {
            let now = self.serve()?;
            if now != before {
                return Ok(now);
            }
        }
    }

    /// Asks until there is an answer.
    fn serve(&self) -> anyhow::Result<u32> {
        let until = Instant::now() + WAIT_FOR_ANSWER;
        loop {
            match self.node.block_on(self.stage.ask(Serve)) {
                Ok(served) => return served.map_err(anyhow::Error::msg),
                Err(error) if error.is_retryable() && Instant::now() < until => {}
                Err(error) => return Err(anyhow::anyhow!("{error}")),
            }
        }
    }

    fn await_spares(&self) -> anyhow::Result<()> {
        let until = Instant::now() + WAIT_FOR_ANSWER;
        let is_ready = WorkerState::Spare { of: self.stage.worker(), ready: true };
        loop {
            let workers = self.node.workers();
            if workers.iter().filter(|worker| worker.state == is_ready).count() == self.spares as usize {
                return Ok(());
            }
            anyhow::ensure!(Instant::now() < until, "there is no spare: {workers:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Returns the medians of the [`STEPS`].
    pub(crate) fn medians(&mut self) -> [f64; 3] {
        self.times.each_mut().map(|times| median(times))
    }
}
