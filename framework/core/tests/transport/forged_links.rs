//! WIRE-1 for the messages that make a link, and for the clocks behind it. A peer that sends wrong
//! descriptors, or whose clocks run back, is given up with the reason, and nobody else notices.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use tensorpost_core::clock::ClockPage;
use tensorpost_core::os::{Access, Ears, Mapping, Memfd};
use tensorpost_core::tensor::{DType, Tensor};
use tensorpost_core::testing::{Cluster, Target, TestInbox};
use tensorpost_core::transport::control_channel::{FromNode, LinkMessage};

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

fn packets() -> OwnedFd {
    tensorpost_core::os::Seqpacket::pair().expect("descriptors").0.into()
}

fn socket() -> OwnedFd {
    std::os::unix::net::UnixStream::pair().expect("descriptors").0.into()
}

/// Makes an empty file of any size, sealed as a page is.
fn sealed(bytes: u64) -> OwnedFd {
    let memory = Memfd::create("forged", bytes).expect("memory");
    let _mapped = Mapping::map(memory.as_fd(), bytes as usize, Access::ReadWrite).expect("its own");
    memory.seal_future_write().expect("a new one");
    memory.into_fd()
}

/// Makes a file that is large enough for anything. Its sender can still write it, or cut it short under its
/// reader.
fn unsealed() -> OwnedFd {
    Memfd::create("forged", 16 << 20).expect("memory").into_fd()
}

fn clocks() -> OwnedFd {
    ClockPage::create().expect("memory").export_fd().expect("descriptors")
}

fn half(bell: OwnedFd) -> Vec<OwnedFd> {
    vec![clocks(), sealed(16 << 20), sealed(16 << 20), sealed(16 << 20), bell]
}

/// Sends these descriptors as the liar's half of a link to B. Checks that B gives the liar up and serves C.
fn refused(what: &str, descriptors: Vec<OwnedFd>) {
    let (cluster, to, inbox) = scene();
    // The stopped liar does not send its honest half when it hears of the link.
    cluster.stop(LIAR);
    let link_message =
        FromNode::LinkMessage { from: cluster.process(LIAR), link_message: LinkMessage::Link { number: 1 } };
    cluster.transport(B).from_node(link_message, descriptors);
    cluster.run_until_idle();
    assert!(cluster.gave_up(B, LIAR), "{what}");
    cluster.send(B, &to, 7);
    cluster.run_until_idle();
    assert_eq!(inbox.take_one().message, 7, "{what}");
    // The half-made link goes with the liar.
    cluster.end(LIAR);
    cluster.run_until_idle();
    assert_eq!(cluster.links(B), 1, "{what}");
}

#[test]
fn descriptors_of_something_else_are_refused() {
    let big = || sealed(16 << 20);
    refused("none at all", vec![]);
    refused("too few", vec![clocks(), big(), big(), big()]);
    refused("too many", vec![clocks(), big(), big(), big(), file(), file()]);
    refused("a file for the clocks", vec![file(), big(), big(), big(), file()]);
    refused("a socket for the clocks", vec![socket(), big(), big(), big(), file()]);
    refused("clocks without a header", vec![big(), big(), big(), big(), file()]);
    refused("a file for the wake page", vec![clocks(), file(), big(), big(), file()]);
    refused("a short wake page", vec![clocks(), sealed(64), big(), big(), file()]);
    refused("a wake page that can be cut short", vec![clocks(), unsealed(), big(), big(), file()]);
    refused("a file for the words", vec![clocks(), big(), file(), big(), file()]);
    refused("words that others can write", vec![clocks(), big(), unsealed(), big(), file()]);
    refused("a file for the rings", vec![clocks(), big(), big(), file(), file()]);
    refused("rings that end early", vec![clocks(), big(), big(), sealed(4096), file()]);
    refused("rings that others can write", vec![clocks(), big(), big(), unsealed(), file()]);
    refused("a file for the doorbell", vec![clocks(), big(), big(), big(), file()]);
    refused("a socket of packets for the doorbell", vec![clocks(), big(), big(), big(), packets()]);
    refused("memory for the doorbell", vec![clocks(), big(), big(), big(), sealed(4096)]);
}

