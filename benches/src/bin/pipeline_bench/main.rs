//! The cost of the pipeline builder, on the host: beside the same actors wired by hand, and beside the work
//! of its stages.
//!
//! `pipeline_bench` measures everything and prints one table; the method is in `benches/README.md`. No GPU is
//! needed.

mod parts;
mod runs;
mod wired;

use std::process::ExitCode;
use std::thread::available_parallelism;

use clap::Parser;
use tensorpost_benches::table::{Bound, Samples, Table};

use runs::RECEIVERS;
use wired::Hop;

/// Measures the pipeline builder on this machine and prints a table with bounds.
#[derive(Debug, Parser)]
#[command(name = "pipeline_bench")]
struct Options {
    /// A tenth of the items, and three runs of each.
    #[arg(long)]
    quick: bool,
    /// Runs of each, alternating with those of its baseline.
    #[arg(long)]
    runs: Option<usize>,
    /// Only measurements whose name has this in it: overhead, stages, replicas, broadcast, deaths, cold.
    #[arg(long)]
    only: Option<String>,
    /// Fail when a bound is missed, not only when a measurement failed.
    #[arg(long)]
    strict: bool,
    /// Used by the program itself: the time at which its start was ordered.
    #[arg(long, hide = true)]
    cold: Option<u64>,
}

fn main() -> anyhow::Result<ExitCode> {
    let options = Options::parse();
    if let Some(from) = options.cold {
        runs::start_cold(from)?;
        return Ok(ExitCode::SUCCESS);
    }
    let cores = available_parallelism()?.get();
    let mut suite = Suite { options, table: Table::new(cores), failed: false };
    println!("# {cores} cores, {} runs of each", suite.runs());
    suite.one("overhead", Suite::overhead);
    suite.one("stages", Suite::stages);
    suite.one("replicas", Suite::replicas);
    suite.one("broadcast", Suite::broadcast);
    suite.one("deaths", Suite::deaths);
    suite.one("cold", Suite::cold);
    println!("{}", suite.table);
    let failed = suite.failed || (suite.options.strict && suite.table.missed());
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Returns items a second, from nanoseconds for each.
fn rate(nanos: f64) -> f64 {
    1e9 / nanos
}

fn micros(nanos: f64) -> f64 {
    nanos / 1e3
}

/// Workers that have died in [`Suite::deaths`].
const DEATHS: usize = 10;

struct Suite {
    options: Options,
    table: Table,
    failed: bool,
}

impl Suite {
    fn one(&mut self, name: &str, measure: fn(&mut Self) -> anyhow::Result<()>) {
        if self.options.only.as_ref().is_some_and(|only| !name.contains(only.as_str())) {
            return;
        }
        eprintln!("{name} ...");
        if let Err(error) = measure(self) {
            eprintln!("{name} failed: {error:#}");
            self.failed = true;
        }
    }

    fn runs(&self) -> usize {
        self.options.runs.unwrap_or(if self.options.quick { 3 } else { 9 }).max(1)
    }

    fn items(&self, count: u64) -> u64 {
        if self.options.quick { count / 10 } else { count }
    }

    /// Measures the builder beside the same line wired by hand, the three in turn.
    fn overhead(&mut self) -> anyhow::Result<()> {
        for (work, count) in [(20, 40_000), (100, 10_000)] {
            let count = self.items(count);
            let [mut built, mut sent, mut asked] = [(); 3].map(|()| Samples::default());
            for _ in 0..self.runs() {
                sent.0.push(rate(runs::wired(count, work, Hop::Send)?));
                built.0.push(rate(runs::built(count, work)?));
                asked.0.push(rate(runs::wired(count, work, Hop::Ask)?));
            }
            let by_hand = Some(sent.median());
            let what = format!("line with {work} us of work, items/s, over by hand");
            self.table.row(&what, &built, by_hand, Bound::RatioAtLeast(0.98), 4);
            self.table.row("  by hand", &sent, None, Bound::None, 4);
            self.table.row("  by hand, each item an ask", &asked, by_hand, Bound::None, 4);
        }
        Ok(())
    }

    fn stages(&mut self) -> anyhow::Result<()> {
        let count = self.items(10_000);
        let [mut item, mut slowest] = [(); 2].map(|()| Samples::default());
        for _ in 0..self.runs() {
            let (each, busiest) = runs::four(count, 100)?;
            item.0.push(micros(each));
            slowest.0.push(micros(busiest));
        }
        let what = "four stages of 100 us, us per item, over the slowest stage";
        self.table.row(what, &item, Some(slowest.median()), Bound::RatioAtMost(1.05), 5);
        Ok(())
    }

    fn replicas(&mut self) -> anyhow::Result<()> {
        let numbers = [1_u32, 2, 4];
        let mut rates = numbers.map(|_| Samples::default());
        for _ in 0..self.runs() {
            for (replicas, rates) in numbers.iter().zip(&mut rates) {
                let count = self.items(1000) * u64::from(*replicas);
                rates.0.push(rate(runs::replicated(count, 1000, *replicas)?));
            }
        }
        let one = rates[0].median();
        for (replicas, rates) in numbers.iter().zip(&rates) {
            let what = format!("stage of 1 ms, {replicas} replicas, items/s, over as many times one");
            let bound = if *replicas == 1 { Bound::None } else { Bound::RatioAtLeast(0.9) };
            // The replicas, the source, the sink, and the node.
            self.table.row(&what, rates, Some(one * f64::from(*replicas)), bound, *replicas as usize + 3);
        }
        Ok(())
    }

    fn broadcast(&mut self) -> anyhow::Result<()> {
        let count = self.items(40_000);
        let [mut one, mut all] = [(); 2].map(|()| Samples::default());
        for _ in 0..self.runs() {
            one.0.push(micros(runs::broadcast(count, false)?));
            all.0.push(micros(runs::broadcast(count, true)?));
        }
        self.table.row("to 1 receiver, us per item", &one, None, Bound::None, 3);
        let what = format!("broadcast to {RECEIVERS}, us per item and receiver, over to 1");
        self.table.row(&what, &all, Some(one.median()), Bound::RatioAtMost(1.2), RECEIVERS + 2);
        Ok(())
    }

    /// Measures a line beside the dead, and one on a node where nobody has died, in turn.
    fn deaths(&mut self) -> anyhow::Result<()> {
        let count = self.items(200_000);
        let [mut before, mut after] = [(); 2].map(|()| Samples::default());
        for _ in 0..self.runs() {
            before.0.push(micros(runs::beside_deaths(count, 0)?));
            after.0.push(micros(runs::beside_deaths(count, DEATHS)?));
        }
        self.table.row("line without work, us per item and hop", &before, None, Bound::None, 4);
        let what = format!("after {DEATHS} deaths, us per item and hop, over before");
        self.table.row(&what, &after, Some(before.median()), Bound::RatioAtMost(1.02), 4);
        Ok(())
    }

    fn cold(&mut self) -> anyhow::Result<()> {
        let mut times = Samples::default();
        for _ in 0..self.runs() {
            times.0.push(runs::cold()? / 1e6);
        }
        let what = "cold start, four processes, ms to the first item at the sink";
        self.table.row(what, &times, None, Bound::Below(300.0), 5);
        Ok(())
    }
}
