//! A run as a file in the Chrome trace format, which <https://ui.perfetto.dev> and `chrome://tracing` open: one process
//! per worker, one track per actor for its calls and its waiting, one for what is leased to the next stages, and an arrow
//! from each send to the call that takes it.

use std::collections::HashMap;
use std::io;
use std::path::Path;

use serde_json::{Value, json};

use super::item::ItemId;
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
        let about = json!({ "pipeline": plan.name });
        // The events come first: Perfetto's own scanner stops at keys that it does not know.
        let events = Value::Array(self.events(plan));
        std::fs::write(path, format!("{{\"traceEvents\":{events},\"otherData\":{about}}}"))
    }

    fn events(&self, plan: &Plan) -> Vec<Value> {
        let name = |stage: u16| plan.stages.get(usize::from(stage)).map_or("?", |stage| stage.name.as_str());
        let mut events = Vec::new();
        for (index, (stage, replica, pid)) in self.actors.iter().enumerate() {
            let actor = format!("{}.{replica}", name(*stage));
            let tid = index + 1;
            events.push(json!({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": actor}}));
            events.push(
                json!({"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": actor}}),
            );
        }
        // A clock that begins with the run is easier to read than one that began in 1970.
        let zero = self.spans.iter().map(|(_, span)| span.from).min().unwrap_or(0);
        let arrows = self.arrows();
        let mut timed = Vec::new();
        for (index, (actor, span)) in self.spans.iter().enumerate() {
            let (stage, _, pid) = self.actors[*actor];
            let (tid, from, took) = (actor + 1, span.from - zero, span.took.max(1));
            let id = span.id.map(|id| id.to_string());
            let args = json!({ "item": id });
            let (cat, about) = match span.what {
                Spanned::Call => ("call", name(stage).to_owned()),
                Spanned::Send(next) => ("send", format!("send to {}", name(next))),
                Spanned::Lease(next) => ("lease", format!("leased to {}", name(next))),
            };
            let event = |at: u64, phase: &str| json!({"ph": phase, "cat": cat, "name": about, "pid": pid, "tid": tid, "ts": micros(at), "args": args});
            if let Spanned::Lease(_) = span.what {
                for (phase, at) in [("b", from), ("e", from + took)] {
                    let mut event = event(at, phase);
                    event["id"] = json!(format!("lease {index}"));
                    timed.push((at, event));
                }
                continue;
            }
            let mut slice = event(from, "X");
            slice["dur"] = json!(micros(took));
            timed.push((from, slice));
            if let Some(arrow) = arrows.get(&index) {
                let begins = span.what != Spanned::Call;
                let mut end = json!({"ph": if begins { "s" } else { "f" }, "cat": "item", "name": "item", "pid": pid,
                    "tid": tid, "ts": micros(from), "id": arrow});
                if !begins {
                    end["bp"] = json!("e");
                }
                timed.push((from, end));
            }
        }
        timed.sort_by_key(|(at, _)| *at);
        events.extend(timed.into_iter().map(|(_, event)| event));
        events
    }

    /// The arrow that each span begins or ends: from the one send of an item to a stage to the one call with it there.
    /// Items that come to a stage more than once have none.
    fn arrows(&self) -> HashMap<usize, usize> {
        let mut sends: HashMap<(u16, ItemId), Vec<usize>> = HashMap::new();
        let mut calls = sends.clone();
        for (index, (actor, span)) in self.spans.iter().enumerate() {
            let Some(id) = span.id else { continue };
            match span.what {
                Spanned::Send(next) => sends.entry((next, id)).or_default().push(index),
                Spanned::Call => calls.entry((self.actors[*actor].0, id)).or_default().push(index),
                Spanned::Lease(_) => {}
            }
        }
        let mut arrows = HashMap::new();
        for (key, send) in sends {
            // Clocks of processes agree well enough for all but the shortest ways; an arrow back in time is none.
            if let ([send], Some([call])) = (&send[..], calls.get(&key).map(Vec::as_slice))
                && self.spans[*send].1.from < self.spans[*call].1.from
            {
                let arrow = arrows.len() / 2;
                arrows.extend([(*send, arrow), (*call, arrow)]);
            }
        }
        arrows
    }
}

/// Nanoseconds as the microseconds of the format.
fn micros(nanos: u64) -> f64 {
    nanos as f64 / 1000.0
}
