//! A Rust node that starts Python actors: `peer node INTERPRETER FOLDER`, as the tests run it.
//!
//! Prints a line for each check that passes, and exits with 1 at the first that fails.

use std::time::Instant;

use serde::{Deserialize, Serialize};
use tensorpost::published::{Publisher, Subscriber, Topic};
use tensorpost_core::__private::actix::{Actor, Context, Handler};
use tensorpost_core::__private::anyhow::{Result, bail, ensure};
use tensorpost_core::actor::{Env, Handles, RemoteActor, WorkerProgram};
use tensorpost_core::api::actor::{Address, Lifecycle, Python};
use tensorpost_core::api::message::{GpuMessage, Portable};
use tensorpost_core::message::message_key;
use tensorpost_core::message::portable::Describer;
use tensorpost_core::node::{Node, Restart};
use tensorpost_core::tensor::{DType, Tensor};

use crate::WAIT_FOR_ANSWER;

#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(crate = tensorpost_core, portable, reply = f64)]
struct Mean {
    #[tensor(dtype = f32)]
    values: Tensor,
}

#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(crate = tensorpost_core, portable)]
struct Scale {
    id: u64,
    #[tensor(dtype = f32)]
    values: Tensor,
}

#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(crate = tensorpost_core, portable)]
struct Crash {
    why: String,
}

/// Its class in Python has another field.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(crate = tensorpost_core, portable, reply = bool)]
struct Other {
    here: u8,
}

/// Makes an actor wait for a file.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(crate = tensorpost_core, portable)]
struct Seen {
    what: String,
}

/// The published value.
#[derive(Clone, Serialize, Deserialize, GpuMessage)]
#[gpu_message(crate = tensorpost_core, portable)]
struct Weights {
    step: u64,
    #[tensor(dtype = f32, shape = [4])]
    values: Tensor,
}

/// "Read until this step has come." The reply is the number and the step of each version that was seen, and
/// the values of the last.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(crate = tensorpost_core, portable, reply = Vec<(u64, u64, Vec<f32>)>)]
struct Read {
    until: u64,
}

#[derive(Serialize)]
struct Args {
    sink: Address<Scale>,
    by: f32,
}

pub(crate) fn run(interpreter: &str, folder: &str) -> Result<()> {
    let node = Node::builder().start()?;
    let python = |class: &str| {
        Python::actor(format!("actors_of_python:{class}")).interpreter(interpreter).path(folder)
    };

    let (sink, mut scaled) = node.channel::<Scale>()?;
    let start = python("Statistics").args(Args { sink, by: 2.0 }).env("TENSORPOST_SEEN", "yes");
    let statistics =
        node.spawn::<Python>(start).name("statistics").restart(Restart::on_failure(3)).start()?;
    let values = node.host_stream()?.from_slice(&[4], &[1.0_f32, 2.0, 3.0, 4.0])?.freeze();
    let mean = node.block_on(statistics.ask(Mean { values: values.clone() }).timeout(WAIT_FOR_ANSWER))?;
    ensure!(mean == 2.5, "the mean is {mean}");
    println!("asked");

    node.block_on(statistics.send(Scale { id: 7, values: values.clone() }))?;
    let Scale { id, values: twice } = scaled.blocking_recv()?;
    ensure!(id == 8 && twice.dtype() == DType::F32, "{id}, {twice:?}");
    ensure!(twice.to_vec::<f32>()? == [2.0, 4.0, 6.0, 8.0], "{:?}", twice.to_vec::<f32>());
    println!("sent");

    let mut watch = node.watch(&statistics.address::<Crash>());
    node.block_on(statistics.send(Crash { why: "as told".to_owned() }))?;
    let Some(Lifecycle::Down { reason, will_restart: true, .. }) = watch.blocking_recv() else {
        bail!("it is not down");
    };
    let reason = reason.to_string();
    ensure!(reason.contains("ValueError: as told") && reason.contains("actors_of_python.py"), "{reason}");
    let mean = node.block_on(statistics.ask(Mean { values }).timeout(WAIT_FOR_ANSWER))?;
    ensure!(mean == 2.5, "the mean is {mean} in the second life");
    println!("restarted");

    let refused =
        node.block_on(statistics.ask(Other { here: 1 }).timeout(WAIT_FOR_ANSWER)).unwrap_err().to_string();
    ensure!(refused.contains("has no handler for a message with key"), "{refused}");
    println!("refused");

    let Err(error) = node.spawn::<Python>(python("Missing")).start() else { bail!("it started") };
    ensure!(error.to_string().contains("has no `Missing`"), "{error}");
    let Err(error) = node.spawn::<Python>(python("Statistics").interpreter("/bin/false")).start() else {
        bail!("it started");
    };
    ensure!(error.to_string().contains("Python::interpreter"), "{error}");
    let Err(error) = node.spawn::<Python>(python("Statistics").interpreter("/no/python")).start() else {
        bail!("it started");
    };
    ensure!(error.to_string().contains("/no/python"), "{error}");
    let wrong = python("Statistics").args((1_u8, 2_u8, 3_u8));
    let Err(error) = node.spawn::<Python>(wrong).start() else { bail!("it started") };
    ensure!(error.to_string().contains("Statistics.__init__"), "{error}");
    println!("reported");

    queued(&node, python("Slow"))?;
    println!("queued");

    published(&node, python("Reader"))?;
    println!("published");

    followed(&node, interpreter)?;
    println!("followed");

    let report = node.shutdown(WAIT_FOR_ANSWER)?;
    ensure!(report.drained, "{report}");
    println!("drained");
    Ok(())
}

