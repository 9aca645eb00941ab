//! Medians by name, and the table of their targets.
//!
//! A name is `who.mode.what`: `post` is tensorpost, `alone` one process without a receiver, `both` two such
//! at once, `floor` the bare driver, `bare` a bare context, `torch` PyTorch. Times are in microseconds, rates
//! (`stream`) in messages per second, sizes in bytes.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::Context as _;
use comfy_table::{Table, presets};

/// Returns the median of some numbers, or 0 of none. Sorts them.
pub(crate) fn median(numbers: &mut [f64]) -> f64 {
    numbers.sort_unstable_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or(0.0)
}

/// The results, and the measurements that failed.
#[derive(Debug, Default)]
pub(crate) struct Results {
    values: BTreeMap<String, f64>,
    failures: Vec<String>,
}

impl Results {
    pub(crate) fn set(&mut self, name: impl Into<String>, value: f64) {
        let name = name.into();
        println!("{name} {value:.3}");
        self.values.insert(name, value);
    }

    pub(crate) fn fail(&mut self, name: &str, error: &anyhow::Error) {
        println!("{name} FAILED: {error:#}");
        self.failures.push(format!("{name}: {error:#}"));
    }

    pub(crate) fn get(&self, name: &str) -> Option<f64> {
        self.values.get(name).copied()
    }

