//! Frames and notices that no honest process sends (WIRE-1): each is counted, harms nobody else, and every
//! lease of the honest side comes back.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use proptest::prelude::*;
use tensorpost_core::ids::ChunkId;
use tensorpost_core::limits::MAX_MAILBOX;
use tensorpost_core::tensor::Tensor;
use tensorpost_core::testing::forge::{self, Field};
use tensorpost_core::testing::{Cluster, Target, TestInbox, thorough};

type Message = (Tensor, Tensor, String);

/// A sends frames that the test tampers with, B receives them, and C is honest to both.
struct Scene {
    cluster: Cluster,
    to_b: Target<Message>,
    at_b: Arc<TestInbox<Message>>,
    to_c: Target<Message>,
    at_c: Arc<TestInbox<Message>>,
}

const A: usize = 0;
const B: usize = 1;
const C: usize = 2;

impl Scene {
    fn new() -> Self {
        let cluster = Cluster::new(3);
        let (to_b, at_b) = cluster.inbox(B, MAX_MAILBOX);
        let (to_c, at_c) = cluster.inbox(C, 64);
        cluster.connect();
        Scene { cluster, to_b, at_b, to_c, at_c }
    }

    /// Makes a message with two tensors on two leases: one on the sender's memory, and one on C's where the
    /// sender has some.
    fn message(&self, sender: usize) -> Message {
        let new = |count: usize| {
            let elements: Vec<f32> = (0..count).map(|n| n as f32).collect();
            self.cluster.stream(sender).from_slice(&[count], &elements).expect("memory").freeze()
        };
        (new(5), new(7).view(&[7, 1]).expect("seven"), "text".into())
    }

    /// Returns the bytes of a frame that carries [`message`](Self::message).
    fn frame(&self) -> Vec<u8> {
        let (send, frame) = std::sync::mpsc::channel();
        self.cluster.tamper_next(A, B, move |bytes| send.send(bytes.clone()).expect("the test lives"));
        self.cluster.send(A, &self.to_b, self.message(A));
        self.cluster.run_until_idle();
        drop(self.at_b.take_one());
        self.cluster.run_until_idle();
        frame.recv().expect("it was written")
    }

    /// Sends an honest message whose frame `tamper` changes, and handles the result.
    fn send_tampered(&self, tamper: impl FnOnce(&mut Vec<u8>) + Send + Sync + 'static) {
        self.cluster.tamper_next(A, B, tamper);
        self.cluster.send(A, &self.to_b, self.message(A));
        self.cluster.run_until_idle();
        for received in self.at_b.take() {
            let (first, second, _) = &received.message;
            // A tensor that was let in can be read, whatever its frame said.
            for tensor in [first, second].into_iter().filter(|tensor| tensor.ready().is_none()) {
                if let Ok(elements) = tensor.to_vec::<f32>() {
                    assert_eq!(elements.len(), tensor.len());
                }
            }
        }
        self.cluster.run_until_idle();
    }

    fn rejected(&self, i: usize) -> u64 {
        self.cluster.transport(i).stats().rejected
    }

    /// A shutdown waits until as many frames were received as sent, so one that was rejected counts too.
    fn assert_all_counted(&self) {
        let stats = [A, B, C].map(|i| self.cluster.transport(i).stats());
        let [sent, received] = [stats.map(|stats| stats.sent), stats.map(|stats| stats.received)];
        assert_eq!(sent.iter().sum::<u64>(), received.iter().sum::<u64>(), "{sent:?} {received:?}");
    }

    /// Checks that no lease or memory is left behind, and that B and C still serve each other and every
    /// process that they have not given up.
    fn assert_well(&self, what: &str) {
        self.cluster.run_until_idle();
        drop((self.at_b.take(), self.at_c.take()));
        self.cluster.run_until_idle();
        for i in [B, C] {
            let holders = self.cluster.stream(i).pool().holders();
            assert_eq!(self.cluster.leases(i), 0, "{what}: memory of process {i} is left: {holders}");
        }
        for (from, to, inbox) in [(C, &self.to_b, &self.at_b), (B, &self.to_c, &self.at_c)] {
            assert!(!self.cluster.gave_up(from, if from == C { B } else { C }), "{what}");
            self.cluster.send(from, to, self.message(from));
            self.cluster.run_until_idle();
            let got = inbox.take_one().message;
            assert_eq!(got.0.to_vec::<f32>().expect("data"), [0.0, 1.0, 2.0, 3.0, 4.0], "{what}");
            drop(got);
            self.cluster.run_until_idle();
            assert_eq!(self.cluster.leases(from), 0, "{what}");
        }
    }

