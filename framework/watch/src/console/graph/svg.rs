//! The graph as a picture: boxes in columns from senders to receivers, with curves between them. An edge that
//! passes a column has a lane of its own above the boxes. An edge that leads back has a lane below them. So
//! no label covers another. The picture is one file, readable on light and dark background.

use std::collections::HashMap;
use std::fmt::Write;

use super::Graph;
use super::form::place;
use crate::draw::shortened;

const BOX_HEIGHT: usize = 44;
const ROW: usize = 76;
/// The space between columns: it holds a label.
const GAP: usize = 150;
const MARGIN: usize = 16;
/// The space between two lanes: it holds a label.
const LANE: usize = 18;
/// The approximate width of a letter of the larger size.
const LETTER: usize = 8;
/// The longest name that is not shortened.
const MAX_NAME: usize = 32;

/// How far an edge to or from a lane goes to the side.
const TURN: usize = 40;

/// The route of an edge.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// To the next column.
    Direct,
    /// Past columns, in a lane.
    Above,
    /// Back, in a lane.
    Below,
}

impl Way {
    fn between(from: usize, to: usize) -> Self {
        match to.checked_sub(from) {
            None | Some(0) => Way::Below,
            Some(1) => Way::Direct,
            Some(_) => Way::Above,
        }
    }
}

pub(super) fn svg(graph: &Graph) -> String {
    let columns = columns(graph);
    let last = columns.values().copied().max().unwrap_or(0);
    let width = graph
        .nodes
        .iter()
        .map(|node| shortened(&node.name, MAX_NAME).chars().count().max(place(node).chars().count()));
    let width = width.max().unwrap_or(0).clamp(8, MAX_NAME + 8) * LETTER + 16;
    let column = |id: &str| columns.get(id).copied().unwrap_or(0);
    let ways: Vec<Way> =
        graph.edges.iter().map(|edge| Way::between(column(&edge.from), column(&edge.to))).collect();
    let lanes = |of: Way| ways.iter().filter(|way| **way == of).count();
    let above = MARGIN + lanes(Way::Above) * LANE;
    let mut rows = vec![0_usize; last + 1];
    let mut places = HashMap::new();
    for node in &graph.nodes {
        let column = column(&node.id);
        places.insert(node.id.as_str(), (MARGIN + column * (width + GAP), above + rows[column] * ROW));
        rows[column] += 1;
    }
    let most = rows.into_iter().max().unwrap_or(0).max(1);
    let below = above + most * ROW;
    let height = below + lanes(Way::Below) * LANE;
    let all = 2 * MARGIN + last * (width + GAP) + width;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{all}\" height=\"{height}\" viewBox=\"0 0 {all} {height}\" \
         font-family=\"ui-sans-serif,system-ui,sans-serif\">\n<defs><marker id=\"arrow\" viewBox=\"0 0 8 8\" refX=\"8\" refY=\"4\" \
         markerWidth=\"8\" markerHeight=\"8\" orient=\"auto\"><path d=\"M0 0L8 4L0 8z\" fill=\"#57606a\"/></marker></defs>\n"
    );
    let mut next_lanes = [MARGIN, below];
    for (edge, way) in graph.edges.iter().zip(ways) {
        let (Some(from), Some(to)) = (places.get(edge.from.as_str()), places.get(edge.to.as_str())) else {
            continue;
        };
        let (x1, y1) = (from.0 + width, from.1 + BOX_HEIGHT / 2);
        let (x2, y2) = (to.0, to.1 + BOX_HEIGHT / 2);
        let lane = match way {
            Way::Direct => None,
            Way::Above => next_lanes.first_mut(),
            Way::Below => next_lanes.last_mut(),
        };
        let (path, (x, y)) = match lane {
            Some(lane) => {
                let y = *lane;
                *lane += LANE;
                let (out, back) = (x1 + TURN, x2.saturating_sub(TURN));
                let path = if way == Way::Above {
                    let (start, end) = (out + TURN / 2, back.saturating_sub(TURN / 2));
                    format!(
                        "M{x1} {y1}C{out} {y1} {x1} {y} {start} {y}L{end} {y}C{x2} {y} {back} {y2} {x2} {y2}"
                    )
                } else {
                    format!(
                        "M{x1} {y1}C{out} {y1} {out} {y} {x1} {y}L{x2} {y}C{back} {y} {back} {y2} {x2} {y2}"
                    )
                };
                (path, (x1.midpoint(x2), y - 4))
            }
            None => (
                format!("M{x1} {y1}C{} {y1} {} {y2} {x2} {y2}", x1 + GAP / 2, x2 - GAP / 2),
                (x1.midpoint(x2), y1.midpoint(y2) - 6),
            ),
        };
        // Formatting into a string does not fail.
        let _ = writeln!(
            text,
            "<path d=\"{path}\" fill=\"none\" stroke=\"#57606a\" stroke-width=\"1.5\" marker-end=\"url(#arrow)\"/>"
        );
        if let Some(label) = edge.label() {
            let _ = writeln!(
                text,
                "<text x=\"{x}\" y=\"{y}\" font-size=\"11\" text-anchor=\"middle\" fill=\"#57606a\">{}</text>",
                escaped(&label)
            );
        }
    }
    for node in &graph.nodes {
        let Some((x, y)) = places.get(node.id.as_str()) else { continue };
        let middle = x + width / 2;
        let fill = if node.device.is_some() { "#ddf4ff" } else { "#f6f8fa" };
        let _ = writeln!(
            text,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{BOX_HEIGHT}\" rx=\"6\" fill=\"{fill}\" stroke=\"#57606a\"/>\n\
             <text x=\"{middle}\" y=\"{}\" font-size=\"13\" text-anchor=\"middle\" fill=\"#24292f\">{}</text>\n\
             <text x=\"{middle}\" y=\"{}\" font-size=\"11\" text-anchor=\"middle\" fill=\"#57606a\">{}</text>",
            y + 19,
            escaped(&shortened(&node.name, MAX_NAME)),
            y + 35,
            escaped(&shortened(&place(node), MAX_NAME)),
        );
    }
    text + "</svg>\n"
}

