//! Turns the records of all processes into the events of one file.
//!
//! A record is only as good as the process that wrote it. The events made here are well formed for any
//! records (WIRE-1). Slices of one row lie inside each other or apart. An arrow has its beginning and does
//! not point back in time. Every event that begins also ends. Overwritten records leave a gap, not a mistake.
//! Slices that overlap are cut, arrows without a beginning or back in time are dropped, and events without an
//! end get one.

use std::collections::{BTreeMap, HashMap};

use tensorpost_core::api::node::ProcessId;
use tensorpost_core::api::watch::TracedProcess;
use tensorpost_core::api::watch::trace::{
    Form, FrameId, LeaseName, Of, Process, Record, Snapshot, Track, What,
};

use super::chrome::{Args, Event, Slices, Step};

/// A slice, before its place among the others of its row is known.
#[derive(Debug)]
struct Slice {
    at: u64,
    took: u64,
    cat: &'static str,
    name: String,
    args: Args,
    flow: Option<(Ends, Part)>,
}

/// The two ends of a frame, which name its arrow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Ends {
    from: ProcessId,
    to: ProcessId,
    end: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Send = 0,
    Deliver = 1,
    Handle = 2,
}

/// When each part of a frame's path was first seen.
type Parts = [Option<u64>; 3];

/// An arrow, and the parts of it that are not written yet.
struct Arrow {
    id: u64,
    has_handler: bool,
    left: Parts,
}

/// A handler that began: its message's key, and its frame.
type Began = (u64, Option<FrameId>);

/// The rows of one process.
#[derive(Default)]
struct Rows {
    slices: BTreeMap<Track, Vec<Slice>>,
    /// Handlers that began and have not ended, by row and by time. A lying process may have all its records
    /// be such.
    open: BTreeMap<Track, BTreeMap<u64, Vec<Began>>>,
    instants: Vec<(Track, u64, &'static str, String, Args)>,
    leases: Vec<(Track, u64, LeaseName, What)>,
}

/// The numbers that are given already. Numbers of processes, rows and arrows are different on all hosts.
#[derive(Default)]
struct Numbers {
    pid: u32,
    tid: u32,
    flow: u64,
}

/// Returns all events of the hosts, in the order in which they are to be written. Each host comes with its
/// processes, and with the time that ends events without an end. A host other than the trace's own has a
/// name. No arrow goes from one host to another.
pub(crate) fn events<'a>(
    hosts: impl IntoIterator<Item = (Option<&'a str>, &'a [Process], u64)>,
) -> Vec<Event> {
    let hosts: Vec<_> = hosts.into_iter().collect();
    // All hosts run one program, so a message has one name, whichever process has noted it.
    let names = hosts.iter().flat_map(|(_, processes, _)| *processes).flat_map(|of| &of.seen.names);
    let messages = names.filter(|((of, _), _)| *of == Of::Message);
    let messages: HashMap<u64, &str> = messages.map(|((_, key), name)| (*key, name.as_str())).collect();
    let (mut numbers, mut out) = (Numbers::default(), Vec::new());
    for (host, processes, now) in hosts {
        of_host(host, processes, now, &messages, &mut numbers, &mut out);
    }
    // The sort is stable, so that a slice stays before the arrow that begins in it at the same moment.
    out.sort_by_key(|(at, _)| *at);
    out.into_iter().map(|(_, event)| event).collect()
}

fn of_host(
    host: Option<&str>,
    processes: &[Process],
    now: u64,
    messages: &HashMap<u64, &str>,
    numbers: &mut Numbers,
    out: &mut Vec<(u64, Event)>,
) {
    let names: HashMap<ProcessId, &str> =
        processes.iter().map(|Process { of, .. }| (of.process, of.name.as_str())).collect();
    let known = Known { messages, names, host };
    let rows: Vec<Rows> = processes.iter().map(|process| rows(process, &known, now)).collect();
    let mut flows = flows(&rows, &mut numbers.flow);
    for (process, rows) in processes.iter().zip(rows) {
        // Some readers take 0 for the idle process.
        numbers.pid += 1;
        write_process(process, numbers.pid, rows, &known, &mut flows, &mut numbers.tid, now, out);
    }
}

struct Known<'a> {
    messages: &'a HashMap<u64, &'a str>,
    names: HashMap<ProcessId, &'a str>,
    host: Option<&'a str>,
}

