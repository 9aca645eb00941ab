//! The actor that multiplies.

use futures_util::FutureExt;
use tensorpost::prelude::*;

use super::{Multiply, MultiplyError, Outcome, Products, Task};

/// Multiplies once more, and sends the result on.
#[derive(Debug, Serialize, Deserialize, GpuMessage)]
pub struct Run {
    /// The number of the repetition, which decides the matrix that the chain starts with.
    pub repetition: u64,
}

/// The arguments of a [`Chain`].
#[derive(Debug, Serialize, Deserialize)]
pub struct ChainArgs {
    /// The matrices to multiply.
    pub task: Task,
    /// The receiver of the result.
    pub next: Address<Outcome>,
    /// Bytes that the device copies, four times, before each chain, so that it is still at work when the
    /// result comes, even if the host enqueues products slowly. It needs twice as much memory; 0 for no
    /// copies.
    pub head_start: usize,
}

/// How often the bytes are copied.
const COPIES: usize = 4;

/// Multiplies a matrix by another, again and again, and sends the last product without waiting for any.
#[derive(Debug)]
pub struct Chain {
    stream: DeviceStream,
    multiply: Multiply,
    task: Task,
    factor: Tensor,
    starts: Vec<Tensor>,
    next: Address<Outcome>,
    head_start: Option<(Tensor, TensorMut)>,
}

impl Actor for Chain {
    type Context = Context<Self>;
}

impl RemoteActor for Chain {
    type Args = ChainArgs;

    fn create(args: ChainArgs, env: &Env) -> anyhow::Result<Self> {
        let (stream, task) = (env.stream(), args.task);
        let multiply = Multiply::new(&stream)?;
        let upload = |matrix: Vec<f32>| -> Result<Tensor, TensorError> {
            Ok(stream.from_slice(&[task.size, task.size], &matrix)?.freeze())
        };
        let factor = upload(task.factor())?;
        let starts = task.starts().into_iter().map(upload).collect::<Result<Vec<_>, _>>()?;
        // Load the kernels now: a later load would wait for the stream.
        multiply.product(&stream, &factor, &factor)?;
        let head_start = match args.head_start {
            0 => None,
            bytes => Some((stream.zeros(DType::U8, &[bytes])?.freeze(), stream.empty(DType::U8, &[bytes])?)),
        };
        stream.synchronize()?;
        Ok(Chain { stream, multiply, task, factor, starts, next: args.next, head_start })
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Run>();
    }
}

impl Handler<Run> for Chain {
    /// Resolves when the next mailbox has taken the result, which bounds the results under way.
    type Result = ResponseFuture<()>;

    fn handle(&mut self, run: Run, _: &mut Context<Self>) -> Self::Result {
        let outcome = match self.multiply(run.repetition) {
            Ok(outcome) => outcome,
            Err(error) => {
                // The tally of results shows that one is missing.
                eprintln!("repetition {}: {error}", run.repetition);
                return std::future::ready(()).boxed_local();
            }
        };
        let sent = self.next.send(outcome);
        async move {
            if let Err(error) = sent.await {
                eprintln!("repetition {}: {error}", run.repetition);
            }
        }
        .boxed_local()
    }
}

impl Chain {
    fn multiply(&mut self, repetition: u64) -> Result<Outcome, MultiplyError> {
        if let Some((from, to)) = &mut self.head_start {
            for _ in 0..COPIES {
                self.stream.copy_into(to, 0, from)?;
            }
        }
        let mut matrix = self.starts[self.task.start_of(repetition)].clone();
        for _ in 0..self.task.products {
            matrix = self.multiply.product(&self.stream, &self.factor, &matrix)?;
        }
        Ok(Outcome { repetition, result: Products { count: self.task.products, matrix } })
    }
}
