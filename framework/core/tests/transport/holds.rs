//! A peer's lies about memory that it was not lent (WIRE-1, ONE-WRITER). The owner believes a hold only if a
//! holder of the memory has forwarded it. It takes memory back only in the form in which the sending process
//! can have it. The tests compare the bytes, not only the counts.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tensorpost_core::clock::Ticket;
use tensorpost_core::ids::ProcessId;
use tensorpost_core::lease::LeaseId;
use tensorpost_core::limits::{MAX_FORWARDED, MAX_GRANTED};
use tensorpost_core::tensor::{Tensor, TensorMut, TensorPart};
use tensorpost_core::testing::{Cluster, Target, TestInbox, forge};

const LIAR: usize = 0;
const OWNER: usize = 1;
const C: usize = 2;
const D: usize = 3;

struct Scene {
    cluster: Cluster,
    wholes: (Target<Tensor>, Arc<TestInbox<Tensor>>),
    parts: (Target<TensorPart>, Arc<TestInbox<TensorPart>>),
}

/// An allocation of the owner's, as a liar would write it into a frame.
#[derive(Clone, Copy)]
struct Entry {
    id: LeaseId,
    offset: u64,
    bytes: u64,
}

impl Entry {
    fn of(lease: &tensorpost_core::lease::Lease) -> Self {
        Entry { id: lease.id(), offset: lease.offset(), bytes: lease.bytes() }
    }
}

/// Renames the only lease of a frame to one on `entry`.
fn renamed(entry: Entry) -> impl FnOnce(&mut Vec<u8>) + Send + Sync + 'static {
    move |frame| {
        for field in forge::fields(1, 1) {
            match field.name {
                "lease owner" => field.set(frame, entry.id.chunk.owner.to_bits()),
                "lease chunk" => field.set(frame, entry.id.chunk.index.into()),
                "lease entry" => field.set(frame, entry.id.entry.into()),
                "lease generation" => field.set(frame, entry.id.generation.into()),
                "lease offset" => field.set(frame, entry.offset),
                "lease length" => field.set(frame, entry.bytes),
                _ => {}
            }
        }
        forge::reseal(frame);
    }
}

impl Scene {
    fn new() -> Self {
        let cluster = Cluster::new(4);
        let (wholes, parts) = (cluster.inbox(OWNER, 64), cluster.inbox(OWNER, 64));
        cluster.connect();
        Scene { cluster, wholes, parts }
    }

    fn private(&self) -> TensorMut {
        self.cluster.stream(OWNER).from_slice(&[8], b"private!").expect("memory")
    }

    /// The liar's next frame names this entry instead of its own memory.
    fn name_instead(&self, entry: Entry) {
        self.cluster.tamper_next(LIAR, OWNER, renamed(entry));
    }

    fn hold(&self, entry: Entry) {
        self.hold_by(LIAR, C, entry);
    }

    /// Lets `who` post a hold that says that `by` has forwarded the entry.
    fn hold_by(&self, who: usize, by: usize, entry: Entry) {
        assert!(self.cluster.forge_notice(who, OWNER, self.hold_of(by, entry)));
        self.cluster.run_until_idle();
    }

    fn hold_of(&self, by: usize, entry: Entry) -> [u64; 8] {
        forge::hold(entry.id, self.cluster.process(by))
    }

    /// Posts the notice of a forward to the owner, and sends nothing.
    fn forward(&self, by: usize, to: usize, entry: Entry) {
        let forward = forge::forward(entry.id, self.cluster.process(to));
        assert!(self.cluster.forge_notice(by, OWNER, forward));
    }

    /// Makes a tensor of the owner's and lends it to C.
    fn lent(&self) -> (Tensor, Entry) {
        let (to, at_c) = self.cluster.inbox::<Tensor>(C, 8);
        self.cluster.send(OWNER, &to, self.private().freeze());
        self.cluster.run_until_idle();
        let lent = at_c.take_one().message;
        let entry = Entry::of(lent.lease());
        (lent, entry)
    }

