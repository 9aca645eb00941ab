//! A strict reader of traces in the Chrome trace event format. It fails, with the event in question, on
//! everything that Perfetto's importer (`src/trace_processor/importers/json/` in its repository) drops,
//! counts as an error or puts elsewhere. Where the environment variable `TENSORPOST_PERFETTO` names the
//! folder of Perfetto's own parser (`scripts/perfetto/README.md`), that parser reads every file too.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Map, Value};

/// An event.
pub type Event = Map<String, Value>;

/// A trace whose events have passed the checks.
#[derive(Debug)]
pub struct Trace {
    /// All events, in the order of the file.
    pub events: Vec<Event>,
    /// The file's metadata.
    pub about: Event,
}

/// One arrow from a send to the place where the message went.
#[derive(Clone, Debug)]
pub struct Flow {
    /// The slice in which the arrow begins.
    pub from: Event,
    /// The slices that it passes.
    pub through: Vec<Event>,
    /// The slice in which it ends.
    pub to: Event,
}

/// The phase of an arrow's step, and the slice of the step.
type Step<'a> = (&'a str, Event);

/// Returns the text under `key`, or an empty text.
pub fn text<'a>(event: &'a Event, key: &str) -> &'a str {
    event.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn number(event: &Event, key: &str) -> u64 {
    let number = event.get(key).and_then(Value::as_u64);
    number.unwrap_or_else(|| panic!("{key} has to be a whole number: {event:?}"))
}

/// A time in whole nanoseconds: the file has microseconds with three digits.
fn nanos(event: &Event, key: &str) -> u64 {
    let micros = event.get(key).and_then(Value::as_f64);
    let micros = micros.unwrap_or_else(|| panic!("{key} has to be a number: {event:?}"));
    assert!(micros >= 0.0, "{key} is before the beginning: {event:?}");
    (micros * 1000.0).round() as u64
}

impl Trace {
    /// Reads and checks a file.
    ///
    /// # Panics
    /// Panics with the event that is wrong.
    pub fn read(path: &Path) -> Trace {
        let file =
            std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let trace = Self::parse(&file);
        if let Some(theirs) = ask_perfetto(path) {
            let said = String::from_utf8_lossy(&theirs.stdout);
            assert!(theirs.status.success(), "{said}{}", String::from_utf8_lossy(&theirs.stderr));
            print!("{said}");
        }
        trace
    }

    fn parse(file: &str) -> Trace {
        // Perfetto's own scanner stops at keys that it does not know, and knows one escape.
        assert!(file.starts_with("{\"traceEvents\":["), "the events come first");
        for (at, escape) in file.match_indices('\\') {
            let known = file[at + escape.len()..].starts_with('"');
            assert!(
                known,
                "an escape that Perfetto does not know: {}",
                &file[at..].chars().take(2).collect::<String>()
            );
        }
        let Value::Object(mut whole) = serde_json::from_str(file).expect("it is JSON") else {
            panic!("the file has to be an object");
        };
        assert!(whole.get("displayTimeUnit").is_none(), "it would change the unit of all times");
        let Some(Value::Array(events)) = whole.remove("traceEvents") else { panic!("no events") };
        let Some(Value::Object(about)) = whole.remove("otherData") else { panic!("nothing about the run") };
        let events: Vec<Event> = events
            .into_iter()
            .map(|event| match event {
                Value::Object(event) => event,
                other => panic!("an event has to be an object: {other}"),
            })
            .collect();
        let trace = Trace { events, about };
        trace.check();
        trace
    }

    /// The events of one phase.
    pub fn phase<'a>(&'a self, phase: &'a str) -> impl Iterator<Item = &'a Event> {
        self.events.iter().filter(move |event| text(event, "ph") == phase)
    }

    /// Slices of one category.
    pub fn slices<'a>(&'a self, cat: &'a str) -> impl Iterator<Item = &'a Event> {
        self.phase("X").filter(move |event| text(event, "cat") == cat)
    }

