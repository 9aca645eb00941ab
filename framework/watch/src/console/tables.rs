//! The tables made from two snapshots, for `tensorpost top` and the live page.

use super::table::{Cell, Table};
use super::{ActorFigures, Figures, HolderFigures, LinkFigures, MemoryFigures, NodeFigures, ProcessFigures};
use crate::draw::{bytes, number, percent, seconds};

/// Makes a cell of a name, with its host where that is another host.
fn on(host: Option<&String>, name: &str) -> Cell {
    host.map_or_else(|| name.to_owned(), |host| format!("{name} on {host}")).into()
}

/// Returns the table of actors.
pub fn actors(actors: &[ActorFigures]) -> Table {
    let row = |actor: &ActorFigures| {
        let queued = actor.queued.map_or_else(|| "-".to_owned(), |queued| queued.to_string());
        let queue = format!("{queued}/{}", actor.capacity);
        vec![
            actor.name.clone().into(),
            on(actor.host.as_ref(), &actor.process),
            actor.device.as_deref().unwrap_or("-").into(),
            Cell::figure(actor.messages_per_second, number),
            Cell::figure(actor.p50, seconds),
            Cell::figure(actor.p99, seconds),
            Cell::figure(actor.busy, percent).of(1.0),
            Cell { text: queue, ..Cell::count(actor.queued).of(f64::from(actor.capacity)) },
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

/// Returns the table of processes.
pub fn processes(processes: &[ProcessFigures]) -> Table {
    let row = |process: &ProcessFigures| {
        vec![
            on(process.host.as_ref(), &process.name),
            Cell::count(Some(u64::from(process.pid))),
            process.state.to_string().into(),
            Cell::count(Some(u64::from(process.restarts))),
            Cell::count(process.open.map(|open| open as u64)),
            Cell::size(process.resident),
            Cell::size(process.gpu_memory),
            Cell::figure(process.gpu_busy, percent),
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
            ">GPU MEMORY",
            ">GPU BUSY",
            ">DEAD LETTERS",
            ">REJECTED",
            "LAST END",
        ],
        rows: processes.iter().map(row).collect(),
        dispensable: &[10, 9, 7, 6, 8, 5],
    }
}

/// Returns the table of memory, by process and device.
pub fn memory(memory: &[MemoryFigures]) -> Table {
    let row = |pool: &MemoryFigures| {
        vec![
            on(pool.host.as_ref(), &pool.process),
            pool.device.clone().into(),
            Cell::size(Some(pool.held)).of(pool.budget as f64),
            Cell::count(Some(pool.tensors)),
            Cell::size(Some(pool.in_flight)),
            Cell::size(Some(pool.quarantined)),
            Cell::size(Some(pool.chunks)),
            Cell::size(Some(pool.budget)),
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

/// Returns the table of holders, the largest first.
pub fn holders(memory: &[MemoryFigures]) -> Table {
    let mut holders: Vec<_> =
        memory.iter().flat_map(|pool| pool.holders.iter().map(move |holder| (pool, holder))).collect();
    holders.sort_by_key(|(_, holder)| std::cmp::Reverse(holder.bytes));
    let row = |(pool, holder): (&MemoryFigures, &HolderFigures)| {
        vec![
            on(pool.host.as_ref(), &holder.process),
            on(pool.host.as_ref(), &pool.process),
            pool.device.clone().into(),
            Cell::size(Some(holder.bytes)),
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

/// Returns the table of links.
pub fn links(links: &[LinkFigures]) -> Table {
    let row = |link: &LinkFigures| {
        vec![
            on(link.host.as_ref(), &link.from),
            on(link.host.as_ref(), &link.to),
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

/// Returns the node in one line.
pub fn line(figures: &Figures) -> String {
    let mut line = line_of(&figures.node);
    if figures.left_out > 0 {
        line.push_str(&format!(", {} actors are not shown", figures.left_out));
    }
    if !figures.hosts.is_empty() {
        line.push_str(&format!(", with hosts {}", figures.hosts.join(", ")));
    }
    if !figures.silent_hosts.is_empty() {
        line.push_str(&format!("; no answer from {}", figures.silent_hosts.join(", ")));
    }
    line
}

fn line_of(node: &NodeFigures) -> String {
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

/// Returns all tables, each by its name.
pub fn all(figures: &Figures) -> [(&'static str, Table); 5] {
    [
        ("actors", actors(&figures.actors)),
        ("processes", processes(&figures.processes)),
        ("memory", memory(&figures.memory)),
        ("holders", holders(&figures.memory)),
        ("links", links(&figures.links)),
    ]
}

/// Returns all tables as plain text.
pub fn plain(figures: &Figures) -> String {
    let mut text = line(figures) + "\n";
    for (_, table) in all(figures).iter().filter(|(_, table)| !table.rows.is_empty()) {
        text += &format!("\n{}", table.plain());
    }
    if !figures.hangs.is_empty() {
        text += "\nHANGS\n";
        figures.hangs.iter().for_each(|hang| text += &format!("{hang}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::console::{ProcessState, sample};

    #[test]
    fn what_is_on_another_host_says_so_and_who_does_not_answer_is_named() {
        let process = |host: Option<&str>| ProcessFigures {
            host: host.map(str::to_owned),
            name: "blur".to_owned(),
            pid: 7,
            state: ProcessState::Running,
            restarts: 0,
            last_end: None,
            open: None,
            resident: None,
            gpu_memory: None,
            gpu_busy: None,
            dead_letters: None,
            rejected: None,
        };
        let table = processes(&[process(None), process(Some("1 left"))]);
        let names: Vec<_> = table.rows.iter().map(|row| row[0].text.as_str()).collect();
        assert_eq!(names, ["blur", "blur on 1 left"]);
        let node = NodeFigures {
            pid: 1,
            program: "demo".to_owned(),
            up: 1.0,
            stopping: false,
            tracing: false,
            interval: 1.0,
            messages_per_second: 5.0,
            in_flight: 0,
        };
        let mut figures = Figures {
            node,
            actors: vec![],
            processes: vec![],
            memory: vec![],
            links: vec![],
            hangs: vec![],
            left_out: 0,
            hosts: vec![],
            silent_hosts: vec![],
        };
        let alone = line(&figures);
        (figures.hosts, figures.silent_hosts) = (vec!["1 left".to_owned()], vec!["2 x".to_owned()]);
        figures.left_out = 3;
        let all = "3 actors are not shown, with hosts 1 left; no answer from 2 x";
        assert_eq!(line(&figures), format!("{alone}, {all}"));
    }

    #[test]
    fn a_figure_with_a_bound_has_its_share() {
        let figures =
            Figures::between(&sample::snapshot(0, [0, 0]), &sample::snapshot(1_000_000_000, [500, 20]));
        let queue = actors(&figures.actors).rows[1][7].clone();
        assert_eq!((queue.text.as_str(), queue.number, queue.share), ("3/16", Some(3.0), Some(3.0 / 16.0)));
        let held = memory(&figures.memory).rows[0][2].clone();
        assert_eq!((held.text.as_str(), held.share), ("1.0 MiB", Some(1.0 / 1024.0)));
        let text = plain(&figures);
        for (_, table) in all(&figures) {
            assert!(text.contains(&table.plain()), "{text}");
        }
    }
}