// Each case above is refused for the fault that it has.
#[test]
fn a_half_with_nothing_wrong_is_taken() {
    let (cluster, _, _) = scene();
    cluster.stop(LIAR);
    let ears = Ears::create().expect("descriptors");
    let (_ear, bell) = ears.doorbell().expect("descriptors");
    let bell = bell.into();
    let link_message =
        FromNode::LinkMessage { from: cluster.process(LIAR), link_message: LinkMessage::Link { number: 1 } };
    cluster.transport(B).from_node(link_message, half(bell));
    cluster.run_until_idle();
    assert!(!cluster.gave_up(B, LIAR));
}

#[test]
fn a_second_half_ends_the_link() {
    let (cluster, to, inbox) = scene();
    cluster.connect();
    let link_message =
        FromNode::LinkMessage { from: cluster.process(LIAR), link_message: LinkMessage::Link { number: 1 } };
    cluster.transport(B).from_node(link_message, half(file()));
    cluster.run_until_idle();
    assert!(cluster.gave_up(B, LIAR));
    cluster.send(B, &to, 1);
    cluster.run_until_idle();
    assert_eq!(inbox.take_one().message, 1);
}

/// Offers these descriptors as the liar's fresh rings to B, and checks that B goes on with C either way.
fn offered(what: &str, offers: Vec<Vec<OwnedFd>>) -> bool {
    let (cluster, to, inbox) = scene();
    cluster.connect();
    for (number, descriptors) in (1..).zip(offers) {
        let link_message = FromNode::LinkMessage {
            from: cluster.process(LIAR),
            link_message: LinkMessage::Rings { number },
        };
        cluster.transport(B).from_node(link_message, descriptors);
    }
    cluster.run_until_idle();
    cluster.send(B, &to, 8);
    cluster.run_until_idle();
    assert_eq!(inbox.take_one().message, 8, "{what}");
    cluster.gave_up(B, LIAR)
}

#[test]
fn fresh_rings_are_believed_as_those_of_a_half_are() {
    let big = || sealed(16 << 20);
    assert!(!offered("nothing wrong with them", vec![vec![big()]]));
    for (what, descriptors) in [
        ("none", vec![]),
        ("two", vec![big(), big()]),
        ("a file", vec![file()]),
        ("rings that end early", vec![sealed(4096)]),
        ("rings that others can write", vec![unsealed()]),
    ] {
        assert!(offered(what, vec![descriptors]), "{what}");
    }
    assert!(offered("again, before they were used", vec![vec![big()], vec![big()]]));
}

#[test]
fn a_clock_that_runs_back_ends_the_link() {
    let cluster = Cluster::new(3);
    let (to_b, at_b) = cluster.inbox::<Tensor>(B, 8);
    let (to_c, at_c) = cluster.inbox::<u32>(C, 8);
    cluster.connect();
    // Each tensor is still being written when it is sent, so its frame names a clock to wait for.
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let wait = Arc::new(std::sync::Mutex::new(wait));
    let unfinished = || {
        let wait = Arc::clone(&wait);
        let mut tensor = cluster.stream(LIAR).zeros(DType::U8, &[1]).expect("memory");
        let write = move |(_,): (&mut [u8],)| {
            // An error means that the test has ended.
            let _ = wait.lock().expect("one at a time").recv();
        };
        cluster.stream(LIAR).run((tensor.of_mut::<u8>(),), write).expect("a stream");
        tensor.freeze()
    };
    cluster.send(LIAR, &to_b, unfinished());
    cluster.run_until_idle();
    let first = at_b.take_one();
    cluster.turn_clocks_back(LIAR);
    cluster.send(LIAR, &to_b, unfinished());
    cluster.run_until_idle();
    assert!(at_b.is_empty() && cluster.gave_up(B, LIAR));
    cluster.send(B, &to_c, 5);
    cluster.run_until_idle();
    assert_eq!(at_c.take_one().message, 5);
    drop((first, go));
}
