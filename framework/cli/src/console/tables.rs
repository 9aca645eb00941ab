//! The tables of what two looks say, in the units and words that progress and reports use.

use std::time::Duration;

use tensorpost_core::console::{
    ActorFigures, Figures, HolderFigures, LinkFigures, MemoryFigures, NodeFigures, ProcessFigures, bytes,
    number, time,
};

use super::table::{Cell, Table};

pub(super) fn seconds(value: f64) -> String {
    time(Duration::from_secs_f64(value.max(0.0)))
}

fn size(value: u64) -> Cell {
    Cell { text: bytes(value), number: Some(value as f64) }
}

pub(crate) fn actors(actors: &[ActorFigures]) -> Table {
    let row = |actor: &ActorFigures| {
        let queued = actor.queued.map_or_else(|| "-".to_owned(), |queued| queued.to_string());
        let queue = format!("{queued}/{}", actor.capacity);
        vec![
            actor.name.clone().into(),
            actor.process.clone().into(),
            actor.device.as_deref().unwrap_or("-").into(),
            Cell::figure(actor.messages_per_second, number),
            Cell::figure(actor.p50, seconds),
            Cell::figure(actor.p99, seconds),
            Cell::figure(actor.busy, |busy| format!("{:.0}%", busy * 100.0)),
            Cell { text: queue, number: actor.queued.map(|queued| queued as f64) },
            Cell::count(actor.handled),
            Cell::figure(actor.waited, seconds),
            Cell::count(Some(u64::from(actor.restarts))),
            actor.state.to_string().into(),
        ]
    };
    Table {
        titles: &[
            "ACTOR",
            "PROCESS",
            "DEVICE",
            ">MSG/S",
            ">P50",
            ">P99",
            ">BUSY",
            ">QUEUE",
            ">HANDLED",
            ">WAITED",
            ">RESTARTS",
            "STATE",
        ],
        rows: actors.iter().map(row).collect(),
        dispensable: &[9, 10, 8, 1, 2, 4],
    }
}

pub(crate) fn processes(processes: &[ProcessFigures]) -> Table {
    let row = |process: &ProcessFigures| {
        vec![
            process.name.clone().into(),
            Cell::count(Some(u64::from(process.pid))),
            process.state.to_string().into(),
            Cell::count(Some(u64::from(process.restarts))),
            Cell::count(process.open.map(|open| open as u64)),
            process.resident.map_or_else(|| Cell::count(None), size),
            Cell::count(process.dead_letters),
            Cell::count(process.rejected),
            process.last_end.clone().unwrap_or_default().into(),
        ]
    };
    Table {
        titles: &[
            "PROCESS",
            ">PID",
            "STATE",
            ">RESTARTS",
            ">OPEN",
            ">RESIDENT",
            ">DEAD LETTERS",
            ">REJECTED",
            "LAST END",
        ],
        rows: processes.iter().map(row).collect(),
        dispensable: &[8, 7, 6, 5],
    }
}

pub(crate) fn memory(memory: &[MemoryFigures]) -> Table {
    let row = |pool: &MemoryFigures| {
        vec![
            pool.process.clone().into(),
            pool.device.clone().into(),
            size(pool.held),
            Cell::count(Some(pool.tensors)),
            size(pool.in_flight),
            size(pool.quarantined),
            size(pool.chunks),
            size(pool.budget),
        ]
    };
    Table {
        titles: &[
            "MEMORY OF",
            "DEVICE",
            ">HELD",
            ">TENSORS",
            ">IN FLIGHT",
            ">RELEASED",
            ">CHUNKS",
            ">BUDGET",
        ],
        rows: memory.iter().map(row).collect(),
        dispensable: &[5, 3, 6],
    }
}

/// Who holds what, the largest first.
pub(crate) fn holders(memory: &[MemoryFigures]) -> Table {
    let mut holders: Vec<_> =
        memory.iter().flat_map(|pool| pool.holders.iter().map(move |holder| (pool, holder))).collect();
    holders.sort_by_key(|(_, holder)| std::cmp::Reverse(holder.bytes));
    let row = |(pool, holder): (&MemoryFigures, &HolderFigures)| {
        vec![
            holder.process.clone().into(),
            pool.process.clone().into(),
            pool.device.clone().into(),
            size(holder.bytes),
            Cell::count(Some(holder.tensors)),
            Cell::figure(Some(holder.oldest), seconds),
        ]
    };
    Table {
        titles: &["HOLDER", "MEMORY OF", "DEVICE", ">BYTES", ">TENSORS", ">OLDEST"],
        rows: holders.into_iter().map(row).collect(),
        dispensable: &[4],
    }
}

pub(crate) fn links(links: &[LinkFigures]) -> Table {
    let row = |link: &LinkFigures| {
        vec![
            link.from.clone().into(),
            link.to.clone().into(),
            Cell::figure(link.messages_per_second, number),
            Cell::count(link.messages),
            Cell::count(link.replies_waiting),
            Cell::count(Some(link.lent)),
            if link.open { "open" } else { "closed" }.into(),
        ]
    };
    Table {
        titles: &["FROM", "TO", ">MSG/S", ">MESSAGES", ">REPLIES WAITING", ">LEASES LENT", "STATE"],
        rows: links.iter().map(row).collect(),
        dispensable: &[4, 3],
    }
}

/// The node in one line.
pub(crate) fn line(node: &NodeFigures) -> String {
    let mut line = format!(
        "node {} ({}), up {}, {} msg/s, {} in flight",
        node.pid,
        node.program,
        seconds(node.up),
        number(node.messages_per_second),
        bytes(node.in_flight)
    );
    if node.stopping {
        line.push_str(", stopping");
    }
    if node.tracing {
        line.push_str(", tracing");
    }
    line
}

/// All of it, as plain text.
pub(crate) fn plain(figures: &Figures) -> String {
    let shown = |table: Table| {
        if table.rows.is_empty() { String::new() } else { format!("\n{}", table.plain()) }
    };
    let mut text = line(&figures.node) + "\n";
    text += &shown(actors(&figures.actors));
    if figures.left_out > 0 {
        text += &format!("and {} more\n", figures.left_out);
    }
    text += &shown(processes(&figures.processes));
    text += &shown(memory(&figures.memory));
    text += &shown(holders(&figures.memory));
    text += &shown(links(&figures.links));
    if !figures.hangs.is_empty() {
        text += "\nHANGS\n";
        figures.hangs.iter().for_each(|hang| text += &format!("{hang}\n"));
    }
    text
}
