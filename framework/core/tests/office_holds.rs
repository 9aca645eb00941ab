//! What a peer says about memory that it was not lent (WIRE-1, ONE-WRITER): the owner believes a hold only where somebody can
//! have forwarded the memory, and memory that comes back only in the form in which this process can have it. The bytes are
//! compared, not only the counts.

#![cfg(feature = "testing")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use tensorpost_core::clock::Ticket;
use tensorpost_core::lease::LeaseId;
use tensorpost_core::limits::{MAX_FORWARDED, MAX_GRANTED};
use tensorpost_core::tensor::{Tensor, TensorMut, TensorPart};
use tensorpost_core::testing::{Cluster, Target, TestInbox, forge};

const LIAR: usize = 0;
const OWNER: usize = 1;
const C: usize = 2;

struct Scene {
    cluster: Cluster,
    wholes: (Target<Tensor>, Arc<TestInbox<Tensor>>),
    parts: (Target<TensorPart>, Arc<TestInbox<TensorPart>>),
}

/// One of the owner's allocations, as a liar would write it into a frame.
#[derive(Clone, Copy)]
struct Line {
    id: LeaseId,
    offset: u64,
    bytes: u64,
}

impl Line {
    fn of(lease: &tensorpost_core::lease::Lease) -> Self {
        Line { id: lease.id(), offset: lease.offset(), bytes: lease.bytes() }
    }
}

impl Scene {
    fn new() -> Self {
        let cluster = Cluster::new(3);
        let (wholes, parts) = (cluster.inbox(OWNER, 64), cluster.inbox(OWNER, 64));
        cluster.connect();
        Scene { cluster, wholes, parts }
    }

    fn private(&self) -> TensorMut {
        self.cluster.gpu(OWNER).from_slice(&[8], b"private!").expect("memory")
    }

    /// The liar's next frame names this line instead of its own memory.
    fn name_instead(&self, line: Line) {
        self.cluster.tamper_next(LIAR, OWNER, move |frame| {
            for field in forge::fields(1, 1) {
                match field.name {
                    "lease owner" => field.set(frame, line.id.chunk.owner.to_bits()),
                    "lease chunk" => field.set(frame, line.id.chunk.index.into()),
                    "lease line" => field.set(frame, line.id.line.into()),
                    "lease generation" => field.set(frame, line.id.generation.into()),
                    "lease offset" => field.set(frame, line.offset),
                    "lease length" => field.set(frame, line.bytes),
                    _ => {}
                }
            }
            forge::reseal(frame);
        });
    }

    fn hold(&self, line: Line) {
        assert!(self.cluster.forge_notice(LIAR, OWNER, forge::hold(line.id)));
        self.cluster.settle();
    }

    /// The liar sends the line to its owner, as a tensor and as a part; what arrived of each.
    fn send_back(&self, line: Line) -> (usize, usize) {
        let own = || self.cluster.gpu(LIAR).from_slice(&[8], b"attacker").expect("memory");
        self.name_instead(line);
        self.cluster.send(LIAR, &self.wholes.0, own().freeze());
        self.cluster.settle();
        let wholes = self.wholes.1.take();
        self.name_instead(line);
        self.cluster.send(LIAR, &self.parts.0, own().split(0, &[8]).expect("one part").remove(0));
        self.cluster.settle();
        let mut parts = self.parts.1.take();
        // Whoever gets a part may write it.
        parts.iter_mut().for_each(|got| drop(got.message.copy_from_slice(b"SMASHED!")));
        (wholes.len(), parts.len())
    }
}

#[test]
fn memory_that_was_never_lent_is_out_of_reach() {
    let scene = Scene::new();
    let secret = scene.private().freeze();
    let (view, line) = (secret.as_slice::<u8>().expect("on the host"), Line::of(secret.lease()));
    let rejected = scene.cluster.office(OWNER).stats().rejected;
    scene.hold(line);
    assert_eq!(scene.cluster.shares(OWNER, line.id).expect("it is there").holders, []);
    assert!(scene.cluster.office(OWNER).stats().rejected > rejected);
    assert_eq!((scene.send_back(line), view), ((0, 0), &b"private!"[..]));
}

#[test]
fn nobody_stalls_memory_that_was_never_lent() {
    let scene = Scene::new();
    let mine = scene.private().freeze();
    let line = Line::of(mine.lease());
    let never = Ticket { process: scene.cluster.process(LIAR), slot: 0, value: 1 << 60 };
    scene.hold(line);
    assert!(scene.cluster.forge_notice(LIAR, OWNER, forge::release(line.id, &[never])));
    scene.cluster.settle();
    let mine = mine.into_mut(scene.cluster.gpu(OWNER)).expect("nobody has it");
    mine.wait(Some(Instant::now() + Duration::from_secs(5))).expect("there is nothing to wait for");
}

