//! The head's trace has that of all hosts.

use std::time::Duration;

use tensorpost::node::Console;
use tensorpost_core::console::{self, ConsoleError};
use tensorpost_tests::cases;
use tensorpost_tests::chrome::{Event, Trace, text};
use tensorpost_tests::harness::{Builder, Case};
use tensorpost_tests::wait::{ask, until};

use crate::actors::Echo;
use crate::{Other, find, head};

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
        let look = attach().look().expect("a look");
        look.hosts[0].look.as_ref().map(|look| look.node.tracing)
    };
    let mut tracer = attach();
    let tracing = std::thread::spawn(move || tracer.trace(Duration::from_secs(1)));
    until("the other host traces", || there() == Some(true));
    (0..ASKS).for_each(|_| drop(ask(&node, &echo, Echo::empty())));
    // Nobody else has it traced meanwhile.
    let found = console::nodes().expect("nodes").into_iter().find(|node| node.pid == other.id());
    let mut its_own = found.expect("the other node").connect().expect("a console");
    let refused = its_own.trace(Duration::from_millis(1)).expect_err("it is traced");
    assert!(matches!(&refused, ConsoleError::Refused(why) if why.contains("traced already")), "{refused}");

    let traced = tracing.join().expect("it ends").expect("a trace");
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
    let (here, there) = (trace.pid("node ("), trace.pid("echo on 1 other ("));
    let of = |cat: &'static str, pid: u64, name: &'static str| {
        let slices = trace.slices(cat).filter(move |slice| slice["pid"] == pid);
        slices.filter(move |slice| text(slice, "name").contains(name)).collect::<Vec<_>>()
    };
    let (asked, handled) = (of("send", here, "Echo (ask)"), of("handler", there, "Echo"));
    assert_eq!((asked.len(), handled.len()), (ASKS, ASKS));
    for (index, call) in handled.iter().enumerate() {
        let (from, to) = (at(call, "ts"), at(call, "ts") + at(call, "dur"));
        assert!(at(asked[index], "ts") <= from + within, "{call:?} before its question");
        let next = asked.get(index + 1).map_or(i64::MAX, |next| at(next, "ts"));
        assert!(to <= next.saturating_add(within), "{call:?} after the next question");
    }
    // Its other processes are there too, and their arrows end on their host.
    let gateway = trace.pid("gateway on 1 other (");
    assert!(trace.flows().iter().any(|flow| flow.from["pid"] == gateway && flow.to["pid"] == there));
    assert!(trace.flows().iter().all(|flow| (flow.from["pid"] == here) <= (flow.to["pid"] != there)));
    other.end();
}

pub(crate) fn cases() -> Vec<Case> {
    cases![the_heads_trace_has_all_hosts_by_its_own_clock]
}
