//! Tests links for which a process lacks descriptors.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use serde::{Deserialize, Serialize};
use tensorpost_derive::GpuMessage;

use super::*;
use crate::actor::SendFailure;
use crate::tensor::Tensor;
use crate::testing::Cluster;
use crate::transport::control_channel::FromNode;

#[derive(Debug, Serialize, Deserialize, GpuMessage)]
#[gpu_message(crate = crate)]
struct Item {
    tensor: Option<Tensor>,
}

fn item() -> Item {
    Item { tensor: None }
}

fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Lets both processes send at once, or only the first. `poor` cannot take the half that it is sent.
fn refused(poor: usize, both: bool) {
    let cluster = Cluster::new(2);
    let (to_1, _at_1) = cluster.inbox::<Item>(1, 8);
    let (to_0, _at_0) = cluster.inbox::<Item>(0, 8);
    // First: an address makes the link.
    cluster.starve(poor, true);
    let there = cluster.address::<Item>(0, &to_1);
    let back = both.then(|| cluster.address::<Item>(1, &to_0));
    let mut sends: Vec<_> = (0..3).map(|_| Box::pin(there.send(item()))).collect();
    sends.extend(back.map(|back| Box::pin(back.send(item()))));
    // Each send has made its first attempt. The node is a thread of its own, and may have answered already.
    cluster.run_until_idle();
    let mut why = Vec::new();
    for send in &mut sends {
        let Poll::Ready(Err(error)) = poll(send.as_mut()) else {
            panic!("nobody waits for what does not come")
        };
        assert!(matches!(error.reason, SendFailure::NoLink(_)) && error.is_retryable(), "{error}");
        why.push(error.to_string());
    }
    assert!(why.iter().all(|why| why.contains("ulimit -n")), "{why:?}");
    let says = |text: &str| why.iter().any(|why| why.contains(text));
    assert!(
        says(&format!("process {} lacks", cluster.process(poor))) || says("this process lacks"),
        "{why:?}"
    );
    assert_eq!((cluster.links(0), cluster.links(1)), (0, 0), "nothing is left of it");

    // The next use makes another link, for both.
    cluster.starve(poor, false);
    let back = cluster.address::<Item>(1, &to_0);
    let (mut send, mut other) = (pin!(there.send(item())), pin!(back.send(item())));
    cluster.run_until_idle();
    assert!(matches!(poll(send.as_mut()), Poll::Ready(Ok(()))));
    assert!(matches!(poll(other.as_mut()), Poll::Ready(Ok(()))));
    cluster.run_until_idle();
    let received = [0, 1].map(|i| cluster.transport(i).stats().received);
    assert_eq!(received, [1, 1]);
    assert!(cluster.complaints().is_empty(), "{:?}", cluster.complaints());
}

#[test]
fn senders_are_told_who_cannot_take_the_half_and_the_next_use_begins_anew() {
    refused(1, false);
    // The receiver answers with a half of its own, which the sender cannot take.
    refused(0, false);
    refused(0, true);
    refused(1, true);
}

/// Both processes lack descriptors, so two refusals cross.
#[test]
fn refusals_that_cross_are_for_one_link() {
    let cluster = Cluster::new(2);
    let (to, _inbox) = cluster.inbox::<Item>(1, 8);
    let (to_0, _inbox_0) = cluster.inbox::<Item>(0, 8);
    for _ in 0..3 {
        [0, 1].into_iter().for_each(|i| cluster.starve(i, true));
        [0, 1].into_iter().for_each(|i| cluster.stop(i));
        let (there, back) = (cluster.address::<Item>(0, &to), cluster.address::<Item>(1, &to_0));
        let (mut one, mut other) = (pin!(there.send(item())), pin!(back.send(item())));
        assert!(poll(one.as_mut()).is_pending() && poll(other.as_mut()).is_pending());
        cluster.run_node_until_idle();
        [0, 1].into_iter().for_each(|i| cluster.go_on(i));
        cluster.run_until_idle();
        assert!(matches!(poll(one.as_mut()), Poll::Ready(Err(_))));
        assert!(matches!(poll(other.as_mut()), Poll::Ready(Err(_))));
    }
    [0, 1].into_iter().for_each(|i| cluster.starve(i, false));
    let there = cluster.address::<Item>(0, &to);
    let mut send = pin!(there.send(item()));
    cluster.run_until_idle();
    assert!(matches!(poll(send.as_mut()), Poll::Ready(Ok(()))));
    assert!(cluster.complaints().is_empty(), "{:?}", cluster.complaints());
}