/// Checks that messages that wait for a Python handler are in the actor's figures: five, of which one is
/// being handled.
fn queued(node: &Node, slow: Python) -> Result<()> {
    let path = std::env::temp_dir().join(format!("tensorpost-{}-slow", std::process::id()));
    // An earlier process with this process id may have left the file.
    let _ = std::fs::remove_file(&path);
    let slow = node.spawn::<Python>(slow.args((path.to_string_lossy(),))).label("slow").start()?;
    for _ in 0..5 {
        node.block_on(slow.send(Seen { what: String::new() }))?;
    }
    let until = Instant::now() + WAIT_FOR_ANSWER;
    let becomes = |wanted: usize| -> Result<()> {
        loop {
            let metrics = node.metrics()?;
            let actors = metrics.processes.iter().flat_map(|process| &process.metrics.actors);
            let queued: Vec<_> =
                actors.filter(|actor| actor.name == "slow").map(|slow| slow.queued).collect();
            if queued == [wanted] {
                return Ok(());
            }
            ensure!(Instant::now() < until, "{queued:?} are in its figures, and not {wanted}");
        }
    };
    becomes(4)?;
    std::fs::write(&path, "")?;
    becomes(0)?;
    Ok(std::fs::remove_file(&path)?)
}

/// Checks a Rust topic with two readers in Python: one is in a coroutine, and both are older than their
/// topic.
fn published(node: &Node, reader: Python) -> Result<()> {
    let reader = node.spawn::<Python>(reader).start()?;
    let address = reader.address::<Read>();
    let none = node.block_on(address.ask(Read { until: 0 }).timeout(WAIT_FOR_ANSWER))?;
    ensure!(none.is_empty(), "{none:?}");
    let topic = node.spawn::<Topic<Weights>>(()).name("weights").restart(Restart::on_failure(1)).start()?;
    let publisher = Publisher::new(topic.address());
    let stream = node.host_stream()?;
    let publish = |step: u64| -> Result<u64> {
        let values = stream.from_slice(&[4], &[step as f32; 4])?.freeze();
        Ok(node.block_on(publisher.publish(Weights { step, values }))?)
    };
    let mut last = 0;
    for step in 1..=20 {
        let reading = address.ask(Read { until: step }).timeout(WAIT_FOR_ANSWER);
        let number = publish(step)?;
        let seen = node.block_on(reading)?;
        let Some((newest, newest_step, values)) = seen.last() else { bail!("nothing of step {step}") };
        ensure!((*newest, *newest_step) == (number, step) && *values == [step as f32; 4], "{seen:?}");
        ensure!(seen.is_sorted_by(|(one, ..), (next, ..)| one < next) && seen[0].0 > last, "{seen:?}");
        last = *newest;
    }
    // The topic dies: its next life knows nothing, and must give higher numbers than the readers have.
    let mut watch = node.watch(&topic.address::<Weights>());
    node.supervisor().kill_worker(topic.worker());
    while !matches!(watch.blocking_recv(), Some(Lifecycle::Up { .. }) | None) {}
    let reading = address.ask(Read { until: 21 }).timeout(WAIT_FOR_ANSWER);
    publish(21)?;
    let (number, seen) = (last, node.block_on(reading)?);
    ensure!(seen.len() == 1 && seen[0].0 > number && seen[0].1 == 21, "{seen:?} after version {number}");
    Ok(())
}

