//! Events in the Chrome trace event format, in the subset that Perfetto's importer reads as well.
//!
//! Sources: "Trace Event Format" (the document of the Catapult project) and the importer's own code,
//! `src/trace_processor/importers/json/` in the Perfetto repository. The importer's code implies:
//! * Times are in microseconds. A `displayTimeUnit` of `ns` is taken for the unit of all times, so there is
//!   none.
//! * Thread ids name threads across processes, and 0 is the idle thread. So ids here are dense, from 1, over
//!   all processes.
//! * Strings know no escape but that of the quote, and a string that ends in a backslash makes the whole file
//!   unreadable. Events hold no lists. Keys behind an unknown one are not read, so `traceEvents` is first.
//! * The importer reads only the name of a process or thread, so all other information about it is part of
//!   the name.
//! * The details of an asynchronous event are those of its beginning and of its end together, each once.
//! * A flow is found by `id`, `cat` and `name` together, and binds to the slice that is open on its row. So a
//!   slice is written before the flow that begins or ends in it.
//!
//! ```
//! use tensorpost::observe::chrome::{Args, Event, write_file};
//!
//! # fn main() -> std::io::Result<()> {
//! let name = Event::Name { pid: 1, tid: Some(1), name: "decode".into() };
//! let args = Args::default().number("item", 7);
//! let slice =
//!     Event::Slice { pid: 1, tid: 1, at: 0, took: 1_500_000, cat: "stage", name: "process".into(), args };
//! let path = std::env::temp_dir().join(format!("trace-{}.json", std::process::id()));
//! write_file(&path, &[name, slice], Args::default())?; // for ui.perfetto.dev
//! # std::fs::remove_file(path)
//! # }
//! ```

use std::fmt;
use std::io::{self, Write};
use std::path::Path;

use serde_json::{Map, Value, json};

use super::file;
use crate::draw::is_odd;

/// An event of the file. Rows are threads in the format's words. Times are in nanoseconds.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The name of a process or, with `tid`, of a row.
    Name {
        /// Number of the process.
        pid: u32,
        /// Number of its row, from 1 and different in all processes.
        tid: Option<u32>,
        /// The name.
        name: String,
    },
    /// Something that took a while on a row.
    Slice {
        /// Number of the process.
        pid: u32,
        /// Number of its row, from 1 and different in all processes.
        tid: u32,
        /// When it began, in nanoseconds.
        at: u64,
        /// How long it took, in nanoseconds.
        took: u64,
        /// The category to filter by.
        cat: &'static str,
        /// The name.
        name: String,
        /// The details.
        args: Args,
    },
    /// Something that happened at once, on a row or (without `tid`) to a process.
    Instant {
        /// Number of the process.
        pid: u32,
        /// Number of its row, from 1 and different in all processes.
        tid: Option<u32>,
        /// When it happened, in nanoseconds.
        at: u64,
        /// The category to filter by.
        cat: &'static str,
        /// The name.
        name: String,
        /// The details.
        args: Args,
    },
    /// An arrow between slices.
    Flow {
        /// The part of the arrow that this is.
        step: Step,
        /// Number of the process.
        pid: u32,
        /// Number of its row, from 1 and different in all processes.
        tid: u32,
        /// When this part happened, in nanoseconds.
        at: u64,
        /// The number that the parts of an arrow share.
        id: u64,
    },
    /// An event that lasts, independent of rows.
    Async {
        /// The part of the event that this is.
        step: Step,
        /// Number of the process.
        pid: u32,
        /// Number of its row, from 1 and different in all processes.
        tid: u32,
        /// When this part happened, in nanoseconds.
        at: u64,
        /// The category to filter by.
        cat: &'static str,
        /// The name.
        name: String,
        /// The id that the parts of the event share.
        id: String,
        /// The details.
        args: Args,
    },
}

/// A part of a flow or an asynchronous event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The first.
    Begin,
    /// One in between.
    Middle,
    /// The last.
    End,
}

/// The open slices of one row. Slices lie inside each other or apart: the importer would leave out one that
/// reaches beyond the slice around it.
#[derive(Default)]
pub struct Slices {
    /// When the open slices end, the inner ones last.
    around: Vec<u64>,
}

impl Slices {
    /// Returns how long a slice that begins `at` may be, of the `took` that it took. The slices come in the
    /// order in which they begin, the longest first. None is empty, because an arrow needs a slice that is
    /// open when it begins.
    pub fn fit(&mut self, at: u64, took: u64) -> u64 {
        while self.around.last().is_some_and(|end| *end <= at) {
            self.around.pop();
        }
        let end = at.saturating_add(took.max(1));
        let end = self.around.last().map_or(end, |outer| end.min(*outer));
        self.around.push(end);
        end - at
    }
}

/// The details of an event.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Args(Map<String, Value>);

impl Args {
    /// Adds a number.
    pub fn number(mut self, name: &str, value: u64) -> Self {
        self.0.insert(plain(name), value.into());
        self
    }