impl Known<'_> {
    fn message(&self, key: u64) -> String {
        self.messages.get(&key).map_or_else(|| format!("message {key:#018x}"), |name| (*name).to_owned())
    }

    fn frame(&self, form: Form, key: u64) -> String {
        match form {
            Form::Send => self.message(key),
            Form::Ask => format!("{} (ask)", self.message(key)),
            Form::Reply => "reply".to_owned(),
            Form::Refusal => "refusal".to_owned(),
        }
    }

    fn process(&self, id: ProcessId) -> String {
        self.names.get(&id).map_or_else(|| id.to_string(), |name| format!("{name} ({id})"))
    }

    /// Adds the host to a name, to tell it from the same name on another host.
    fn on(&self, what: &str) -> String {
        self.host.map_or_else(|| what.to_owned(), |host| format!("{what} on {host}"))
    }
}

fn rows(process: &Process, known: &Known<'_>, now: u64) -> Rows {
    let mut rows = Rows::default();
    for record in &process.seen.records {
        rows.take(process.of.process, *record, known);
    }
    let end = process.of.ended.as_ref().map_or(now, |(at, _)| *at);
    rows.end_open(process.of.process, end, known);
    rows
}

impl Rows {
    fn slice(&mut self, track: Track, slice: Slice) {
        self.slices.entry(track).or_default().push(slice);
    }

    fn take(&mut self, me: ProcessId, record: Record, known: &Known<'_>) {
        let Record { at, track, what } = record;
        let came = |frame: FrameId| Ends { from: frame.peer, to: me, end: frame.end };
        match what {
            What::HandlerBegan { key, frame } => {
                self.open.entry(track).or_default().entry(at).or_default().push((key, frame));
            }
            What::HandlerEnded { key, frame, took } => {
                // The end carries the time of the beginning, by which the open handler is found.
                if let Some(open) = self.open.get_mut(&track) {
                    open.remove(&at);
                }
                let flow = frame.map(|frame| (came(frame), Part::Handle));
                let (cat, name) = ("handler", known.message(key));
                self.slice(track, Slice { at, took, cat, name, args: Args::default(), flow });
            }
            What::Sent { form, key, frame, bytes, took } => {
                let args = Args::default().text("to", known.process(frame.peer)).number("bytes", bytes);
                let name = format!("send {}", known.frame(form, key));
                let ends = Ends { from: me, to: frame.peer, end: frame.end };
                self.slice(
                    track,
                    Slice { at, took, cat: "send", name, args, flow: Some((ends, Part::Send)) },
                );
            }
            What::Delivered { form, key, frame, actor, took } => {
                let mut args = Args::default().text("from", known.process(frame.peer));
                // A reply goes to no actor.
                if actor.0 != 0 {
                    args = args.text("actor", actor);
                }
                let name = format!("deliver {}", known.frame(form, key));
                let flow = Some((came(frame), Part::Deliver));
                self.slice(track, Slice { at, took, cat: "deliver", name, args, flow });
            }
            What::WaitEnqueued { stream, on, clock, value } => {
                let args = clock_args(known, on, clock, value).number("stream", u64::from(stream));
                self.instants.push((track, at, "wait", "wait enqueued".to_owned(), args));
            }
            What::StreamWaited { on, clock, value, took } => {
                let (name, args) =
                    (format!("wait for {}", known.process(on)), clock_args(known, on, clock, value));
                self.slice(track, Slice { at, took, cat: "wait", name, args, flow: None });
            }
            What::LeaseOpened { lease, .. }
            | What::LeaseGranted { lease, .. }
            | What::LeaseReturned { lease, .. }
            | What::LeaseClosed { lease } => self.leases.push((track, at, lease, what)),
        }
    }

