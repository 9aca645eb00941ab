//! The tables made from two snapshots, for `tensorpost top` and the live page.

use super::{ActorFigures, Figures, HolderFigures, LinkFigures, MemoryFigures, NodeFigures, ProcessFigures};
use crate::draw::{Cell, Table, bytes, number, percent, seconds};

/// Makes a cell of a name, with its host where that is another host.
fn on(host: &Option<String>, name: &str) -> Cell {
    host.as_ref().map_or_else(|| name.to_owned(), |host| format!("{name} on {host}")).into()
}

/// Makes the cell of an actor's mailbox: the messages in it, and its room.
fn queue(of: &ActorFigures) -> Cell {
    let queued = of.queued.map_or_else(|| "-".to_owned(), |queued| queued.to_string());
    let text = format!("{queued}/{}", of.capacity);
    Cell { text, ..Cell::count(of.queued).of(f64::from(of.capacity)) }
}

/// Returns the table of actors.
pub fn actors(actors: &[ActorFigures]) -> Table {
    Table::of(
        actors,
        &[9, 10, 8, 1, 2, 4],
        &[
            ("ACTOR", |of| of.name.clone().into()),
            ("PROCESS", |of| on(&of.host, &of.process)),
            ("DEVICE", |of| of.device.as_deref().unwrap_or("-").into()),
            (">MSG/S", |of| Cell::figure(of.messages_per_second, number)),
            (">P50", |of| Cell::figure(of.p50, seconds)),
            (">P99", |of| Cell::figure(of.p99, seconds)),
            (">BUSY", |of| Cell::figure(of.busy, percent).of(1.0)),
            (">QUEUE", queue),
            (">HANDLED", |of| Cell::count(of.handled)),
            (">WAITED", |of| Cell::figure(of.waited, seconds)),
            (">RESTARTS", |of| Cell::count(Some(u64::from(of.restarts)))),
            ("STATE", |of| of.state.to_string().into()),
        ],
    )
}

/// Returns the table of processes.
pub fn processes(processes: &[ProcessFigures]) -> Table {
    Table::of(
        processes,
        &[10, 9, 7, 6, 8, 5],
        &[
            ("PROCESS", |of| on(&of.host, &of.name)),
            (">PID", |of| Cell::count(Some(u64::from(of.pid)))),
            ("STATE", |of| of.state.to_string().into()),
            (">RESTARTS", |of| Cell::count(Some(u64::from(of.restarts)))),
            (">OPEN", |of| Cell::count(of.open.map(|open| open as u64))),
            (">RESIDENT", |of| Cell::size(of.resident)),
            (">GPU MEMORY", |of| Cell::size(of.gpu_memory)),
            (">GPU BUSY", |of| Cell::figure(of.gpu_busy, percent)),
            (">DEAD LETTERS", |of| Cell::count(of.dead_letters)),
            (">REJECTED", |of| Cell::count(of.rejected)),
            ("LAST END", |of| of.last_end.clone().unwrap_or_default().into()),
        ],
    )
}

/// Returns the table of memory, by process and device.
pub fn memory(memory: &[MemoryFigures]) -> Table {
    Table::of(
        memory,
        &[5, 3, 6],
        &[
            ("MEMORY OF", |of| on(&of.host, &of.process)),
            ("DEVICE", |of| of.device.clone().into()),
            (">HELD", |of| Cell::size(Some(of.held)).of(of.budget as f64)),
            (">TENSORS", |of| Cell::count(Some(of.tensors))),
            (">IN FLIGHT", |of| Cell::size(Some(of.in_flight))),
            (">RELEASED", |of| Cell::size(Some(of.quarantined))),
            (">CHUNKS", |of| Cell::size(Some(of.chunks))),
            (">BUDGET", |of| Cell::size(Some(of.budget))),
        ],
    )
}

/// Returns the table of holders, the largest first.
pub fn holders(memory: &[MemoryFigures]) -> Table {
    let mut holders: Vec<(&MemoryFigures, &HolderFigures)> =
        memory.iter().flat_map(|pool| pool.holders.iter().map(move |holder| (pool, holder))).collect();
    holders.sort_by_key(|(_, holder)| std::cmp::Reverse(holder.bytes));
    Table::of(
        &holders,
        &[4],
        &[
            ("HOLDER", |(pool, holder)| on(&pool.host, &holder.process)),
            ("MEMORY OF", |(pool, _)| on(&pool.host, &pool.process)),
            ("DEVICE", |(pool, _)| pool.device.clone().into()),
            (">BYTES", |(_, holder)| Cell::size(Some(holder.bytes))),
            (">TENSORS", |(_, holder)| Cell::count(Some(holder.tensors))),
            (">OLDEST", |(_, holder)| Cell::figure(Some(holder.oldest), seconds)),
        ],
    )
}

/// Returns the table of links.
pub fn links(links: &[LinkFigures]) -> Table {
    Table::of(
        links,
        &[4, 3],
        &[
            ("FROM", |of| on(&of.host, &of.from)),
            ("TO", |of| on(&of.host, &of.to)),
            (">MSG/S", |of| Cell::figure(of.messages_per_second, number)),
            (">MESSAGES", |of| Cell::count(of.messages)),
            (">REPLIES WAITING", |of| Cell::count(of.replies_waiting)),
            (">LEASES LENT", |of| Cell::count(Some(of.lent))),
            ("STATE", |of| if of.open { "open" } else { "closed" }.into()),
        ],
    )
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
