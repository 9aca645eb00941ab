use std::panic::catch_unwind;

use serde_json::json;

use super::*;

fn process(pid: u64, name: &str) -> Value {
    json!({ "ph": "M", "pid": pid, "name": "process_name", "args": { "name": name } })
}

fn thread(pid: u64, tid: u64, name: &str) -> Value {
    json!({ "ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": { "name": name } })
}

fn slice(row: u64, at: f64, took: f64) -> Value {
    json!({ "ph": "X", "pid": row, "tid": row, "ts": at, "dur": took, "cat": "send", "name": "x", "args": { "to": "b" } })
}

fn arrow(phase: &str, row: u64, at: f64) -> Value {
    let mut arrow = json!({ "ph": phase, "pid": row, "tid": row, "ts": at, "cat": "message", "name": "message", "id": 1 });
    if phase == "f" {
        arrow["bp"] = "e".into();
    }
    arrow
}

fn lease(phase: &str, at: f64, args: Value) -> Value {
    json!({ "ph": phase, "pid": 1, "tid": 1, "ts": at, "cat": "lease", "name": "lease", "id": "l", "args": args })
}

/// The rows of two processes with one thread each.
fn rows() -> Vec<Value> {
    vec![process(1, "a"), thread(1, 1, "t"), process(2, "b"), thread(2, 2, "u")]
}

/// A message and a lease.
fn good() -> Vec<Value> {
    let timed = [
        slice(1, 1.0, 1.0),
        arrow("s", 1, 1.0),
        lease("b", 1.5, json!({ "bytes": 1 })),
        slice(2, 3.0, 1.0),
        arrow("f", 2, 3.0),
        lease("e", 4.0, json!({ "ended": "no" })),
    ];
    rows().into_iter().chain(timed).collect()
}

fn without(phase: &str) -> Vec<Value> {
    good().into_iter().filter(|event| event["ph"] != phase).collect()
}

fn with(events: impl IntoIterator<Item = Value>) -> Vec<Value> {
    rows().into_iter().chain(events).collect()
}

fn changed(phase: &str, key: &str, value: Value) -> Vec<Value> {
    let mut events = good();
    let event = events.iter_mut().find(|event| event["ph"] == phase).expect("there is one");
    event[key] = value;
    events
}

fn file(events: &[Value]) -> String {
    format!("{{\"traceEvents\":{},\"otherData\":{{}}}}", Value::from(events))
}

/// Returns the reader's objection to a file, and whether Perfetto, where it is installed, objects too.
fn objections(file: &str) -> (Option<String>, Option<bool>) {
    let text = file.to_owned();
    let ours = catch_unwind(move || drop(Trace::parse(&text))).err().map(|panic| {
        let said = panic.downcast_ref::<String>().cloned();
        said.or_else(|| panic.downcast_ref::<&str>().map(|said| (*said).to_owned())).unwrap_or_default()
    });
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.json");
    std::fs::write(&path, file).unwrap();
    (ours, ask_perfetto(&path).map(|theirs| !theirs.status.success()))
}

#[test]
fn a_good_file_passes() {
    let quoted = changed("X", "name", "a \"b\"".into());
    for events in [good(), with([]), quoted] {
        let (ours, theirs) = objections(&file(&events));
        assert_eq!(ours, None);
        assert_ne!(theirs, Some(true), "{events:?}");
    }
    assert_eq!(Trace::parse(&file(&good())).flows().len(), 1);
}

// Perfetto's parser (v52) loses each of these, or shows it as something else.
#[test]
fn what_perfetto_does_not_take_is_refused() {
    let label = json!({ "ph": "M", "pid": 1, "name": "process_labels", "args": { "labels": "x" } });
    let again = [lease("b", 1.0, json!({})), lease("b", 1.5, json!({})), lease("e", 2.0, json!({}))];
    let repeated = [lease("b", 1.0, json!({ "bytes": 1 })), lease("e", 2.0, json!({ "bytes": 1 }))];
    let second = good().into_iter().chain([arrow("s", 1, 4.0)]).collect();
    let unbound = good().into_iter().map(|mut event| {
        event.as_object_mut().expect("it is one").remove("bp");
        event
    });
    let cases: [(&str, Vec<Value>); 20] = [
        ("without an end or a beginning", without("s")),
        ("without an end or a beginning", without("f")),
        ("an arrow without a slice", second),
        ("only an end says what it binds to", unbound.collect()),
        ("these did not end", without("e")),
        ("it has not begun", without("b")),
        ("it began twice", with(again)),
        ("a detail of its beginning is there again", with(repeated)),
        ("it ends after what it is in", with([slice(1, 1.0, 2.0), slice(1, 2.0, 5.0)])),
        ("dur", with([slice(1, 1.0, 0.0)])),
        ("before the beginning", with([slice(1, 1.0, -1.0)])),
        ("unknown phase", changed("X", "ph", "Q".into())),
        ("metadata that Perfetto does not show", with([label])),
        ("it has two names", with([process(1, "c")])),
        ("ts has to be a number", changed("X", "ts", "soon".into())),
        ("name", changed("X", "name", Value::Null)),
        ("does not know: \\\\", changed("X", "name", "a \\ b".into())),
        ("does not know: \\\\", changed("X", "name", "a \\".into())),
        ("does not know: \\n", changed("X", "name", "a\nb".into())),
        ("does not know: \\u", changed("X", "name", "a\u{1}b".into())),
    ];
    for (why, events) in cases {
        let (ours, theirs) = objections(&file(&events));
        let ours = ours.unwrap_or_else(|| panic!("it was taken, though: {why}"));
        assert!(ours.contains(why), "{why}: {ours}");
        assert_ne!(theirs, Some(false), "Perfetto takes it, though: {why}");
    }
    let unit = file(&good()).replace("\"otherData\"", "\"displayTimeUnit\":\"ns\",\"otherData\"");
    let (ours, theirs) = objections(&unit);
    assert!(ours.is_some_and(|ours| ours.contains("unit of all times")));
    assert_ne!(theirs, Some(false));
    let cut = file(&good()).split_at(200).0.to_owned();
    assert!(matches!(objections(&cut), (Some(_), None | Some(true))));
}

// Perfetto accepts these, but other readers or other versions of it do not.
#[test]
fn what_is_not_safe_everywhere_is_refused_too() {
    let cases = [
        ("out of order", with([slice(1, 3.0, 1.0), slice(1, 1.0, 1.0)])),
        ("a thread of two processes", with([json!({ "ph": "X", "pid": 2, "tid": 1 })])),
        ("0 is the idle thread", with([json!({ "ph": "X", "pid": 1, "tid": 0 })])),
        ("a process without a name", with([slice(3, 1.0, 1.0)])),
        ("an instant without a scope", changed("X", "ph", "i".into())),
        ("is a list", changed("X", "more", json!([1]))),
    ];
    for (why, events) in cases {
        let (ours, _) = objections(&file(&events));
        assert!(ours.as_ref().is_some_and(|ours| ours.contains(why)), "{why}: {ours:?}");
    }
    let reversed = format!("{{\"otherData\":{{}},\"traceEvents\":{}}}", Value::from(good()));
    assert!(objections(&reversed).0.is_some_and(|ours| ours.contains("the events come first")));
}
