//! Links that were busy and have fallen silent: the memory of their rings comes back, and no message that is
//! sent meanwhile and no lease is lost by that.

use std::sync::Arc;

use tensorpost_core::limits::{IDLE_RING_BYTES, RETURN_SLOTS, RING_BYTES};
use tensorpost_core::tensor::{DType, Tensor};
use tensorpost_core::testing::{Cluster, Target, TestInbox};

const A: usize = 0;
const B: usize = 1;

struct Scene {
    cluster: Cluster,
    notes: Target<Vec<u8>>,
    inbox: Arc<TestInbox<Vec<u8>>>,
    tensors: Target<Vec<Tensor>>,
    at_b: Arc<TestInbox<Vec<Tensor>>>,
}

fn scene() -> Scene {
    let cluster = Cluster::new(2);
    let (notes, inbox) = cluster.inbox(B, 64);
    let (tensors, at_b) = cluster.inbox(B, 64);
    cluster.connect();
    Scene { cluster, notes, inbox, tensors, at_b }
}

impl Scene {
    fn note(&self, number: u8, bytes: usize) {
        self.cluster.send(A, &self.notes, vec![number; bytes]);
    }

    fn arrives(&self, number: u8) {
        self.arrive(&[number]);
    }

    fn arrive(&self, numbers: &[u8]) {
        self.cluster.run_until_idle();
        let arrived: Vec<u8> = self.inbox.take().iter().map(|received| received.message[0]).collect();
        assert_eq!(arrived, numbers);
    }

    fn batch(&self, count: usize) -> Vec<Tensor> {
        let tensor = |_| self.cluster.stream(A).zeros(DType::U8, &[1]).expect("memory").freeze();
        (0..count).map(tensor).collect()
    }

    /// Sends a message with this many tensors, and returns it as it arrived at B.
    fn arrived(&self, tensors: usize) -> impl Sized {
        self.cluster.send(A, &self.tensors, self.batch(tensors));
        self.cluster.run_until_idle();
        self.at_b.take_one()
    }

    /// Sends a lap and more of the data ring to B.
    fn busy(&self) {
        for number in 0..(RING_BYTES / (16 << 10) + 8) as u8 {
            self.note(number, 16 << 10);
            self.arrives(number);
        }
        assert_eq!(self.cluster.ring_bytes(A, B), RING_BYTES);
    }

    /// Lets process `i` look twice with nothing in between, and lets the node answer.
    fn falls_silent(&self, i: usize) {
        for _ in 0..2 {
            assert!(self.cluster.check_idle(i), "there is something to give back");
        }
        self.cluster.run_until_idle();
    }

    fn is_clean(&self) {
        self.cluster.run_until_idle();
        assert!(self.cluster.complaints().is_empty(), "{:?}", self.cluster.complaints());
        for i in [A, B] {
            assert_eq!((self.cluster.leases(i), self.cluster.transport(i).stats().rejected), (0, 0));
        }
    }
}

#[test]
fn the_memory_of_a_silent_link_comes_back_in_both_processes() {
    let scene = scene();
    scene.busy();
    let before = scene.cluster.ring_memory(A, B);
    assert_eq!(before.len(), 4);
    scene.falls_silent(A);
    assert!(before.iter().all(|memory| memory.strong_count() > 0), "until the reader has time");
    scene.cluster.move_rings(A);
    scene.cluster.run_until_idle();
    assert!(before.iter().all(|memory| memory.strong_count() == 0), "nobody has it mapped");
    assert!(scene.cluster.ring_bytes(A, B) <= IDLE_RING_BYTES, "{}", scene.cluster.ring_bytes(A, B));
    assert!(!scene.cluster.check_idle(A), "and nothing is left to be done");
    // The messages go past the middle of a ring that begins anew, and once more.
    for _ in 0..2 {
        scene.busy();
        scene.falls_silent(A);
        scene.cluster.move_rings(A);
        scene.note(7, 1);
        scene.arrives(7);
    }
    scene.is_clean();
}

#[test]
fn a_link_that_says_something_now_and_then_keeps_its_memory() {
    let scene = scene();
    scene.busy();
    for number in 0..5 {
        assert!(scene.cluster.check_idle(A), "it may be silent later");
        scene.note(number, 1);
        scene.arrives(number);
    }
    scene.cluster.move_rings(A);
    assert_eq!(scene.cluster.ring_bytes(A, B), RING_BYTES);
    scene.is_clean();
}

#[test]
fn a_link_that_was_never_busy_is_left_alone() {
    let scene = scene();
    scene.note(1, 100);
    scene.arrives(1);
    assert!(!scene.cluster.check_idle(A) && !scene.cluster.check_idle(A));
}

