//! Every `MAX_` of the files of limits is in a table here, those of the crate that watches too. If a user's
//! program can reach a limit, the text that it gets names the limit and the remedy; otherwise the table says
//! why no text is needed. A new limit without a row fails.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::limits::*;
use super::registry::NameError;
use super::roster::LocationError;
use super::supervisor::{
    SpawnError, StartError, too_long, too_many_under_way, too_many_workers, too_much_kept,
};
use crate::actor::SendFailure;
use crate::clock::ClockError;
use crate::ids::ProcessId;
use crate::lease::PoolError;
use crate::limits::*;
use crate::message::codec::{self, DecodeError, EncodeError};
use crate::message::nesting::NestingError;
use crate::message::portable::Describer;
use crate::node::spawn::ActorError;
use crate::observe::metrics::user;
use crate::os::vital;
use crate::tensor::part::SplitReason;
use crate::tensor::{Layout, Tensor, TensorError};
use crate::testing::Cluster;
use crate::transport::LeaseLimit;

/// The limits of the crate that watches.
const SHOWN: &str = include_str!("../../../watch/src/limits.rs");

/// The effect of a limit on a program that reaches it.
enum At {
    /// The text of an error or of the log has both of these in it.
    Says(String, String, &'static str),
    /// Nobody fails: a caller that wants more waits, for this.
    Waits(&'static str),
    /// The rest is left out, and counted.
    LeavesOut,
    /// A number of the framework's own, which no program reaches.
    Inside,
    /// No honest process reaches it; a process that does is killed, or refused with a line in the log.
    OnlyLiars,
}

use At::{Inside, LeavesOut, OnlyLiars, Says, Waits};

fn says(error: impl ToString, limit: impl ToString, remedy: &'static str) -> At {
    Says(error.to_string(), limit.to_string(), remedy)
}

/// Returns the text for a series that has one byte, label or name too many.
fn of_metric(name: &str, labels: &[(&str, &str)]) -> &'static str {
    user::check(name, labels.iter().copied()).expect_err("more than may be")
}

fn many_tensors() -> EncodeError {
    let cluster = Cluster::new(1);
    let tensor = cluster.stream(0).from_slice(&[1], &[1_u8]).expect("memory").freeze();
    let tensors: Vec<Tensor> = (0..=MAX_TENSORS).map(|_| tensor.clone()).collect();
    codec::encode(&tensors, Vec::new()).expect_err("one more than there may be")
}

fn many_types() -> String {
    let mut describer = Describer::default();
    let all = AssertUnwindSafe(|| {
        (0..=MAX_SCHEMA_TYPES).for_each(|_| drop(describer.of::<u8>()));
    });
    vital::panic_text(catch_unwind(all).expect_err("one more than there may be").as_ref()).to_owned()
}

fn full(chunks: usize) -> PoolError {
    let (device, holders) = ("host".to_owned(), String::new());
    PoolError::Full { device, asked: 1, in_use: 1, budget: 1, chunks, holders }
}

fn lease_limit(most: usize) -> LeaseLimit {
    LeaseLimit { holder: ProcessId::NODE, owner: ProcessId::NODE, leases: most, most }
}

fn of_messages() -> Vec<(&'static str, At)> {
    let rank = Layout::contiguous(&[1; MAX_RANK + 1]).expect_err("an axis more");
    let too_large = EncodeError::TooLarge { bytes: MAX_BODY + 1 };
    let copy = TensorError::NoRoomForCopy { shape: vec![1], bytes: u64::MAX, memory: 1 };
    vec![
        ("MAX_RANK", says(rank, MAX_RANK, "view")),
        ("MAX_BODY", says(too_large, MAX_BODY, "put the data into a tensor")),
        ("MAX_TENSORS", says(many_tensors(), MAX_TENSORS, "stack the tensors")),
        ("MAX_PARTS", says(SplitReason::TooMany { parts: MAX_PARTS + 1 }, MAX_PARTS, "make them larger")),
        ("MAX_NESTING", says(NestingError::TooDeep, MAX_NESTING, "flatten the type")),
        ("MAX_DECODE_CALLS", says(DecodeError::TooDeep, MAX_DECODE_CALLS, "put a struct")),
        ("MAX_DECODE_STACK", says(DecodeError::TooDeep, MAX_DECODE_CALLS, "put a struct")),
        ("MAX_SCHEMA_TYPES", says(many_types(), MAX_SCHEMA_TYPES, "messages of their own")),
        ("MAX_GRANTED", says(lease_limit(MAX_GRANTED), MAX_GRANTED, "copies of small ones")),
        ("MAX_FORWARDED", says(lease_limit(MAX_FORWARDED), MAX_FORWARDED, "copies of small ones")),
        ("MAX_FORWARDS", says(SendFailure::TimedOut, "ring to its process", "slower than its senders")),
        ("MAX_POOL_CHUNKS", says(full(MAX_POOL_CHUNKS), MAX_POOL_CHUNKS, "fewer and larger tensors")),
        ("MAX_BROADCAST_BYTES", says(copy, MAX_BROADCAST_BYTES, "read slices")),
        ("MAX_MAILBOX", says(ActorError::Mailbox(0), MAX_MAILBOX, ".mailbox(n)")),
        ("MAX_INLINE_BODY", Inside),
        ("MAX_OFFERS_PER_LOOK", Inside),
        ("MAX_STREAM_STEPS", Waits("the stream to do its work")),
        ("MAX_FORWARD_RECEIVERS", Inside),
        ("MAX_RELEASE_TICKETS", Inside),
        ("MAX_PACKET", Inside),
        ("MAX_PACKET_FDS", Inside),
        ("MAX_INTERFACE_BYTES", LeavesOut),
        ("MAX_CERTIFICATES", Inside),
        ("MAX_TAINT_RANGES", Inside),
        ("MAX_DEAD_PAGES", Inside),
    ]
}

fn of_the_node() -> Vec<(&'static str, At)> {
    let args = StartError::TooLarge { type_name: "Actor".to_owned() };
    let actors = LocationError::Full(ProcessId::NODE);
    vec![
        ("MAX_PROCESSES", says(SpawnError::TooMany, MAX_PROCESSES, "several actors into one worker")),
        ("MAX_STREAMS", says(ClockError::Exhausted, MAX_STREAMS, "drop a stream")),
        ("MAX_ACTORS", says(actors, MAX_ACTORS, "start another worker")),
        ("MAX_CONTROL_MESSAGE", says(args, MAX_CONTROL_MESSAGE, "as a tensor in a message")),
        ("MAX_NAME", says(NameError::Length(0), MAX_NAME, "choose another")),
        ("MAX_NAMES", says(NameError::Full, MAX_NAMES, "send addresses in messages")),
        ("MAX_NAMES_EACH", says(NameError::TooMany, MAX_NAMES_EACH, "addresses in messages")),
        ("MAX_SPARES", says(ActorError::Spares(MAX_SPARES + 1), MAX_SPARES, "there can be up to")),
        ("MAX_RESTARTS", Inside),
        ("MAX_STARTS_OF_PROCESS", says(too_many_under_way(), MAX_STARTS_OF_PROCESS, "await some")),
        ("MAX_WORKERS_OF_WORKER", says(too_many_workers(), MAX_WORKERS_OF_WORKER, "several actors into one")),
        ("MAX_TAKEN", OnlyLiars),
        ("MAX_START_REQUEST", says(too_long(0), MAX_START_REQUEST, "as a tensor")),
        ("MAX_KEPT_FOR_WORKER", says(too_much_kept(), MAX_KEPT_FOR_WORKER, "have some end")),
        ("MAX_DESCRIPTORS", Inside),
        ("MAX_QUEUED_BYTES", OnlyLiars),
        ("MAX_QUEUED_PACKETS", OnlyLiars),
        ("MAX_QUEUED_DESCRIPTORS", OnlyLiars),
        ("MAX_QUEUED_LOGS", LeavesOut),
        ("MAX_COMPLAINTS", OnlyLiars),
        ("MAX_REFUSED", OnlyLiars),
        ("MAX_CHUNKS", OnlyLiars),
        ("MAX_PARKED", OnlyLiars),
        ("MAX_MAIN_TASKS", OnlyLiars),
        ("MAX_REPORTED_RANGES", OnlyLiars),
        ("MAX_GIVEN_UP", LeavesOut),
        ("MAX_ENDS", LeavesOut),
        ("MAX_RELEASED_PAGES", Inside),
        ("MAX_HANGS", LeavesOut),
        ("MAX_FAILURE_TEXT", LeavesOut),
    ]
}

fn of_what_is_shown() -> Vec<(&'static str, At)> {
    let long = "x".repeat(MAX_METRIC_NAME + 1);
    let names: Vec<String> = (0..=MAX_METRIC_LABELS).map(|number| format!("l{number}")).collect();
    let labels: Vec<_> = names.iter().map(|name| (name.as_str(), "")).collect();
    let text = "x".repeat(MAX_METRIC_TEXT);
    vec![
        ("MAX_METRIC_NAME", says(of_metric(&long, &[]), MAX_METRIC_NAME, "make it shorter")),
        ("MAX_METRIC_LABELS", says(of_metric("a", &labels), MAX_METRIC_LABELS, "into fewer")),
        ("MAX_METRIC_TEXT", says(of_metric("a", &[("l", &text)]), MAX_METRIC_TEXT, "make them shorter")),
        ("MAX_METRIC_SERIES", LeavesOut),
        ("MAX_NODE_METRIC_SERIES", LeavesOut),
        ("MAX_METRIC_VALUES", Inside),
        ("MAX_WORKER_METRIC_VALUES", Inside),
        ("MAX_METRIC_SAMPLES", LeavesOut),
        ("MAX_METRIC_UPDATES", LeavesOut),
        ("MAX_LOG_TEXT", LeavesOut),
        ("MAX_LOG_FIELDS", LeavesOut),
        ("MAX_LOG_SPANS", LeavesOut),
        ("MAX_LOG_LABEL", LeavesOut),
        ("MAX_LOG_RECORD", LeavesOut),
        ("MAX_LOG_MESSAGE", OnlyLiars),
        ("MAX_LOG_CALLSITES", Inside),
        ("MAX_LOG_FIELD_NAME", Inside),
        ("MAX_LOG_LINES", LeavesOut),
        ("MAX_LOG_BYTES", LeavesOut),
        ("MAX_LOG_LINE", LeavesOut),
        ("MAX_LOG_ANSWER", Inside),
        ("MAX_TRACE_NAMES", LeavesOut),
        ("MAX_TRACE_NAME", LeavesOut),
        ("MAX_TRACE_ENDED", LeavesOut),
        ("MAX_SHOWN_HOLDERS", LeavesOut),
        ("MAX_SHOWN_POOLS", LeavesOut),
        ("MAX_SHOWN_ACTORS", LeavesOut),
        // `node/console/server.rs` refuses in words, which the tests of `tensorpost` read.
        ("MAX_WATCHERS", LeavesOut),
        ("MAX_QUESTION", OnlyLiars),
        ("MAX_CONSOLE_ANSWER", LeavesOut),
        ("MAX_TRACED_RECORDS", LeavesOut),
        ("MAX_TRACED_TIME", LeavesOut),
        ("MAX_LIVE_CONNECTIONS", Inside),
        ("MAX_LIVE_HEADER", OnlyLiars),
        ("MAX_LIVE_FIELDS", OnlyLiars),
        ("MAX_LIVE_SNAPSHOTS", Inside),
    ]
}

fn of_hosts() -> Vec<(&'static str, At)> {
    vec![
        ("MAX_NAMES_OF_HOST", LeavesOut),
        ("MAX_NAMES_TOLD", Waits("the next batch")),
        ("MAX_CLAIMS", says(NameError::Busy, "too many names", "try again")),
        ("MAX_ROAMING", says(StartError::TooManyRoam, MAX_ROAMING, "start some from another host")),
        ("MAX_REACHING", Waits("others to be reached")),
        ("MAX_WANTED", Inside),
        ("MAX_LOOKUPS", Inside),
        ("MAX_STARTS", Waits("others to be started")),
        ("MAX_MOVES", Waits("others to be begun")),
        ("MAX_GROUP_DELAY", OnlyLiars),
        ("MAX_HOST_SHOWS", Waits("others to be made")),
        ("MAX_ALL_HOSTS_TRACES", LeavesOut),
        ("MAX_HOST_FIGURES", LeavesOut),
        ("MAX_ALL_HOSTS_FIGURES", LeavesOut),
        ("MAX_LOG_BATCH", Waits("the next batch")),
        ("MAX_HOST_EDGES", LeavesOut),
        ("MAX_ALL_HOSTS_EDGES", LeavesOut),
        ("MAX_RESTING", Inside),
        ("MAX_FENCES", Inside),
        ("MAX_WAITING_NOTES", OnlyLiars),
        ("MAX_LATE", Waits("the answers for others")),
        ("MAX_HOST_QUESTIONS", OnlyLiars),
        ("MAX_WATCHED_AT_ONCE", Waits("the next batch")),
        ("MAX_GONE_TOLD", LeavesOut),
        ("MAX_HOST_TEXT", LeavesOut),
        ("MAX_RENEWALS", OnlyLiars),
        ("MAX_GATEWAY_WAITS", Waits("others that wait")),
        ("MAX_HOST_TRACE_RECORDS", LeavesOut),
        ("MAX_HOST_TRACE_NAMES", LeavesOut),
        ("MAX_HOST_TRACE", LeavesOut),
    ]
}

/// Returns the names of the constants in a source that begin with `MAX_`.
fn limits_in(source: &'static str) -> impl Iterator<Item = &'static str> {
    let constant =
        |line: &'static str| line.strip_prefix("pub(crate) const ").or(line.strip_prefix("pub const "));
    let names = source.lines().filter_map(constant);
    names.filter_map(|rest| rest.split(':').next()).filter(|name| name.starts_with("MAX_"))
}

#[test]
fn each_limit_has_a_row_and_each_row_a_limit() {
    let rows = [of_messages(), of_the_node(), of_what_is_shown(), of_hosts()].into_iter().flatten();
    let mut count = BTreeMap::new();
    rows.for_each(|(name, _)| *count.entry(name).or_insert(0) += 1);
    let sources = [
        SHOWN,
        include_str!("../limits.rs"),
        include_str!("../limits/hosts.rs"),
        include_str!("limits.rs"),
        include_str!("limits/hosts.rs"),
    ];
    for name in sources.into_iter().flat_map(limits_in) {
        assert_eq!(count.remove(name), Some(1), "`{name}` has one row: what does who reaches it read?");
    }
    assert!(count.is_empty(), "rows of limits that there are not: {count:?}");
}

#[test]
fn who_reaches_a_limit_reads_which_and_what_to_do() {
    for (name, at) in [of_messages(), of_the_node(), of_what_is_shown(), of_hosts()].into_iter().flatten() {
        match at {
            Says(text, limit, remedy) => {
                assert!(text.contains(&limit) && text.contains(remedy), "{name}: {text}");
            }
            Waits(what) => assert!(!what.is_empty(), "{name}"),
            LeavesOut | Inside | OnlyLiars => {}
        }
    }
}
