//! State with one writer and many readers: a trainer publishes the weights of a small network after each
//! step. Evaluators in other processes use the latest version, whole, and hold nobody up.
//!
//! `--device cuda:0` keeps the weights on a GPU; candle computes the network itself on the CPU in either
//! case.

mod iris;
mod network;

use clap::Parser;
use iris::Flowers;
use network::{Network, Training, Weights};
use tensorpost::node::Spawned;
use tensorpost::prelude::*;
use tensorpost::published::{Publisher, Subscriber, Topic};
use tensorpost_examples::Place;

const EVALUATORS: usize = 3;

#[derive(Parser)]
struct Options {
    #[command(flatten)]
    place: Place,
    /// Steps of the training, each of which is published
    #[arg(long, default_value_t = 200)]
    steps: u64,
}

/// "Train for this many steps." The reply is the last loss.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Result<f32, String>)]
struct Train {
    steps: u64,
}

struct Trainer {
    stream: DeviceStream,
    weights: Publisher<Weights>,
    learn: Flowers,
}

#[actor]
impl Trainer {
    fn create(weights: Publisher<Weights>, env: &Env) -> anyhow::Result<Self> {
        Ok(Trainer { stream: env.stream(), weights, learn: iris::flowers()?.0 })
    }

    #[handler]
    fn train(&self, Train { steps }: Train) -> ResponseFuture<Result<f32, String>> {
        let (stream, publisher, learn) = (self.stream.clone(), self.weights.clone(), self.learn.clone());
        let train = async move {
            let mut training = Training::new(&learn)?;
            let mut loss = f32::NAN;
            for _ in 0..steps {
                loss = training.step()?;
                // This resolves when the version can be read, and does not wait for readers.
                publisher.publish(training.weights(&stream)?).await?;
            }
            anyhow::Ok(loss)
        };
        Box::pin(async { train.await.map_err(|error| format!("{error:#}")) })
    }
}

/// "Test every version that you have time for, up to this step."
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Result<Report, String>)]
struct Evaluate {
    until: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct Report {
    versions: usize,
    in_order: bool,
    last: u64,
    right_at_first: usize,
    right_at_last: usize,
}

struct Evaluator {
    stream: DeviceStream,
    weights: Subscriber<Weights>,
    test: Flowers,
}

#[actor]
impl Evaluator {
    fn create(env: &Env) -> anyhow::Result<Self> {
        Ok(Evaluator {
            stream: env.stream(),
            weights: Subscriber::follow(env, "weights"),
            test: iris::flowers()?.1,
        })
    }

    #[handler]
    fn evaluate(&self, Evaluate { until }: Evaluate) -> ResponseFuture<Result<Report, String>> {
        let (stream, mut weights, test) = (self.stream.clone(), self.weights.clone(), self.test.clone());
        let evaluate = async move {
            let (mut steps, mut right) = (Vec::new(), Vec::new());
            while steps.last().is_none_or(|last| *last < until) {
                weights.changed().await?;
                // Take the newest version and skip earlier ones; it does not change while this handle lives.
                let Some(version) = weights.latest() else { continue };
                right.push(Network::of(&version.value, &stream)?.right(&test)?);
                steps.push(version.value.step);
            }
            anyhow::Ok(Report {
                versions: steps.len(),
                in_order: steps.is_sorted_by(|a, b| a < b),
                last: steps.last().copied().unwrap_or(0),
                right_at_first: right.first().copied().unwrap_or(0),
                right_at_last: right.last().copied().unwrap_or(0),
            })
        };
        Box::pin(async { evaluate.await.map_err(|error| format!("{error:#}")) })
    }
}

fn main() -> anyhow::Result<()> {
    let Options { place: Place { device, sharing }, steps } = Options::parse();
    let node = Node::builder();
    let node = node.sharing(sharing).start()?;
    let (learn, test) = iris::flowers()?;
    println!("{} irises to learn from, {} to test with", learn.len(), test.len());

    let topic = node.spawn::<Topic<Weights>>(()).name("weights").start()?;
    let weights = Publisher::new(topic.address());
    let trainer = node.spawn::<Trainer>(weights).device(device.clone()).name("trainer").start()?;
    let start = |number| {
        node.spawn::<Evaluator>(()).device(device.clone()).name(format!("evaluator {number}")).start()
    };
    let evaluators = (0..EVALUATORS).map(start).collect::<Result<Vec<_>, _>>()?;

    let (loss, reports) = node.block_on(async {
        // Spawn tasks, so that they run while the program waits for the trainer.
        let evaluate =
            |evaluator: &Spawned<Evaluator>| tokio::spawn(evaluator.address().ask(Evaluate { until: steps }));
        let evaluations: Vec<_> = evaluators.iter().map(evaluate).collect();
        let loss = trainer.address().ask(Train { steps }).await?;
        let mut reports = Vec::new();
        for evaluation in evaluations {
            reports.push(evaluation.await??.map_err(anyhow::Error::msg)?);
        }
        anyhow::Ok((loss.map_err(anyhow::Error::msg)?, reports))
    })?;
    println!("{steps} versions were published; the loss is below 0.1: {}", loss < 0.1);
    for (number, report) in reports.into_iter().enumerate() {
        println!(
            "evaluator {number} came to version {}, in order: {}; it knows 28 of {} or more: {}",
            report.last,
            report.in_order,
            test.len(),
            report.right_at_last >= 28
        );
        eprintln!(
            "it had time for {} versions: {} right at first, {} in the end",
            report.versions, report.right_at_first, report.right_at_last
        );
    }
    Ok(())
}