    #[track_caller]
    fn held_by(&self, entry: Entry, who: &[(usize, u32)]) {
        let shares = self.cluster.shares(OWNER, entry.id).expect("somebody has it");
        let who: Vec<_> = who.iter().map(|(who, count)| (self.cluster.process(*who), *count)).collect();
        assert_eq!(shares.holders, who);
        assert_eq!(self.cluster.forwards(OWNER, entry.id).1, 0, "something is unproven");
    }

    fn rejected(&self) -> u64 {
        self.cluster.transport(OWNER).stats().rejected
    }

    /// Lets the liar send the entry to its owner, as a tensor and as a part. Returns how many of each
    /// arrived.
    fn send_back(&self, entry: Entry) -> (usize, usize) {
        let own = || self.cluster.stream(LIAR).from_slice(&[8], b"attacker").expect("memory");
        self.name_instead(entry);
        self.cluster.send(LIAR, &self.wholes.0, own().freeze());
        self.cluster.run_until_idle();
        let wholes = self.wholes.1.take();
        self.name_instead(entry);
        self.cluster.send(LIAR, &self.parts.0, own().split(0, &[8]).expect("one part").remove(0));
        self.cluster.run_until_idle();
        let mut parts = self.parts.1.take();
        // A process that gets a part may write it.
        parts.iter_mut().for_each(|got| drop(got.message.copy_from_slice(b"SMASHED!")));
        (wholes.len(), parts.len())
    }
}

#[test]
fn memory_that_was_never_lent_is_out_of_reach() {
    let scene = Scene::new();
    let secret = scene.private().freeze();
    let (view, entry) = (secret.as_slice::<u8>().expect("on the host"), Entry::of(secret.lease()));
    let rejected = scene.cluster.transport(OWNER).stats().rejected;
    scene.hold(entry);
    assert_eq!(scene.cluster.shares(OWNER, entry.id).expect("it is there").holders, []);
    assert!(scene.cluster.transport(OWNER).stats().rejected > rejected);
    assert_eq!((scene.send_back(entry), view), ((0, 0), &b"private!"[..]));
}

#[test]
fn nobody_stalls_memory_that_was_never_lent() {
    let scene = Scene::new();
    let mine = scene.private().freeze();
    let entry = Entry::of(mine.lease());
    let never = Ticket { process: scene.cluster.process(LIAR), slot: 0, value: 1 << 60 };
    scene.cluster.promise(never);
    scene.hold(entry);
    assert!(scene.cluster.forge_notice(LIAR, OWNER, forge::release(entry.id, &[never])));
    scene.cluster.run_until_idle();
    let mine = mine.into_mut(scene.cluster.stream(OWNER)).expect("nobody has it");
    mine.wait(Some(Instant::now() + Duration::from_secs(5))).expect("there is nothing to wait for");
}

#[test]
fn memory_that_came_back_is_private_again() {
    let scene = Scene::new();
    let (to, at_c) = scene.cluster.inbox::<Tensor>(C, 8);
    let tensor = scene.private().freeze();
    scene.cluster.send(OWNER, &to, tensor.clone());
    scene.cluster.run_until_idle();
    drop(at_c.take_one());
    scene.cluster.run_until_idle();
    let entry = Entry::of(tensor.lease());
    let mut mine = tensor.into_mut(scene.cluster.stream(OWNER)).expect("C has let go");
    mine.copy_from_slice(b"mine now").expect("on the host");
    scene.hold(entry);
    assert_eq!(scene.send_back(entry), (0, 0));
    assert_eq!(mine.as_slice::<u8>().expect("on the host"), b"mine now");
    // A tensor that is lent again can be forwarded again.
    let tensor = mine.freeze();
    scene.cluster.send(OWNER, &to, tensor.clone());
    scene.cluster.run_until_idle();
    scene.forward(C, LIAR, entry);
    scene.hold(entry);
    let holders = scene.cluster.shares(OWNER, entry.id).expect("it is there").holders;
    assert!(holders.contains(&(scene.cluster.process(LIAR), 1)), "{holders:?}");
}

