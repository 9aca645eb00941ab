//! What two looks at a node say together: rates, times of the last interval, what has not moved.

use std::time::Duration;

use serde::Serialize;
use tensorpost_core::console::{ActorFacts, Look, ProcessState, SentReport, printable};

/// Everything that `top` shows. In the JSON form, times are in seconds and sizes in bytes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Figures {
    pub(crate) node: NodeFigures,
    pub(crate) actors: Vec<ActorFigures>,
    pub(crate) processes: Vec<ProcessFigures>,
    pub(crate) memory: Vec<MemoryFigures>,
    pub(crate) links: Vec<LinkFigures>,
    pub(crate) hangs: Vec<String>,
    pub(crate) left_out: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct NodeFigures {
    pub(crate) pid: u32,
    pub(crate) program: String,
    pub(crate) up: f64,
    pub(crate) stopping: bool,
    pub(crate) tracing: bool,
    /// Length of the interval that rates are of.
    pub(crate) interval: f64,
    pub(crate) messages_per_second: f64,
    pub(crate) in_flight: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct ActorFigures {
    pub(crate) name: String,
    pub(crate) process: String,
    pub(crate) pid: u32,
    pub(crate) device: Option<String>,
    pub(crate) state: ProcessState,
    pub(crate) restarts: u32,
    pub(crate) handled: Option<u64>,
    pub(crate) messages_per_second: Option<f64>,
    pub(crate) p50: Option<f64>,
    pub(crate) p99: Option<f64>,
    pub(crate) busy: Option<f64>,
    /// Messages that wait for it, or that it is at.
    pub(crate) queued: Option<u64>,
    pub(crate) capacity: u32,
    /// How long its stream stood in waits in the interval, where the device tells.
    pub(crate) waited: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct ProcessFigures {
    pub(crate) name: String,
    pub(crate) pid: u32,
    pub(crate) state: ProcessState,
    pub(crate) restarts: u32,
    pub(crate) last_end: Option<String>,
    pub(crate) open: Option<usize>,
    pub(crate) dead_letters: Option<u64>,
    pub(crate) rejected: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct MemoryFigures {
    pub(crate) process: String,
    pub(crate) device: String,
    pub(crate) budget: u64,
    pub(crate) chunks: u64,
    pub(crate) held: u64,
    pub(crate) tensors: u64,
    pub(crate) in_flight: u64,
    pub(crate) quarantined: u64,
    pub(crate) holders: Vec<HolderFigures>,
    pub(crate) more_holders: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct HolderFigures {
    pub(crate) process: String,
    pub(crate) bytes: u64,
    pub(crate) tensors: u64,
    pub(crate) oldest: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct LinkFigures {
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) open: bool,
    /// `None`: a sender had it locked at that moment.
    pub(crate) messages: Option<u64>,
    pub(crate) messages_per_second: Option<f64>,
    pub(crate) replies_waiting: Option<u64>,
    pub(crate) lent: u64,
}

impl Figures {
    /// Of `now`, with what has changed since `earlier`.
    pub(crate) fn between(earlier: &Look, now: &Look) -> Figures {
        let interval = now.at.saturating_sub(earlier.at) as f64 / 1e9;
        let actors: Vec<_> =
            now.actors.iter().map(|actor| actor_figures(earlier, now, actor, interval)).collect();
        let processes = now.processes.iter().map(|process| ProcessFigures {
            name: printable(&process.name),
            pid: process.pid,
            state: process.state,
            restarts: process.restarts,
            last_end: process.last_end.as_deref().map(printable),
            open: process.metrics.as_ref().map(|metrics| metrics.open),
            dead_letters: process.metrics.as_ref().map(|metrics| metrics.dead_letters),
            rejected: process.metrics.as_ref().map(|metrics| metrics.rejected),
        });
        let memory: Vec<_> = now.pools.iter().map(|of| memory_figures(now, of)).collect();
        Figures {
            node: NodeFigures {
                pid: now.node.pid,
                program: printable(&now.node.program),
                up: now.node.up.as_secs_f64(),
                stopping: now.node.stopping,
                tracing: now.node.tracing,
                interval,
                messages_per_second: actors.iter().filter_map(|actor| actor.messages_per_second).sum(),
                in_flight: memory.iter().map(|pool| pool.in_flight).sum(),
            },
            processes: processes.collect(),
            memory,
            links: now.links.iter().map(|of| link_figures(earlier, now, of, interval)).collect(),
            hangs: now.hangs.iter().map(|hang| hang.text.clone()).collect(),
            left_out: now.left_out,
            actors,
        }
    }
}

fn per_second(count: f64, interval: f64) -> f64 {
    if interval > 0.0 { count / interval } else { 0.0 }
}

fn actor_figures(earlier: &Look, now: &Look, actor: &ActorFacts, interval: f64) -> ActorFigures {
    let process = now.processes.iter().find(|process| process.process == actor.process);
    let mut figures = ActorFigures {
        name: printable(&actor.name),
        process: printable(now.process(actor.process)),
        pid: process.map_or(0, |process| process.pid),
        device: None,
        state: actor.state,
        restarts: process.map_or(0, |process| process.restarts),
        handled: None,
        messages_per_second: None,
        p50: None,
        p99: None,
        busy: None,
        queued: now.waiting(actor),
        capacity: actor.capacity,
        waited: None,
    };
    let Some(metrics) = &actor.metrics else { return figures };
    // Another life counts from its beginning.
    let before =
        earlier.actors.iter().find(|known| (known.actor, known.process) == (actor.actor, actor.process));
    let before =
        before.and_then(|known| known.metrics.as_ref()).filter(|before| before.handled <= metrics.handled);
    let handler =
        before.map_or_else(|| metrics.handler.clone(), |before| metrics.handler.since(&before.handler));
    let handled = metrics.handled - before.map_or(0, |before| before.handled);
    let busy = metrics.busy.saturating_sub(before.map_or(Duration::ZERO, |before| before.busy));
    let waited = |of: Option<Duration>| of.unwrap_or_default();
    figures.device = Some(Look::device(metrics.device));
    figures.handled = Some(metrics.handled);
    figures.messages_per_second = Some(per_second(handled as f64, interval));
    figures.p50 = handler.quantile(0.5).map(|time| time.as_secs_f64());
    figures.p99 = handler.quantile(0.99).map(|time| time.as_secs_f64());
    figures.busy = Some(per_second(busy.as_secs_f64(), interval).min(1.0));
    figures.waited = metrics
        .waited
        .map(|now| now.saturating_sub(waited(before.and_then(|before| before.waited))).as_secs_f64());
    figures
}

fn memory_figures(now: &Look, of: &tensorpost_core::console::PoolFacts) -> MemoryFigures {
    let holders = of.pool.holders.iter().map(|holder| HolderFigures {
        process: printable(now.process(holder.process)),
        bytes: holder.bytes,
        tensors: holder.tensors,
        oldest: holder.oldest.as_secs_f64(),
    });
    MemoryFigures {
        process: printable(now.process(of.owner)),
        device: Look::device(of.pool.device),
        budget: of.pool.budget,
        chunks: of.pool.chunks,
        held: of.pool.held,
        tensors: of.pool.tensors,
        in_flight: of.pool.in_flight,
        quarantined: of.pool.quarantined,
        holders: holders.collect(),
        more_holders: of.pool.more_holders,
    }
}

fn link_figures(
    earlier: &Look,
    now: &Look,
    of: &tensorpost_core::console::LinkFacts,
    interval: f64,
) -> LinkFigures {
    let all = |sent: &Vec<SentReport>| sent.iter().fold(0, |sum: u64, to| sum.saturating_add(to.sent));
    let messages = of.link.sent.as_ref().map(all);
    let before = earlier.links.iter().find(|known| (known.from, known.link.peer) == (of.from, of.link.peer));
    // A link that was not there before has sent all of it since; one that was locked then says nothing.
    let before = before.map_or(Some(0), |before| before.link.sent.as_ref().map(all));
    let since = messages.zip(before).map(|(now, before)| now.saturating_sub(before));
    LinkFigures {
        from: printable(now.process(of.from)),
        to: printable(now.process(of.link.peer)),
        open: of.link.open,
        messages,
        messages_per_second: since.map(|since| per_second(since as f64, interval)),
        replies_waiting: of.link.replies_waiting,
        lent: of.link.lent,
    }
}
