//! The answers at the paths of the live page. `/tables.json` is for the page's own script, all others are for
//! programs too.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use serde::Serialize;
use tensorpost_core::api::watch::{SNAPSHOT_LASTS, Watched};

use super::http::Page;
use super::prometheus;
use crate::console::{Figures, Graph, NodeSnapshot, ProcessState, tables};
use crate::draw::{Table, printable};
use crate::limits::MAX_LIVE_SNAPSHOTS;

/// The page itself.
const PAGE: &str = include_str!("page.html");
// Small enough for a browser to load in one go, and for a person to read in one sitting.
const _: () = assert!(PAGE.len() <= 30 << 10);

/// The least interval of rates, if there is a snapshot that is old enough.
const INTERVAL: Duration = Duration::from_millis(900);

/// The contents of the page, drawn: its script only sorts and filters.
#[derive(Serialize)]
struct Contents<'a> {
    program: &'a str,
    line: String,
    tables: [(&'static str, Table); 5],
    hangs: &'a [String],
}

/// See the module.
pub(super) struct Pages {
    node: Watched,
    /// The snapshots, the latest one last.
    snapshots: VecDeque<(Instant, NodeSnapshot)>,
}

impl Pages {
    pub(super) fn new(node: Watched) -> Self {
        Pages { node, snapshots: VecDeque::new() }
    }

    /// Returns the answer to a `GET` of `path`.
    pub(super) fn answer(&mut self, path: &str) -> Page {
        let ok = |kind, body: String| Page { status: "200 OK", kind, body: body.into_bytes() };
        let of_a_snapshot: fn(&NodeSnapshot, &NodeSnapshot) -> Page = match path {
            "/" => return ok("text/html; charset=utf-8", PAGE.to_owned()),
            "/livez" => |_, _| Page::text("200 OK", "ok"),
            "/readyz" => |_, now| {
                let missing = not_ready(now);
                match missing.is_empty() {
                    true => Page::text("200 OK", "ready"),
                    false => Page::text("503 Service Unavailable", missing.join("\n")),
                }
            },
            "/metrics" => |_, now| Page {
                status: "200 OK",
                kind: "text/plain; version=0.0.4; charset=utf-8",
                body: prometheus::text(now).into_bytes(),
            },
            "/figures.json" => |earlier, now| json(&Figures::between(earlier, now)),
            "/tables.json" => |earlier, now| contents(&Figures::between(earlier, now)),
            "/graph.svg" => |earlier, now| Page {
                status: "200 OK",
                kind: "image/svg+xml",
                body: Graph::of(Some(earlier), now).svg().into_bytes(),
            },
            _ => {
                let known = "/, /metrics, /livez, /readyz, /figures.json and /graph.svg";
                return Page::text("404 Not Found", format!("there is nothing here; there are {known}"));
            }
        };
        if let Err(page) = self.snapshot() {
            return page;
        }
        match interval(&self.snapshots) {
            Some((earlier, now)) => of_a_snapshot(earlier, now),
            None => unavailable("the node has not been looked at"),
        }
    }

    /// Takes a new snapshot, unless the last one is only a moment old.
    fn snapshot(&mut self) -> Result<(), Page> {
        if self.snapshots.back().is_some_and(|(at, _)| at.elapsed() < SNAPSHOT_LASTS) {
            return Ok(());
        }
        match self.node.snapshot() {
            Ok(Some(snapshot)) => {
                // There are ten in a second at most, so the oldest one is old enough for rates.
                if self.snapshots.len() >= MAX_LIVE_SNAPSHOTS {
                    self.snapshots.pop_front();
                }
                self.snapshots.push_back((Instant::now(), snapshot));
                Ok(())
            }
            Ok(None) => Err(unavailable("the node's supervisor does not answer")),
            Err(_) => Err(unavailable("the node has ended")),
        }
    }
}

/// Returns the two snapshots that rates are taken from: the youngest snapshot that is old enough, or else the
/// oldest, and the latest.
fn interval(snapshots: &VecDeque<(Instant, NodeSnapshot)>) -> Option<(&NodeSnapshot, &NodeSnapshot)> {
    let (at, now) = snapshots.back()?;
    let is_old = |earlier: &&(Instant, NodeSnapshot)| at.duration_since(earlier.0) >= INTERVAL;
    let earlier = snapshots.iter().rev().find(is_old).or_else(|| snapshots.front());
    earlier.map(|(_, earlier)| (earlier, now))
}

/// Returns the contents of the page, for its script alone.
fn contents(figures: &Figures) -> Page {
    let (program, hangs) = (&figures.node.program, &figures.hangs);
    json(&Contents { program, line: tables::line(figures), tables: tables::all(figures), hangs })
}

fn json(value: &impl Serialize) -> Page {
    match serde_json::to_vec(value) {
        Ok(body) => Page { status: "200 OK", kind: "application/json", body },
        Err(error) => Page::text("500 Internal Server Error", error.to_string()),
    }
}

fn unavailable(why: &str) -> Page {
    Page::text("503 Service Unavailable", why)
}

/// Returns the reasons why the node is not ready for work.
fn not_ready(snapshot: &NodeSnapshot) -> Vec<String> {
    let mut missing = Vec::new();
    if snapshot.node.stopping {
        missing.push("the node is shutting down".to_owned());
    }
    // A process that has ended for good is nothing to wait for, nor is a spare; a process that comes back is.
    let is_missing =
        |state| !matches!(state, ProcessState::Running | ProcessState::Ended | ProcessState::Spare);
    for process in snapshot.processes.iter().filter(|of| is_missing(of.state)) {
        missing.push(format!("process `{}` is {}", printable(&process.name), process.state));
    }
    for actor in snapshot.actors.iter().filter(|of| of.state != ProcessState::Running) {
        missing.push(format!("actor `{}` is {}", printable(&actor.name), actor.state));
    }
    for host in &snapshot.hosts {
        let name = printable(&host.name);
        match &host.snapshot {
            Some(snapshot) => {
                missing.extend(not_ready(snapshot).into_iter().map(|what| format!("host {name}: {what}")))
            }
            None => missing.push(format!("host {name} does not answer")),
        }
    }
    missing
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::console::{HostFacts, sample};

    #[test]
    fn rates_are_of_the_last_second_where_there_was_a_look() {
        let began = Instant::now();
        let snapshot =
            |ms: u64| (began + Duration::from_millis(ms), sample::snapshot(ms * 1_000_000, [ms, 0]));
        let of = |snapshots: &[u64]| {
            let snapshots = snapshots.iter().copied().map(snapshot).collect();
            interval(&snapshots).map(|(earlier, now)| (earlier.at / 1_000_000, now.at / 1_000_000))
        };
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[5]), Some((5, 5)));
        assert_eq!(of(&[5, 105]), Some((5, 105)));
        assert_eq!(of(&[5, 1005, 1105, 2005]), Some((1105, 2005)));
        assert_eq!(of(&[5, 90_000]), Some((5, 90_000)));
    }

    #[test]
    fn the_page_has_the_texts_of_the_tables() {
        let figures =
            Figures::between(&sample::snapshot(0, [0, 0]), &sample::snapshot(1_000_000_000, [500, 20]));
        let page = contents(&figures);
        let said: serde_json::Value = serde_json::from_slice(&page.body).expect("it is JSON");
        assert_eq!((&said["program"], &said["line"]), (&"demo".into(), &tables::line(&figures).into()));
        let (id, actors) = (&said["tables"][0][0], &said["tables"][0][1]);
        assert_eq!((id, &actors["titles"][7]), (&"actors".into(), &">QUEUE".into()));
        let queue = serde_json::json!({"text": "3/16", "number": 3.0, "share": 0.1875});
        assert_eq!((&actors["rows"][1][7], &actors["rows"][0][0]["text"]), (&queue, &"camera.0".into()));
        // The page has a place for each of them.
        for (id, _) in tables::all(&figures) {
            assert!(PAGE.contains(&format!("<table id=\"{id}\">")), "{id}");
        }
    }

    #[test]
    fn a_node_is_ready_when_all_that_is_to_run_runs() {
        let mut snapshot = sample::snapshot(0, [1, 2]);
        assert_eq!(not_ready(&snapshot), Vec::<String>::new());
        snapshot.processes[2].state = ProcessState::Ended;
        assert_eq!(not_ready(&snapshot), Vec::<String>::new());
        snapshot.processes[2].state = ProcessState::Spare;
        assert_eq!(not_ready(&snapshot), Vec::<String>::new());
        snapshot.processes[2].state = ProcessState::Silent;
        snapshot.actors[1].state = ProcessState::Restarting;
        snapshot.node.stopping = true;
        let missing = not_ready(&snapshot);
        assert_eq!(missing[..2], ["the node is shutting down", "process `stage` is silent"]);
        assert!(missing[2].ends_with("is restarting"), "{missing:?}");
        let mut head = sample::snapshot(0, [1, 2]);
        let host = |number: u16, snapshot| HostFacts { number, name: format!("{number} x"), snapshot };
        head.hosts =
            vec![host(1, Some(Box::new(sample::snapshot(0, [1, 2])))), host(2, Some(Box::new(snapshot)))];
        head.hosts.push(host(3, None));
        let missing = not_ready(&head);
        assert_eq!(missing[0], "host 2 x: the node is shutting down");
        assert_eq!((missing.len(), missing[3].as_str()), (4, "host 3 x does not answer"));
    }
}