    /// Calls [`assert_well`](Self::assert_well) and checks that A still gets through to B as often as its
    /// mailbox takes.
    fn assert_well_with_the_sender(&self, what: &str) {
        self.assert_well(what);
        assert_eq!(self.cluster.leases(A), 0, "{what}");
        assert!(!self.cluster.gave_up(B, A) && !self.cluster.gave_up(A, B), "{what}");
        for _ in 0..64 {
            self.cluster.send(A, &self.to_b, self.message(A));
        }
        self.cluster.run_until_idle();
        assert_eq!(self.at_b.len(), 64, "{what}");
        self.assert_well(what);
        assert_eq!(self.cluster.leases(A), 0, "{what}");
    }
}

#[test]
fn every_flipped_bit_of_a_head_is_found_and_gives_the_leases_back() {
    let scene = Scene::new();
    let bits = head() * 8;
    for bit in 0..bits {
        scene.send_tampered(move |frame| frame[bit / 8] ^= 1 << (bit % 8));
        assert_eq!(scene.rejected(B), 1 + bit as u64, "bit {bit}");
        assert_eq!(scene.cluster.leases(A), 0, "bit {bit}");
    }
    scene.assert_well_with_the_sender("after all bits");
    scene.assert_all_counted();
}

/// A body has no checksum: with a flipped bit it is another message, or none.
#[test]
fn a_flipped_bit_of_a_body_gives_the_leases_back() {
    let scene = Scene::new();
    for bit in head() * 8..scene.frame().len() * 8 {
        scene.send_tampered(move |frame| frame[bit / 8] ^= 1 << (bit % 8));
        assert_eq!(scene.cluster.leases(A), 0, "bit {bit}");
    }
    assert!(scene.rejected(B) == 0 && !scene.at_b.refused().is_empty());
    scene.assert_well_with_the_sender("after all bits");
    scene.assert_all_counted();
}

/// Bytes of a frame before its body.
fn head() -> usize {
    forge::fields(2, 2).last().map_or(0, |last| last.at + last.bytes)
}

/// Old bytes in the ring from an earlier lap are well-formed, but they are not what the writer has written
/// there.
#[test]
fn a_frame_of_another_place_is_found_and_gives_the_leases_back() {
    let scene = Scene::new();
    let earlier = scene.frame();
    let before = scene.rejected(B);
    scene.send_tampered(move |frame| *frame = earlier);
    assert_eq!(scene.rejected(B), before + 1);
    scene.assert_well_with_the_sender("after the frame");
    scene.assert_all_counted();
}

#[test]
fn every_cut_and_every_trailing_byte_is_found() {
    let scene = Scene::new();
    let len = scene.frame().len();
    for cut in 0..len {
        // The checksum fits the shortened frame, so the cut has to be noticed for itself.
        scene.send_tampered(move |frame| {
            frame.truncate(cut);
            forge::reseal(frame);
        });
        assert_eq!(scene.rejected(B), 1 + cut as u64, "cut at {cut}");
        assert_eq!(scene.cluster.leases(A), 0, "cut at {cut}");
    }
    for more in [1, 7, 8, 64, 1000] {
        let before = scene.rejected(B);
        scene.send_tampered(move |frame| {
            frame.resize(frame.len() + more, 0);
            forge::reseal(frame);
        });
        assert_eq!((scene.rejected(B), scene.cluster.leases(A)), (before + 1, 0), "{more} bytes behind");
    }
    scene.assert_well_with_the_sender("after all cuts");
}

