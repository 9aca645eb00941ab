//! In which order a turn's end makes visible what the turn has left.

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use crate::stream::turn::Turn;
use crate::tensor::Tensor;
use crate::testing::Cluster;

fn tensor(cluster: &Cluster, process: usize) -> Tensor {
    cluster.stream(process).from_slice(&[4], &[1_u32, 2, 3, 4]).expect("memory").freeze()
}

/// How long something that is to happen may take, and for how long something must not.
const LIMIT: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(100);

/// The frame would say that the tensor is dropped. Here the end of the turn stands before it publishes frames.
#[test]
fn a_drop_is_to_be_seen_before_a_frame_that_was_sent_after_it() {
    let cluster = Cluster::new(2);
    let (to_b, at_b) = cluster.inbox::<Tensor>(1, 4);
    let (to_a, at_a) = cluster.inbox::<u32>(0, 4);
    cluster.connect();
    cluster.send(0, &to_b, tensor(&cluster, 0));
    cluster.run_until_idle();
    let held = at_b.take_one();
    cluster.run_until_idle();
    let link = cluster.transport(1).link(cluster.process(0)).expect("connected");
    let (sent, ready) = channel();
    let (go, wait) = channel::<()>();
    let (cluster, to) = (&cluster, &to_a);
    std::thread::scope(|threads| {
        threads.spawn(move || {
            let turn = Turn::begin();
            drop(held);
            cluster.send(1, to, 1);
            sent.send(()).expect("the test waits");
            wait.recv().expect("the test goes on");
            drop(turn);
        });
        ready.recv().expect("it sends");
        let frames = link.hold_frames();
        go.send(()).expect("it waits");
        let until = Instant::now() + LIMIT;
        while cluster.leases(0) > 0 && Instant::now() < until {
            cluster.poll(0);
        }
        assert_eq!(cluster.leases(0), 0, "the drop waits for the frame");
        assert!(at_a.is_empty());
        drop(frames);
    });
    cluster.run_until_idle();
    assert_eq!(at_a.take_one().message, 1);
}

/// The receiver may tell the owner, who is a third. Here the end of the turn stands before it publishes the drop.
#[test]
fn a_drop_is_to_be_seen_before_a_frame_to_another() {
    let cluster = Cluster::new(3);
    let (to_c, at_c) = cluster.inbox::<Tensor>(2, 4);
    // The first in the order of links.
    let (to_b, at_b) = cluster.inbox::<u32>(0, 4);
    cluster.connect();
    cluster.send(1, &to_c, tensor(&cluster, 1));
    cluster.run_until_idle();
    let held = at_c.take_one();
    cluster.run_until_idle();
    let link = cluster.transport(2).link(cluster.process(1)).expect("connected");
    let (sent, ready) = channel();
    let (go, wait) = channel::<()>();
    let (cluster, to) = (&cluster, &to_b);
    std::thread::scope(|threads| {
        threads.spawn(move || {
            let turn = Turn::begin();
            drop(held);
            cluster.send(2, to, 1);
            sent.send(()).expect("the test waits");
            wait.recv().expect("the test goes on");
            drop(turn);
        });
        ready.recv().expect("it sends");
        let returns = link.hold_notices();
        go.send(()).expect("it waits");
        let until = Instant::now() + LOOK;
        while Instant::now() < until {
            cluster.poll(0);
            assert!(at_b.is_empty(), "the frame has overtaken the drop");
        }
        drop(returns);
    });
    cluster.run_until_idle();
    assert_eq!(at_b.take_one().message, 1);
    assert_eq!(cluster.leases(1), 0);
}

/// Another thread has taken the mark of the drop, and stands before it publishes what that is for.
#[test]
fn a_drop_whose_mark_another_has_taken_is_to_be_seen_before_a_frame_too() {
    let cluster = Cluster::new(2);
    let (to_b, at_b) = cluster.inbox::<Tensor>(1, 4);
    let (to_a, at_a) = cluster.inbox::<u32>(0, 4);
    cluster.connect();
    cluster.send(0, &to_b, tensor(&cluster, 0));
    cluster.run_until_idle();
    let held = at_b.take_one();
    cluster.run_until_idle();
    let link = cluster.transport(1).link(cluster.process(0)).expect("connected");
    let turn = Turn::begin();
    drop(held);
    assert_ne!(link.take_due(), 0);
    cluster.send(1, &to_a, 1);
    drop(turn);
    cluster.poll(0);
    assert_eq!(at_a.take_one().message, 1);
    assert_eq!(cluster.leases(0), 0, "the frame has overtaken the drop");
}
