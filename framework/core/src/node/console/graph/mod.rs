//! Who sends to whom, as the links have counted it: for `tensorpost graph` and the live page.
//!
//! A link knows the process that sent and the actor that was sent to. So where a process has one actor, that is the sender;
//! where it has none, as the program's own mostly, or several, the process itself is drawn. What actors of one process send to
//! each other goes over no link, and is not there.

mod form;
mod svg;

use serde::Serialize;

use super::protocol::{ActorFacts, Look};
use crate::ids::ProcessId;
use crate::observe::metrics::ProcessState;
use crate::observe::survey::SentReport;
use crate::observe::text::{number, printable};

/// Who sends to whom.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Graph {
    /// Its boxes.
    pub nodes: Vec<GraphNode>,
    /// What goes between them.
    pub edges: Vec<GraphEdge>,
}

/// An actor, or a process that sends and is not one actor.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GraphNode {
    /// Names it in edges.
    pub id: String,
    /// What it is called.
    pub name: String,
    /// What its process is called.
    pub process: String,
    /// Its device. `None` for a process.
    pub device: Option<String>,
    /// How far it is.
    pub state: ProcessState,
}

/// What one sends to another.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GraphEdge {
    /// The sender.
    pub from: String,
    /// The receiver.
    pub to: String,
    /// All messages so far.
    pub messages: u64,
    /// Of the interval, where one was looked at.
    pub messages_per_second: Option<f64>,
    /// Messages that the receiver is not done with.
    pub waiting: u64,
    /// How many of them there may be.
    pub capacity: u32,
}

impl GraphEdge {
    /// What stands on it, where it is live.
    fn label(&self) -> Option<String> {
        self.messages_per_second.map(|rate| format!("{}/s, {}/{}", number(rate), self.waiting, self.capacity))
    }
}

impl Graph {
    /// For GitHub's Markdown and mermaid.live.
    pub fn mermaid(&self) -> String {
        form::mermaid(self)
    }

    /// For Graphviz.
    pub fn dot(&self) -> String {
        form::dot(self)
    }

    /// A picture, readable on light and on dark ground.
    pub fn svg(&self) -> String {
        svg::svg(self)
    }

    /// Of a look, with rates since an earlier one.
    pub fn of(earlier: Option<&Look>, now: &Look) -> Graph {
        let mut graph = Graph::default();
        for actor in &now.actors {
            graph.nodes.push(GraphNode {
                id: actor_id(actor),
                name: printable(&actor.name),
                process: printable(now.process(actor.process)),
                device: actor.metrics.as_ref().map(|metrics| Look::device(metrics.device)),
                state: actor.state,
            });
        }
        for of in &now.links {
            for sent in of.link.sent.iter().flatten() {
                let is_it = |actor: &&ActorFacts| (actor.process, actor.index) == (of.link.peer, sent.index);
                // One that has ended meanwhile is not shown.
                let Some(to) = now.actors.iter().find(is_it) else { continue };
                let from = graph.sender(now, of.from);
                let before = earlier.map(|earlier| sent_before(earlier, of.from, of.link.peer, sent.index));
                let interval = earlier.map_or(0.0, |earlier| now.at.saturating_sub(earlier.at) as f64 / 1e9);
                let rate = before.filter(|_| interval > 0.0).map(|before| {
                    // Where a sender had it locked then, there is no telling.
                    before.map_or(0.0, |before| sent.sent.saturating_sub(before) as f64 / interval)
                });
                graph.edges.push(GraphEdge {
                    from,
                    to: actor_id(to),
                    messages: sent.sent,
                    messages_per_second: rate,
                    waiting: sent.sent.saturating_sub(sent.done),
                    capacity: to.capacity,
                });
            }
        }
        graph
    }

    /// The node that stands for a sending process; made where there is none.
    fn sender(&mut self, now: &Look, process: ProcessId) -> String {
        let mut actors = now.actors.iter().filter(|actor| actor.process == process);
        if let (Some(only), None) = (actors.next(), actors.next()) {
            return actor_id(only);
        }
        let id = format!("p{}", process.slot());
        if !self.nodes.iter().any(|node| node.id == id) {
            let facts = now.processes.iter().find(|known| known.process == process);
            self.nodes.push(GraphNode {
                id: id.clone(),
                name: printable(now.process(process)),
                process: printable(now.process(process)),
                device: None,
                state: facts.map_or(ProcessState::Ended, |facts| facts.state),
            });
        }
        id
    }
}

fn actor_id(actor: &ActorFacts) -> String {
    format!("a{}", actor.actor.0)
}

/// What had been sent then; `None` where that is not known.
fn sent_before(earlier: &Look, from: ProcessId, to: ProcessId, index: u16) -> Option<u64> {
    let Some(link) = earlier.links.iter().find(|of| (of.from, of.link.peer) == (from, to)) else {
        return Some(0);
    };
    let count =
        |sent: &Vec<SentReport>| sent.iter().find(|sent| sent.index == index).map_or(0, |sent| sent.sent);
    link.link.sent.as_ref().map(count)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::node::console::sample::look;

    pub(crate) fn graph() -> Graph {
        Graph::of(Some(&look(0, [1000, 20])), &look(1_000_000_000, [1500, 120]))
    }

    #[test]
    fn an_edge_has_the_rate_of_the_interval_and_what_waits() {
        let graph = graph();
        assert_eq!(graph.nodes.iter().map(|node| node.id.as_str()).collect::<Vec<_>>(), ["a1", "a2"]);
        let edge = &graph.edges[0];
        assert_eq!((edge.from.as_str(), edge.to.as_str(), edge.messages), ("a1", "a2", 123));
        assert_eq!(edge.label().as_deref(), Some("100/s, 3/16"));
        assert_eq!(Graph::of(None, &look(0, [1, 2])).edges[0].label(), None);
    }

    #[test]
    fn a_process_that_is_not_one_actor_stands_for_itself() {
        let mut look = look(0, [1, 2]);
        look.links[0].from = look.processes[0].process;
        let graph = Graph::of(None, &look);
        assert_eq!((graph.nodes[2].id.as_str(), graph.nodes[2].name.as_str()), ("p0", "node"));
        assert_eq!(graph.edges[0].from, "p0");
    }
}
