//! Rust pipelines with Python stages: `peer stages WHAT INTERPRETER FOLDER`, as the tests run it.
//!
//! Each exits with 1 and says why at the first check that fails.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::path::PathBuf;
use std::pin::pin;
use std::task::Poll;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use tensorpost_core::__private::anyhow::{Result, bail, ensure};
use tensorpost_core::api::actor::{Channel, Python};
use tensorpost_core::api::message::GpuMessage;
use tensorpost_core::node::{Node, Restart};
use tensorpost_core::tensor::{DType, Tensor};
use tensorpost_pipeline::{
    AfterSource, Batch, DeadItem, Flow, Item, Many, OnError, Pipeline, PipelineError, Report, RunPipeline,
};

#[derive(Clone, Serialize, Deserialize, GpuMessage)]
#[gpu_message(crate = tensorpost_core, portable)]
struct Sample {
    id: u64,
    #[tensor(dtype = f32)]
    values: Tensor,
}

#[derive(Clone, Debug, Serialize, Deserialize, GpuMessage)]
#[gpu_message(crate = tensorpost_core, portable)]
struct Sum {
    id: u64,
    sum: f32,
    who: String,
}

#[derive(Clone, Serialize, Deserialize, GpuMessage)]
#[gpu_message(crate = tensorpost_core, portable)]
struct Draft {
    id: u64,
    #[tensor(dtype = f32)]
    values: Tensor,
}

/// Its class in Python has another field.
#[derive(Clone, Serialize, Deserialize, GpuMessage)]
#[gpu_message(crate = tensorpost_core, portable)]
struct Other {
    here: u8,
}

/// The arguments of a run.
struct Given {
    interpreter: PathBuf,
    folder: PathBuf,
}

impl Given {
    fn python(&self, name: &str) -> Python {
        Python::stage(format!("stages_of_python:{name}")).interpreter(&self.interpreter).path(&self.folder)
    }

    /// Returns the path of a file that a stage writes.
    fn file(&self, name: &str) -> Result<(PathBuf, String)> {
        let path = std::env::temp_dir().join(format!("tensorpost-{}-{name}", std::process::id()));
        // An earlier process with this process id may have left the file.
        let _ = std::fs::remove_file(&path);
        let text = path.to_string_lossy().into_owned();
        Ok((path, text))
    }
}

fn samples(pipeline: &Pipeline, count: u64) -> Flow<Sample, AfterSource> {
    pipeline.with(count).items("samples", |count, env| {
        let stream = env.stream();
        (0..count).filter_map(move |id| {
            let values = stream.from_slice(&[4], &[id as f32; 4]).ok()?.freeze();
            Some(Sample { id, values })
        })
    })
}

/// Runs a pipeline whose flow ends in a channel, and returns the items that came there.
fn collected<T: Item>(
    pipeline: &Pipeline,
    flow: impl FnOnce(&Pipeline) -> Flow<T>,
) -> Result<(Vec<T>, std::result::Result<Report, PipelineError>)> {
    let flow = flow(pipeline);
    let node = Node::builder().start()?;
    let (address, mut channel): (_, Channel<T>) = node.channel()?;
    flow.sink_to(&address);
    let running = match node.run_pipeline(pipeline) {
        Ok(running) => running,
        Err(error) => return Ok((Vec::new(), Err(error))),
    };
    let mut ended = pin!(running.ended());
    let mut items = Vec::new();
    node.block_on(async {
        loop {
            let mut next = pin!(channel.recv());
            let next = poll_fn(|task| match next.as_mut().poll(task) {
                Poll::Ready(item) => Poll::Ready(item.ok()),
                Poll::Pending => ended.as_mut().poll(task).map(|()| None),
            });
            match next.await {
                Some(item) => items.push(item),
                None => break,
            }
        }
    });
    items.extend(std::iter::from_fn(|| channel.try_recv()));
    let report = running.wait();
    Ok((items, report))
}

/// Runs pipelines one after the other, on one node.
fn ended(pipelines: &[Pipeline]) -> Result<Vec<std::result::Result<Report, PipelineError>>> {
    let node = Node::builder().start()?;
    Ok(pipelines.iter().map(|pipeline| node.run_pipeline(pipeline)?.wait()).collect())
}

fn plain<T, A>(flow: Flow<T, A>) -> Flow<T>
where
    T: Item,
{
    let [flow] = flow.broadcast::<1>();
    flow
}

