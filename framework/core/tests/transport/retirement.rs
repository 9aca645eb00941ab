//! LEASE-4: the memory of a process that ended is unmapped when nobody can hold a lease in it, and not
//! before.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tensorpost_core::tensor::Tensor;
use tensorpost_core::testing::{Cluster, Target, TestInbox};

const A: usize = 0;
const B: usize = 1;
const C: usize = 2;

fn numbers(cluster: &Cluster) -> Tensor {
    cluster.stream(A).from_slice(&[3], &[1_u32, 2, 3]).expect("memory").freeze()
}

type Box_ = (Target<Tensor>, Arc<TestInbox<Tensor>>);

/// Makes three processes, with a mailbox in B and one in C.
fn scene() -> (Cluster, Box_, Box_) {
    let cluster = Cluster::new(3);
    let (at_b, at_c) = (cluster.inbox(B, 8), cluster.inbox(C, 8));
    cluster.connect();
    (cluster, at_b, at_c)
}

fn nothing_is_left(cluster: &Cluster, among: &[usize]) {
    only_is_left(cluster, among, 0);
}

/// Checks that the living processes `among` have only `own` chunks of their own and the links between them.
fn only_is_left(cluster: &Cluster, among: &[usize], own: usize) {
    // A stream's thread lets go of its memory a moment after others see that the work is done.
    let deadline = Instant::now() + Duration::from_secs(10);
    cluster.run_until_idle();
    while cluster.chunks_kept() > own && Instant::now() < deadline {
        std::thread::yield_now();
        cluster.run_until_idle();
    }
    assert_eq!(cluster.chunks_kept(), own, "{cluster:?}");
    for i in among {
        assert_eq!((cluster.chunks_mapped(*i), cluster.links(*i)), (0, among.len() - 1), "process {i}");
    }
    assert_eq!(cluster.complaints(), Vec::<String>::new());
}

#[test]
fn a_chunk_goes_with_the_last_lease() {
    let (cluster, (to, inbox), _) = scene();
    cluster.send(A, &to, numbers(&cluster));
    cluster.run_until_idle();
    let tensor = inbox.take_one().message;
    cluster.end(A);
    cluster.run_until_idle();
    assert_eq!((cluster.chunks_kept(), cluster.chunks_mapped(B)), (1, 1));
    assert_eq!(tensor.to_vec::<u32>().unwrap(), [1, 2, 3]);
    drop(tensor);
    nothing_is_left(&cluster, &[B, C]);
}

#[test]
fn what_is_not_read_yet_is_kept() {
    let (cluster, (to, inbox), _) = scene();
    cluster.send(A, &to, numbers(&cluster));
    cluster.end(A);
    cluster.poll(C);
    cluster.run_node_until_idle();
    assert_eq!(cluster.chunks_kept(), 1, "the lease is in a frame that B has not looked at");
    cluster.run_until_idle();
    assert_eq!(inbox.take_one().message.to_vec::<u32>().unwrap(), [1, 2, 3]);
    nothing_is_left(&cluster, &[B, C]);
}

#[test]
fn forwarding_after_the_reclaim_keeps_it() {
    let (cluster, (to_b, at_b), (to_c, at_c)) = scene();
    cluster.send(A, &to_b, numbers(&cluster));
    cluster.run_until_idle();
    let tensor = at_b.take_one().message;
    cluster.end(A);
    cluster.run_until_idle();
    // C has never seen a chunk of A.
    cluster.send(B, &to_c, tensor);
    cluster.run_until_idle();
    assert_eq!((cluster.chunks_kept(), cluster.chunks_mapped(B), cluster.chunks_mapped(C)), (1, 0, 1));
    // The tensor goes back again.
    cluster.send(C, &to_b, at_c.take_one().message);
    cluster.run_until_idle();
    assert_eq!((cluster.chunks_mapped(B), cluster.chunks_mapped(C)), (1, 0));
    assert_eq!(at_b.take_one().message.to_vec::<u32>().unwrap(), [1, 2, 3]);
    nothing_is_left(&cluster, &[B, C]);
}

// The only lease is in a frame of a process that ended, on memory of another process that ended.
#[test]
fn a_forwarder_that_ends_too_loses_nothing() {
    let (cluster, (to_b, at_b), (to_c, at_c)) = scene();
    cluster.send(A, &to_b, numbers(&cluster));
    cluster.run_until_idle();
    let tensor = at_b.take_one().message;
    cluster.end(A);
    cluster.run_until_idle();
    cluster.send(B, &to_c, tensor);
    cluster.end(B);
    cluster.run_until_idle();
    assert_eq!(at_c.take_one().message.to_vec::<u32>().unwrap(), [1, 2, 3]);
    nothing_is_left(&cluster, &[C]);
}

// A writable mapping goes in the same way.
#[test]
fn memory_handed_over_and_written_goes_as_well() {
    let (cluster, (to_b, at_b), _) = scene();
    cluster.send(A, &to_b, numbers(&cluster));
    cluster.run_until_idle();
    let tensor = at_b.take_one().message;
    cluster.end(A);
    cluster.run_until_idle();
    let mut tensor = tensor.into_mut(cluster.stream(B)).expect("it was moved all the way");
    tensor.copy_from_slice(&[7_u32, 8, 9]).unwrap();
    assert_eq!(cluster.chunks_mapped(B), 2);
    let tensor = tensor.freeze();
    assert_eq!(tensor.to_vec::<u32>().unwrap(), [7, 8, 9]);
    drop(tensor);
    nothing_is_left(&cluster, &[B, C]);
}

#[test]
fn work_on_a_stream_keeps_the_mapping() {
    let (cluster, (to_b, at_b), _) = scene();
    cluster.send(A, &to_b, numbers(&cluster));
    cluster.run_until_idle();
    let tensor = at_b.take_one().message;
    cluster.end(A);
    cluster.run_until_idle();
    let copy = cluster.stream(B).copy(&tensor).unwrap().freeze();
    drop(tensor);
    assert_eq!(copy.to_vec::<u32>().unwrap(), [1, 2, 3]);
    // One chunk is left: that of the copy.
    only_is_left(&cluster, &[B, C], 1);
}

// In a crash, unpublished entries are not seen, and leases that the dead process drops later concern nobody.
#[test]
fn an_abandoned_process_changes_nothing_more() {
    let (cluster, (to_b, at_b), (to_c, at_c)) = scene();
    cluster.send(A, &to_b, numbers(&cluster));
    cluster.run_until_idle();
    let received = at_b.take_one();
    let lease = received.message.lease().id();
    cluster.abandon(B);
    // Drops the tensor, for which a living process would post a release.
    drop(received);
    cluster.poll(A);
    assert_eq!(cluster.shares(A, lease).map(|shares| shares.holders), Some(vec![(cluster.process(B), 1)]));
    cluster.run_until_idle();
    assert_eq!(cluster.leases(A), 0, "its lease goes when it is reclaimed (LEASE-4)");
    cluster.send(A, &to_c, numbers(&cluster));
    cluster.run_until_idle();
    assert_eq!(at_c.take_one().message.to_vec::<u32>().unwrap(), [1, 2, 3]);
}