/// Returns values that are wrong in most fields, or right where they do no harm.
fn candidates(value: u64) -> Vec<u64> {
    let mut all =
        vec![0, 1, 2, 3, 7, 255, 256, 512, 513, 1 << 16, 1 << 24, 1 << 31, 1 << 32, 1 << 62, 1 << 63];
    all.extend([u64::MAX, u64::MAX - 511, value.wrapping_add(1), value.wrapping_sub(1), value ^ 0x8000]);
    all.extend([value.wrapping_add(512), value.wrapping_mul(2), !value]);
    // Ids of other processes: B itself, C, one that does not exist, and later lives of all.
    all.extend((0..6).flat_map(|slot| [0, 1, 9].map(|life| slot | life << 16)));
    all
}

fn forged(field: Field, value: u64) -> impl FnOnce(&mut Vec<u8>) + Send + Sync + 'static {
    move |frame| {
        field.set(frame, value);
        forge::reseal(frame);
    }
}

/// A's lies can lose A's own leases, which are in its own lease table. They can lose nobody else's.
#[test]
fn no_forged_field_harms_anybody_else() {
    let frame = Scene::new().frame();
    let lies: Vec<(Field, u64)> = forge::fields(2, 2)
        .into_iter()
        .filter(|field| field.name != "checksum")
        .flat_map(|field| candidates(field.get(&frame)).into_iter().map(move |value| (field, value)))
        .collect();
    // Each field gets a scene of its own.
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for lies in lies.chunks(lies.len().div_ceil(threads)) {
            scope.spawn(move || lies.iter().for_each(|(field, value)| harms_nobody_else(*field, *value)));
        }
    });
}

fn harms_nobody_else(field: Field, value: u64) {
    let what = format!("{} at {} = {value:#x}", field.name, field.at);
    let scene = Scene::new();
    let played = catch_unwind(AssertUnwindSafe(|| {
        scene.send_tampered(forged(field, value));
        // A goes down with its lies and takes nobody along.
        scene.cluster.end(A);
        scene.cluster.run_until_idle();
        scene.assert_well(&what);
    }));
    assert!(played.is_ok(), "{what}");
}

/// A frame may not name a ticket that nobody promised, whichever process it names: B would wait for ever, and
/// would tell the node that it waits for C.
#[test]
fn a_tensor_that_nobody_promised_is_refused() {
    let field = |name| forge::fields(2, 2).into_iter().find(|field| field.name == name).expect("a lease");
    let [flags, process, value, clock] =
        ["lease flags", "clock's process", "clock value", "clock"].map(field);
    for of in [A, B, C] {
        for (slot, at) in [(0, 1 << 40), (7, 1), (29, u64::MAX >> 1)] {
            let scene = Scene::new();
            let id = scene.cluster.process(of);
            let before = scene.rejected(B);
            scene.send_tampered(move |frame| {
                let with_clock = flags.get(frame) | 2;
                flags.set(frame, with_clock);
                for (field, to) in [(process, id.to_bits()), (value, at), (clock, slot)] {
                    field.set(frame, to);
                }
                forge::reseal(frame);
            });
            assert_eq!(scene.rejected(B), before + 1, "clock {slot} of process {of} at {at}");
            scene.assert_well_with_the_sender("after the forgery");
        }
    }
}

/// A forwards C's memory to B and lies about it. C counts the holds that B posts in good faith, and loses
/// nothing.
#[test]
fn no_lie_about_a_third_ones_memory_harms_it() {
    let lease = |field: &Field| field.name.starts_with("lease") && field.at < 112;
    for field in forge::fields(1, 1).into_iter().filter(lease) {
        for value in [0, 1, 2, 3, 99, 512, 4096, 1 << 20, u64::MAX] {
            let what = format!("{} = {value}", field.name);
            let scene = Scene::new();
            let cluster = &scene.cluster;
            let (to_a, at_a) = cluster.inbox::<Tensor>(A, 8);
            let (to_b, at_b) = cluster.inbox::<Tensor>(B, 8);
            let (c_0, other) = (scene.message(C).0, scene.message(C).1);
            cluster.send(C, &to_a, c_0);
            cluster.run_until_idle();
            cluster.tamper_next(A, B, forged(field, value));
            cluster.send(A, &to_b, at_a.take_one().message);
            cluster.run_until_idle();
            drop(at_b.take());
            cluster.run_until_idle();
            assert_eq!(other.to_vec::<f32>().expect("C's own")[6], 6.0, "{what}");
            drop(other);
            cluster.run_until_idle();
            // A's own lease comes back from A, lie or no lie.
            assert_eq!(cluster.leases(C), 0, "{what}: {}", cluster.stream(C).pool().holders());
            scene.assert_well(&what);
        }
    }
}

