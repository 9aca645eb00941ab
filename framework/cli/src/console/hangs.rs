//! `tensorpost hangs`: the hangs that the node has reported, and the actors and streams that do not move
//! between two snapshots. The snapshots need no limit for hangs to be set beforehand.
//!
//! A pipeline judges its own actors, because those that do not move mostly wait for others of them. An actor
//! that may wait for a rare event is not judged by its open messages.

use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use tensorpost_watch::console::{ActorFacts, Figures, NodeSnapshot, ProcessState};
use tensorpost_watch::draw::{bytes, printable, time as in_words};

use super::{Target, choose, put, time};

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    target: Target,
    /// Time to watch for progress
    #[arg(long = "for", value_name = "TIME", default_value = "1s", value_parser = time)]
    long: Duration,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Default, Serialize)]
struct Hangs {
    /// The actors and streams that did not move while this command looked.
    now: Vec<String>,
    /// The hangs that the node has reported since it began, where it has a limit for hangs.
    reported: Vec<String>,
    /// The node's limit, in seconds.
    hang_limit: Option<f64>,
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let mut console = choose::connect(&arguments.target)?;
    let earlier = console.snapshot()?;
    sleep(arguments.long);
    let now = console.snapshot()?;
    let hangs = Hangs {
        now: stalled(&earlier, &now),
        reported: Figures::between(&earlier, &now).hangs,
        hang_limit: now.node.hang_limit.map(|limit| limit.as_secs_f64()),
    };
    let text =
        if arguments.json { serde_json::to_string_pretty(&hangs)? + "\n" } else { plain(&hangs, &now) };
    put(&text)?;
    Ok(if hangs.now.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn plain(hangs: &Hangs, now: &NodeSnapshot) -> String {
    let mut text = String::new();
    for line in &hangs.now {
        text += &format!("{line}\n");
    }
    if hangs.now.is_empty() {
        text += "nothing stands still now\n";
    }
    if !hangs.reported.is_empty() {
        text += "\nreported earlier:\n";
        hangs.reported.iter().for_each(|line| text += &format!("{line}\n"));
    }
    if now.node.hang_limit.is_none() {
        text += "\nthe node reports no hangs by itself: start it with `.hang_limit(..)`, whose reports also name each wait\n";
    }
    text
}

/// Returns whether work waited for an actor in the earlier snapshot.
fn earlier_waiting(earlier: &NodeSnapshot, actor: &ActorFacts) -> bool {
    earlier.same(actor).and_then(|known| earlier.waiting(known)).is_some_and(|waiting| waiting > 0)
}

/// Returns everything, on all hosts, that has work and did none of it between two snapshots.
pub(super) fn stalled(earlier: &NodeSnapshot, now: &NodeSnapshot) -> Vec<String> {
    let mut lines = stalled_here(earlier, now);
    for host in &now.hosts {
        let name = printable(&host.name);
        match (earlier.of_host(host.number), &host.snapshot) {
            (Some(before), Some(snapshot)) => {
                let there = stalled_here(before, snapshot).into_iter();
                lines.extend(there.map(|line| format!("on host {name}: {line}")));
            }
            (_, Some(_)) => {}
            (_, None) => lines.push(format!("host {name} does not answer")),
        }
    }
    lines
}

fn stalled_here(earlier: &NodeSnapshot, now: &NodeSnapshot) -> Vec<String> {
    let interval = in_words(Duration::from_nanos(now.at.saturating_sub(earlier.at)));
    let mut lines: Vec<_> = now.standing.iter().map(|line| printable(line)).collect();
    let may_wait = |actor: &ActorFacts| actor.metrics.as_ref().is_some_and(|metrics| metrics.may_wait);
    for process in &now.processes {
        let name = printable(&process.name);
        match process.state {
            ProcessState::Silent => lines.push(format!(
                "`{name}` (process {}) does not answer: it is stopped, or has no processor",
                process.pid
            )),
            ProcessState::Restarting | ProcessState::Starting => {
                lines.push(format!("`{name}` is {}", process.state));
            }
            _ => {}
        }
        // Handlers that hang, or results that do not resolve, with nothing in the queue behind them.
        let Some(metrics) = process.metrics.as_ref().filter(|metrics| metrics.open > 0) else { continue };
        if now.actors.iter().any(|actor| actor.process == process.process && may_wait(actor)) {
            continue;
        }
        let handled = |snapshot: &NodeSnapshot| {
            let of_it = snapshot.actors.iter().filter(|actor| actor.process == process.process);
            of_it
                .filter_map(|actor| actor.metrics.as_ref())
                .map(|metrics| metrics.handled)
                .fold(0, u64::saturating_add)
        };
        if handled(earlier) == handled(now) {
            lines.push(format!(
                "`{name}` (process {}) has {} messages that it is not done with, and finished no handler in {interval}",
                process.pid, metrics.open
            ));
        }
    }
    for actor in now.actors.iter().filter(|actor| !may_wait(actor)) {
        let before = earlier.same(actor).and_then(|before| before.metrics.as_ref());
        let Some((before, metrics)) = before.zip(actor.metrics.as_ref()) else { continue };
        let waiting = now.waiting(actor).unwrap_or(0);
        if waiting > 0 && earlier_waiting(earlier, actor) && metrics.handled == before.handled {
            lines.push(format!(
                "`{}` in `{}` does not move: {} messages are open ({} are the most from one process), and none was handled in {interval}",
                printable(&actor.name),
                printable(now.process(actor.process)),
                waiting,
                actor.capacity
            ));
        }
    }
    for of in now.pools.iter().filter(|of| of.pool.held >= of.pool.budget / 10 * 9 && of.pool.held > 0) {
        let (owner, device) = (printable(now.process(of.owner)), NodeSnapshot::device(of.pool.device));
        let holder = of.pool.holders.first().map(|holder| {
            let who = printable(now.process(holder.process));
            format!(
                "; `{who}` holds {} of it, the oldest for {}",
                bytes(holder.bytes),
                in_words(holder.oldest)
            )
        });
        lines.push(format!(
            "memory of `{owner}` on {device} is full: {} of {} are held{}",
            bytes(of.pool.held),
            bytes(of.pool.budget),
            holder.unwrap_or_default()
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use tensorpost_watch::console::sample::snapshot;

    use super::*;

    #[test]
    fn pipelines_come_first_and_an_actor_that_may_wait_is_not_judged() {
        let (earlier, mut now) = (snapshot(0, [1, 20]), snapshot(1_000_000_000, [1, 20]));
        let lines = stalled(&earlier, &now);
        assert!(lines.len() == 2 && lines.iter().all(|line| line.contains("3 messages")), "{lines:?}");
        now.standing.push("pipeline `video`: `detect` stands".to_owned());
        now.actors.iter_mut().filter_map(|actor| actor.metrics.as_mut()).for_each(|of| of.may_wait = true);
        assert_eq!(stalled(&earlier, &now), ["pipeline `video`: `detect` stands"]);
    }
}
