//! The head's log includes those of all hosts.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tensorpost::node::Console;
use tensorpost_tests::cases;
use tensorpost_tests::harness::{Builder, Case};
use tensorpost_tests::log;
use tensorpost_tests::wait::{ask, deliver, until};
use tensorpost_watch::console::{self, Answer, LogLine, Request, Severity};
use tracing::field::{Field, Visit};

use crate::actors::{Echo, Fail, Say};
use crate::{Other, find, head};

/// The latest records of a node's log.
pub(crate) fn lines(console: &mut console::Console) -> Vec<LogLine> {
    let (mut all, mut after) = (Vec::new(), 0);
    loop {
        let Ok(Answer::Log(lines)) = console.ask(&Request::Log { after }) else { panic!("no log") };
        let Some(last) = lines.last() else { return all };
        after = last.number;
        all.extend(lines);
    }
}

fn what_a_host_logs_is_in_its_own_log_and_in_the_heads(builder: Builder) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("console");
    let node = head(builder.console(Console::At(path.clone())));
    let other = Other::start(&node);
    let again = find::<Say>(&node, "again");
    ask(&node, &again, Say { text: "from afar\n\u{1b}[2J".to_owned(), times: 1 });
    // The log also has the node's records about a worker.
    deliver(&node, &find::<Fail>(&node, "again"), Fail);
    let mut head = console::Console::at(&path).expect("a console");
    let of_worker = |line: &LogLine| line.text.starts_with("from afar");
    let of_node = |line: &LogLine| line.target == "tensorpost::node" && line.text.contains("is back");
    let has = |lines: &[LogLine]| [lines.iter().any(of_worker), lines.iter().any(of_node)];
    until("the head has it", || has(&lines(&mut head)) == [true; 2]);
    let heads = lines(&mut head);
    let said = heads.iter().find(|line| of_worker(line)).expect("it was there");
    assert_eq!((said.host.as_deref(), said.worker.as_deref()), (Some("1 other"), Some("again")));
    assert_eq!((said.severity, said.target.as_str()), (Severity::Warn, "hosts::actors"));
    assert_eq!(said.text, "from afar\n    | \\u{1b}[2J number=0");
    let back = heads.iter().find(|line| of_node(line)).expect("it was there");
    assert_eq!((back.host.as_deref(), back.worker.as_deref()), (Some("1 other"), Some("again")));
    // The head's own records are marked as its own, and nothing was lost.
    assert!(heads.iter().filter(|line| line.text.contains("joined")).all(|line| line.host.is_none()));
    assert!(!heads.iter().any(|line| line.text.contains("were dropped")), "{heads:?}");

    let found = console::nodes().expect("nodes").into_iter().find(|node| node.pid == other.id());
    let mut there = found.expect("the other node").connect().expect("a console");
    let there = lines(&mut there);
    assert_eq!(has(&there), [true; 2]);
    assert!(there.iter().all(|line| line.host.is_none()));
    assert!(node.shutdown(Duration::from_secs(20)).expect("a report").is_clean());
    drop(other);
}

/// The records of another host in the log of this process.
#[derive(Default)]
struct Heard {
    records: u64,
    bytes: u64,
    dropped: u64,
}

/// The fields of an event that count.
#[derive(Default)]
struct Fields {
    message: String,
    on_host: Option<String>,
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            self.message = format!("{value:?}");
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "on_host" {
            self.on_host = Some(value.to_owned());
        }
    }
}

const FLOOD: u32 = 5_000;

fn a_host_that_floods_its_log_is_cut_and_counted_and_holds_up_no_message(builder: Builder) {
    let heard = Arc::new(Mutex::new(Heard::default()));
    let hears = Arc::clone(&heard);
    let mark = format!("flood of {}", std::process::id());
    let (says, text) = (mark.clone(), format!("{mark} {}", "x".repeat(500)));
    let listening = log::listen(move |event| {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let Fields { message, on_host } = fields;
        let number = |text: &str| text.split(' ').next().and_then(|number| number.parse::<u64>().ok());
        let mut heard = hears.lock();
        if on_host.as_deref() == Some("1 other") && message.starts_with(&says) {
            heard.records += 1;
            heard.bytes += message.len() as u64;
        } else if on_host.as_deref() == Some("1 other") && message.contains("events of its log were dropped")
        {
            // The worker dropped these, because it did not wait for its node.
            heard.dropped += number(&message).expect("a number");
        } else if message.contains("records of the log of host 1 `other`") {
            heard.dropped += number(&message).expect("a number");
        }
    });
    let Some(_listening) = listening else { return };
    let node = head(builder);
    let other = Other::start(&node);
    let (again, echo) = (find::<Say>(&node, "again"), find::<Echo>(&node, "echo"));
    let began = Instant::now();
    let flood = again.ask(Say { text, times: FLOOD });
    let mut slowest = Duration::ZERO;
    for _ in 0..200 {
        let asked = Instant::now();
        ask(&node, &echo, Echo::empty());
        slowest = slowest.max(asked.elapsed());
    }
    assert!(slowest < Duration::from_secs(2), "{slowest:?}");
    node.block_on(flood).expect("it has said all of it");
    until("all are there or counted", || {
        let heard = heard.lock();
        heard.records + heard.dropped >= u64::from(FLOOD)
    });
    let took = began.elapsed();
    let Heard { records, bytes, dropped } = std::mem::take(&mut *heard.lock());
    // The bound at the sending side: its rate, and once its burst.
    let most = (256 << 10) * (took.as_secs() + 2);
    assert!(
        records > 100 && bytes <= most,
        "{records} records, {bytes} bytes, {dropped} dropped in {took:?}"
    );
    // The host was not blamed for records that its own node bounds, and is heard as before.
    ask(&node, &again, Say { text: mark, times: 1 });
    until("it is heard", || heard.lock().records == 1);
    other.end();
}

pub(crate) fn cases() -> Vec<Case> {
    cases![
        what_a_host_logs_is_in_its_own_log_and_in_the_heads,
        a_host_that_floods_its_log_is_cut_and_counted_and_holds_up_no_message,
    ]
}