#[test]
fn memory_that_came_back_is_private_again() {
    let scene = Scene::new();
    let (to, at_c) = scene.cluster.inbox::<Tensor>(C, 8);
    let tensor = scene.private().freeze();
    scene.cluster.send(OWNER, &to, tensor.clone());
    scene.cluster.settle();
    drop(at_c.take_one());
    scene.cluster.settle();
    let line = Line::of(tensor.lease());
    let mut mine = tensor.into_mut(scene.cluster.gpu(OWNER)).expect("C has let go");
    mine.copy_from_slice(b"mine now").expect("on the host");
    scene.hold(line);
    assert_eq!(scene.send_back(line), (0, 0));
    assert_eq!(mine.as_slice::<u8>().expect("on the host"), b"mine now");
    // Lent again, it can be forwarded again.
    let tensor = mine.freeze();
    scene.cluster.send(OWNER, &to, tensor.clone());
    scene.cluster.settle();
    scene.hold(line);
    let holders = scene.cluster.shares(OWNER, line.id).expect("it is there").holders;
    assert!(holders.contains(&(scene.cluster.process(LIAR), 1)), "{holders:?}");
}

#[test]
fn what_was_lent_to_read_does_not_come_back_to_write() {
    let scene = Scene::new();
    let (to, at_liar) = scene.cluster.inbox::<Tensor>(LIAR, 8);
    let tensor = scene.private().freeze();
    scene.cluster.send(OWNER, &to, tensor.clone());
    scene.cluster.settle();
    let _lent = at_liar.take_one();
    let (view, line) = (tensor.as_slice::<u8>().expect("on the host"), Line::of(tensor.lease()));
    let (wholes, parts) = scene.send_back(line);
    // To send it back as what it is, is no lie.
    assert_eq!((wholes, parts, view), (1, 0, &b"private!"[..]));
}

#[test]
fn a_part_does_not_come_back_as_the_whole() {
    let scene = Scene::new();
    let (to, at_liar) = scene.cluster.inbox::<TensorPart>(LIAR, 8);
    let mut parts = scene.private().split(0, &[4, 4]).expect("two parts");
    let (given, mut kept) = (parts.remove(0), parts.remove(0));
    let line = Line::of(kept.lease());
    scene.cluster.send(OWNER, &to, given);
    scene.cluster.settle();
    let lent = at_liar.take_one();
    kept.copy_from_slice(b"mine").expect("on the host");
    let (wholes, _) = scene.send_back(line);
    assert_eq!((wholes, kept.to_vec::<u8>().expect("on the host")), (0, b"mine".to_vec()));
    // And the part that was lent comes back as what it is.
    scene.cluster.send(LIAR, &scene.parts.0, lent.message);
    scene.cluster.settle();
    let back = scene.parts.1.take_one().message;
    let whole = TensorMut::join(vec![kept, back], scene.cluster.gpu(OWNER)).expect("both parts");
    assert_eq!(whole.as_slice::<u8>().expect("on the host"), b"privmine");
}

#[test]
fn what_was_forwarded_leaves_room_for_what_is_sent() {
    let scene = Scene::new();
    let (to, at_liar) = scene.cluster.inbox::<Vec<Tensor>>(LIAR, 8);
    let (to_c, at_c) = scene.cluster.inbox::<Tensor>(C, 8);
    let lent = scene.private().freeze();
    let line = Line::of(lent.lease());
    scene.cluster.send(OWNER, &to_c, lent);
    scene.cluster.settle();
    let _kept = at_c.take_one();
    let hold = |count: usize| {
        for n in 0..count {
            assert!(scene.cluster.forge_notice(LIAR, OWNER, forge::hold(line.id)));
            if n % 1000 == 0 {
                scene.cluster.settle();
            }
        }
        scene.cluster.settle();
    };
    hold(MAX_GRANTED);
    let own: Vec<Tensor> = (0..8).map(|_| scene.private().freeze()).collect();
    scene.cluster.send(OWNER, &to, own);
    scene.cluster.settle();
    assert_eq!(at_liar.take_one().message.len(), 8);
    assert!(!scene.cluster.gave_up(OWNER, LIAR));
    // MBX-2: and as many as have room in the return ring, but no more.
    hold(MAX_FORWARDED - MAX_GRANTED);
    assert!(!scene.cluster.gave_up(OWNER, LIAR));
    hold(1);
    assert!(scene.cluster.gave_up(OWNER, LIAR));
}