pub(crate) fn run(what: &str, interpreter: &str, folder: &str) -> Result<()> {
    let given = Given { interpreter: interpreter.into(), folder: folder.into() };
    match what {
        "order" => order(&given),
        "several" => several(&given),
        "ends" => ends(&given),
        "coroutines" => coroutines(&given),
        "in_place" => in_place(&given),
        "chosen" => chosen(&given),
        "loop" => in_a_loop(&given),
        "skipped" => skipped(&given),
        "dead" => dead(&given),
        "failed" => failed(&given),
        "lost" => lost(&given),
        "again" => again(&given),
        "refused" => refused(&given),
        "described" => described(&given),
        "rate" => rate(&given),
        other => bail!("no such run: {other}"),
    }
}

/// Checks that replicas lose no item, that their order is restored, and that tensors go both ways.
fn order(given: &Given) -> Result<()> {
    const COUNT: u64 = 300;
    let pipeline = Pipeline::new("order");
    let (items, report) = collected(&pipeline, |pipeline| {
        let doubled = samples(pipeline, COUNT).python::<Sample>(given.python("double")).replicas(3).ordered();
        let forwarded = doubled.python::<Sample>(given.python("forward"));
        plain(forwarded.python::<Sum>(given.python("total").args((0.5_f32,))))
    })?;
    let report = report?;
    let sums: Vec<(u64, f32)> = items.iter().map(|sum| (sum.id, sum.sum)).collect();
    let wanted: Vec<(u64, f32)> = (0..COUNT).map(|id| (id, id as f32 * 4.0)).collect();
    ensure!(sums == wanted, "{sums:?}");
    for stage in ["double", "forward", "total"] {
        let told = report.stage(stage).map(|stage| (stage.items_in, stage.items_out, stage.errors));
        ensure!(told == Some((COUNT, COUNT, 0)), "{report}");
    }
    ensure!(report.is_complete(), "{report}");
    Ok(())
}

fn several(given: &Given) -> Result<()> {
    #[derive(Serialize)]
    struct Args {
        path: String,
        at_least: u32,
    }
    let (path, text) = given.file("several")?;
    let pipeline = Pipeline::new("several");
    let (items, report) = collected(&pipeline, |pipeline| {
        let python = given.python("Several").args(Args { path: text, at_least: 7 });
        plain(samples(pipeline, 30).python::<Sum>(python))
    })?;
    let report = report?;
    let of = |who: &str| items.iter().filter(|sum| sum.who == who).count();
    ensure!((of("first"), of("second"), of("finish"), items.len()) == (20, 20, 1, 41), "{items:?}");
    ensure!(items.last().is_some_and(|sum| sum.who == "finish" && sum.id == 30), "{items:?}");
    ensure!(report.stage("Several").is_some_and(|stage| stage.items_out == 41), "{report}");
    ensure!(std::fs::read_to_string(&path)? == "30 7", "what it said at its end");
    std::fs::remove_file(path)?;
    Ok(())
}

/// Checks sources and sinks in Python, with a Rust stage between them.
fn ends(given: &Given) -> Result<()> {
    let (path, text) = given.file("ends")?;
    let pipeline = Pipeline::new("ends");
    let source = pipeline.python_source::<Sample>(given.python("samples").args((50_u64,)));
    let sums = source.map("sum", |sample: Sample| {
        Ok(Sum { id: sample.id, sum: sample.values.to_vec::<f32>()?.iter().sum(), who: "rust".to_owned() })
    });
    let report = sums.python_sink(given.python("Collect").args(text)).run()?;
    ensure!(std::fs::read_to_string(&path)? == "4900.0", "the sum of all");
    std::fs::remove_file(path)?;
    let told = |name: &str| report.stage(name).map(|stage| (stage.items_in, stage.items_out));
    ensure!(
        (told("samples"), told("Collect")) == (Some((0, 50)), Some((50, 0))) && report.is_complete(),
        "{report}"
    );
    Ok(())
}

fn coroutines(given: &Given) -> Result<()> {
    let pipeline = Pipeline::new("coroutines");
    let (items, report) = collected(&pipeline, |pipeline| {
        let [one, other] = samples(pipeline, 20).broadcast();
        let slowly = one.python::<Sum>(given.python("slowly"));
        plain(slowly.merge(other.python::<Sum>(given.python("apart"))))
    })?;
    report?;
    let of = |who: &str| items.iter().filter(|sum| sum.who == who).count();
    ensure!((of("slowly"), of("apart")) == (20, 40), "{items:?}");
    Ok(())
}