    /// Ends events that began and did not end: at the process's end, or at the next handler of the row.
    fn end_open(&mut self, me: ProcessId, end: u64, known: &Known<'_>) {
        for (track, open) in std::mem::take(&mut self.open) {
            let others = self.slices.get(&track).into_iter().flatten();
            let mut others: Vec<u64> =
                others.filter(|slice| slice.cat == "handler").map(|slice| slice.at).collect();
            others.sort_unstable();
            let open = open.into_iter().flat_map(|(at, open)| open.into_iter().map(move |open| (at, open)));
            for (at, (key, frame)) in open {
                let next = others.get(others.partition_point(|other| *other <= at));
                let until = next.copied().unwrap_or(end).max(at);
                let flow =
                    frame.map(|frame| (Ends { from: frame.peer, to: me, end: frame.end }, Part::Handle));
                let args = Args::default().text("ended", "no");
                let (name, took) = (known.message(key), until - at);
                self.slice(track, Slice { at, took, cat: "handler", name, args, flow });
            }
        }
    }
}

fn clock_args(known: &Known<'_>, on: ProcessId, clock: u16, value: u64) -> Args {
    Args::default()
        .text("process", known.process(on))
        .number("clock", u64::from(clock))
        .number("value", value)
}

/// Returns the arrows that have a beginning and something to point to, with a number each.
fn flows(rows: &[Rows], last: &mut u64) -> HashMap<Ends, Arrow> {
    let mut flows: HashMap<Ends, Parts> = HashMap::new();
    let slices = rows.iter().flat_map(|rows| rows.slices.values()).flatten();
    for (at, (ends, part)) in slices.filter_map(|slice| Some((slice.at, slice.flow?))) {
        flows.entry(ends).or_default()[part as usize].get_or_insert(at);
    }
    let mut whole: Vec<(Ends, Parts)> = flows
        .into_iter()
        .filter_map(|(ends, [send, deliver, handle])| {
            let send = send?;
            // An end at the same moment does not count as after the beginning: in the file it could come
            // before it.
            let deliver = deliver.filter(|at| *at > send);
            let handle = handle.filter(|at| *at > deliver.unwrap_or(send));
            (deliver.is_some() || handle.is_some()).then_some((ends, [Some(send), deliver, handle]))
        })
        .collect();
    // Sorted by time, so that the same records give the same file.
    whole.sort_by_key(|(ends, parts)| (parts[0], ends.from, ends.to, ends.end));
    let arrow = |(ends, parts): (Ends, Parts)| {
        let has_handler = parts[Part::Handle as usize].is_some();
        *last += 1;
        (ends, Arrow { id: *last, has_handler, left: parts })
    };
    whole.into_iter().map(arrow).collect()
}

#[expect(clippy::too_many_arguments, reason = "the one place where everything known about a process meets")]
fn write_process(
    process: &Process,
    pid: u32,
    rows: Rows,
    known: &Known<'_>,
    flows: &mut HashMap<Ends, Arrow>,
    last_tid: &mut u32,
    now: u64,
    out: &mut Vec<(u64, Event)>,
) {
    let Process { of: of @ TracedProcess { process: id, name, .. }, seen } = process;
    let mut name = format!("{} ({id}), process {}", known.on(name), of.pid);
    if seen.dropped > 0 {
        name = format!("{name}, {} records dropped", seen.dropped);
    }
    // Names have time 0, so that they come before all events of the file.
    out.push((0, Event::Name { pid, tid: None, name }));
    let mut instant = |at, name: String| {
        let args = Args::default().number("process", u64::from(of.pid));
        out.push((at, Event::Instant { pid, tid: None, at, cat: "life", name, args }));
    };
    let begin = match (of.is_new, id.incarnation()) {
        (false, _) => "the trace begins",
        (true, 0) => "started",
        (true, _) => "restarted",
    };
    instant(of.since, begin.to_owned());
    if let Some((at, how)) = &of.ended {
        instant(*at, how.clone());
    }
    let mut tids: BTreeMap<Track, u32> = BTreeMap::new();
    let mut tid_of = |track: Track, out: &mut Vec<(u64, Event)>| {
        *tids.entry(track).or_insert_with(|| {
            *last_tid += 1;
            let tid = *last_tid;
            out.push((0, Event::Name { pid, tid: Some(tid), name: track_name(track, seen) }));
            tid
        })
    };
    for (track, slices) in rows.slices {
        let tid = tid_of(track, out);
        write_row(pid, tid, slices, flows, out);
    }
    for (track, at, cat, name, args) in rows.instants {
        let tid = Some(tid_of(track, out));
        out.push((at, Event::Instant { pid, tid, at, cat, name, args }));
    }
    let end = of.ended.as_ref().map_or(now, |(at, _)| *at);
    let leases =
        rows.leases.into_iter().map(|(track, at, lease, what)| (tid_of(track, out), at, lease, what));
    let leases: Vec<_> = leases.collect();
    write_leases(&known.on(&id.to_string()), pid, leases, known, end, out);
}