    pub(crate) fn failures(&self) -> &[String] {
        &self.failures
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Adds the lines of another program.
    pub(crate) fn read(&mut self, path: &Path) -> anyhow::Result<()> {
        let text = std::fs::read_to_string(path).with_context(|| format!("{}", path.display()))?;
        for line in text.lines() {
            let Some((name, value)) = line.split_once(' ') else { continue };
            if let Ok(value) = value.trim().parse() {
                self.values.insert(name.to_owned(), value);
            }
        }
        Ok(())
    }

    pub(crate) fn write(&self, path: &Path) -> anyhow::Result<()> {
        let mut text = String::new();
        for (name, value) in &self.values {
            writeln!(text, "{name} {value}")?;
        }
        std::fs::write(path, text).with_context(|| format!("{}", path.display()))
    }
}

/// How a target is met.
#[derive(Clone, Copy, Debug)]
enum Bound {
    /// The ratio is at most this.
    Most(f64),
    /// The ratio is at least this.
    Least(f64),
    /// The number itself is at least this.
    AtLeast(f64),
    /// The number is at most the other plus this.
    Within(f64),
    /// The number itself is at most this.
    AtMost(f64),
    /// No bound: the row is only informative.
    None,
}

/// A target: a number, the number that it is compared with, and the bound.
struct Target {
    what: &'static str,
    number: &'static str,
    against: &'static str,
    bound: Bound,
}

const fn target(what: &'static str, number: &'static str, against: &'static str, bound: Bound) -> Target {
    Target { what, number, against, bound }
}

/// A ratio is the number over the number that it is compared with: where something has to be faster, the
/// other's time comes first.
#[rustfmt::skip]
const TARGETS: &[Target] = &[
    target("round trip 4 KiB, no kernels, isolated", "post.isolated.trip.4KiB", "floor.isolated.clocks", Bound::Most(1.0)),
    target("  times faster than PyTorch", "torch.isolated.trip.4KiB", "post.isolated.trip.4KiB", Bound::Least(18.0)),
    target("round trip 4 KiB, a kernel each side, MPS", "post.mps.trip.kernels.4KiB", "floor.mps.kernels", Bound::Most(1.0)),
    target("  times faster than PyTorch under MPS", "torch.mps.trip.kernels.4KiB", "post.mps.trip.kernels.4KiB", Bound::Least(7.0)),
    target("round trip 4 KiB, a kernel each side, isolated", "post.isolated.trip.kernels.4KiB", "floor.isolated.kernels", Bound::None),
    target("  times faster than PyTorch", "torch.isolated.trip.kernels.4KiB", "post.isolated.trip.kernels.4KiB", Bound::None),
    target("  the same, its end watched without a pause", "post.isolated.trip.watched.4KiB", "floor.isolated.kernels", Bound::None),
    target("round trip 4 KiB, no kernels, isolated, over raw calls and a polled ring", "post.isolated.trip.4KiB", "floor.isolated.polled.clocks", Bound::None),
    target("  a kernel each side, isolated", "post.isolated.trip.watched.4KiB", "floor.isolated.polled.kernels", Bound::None),
    target("round trip 4 KiB, no kernels, MPS, over raw calls and a polled ring", "post.mps.trip.4KiB", "floor.mps.polled.clocks", Bound::None),
    target("  a kernel each side, MPS", "post.mps.trip.kernels.4KiB", "floor.mps.polled.kernels", Bound::Most(1.15)),
    target("round trip 64 MiB over 4 KiB, isolated", "post.isolated.trip.64MiB", "post.isolated.trip.4KiB", Bound::Most(1.05)),
    target("round trip 1 GiB over 4 KiB, isolated", "post.isolated.trip.1GiB", "post.isolated.trip.4KiB", Bound::Most(1.05)),
    target("round trip 64 MiB over 4 KiB, MPS", "post.mps.trip.64MiB", "post.mps.trip.4KiB", Bound::Most(1.05)),
    target("round trip 1 GiB over 4 KiB, MPS", "post.mps.trip.1GiB", "post.mps.trip.4KiB", Bound::Most(1.05)),
    target("stream of 4 KiB, a kernel each side, MPS, msg/s", "post.mps.stream.kernels.4KiB", "torch.mps.stream.4KiB", Bound::AtLeast(150_000.0)),
    target("  over bare driver calls, two processes, each a launch and a clock write an item, MPS", "post.mps.stream.kernels.4KiB", "floor.mps.stream.kernels", Bound::None),
    target("  over what both can launch at once without messages, MPS", "post.mps.stream.kernels.4KiB", "both.mps.stream.kernels.4KiB", Bound::None),
    target("  over what one can launch alone, MPS", "post.mps.stream.kernels.4KiB", "alone.mps.stream.kernels.4KiB", Bound::None),
    target("  over raw calls and a polled ring, the second waiting for the first, MPS", "post.mps.stream.kernels.4KiB", "floor.mps.polled.stream.kernels", Bound::None),
    target("stream of 4 KiB, a kernel each side, isolated, msg/s", "post.isolated.stream.kernels.4KiB", "torch.isolated.stream.4KiB", Bound::None),
    target("  over bare driver calls, isolated", "post.isolated.stream.kernels.4KiB", "floor.isolated.stream.kernels", Bound::None),
    target("  over raw calls and a polled ring, isolated", "post.isolated.stream.kernels.4KiB", "floor.isolated.polled.stream.kernels", Bound::None),
    target("stream of 4 KiB, no kernels, isolated, msg/s", "post.isolated.stream.4KiB", "torch.isolated.stream.4KiB", Bound::AtLeast(400_000.0)),
    target("stream of 4 KiB, no kernels, MPS, msg/s", "post.mps.stream.4KiB", "torch.mps.stream.4KiB", Bound::AtLeast(400_000.0)),
    target("  over words through a polled ring", "post.mps.stream.4KiB", "floor.mps.polled.stream", Bound::None),
    target("  its memory, bytes, within the budget", "post.mps.stream.memory", "budget", Bound::Most(1.0)),
    target("stream of 64 MiB filled by a kernel, isolated, msg/s", "post.isolated.stream.64MiB", "alone.isolated.stream.64MiB", Bound::Least(0.9)),
    target("stream of 64 MiB filled by a kernel, MPS, msg/s", "post.mps.stream.64MiB", "alone.mps.stream.64MiB", Bound::Least(0.9)),
    target("  times PyTorch's, MPS", "post.mps.stream.64MiB", "torch.mps.stream.64MiB", Bound::None),
    target("stage of 20 small kernels, as a graph over one by one, isolated", "post.isolated.chain.graph", "post.isolated.chain.single", Bound::Most(0.4)),
    target("  over the bare driver's graph", "post.isolated.chain.graph", "floor.isolated.chain.graph", Bound::None),
    target("  the bare driver's graph over its single launches", "floor.isolated.chain.graph", "floor.isolated.chain.single", Bound::None),
    target("stage of 20 small kernels, as a graph over one by one, MPS", "post.mps.chain.graph", "post.mps.chain.single", Bound::Most(0.4)),
    target("  over the bare driver's graph", "post.mps.chain.graph", "floor.mps.chain.graph", Bound::None),
    target("  the bare driver's graph over its single launches", "floor.mps.chain.graph", "floor.mps.chain.single", Bound::None),
    target("two stages of 100 us, MPS, per item, over the slower", "post.mps.stages.both", "post.mps.stages.slower", Bound::Most(1.03)),
    target("two stages of 100 us, isolated, per item, over the slower", "post.isolated.stages.both", "post.isolated.stages.slower", Bound::None),
    target("pipeline of four stages of 100 us, MPS, per item, over the slowest", "post.mps.four.all", "post.mps.four.slowest", Bound::Most(1.05)),
    target("pipeline of four stages of 100 us, isolated, per item, over the slowest", "post.isolated.four.all", "post.isolated.four.slowest", Bound::None),
    target("fan-out of 64 MiB, per receiver, to 8 over to 1, isolated", "post.isolated.fanout.8", "post.isolated.fanout.1", Bound::Most(1.2)),
    target("  bytes copied", "post.isolated.fanout.copied", "", Bound::AtMost(0.0)),
    target("fan-out of 64 MiB, per receiver, to 8 over to 1, MPS", "post.mps.fanout.8", "post.mps.fanout.1", Bound::Most(1.2)),
    target("  bytes copied", "post.mps.fanout.copied", "", Bound::AtMost(0.0)),
    target("1 GiB of another GPU copied by an actor, GB/s", "post.isolated.peer.copy", "floor.isolated.peer.copy", Bound::Least(0.95)),
    target("  read by a kernel that writes as much, GB/s", "post.isolated.peer.kernel", "floor.isolated.peer.copy", Bound::None),
    target("  brought by receive_on, GB/s", "post.isolated.peer.receive_on", "floor.isolated.peer.copy", Bound::Least(0.95)),
    target("worker ready after spawn, isolated, within 50 ms", "post.isolated.ready", "bare.isolated.context", Bound::Within(50_000.0)),
    target("worker ready after spawn, MPS, within 50 ms", "post.mps.ready", "bare.mps.context", Bound::Within(50_000.0)),
    target("  over one with six streams, isolated", "post.isolated.ready.one", "post.isolated.ready.six", Bound::Most(0.55)),
    target("  over one with six streams, MPS", "post.mps.ready.one", "post.mps.ready.six", Bound::Most(0.55)),
    target("killed until it serves again, with a spare, isolated, us", "post.isolated.again.spare.killed", "post.isolated.again.killed", Bound::AtMost(100_000.0)),
    target("  after a panic", "post.isolated.again.spare.panicked", "post.isolated.again.panicked", Bound::AtMost(100_000.0)),
    target("killed until it serves again, with a spare, MPS, us", "post.mps.again.spare.killed", "post.mps.again.killed", Bound::AtMost(150_000.0)),
    target("  after a panic", "post.mps.again.spare.panicked", "post.mps.again.panicked", Bound::AtMost(150_000.0)),
];

/// Prints the targets; returns true when none is missed.
pub(crate) fn table(results: &Results) -> bool {
    let mut table = Table::new();
    table
        .load_preset(presets::ASCII_MARKDOWN)
        .set_header(["target", "measured", "against", "ratio", "bound", "met"]);
    let mut all_met = true;
    for target in TARGETS {
        let number = results.get(target.number);
        let against = results.get(target.against);
        let ratio = number.zip(against).filter(|(_, against)| *against > 0.0).map(|(n, a)| n / a);
        let (bound, met) = match target.bound {
            Bound::None => (String::new(), None),
            Bound::Most(most) => (format!("<= {most} x"), ratio.map(|ratio| ratio <= most)),
            Bound::Least(least) => (format!(">= {least} x"), ratio.map(|ratio| ratio >= least)),
            Bound::AtLeast(least) => (format!(">= {least}"), number.map(|number| number >= least)),
            Bound::AtMost(most) => (format!("<= {most}"), number.map(|number| number <= most)),
            Bound::Within(more) => {
                (format!("<= +{more}"), number.zip(against).map(|(number, against)| number <= against + more))
            }
        };
        all_met &= met != Some(false);
        let named = |name: &str, value: Option<f64>| value.map_or("-".into(), |v| format!("{v:.1} ({name})"));
        table.add_row([
            target.what.to_owned(),
            named(target.number, number),
            named(target.against, against),
            ratio.map_or("-".into(), |ratio| format!("{ratio:.2}")),
            bound,
            match (met, target.bound) {
                (Some(true), _) => "yes",
                (Some(false), _) => "NO",
                (None, Bound::None) => "",
                (None, _) => "not measured",
            }
            .to_owned(),
        ]);
    }
    println!("\n{table}");
    all_met
}
