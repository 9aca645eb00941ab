//! Runs this program again from a worker, so that a measurement without the framework has the worker's
//! environment: a client of the same MPS daemon where there is one.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Instant;

use tensorpost::prelude::*;

use crate::outcome::{Outcome, Text};

/// Runs this program with `args` to its end. The reply is the microseconds until it wrote its first line, and
/// the lines.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Outcome<(f64, Vec<String>)>)]
pub(crate) struct Launch {
    pub(crate) args: Vec<String>,
}

pub(crate) struct Launcher;

impl Actor for Launcher {
    type Context = Context<Self>;
}

impl RemoteActor for Launcher {
    type Args = ();

    fn create((): (), _: &Env) -> anyhow::Result<Self> {
        Ok(Launcher)
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Launch>();
    }
}

impl Handler<Launch> for Launcher {
    type Result = Outcome<(f64, Vec<String>)>;

    fn handle(&mut self, launch: Launch, _: &mut Context<Self>) -> Self::Result {
        run(&launch.args).map_err(|error| format!("{error:#}"))
    }
}

fn run(args: &[String]) -> anyhow::Result<(f64, Vec<String>)> {
    let start = Instant::now();
    let mut child = Command::new("/proc/self/exe").args(args).stdout(Stdio::piped()).spawn()?;
    let mut lines = BufReader::new(child.stdout.take().text("no pipe")?).lines();
    let first = lines.next().transpose()?;
    let time = start.elapsed().as_secs_f64() * 1e6;
    let mut written: Vec<String> = first.into_iter().collect();
    for line in lines {
        written.push(line?);
    }
    let status = child.wait()?;
    anyhow::ensure!(status.success(), "`{}` ended with {status}", args.join(" "));
    Ok((time, written))
}
