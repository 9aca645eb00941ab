//! Notices in a return ring that no honest process writes (WIRE-1): they are counted, and the lease table
//! stays right (LEASE-1).

use std::sync::Arc;
use tensorpost_core::clock::Ticket;
use tensorpost_core::ids::ChunkId;
use tensorpost_core::lease::LeaseId;
use tensorpost_core::limits::{MAX_STREAMS, RETURN_SLOTS};
use tensorpost_core::tensor::Tensor;
use tensorpost_core::testing::cluster::Shares;
use tensorpost_core::testing::{Cluster, Target, TestInbox, forge};
use tensorpost_core::transport::ring::Entry;

/// A owns the memory. B writes the notices. C is an honest holder.
const A: usize = 0;
const B: usize = 1;
const C: usize = 2;

struct Scene {
    cluster: Cluster,
    to_b: Target<Tensor>,
    at_b: Arc<TestInbox<Tensor>>,
    at_c: Arc<TestInbox<Tensor>>,
    /// Held by B and C, once each.
    id: LeaseId,
    held: Vec<Tensor>,
}

impl Scene {
    fn new() -> Self {
        let cluster = Cluster::new(3);
        let (to_b, at_b) = cluster.inbox(B, 64);
        let (to_c, at_c) = cluster.inbox(C, 64);
        cluster.connect();
        let tensor = numbers(&cluster);
        let id = tensor.lease().id();
        cluster.send(A, &to_b, tensor.clone());
        cluster.send(A, &to_c, tensor);
        cluster.run_until_idle();
        let held = vec![at_b.take_one().message, at_c.take_one().message];
        Scene { cluster, to_b, at_b, at_c, id, held }
    }

    fn rejected(&self) -> u64 {
        self.cluster.transport(A).stats().rejected
    }

    fn write(&self, notice: Entry) {
        assert!(self.cluster.forge_notice(B, A, notice));
        self.cluster.run_until_idle();
    }

    /// Checks that `notice` is counted as rejected and changes nothing.
    fn is_refused(&self, notice: Entry, what: &str) {
        let (before, shares) = (self.rejected(), self.cluster.shares(A, self.id));
        self.write(notice);
        assert_eq!(self.rejected(), before + 1, "{what}");
        assert_eq!(self.cluster.shares(A, self.id), shares, "{what}");
    }

    /// Drops the held tensors, then checks that A's lease table is empty and that A serves both others.
    fn assert_well(mut self) {
        for tensor in &self.held {
            assert_eq!(tensor.to_vec::<f32>().expect("data"), [1.0, 2.0, 3.0]);
        }
        self.held.clear();
        self.cluster.run_until_idle();
        assert_eq!(self.cluster.leases(A), 0, "{}", self.cluster.stream(A).pool().holders());
        self.cluster.send(A, &self.to_b, numbers(&self.cluster));
        self.cluster.run_until_idle();
        drop(self.at_b.take_one());
        assert!(self.at_c.is_empty());
        self.cluster.run_until_idle();
        assert_eq!(self.cluster.leases(A), 0);
    }
}

fn numbers(cluster: &Cluster) -> Tensor {
    cluster.stream(A).from_slice(&[3], &[1_f32, 2.0, 3.0]).expect("memory").freeze()
}

#[test]
fn notices_that_fit_nothing_are_refused() {
    let scene = Scene::new();
    let id = scene.id;
    let unknown = [
        LeaseId { entry: id.entry + 1, ..id },
        LeaseId { entry: u32::MAX, ..id },
        LeaseId { generation: id.generation + 1, ..id },
        LeaseId { generation: 0, ..id },
        LeaseId { chunk: ChunkId { index: 1, ..id.chunk }, ..id },
        LeaseId { chunk: ChunkId { index: u32::MAX, ..id.chunk }, ..id },
    ];
    for wrong in unknown {
        scene.is_refused(forge::release(wrong, &[]), "a release of what is not there");
        scene.is_refused(forge::hold(wrong, scene.cluster.process(C)), "a hold on what is not there");
        let to = scene.cluster.process(C);
        scene.is_refused(forge::forward(wrong, to), "a forward of what is not there");
    }
    scene.assert_well();
}

#[test]
fn damaged_notices_are_refused() {
    let scene = Scene::new();
    let forward = forge::forward(scene.id, scene.cluster.process(C));
    for notice in [
        forge::release(scene.id, &[]),
        forge::hold(scene.id, scene.cluster.process(C)),
        forward,
        forge::rejected(8),
    ] {
        for bit in 0..512 {
            let mut damaged = notice;
            damaged[bit / 64] ^= 1 << (bit % 64);
            scene.is_refused(damaged, &format!("bit {bit}"));
        }
    }
    scene.is_refused([0; 8], "zeros");
    scene.is_refused([u64::MAX; 8], "ones");
    scene.assert_well();
}

#[test]
fn notices_that_say_what_cannot_be_are_refused() {
    let scene = Scene::new();
    let resealed = |change: &dyn Fn(&mut Entry)| {
        let mut notice = forge::release(scene.id, &[]);
        change(&mut notice);
        forge::reseal_entry(&mut notice);
        notice
    };
    for kind in [0, 6, 99, 255] {
        scene.is_refused(resealed(&|notice| notice[0] = notice[0] & !0xff | kind), "an unknown kind");
    }
    for count in [5, 6, 255] {
        scene.is_refused(resealed(&|notice| notice[0] |= count << 8), "too many tickets");
    }
    let slot = MAX_STREAMS as u64;
    scene
        .is_refused(resealed(&|notice| (notice[0], notice[2]) = (notice[0] | 1 << 8, slot)), "no such clock");
    scene.assert_well();
}

