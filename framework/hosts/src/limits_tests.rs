//! Every `MAX_` of [`limits`](crate::limits) has a row here: the text that a program reads at the limit, or
//! the reason why it reads none. A new limit without a row fails.

use std::collections::BTreeSet;

use bytes::Bytes;

use crate::introduction::{Build, Introduction, PROTOCOL};
use crate::join::NotAdmitted;
use crate::limits::*;
use crate::session::PostError;

/// The effect of a limit on a program that reaches it.
enum At {
    /// The text has the limit and this remedy in it.
    Says(String, u64, &'static str),
    /// There is no text, for this reason.
    Silent(&'static str),
}

use At::{Says, Silent};

/// The reason of a limit that only a host of another program reaches: the other side refuses its bytes, and
/// logs that.
const LIES: &str = "no honest host reaches it";
/// The reason of a limit at which tensors between GPUs go another way.
const BY_GRPC: &str = "further tensors go by gRPC";

/// Returns the error of a host whose program has these arguments.
fn arguments(count: usize, bytes: usize) -> String {
    introduction(Build::Program([0; 32]), vec![Bytes::from(vec![b'a'; bytes]); count])
}

fn introduction(build: Build, arguments: Vec<Bytes>) -> String {
    let own = Introduction { protocol: PROTOCOL, version: "1".to_owned(), build, arguments };
    let excess = own.excess().expect("more than another host accepts");
    assert!(Introduction::decode(own.encode()).is_err(), "another host accepts it");
    excess
}

fn of_messages() -> Vec<(&'static str, At)> {
    let (what, most) = ("bytes of tensors", MAX_SPAN_BYTES);
    let large = PostError::TooLarge { what, found: most + 1, most }.to_string();
    vec![
        ("MAX_HEAD", Silent("a larger body goes as a span")),
        ("MAX_SPANS", Silent("no message has as many tensors")),
        ("MAX_SPAN_BYTES", Says(large, MAX_SPAN_BYTES, "in another message")),
        ("MAX_ARRIVING", Silent("a message waits until others are complete")),
        ("MAX_UNACKED", Silent("a message waits for acknowledgements")),
        ("MAX_CAPACITY", Silent("no mailbox is larger")),
        ("MAX_DONE", Silent("the next frame reports the rest")),
        ("MAX_MAILBOXES", Silent("the node reaches fewer actors at a time")),
        ("MAX_NOTE", Silent("no note is longer")),
        ("MAX_NOTES", Silent("a note waits for acknowledgements")),
        ("MAX_LOG", Silent("the next frame has the rest")),
        ("MAX_LOG_RECORDS", Silent("the next frame has the rest")),
        ("MAX_QUEUED_LOG", Silent("the head counts the records that are left out")),
        ("MAX_EVENTS", Silent("the session reads no more until the gateway has taken some")),
        ("MAX_WHY", Silent("the rest of the text is left out")),
        ("MAX_RESUME_BYTES", Silent("a message waits until others are complete")),
        ("MAX_PARTIAL_BYTES", Silent("a message waits until others are complete")),
    ]
}

fn of_connections() -> Vec<(&'static str, At)> {
    let file = "into a file that each host has";
    let name = introduction(Build::Named("a".repeat(MAX_NAME + 1)), Vec::new());
    let all = arguments(MAX_FRAME / MAX_ARGUMENT, MAX_ARGUMENT);
    vec![
        ("MAX_FRAME", Says(all, MAX_FRAME as u64, file)),
        ("MAX_ARGUMENTS", Says(arguments(MAX_ARGUMENTS + 1, 1), MAX_ARGUMENTS as u64, file)),
        ("MAX_ARGUMENT", Says(arguments(1, MAX_ARGUMENT + 1), MAX_ARGUMENT as u64, file)),
        ("MAX_NAME", Says(name, MAX_NAME as u64, "choose another")),
        ("MAX_HOSTS", Says(NotAdmitted::Full.to_string(), MAX_HOSTS as u64, "start another node")),
        ("MAX_LANES", Silent("a host that asks for more has as many")),
        ("MAX_LANE_FRAME", Silent(LIES)),
        ("MAX_LANE_PARTS", Silent(LIES)),
        ("MAX_NIXL_ROUTES", Silent(BY_GRPC)),
        ("MAX_NIXL_METADATA", Silent(BY_GRPC)),
        ("MAX_NIXL_BREAKS", Silent(BY_GRPC)),
        ("MAX_NIXL_WANTS", Silent(LIES)),
        ("MAX_VIOLATIONS", Silent(LIES)),
        ("MAX_STRANGERS", Silent("hosts that have connected before keep their places")),
        ("MAX_PROOFS", Silent("the oldest proofs are out of date")),
        ("MAX_CONNECTIONS", Silent(LIES)),
        ("MAX_BEATS", Silent("older ones cannot be answered in time")),
    ]
}

/// Returns the limits in the source that this test is about.
fn limits() -> BTreeSet<&'static str> {
    let constants = include_str!("limits.rs").lines().filter_map(|line| line.strip_prefix("pub const "));
    let names = constants.filter_map(|constant| constant.split(':').next());
    names.filter(|name| name.starts_with("MAX_")).collect()
}

#[test]
fn each_limit_names_itself_and_the_remedy() {
    let rows: Vec<_> = of_messages().into_iter().chain(of_connections()).collect();
    let names: BTreeSet<_> = rows.iter().map(|(name, _)| *name).collect();
    assert_eq!((names, rows.len()), (limits(), limits().len()), "left: rows");
    for (name, at) in rows {
        match at {
            Says(text, limit, remedy) => {
                assert!(text.contains(&limit.to_string()) && text.contains(remedy), "{name}: {text}");
            }
            Silent(reason) => assert!(!reason.is_empty(), "{name}"),
        }
    }
}
