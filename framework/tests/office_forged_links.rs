//! WIRE-1 for the letters that make a link: a peer that sends descriptors of something else is given up, with the reason,
//! and nobody else notices.

#![cfg(feature = "testing")]

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use tensorpost::clock::ClockPage;
use tensorpost::mailbox::port::{FromNode, Letter};
use tensorpost::os::{Access, EventFd, Mapping, Memfd};
use tensorpost::testing::{Cluster, Target, TestInbox};

const LIAR: usize = 0;
const B: usize = 1;
const C: usize = 2;

fn scene() -> (Cluster, Target<u32>, Arc<TestInbox<u32>>) {
    let cluster = Cluster::new(3);
    let (to, inbox) = cluster.inbox::<u32>(C, 64);
    (cluster, to, inbox)
}

fn file() -> OwnedFd {
    std::fs::File::open("/dev/null").expect("it is there").into()
}

fn socket() -> OwnedFd {
    std::os::unix::net::UnixStream::pair().expect("descriptors").0.into()
}

/// Sealed as a page is, of any size, with nothing in it.
fn sealed(bytes: u64) -> OwnedFd {
    let memory = Memfd::create("forged", bytes).expect("memory");
    let _mapped = Mapping::map(memory.as_fd(), bytes as usize, Access::ReadWrite).expect("its own");
    memory.seal_future_write().expect("a new one");
    memory.into_fd()
}

/// As large as anything, and its sender can still write it, or cut it short under its reader.
fn unsealed() -> OwnedFd {
    Memfd::create("forged", 8 << 20).expect("memory").into_fd()
}

fn clocks() -> OwnedFd {
    ClockPage::create().expect("memory").export_fd().expect("descriptors")
}

/// Sends these as the liar's half of a link to B, and looks that B gives the liar up and serves C.
fn refused(what: &str, descriptors: Vec<OwnedFd>) {
    let (cluster, to, inbox) = scene();
    let letter = FromNode::Letter { from: cluster.process(LIAR), letter: Letter::Link };
    cluster.office(B).from_node(letter, descriptors);
    cluster.settle();
    assert!(cluster.gave_up(B, LIAR), "{what}");
    cluster.send(B, &to, 7);
    cluster.settle();
    assert_eq!(inbox.take_one().message, 7, "{what}");
    // What was half made goes with the liar.
    cluster.end(LIAR);
    cluster.settle();
    assert_eq!(cluster.links(B), 1, "{what}");
}

#[test]
fn descriptors_of_something_else_are_refused() {
    let big = || sealed(8 << 20);
    refused("none at all", vec![]);
    refused("too few", vec![clocks(), big(), big()]);
    refused("too many", vec![clocks(), big(), big(), file(), file()]);
    refused("a file for the clocks", vec![file(), big(), big(), file()]);
    refused("a socket for the clocks", vec![socket(), big(), big(), file()]);
    refused("clocks without a header", vec![big(), big(), big(), file()]);
    refused("a file for the mail page", vec![clocks(), file(), big(), file()]);
    refused("a short mail page", vec![clocks(), sealed(64), big(), file()]);
    refused("a mail page that can be cut short", vec![clocks(), unsealed(), big(), file()]);
    refused("a file for the rings", vec![clocks(), big(), file(), file()]);
    refused("rings that end early", vec![clocks(), big(), sealed(4096), file()]);
    refused("rings that others can write", vec![clocks(), big(), unsealed(), file()]);
    refused("a file for the doorbell", vec![clocks(), big(), big(), file()]);
    refused("memory for the doorbell", vec![clocks(), big(), big(), sealed(4096)]);
}

// What is refused above is refused for what is wrong with it.
#[test]
fn a_half_with_nothing_wrong_is_taken() {
    let (cluster, _, _) = scene();
    let bell = EventFd::create().expect("descriptors").into();
    let letter = FromNode::Letter { from: cluster.process(LIAR), letter: Letter::Link };
    cluster.office(B).from_node(letter, vec![clocks(), sealed(8 << 20), sealed(8 << 20), bell]);
    cluster.settle();
    assert!(!cluster.gave_up(B, LIAR));
}

#[test]
fn a_second_half_ends_the_link() {
    let (cluster, to, inbox) = scene();
    cluster.connect();
    let letter = FromNode::Letter { from: cluster.process(LIAR), letter: Letter::Link };
    cluster.office(B).from_node(letter, vec![clocks(), sealed(8 << 20), sealed(8 << 20), file()]);
    cluster.settle();
    assert!(cluster.gave_up(B, LIAR));
    cluster.send(B, &to, 1);
    cluster.settle();
    assert_eq!(inbox.take_one().message, 1);
}

#[test]
fn an_acknowledgement_of_nothing_changes_nothing() {
    let (cluster, to, inbox) = scene();
    for _ in 0..3 {
        let letter = FromNode::Letter { from: cluster.process(LIAR), letter: Letter::LinkAck };
        cluster.office(B).from_node(letter, vec![]);
    }
    cluster.settle();
    cluster.send(B, &to, 1);
    cluster.settle();
    assert_eq!(inbox.take_one().message, 1);
}
