//! Costs that used to grow without a reason: each row is a ratio of two medians of this run, beside the bound
//! that it has to keep. This is a program, not a criterion bench:
//! `cargo bench -p tensorpost-benches --bench cliffs`, or the binary that this builds, on any machine. It
//! takes a minute or two.
//!
//! `-- --only pool,bodies` measures some of the groups: `pool`, `bodies`, `idle`, `local`, `fan`, `out`,
//! `chain`, `links`. `--picture FILE` draws the rows, too, as an SVG. Exits with 1 where a bound is missed.

mod bodies;
mod chain;
mod fan;
mod idle;
mod links;
mod local;
mod out;
mod picture;
mod pool;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Parser;
use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;
use tensorpost::prelude::*;

/// Measures costs that used to grow without a reason: ratios within one run, each with its bound.
#[derive(Parser)]
#[command(name = "cliffs")]
struct Arguments {
    /// Groups to measure, separated by commas: pool, bodies, idle, local, fan, out, chain, links. All of them
    /// where none is named.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Draws how far each row is from its bound, as an SVG.
    #[arg(long)]
    picture: Option<PathBuf>,
    /// An argument that cargo hands to every bench.
    #[arg(long, hide = true)]
    bench: bool,
}

/// The bound of a ratio.
#[derive(Clone, Copy)]
enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

impl Bound {
    fn is_met(self, value: f64) -> bool {
        match self {
            Bound::AtMost(bound) => value <= bound,
            Bound::AtLeast(bound) => value >= bound,
        }
    }

    /// Returns the factor by which a value is past the bound.
    fn past(self, value: f64) -> f64 {
        match self {
            Bound::AtMost(bound) => value / bound,
            Bound::AtLeast(bound) => bound / value.max(1e-9),
        }
    }

    fn text(self) -> String {
        match self {
            Bound::AtMost(bound) => format!("<= {bound}"),
            Bound::AtLeast(bound) => format!(">= {bound}"),
        }
    }
}

/// One line of the table.
struct Row {
    what: String,
    measured: String,
    value: f64,
    bound: Option<Bound>,
}

impl Row {
    fn new(what: impl Into<String>, measured: impl Into<String>, value: f64, bound: Option<Bound>) -> Self {
        Row { what: what.into(), measured: measured.into(), value, bound }
    }
}

/// Returns the median time of a call, over `samples` samples of `count` calls each.
fn median(samples: usize, count: u32, mut call: impl FnMut()) -> Duration {
    let mut times: Vec<Duration> = (0..samples)
        .map(|_| {
            let since = Instant::now();
            (0..count).for_each(|_| call());
            since.elapsed() / count
        })
        .collect();
    middle(&mut times)
}

/// Returns the middle time, or zero where there is none.
fn middle(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn over(time: Duration, other: Duration) -> f64 {
    time.as_secs_f64() / other.as_secs_f64().max(1e-9)
}

fn micros(time: Duration) -> String {
    format!("{:.2} us", time.as_secs_f64() * 1e6)
}

type Group = fn(&Node) -> anyhow::Result<Vec<Row>>;

const GROUPS: [(&str, Group); 8] = [
    ("pool", pool::rows),
    ("bodies", bodies::rows),
    ("idle", idle::rows),
    ("local", local::rows),
    ("fan", fan::rows),
    ("out", out::rows),
    ("chain", chain::rows),
    ("links", links::rows),
];

fn main() -> anyhow::Result<ExitCode> {
    let node = Node::builder().host_budget(pool::BUDGET).start()?;
    let arguments = Arguments::parse();
    let names = GROUPS.map(|(name, _)| name);
    if let Some(unknown) = arguments.only.iter().find(|only| !names.contains(&only.as_str())) {
        anyhow::bail!("there is no group `{unknown}`; there are {}", names.join(", "));
    }
    let mut table = Table::new();
    table.load_preset(ASCII_MARKDOWN).set_header(["what", "measured", "ratio", "bound", "met"]);
    let mut missed = 0;
    let mut all = Vec::new();
    for (name, rows) in GROUPS {
        if !arguments.only.is_empty() && !arguments.only.iter().any(|only| only == name) {
            continue;
        }
        for row in rows(&node)? {
            let met = row.bound.map(|bound| bound.is_met(row.value));
            missed += usize::from(met == Some(false));
            let verdict = met.map_or("", |met| if met { "yes" } else { "NOT MET" });
            let bound = row.bound.map_or_else(String::new, Bound::text);
            table.add_row([&row.what, &row.measured, &format!("{:.3}", row.value), &bound, verdict]);
            all.push(row);
        }
    }
    println!("{table}");
    if let Some(file) = arguments.picture {
        std::fs::write(&file, picture::svg(&all))
            .with_context(|| format!("{} cannot be written", file.display()))?;
    }
    Ok(if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