/// Returns the column of each node: behind all its senders, as far as there is no cycle.
fn columns(graph: &Graph) -> HashMap<&str, usize> {
    let ways = Ways::of(graph);
    let forward: Vec<_> = ways.edges.iter().filter(|(from, to)| !ways.leads_back(*from, *to)).collect();
    let mut columns = vec![0_usize; graph.nodes.len()];
    // Each round moves nodes that must stand further back by one column. More rounds than nodes would move
    // only cycles.
    for _ in 0..graph.nodes.len().min(64) {
        let mut has_moved = false;
        for (from, to) in &forward {
            if columns[*to] <= columns[*from] {
                (columns[*to], has_moved) = (columns[*from] + 1, true);
            }
        }
        if !has_moved {
            break;
        }
    }
    graph.nodes.iter().map(|node| node.id.as_str()).zip(columns).collect()
}

/// The edges by the positions of their nodes in the list. Other hosts can send any graph, so the work is
/// bounded: for each edge every other edge is visited once at most.
struct Ways {
    edges: Vec<(usize, usize)>,
    /// The receivers of each node.
    next: Vec<Vec<usize>>,
    is_process: Vec<bool>,
}

impl Ways {
    fn of(graph: &Graph) -> Self {
        let places: HashMap<&str, usize> =
            graph.nodes.iter().enumerate().map(|(at, node)| (node.id.as_str(), at)).collect();
        let place = |id: &String| places.get(id.as_str()).copied();
        let edges = graph.edges.iter().filter_map(|edge| Some((place(&edge.from)?, place(&edge.to)?)));
        let edges: Vec<_> = edges.collect();
        let mut next = vec![Vec::new(); graph.nodes.len()];
        edges.iter().for_each(|(from, to): &(usize, usize)| next[*from].push(*to));
        let is_process = graph.nodes.iter().map(|node| node.device.is_none()).collect();
        Ways { edges, next, is_process }
    }

