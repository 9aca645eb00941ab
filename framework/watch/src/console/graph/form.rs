//! The graph as text for other programs to draw.

use super::{Graph, GraphNode};

/// Returns the text below a node's name.
pub(super) fn place(node: &GraphNode) -> String {
    let place = match &node.device {
        Some(device) => format!("{}, {device}", node.process),
        // If the actor's host shows nothing, no more is known.
        None if node.process.is_empty() => "actor".to_owned(),
        None => "process".to_owned(),
    };
    match &node.host {
        Some(host) => format!("host {host}: {place}"),
        None => place,
    }
}

pub(super) fn mermaid(graph: &Graph) -> String {
    let mut text = "flowchart LR\n".to_owned();
    for node in &graph.nodes {
        text +=
            &format!("    {}[\"{}<br/>{}\"]\n", node.id, for_mermaid(&node.name), for_mermaid(&place(node)));
    }
    for edge in &graph.edges {
        let label = edge.label().map(|label| format!("|\"{}\"|", for_mermaid(&label)));
        text += &format!("    {} -->{} {}\n", edge.from, label.unwrap_or_default(), edge.to);
    }
    if graph.left_out > 0 {
        text += &format!("    %% {} arrows of other hosts are left out\n", graph.left_out);
    }
    text
}

/// Escapes characters that have a meaning inside a quoted label, by their numbers.
fn for_mermaid(text: &str) -> String {
    let one = |letter: char| match letter {
        '"' | '<' | '>' | '&' | '#' | ';' | '`' => format!("#{};", u32::from(letter)),
        plain => plain.to_string(),
    };
    text.chars().map(one).collect()
}

pub(super) fn dot(graph: &Graph) -> String {
    let mut text = "digraph tensorpost {\n    rankdir=LR;\n    node [shape=box];\n".to_owned();
    for node in &graph.nodes {
        text +=
            &format!("    {} [label=\"{}\\n{}\"];\n", node.id, for_dot(&node.name), for_dot(&place(node)));
    }
    for edge in &graph.edges {
        let label = edge.label().map(|label| format!(" [label=\"{}\"]", for_dot(&label)));
        text += &format!("    {} -> {}{};\n", edge.from, edge.to, label.unwrap_or_default());
    }
    text + "}\n"
}

fn for_dot(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::console::graph::tests::graph;

    #[test]
    fn both_forms_have_nodes_and_labelled_edges() {
        let mut graph = graph();
        graph.nodes[0].name = "a \"b\" <c>\\".to_owned();
        assert_eq!(
            mermaid(&graph),
            "flowchart LR\n    a1[\"a #34;b#34; #60;c#62;\\<br/>camera.0, host\"]\n    \
             a2[\"a-stage-with-a-name-that-is-longer-than-others<br/>stage, host\"]\n    a1 -->|\"100/s, 3/16\"| a2\n"
        );
        let dot = dot(&graph);
        assert!(dot.contains("a1 [label=\"a \\\"b\\\" <c>\\\\\\ncamera.0, host\"];"), "{dot}");
        graph.nodes[0].host = Some("1 left".to_owned());
        graph.left_out = 3;
        let of_host = mermaid(&graph);
        assert!(of_host.contains("<br/>host 1 left: camera.0, host\"]"), "{of_host}");
        assert!(of_host.ends_with("%% 3 arrows of other hosts are left out\n"), "{of_host}");
        assert!(dot.contains("a1 -> a2 [label=\"100/s, 3/16\"];") && dot.ends_with("}\n"), "{dot}");
    }
}