fn track_name(track: Track, seen: &Snapshot) -> String {
    let (of, id, kind) = match track {
        Track::Actor(actor) => (Of::Actor, actor.0, "actor"),
        Track::Thread(number) => (Of::Thread, u64::from(number), "thread"),
        Track::Stream(slot) => (Of::Stream, u64::from(slot), "stream"),
    };
    match seen.names.get(&(of, id)) {
        Some(name) => format!("{kind} {name}"),
        None => format!("{kind} {id}"),
    }
}

/// Writes the slices of one row, each inside the one that it began in, and their arrows.
fn write_row(
    pid: u32,
    tid: u32,
    mut slices: Vec<Slice>,
    flows: &mut HashMap<Ends, Arrow>,
    out: &mut Vec<(u64, Event)>,
) {
    slices.sort_by_key(|slice| (slice.at, std::cmp::Reverse(slice.took)));
    let mut row = Slices::default();
    for Slice { at, took, cat, name, args, flow } in slices {
        let took = row.fit(at, took);
        out.push((at, Event::Slice { pid, tid, at, took, cat, name, args }));
        let Some((ends, part)) = flow else { continue };
        let Some(arrow) = flows.get_mut(&ends) else { continue };
        // Writes a part once, and only the first one seen: a second delivery of one frame is no part of its
        // path.
        if arrow.left[part as usize].take_if(|first| *first == at).is_none() {
            continue;
        }
        let step = match part {
            Part::Send => Step::Begin,
            Part::Deliver if arrow.has_handler => Step::Middle,
            Part::Deliver | Part::Handle => Step::End,
        };
        out.push((at, Event::Flow { step, pid, tid, at, id: arrow.id }));
    }
}

/// Writes the life times of memory, one after the other for each entry of the lease table.
fn write_leases(
    me: &str,
    pid: u32,
    mut leases: Vec<(u32, u64, LeaseName, What)>,
    known: &Known<'_>,
    end: u64,
    out: &mut Vec<(u64, Event)>,
) {
    const CAT: &str = "lease";
    // The open leases, with the row that each began on, and the time of its last record.
    let mut open: HashMap<LeaseName, (u32, u64)> = HashMap::new();
    // Threads note at the same time, so the ring's order is not always that of time; the file's must be.
    leases.sort_by_key(|(_, at, ..)| *at);
    for (tid, at, lease, what) in leases {
        let id = format!("{me}/{:#x}/{}/{}", lease.chunk, lease.entry, lease.generation);
        // A lease whose beginning was overwritten has no place in the file.
        match open.get_mut(&lease) {
            Some((_, last)) => *last = at,
            None if matches!(what, What::LeaseOpened { .. }) => {}
            None => continue,
        }
        let (step, name, args) = match what {
            What::LeaseOpened { bytes, .. } => {
                if open.insert(lease, (tid, at)).is_some() {
                    continue;
                }
                (Step::Begin, CAT, Args::default().number("bytes", bytes))
            }
            What::LeaseGranted { to, .. } => {
                (Step::Middle, "granted", Args::default().text("to", known.process(to)))
            }
            What::LeaseReturned { from, .. } => {
                (Step::Middle, "returned", Args::default().text("by", known.process(from)))
            }
            _ => {
                open.remove(&lease);
                (Step::End, CAT, Args::default())
            }
        };
        out.push((at, Event::Async { step, pid, tid, at, cat: CAT, name: name.to_owned(), id, args }));
    }
    let mut left: Vec<_> = open.into_iter().collect();
    left.sort_by_key(|(lease, (_, at))| (*at, lease.entry, lease.generation));
    for (lease, (tid, last)) in left {
        let id = format!("{me}/{:#x}/{}/{}", lease.chunk, lease.entry, lease.generation);
        let (at, args) = (end.max(last), Args::default().text("ended", "no"));
        let (step, name) = (Step::End, CAT.to_owned());
        out.push((at, Event::Async { step, pid, tid, at, cat: CAT, name, id, args }));
    }
}

#[cfg(test)]
#[path = "timeline_tests.rs"]
mod tests;