/// Checks that a tensor that is handed over is written in the memory that the source wrote, and handed on.
fn in_place(given: &Given) -> Result<()> {
    let pipeline = Pipeline::new("in place");
    let (items, report) = collected(&pipeline, |pipeline| {
        let drafts = pipeline.items("drafts", |env| {
            let stream = env.stream();
            (0..20_u64).filter_map(move |id| {
                Some(Draft { id, values: stream.from_slice(&[4], &[id as f32; 4]).ok()?.freeze() })
            })
        });
        let once = drafts.python::<Draft>(given.python("in_place"));
        plain(once.python::<Draft>(given.python("in_place")).named("again"))
    })?;
    let report = report?;
    ensure!(items.len() == 20, "{report}");
    for draft in &items {
        ensure!(draft.values.to_vec::<f32>()? == [draft.id as f32 + 2.0; 4], "{}", draft.id);
    }
    Ok(())
}

/// Checks that closures choose the receivers of a Python stage's items, with batches, and replicas by key.
fn chosen(given: &Given) -> Result<()> {
    let pipeline = Pipeline::new("chosen");
    let (items, report) = collected(&pipeline, |pipeline| {
        let doubled = samples(pipeline, 40).python::<Sample>(given.python("double"));
        let (even, odd) = doubled.split(|sample| sample.id % 2 == 0);
        let even = even.batch(Batch::of(4)).map("count", |many: Many<Sample>| {
            let id = many.items.iter().map(|sample| sample.id).sum();
            Ok(Sum { id, sum: many.items.len() as f32, who: "batch".to_owned() })
        });
        let odd = odd.python::<Sum>(given.python("total")).replicas(2).by_key(|sample| sample.id);
        plain(even.merge(odd))
    })?;
    let report = report?;
    let batches: f32 = items.iter().filter(|sum| sum.who == "batch").map(|sum| sum.sum).sum();
    ensure!(batches == 20.0, "{items:?}");
    let odd: BTreeSet<u64> = items.iter().filter(|sum| sum.who == "total").map(|sum| sum.id).collect();
    ensure!(odd == (0..40).filter(|id| id % 2 == 1).collect(), "{report}");
    Ok(())
}

fn in_a_loop(given: &Given) -> Result<()> {
    let pipeline = Pipeline::new("loop");
    let (items, report) = collected(&pipeline, |pipeline| {
        samples(pipeline, 20).iterate(
            4,
            |flow| flow.python::<Sample>(given.python("double")),
            |sample| sample.values.to_vec::<f32>().is_ok_and(|values| values[0] > 0.0 && values[0] < 100.0),
        )
    })?;
    report?;
    ensure!(items.len() == 20, "{} came", items.len());
    for sample in items {
        let value = sample.values.to_vec::<f32>()?[0];
        ensure!(sample.id == 0 && value == 0.0 || (100.0..200.0).contains(&value), "{}: {value}", sample.id);
    }
    Ok(())
}

/// Checks that an exception is an error of the stage, with its traceback.
fn skipped(given: &Given) -> Result<()> {
    let pipeline = Pipeline::new("skipped");
    let (items, report) = collected(&pipeline, |pipeline| {
        let picky = samples(pipeline, 40).python::<Sum>(given.python("picky"));
        plain(picky.replicas(2).ordered().on_error(OnError::RetryThenSkip(1)))
    })?;
    let report = report?;
    let ids: Vec<u64> = items.iter().map(|sum| sum.id).collect();
    ensure!(ids == (0..40).filter(|id| id % 10 != 3).collect::<Vec<_>>(), "{ids:?}");
    let stage = report.stage("picky").map(|stage| (stage.errors, stage.retries, stage.skipped));
    ensure!(stage == Some((4, 4, 4)), "{report}");
    let why = &report.failures.first().ok_or_else(|| anyhow("no failure"))?.why;
    ensure!(why.starts_with("`picky` raised ValueError: not "), "{why}");
    ensure!(why.contains("Traceback") && why.contains("stages_of_python.py"), "{why}");
    ensure!(!why.contains("_stages.py"), "{why}");
    Ok(())
}

fn anyhow(text: &'static str) -> tensorpost_core::__private::anyhow::Error {
    tensorpost_core::__private::anyhow::anyhow!(text)
}

