//! A node in Rust that starts an actor of Python: `peer node INTERPRETER FOLDER`, as the tests run it.
//!
//! Prints a line for each thing that was as it must be, and ends with 1 at the first that was not.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tensorpost_core::__private::anyhow::{Result, bail, ensure};
use tensorpost_core::api::actor::{Address, Lifecycle, Python};
use tensorpost_core::api::message::GpuMessage;
use tensorpost_core::node::{Node, Restart};
use tensorpost_core::tensor::{DType, Tensor};

const PATIENCE: Duration = Duration::from_secs(60);

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

/// In Python it has another field.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(crate = tensorpost_core, portable, reply = bool)]
struct Other {
    here: u8,
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
    let mean = node.block_on(statistics.ask(Mean { values: values.clone() }).timeout(PATIENCE))?;
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
    let mean = node.block_on(statistics.ask(Mean { values }).timeout(PATIENCE))?;
    ensure!(mean == 2.5, "the mean is {mean} in the second life");
    println!("restarted");

    let refused = node.block_on(statistics.ask(Other { here: 1 }).timeout(PATIENCE)).unwrap_err().to_string();
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

    let report = node.shutdown(PATIENCE)?;
    ensure!(report.drained, "{report}");
    println!("drained");
    Ok(())
}
