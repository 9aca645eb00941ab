//! Weights that are trained in Python and used in Rust: a trainer with PyTorch publishes them after each
//! step. Evaluators in other processes use the latest version, whole, and do not hold the trainer up.
//!
//! It needs Python with the package `tensorpost` and PyTorch (`TENSORPOST_PYTHON` names another interpreter
//! than the active one), and says so in one line where these are missing. `--device cuda:0` trains, and keeps
//! the weights, on a GPU.

#[path = "../12-shared-weights/iris.rs"]
mod iris;

use clap::Parser;
use iris::{FEATURES, Flowers, SPECIES};
use tensorpost::actor::Python;
use tensorpost::node::Spawned;
use tensorpost::prelude::*;
use tensorpost::published::{Subscriber, Topic};
use tensorpost_examples::{Place, lacks_python};

const MODULES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/bin/17-python-trainer");
const EVALUATORS: usize = 2;

#[derive(Parser)]
struct Options {
    #[command(flatten)]
    place: Place,
    /// Steps of the training, each of which is published
    #[arg(long, default_value_t = 200)]
    steps: u64,
}

/// `Weights` in `trainer.py`.
#[derive(Clone, Serialize, Deserialize, GpuMessage)]
#[gpu_message(portable)]
struct Weights {
    step: u64,
    #[tensor(dtype = f32, shape = [3, 4])]
    factors: Tensor,
    #[tensor(dtype = f32, shape = [3])]
    offsets: Tensor,
}

/// "Train for this many steps." The reply is the last loss.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(portable, reply = f64)]
struct Train {
    steps: u64,
    #[tensor(dtype = f32, shape = [_, 4])]
    lengths: Tensor,
    species: Vec<u32>,
}

/// "Test every version that you have time for, up to this step."
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Result<Report, String>)]
struct Evaluate {
    until: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct Report {
    in_order: bool,
    last: u64,
    right: usize,
}

struct Evaluator {
    stream: DeviceStream,
    weights: Subscriber<Weights>,
    test: Flowers,
}

#[actor]
impl Evaluator {
    fn create(env: &Env) -> anyhow::Result<Self> {
        let weights = Subscriber::follow(env, "weights");
        Ok(Evaluator { stream: env.stream(), weights, test: iris::flowers()?.1 })
    }

    #[handler]
    fn evaluate(&self, Evaluate { until }: Evaluate) -> ResponseFuture<Result<Report, String>> {
        let (stream, mut weights, test) = (self.stream.clone(), self.weights.clone(), self.test.clone());
        let evaluate = async move {
            let (mut steps, mut right) = (Vec::new(), 0);
            while steps.last().is_none_or(|last| *last < until) {
                weights.changed().await?;
                // Take the newest version and skip earlier ones; it does not change while this handle lives.
                let Some(version) = weights.latest() else { continue };
                right = known(&version.value, &stream, &test)?;
                steps.push(version.value.step);
            }
            let in_order = steps.is_sorted_by(|one, next| one < next);
            anyhow::Ok(Report { in_order, last: steps.last().copied().unwrap_or(0), right })
        };
        Box::pin(async { evaluate.await.map_err(|error| format!("{error:#}")) })
    }
}

/// Returns how many of the flowers are classified correctly: as the species with the largest of three sums.
fn known(weights: &Weights, stream: &DeviceStream, flowers: &Flowers) -> anyhow::Result<usize> {
    let factors: Vec<f32> = stream.download(&weights.factors)?;
    let offsets: Vec<f32> = stream.download(&weights.offsets)?;
    let guess = |lengths: &[f32]| {
        let sum = |species: usize| {
            let factors = &factors[species * FEATURES..][..FEATURES];
            offsets[species]
                + factors.iter().zip(lengths).map(|(factor, length)| factor * length).sum::<f32>()
        };
        (0..SPECIES.len()).max_by(|one, other| sum(*one).total_cmp(&sum(*other)))
    };
    let flowers = flowers.lengths.chunks_exact(FEATURES).zip(&flowers.species);
    Ok(flowers.filter(|(lengths, species)| guess(lengths) == Some(**species as usize)).count())
}

fn main() -> anyhow::Result<()> {
    let Options { place: Place { device, sharing }, steps } = Options::parse();
    if let Some(lack) = lacks_python("torch") {
        println!("left out: {lack}");
        return Ok(());
    }
    let node = Node::builder().sharing(sharing).start()?;
    let topic = node.spawn::<Topic<Weights>>(()).name("weights").start()?;
    let evaluators = (0..EVALUATORS)
        .map(|_| node.spawn::<Evaluator>(()).device(device.clone()).start())
        .collect::<Result<Vec<_>, _>>()?;
    let python = Python::actor("trainer:Trainer").path(MODULES).args((topic.address::<Weights>(),));
    let trainer = node.spawn::<Python>(python).device(device.clone()).start()?;
    let (learn, test) = iris::flowers()?;
    let lengths = node.host_stream()?.from_slice(&[learn.len(), FEATURES], &learn.lengths)?.freeze();
    let train = Train { steps, lengths, species: learn.species };
    let (loss, reports) = node.block_on(async {
        // Spawn tasks, so that they run while the program waits for the trainer.
        let evaluate =
            |evaluator: &Spawned<Evaluator>| tokio::spawn(evaluator.address().ask(Evaluate { until: steps }));
        let evaluations: Vec<_> = evaluators.iter().map(evaluate).collect();
        let loss: f64 = trainer.ask(train).await?;
        let mut reports = Vec::new();
        for evaluation in evaluations {
            reports.push(evaluation.await??.map_err(anyhow::Error::msg)?);
        }
        anyhow::Ok((loss, reports))
    })?;
    println!("{steps} versions were published from Python; the loss is below 0.1: {}", loss < 0.1);
    for (number, report) in reports.into_iter().enumerate() {
        println!(
            "evaluator {number} came to version {}, in order: {}; it knows 28 of {} or more: {}",
            report.last,
            report.in_order,
            test.len(),
            report.right >= 28
        );
    }
    Ok(())
}