    /// Whether an edge leads back, because its receiver reaches its sender too: then the one that comes first
    /// in the list stands in front. A process stands in front of actors, because the program's own process
    /// starts them and gets their reports. So a path through a process makes no cycle of actors.
    fn leads_back(&self, from: usize, to: usize) -> bool {
        let of_actors = !self.is_process[to];
        if of_actors && self.is_process[from] {
            return false;
        }
        let mut is_reached = vec![false; self.next.len()];
        is_reached[to] = true;
        let mut reached = vec![to];
        while let Some(at) = reached.pop() {
            if at == from {
                return from == to || !of_actors || from > to;
            }
            for next in &self.next[at] {
                let is_on_the_way = !(of_actors && self.is_process[*next]);
                if is_on_the_way && !std::mem::replace(&mut is_reached[*next], true) {
                    reached.push(*next);
                }
            }
        }
        false
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::console::graph::tests::graph;
    use crate::console::graph::{GraphEdge, GraphNode};

    fn edge(from: &str, to: &str) -> GraphEdge {
        GraphEdge { from: from.to_owned(), to: to.to_owned(), ..graph().edges.remove(0) }
    }

    #[test]
    fn receivers_stand_behind_their_senders_and_circles_end() {
        let mut graph = graph();
        assert_eq!((columns(&graph)["a1"], columns(&graph)["a2"]), (0, 1));
        let third = GraphNode { id: "a3".to_owned(), ..graph.nodes[0].clone() };
        graph.nodes.push(third);
        graph.edges.extend([edge("a1", "a3"), edge("a2", "a3"), edge("a3", "a1"), edge("a3", "a3")]);
        let placed = columns(&graph);
        assert_eq!((placed["a1"], placed["a2"], placed["a3"]), (0, 1, 2));
        let drawn = svg(&graph);
        assert_eq!((drawn.matches("<rect").count(), drawn.matches("marker-end").count()), (3, 5));
        // One edge passes a column and two lead back: each has a lane of its own, and so its label has a line
        // of its own.
        let places: Vec<&str> =
            drawn.split("<text x=\"").skip(1).filter_map(|text| text.split(" font").next()).collect();
        assert!(places.iter().enumerate().all(|(at, place)| !places[..at].contains(place)), "{places:?}");
    }

    #[test]
    fn a_process_that_starts_all_and_hears_of_all_stands_in_front() {
        let mut graph = graph();
        let named = |id: &str| GraphNode { id: id.to_owned(), ..graph.nodes[0].clone() };
        // In the list the second stage comes before the first, because it may start first.
        let (second, first, sink) = (named("second"), named("first"), named("sink"));
        let process = GraphNode { device: None, ..named("process") };
        graph.nodes = vec![process, sink, second, first];
        graph.edges = vec![edge("first", "second"), edge("second", "sink")];
        for stage in ["first", "second", "sink"] {
            graph.edges.extend([edge("process", stage), edge(stage, "process")]);
        }
        let placed = columns(&graph);
        assert_eq!(["process", "first", "second", "sink"].map(|id| placed[id]), [0, 1, 2, 3]);
        // A node that only receives stands behind.
        graph.edges.retain(|edge| edge.from != "process");
        assert_eq!((columns(&graph)["first"], columns(&graph)["process"]), (0, 3));
    }

    #[test]
    fn a_picture_has_its_texts_escaped() {
        let mut graph = graph();
        graph.nodes[0].name = "<a> & \"b\"".to_owned();
        let drawn = svg(&graph);
        assert!(drawn.starts_with("<svg ") && drawn.ends_with("</svg>\n"));
        assert!(drawn.contains("&lt;a&gt; &amp; &quot;b&quot;") && drawn.contains("100/s, 3/16"), "{drawn}");
        assert!(svg(&Graph::default()).ends_with("</svg>\n"));
    }
}