/// The topic of a program in Python, which is an actor of the package's Rust half.
struct PythonTopic;

/// Its arguments, as that half reads them.
#[derive(Serialize, Deserialize)]
struct StartTopic {
    name: String,
    schema: String,
    value: u64,
    question: u64,
    #[serde(skip)]
    interpreter: String,
}

/// The question for a newer version, as any language writes it.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(crate = tensorpost_core, portable, name = "tensorpost::Newer<Weights>", reply = Newest)]
struct Newer {
    than: u64,
    life: u64,
}

#[derive(Serialize, Deserialize, Portable)]
#[portable(crate = tensorpost_core)]
struct Newest {
    life: u64,
    number: u64,
    value: Option<Weights>,
}

impl Actor for PythonTopic {
    type Context = Context<Self>;
}

impl RemoteActor for PythonTopic {
    type Args = StartTopic;
    /// Its path there.
    const WIRE_NAME: Option<&'static str> = Some("_native::topic::Topic");

    fn create(_: StartTopic, _: &Env) -> Result<Self> {
        bail!("this program has no topic of Python")
    }

    fn worker_program(start: &StartTopic) -> Option<WorkerProgram> {
        Some(WorkerProgram {
            path: start.interpreter.as_str().into(),
            arguments: ["-P", "-m", "tensorpost.worker"].map(str::to_owned).to_vec(),
            environment: Vec::new(),
            remedy: "",
        })
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Weights>();
    }
}

impl Handler<Weights> for PythonTopic {
    type Result = ();

    fn handle(&mut self, _: Weights, _: &mut Context<Self>) {
        unreachable!("`create` makes none")
    }
}

/// Checks a Python topic with a reader in Rust.
fn followed(node: &Node, interpreter: &str) -> Result<()> {
    let mut reader = Subscriber::<Weights>::follow(node, "of python");
    let start = StartTopic {
        name: "Weights".to_owned(),
        schema: Describer::default().of::<Weights>().text(),
        value: message_key::<Weights>(),
        question: message_key::<Newer>(),
        interpreter: interpreter.to_owned(),
    };
    let topic = node.spawn::<PythonTopic>(start).name("of python").start()?;
    let (address, stream) = (topic.address::<Weights>(), node.host_stream()?);
    for step in 1..=20 {
        let values = stream.from_slice(&[4], &[step as f32; 4])?.freeze();
        node.block_on(address.send(Weights { step, values }))?;
        node.block_on(reader.changed())?;
        let Some(seen) = reader.latest() else { bail!("step {step} has changed nothing") };
        let values = seen.value.values.to_vec::<f32>()?;
        ensure!((seen.number, seen.value.step) == (step, step) && values == [step as f32; 4], "{values:?}");
    }
    Ok(())
}
