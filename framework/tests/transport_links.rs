//! A link whose half could not be sent is made anew by the next use. A binary of its own: a fault that is armed strikes
//! whoever passes its point.

#![cfg(feature = "testing")]

use std::panic::{AssertUnwindSafe, catch_unwind};

use tensorpost::testing::Cluster;
use tensorpost::testing::fault::{Action, Fault, arm};

#[test]
fn half_a_link_that_was_not_sent_is_sent_by_the_next_use() {
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
