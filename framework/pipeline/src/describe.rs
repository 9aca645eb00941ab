//! Descriptions of a pipeline: as text, and as the source of diagrams.

use std::fmt;
use std::fmt::Write as _;

use super::flow::Pipeline;
use super::limits::DEFAULT_MAILBOX;
use super::plan::{DEAD, Edge, Kind, Plan, StagePlan};
use super::worker::args::{Drops, Select};

/// The description of a pipeline: [`Display`](fmt::Display) writes it as text, and there are diagrams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    name: String,
    stages: Vec<(String, String, Kind)>,
    edges: Vec<(usize, usize, String)>,
}

impl Pipeline {
    /// Describes the pipeline, also while it is not complete.
    pub fn describe(&self) -> Description {
        Description::of(&self.draft.borrow().plan.clone().complete())
    }
}

impl Description {
    fn of(plan: &Plan) -> Self {
        let stage = |stage: &StagePlan| (stage.name.clone(), about(plan, stage), stage.kind);
        let edge = |edge: &Edge| (edge.from.stage, edge.to, flowing(plan, edge));
        Description {
            name: plan.name.clone(),
            stages: plan.stages.iter().map(stage).collect(),
            edges: plan.edges.iter().map(edge).collect(),
        }
    }

    /// Returns a [Mermaid](https://mermaid.js.org) flow chart.
    pub fn mermaid(&self) -> String {
        let mut text = "flowchart LR\n".to_owned();
        for (index, (name, about, kind)) in self.stages.iter().enumerate() {
            let (open, close) = match kind {
                Kind::Source => ("([", "])"),
                Kind::Stage => ("[", "]"),
                Kind::Sink => ("[[", "]]"),
            };
            let about =
                if about.is_empty() { String::new() } else { format!("<br/>{}", mermaid_text(about)) };
            let _ = writeln!(text, "    s{index}{open}\"{}{about}\"{close}", mermaid_text(name));
        }
        for (from, to, label) in &self.edges {
            if label.is_empty() {
                let _ = writeln!(text, "    s{from} --> s{to}");
            } else {
                let _ = writeln!(text, "    s{from} -->|\"{}\"| s{to}", mermaid_text(label));
            }
        }
        text
    }

    /// Returns a graph for [Graphviz](https://graphviz.org).
    pub fn dot(&self) -> String {
        let mut text = format!("digraph {} {{\n    rankdir=LR;\n", dot_text(&self.name));
        for (index, (name, about, kind)) in self.stages.iter().enumerate() {
            let shape = match kind {
                Kind::Source => "ellipse",
                Kind::Stage => "box",
                Kind::Sink => "box3d",
            };
            let label = if about.is_empty() { name.clone() } else { format!("{name}\n{about}") };
            let _ = writeln!(text, "    s{index} [shape={shape}, label={}];", dot_text(&label));
        }
        for (from, to, label) in &self.edges {
            let label =
                if label.is_empty() { String::new() } else { format!(" [label={}]", dot_text(label)) };
            let _ = writeln!(text, "    s{from} -> s{to}{label};");
        }
        text + "}\n"
    }
}

impl fmt::Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "pipeline {}", self.name)?;
        for (index, (name, about, kind)) in self.stages.iter().enumerate() {
            let kind = match kind {
                Kind::Source => "source",
                Kind::Stage => "stage",
                Kind::Sink => "sink",
            };
            let about = if about.is_empty() { String::new() } else { format!(" ({about})") };
            write!(f, "  {kind} {name}{about}")?;
            let to = self.edges.iter().filter(|(from, ..)| *from == index);
            let to: Vec<_> = to
                .map(|(_, to, label)| {
                    let label = if label.is_empty() { String::new() } else { format!(" ({label})") };
                    format!("{}{label}", self.stages[*to].0)
                })
                .collect();
            writeln!(f, "{}{}", if to.is_empty() { "" } else { " -> " }, to.join(", "))?;
        }
        Ok(())
    }
}

/// Returns the settings of a stage that are not the default, in words.
fn about(plan: &Plan, stage: &StagePlan) -> String {
    let mut about = Vec::new();
    if stage.label != stage.name && !stage.helper {
        about.push(stage.label.clone());
    }
    if stage.replicas > 1 {
        let way = match stage.select {
            Select::All => ", each takes all",
            Select::RoundRobin => "",
            Select::LeastLoaded => ", to the least loaded",
            Select::By(_) => ", by key",
        };
        let ordered = if stage.ordered { ", order restored" } else { "" };
        let least = stage.scale.filter(|_| stage.scales()).map(|scale| format!("{} to ", scale.least));
        about.push(format!("{}{} replicas{way}{ordered}", least.unwrap_or_default(), stage.replicas));
    }
    let device = stage.on.to_string();
    if device != "host" {
        about.push(format!("on {device}"));
    }
    if let Some(beside) = stage.beside {
        about.push(format!("beside {}", plan.stages[beside].name));
    }
    if let Some(drops) = stage.drops {
        let what = match drops {
            Drops::Oldest => "oldest",
            Drops::Newest => "newest",
        };
        about
            .push(format!("keeps {} per sender, drops the {what}", stage.mailbox.unwrap_or(DEFAULT_MAILBOX)));
    }
    if let Some(pace) = stage.pace {
        about.push(format!("one every {pace:?}"));
    }
    if let Some(bytes) = stage.max_bytes {
        about.push(format!("at most {bytes} bytes on the way"));
    }
    about.join(", ")
}

/// Returns the label of an edge.
fn flowing(plan: &Plan, edge: &Edge) -> String {
    let output = &plan.stages[edge.from.stage].outputs[usize::from(edge.from.output)];
    let dead = (edge.from.output == DEAD).then_some("dead letters");
    let bound = plan.stages[edge.to].window.filter(|_| edge.feedback);
    let again = bound.map(|bound| format!("again, at most {bound} items"));
    let select = (output.branches > 1).then_some(match output.select {
        Select::All => "all",
        Select::RoundRobin => "in turn",
        Select::LeastLoaded => "least loaded",
        Select::By(_) => "chosen",
    });
    let parts: Vec<_> =
        dead.map(str::to_owned).into_iter().chain(again.or(select.map(str::to_owned))).collect();
    parts.join(", ")
}

fn mermaid_text(text: &str) -> String {
    text.replace('"', "#quot;").replace(['\n', '\r'], " ")
}

fn dot_text(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}
