//! Writes a run as a file in the Chrome trace format, which <https://ui.perfetto.dev> and `chrome://tracing`
//! open. It has a process per worker. Each actor has a track for its calls and waits, and one for the tensors
//! that are leased to the next stages. An arrow leads from each send to the call that takes the item.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::Path;

use tensorpost_watch::api::chrome::{self, Args, Event, Slices, Step};

use super::item::ItemId;
use super::limits::{MAX_LIVES, MAX_TRACED_OF_ONE};
use super::plan::Plan;
use super::worker::meter::{Span, Spanned};

/// The spans of a run so far.
#[derive(Default)]
pub(super) struct Trace {
    actors: Vec<(u16, u16, u32)>,
    spans: Vec<(usize, Span)>,
    /// By stage and replica: how many of its lives have reported spans, and how many spans.
    told: HashMap<(u16, u16), (usize, usize)>,
}

impl Trace {
    /// Adds the spans that a replica has reported; spans past its bounds are left out (MBX-2).
    pub(super) fn add(&mut self, stage: u16, replica: u16, pid: u32, spans: Vec<Span>) {
        let actor = (stage, replica, pid);
        let (lives, count) = self.told.entry((stage, replica)).or_default();
        let index = match self.actors.iter().position(|known| *known == actor) {
            Some(index) => index,
            None if *lives == MAX_LIVES => return,
            None => {
                *lives += 1;
                self.actors.push(actor);
                self.actors.len() - 1
            }
        };
        let room = MAX_TRACED_OF_ONE - *count;
        let spans = spans.into_iter().take(room).map(|span| (index, span));
        let before = self.spans.len();
        self.spans.extend(spans);
        *count += self.spans.len() - before;
    }

    /// Writes the file.
    pub(super) fn write(&self, path: &Path, plan: &Plan) -> io::Result<()> {
        let about = Args::default().text("pipeline", &plan.name);
        chrome::write_file(path, &self.events(plan), about)
    }

    fn events(&self, plan: &Plan) -> Vec<Event> {
        let mut events = self.names(plan);
        // A clock that begins with the run is easier to read than one that began in 1970.
        let zero = self.spans.iter().map(|(_, span)| span.from).min().unwrap_or(0);
        let arrows = self.arrows();
        let mut rows = vec![Vec::new(); self.actors.len()];
        for (index, (actor, span)) in self.spans.iter().enumerate() {
            rows[*actor].push((index, span));
        }
        let mut timed = Vec::new();
        for (actor, spans) in rows.iter_mut().enumerate() {
            spans.sort_by_key(|(_, span)| (span.from, Reverse(span.took)));
            let (stage, _, pid) = self.actors[actor];
            let (tid, mut row) = (actor as u32 + 1, Slices::default());
            for (index, span) in spans.iter() {
                let (at, took) = (span.from - zero, span.took.max(1));
                let args = span.id.map_or_else(Args::default, |id| Args::default().text("item", id));
                let (cat, name) = match span.what {
                    Spanned::Call => ("call", stage_name(plan, stage).to_owned()),
                    Spanned::Send(next) => ("send", format!("send to {}", stage_name(plan, next))),
                    Spanned::Lease(next) => {
                        let name = format!("leased to {}", stage_name(plan, next));
                        let ends =
                            [(Step::Begin, at, args), (Step::End, at.saturating_add(took), Args::default())];
                        timed.extend(ends.map(|(step, at, args)| {
                            let (name, id) = (name.clone(), format!("lease {index}"));
                            (at, Event::Async { step, pid, tid, at, cat: "lease", name, id, args })
                        }));
                        continue;
                    }
                };
                timed.push((at, Event::Slice { pid, tid, at, took: row.fit(at, took), cat, name, args }));
                if let Some(id) = arrows.get(index).copied() {
                    let step = if span.what == Spanned::Call { Step::End } else { Step::Begin };
                    timed.push((at, Event::Flow { step, pid, tid, at, id }));
                }
            }
        }
        // Stable, so that a slice stays before the arrow that begins in it at the same moment.
        timed.sort_by_key(|(at, _)| *at);
        events.extend(timed.into_iter().map(|(_, event)| event));
        events
    }

    /// Returns the names of the processes and their rows. Several actors may share a process, which has one
    /// name.
    fn names(&self, plan: &Plan) -> Vec<Event> {
        let mut processes: BTreeMap<u32, Vec<String>> = BTreeMap::new();
        let mut threads = Vec::new();
        for (index, (stage, replica, pid)) in self.actors.iter().enumerate() {
            let name = format!("{}.{replica}", stage_name(plan, *stage));
            processes.entry(*pid).or_default().push(name.clone());
            threads.push(Event::Name { pid: *pid, tid: Some(index as u32 + 1), name });
        }
        let process =
            |(pid, actors): (u32, Vec<String>)| Event::Name { pid, tid: None, name: actors.join(", ") };
        processes.into_iter().map(process).chain(threads).collect()
    }

    /// Returns the arrow that each span begins or ends: from the one send of an item to a stage, to the one
    /// call with it there. Items that come to a stage more than once have no arrow.
    fn arrows(&self) -> HashMap<usize, u64> {
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
            // The processes' clocks agree well enough for all but the fastest deliveries; an arrow back in
            // time is left out.
            if let ([send], Some([call])) = (&send[..], calls.get(&key).map(Vec::as_slice))
                && self.spans[*send].1.from < self.spans[*call].1.from
            {
                let arrow = arrows.len() as u64 / 2;
                arrows.extend([(*send, arrow), (*call, arrow)]);
            }
        }
        arrows
    }
}

fn stage_name(plan: &Plan, stage: u16) -> &str {
    plan.stages.get(usize::from(stage)).map_or("?", |stage| stage.name.as_str())
}
