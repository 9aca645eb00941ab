//! The actor that uses the products, in another process, and knows their right values.

use futures_util::FutureExt;
use tensorpost::prelude::*;
use tokio::sync::oneshot;

use super::{Multiply, Outcome, Task};

/// The largest error of a right result, relative to the largest entry of the reference. Fifty products in
/// single precision stay below a tenth of it; memory with other contents is off by about one.
const TOLERANCE: f64 = 1e-3;

/// The arguments of a [`Checker`].
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct CheckerArgs {
    /// The matrices that are multiplied.
    pub task: Task,
    /// Whether to skip the waits of this process's streams, to show that they are needed.
    #[cfg(feature = "testing")]
    pub skip_waits: bool,
}

/// Asks for the [`Verdict`] once a number of results have come.
#[derive(Debug, Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Verdict)]
pub struct Tally {
    /// The number of results.
    pub repetitions: u64,
}

/// The outcome of the check.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// Results that came.
    pub checked: u64,
    /// Results that were not within `1e-3` of the reference.
    pub wrong: u64,
    /// The largest error, relative to the reference's largest entry.
    pub worst: f64,
    /// Results that were complete when their message was handled, so that they needed no wait.
    pub early: u64,
    /// Any other error.
    pub error: Option<String>,
}

/// Number of results that are used before the first of them is compared. While the host compares, messages
/// wait, and their tensors may be ready when they are handled. The test needs messages that come early, so
/// the host compares seldom.
const BATCH: usize = 64;

/// Multiplies every result once more, as soon as its message comes, and later compares the product with one
/// that was computed in double precision.
#[derive(Debug)]
pub struct Checker {
    stream: DeviceStream,
    multiply: Multiply,
    task: Task,
    factor: Tensor,
    references: Vec<Vec<f64>>,
    verdict: Verdict,
    /// Repetitions, with the products of their results.
    used: Vec<(u64, Tensor)>,
    asked: Option<(u64, oneshot::Sender<Verdict>)>,
}

impl Actor for Checker {
    type Context = Context<Self>;
}

impl RemoteActor for Checker {
    type Args = CheckerArgs;

    fn create(args: CheckerArgs, env: &Env) -> anyhow::Result<Self> {
        let (stream, task) = (env.stream(), args.task);
        let multiply = Multiply::new(&stream)?;
        let factor = stream.from_slice(&[task.size, task.size], &task.factor())?.freeze();
        multiply.product(&stream, &factor, &factor)?;
        stream.synchronize()?;
        let references = task.references(1);
        #[cfg(feature = "testing")]
        tensorpost::testing::skip_waits(args.skip_waits);
        Ok(Checker {
            stream,
            multiply,
            task,
            factor,
            references,
            verdict: Verdict::default(),
            used: Vec::new(),
            asked: None,
        })
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Outcome>().message::<Tally>();
    }
}

impl Handler<Outcome> for Checker {
    type Result = ();

    fn handle(&mut self, outcome: Outcome, _: &mut Context<Self>) {
        if let Err(error) = self.take(&outcome) {
            self.verdict.error = Some(format!("{error:#}"));
        }
        if self.used.len() >= BATCH {
            self.compare();
        }
        self.answer();
    }
}

impl Handler<Tally> for Checker {
    type Result = ResponseFuture<Verdict>;

    fn handle(&mut self, tally: Tally, _: &mut Context<Self>) -> Self::Result {
        let (answer, verdict) = oneshot::channel();
        self.asked = Some((tally.repetitions, answer));
        self.answer();
        async { verdict.await.unwrap_or_default() }.boxed_local()
    }
}

impl Checker {
    /// Puts the use of a result on the stream, and does not wait for the device.
    fn take(&mut self, outcome: &Outcome) -> anyhow::Result<()> {
        let matrix = &outcome.result.matrix;
        anyhow::ensure!(outcome.result.count == self.task.products, "a chain of another length");
        anyhow::ensure!(matrix.shape() == [self.task.size; 2], "a matrix of shape {:?}", matrix.shape());
        self.verdict.early += u64::from(matrix.status() == TensorStatus::Ready);
        let used = self.multiply.product(&self.stream, &self.factor, matrix)?;
        self.used.push((outcome.repetition, used));
        Ok(())
    }

    /// Compares all used results with the references.
    fn compare(&mut self) {
        for (repetition, used) in std::mem::take(&mut self.used) {
            match self.error_of(repetition, &used) {
                Ok(error) => {
                    self.verdict.wrong += u64::from(error > TOLERANCE);
                    self.verdict.worst = self.verdict.worst.max(error);
                    self.verdict.checked += 1;
                }
                Err(error) => self.verdict.error = Some(error.to_string()),
            }
        }
    }

    /// Returns the largest error, relative to the reference's largest entry; infinite where an entry is no
    /// number.
    fn error_of(&self, repetition: u64, used: &Tensor) -> Result<f64, TensorError> {
        let found = self.stream.download::<f32>(used)?;
        let reference = &self.references[self.task.start_of(repetition)];
        let largest = reference.iter().fold(f64::MIN_POSITIVE, |largest, value| largest.max(value.abs()));
        let error = found.iter().zip(reference).fold(0.0_f64, |worst, (found, wanted)| {
            let error = (f64::from(*found) - wanted).abs();
            if error.is_nan() { f64::INFINITY } else { worst.max(error) }
        });
        Ok(error / largest)
    }

    fn answer(&mut self) {
        let come = self.verdict.checked + self.used.len() as u64;
        if self.asked.as_ref().is_none_or(|(repetitions, _)| come < *repetitions) {
            return;
        }
        self.compare();
        if let Some((_, answer)) = self.asked.take() {
            // The asker may have given up.
            let _ = answer.send(self.verdict.clone());
        }
    }
}