#[test]
fn what_was_lent_to_read_does_not_come_back_to_write() {
    let scene = Scene::new();
    let (to, at_liar) = scene.cluster.inbox::<Tensor>(LIAR, 8);
    let tensor = scene.private().freeze();
    scene.cluster.send(OWNER, &to, tensor.clone());
    scene.cluster.run_until_idle();
    let _lent = at_liar.take_one();
    let (view, entry) = (tensor.as_slice::<u8>().expect("on the host"), Entry::of(tensor.lease()));
    let (wholes, parts) = scene.send_back(entry);
    // A lent tensor may come back as what it is.
    assert_eq!((wholes, parts, view), (1, 0, &b"private!"[..]));
}

#[test]
fn a_part_does_not_come_back_as_the_whole() {
    let scene = Scene::new();
    let (to, at_liar) = scene.cluster.inbox::<TensorPart>(LIAR, 8);
    let mut parts = scene.private().split(0, &[4, 4]).expect("two parts");
    let (given, mut kept) = (parts.remove(0), parts.remove(0));
    let entry = Entry::of(kept.lease());
    scene.cluster.send(OWNER, &to, given);
    scene.cluster.run_until_idle();
    let lent = at_liar.take_one();
    kept.copy_from_slice(b"mine").expect("on the host");
    let (wholes, _) = scene.send_back(entry);
    assert_eq!((wholes, kept.to_vec::<u8>().expect("on the host")), (0, b"mine".to_vec()));
    // The part that was lent comes back as a part.
    scene.cluster.send(LIAR, &scene.parts.0, lent.message);
    scene.cluster.run_until_idle();
    let back = scene.parts.1.take_one().message;
    let whole = TensorMut::join(vec![kept, back], scene.cluster.stream(OWNER)).expect("both parts");
    assert_eq!(whole.as_slice::<u8>().expect("on the host"), b"privmine");
}

#[test]
fn what_was_forwarded_leaves_room_for_what_is_sent() {
    let scene = Scene::new();
    let (to, at_liar) = scene.cluster.inbox::<Vec<Tensor>>(LIAR, 8);
    let (to_c, at_c) = scene.cluster.inbox::<Tensor>(C, 8);
    let lent = scene.private().freeze();
    let entry = Entry::of(lent.lease());
    scene.cluster.send(OWNER, &to_c, lent);
    scene.cluster.run_until_idle();
    let _kept = at_c.take_one();
    let hold = |count: usize| {
        for n in 0..count {
            scene.forward(C, LIAR, entry);
            assert!(scene.cluster.forge_notice(LIAR, OWNER, scene.hold_of(C, entry)));
            if n % 1000 == 0 {
                scene.cluster.run_until_idle();
            }
        }
        scene.cluster.run_until_idle();
    };
    hold(MAX_GRANTED);
    let own: Vec<Tensor> = (0..8).map(|_| scene.private().freeze()).collect();
    scene.cluster.send(OWNER, &to, own);
    scene.cluster.run_until_idle();
    assert_eq!(at_liar.take_one().message.len(), 8);
    assert!(!scene.cluster.gave_up(OWNER, LIAR));
    // MBX-2: the liar may hold as many as have room in its return ring, and no more.
    hold(MAX_FORWARDED - MAX_GRANTED);
    assert!(!scene.cluster.gave_up(OWNER, LIAR));
    hold(1);
    assert!(scene.cluster.gave_up(OWNER, LIAR));
}

#[test]
fn what_nobody_forwarded_is_held_by_nobody_else() {
    let scene = Scene::new();
    let (lent, entry) = scene.lent();
    let rejected = scene.rejected();
    scene.hold(entry);
    scene.held_by(entry, &[(C, 1)]);
    assert_eq!(scene.rejected(), rejected + 1);
    assert_eq!(scene.send_back(entry), (0, 0));
    let never = Ticket { process: scene.cluster.process(LIAR), slot: 0, value: 1 << 60 };
    scene.cluster.promise(never);
    // The uses that the liar claims are not waited for.
    for _ in 0..2 {
        scene.hold(entry);
        assert!(scene.cluster.forge_notice(LIAR, OWNER, scene.hold_of(C, entry)));
        assert!(scene.cluster.forge_notice(LIAR, OWNER, forge::release(entry.id, &[never])));
        scene.cluster.run_until_idle();
    }
    scene.held_by(entry, &[(C, 1)]);
    assert_eq!(lent.to_vec::<u8>().expect("lent"), b"private!");
    drop(lent);
    scene.cluster.run_until_idle();
    let stats = scene.cluster.stream(OWNER).pool().stats();
    assert_eq!((scene.cluster.leases(OWNER), stats.quarantined_bytes), (0, 0));
    assert!(!scene.cluster.gave_up(OWNER, LIAR), "an honest one may have been told a lie");
}

