//! Two hosts whose link is slower than anything else. In network namespaces, this program runs once more as
//! the head, and the head's children are at the other ends of its links.

use std::process::Stdio;

use anyhow::Context as _;
use tensorpost_benches::table::Samples;

use crate::bare::{Bare, Kind};
use crate::hosts::{Key, Pair};
use crate::network::{Network, alone};
use crate::runs::{self, Two};

/// The rate of the link, as `tc` writes it; the headers of packets count.
pub(crate) const RATE: &str = "1gbit";
/// The same in bits a second.
const BITS: f64 = 1e9;
/// The program's default, and the number of bare connections.
const LANES: u16 = 2;

/// Marks the process as the head, and gives the number of tensors in a run, and the number of runs.
const IS_HEAD: &str = "HOSTS_BENCH_LINK";

/// Measures the share of the link that the bytes of this many tensors have: ours, those of bare gRPC with
/// TLS, and of bare TCP.
pub(crate) fn measure(count: u64, runs: usize) -> anyhow::Result<[Samples; 3]> {
    let mut command = alone(&std::env::current_exe()?);
    command.env(IS_HEAD, format!("{count} {runs}")).stdout(Stdio::piped());
    let output = command.spawn()?.wait_with_output()?;
    anyhow::ensure!(output.status.success(), "the head at the link ended with {}", output.status);
    let [mut ours, mut rpc, mut tcp] = [(); 3].map(|()| Samples::default());
    for run in String::from_utf8(output.stdout)?.lines() {
        let shares: Vec<f64> = run.split(' ').map(str::parse).collect::<Result<_, _>>()?;
        let [of_ours, of_rpc, of_tcp] = shares[..] else { anyhow::bail!("it said {run:?}") };
        ours.0.push(of_ours);
        rpc.0.push(of_rpc);
        tcp.0.push(of_tcp);
    }
    Ok([ours, rpc, tcp])
}

/// Measures, and prints the result, where this process was started for that.
pub(crate) fn measure_if_asked() -> anyhow::Result<bool> {
    let Ok(asked) = std::env::var(IS_HEAD) else { return Ok(false) };
    let (count, runs) = asked.split_once(' ').context("how much of it?")?;
    let (count, runs) = (count.parse()?, runs.parse::<usize>()?);
    let (mut network, key) = (Network::own(), Key::draw()?);
    let bare = Bare::over_a_link(&mut network, RATE, &key)?;
    let two = Two::of(Pair::over_a_link(&mut network, RATE, &key, LANES)?)?;
    // Pools grow once, and so does the amount that TCP allows to be under way.
    two.tensors(4)?;
    let share = |gibs: f64| gibs * (1_u64 << 30) as f64 * 8.0 / BITS;
    for run in 1..=runs {
        eprintln!("  run {run}");
        let ours = share(two.tensors(count)?);
        let rpc = share(runs::bare_tensors(&bare, Kind::Tls, LANES, count)?);
        println!("{ours} {rpc} {}", share(runs::bare_tensors(&bare, Kind::Tcp, LANES, count)?));
    }
    two.end()?;
    Ok(true)
}
