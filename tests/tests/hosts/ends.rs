//! The end of a host, in order and not.

use std::time::{Duration, Instant};

use tensorpost::actor::{AskFailure, EndReason, Refusal, SendFailure};
use tensorpost::prelude::*;
use tensorpost_tests::cases;
use tensorpost_tests::harness::{Builder, Case};
use tensorpost_tests::wait::{ask, until};

use crate::actors::{Echo, Never};
use crate::{Other, find, head};

fn the_end_of_the_head_ends_the_others(builder: Builder) {
    let node = head(builder);
    let mut other = Other::start(&node);
    let echo = find::<Echo>(&node, "echo");
    ask(&node, &echo, Echo::empty());
    assert!(node.shutdown(Duration::from_secs(10)).expect("a report").is_clean());
    other.ends();
}

/// HOST-10: nobody answers the head for it any more.
fn an_agent_whose_gateway_dies_ends(builder: Builder) {
    let node = head(builder);
    let mut other = Other::start(&node);
    let echo = find::<Echo>(&node, "echo");
    ask(&node, &echo, Echo::empty());
    let status = other.ends_without("gateway");
    assert_eq!(status.code(), Some(1), "its workers were killed");
}

fn a_lost_host_answers_its_asks_with_its_name(builder: Builder) {
    let node = head(builder);
    let mut other = Other::start(&node);
    let (echo, never) = (find::<Echo>(&node, "echo"), find::<Never>(&node, "echo"));
    let mut watch = node.watch(&echo);
    ask(&node, &echo, Echo::empty());
    let mut open = never.ask(Never);
    node.block_on(open.accepted()).expect("it is accepted");
    other.kill();
    let since = Instant::now();
    let error = node.block_on(open).expect_err("it is never answered");
    println!("15 s of silence ended its ask after {:?}", since.elapsed());
    let text = error.to_string();
    assert!(matches!(error, AskError::NoReply(AskFailure::Refused(Refusal::OutOfReach(_)))), "{error:?}");
    assert!(text.contains("host 1 `other`") && text.contains("nobody knows"), "{text}");
    let event = watch.blocking_recv().expect("an event");
    assert!(event.is_final() && event.to_string().contains("`other`"), "{event}");
    let refused = node.block_on(echo.send(Echo::empty())).expect_err("it is lost");
    assert!(matches!(&refused.reason, SendFailure::GaveUp(EndReason::OutOfReach(_))), "{refused:?}");
    assert!(refused.to_string().contains("`other`"), "{refused}");
    // Who asked is told by the gateway, and the list is the node's.
    until("it is off the list", || node.hosts().expect("hosts").len() == 1);

    // Another host joins, with another number, and all goes on.
    let next = Other::start(&node);
    let echo = find::<Echo>(&node, "echo");
    assert_eq!(ask(&node, &echo, Echo::empty()).number, 1);
    assert_eq!(node.hosts().expect("hosts")[1].number, 2);
    next.end();
}

pub(crate) fn cases() -> Vec<Case> {
    cases![
        the_end_of_the_head_ends_the_others,
        an_agent_whose_gateway_dies_ends,
        a_lost_host_answers_its_asks_with_its_name,
    ]
}