/// LEASE-1: the lease table knows which process holds each lease, so no process can give back another's.
#[test]
fn a_lease_is_given_back_once_and_by_its_holder() {
    let mut scene = Scene::new();
    let (b, c) = (scene.cluster.process(B), scene.cluster.process(C));
    scene.held.remove(0);
    scene.cluster.run_until_idle();
    assert_eq!(scene.cluster.shares(A, scene.id), Some(Shares { local: 0, holders: vec![(c, 1)] }));
    for _ in 0..3 {
        scene.is_refused(forge::release(scene.id, &[]), "B has none any more");
    }
    // A hold on forwarded memory is a lease that B can give back itself.
    assert!(scene.cluster.forge_notice(C, A, forge::forward(scene.id, b)));
    scene.write(forge::hold(scene.id, scene.cluster.process(C)));
    assert_eq!(scene.cluster.shares(A, scene.id), Some(Shares { local: 0, holders: vec![(b, 1), (c, 1)] }));
    scene.write(forge::release(scene.id, &[]));
    assert_eq!(scene.cluster.shares(A, scene.id), Some(Shares { local: 0, holders: vec![(c, 1)] }));
    scene.held.clear();
    scene.cluster.run_until_idle();
    assert_eq!(scene.cluster.shares(A, scene.id), None);
    let before = scene.rejected();
    scene.write(forge::hold(scene.id, scene.cluster.process(C)));
    scene.write(forge::release(scene.id, &[]));
    assert_eq!(scene.rejected(), before + 2, "a hold on a dead entry, and its release");
    scene.assert_well();
}

/// A rejection takes back only the leases that were granted with the frame that it names, and only once.
#[test]
fn a_rejection_takes_back_one_frames_leases_at_most() {
    let scene = Scene::new();
    scene.cluster.send(A, &scene.to_b, numbers(&scene.cluster));
    for end in [0, 1, 8, 16, 1 << 20, u64::MAX] {
        assert!(scene.cluster.forge_notice(B, A, forge::rejected(end)));
    }
    scene.cluster.run_until_idle();
    let got = scene.at_b.take_one();
    assert_eq!(got.message.to_vec::<f32>().expect("data"), [1.0, 2.0, 3.0]);
    drop(got);
    scene.assert_well();
}

/// WIRE-1: a release may not name a use at a clock value that the holder's clock was never to reach.
#[test]
fn a_use_that_was_not_promised_is_refused() {
    let scene = Scene::new();
    let process = scene.cluster.process(B);
    for (slot, value) in [(3, 1 << 40), (3, 1), (0, u64::MAX >> 1), (MAX_STREAMS as u16 - 1, 1 << 62)] {
        let never = Ticket { process, slot, value };
        scene.is_refused(forge::release(scene.id, &[never]), &format!("{never:?}"));
    }
    scene.assert_well();
}

/// Uses that do not end cost the owner that block and nothing else: the pool goes on, and its streams wait
/// only where they take that very block. When the liar ends, its clocks pass.
#[test]
fn a_use_that_never_ends_keeps_one_block_only() {
    let scene = Scene::new();
    let process = scene.cluster.process(B);
    let never = Ticket { process, slot: 3, value: 1 << 40 };
    scene.cluster.promise(never);
    let mine = numbers(&scene.cluster);
    scene.cluster.send(A, &scene.to_b, mine);
    scene.cluster.run_until_idle();
    let id = scene.at_b.take_one().message.lease().id();
    // B gives back a lease that it has given back already, and then one that it still holds.
    scene.cluster.run_until_idle();
    scene.is_refused(forge::release(id, &[never]), "given back before");
    scene.write(forge::release(scene.id, &[never]));
    let Scene { cluster, mut held, .. } = scene;
    held.clear();
    cluster.run_until_idle();
    assert_eq!(cluster.leases(A), 0);
    assert_eq!(cluster.stream(A).pool().stats().quarantined_bytes, 12);
    let next = numbers(&cluster);
    assert_eq!(next.to_vec::<f32>().expect("other memory"), [1.0, 2.0, 3.0]);
}

/// MBX-2: no honest process can have more leases than its return ring can give back. A process that takes
/// more is given up.
#[test]
fn holds_without_end_are_given_up() {
    let scene = Scene::new();
    for _ in 0..3 * RETURN_SLOTS / 1024 {
        if scene.cluster.gave_up(A, B) {
            break;
        }
        for _ in 0..1024 {
            assert!(scene.cluster.forge_notice(B, A, forge::hold(scene.id, scene.cluster.process(C))));
        }
        scene.cluster.poll(A);
    }
    assert!(scene.cluster.gave_up(A, B), "{:?}", scene.cluster.shares(A, scene.id));
    scene.cluster.end(B);
    let Scene { cluster, held, .. } = scene;
    drop(held);
    cluster.run_until_idle();
    assert_eq!(cluster.leases(A), 0, "{}", cluster.stream(A).pool().holders());
}
