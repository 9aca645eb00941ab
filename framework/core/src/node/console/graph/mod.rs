//! Who sends to whom, as the links have counted it: for `tensorpost graph` and the live page.
//!
//! A link knows the process that sent and the actor that was sent to. So where a process has one actor, that
//! is the sender; where it has none, as the program's own mostly, or several, the process itself is drawn.
//! What actors of one process send to each other goes over no link, and is not there.

mod form;
mod svg;
mod views;

use serde::Serialize;

use super::protocol::Look;
use crate::observe::metrics::ProcessState;
use crate::observe::text::number;

/// Who sends to whom.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Graph {
    /// Its boxes.
    pub nodes: Vec<GraphNode>,
    /// What goes between them.
    pub edges: Vec<GraphEdge>,
    /// What goes between others on other hosts, and is not in it, because a graph has an end.
    pub left_out: u64,
}

/// An actor, or a process that sends and is not one actor.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GraphNode {
    /// Names it in edges.
    pub id: String,
    /// What it is called.
    pub name: String,
    /// Its host, where it is another one: its number and name.
    pub host: Option<String>,
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

    /// Of a look, with rates since an earlier one; on the head with the other hosts that have answered, each
    /// by its own clock.
    pub fn of(earlier: Option<&Look>, now: &Look) -> Graph {
        views::joined(earlier, now)
    }
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
