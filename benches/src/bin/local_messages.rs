//! Measures messages of 256 bytes within a host, and prints one line: the median time of one, and how many
//! there are in a second.
//!
//! `hosts_bench` runs two builds of this in turn, one of them with the feature `hosts`, which shows the cost
//! of the feature for a node on one machine.

use anyhow::Context as _;
use clap::Parser;
use tensorpost::prelude::*;
use tensorpost_benches::notes::{Counter, Driver, Many, Meet, Trips};

/// Prints nanoseconds of a message of 256 bytes between two processes, one at a time, and messages a second.
#[derive(Debug, Parser)]
struct Options {
    /// Round trips.
    #[arg(long, default_value_t = 20_000)]
    trips: u64,
    /// Messages in one direction.
    #[arg(long, default_value_t = 200_000)]
    many: u64,
}

fn main() -> anyhow::Result<()> {
    let node = Node::builder();
    let options = Options::parse();
    let node = node.start()?;
    let driver = node.spawn::<Driver>(()).mailbox(1024).start()?;
    let [echo, sink] = [(); 2].map(|()| node.spawn::<Counter>(()).mailbox(1024).start());
    let (echo, sink) = (echo?, sink?);
    anyhow::ensure!(node.block_on(echo.ask(Meet(driver.address(), driver.address())))?, "no way back");
    let trips = |count| -> anyhow::Result<Vec<u64>> {
        let took = node.block_on(driver.ask(Trips { to: echo.address(), count }))?;
        took.map_err(anyhow::Error::msg)
    };
    let many = |count| -> anyhow::Result<u64> {
        let (to, seen) = (sink.address(), sink.address());
        let took = node.block_on(driver.ask(Many { to, seen, count }))?;
        took.map_err(anyhow::Error::msg)
    };
    // The links are made, and the caches warm.
    trips(1000)?;
    many(1000)?;
    let mut took = trips(options.trips)?;
    took.sort_unstable();
    let median = took.get(took.len() / 2).context("no trips")?;
    let all = many(options.many)?;
    println!("{median} {:.0}", options.many as f64 * 1e9 / all as f64);
    Ok(())
}
