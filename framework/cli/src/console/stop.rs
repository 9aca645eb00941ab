//! `tensorpost stop`.

use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::Args;
use tensorpost_core::console::{ConsoleError, Request};

use super::{Target, choose, put, time};

/// How often it is looked whether the node has ended.
const EVERY: Duration = Duration::from_millis(100);

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    target: Target,
    /// What has not finished after this time is killed
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = time)]
    within: Duration,
    /// Do not wait for the end
    #[arg(long)]
    no_wait: bool,
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let mut console = choose::connect(&arguments.target)?;
    let pid = console.hello().pid;
    let began = Instant::now();
    match console.ask(&Request::Stop { within: arguments.within }) {
        Ok(_) => {}
        Err(ConsoleError::Ended) => {
            put(&format!("node {pid} had ended before\n"))?;
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    }
    if arguments.no_wait {
        put(&format!("node {pid} is stopping\n"))?;
        return Ok(());
    }
    // Its program may go on after the node has ended, and may end with it: then the connection does.
    loop {
        match console.look() {
            Ok(_) => sleep(EVERY),
            Err(ConsoleError::Ended) => break,
            Err(error) => return Err(error.into()),
        }
    }
    let took = tensorpost_core::console::time(began.elapsed());
    put(&format!("node {pid} has ended after {took}\n"))?;
    Ok(())
}