/// A lease on a third process's memory needs a link to that process. If the frame cannot have it, the frame
/// is refused with the reason, and holds up no other.
#[test]
fn a_frame_whose_link_is_refused_goes_back_and_the_next_is_taken() {
    let cluster = Cluster::new(3);
    let (to_1, at_1) = cluster.inbox::<Tensor>(1, 8);
    let (to_2, at_2) = cluster.inbox::<Tensor>(2, 8);
    let (plain, at_plain) = cluster.inbox::<u32>(2, 8);
    let tensor = cluster.stream(0).from_slice(&[2], &[1_u32, 2]).expect("memory").freeze();
    let id = tensor.lease().id();
    cluster.send(0, &to_1, tensor);
    cluster.run_until_idle();
    let tensor = at_1.take_one().message;
    // The link from 1 to 2 is there, that from 2 to 0 is not.
    cluster.send(1, &plain, 6);
    cluster.run_until_idle();
    cluster.starve(0, true);
    cluster.send(1, &to_2, tensor.clone());
    cluster.send(1, &plain, 7);
    cluster.run_until_idle();
    assert!(at_2.is_empty());
    assert_eq!(at_plain.take().into_iter().map(|got| got.message).collect::<Vec<_>>(), [6, 7]);
    assert_eq!(cluster.transport(2).stats().rejected, 1);
    cluster.starve(0, false);
    cluster.send(1, &to_2, tensor);
    cluster.run_until_idle();
    assert_eq!(at_2.take_one().message.to_vec::<u32>().expect("data"), [1, 2]);
    cluster.run_until_idle();
    assert_eq!(cluster.shares(0, id), None, "{}", cluster.stream(0).pool().holders());
    assert!(cluster.complaints().is_empty(), "{:?}", cluster.complaints());
}

/// A peer that refuses a half which it said it had taken lies (WIRE-1). Refusals of other halves have no
/// effect.
#[test]
fn who_refuses_an_open_link_is_given_up() {
    let cluster = Cluster::new(2);
    let (to, inbox) = cluster.inbox::<u32>(1, 8);
    cluster.connect();
    let peer = cluster.process(1);
    let own = cluster.transport(0).links.to(peer).expect("it is open").number();
    let refuse = |number| {
        let (name, why) = (String::new(), WhyRefused::FILES);
        let refused = FromNode::LinkRefused { peer, number, by: peer, name, why };
        cluster.transport(0).from_node(refused, vec![]);
        cluster.run_until_idle();
    };
    [own - 1, own + 1].into_iter().for_each(refuse);
    cluster.send(0, &to, 5);
    cluster.run_until_idle();
    assert_eq!((inbox.take_one().message, cluster.gave_up(0, 1)), (5, false));
    refuse(own);
    assert!(cluster.gave_up(0, 1) && !cluster.gave_up(1, 0));
}

/// Nothing is sent over a link while only one side has mapped the other's half (LEASE-3).
#[test]
fn a_link_is_open_once_each_has_said_that_it_took_the_half() {
    let cluster = Cluster::new(2);
    let (to_1, _at_1) = cluster.inbox::<Item>(1, 8);
    let (to_0, _at_0) = cluster.inbox::<Item>(0, 8);
    let is_open = |of: usize, to: usize| {
        cluster.transport(of).links.to(cluster.process(to)).is_some_and(|link| link.is_open())
    };
    // The second process does not hear of the first's half, but its own half reaches the first.
    cluster.stop(1);
    let (there, back) = (cluster.address::<Item>(0, &to_1), cluster.address::<Item>(1, &to_0));
    let (mut there, mut back) = (pin!(there.send(item())), pin!(back.send(item())));
    cluster.run_node_until_idle();
    assert!(poll(there.as_mut()).is_pending() && poll(back.as_mut()).is_pending());
    assert!(!is_open(0, 1) && !is_open(1, 0), "what the first sent would not be seen");
    cluster.go_on(1);
    cluster.run_until_idle();
    assert!(is_open(0, 1) && is_open(1, 0));
    assert!(matches!(poll(there.as_mut()), Poll::Ready(Ok(()))));
    assert!(matches!(poll(back.as_mut()), Poll::Ready(Ok(()))));
    cluster.run_until_idle();
    assert_eq!([0, 1].map(|i| cluster.transport(i).stats().received), [1, 1]);
    assert!(cluster.complaints().is_empty(), "{:?}", cluster.complaints());
}

#[test]
fn a_half_that_is_not_taken_is_refused_whatever_is_wrong() {
    let cluster = Cluster::new(2);
    let (to, _inbox) = cluster.inbox::<Item>(1, 8);
    // It gets a half without its descriptors, in place of the one that was sent.
    cluster.stop(1);
    let address = cluster.address::<Item>(0, &to);
    let mut send = pin!(address.send(item()));
    assert!(poll(send.as_mut()).is_pending());
    cluster.run_node_until_idle();
    PeerHalf { transport: cluster.transport(1), from: cluster.process(0), number: 1 }.came(Vec::new());
    cluster.run_node_until_idle();
    let Poll::Ready(Err(error)) = poll(send.as_mut()) else { panic!("it is told") };
    assert!(error.to_string().contains("its log says why"), "{error}");
}