/// Checks that the dead letters of a Python stage are the items as they came.
fn dead(given: &Given) -> Result<()> {
    let pipeline = Pipeline::new("dead");
    let (items, report) = collected(&pipeline, |pipeline| {
        let (good, dead) = samples(pipeline, 40).python::<Sum>(given.python("picky")).dead_letters();
        good.for_each("drop", |_| Ok(()));
        dead.map("values", |dead: DeadItem<Sample>| {
            let sum = dead.item.values.to_vec::<f32>()?.iter().sum();
            Ok(Sum { id: dead.item.id, sum, who: dead.why })
        })
        .merge(pipeline.items("none", |_| std::iter::empty::<Sum>()))
    })?;
    report?;
    let told: Vec<(u64, f32)> = items.iter().map(|sum| (sum.id, sum.sum)).collect();
    ensure!(told == [(3, 12.0), (13, 52.0), (23, 92.0), (33, 132.0)], "{told:?}");
    ensure!(items.iter().all(|sum| sum.who.contains("raised ValueError: not ")), "{items:?}");
    Ok(())
}

fn failed(given: &Given) -> Result<()> {
    let stages = [
        ("picky", "raised ValueError: not 3\nTraceback"),
        ("liar", "it made a Sample, and its annotation says Sum"),
    ];
    let write = |(stage, _): &(&str, &str)| {
        let pipeline = Pipeline::new(format!("failed {stage}"));
        samples(&pipeline, 40).python::<Sum>(given.python(stage)).for_each("drop", |_| Ok(()));
        pipeline
    };
    let mut pipelines: Vec<Pipeline> = stages.iter().map(write).collect();
    let of_source = Pipeline::new("failed source");
    let source = of_source.python_source::<Sample>(given.python("Samples").args((20_u64,)));
    source.for_each("drop", |_| Ok(()));
    pipelines.push(of_source);
    let mut results = ended(&pipelines)?;
    let Some(Err(PipelineError::Failed { failure, report })) = results.pop() else {
        bail!("the source did not fail")
    };
    ensure!(failure.stage == "Samples" && failure.why.contains("ValueError: no five"), "{}", failure.why);
    ensure!(report.stage("drop").is_some_and(|stage| stage.items_in == 5), "{report}");
    for ((stage, why), result) in stages.iter().zip(results) {
        let Err(PipelineError::Failed { failure, .. }) = result else { bail!("{stage} did not fail") };
        ensure!(failure.stage == *stage && failure.why.contains(why), "{}", failure.why);
    }
    Ok(())
}

/// Checks that the report names the items that a death took, and that the next life goes on.
fn lost(given: &Given) -> Result<()> {
    for how in ["exit", "kill"] {
        let pipeline = Pipeline::new("lost");
        let (items, report) = collected(&pipeline, |pipeline| {
            let mortal = samples(pipeline, 100).python::<Sum>(given.python("Mortal").args(how));
            plain(mortal.restart(Restart::on_failure(2)))
        })?;
        let report = report?;
        let [death] = &report.deaths[..] else { bail!("{report}") };
        ensure!(death.stage == "Mortal" && death.restarted, "{report}");
        let wanted = if how == "exit" { "3" } else { "SIGKILL" };
        ensure!(death.why.contains(wanted), "{}", death.why);
        ensure!(report.lost_count > 0 && report.lost_unexplained == 0, "{report}");
        ensure!(report.lost.iter().any(|lost| lost.id.number == 20), "{report}");
        ensure!(items.len() as u64 + report.lost_count == 100, "{} came\n{report}", items.len());
        ensure!(
            items.iter().any(|sum| sum.who == "0") && items.iter().any(|sum| sum.who == "1"),
            "{items:?}"
        );
    }
    // Without a policy the pipeline fails, and names the stage that died.
    let pipeline = Pipeline::new("lost");
    let (_, result) = collected(&pipeline, |pipeline| {
        plain(samples(pipeline, 100).python::<Sum>(given.python("Mortal").args("exit")))
    })?;
    let Err(PipelineError::Died { stage, why, .. }) = result else { bail!("it did not die") };
    ensure!(stage == "Mortal" && why.contains('3'), "{why}");
    Ok(())
}

/// Checks at-least-once delivery: items that a death took are sent again, to another replica or to the next
/// life.
fn again(given: &Given) -> Result<()> {
    for replicas in [1, 2] {
        let pipeline = Pipeline::new("again").at_least_once(16);
        let (items, report) = collected(&pipeline, |pipeline| {
            let mortal = samples(pipeline, 100).python::<Sum>(given.python("Mortal").args("kill"));
            plain(mortal.replicas(replicas).restart(Restart::on_failure(3)))
        })?;
        let report = report?;
        let ids: BTreeSet<u64> = items.iter().map(|sum| sum.id).collect();
        ensure!(ids == (0..100).collect(), "{ids:?}\n{report}");
        ensure!(!report.deaths.is_empty() && report.is_complete(), "{report}");
    }
    Ok(())
}