/// A return ring has room for many leases, and takes memory only for those that are under way.
#[test]
fn leases_that_come_back_one_after_the_other_touch_little_memory() {
    let scene = scene();
    for _ in 0..2 * RETURN_SLOTS / (256 * 64) {
        drop(scene.arrived(256));
        scene.cluster.run_until_idle();
    }
    assert!(scene.cluster.ring_bytes(B, A) <= IDLE_RING_BYTES, "{}", scene.cluster.ring_bytes(B, A));
    assert!(!scene.cluster.check_idle(B) && !scene.cluster.check_idle(B));
    scene.is_clean();
}

/// LEASE-2: held leases come back over the ring that goes on in other memory.
#[test]
fn return_rings_move_too_and_what_is_held_comes_back() {
    let scene = scene();
    // Many leases come back at once, so the ring grows.
    let kept: Vec<_> = (0..4).map(|_| scene.arrived(256)).collect();
    drop(kept);
    scene.cluster.run_until_idle();
    assert!(scene.cluster.ring_bytes(B, A) > IDLE_RING_BYTES);
    let held = scene.arrived(300);
    let before = scene.cluster.ring_memory(B, A);
    scene.falls_silent(B);
    scene.cluster.move_rings(B);
    scene.cluster.run_until_idle();
    assert!(before.iter().all(|memory| memory.strong_count() == 0) && scene.cluster.leases(A) == 300);
    assert!(scene.cluster.ring_bytes(B, A) <= IDLE_RING_BYTES);
    drop(held);
    scene.is_clean();
}

/// MBX-1: messages that were sent before the rings move are read where they were written.
#[test]
fn what_is_sent_while_the_rings_move_arrives_in_order() {
    let scene = scene();
    scene.busy();
    scene.cluster.stop(B);
    for _ in 0..2 {
        scene.cluster.check_idle(A);
    }
    // The move is offered and not answered, so the ring goes on as before.
    scene.cluster.run_node_until_idle();
    scene.note(1, 40);
    scene.cluster.go_on(B);
    scene.cluster.run_node_until_idle();
    // The move is accepted, and the note is not read yet.
    scene.cluster.move_rings(A);
    assert_eq!(scene.cluster.ring_bytes(A, B), RING_BYTES, "not behind what is unread");
    scene.note(2, 40);
    scene.arrive(&[1, 2]);
    // The next look finds the note read.
    scene.cluster.check_idle(A);
    scene.note(3, 40);
    assert!(scene.cluster.ring_bytes(A, B) <= IDLE_RING_BYTES);
    // The mark and the note may be published together or not; the reader takes them either way.
    scene.note(4, 40);
    scene.arrive(&[3, 4]);
    scene.is_clean();
}

/// LEASE-4: frames that the dead process had written are read to the end, on both sides of the mark.
#[test]
fn what_the_dead_wrote_into_fresh_memory_is_read() {
    let scene = scene();
    scene.busy();
    scene.falls_silent(A);
    scene.cluster.move_rings(A);
    scene.note(9, 40);
    scene.cluster.end(A);
    scene.arrives(9);
    assert_eq!(scene.cluster.links(B), 0, "and then its link goes, with the memory");
}

#[test]
fn who_lacks_descriptors_refuses_and_is_asked_again() {
    let scene = scene();
    scene.busy();
    let before = scene.cluster.ring_memory(A, B);
    scene.cluster.starve(B, true);
    scene.falls_silent(A);
    scene.cluster.move_rings(A);
    scene.note(1, 1);
    scene.arrives(1);
    assert!(before.iter().all(|memory| memory.strong_count() > 0));
    scene.cluster.starve(B, false);
    scene.falls_silent(A);
    scene.cluster.move_rings(A);
    scene.note(2, 1);
    scene.arrives(2);
    assert!(before.iter().all(|memory| memory.strong_count() == 0));
    scene.is_clean();
}

/// WIRE-1: a peer is given up if it says that a ring goes on in memory that nobody has seen. That costs
/// nobody else anything.
#[test]
fn a_move_to_memory_that_was_not_offered_ends_the_link() {
    for data in [true, false] {
        let cluster = Cluster::new(3);
        let (to, inbox) = cluster.inbox::<u32>(2, 8);
        cluster.connect();
        cluster.forge_move(A, B, data);
        cluster.run_until_idle();
        assert!(cluster.gave_up(B, A));
        cluster.send(B, &to, 5);
        cluster.run_until_idle();
        assert_eq!(inbox.take_one().message, 5);
    }
}
