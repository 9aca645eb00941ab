//! The graph of senders and receivers, as the links have counted messages: for `tensorpost graph` and the
//! live page.
//!
//! A link knows the sending process and the receiving actor. So if a process has one actor, that actor is
//! drawn as the sender. If it has none, as mostly the program's own process, or several, the process itself
//! is drawn. Messages between actors of one process go over no link, and are not in the graph.

mod form;
mod svg;
mod views;

use serde::Serialize;

use super::{NodeSnapshot, ProcessState};
use crate::draw::number;

/// Senders, receivers and the messages between them.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Graph {
    /// The boxes.
    pub nodes: Vec<GraphNode>,
    /// The arrows between them.
    pub edges: Vec<GraphEdge>,
    /// How many edges of other hosts are left out, because a graph is bounded.
    pub left_out: u64,
}

/// An actor, or a sending process that does not have exactly one actor.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GraphNode {
    /// Its id in edges.
    pub id: String,
    /// Its name.
    pub name: String,
    /// The number and name of its host, if it is another one.
    pub host: Option<String>,
    /// The name of its process.
    pub process: String,
    /// Its device. `None` for a process.
    pub device: Option<String>,
    /// Its state.
    pub state: ProcessState,
}

/// The messages from a sender to a receiver.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GraphEdge {
    /// The sender.
    pub from: String,
    /// The receiver.
    pub to: String,
    /// All messages so far.
    pub messages: u64,
    /// Messages per second in the interval, if there is an earlier snapshot.
    pub messages_per_second: Option<f64>,
    /// Messages that the receiver has not finished.
    pub waiting: u64,
    /// How many unfinished messages there may be.
    pub capacity: u32,
}

impl GraphEdge {
    /// Returns the text on the arrow, if there are rates.
    fn label(&self) -> Option<String> {
        self.messages_per_second.map(|rate| format!("{}/s, {}/{}", number(rate), self.waiting, self.capacity))
    }
}

impl Graph {
    /// Returns the graph in the form of mermaid, for GitHub's Markdown and mermaid.live.
    pub fn mermaid(&self) -> String {
        form::mermaid(self)
    }

    /// Returns the graph in the form of Graphviz.
    pub fn dot(&self) -> String {
        form::dot(self)
    }

    /// Returns a picture, readable on light and dark background.
    pub fn svg(&self) -> String {
        svg::svg(self)
    }

    /// Makes the graph of a snapshot, with rates since an earlier one. On the head it includes the other
    /// hosts that have answered, each by its own clock.
    pub fn of(earlier: Option<&NodeSnapshot>, now: &NodeSnapshot) -> Graph {
        views::joined(earlier, now)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::console::sample::snapshot;

    pub(crate) fn graph() -> Graph {
        Graph::of(Some(&snapshot(0, [1000, 20])), &snapshot(1_000_000_000, [1500, 120]))
    }

    #[test]
    fn an_edge_has_the_rate_of_the_interval_and_what_waits() {
        let graph = graph();
        assert_eq!(graph.nodes.iter().map(|node| node.id.as_str()).collect::<Vec<_>>(), ["a1", "a2"]);
        let edge = &graph.edges[0];
        assert_eq!((edge.from.as_str(), edge.to.as_str(), edge.messages), ("a1", "a2", 123));
        assert_eq!(edge.label().as_deref(), Some("100/s, 3/16"));
        assert_eq!(Graph::of(None, &snapshot(0, [1, 2])).edges[0].label(), None);
    }

    #[test]
    fn a_process_that_is_not_one_actor_stands_for_itself() {
        let mut snapshot = snapshot(0, [1, 2]);
        snapshot.links[0].from = snapshot.processes[0].process;
        let graph = Graph::of(None, &snapshot);
        assert_eq!((graph.nodes[2].id.as_str(), graph.nodes[2].name.as_str()), ("p0", "node"));
        assert_eq!(graph.edges[0].from, "p0");
    }
}