/// Checks that mistakes are reported before an item flows.
fn refused(given: &Given) -> Result<()> {
    let module = |name: &str| Python::stage(name).interpreter(&given.interpreter).path(&given.folder);
    let wrong: Vec<(Python, &[&str])> = vec![
        (given.python("wrong"), &["stage `wrong` did not start", "`wrong` takes Other", "says Sample"]),
        (given.python("double"), &["`double` makes Sample", "says Sum"]),
        (given.python("samples").args((1_u64,)), &["`samples` takes nothing", "says Sample"]),
        (given.python("Collect").args("x"), &["`Collect` takes Sum", "says Sample"]),
        (given.python("undecorated"), &["`undecorated` is no stage", "@tp.stage"]),
        (given.python("missing"), &["has no `missing`"]),
        (given.python("Unmade"), &["RuntimeError: it cannot be made", "Traceback"]),
        (given.python("total").args((1.0_f32, 2)), &["total"]),
        (module("not_there:total"), &["ModuleNotFoundError", "not_there"]),
        (
            module("stages_broken:total"),
            &["ModuleNotFoundError", "a_module_that_is_not_there", "stages_broken.py"],
        ),
        (given.python("total").interpreter("/bin/false"), &["stage `total`", "Python::interpreter"]),
        (given.python("total").interpreter("/no/python"), &["/no/python"]),
    ];
    let write = |(at, (stage, _)): (usize, &(Python, &[&str]))| {
        let pipeline = Pipeline::new(format!("refused {at}"));
        samples(&pipeline, 1).python::<Sum>(stage.clone()).for_each("drop", |_| Ok(()));
        pipeline
    };
    let mut pipelines: Vec<Pipeline> = wrong.iter().enumerate().map(write).collect();
    // The same message with other fields.
    let differs = Pipeline::new("differs");
    let others = differs.items("others", |_| (0..1).map(|here| Other { here }));
    others.python::<Sum>(given.python("wrong")).for_each("drop", |_| Ok(()));
    pipelines.push(differs);
    let says = wrong.iter().map(|(_, says)| *says).chain([["here", "there", "u16"].as_slice()]);
    for (says, result) in says.zip(ended(&pipelines)?) {
        let error = match result {
            Err(error @ (PipelineError::Start { .. } | PipelineError::Worker { .. })) => error.to_string(),
            Err(error) => bail!("another error: {error}"),
            Ok(report) => bail!("it ran: {report}"),
        };
        for what in says {
            ensure!(error.contains(what), "it does not say {what:?}: {error}");
        }
    }

    // No stage of this program runs in an interpreter.
    let pipeline = Pipeline::new("beside");
    let sums = samples(&pipeline, 1).python::<Sum>(given.python("total"));
    sums.map("same", Ok).beside().for_each("drop", |_: Sum| Ok(()));
    let Err(error) = pipeline.check() else { bail!("a stage beside an interpreter was let through") };
    ensure!(error.to_string().contains("an interpreter of its own"), "{error}");
    Ok(())
}

fn described(given: &Given) -> Result<()> {
    let pipeline = Pipeline::new("described");
    let sums = samples(&pipeline, 1).python::<Sum>(given.python("total")).named("sums").replicas(2).ordered();
    sums.for_each("drop", |_| Ok(()));
    let text = pipeline.describe().to_string();
    ensure!(
        text.contains("stage sums (stages_of_python:total, 2 replicas, order restored) -> drop"),
        "{text}"
    );
    Ok(())
}

/// Prints the time of a hop through Python.
fn rate(given: &Given) -> Result<()> {
    const COUNT: u64 = 20_000;
    let pipeline = Pipeline::new("rate");
    let items = pipeline.items("zeros", |env| {
        let zeros = env.stream().zeros(DType::F32, &[256]).map(|zeros| zeros.freeze());
        (0..COUNT).filter_map(move |id| Some(Sample { id, values: zeros.as_ref().ok()?.clone() }))
    });
    let sums = items.python::<Sample>(given.python("forward"));
    let begin = Instant::now();
    let report = sums.for_each("drop", |_| Ok(())).run()?;
    let stage = report.stage("forward").ok_or_else(|| anyhow("no such stage"))?;
    ensure!(stage.items_out == COUNT, "{report}");
    println!("{:.0} items/s, {:.1} us a call, {:?} in all", stage.rate, stage.p50_us, begin.elapsed());
    Ok(())
}
