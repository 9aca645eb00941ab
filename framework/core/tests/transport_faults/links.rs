//! A link whose half could not be sent is made anew by the next use, and a link whose half was sent stays. A
//! frame is counted before it is written to a link.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tensorpost_core::testing::Cluster;
use tensorpost_core::testing::fault::{Action, Fault, arm};

use crate::alone;

#[test]
fn half_a_link_that_was_not_sent_is_sent_by_the_next_use() {
    let _alone = alone();
    let cluster = Cluster::new(2);
    let (to, inbox) = cluster.inbox::<u32>(1, 8);
    arm(Fault::new("transport.link.begin", Action::Panic));
    let failed = catch_unwind(AssertUnwindSafe(|| cluster.try_send(0, &to, 1)));
    assert!(failed.is_err(), "the point was not passed");
    assert_eq!(cluster.links(0), 0, "a link that never opens is kept");
    cluster.send(0, &to, 2);
    cluster.run_until_idle();
    assert_eq!(inbox.take_one().message, 2);
}

/// The peer has connected to the link. If another link took its place, this process would send into a ring
/// that nobody reads.
#[test]
fn half_a_link_that_was_sent_opens_though_its_sender_panicked() {
    let _alone = alone();
    let cluster = Cluster::new(2);
    let (to, inbox) = cluster.inbox::<u32>(1, 8);
    let (back, inbox_back) = cluster.inbox::<u32>(0, 8);
    arm(Fault::new("transport.link.sent", Action::Panic));
    let failed = catch_unwind(AssertUnwindSafe(|| cluster.try_send(0, &to, 1)));
    assert!(failed.is_err(), "the point was not passed");
    cluster.run_until_idle();
    cluster.send(0, &to, 2);
    cluster.run_until_idle();
    assert_eq!(inbox.take_one().message, 2);
    cluster.send(1, &back, 3);
    cluster.run_until_idle();
    assert_eq!(inbox_back.take_one().message, 3);
    assert!(!cluster.gave_up(0, 1) && !cluster.gave_up(1, 0));
}

/// A shutdown waits until all frames that were sent are taken, and counts both. A frame that is taken and was
/// not counted would stand for another that is still under way.
#[test]
fn a_frame_is_counted_before_its_peer_can_take_it() {
    let _alone = alone();
    let cluster = Cluster::new(2);
    let (to, inbox) = cluster.inbox::<u32>(1, 8);
    cluster.connect();
    arm(Fault::new("transport.send.publish", Action::Panic));
    let failed = catch_unwind(AssertUnwindSafe(|| cluster.try_send(0, &to, 1)));
    assert!(failed.is_err(), "the point was not passed");
    assert!(!cluster.poll(1), "it is not to be seen yet");
    // The frame goes out with the next one.
    cluster.send(0, &to, 2);
    cluster.run_until_idle();
    let came: Vec<u32> = inbox.take().into_iter().map(|received| received.message).collect();
    assert_eq!(came, [1, 2]);
    assert_eq!((cluster.transport(0).stats().sent, cluster.transport(1).stats().received), (2, 2));
}