    /// The number that the file gives the process whose name begins with `name`.
    pub fn pid(&self, name: &str) -> u64 {
        let named = |event: &&Event| {
            text(event, "name") == "process_name"
                && event["args"]["name"].as_str().is_some_and(|full| full.starts_with(name))
        };
        let event = self.phase("M").find(named);
        number(event.unwrap_or_else(|| panic!("no process is called {name}")), "pid")
    }

    /// A detail of an event, as text.
    pub fn arg<'a>(event: &'a Event, key: &str) -> &'a str {
        event["args"][key].as_str().unwrap_or_default()
    }

    fn check(&self) {
        let mut owners: HashMap<u64, u64> = HashMap::new();
        for event in &self.events {
            for (key, value) in event {
                assert!(!value.is_array(), "{key} is a list: {event:?}");
            }
            assert!(number(event, "pid") > 0 && number(event, "pid") <= u64::from(u32::MAX), "{event:?}");
            if event.contains_key("tid") {
                let (pid, tid) = (number(event, "pid"), number(event, "tid"));
                assert!(tid > 0 && tid <= u64::from(u32::MAX), "0 is the idle thread: {event:?}");
                // Perfetto names a thread by its number alone.
                assert_eq!(*owners.entry(tid).or_insert(pid), pid, "a thread of two processes: {event:?}");
            }
            let phase = text(event, "ph");
            let name = text(event, "name");
            assert!(!name.is_empty(), "{event:?}");
            if phase != "M" {
                nanos(event, "ts");
                assert!(!text(event, "cat").is_empty(), "{event:?}");
            }
            match phase {
                "M" => match name {
                    "process_name" | "thread_name" => {
                        assert!(!event["args"]["name"].as_str().unwrap_or_default().is_empty(), "{event:?}");
                        assert_eq!(name == "thread_name", event.contains_key("tid"), "{event:?}");
                    }
                    _ => panic!("metadata that Perfetto does not show: {event:?}"),
                },
                "X" => assert!(nanos(event, "dur") > 0 && event.contains_key("tid"), "{event:?}"),
                "i" => match text(event, "s") {
                    "t" => drop(number(event, "tid")),
                    "p" | "g" => {}
                    _ => panic!("an instant without a scope: {event:?}"),
                },
                "s" | "t" | "f" => drop((number(event, "id"), number(event, "tid"))),
                "b" | "n" | "e" => assert!(!text(event, "id").is_empty(), "{event:?}"),
                _ => panic!("unknown phase: {event:?}"),
            }
        }
        self.check_names();
        self.check_nesting();
        self.check_async();
        self.flows();
    }

    fn check_names(&self) {
        let named = |what: &str, key: &str| -> HashSet<u64> {
            let mut named = HashSet::new();
            for event in self.phase("M").filter(|event| text(event, "name") == what) {
                assert!(named.insert(number(event, key)), "it has two names: {event:?}");
            }
            named
        };
        let (processes, threads) = (named("process_name", "pid"), named("thread_name", "tid"));
        for event in &self.events {
            assert!(processes.contains(&number(event, "pid")), "a process without a name: {event:?}");
            if event.contains_key("tid") {
                assert!(threads.contains(&number(event, "tid")), "a thread without a name: {event:?}");
            }
        }
    }

    /// Slices of one thread lie inside each other or apart, and come in the order of their beginnings.
    fn check_nesting(&self) {
        let mut open: HashMap<u64, Vec<u64>> = HashMap::new();
        let mut last = 0;
        for event in self.events.iter().filter(|event| text(event, "ph") != "M") {
            let at = nanos(event, "ts");
            assert!(at >= last, "out of order: {event:?}");
            last = at;
            if text(event, "ph") != "X" {
                continue;
            }
            let (stack, end) = (open.entry(number(event, "tid")).or_default(), at + nanos(event, "dur"));
            while stack.last().is_some_and(|outer| *outer <= at) {
                stack.pop();
            }
            assert!(stack.last().is_none_or(|outer| end <= *outer), "it ends after what it is in: {event:?}");
            stack.push(end);
        }
    }

    /// Checks that each slice that begins under an id ends under it, once.
    fn check_async(&self) {
        let mut open: HashMap<(&str, &str), &Event> = HashMap::new();
        for event in &self.events {
            let key = (text(event, "cat"), text(event, "id"));
            match text(event, "ph") {
                "b" => assert!(open.insert(key, event).is_none(), "it began twice: {event:?}"),
                "n" => assert!(open.contains_key(&key), "it has not begun: {event:?}"),
                "e" => {
                    let Some(began) = open.remove(&key) else { panic!("it has not begun: {event:?}") };
                    assert_eq!(text(began, "name"), text(event, "name"), "{event:?}");
                    // The details of both events become the details of one slice.
                    let details = |event: &Event| event.get("args").and_then(Value::as_object).cloned();
                    let (ours, theirs) =
                        (details(event).unwrap_or_default(), details(began).unwrap_or_default());
                    let twice = ours.keys().find(|key| theirs.contains_key(*key));
                    assert!(twice.is_none(), "a detail of its beginning is there again: {event:?}");
                }
                _ => {}
            }
        }
        assert!(open.is_empty(), "these did not end: {open:?}");
    }

    /// All arrows. Each arrow has a beginning and an end, in this order, in slices that are open then.
    pub fn flows(&self) -> Vec<Flow> {
        let mut flows: BTreeMap<(&str, &str, u64), Vec<Step<'_>>> = BTreeMap::new();
        let mut open: HashMap<u64, Vec<&Event>> = HashMap::new();
        for event in &self.events {
            let phase = text(event, "ph");
            if phase == "X" {
                open.entry(number(event, "tid")).or_default().push(event);
            }
            if !matches!(phase, "s" | "t" | "f") {
                continue;
            }
            assert_eq!(
                phase == "f",
                text(event, "bp") == "e",
                "only an end says what it binds to: {event:?}"
            );
            let at = nanos(event, "ts");
            let around = open.get(&number(event, "tid")).into_iter().flatten().rev();
            let mut around = around
                .filter(|slice| (nanos(slice, "ts")..nanos(slice, "ts") + nanos(slice, "dur")).contains(&at));
            let slice = *around.next().unwrap_or_else(|| panic!("an arrow without a slice: {event:?}"));
            let key = (text(event, "cat"), text(event, "name"), number(event, "id"));
            flows.entry(key).or_default().push((phase, slice.clone()));
        }
        flows
            .into_values()
            .map(|mut steps| {
                let (last, to) = steps.pop().expect("an entry has a step");
                assert!(
                    last == "f" && !steps.is_empty(),
                    "an arrow without an end or a beginning: {steps:?} {to:?}"
                );
                let (first, from) = steps.remove(0);
                assert!(first == "s" && steps.iter().all(|(phase, _)| *phase == "t"), "{steps:?}");
                Flow { from, through: steps.into_iter().map(|(_, slice)| slice).collect(), to }
            })
            .collect()
    }
}

/// Returns the verdict of Perfetto's own parser on a file, where the parser is installed: see the module.
///
/// # Panics
/// There is no `node` to run it.
fn ask_perfetto(file: &Path) -> Option<Output> {
    let folder = std::env::var_os("TENSORPOST_PERFETTO").filter(|folder| !folder.is_empty())?;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/perfetto/check.mjs");
    let asked = Command::new("node").arg(script).arg(folder).arg(file).output();
    Some(asked.unwrap_or_else(|error| panic!("node, which runs {script}, does not start: {error}")))
}

#[cfg(test)]
#[path = "chrome_tests.rs"]
mod tests;