#[test]
fn what_was_forwarded_once_is_held_once() {
    let scene = Scene::new();
    let (lent, entry) = scene.lent();
    let (to, at_liar) = scene.cluster.inbox::<Tensor>(LIAR, 8);
    scene.cluster.send(C, &to, lent.clone());
    scene.cluster.run_until_idle();
    scene.held_by(entry, &[(LIAR, 1), (C, 1)]);
    scene.hold(entry);
    scene.held_by(entry, &[(LIAR, 1), (C, 1)]);
    // The liar first gives back the hold that was refused, and then the lease that it has.
    assert!(scene.cluster.forge_notice(LIAR, OWNER, forge::release(entry.id, &[])));
    scene.cluster.run_until_idle();
    scene.held_by(entry, &[(LIAR, 1), (C, 1)]);
    drop(at_liar.take_one());
    scene.cluster.run_until_idle();
    scene.held_by(entry, &[(C, 1)]);
    scene.hold(entry);
    scene.held_by(entry, &[(C, 1)]);
    assert_eq!(scene.send_back(entry), (0, 0));
    assert!(scene.cluster.forge_notice(LIAR, OWNER, forge::release(entry.id, &[])));
    // The tensor can be forwarded once more.
    scene.cluster.send(C, &to, lent);
    scene.cluster.run_until_idle();
    assert_eq!(at_liar.take_one().message.to_vec::<u8>().expect("forwarded"), b"private!");
    scene.cluster.run_until_idle();
    assert_eq!(scene.cluster.shares(OWNER, entry.id), None);
}

#[test]
fn nobody_forwards_what_it_does_not_hold() {
    let scene = Scene::new();
    let (lent, entry) = scene.lent();
    let before = scene.rejected();
    scene.forward(LIAR, D, entry);
    scene.hold_by(D, LIAR, entry);
    scene.held_by(entry, &[(C, 1)]);
    assert_eq!(scene.rejected(), before + 2);
    // Two processes each claim a forward of the other's, before the owner has looked at either.
    for (who, other) in [(LIAR, D), (D, LIAR)] {
        assert!(scene.cluster.forge_notice(who, OWNER, scene.hold_of(other, entry)));
        scene.forward(who, other, entry);
        assert!(scene.cluster.forge_notice(who, OWNER, scene.hold_of(other, entry)));
    }
    scene.cluster.run_until_idle();
    scene.held_by(entry, &[(C, 1)]);
    assert_eq!(scene.cluster.forwards(OWNER, entry.id), (0, 0));
    drop(lent);
    scene.cluster.run_until_idle();
    assert_eq!(scene.cluster.leases(OWNER), 0);
}

/// The forwarder does not tell the owner. That is the forwarder's lie, and the deceived receiver keeps its
/// own leases.
#[test]
fn whom_a_silent_forwarder_lied_to_loses_nothing_else() {
    let scene = Scene::new();
    let (lent, entry) = scene.lent();
    let (to, at_c) = scene.cluster.inbox::<Tensor>(C, 8);
    scene.cluster.tamper_next(LIAR, C, renamed(entry));
    let own = scene.cluster.stream(LIAR).from_slice(&[8], b"attacker").expect("memory");
    scene.cluster.send(LIAR, &to, own.freeze());
    scene.cluster.run_until_idle();
    let believed = at_c.take_one().message;
    assert_eq!(believed.lease().id(), entry.id);
    scene.held_by(entry, &[(C, 1)]);
    drop(believed);
    scene.cluster.run_until_idle();
    scene.held_by(entry, &[(C, 1)]);
    assert_eq!(lent.to_vec::<u8>().expect("lent"), b"private!");
    drop(lent);
    scene.cluster.run_until_idle();
    assert_eq!(scene.cluster.leases(OWNER), 0);
    assert!(!scene.cluster.gave_up(OWNER, C));
}