/// A frame whose memory never comes waits, and it holds up nobody else.
#[test]
fn a_frame_that_waits_for_ever_blocks_nobody_else() {
    let scene = Scene::new();
    let cluster = &scene.cluster;
    cluster.withhold(ChunkId { owner: cluster.process(A), index: 77 });
    let chunk =
        forge::fields(2, 2).into_iter().find(|field| field.name == "lease chunk").expect("two leases");
    scene.send_tampered(forged(chunk, 77));
    assert!(scene.at_b.is_empty());
    assert_eq!(scene.rejected(B), 0, "it is not wrong, it waits");
    // B serves C, and A still takes what comes.
    scene.assert_well("while A's frame waits");
    let (to_a, at_a) = cluster.inbox::<Message>(A, 8);
    for from in [B, C] {
        cluster.send(from, &to_a, scene.message(from));
        cluster.run_until_idle();
        drop(at_a.take_one());
    }
    // A's later frames wait behind it (MBX-1), until A is gone.
    cluster.send(A, &scene.to_b, scene.message(A));
    cluster.run_until_idle();
    assert!(scene.at_b.is_empty());
    cluster.end(A);
    scene.assert_well("after A has ended");
}

/// MBX-2: a sender that ignores its credits is given up, not buffered for.
#[test]
fn a_sender_beyond_its_credits_is_given_up() {
    let cluster = Cluster::new(2);
    let (to, inbox) = cluster.inbox::<u32>(1, 2);
    let (send, frame) = std::sync::mpsc::channel();
    cluster.connect();
    cluster.tamper_next(0, 1, move |bytes| send.send(bytes.clone()).expect("the test lives"));
    cluster.send(0, &to, 1);
    let mut frame = frame.recv().expect("it was written");
    forge::reseal(&mut frame);
    for _ in 0..5 {
        assert!(cluster.forge_frame(0, 1, &frame));
    }
    cluster.run_until_idle();
    assert_eq!(inbox.len(), 2);
    assert!(cluster.gave_up(1, 0));
    assert_eq!(cluster.transport(1).stats().rejected, 1);
    // The frames that A sent after that are never received, so a shutdown must not wait for them.
    cluster.run_until_idle();
    let of = |i: usize| cluster.transport(i).activity();
    assert!(of(1).leaves_unread && !of(0).leaves_unread);
    cluster.end(0);
    cluster.run_until_idle();
}

/// A death is reported another way.
#[test]
fn what_the_dead_leave_unread_is_told_by_their_end() {
    let cluster = Cluster::new(2);
    let (to, _inbox) = cluster.inbox::<u32>(1, 2);
    cluster.send(0, &to, 1);
    cluster.end(0);
    cluster.run_until_idle();
    assert!(!cluster.transport(1).activity().leaves_unread);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if thorough() { 48 } else { 16 }))]

    /// Changes several words of one frame at once, anywhere, with a checksum that fits.
    #[test]
    fn no_forged_words_harm_anybody_else(
        words in prop::collection::vec((any::<prop::sample::Index>(), prop_oneof![0_u64..20, any::<u64>()]), 1..5),
    ) {
        let scene = Scene::new();
        scene.send_tampered(move |frame| {
            for (at, value) in words {
                let at = 8 + 2 * at.index(frame.len() / 2 - 8);
                let end = (at + 8).min(frame.len());
                frame[at..end].copy_from_slice(&value.to_le_bytes()[..end - at]);
            }
            forge::reseal(frame);
        });
        scene.cluster.end(A);
        scene.assert_well("after the forgery");
    }

    /// Sends many byte strings in a row that are no frames at all.
    #[test]
    fn no_bytes_harm_anybody(frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..400), 1..20)) {
        let scene = Scene::new();
        let count = frames.len() as u64;
        for bytes in &frames {
            assert!(scene.cluster.forge_frame(A, B, bytes));
        }
        scene.cluster.run_until_idle();
        prop_assert_eq!(scene.rejected(B), count);
        scene.assert_well_with_the_sender("after the bytes");
    }
}
