//! The costs of two hosts of one node, over loopback: messages, tensors, a consumer that stands still,
//! memory, and a host that is killed. Bare TCP and bare gRPC run beside them, between as many processes.
//!
//! `hosts_bench` measures everything and prints one table; the method is in `benches/README.md`. It needs a
//! GPU only for the rows of `--device`. For the last rows it needs two builds of `local_messages` in its
//! folder, and nothing else.

mod actors;
mod bare;
mod hosts;
mod link;
#[expect(unreachable_pub, dead_code, reason = "the tests have it in their library, and cut links")]
#[path = "../../../../tests/src/network.rs"]
mod network;
mod nixl;
mod on_device;
mod runs;

use std::process::ExitCode;
use std::thread::available_parallelism;
use std::time::Duration;

use clap::Parser;
use tensorpost::prelude::*;
use tensorpost_benches::table::{Bound, Samples, Table};
use tracing_subscriber::EnvFilter;

use bare::{Bare, Kind};
use hosts::Key;
use runs::{Percentiles, Two, TwoOnDevice};

/// Measures two hosts of one node on loopback, and prints a table with bounds.
#[derive(Debug, Parser)]
#[command(name = "hosts_bench")]
struct Options {
    /// A tenth of the messages and tensors, and two runs of each.
    #[arg(long)]
    quick: bool,
    /// Runs of each, alternating with those of its baseline.
    #[arg(long)]
    runs: Option<usize>,
    /// Only measurements whose name has this in it: latency, rate, tensors, link, device, nixl, stall,
    /// memory, killed, local.
    #[arg(long)]
    only: Option<String>,
    /// The device of the tensors that a GPU has, such as `cuda:0`; without it those are not measured.
    #[arg(long)]
    device: Option<String>,
    /// The second device, to which these tensors go by NIXL, such as `cuda:1`; without it that is not
    /// measured.
    #[arg(long)]
    to: Option<String>,
    /// Fail when a bound is missed, not only when a measurement failed.
    #[arg(long)]
    strict: bool,
}

fn main() -> anyhow::Result<ExitCode> {
    // A worker never returns from this call, and an agent not from the next one. The log is that of both
    // hosts, with their gateways and workers.
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false).init();
    hosts::serve_if_agent()?;
    if nixl::serve_if_raw()? || bare::serve_if_bare()? {
        return Ok(ExitCode::SUCCESS);
    }
    if link::measure_if_asked()? {
        return Ok(ExitCode::SUCCESS);
    }
    let options = Options::parse();
    let cores = available_parallelism()?.get();
    let mut suite = Suite { options, table: Table::new(cores), key: Key::draw()?, failed: false };
    println!("# {cores} cores, {} runs of each", suite.runs());
    suite.one("latency", Suite::latency);
    suite.one("rate", Suite::rate);
    suite.one("tensors", Suite::tensors);
    suite.one("link", Suite::link);
    suite.one("device", Suite::device);
    suite.one("nixl", Suite::nixl);
    suite.one("stall", Suite::stall);
    suite.one("memory", Suite::memory);
    suite.one("killed", Suite::killed);
    suite.one("local", Suite::local);
    println!("{}", suite.table);
    let failed = suite.failed || (suite.options.strict && suite.table.missed());
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Processes that are busy where a message goes from host to host: two that speak, and a gateway on each
/// host.
const BUSY: usize = 4;
/// How long a consumer stands still.
const STALL: Duration = Duration::from_secs(12);
/// The tensors that are sent to it.
const BEHIND_STALL: u64 = 400;
/// Rounds of tensors before the timed ones go by NIXL, and the time between.
const WARM: usize = 20;
const WARM_PAUSE: Duration = Duration::from_millis(250);
/// Asks that wait for a host that is killed.
const ASKS: usize = 64;

/// Samples of both percentiles.
#[derive(Debug, Default)]
struct Times {
    p50: Samples,
    p99: Samples,
}

impl Times {
    fn push(&mut self, Percentiles { p50, p99 }: Percentiles) {
        self.p50.0.push(p50);
        self.p99.0.push(p99);
    }
}

