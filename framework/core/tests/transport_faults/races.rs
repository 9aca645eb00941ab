//! Events in the middle of a look at a frame.

use std::time::Duration;

use tensorpost_core::tensor::Tensor;
use tensorpost_core::testing::Cluster;
use tensorpost_core::testing::fault::{Action, Fault, arm, armed};

use crate::alone;

fn numbers(cluster: &Cluster, process: usize) -> Tensor {
    cluster.stream(process).from_slice(&[3], &[1_u32, 2, 3]).expect("memory").freeze()
}

#[track_caller]
fn is_good(tensor: &Tensor) {
    assert_eq!(tensor.to_vec::<u32>().expect("data"), [1, 2, 3]);
}

/// Lets process `i` look at its links, and stops it at `point` while `meanwhile` runs.
fn look_while(cluster: &Cluster, i: usize, point: &'static str, meanwhile: impl FnOnce()) {
    arm(Fault::new(point, Action::Delay(Duration::from_millis(300))));
    std::thread::scope(|threads| {
        threads.spawn(|| cluster.poll(i));
        while !armed().is_empty() {
            std::thread::yield_now();
        }
        meanwhile();
    });
}

/// LEASE-4: a chunk of the dead stays mapped as long as somebody has a lease on it. Here the last lease is
/// dropped between the check that the chunk is there and the adoption.
#[test]
fn a_chunk_of_the_dead_stays_for_the_frame_that_was_looked_at() {
    let _alone = alone();
    let cluster = Cluster::new(4);
    let (dead, sender, receiver, third) = (0, 1, 2, 3);
    let (to_sender, at_sender) = cluster.inbox::<Tensor>(sender, 8);
    let (to_receiver, at_receiver) = cluster.inbox::<Vec<Tensor>>(receiver, 8);
    cluster.connect();
    let [of_dead, of_third] = [dead, third].map(|owner| {
        cluster.send(owner, &to_sender, numbers(&cluster, owner));
        cluster.run_until_idle();
        let tensor = at_sender.take_one().message;
        is_good(&tensor);
        tensor
    });
    cluster.send(sender, &to_receiver, vec![of_dead.clone(), of_third.clone()]);
    cluster.run_until_idle();
    let mut held = at_receiver.take_one().message;
    held.pop();
    cluster.end(dead);
    cluster.run_until_idle();
    // The hold on the first tensor is posted between the look at the second and its adoption.
    cluster.send(sender, &to_receiver, vec![of_third, of_dead]);
    look_while(&cluster, receiver, "transport.forward.hold", || drop(held));
    cluster.run_until_idle();
    let got = at_receiver.take();
    assert_eq!((got.len(), cluster.transport(receiver).stats().rejected), (1, 0));
    got[0].message.iter().for_each(is_good);
    drop(got);
    cluster.run_until_idle();
    assert_eq!(cluster.leases(third), 0);
}

/// The owner of a lease lives at the first look and has ended at the second. There is no link to it.
#[test]
fn an_owner_may_end_between_two_looks() {
    let _alone = alone();
    let cluster = Cluster::new(3);
    let (owner, sender, receiver) = (0, 1, 2);
    let (to_sender, at_sender) = cluster.inbox::<Tensor>(sender, 8);
    let (to_receiver, at_receiver) = cluster.inbox::<Vec<Tensor>>(receiver, 8);
    cluster.send(owner, &to_sender, numbers(&cluster, owner));
    cluster.run_until_idle();
    let tensor = at_sender.take_one().message;
    is_good(&tensor);
    cluster.send(sender, &to_receiver, Vec::new());
    cluster.run_until_idle();
    assert!(at_receiver.take_one().message.is_empty());
    cluster.send(sender, &to_receiver, vec![tensor]);
    assert!(!cluster.poll(receiver), "it asks for the chunk first");
    cluster.run_node_until_idle();
    look_while(&cluster, receiver, "transport.take.owner", || cluster.end(owner));
    cluster.run_until_idle();
    let got = at_receiver.take();
    assert_eq!((got.len(), cluster.transport(receiver).stats().rejected), (1, 0));
    got[0].message.iter().for_each(is_good);
}
