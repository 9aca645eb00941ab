//! The head's trace includes those of all hosts.

use std::time::Duration;

use tensorpost::node::Console;
use tensorpost_tests::cases;
use tensorpost_tests::chrome::{Event, Trace, text};
use tensorpost_tests::harness::{Builder, Case};
use tensorpost_tests::wait::{ask, until};
use tensorpost_watch::console::{self, ConsoleError};

use crate::actors::{Echo, Echoer};
use crate::{Other, address, find, head};

const ASKS: usize = 20;

/// A time of an event, in nanoseconds.
fn at(event: &Event, key: &str) -> i64 {
    (event[key].as_f64().expect("a time") * 1000.0) as i64
}

fn the_heads_trace_has_all_hosts_by_its_own_clock(builder: Builder) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("console");
    let node = head(builder.console(Console::At(path.clone())));
    let other = Other::start(&node);
    let echo = find::<Echo>(&node, "echo");
    ask(&node, &echo, Echo::empty());
    let attach = || console::Console::at(&path).expect("a console");
    let there = || {
        let snapshot = attach().snapshot().expect("a look");
        snapshot.hosts[0].snapshot.as_ref().map(|snapshot| snapshot.node.tracing)
    };
    let mut its_own = {
        let found = console::nodes().expect("nodes").into_iter().find(|node| node.pid == other.id());
        found.expect("the other node").connect().expect("a console")
    };
    let mut interval = Duration::from_secs(1);
    let traced = loop {
        let mut tracer = attach();
        let tracing = std::thread::spawn(move || tracer.trace(interval));
        until("the other host traces", || there() == Some(true) || tracing.is_finished());
        (0..ASKS).for_each(|_| drop(ask(&node, &echo, Echo::empty())));
        // Nobody else traces it meanwhile.
        let refused = its_own.trace(Duration::from_millis(1));
        let snapshot = attach().snapshot().expect("a look");
        let in_time = snapshot.node.tracing && there() == Some(true);
        let traced = tracing.join().expect("it ends").expect("a trace");
        if in_time {
            let refused = refused.expect_err("it is traced");
            assert!(
                matches!(&refused, ConsoleError::Refused(why) if why.contains("traced already")),
                "{refused}"
            );
            break traced;
        }
        // On a busy machine the interval was over before they were answered.
        interval *= 3;
        assert!(interval < Duration::from_secs(30), "they are never answered in time");
    };
    assert!(traced.silent().is_empty(), "{:?}", traced.silent());
    until("nothing is traced any more", || there() == Some(false));
    let file = folder.path().join("trace.json");
    let summary = traced.write_to(&file).expect("a file");
    assert_eq!(summary.damaged, 0);
    let trace = Trace::read(&file);

    // The two clocks are one here, and the beats have found that.
    let clock = text(&trace.about, "clock of host 1 other");
    let numbers = clock.split(' ').filter_map(|word| word.parse::<i64>().ok()).collect::<Vec<_>>();
    let [shifted, within] = numbers[..] else { panic!("{clock}") };
    assert!(shifted.abs() <= within && within < 1_000_000_000, "{clock}");

    // Each call of the handler there lies between its question here and the next one.
    let (here, pid_there) = (trace.pid("node ("), trace.pid("echo on 1 other ("));
    let of = |cat: &'static str, pid: u64, name: &'static str| {
        let slices = trace.slices(cat).filter(move |slice| slice["pid"] == pid);
        slices.filter(move |slice| text(slice, "name").contains(name)).collect::<Vec<_>>()
    };
    let (asked, handled) = (of("send", here, "Echo (ask)"), of("handler", pid_there, "Echo"));
    assert_eq!((asked.len(), handled.len()), (ASKS, ASKS));
    for (index, call) in handled.iter().enumerate() {
        let (from, to) = (at(call, "ts"), at(call, "ts") + at(call, "dur"));
        assert!(at(asked[index], "ts") <= from + within, "{call:?} before its question");
        let next = asked.get(index + 1).map_or(i64::MAX, |next| at(next, "ts"));
        assert!(to <= next.saturating_add(within), "{call:?} after the next question");
    }
    // Its other processes are in the trace too, and their arrows end on their host.
    let gateway = trace.pid("gateway on 1 other (");
    assert!(trace.flows().iter().any(|flow| flow.from["pid"] == gateway && flow.to["pid"] == pid_there));
    assert!(trace.flows().iter().all(|flow| (flow.from["pid"] == here) <= (flow.to["pid"] != pid_there)));

    // Where a watcher there has the host traced, the head has nothing of it, and says so.
    let watching = std::thread::spawn(move || drop(its_own.trace(Duration::from_secs(30))));
    until("it is traced there", || there() == Some(true));
    let without = attach().trace(Duration::from_millis(1)).expect("a trace");
    assert_eq!(without.silent(), ["host 1 other"]);
    // The watcher hears of the host's end.
    other.end();
    watching.join().expect("it ends");
}

fn the_file_of_a_traced_run_has_all_hosts(builder: Builder) {
    let folder = tempfile::tempdir().expect("a folder");
    let [file, own, path] = ["trace.json", "own.json", "console"].map(|name| folder.path().join(name));
    let node = head(builder.trace(&file).console(Console::At(path.clone())));
    // One host traces for its own program, and one for the head alone. One leaves before the end.
    let at = address(&node);
    let mut traces = Other::serving_with(&node, &at, &[("TENSORPOST_TRACE", own.as_os_str())]);
    let mut serves = Other::serving(&node);
    let mut leaves = Other::serving(&node);
    let all_trace = || {
        let snapshot = console::Console::at(&path).expect("a console").snapshot().expect("a look");
        snapshot.hosts.iter().all(|host| host.snapshot.as_ref().is_some_and(|snapshot| snapshot.node.tracing))
    };
    until("all hosts trace", all_trace);
    let hosts = node.hosts().expect("hosts");
    let echo = |host: usize, name| {
        let spawned = node.spawn::<Echoer>(()).on(&hosts[host]).name(name).start().expect("an actor");
        (0..ASKS).for_each(|_| drop(ask(&node, &spawned.address(), Echo::empty())));
        spawned
    };
    let _actors = [echo(1, "left"), echo(2, "right")];
    // A watch meanwhile takes nothing away from the interval.
    let watched = console::Console::at(&path).expect("a console").trace(Duration::from_millis(1));
    assert!(watched.expect("a trace").silent().is_empty());
    leaves.terminate();
    leaves.ends();
    until("it is gone", || node.hosts().expect("hosts").len() == 3);

    assert!(node.shutdown(Duration::from_secs(20)).expect("a report").drained);
    traces.ends();
    serves.ends();
    let trace = Trace::read(&file);
    for (process, host) in
        [("left on 1 other (", "clock of host 1 other"), ("right on 2 other (", "clock of host 2 other")]
    {
        let pid = trace.pid(process);
        let handled = trace.slices("handler").filter(|slice| slice["pid"] == pid).count();
        assert_eq!(handled, ASKS, "{process}");
        assert!(text(&trace.about, host).contains("which is right to"));
    }
    assert!(trace.about.get("clock of host 3 other").is_none(), "it was not there to be asked");
    assert!(!own.exists(), "the head has what it would have written");
}

pub(crate) fn cases() -> Vec<Case> {
    cases![the_heads_trace_has_all_hosts_by_its_own_clock, the_file_of_a_traced_run_has_all_hosts]
}