    /// Adds a text.
    pub fn text(mut self, name: &str, value: impl fmt::Display) -> Self {
        self.0.insert(plain(name), plain(&value.to_string()).into());
        self
    }
}

/// Writes all events to a file, and `about` the run behind them. The file appears whole or not at all: on a
/// full disk the previous file stays, and no half-written one is left. A link is followed only if this user
/// or root has made it.
///
/// # Errors
/// Returns the system's error.
pub fn write_file(path: &Path, events: &[Event], about: Args) -> io::Result<()> {
    file::replace(path, |file| write(file, events, about))
}

/// Writes all events, and `about` the run behind them.
///
/// # Errors
/// Returns the error of `out`.
pub(crate) fn write(out: &mut impl Write, events: &[Event], about: Args) -> io::Result<()> {
    out.write_all(b"{\"traceEvents\":[")?;
    for (index, event) in events.iter().enumerate() {
        out.write_all(if index > 0 { b",\n" } else { b"\n" })?;
        serde_json::to_writer(&mut *out, &event.json())?;
    }
    out.write_all(b"\n],\n\"otherData\":")?;
    serde_json::to_writer(&mut *out, &about.0)?;
    out.write_all(b"}\n")?;
    out.flush()
}

impl Event {
    fn json(&self) -> Value {
        match self {
            Event::Name { pid, tid, name } => {
                let (what, args) = (if tid.is_some() { "thread_name" } else { "process_name" }, plain(name));
                with_row(json!({"ph": "M", "pid": pid, "name": what, "args": {"name": args}}), *tid)
            }
            Event::Slice { pid, tid, at, took, cat, name, args } => json!({
                "ph": "X", "pid": pid, "tid": tid, "ts": micros(*at), "dur": micros(*took), "cat": cat,
                "name": plain(name), "args": args.0,
            }),
            Event::Instant { pid, tid, at, cat, name, args } => {
                let (scope, name) = (if tid.is_some() { "t" } else { "p" }, plain(name));
                let event = json!({
                    "ph": "i", "s": scope, "pid": pid, "ts": micros(*at), "cat": cat, "name": name, "args": args.0,
                });
                with_row(event, *tid)
            }
            Event::Flow { step, pid, tid, at, id } => {
                let mut event = json!({
                    "ph": step.phase(["s", "t", "f"]), "pid": pid, "tid": tid, "ts": micros(*at), "cat": "message",
                    "name": "message", "id": id,
                });
                if *step == Step::End {
                    event["bp"] = "e".into();
                }
                event
            }
            Event::Async { step, pid, tid, at, cat, name, id, args } => json!({
                "ph": step.phase(["b", "n", "e"]), "pid": pid, "tid": tid, "ts": micros(*at), "cat": cat,
                "name": plain(name), "id": plain(id), "args": args.0,
            }),
        }
    }
}

fn with_row(mut event: Value, tid: Option<u32>) -> Value {
    if let Some(tid) = tid {
        event["tid"] = tid.into();
    }
    event
}

impl Step {
    fn phase(self, [begin, middle, end]: [&'static str; 3]) -> &'static str {
        match self {
            Step::Begin => begin,
            Step::Middle => middle,
            Step::End => end,
        }
    }
}

/// Returns nanoseconds as microseconds. A float holds them to the last digit for the first 104 days.
fn micros(nanos: u64) -> f64 {
    nanos as f64 / 1000.0
}

/// Returns `text` without characters that need an escape which not every reader knows, or that change the
/// direction of writing. They become spaces, and backslashes become slashes.
fn plain(text: &str) -> String {
    let letter = |letter: char| match letter {
        '\\' => '/',
        letter if is_odd(letter) => ' ',
        letter => letter,
    };
    text.chars().map(letter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_looks_as_the_format_says() {
        let events = [
            Event::Name { pid: 1, tid: None, name: "a \"b\"\n\\".into() },
            Event::Slice {
                pid: 1,
                tid: 2,
                at: 1_000_000_000_001,
                took: 20,
                cat: "handler",
                name: "Frame".into(),
                args: Args::default().number("bytes", 7).text("to", "p1.0"),
            },
            Event::Flow { step: Step::End, pid: 1, tid: 2, at: 5_000, id: 3 },
        ];
        let mut out = Vec::new();
        write(&mut out, &events, Args::default().number("dropped", 0)).unwrap();
        let expected = r#"{"traceEvents":[
{"args":{"name":"a \"b\" /"},"name":"process_name","ph":"M","pid":1},
{"args":{"bytes":7,"to":"p1.0"},"cat":"handler","dur":0.02,"name":"Frame","ph":"X","pid":1,"tid":2,"ts":1000000000.001},
{"bp":"e","cat":"message","id":3,"name":"message","ph":"f","pid":1,"tid":2,"ts":5.0}
],
"otherData":{"dropped":0}}
"#;
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