struct Suite {
    options: Options,
    table: Table,
    key: Key,
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
        self.options.runs.unwrap_or(if self.options.quick { 2 } else { 5 }).max(1)
    }

    fn count(&self, count: u64) -> u64 {
        if self.options.quick { count / 10 } else { count }
    }

    fn row(&mut self, what: &str, samples: &Samples, against: Option<&Samples>, bound: Bound, needs: usize) {
        self.table.row(what, samples, against.map(Samples::median), bound, needs);
    }

    /// Measures one message at a time, alone and beside tensors.
    fn latency(&mut self) -> anyhow::Result<()> {
        let count = self.count(20_000);
        let bare = Bare::start(&self.key)?;
        let hosts = [Two::start(None, 2)?, Two::start(Some(&self.key), 2)?];
        let mut alone = [(); 2].map(|()| Times::default());
        let mut beside = [(); 2].map(|()| (Times::default(), Samples::default()));
        let mut bares = [(); 3].map(|()| Times::default());
        let mut bares_beside = [(); 3].map(|()| (Times::default(), Samples::default()));
        for run in 1..=self.runs() {
            eprintln!("  run {run}");
            // All take turns within a run, so that a change of the machine's load meets all alike.
            for (kind, (times, (beside, speed))) in
                Kind::ALL.into_iter().zip(bares.iter_mut().zip(&mut bares_beside))
            {
                times.push(runs::bare_trips(&bare, kind, count)?);
                let (trips, gibs) = runs::bare_trips_beside_bulk(&bare, kind, count)?;
                beside.push(trips);
                speed.0.push(gibs);
            }
            for (two, (times, (beside, speed))) in hosts.iter().zip(alone.iter_mut().zip(&mut beside)) {
                times.push(two.trips(count)?);
                let (trips, gibs) = two.trips_beside_bulk(count)?;
                beside.push(trips);
                speed.0.push(gibs);
            }
        }
        hosts.into_iter().try_for_each(Two::end)?;
        for (index, (name, tls)) in [("no TLS", false), ("mutual TLS", true)].into_iter().enumerate() {
            let against = &bares[1 + index];
            let (p50, p99) = match tls {
                true => (Bound::AtMost(35.0), Bound::AtMost(150.0)),
                false => (Bound::None, Bound::None),
            };
            let what = format!("256 B, host to host, {name}, us, p50, over bare tonic");
            self.row(&what, &alone[index].p50, Some(&against.p50), p50, BUSY);
            self.row("  p99", &alone[index].p99, Some(&against.p99), Bound::None, BUSY);
            let against = &bares_beside[1 + index].0;
            self.row(
                "  beside tensors, p50",
                &beside[index].0.p50,
                Some(&against.p50),
                Bound::None,
                BUSY + 4,
            );
            self.row("  beside tensors, p99", &beside[index].0.p99, Some(&against.p99), p99, BUSY + 4);
            self.row("  GiB/s of these", &beside[index].1, None, Bound::None, BUSY + 4);
        }
        for (kind, (times, (beside, speed))) in Kind::ALL.into_iter().zip(bares.iter().zip(&bares_beside)) {
            self.row(&format!("  {}, p50", kind.name()), &times.p50, None, Bound::None, 2);
            self.row("    p99", &times.p99, None, Bound::None, 2);
            self.row("    beside pieces, p50", &beside.p50, None, Bound::None, 4);
            self.row("    beside pieces, p99", &beside.p99, None, Bound::None, 4);
            self.row("    GiB/s of these", speed, None, Bound::None, 4);
        }
        Ok(())
    }

    /// Measures messages in one direction.
    fn rate(&mut self) -> anyhow::Result<()> {
        let count = self.count(500_000);
        let bare = Bare::start(&self.key)?;
        let hosts = [Two::start(None, 2)?, Two::start(Some(&self.key), 2)?];
        let mut rates = [(); 2].map(|()| Samples::default());
        let mut bares = [(); 3].map(|()| Samples::default());
        for two in &hosts {
            two.many(count / 10)?;
        }
        for run in 1..=self.runs() {
            eprintln!("  run {run}");
            for (kind, rate) in Kind::ALL.into_iter().zip(&mut bares) {
                rate.0.push(runs::bare_many(&bare, kind, count)?);
            }
            for (two, rate) in hosts.iter().zip(&mut rates) {
                rate.0.push(two.many(count)?);
            }
        }
        hosts.into_iter().try_for_each(Two::end)?;
        let [none, tls] = &rates;
        let what = "256 B messages a second, mutual TLS, over bare tonic";
        self.row(what, tls, Some(&bares[2]), Bound::AtLeast(150_000.0), BUSY);
        self.row("  no TLS, over bare tonic", none, Some(&bares[1]), Bound::None, BUSY);
        for (kind, rate) in Kind::ALL.into_iter().zip(&bares) {
            self.row(&format!("  {}", kind.name()), rate, None, Bound::None, 2);
        }
        Ok(())
    }

    /// Measures tensors of 64 MiB, by lanes.
    fn tensors(&mut self) -> anyhow::Result<()> {
        let count = self.count(160);
        let bare = Bare::start(&self.key)?;
        for (name, key, kind) in [("no TLS", None, Kind::Rpc), ("mutual TLS", Some(()), Kind::Tls)] {
            for lanes in [1, 4] {
                let two = Two::start(key.map(|()| &self.key), lanes)?;
                // The pools of both hosts grow once.
                two.tensors(8)?;
                let [mut ours, mut rpc, mut tcp] = [(); 3].map(|()| Samples::default());
                for run in 1..=self.runs() {
                    eprintln!("  {name}, {lanes} lanes, run {run}");
                    ours.0.push(two.tensors(count)?);
                    rpc.0.push(runs::bare_tensors(&bare, kind, lanes, count)?);
                    tcp.0.push(runs::bare_tensors(&bare, Kind::Tcp, lanes, count)?);
                }
                two.end()?;
                // Each lane has a thread at either end, and four processes do the rest.
                let needs = 2 * usize::from(lanes) + BUSY;
                let what =
                    format!("64 MiB tensors, {name}, {lanes} lanes, GiB/s, over bare tonic with as many");
                let ratio = if kind == Kind::Tls { Bound::RatioAtLeast(0.9) } else { Bound::None };
                self.row(&what, &ours, Some(&rpc), ratio, needs);
                if (kind, lanes) == (Kind::Tls, 4) {
                    self.row("  the same, by itself", &ours, None, Bound::AtLeast(4.0), needs);
                }
                self.row(&format!("  {}, {lanes} connections", kind.name()), &rpc, None, Bound::None, needs);
                self.row(&format!("  bare TCP, {lanes} connections"), &tcp, None, Bound::None, needs);
            }
        }
        Ok(())
    }

    /// Measures tensors of 64 MiB over a link that is slower than anything else.
    fn link(&mut self) -> anyhow::Result<()> {
        if let Err(why_not) = network::possible() {
            eprintln!("  not measured: {why_not}");
            return Ok(());
        }
        let [ours, rpc, tcp] = link::measure(self.count(40), self.runs())?;
        let what = format!(
            "64 MiB tensors, mutual TLS, 2 lanes, a link of {}, share of it, over bare TCP",
            link::RATE
        );
        self.row(&what, &ours, Some(&tcp), Bound::AtLeast(0.95), 2);
        self.row("  bare tonic, mutual TLS, 2 connections", &rpc, Some(&tcp), Bound::None, 2);
        self.row("  bare TCP, 2 connections", &tcp, None, Bound::None, 2);
        Ok(())
    }

    /// Measures tensors of 64 MiB in the memory of a device, by lanes.
    fn device(&mut self) -> anyhow::Result<()> {
        let Some(name) = self.options.device.clone() else {
            eprintln!("  not measured: no device is named; `--device cuda:0` names one");
            return Ok(());
        };
        let device = match name.parse::<Device>() {
            Ok(device) => device,
            Err(error) => {
                eprintln!("  not measured: `--device {name}`: {error}");
                return Ok(());
            }
        };
        println!("# `{name}` is {device}");
        let count = self.count(160);
        let bare = Bare::start(&self.key)?;
        for lanes in [1, 4] {
            let two = TwoOnDevice::start(&device, lanes)?;
            // The pools of all processes grow once, and the gateways make their slots.
            two.tensors(16)?;
            let [mut ours, mut rpc] = [(); 2].map(|()| Samples::default());
            for run in 1..=self.runs() {
                eprintln!("  {name}, {lanes} lanes, run {run}");
                ours.0.push(two.tensors(count)?);
                rpc.0.push(runs::bare_tensors(&bare, Kind::Rpc, lanes, count)?);
            }
            two.end()?;
            // As for tensors on the host, and a thread of each gateway that copies.
            let needs = 2 * usize::from(lanes) + BUSY + 2;
            let what = format!(
                "64 MiB tensors on {name}, no TLS, {lanes} lanes, GiB/s, over bare tonic with as many"
            );
            let of_a_gpu = device.kind() == DeviceKind::Cuda && lanes == 4;
            let bound = if of_a_gpu { Bound::RatioAtLeast(0.8) } else { Bound::None };
            self.row(&what, &ours, Some(&rpc), bound, needs);
            self.row(&format!("  bare tonic, {lanes} connections"), &rpc, None, Bound::None, needs);
        }
        Ok(())
    }

    /// Measures tensors from one GPU to another, by NIXL, beside NIXL alone.
    fn nixl(&mut self) -> anyhow::Result<()> {
        let Options { device, to, .. } = &self.options;
        let (Some(from), Some(to)) = (device.clone(), to.clone()) else {
            eprintln!("  not measured: no two GPUs are named; `--device cuda:0 --to cuda:1` names two");
            return Ok(());
        };
        let number = |name: &str| name.strip_prefix("cuda:").and_then(|number| number.parse::<u32>().ok());
        let (Some(from_gpu), Some(to_gpu)) = (number(&from), number(&to)) else {
            anyhow::bail!("`{from}` and `{to}` are not two GPUs, such as cuda:0 and cuda:1");
        };
        let count = self.count(800);
        let mut raw = nixl::Raw::start(from_gpu, to_gpu, false)?;
        raw.write(16, 1, false)?;
        let two = TwoOnDevice::by_nixl(&from.parse()?, &to.parse()?, 4)?;
        // The pools grow, arenas are made, and the route is probed; meanwhile tensors go by gRPC.
        for _ in 0..WARM {
            two.tensors(8)?;
            std::thread::sleep(WARM_PAUSE);
        }
        // GB a second. Both gateways log the parts of a burst's time, a moment after the burst.
        let pour = |count: u64, mib: usize, touched: bool| {
            let gib = two.tensors_of(count, mib << 20, touched)?;
            std::thread::sleep(WARM_PAUSE);
            eprintln!("  that was {count} of {mib} MiB");
            anyhow::Ok(gib * runs::GIB / 1e9)
        };
        // As many are on their way as there ever are: pools grow in the first of these.
        for _ in 0..2 {
            for touched in [true, false] {
                pour(count / 8, 32, touched)?;
                pour(count / 32, 128, touched)?;
            }
        }
        let [mut alone, mut ahead, mut copied, mut small, mut large, mut untouched] =
            [(); 6].map(|()| Samples::default());
        for run in 1..=self.runs() {
            eprintln!("  {from} to {to}, run {run}");
            alone.0.push(raw.write(count, 1, false)?);
            ahead.0.push(raw.write(count, 8, false)?);
            // Its other end copies for as long as it runs.
            let mut copying = nixl::Raw::start(from_gpu, to_gpu, true)?;
            copying.write(16, 1, true)?;
            copied.0.push(copying.write(count, 8, true)?);
            copying.end()?;
            small.0.push(pour(count, 32, true)?);
            large.0.push(pour(count / 4, 128, true)?);
            untouched.0.push(pour(count, 32, false)?);
        }
        two.end()?;
        raw.end()?;
        let best = if alone.median() > ahead.median() { &alone } else { &ahead };
        let what =
            format!("32 MiB tensors, {from} to {to}, by NIXL, GB/s, over raw NIXL with the same pieces");
        self.row(&what, &small, Some(best), Bound::RatioAtLeast(0.9), BUSY + 4);
        self.row("  the same, by itself", &small, None, Bound::AtLeast(180.0), BUSY + 4);
        let what = "  32 MiB tensors whose bytes nobody touches, over raw NIXL";
        self.row(what, &untouched, Some(best), Bound::None, BUSY + 4);
        self.row("  128 MiB tensors, over raw NIXL", &large, Some(best), Bound::None, BUSY + 4);
        self.row("  raw NIXL, 32 MiB, one after the other", &alone, None, Bound::None, 2);
        self.row("  raw NIXL, 32 MiB, 8 on their way", &ahead, None, Bound::None, 2);
        let what = "  the same, with a copy on either GPU for each, over without";
        self.row(what, &copied, Some(&ahead), Bound::None, 3);
        Ok(())
    }

    fn stall(&mut self) -> anyhow::Result<()> {
        eprintln!("  it stands still for {} s", STALL.as_secs());
        let two = Two::start(Some(&self.key), 2)?;
        let (came, waited) = two.stalled(BEHIND_STALL, STALL)?;
        two.end()?;
        let what = format!("tensors to a consumer that stands still for {} s, in order", STALL.as_secs());
        self.row(&what, &Samples(vec![came as f64]), None, Bound::AtLeast(BEHIND_STALL as f64), 1);
        let least = Bound::AtLeast(STALL.as_secs_f64() - 1.0);
        self.row("  the sender waited, s", &Samples(vec![waited]), None, least, 1);
        Ok(())
    }

    fn memory(&mut self) -> anyhow::Result<()> {
        let count = self.count(1_000_000);
        let two = Two::start(Some(&self.key), 2)?;
        let said = |sent, [here, there]: [f64; 2]| eprintln!("  {sent:>8}: {here:.1} and {there:.1} MiB");
        let hosts = two.memory(count, said)?;
        two.end()?;
        for (name, [first, last]) in ["head", "agent"].into_iter().zip(hosts) {
            let what = format!("MiB of the {name} after {count} messages, over after 10000");
            let (first, last) = (Samples(vec![first]), Samples(vec![last]));
            self.row(&what, &last, Some(&first), Bound::RatioAtMost(1.05), 1);
        }
        Ok(())
    }

    fn killed(&mut self) -> anyhow::Result<()> {
        eprintln!("  it is given up after {} s", tensorpost_hosts::limits::HEAD_GRACE.as_secs());
        let (seconds, held) = Two::start(Some(&self.key), 2)?.killed(ASKS)?;
        let what = format!("host killed: s until {ASKS} asks are answered");
        // The head's grace before its verdict, and a second.
        let grace = tensorpost_hosts::limits::HEAD_GRACE.as_secs_f64();
        self.row(&what, &Samples(vec![seconds]), None, Bound::AtMost(grace + 1.0), 1);
        self.row("  bytes that are held then", &Samples(vec![held as f64]), None, Bound::AtMost(0.0), 1);
        Ok(())
    }

    /// Measures messages within one host, with the feature and without.
    fn local(&mut self) -> anyhow::Result<()> {
        let Some(programs) = runs::local_programs()? else {
            eprintln!("  not measured: local_messages.on and local_messages.off are not beside this program");
            return Ok(());
        };
        let (trips, many) = (self.count(100_000), self.count(2_000_000));
        let mut all = [(); 4].map(|()| Samples::default());
        for run in 1..=self.runs() {
            eprintln!("  run {run}");
            for (index, program) in programs.iter().enumerate() {
                let [micros, rate] = runs::local(program, trips, many)?;
                all[index].0.push(micros);
                all[2 + index].0.push(rate);
            }
        }
        let [on, off, many_on, many_off] = &all;
        let what = "256 B within a host, us, feature on over off";
        self.row(what, on, Some(off), Bound::RatioAtMost(1.02), 2);
        let what = "256 B messages a second within a host, feature on over off";
        self.row(what, many_on, Some(many_off), Bound::RatioAtLeast(0.98), 2);
        Ok(())
    }
}