#[test]
fn a_million_forwards_take_no_room() {
    let scene = Scene::new();
    let (lent, entry) = scene.lent();
    for n in 0..1_000_000_u32 {
        // Names processes that do not exist, and lives of them that never existed.
        let to = ProcessId::new(10 + (n % 200) as u16, n / 200).expect("in range");
        assert!(scene.cluster.forge_notice(C, OWNER, forge::forward(entry.id, to)));
        if n % 4096 == 0 {
            scene.cluster.poll(OWNER);
            let noted = scene.cluster.forwards(OWNER, entry.id).0;
            assert!(noted <= 16, "{noted} forwards are noted");
        }
    }
    scene.cluster.run_until_idle();
    drop(lent);
    scene.cluster.run_until_idle();
    assert_eq!(scene.cluster.leases(OWNER), 0);
}

/// LEASE-4: a forwarder that ends after its notice leaves no right to a hold behind. Neither does one whose
/// frame was not read.
#[test]
fn what_was_forwarded_and_not_taken_goes_with_its_forwarder() {
    let scene = Scene::new();
    let (lent, entry) = scene.lent();
    let (to, at_d) = scene.cluster.inbox::<Tensor>(D, 8);
    scene.cluster.send(C, &to, lent.clone());
    scene.cluster.run_until_idle();
    let kept = at_d.take_one().message;
    scene.held_by(entry, &[(C, 1), (D, 1)]);
    let (to_liar, at_liar) = scene.cluster.inbox::<Tensor>(LIAR, 8);
    scene.cluster.tamper_next(D, LIAR, |frame| frame[0] ^= 1);
    scene.cluster.send(D, &to_liar, kept.clone());
    scene.cluster.run_until_idle();
    assert!(at_liar.is_empty());
    assert_eq!(scene.cluster.forwards(OWNER, entry.id), (1, 0), "its frame was rejected");
    drop(kept);
    scene.cluster.run_until_idle();
    assert_eq!(scene.cluster.forwards(OWNER, entry.id), (0, 0));
    scene.hold_by(LIAR, D, entry);
    scene.held_by(entry, &[(C, 1)]);
    // C forwards to D. D tells the owner that it forwards to the liar and then ends; its frame is never sent.
    scene.cluster.send(C, &to, lent);
    scene.cluster.run_until_idle();
    let _kept = at_d.take_one();
    scene.held_by(entry, &[(D, 1)]);
    let again = scene.private().freeze();
    scene.cluster.send(OWNER, &to, again.clone());
    scene.cluster.run_until_idle();
    let entry = Entry::of(again.lease());
    scene.forward(D, LIAR, entry);
    scene.cluster.poll(OWNER);
    assert_eq!(scene.cluster.forwards(OWNER, entry.id), (1, 0));
    scene.cluster.end(D);
    scene.cluster.run_until_idle();
    assert_eq!(scene.cluster.forwards(OWNER, entry.id), (0, 0));
    scene.hold_by(LIAR, D, entry);
    scene.held_by(entry, &[]);
    drop(again);
    scene.cluster.run_until_idle();
    assert_eq!(scene.cluster.leases(OWNER), 0);
}

/// The receiver of a forwarded lease may end too. A forward to it after that gives no right to anybody.
#[test]
fn what_was_forwarded_to_the_dead_goes_with_it() {
    let scene = Scene::new();
    let (lent, entry) = scene.lent();
    let process = scene.cluster.process(D);
    scene.forward(C, D, entry);
    scene.cluster.run_until_idle();
    assert_eq!(scene.cluster.forwards(OWNER, entry.id), (1, 0));
    scene.cluster.end(D);
    scene.cluster.run_until_idle();
    assert_eq!(scene.cluster.forwards(OWNER, entry.id), (0, 0));
    assert!(scene.cluster.forge_notice(C, OWNER, forge::forward(entry.id, process)));
    scene.cluster.run_until_idle();
    assert_eq!(scene.cluster.forwards(OWNER, entry.id), (0, 0));
    drop(lent);
    scene.cluster.run_until_idle();
    assert_eq!(scene.cluster.leases(OWNER), 0);
}
