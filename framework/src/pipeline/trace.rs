//! A run as a file in the Chrome trace format, which <https://ui.perfetto.dev> and `chrome://tracing` open: one process
//! per worker, one track per actor for its calls and its waiting, one for what is leased to the next stages, and an arrow
//! from each send to the call that takes it.

use std::collections::HashSet;
use std::io;
use std::path::Path;

use serde_json::{Value, json};

use super::plan::Plan;
use super::worker::meter::{Span, Spanned};

/// What was told of a run so far.
#[derive(Default)]
pub(super) struct Trace {
    actors: Vec<(u16, u16, u32)>,
    spans: Vec<(usize, Span)>,
}

impl Trace {
    pub(super) fn add(&mut self, stage: u16, replica: u16, pid: u32, spans: Vec<Span>) {
        let actor = (stage, replica, pid);
        let index = self.actors.iter().position(|known| *known == actor).unwrap_or_else(|| {
            self.actors.push(actor);
            self.actors.len() - 1
        });
        self.spans.extend(spans.into_iter().map(|span| (index, span)));
    }

    /// Writes the file.
    pub(super) fn write(&self, path: &Path, plan: &Plan) -> io::Result<()> {
        let file = io::BufWriter::new(std::fs::File::create(path)?);
        serde_json::to_writer(file, &self.to_json(plan)).map_err(io::Error::from)
    }

    fn to_json(&self, plan: &Plan) -> Value {
        let name = |stage: u16| plan.stages.get(usize::from(stage)).map_or("?", |stage| stage.name.as_str());
        let mut events = Vec::new();
        for (index, (stage, replica, pid)) in self.actors.iter().enumerate() {
            let actor = format!("{}.{replica}", name(*stage));
            events.push(json!({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": actor}}));
            events.push(
                json!({"ph": "M", "name": "thread_name", "pid": pid, "tid": index, "args": {"name": actor}}),
            );
        }
        // A clock that begins with the run is easier to read than one that began in 1970.
        let zero = self.spans.iter().map(|(_, span)| span.from).min().unwrap_or(0);
        let called: HashSet<_> = (self.spans.iter())
            .filter(|(_, span)| span.what == Spanned::Call)
            .filter_map(|(actor, span)| Some((self.actors[*actor].0, span.id?)))
            .collect();
        for (actor, span) in &self.spans {
            let (stage, _, pid) = self.actors[*actor];
            let (from, to) = (span.from - zero, span.from - zero + span.took);
            let id = span.id.map(|id| id.to_string());
            let args = json!({ "item": id });
            match span.what {
                Spanned::Call => {
                    events.push(
                        json!({"ph": "X", "cat": "call", "name": name(stage), "pid": pid, "tid": actor,
                        "ts": from, "dur": span.took, "args": args}),
                    );
                    if let Some(id) = id {
                        events.push(json!({"ph": "f", "bp": "e", "cat": "item", "name": "item", "pid": pid,
                            "tid": actor, "ts": from, "id": format!("{stage}:{id}")}));
                    }
                }
                Spanned::Send(next) => {
                    events.push(json!({"ph": "X", "cat": "send", "name": format!("send to {}", name(next)),
                        "pid": pid, "tid": actor, "ts": from, "dur": span.took, "args": args}));
                    if span.id.is_some_and(|id| called.contains(&(next, id))) {
                        events
                            .push(json!({"ph": "s", "cat": "item", "name": "item", "pid": pid, "tid": actor,
                            "ts": from, "id": format!("{next}:{}", id.unwrap_or_default())}));
                    }
                }
                Spanned::Lease(next) => {
                    let lease = format!("{actor}:{next}:{}", id.unwrap_or_default());
                    let name = format!("leased to {}", name(next));
                    for (phase, at) in [("b", from), ("e", to)] {
                        events
                            .push(json!({"ph": phase, "cat": "lease", "name": name, "id": lease, "pid": pid,
                            "tid": actor, "ts": at, "args": args}));
                    }
                }
            }
        }
        json!({ "traceEvents": events, "displayTimeUnit": "ms" })
    }
}
