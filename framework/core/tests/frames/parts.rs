//! Forged parts of split tensors (WIRE-1): no process ever has two writers of an element, and no join takes a
//! part that was made up (ONE-WRITER).

use std::sync::Arc;

use parking_lot::Mutex;
use tensorpost_core::tensor::part::JoinReason;
use tensorpost_core::tensor::{DType, Tensor, TensorMut, TensorPart};
use tensorpost_core::testing::{Cluster, Target, TestInbox, forge};

/// Two processes. The second has two of the three parts of a tensor of the first, one column each. The third
/// part, of two columns, is still with the first.
struct Scene {
    cluster: Cluster,
    to: Target<TensorPart>,
    inbox: Arc<TestInbox<TensorPart>>,
    /// The mailbox to which parts return.
    home: (Target<TensorPart>, Arc<TestInbox<TensorPart>>),
    sent: Vec<TensorPart>,
    third: Option<TensorPart>,
    /// The frame of the second part.
    frame: Vec<u8>,
}

impl Scene {
    fn new() -> Self {
        let cluster = Cluster::new(2);
        cluster.connect();
        let (to, inbox) = cluster.inbox(1, 8);
        let home = cluster.inbox(0, 8);
        let whole = cluster.stream(0).from_slice(&[2, 4], &[0_u8; 8]).expect("memory");
        let [first, second, third] =
            <[TensorPart; 3]>::try_from(whole.split(1, &[1, 1, 2]).expect("columns")).expect("three");
        let mut scene =
            Scene { cluster, to, inbox, home, sent: Vec::new(), third: Some(third), frame: Vec::new() };
        scene.deliver(first, |_| {});
        let frame = Arc::<Mutex<Vec<u8>>>::default();
        let seen = Arc::clone(&frame);
        scene.deliver(second, move |bytes| seen.lock().extend_from_slice(bytes));
        scene.frame = frame.lock().clone();
        // The frame is written again, so it gets the sequence number of that second time.
        forge::reseal(&mut scene.frame);
        scene.sent = scene.inbox.take().into_iter().map(|received| received.message).collect();
        assert_eq!(scene.sent.len(), 2);
        scene
    }

    fn deliver(&self, part: TensorPart, tamper: impl FnOnce(&mut Vec<u8>) + Send + Sync + 'static) {
        self.cluster.tamper_next(0, 1, tamper);
        self.cluster.send(0, &self.to, part);
        self.cluster.run_until_idle();
    }

    /// Sends the third part through `tamper`.
    fn third(&mut self, tamper: impl FnOnce(&mut Vec<u8>) + Send + Sync + 'static) {
        let third = self.third.take().expect("not sent yet");
        self.deliver(third, move |bytes| {
            tamper(bytes);
            forge::reseal(bytes);
        });
    }

    /// Checks that the forged part was refused for the reason `why` and gave its lease back.
    fn refused(self, why: &str) {
        let refused = self.inbox.refused();
        assert!(self.inbox.is_empty(), "it was taken");
        assert!(refused.iter().any(|text| text.contains(why)), "{refused:?}");
        drop(self.sent);
        self.cluster.run_until_idle();
        assert_eq!(self.cluster.leases(0), 0, "{}", self.cluster.stream(0).pool().holders());
    }

    /// Sends all parts of the second process home and joins them there.
    fn joined_at_home(&mut self) -> Result<TensorMut, tensorpost_core::tensor::JoinError> {
        let (to, inbox) = &self.home;
        let arrived = self.inbox.take().into_iter().map(|received| received.message);
        for part in self.sent.drain(..).chain(arrived) {
            self.cluster.send(1, to, part);
        }
        self.cluster.run_until_idle();
        let parts = inbox.take().into_iter().map(|received| received.message).chain(self.third.take());
        TensorMut::join(parts, self.cluster.stream(0))
    }
}

/// Returns the position of the value after `key` in a body.
fn after(bytes: &[u8], key: &str) -> usize {
    let at = bytes.windows(key.len()).rposition(|window| window == key.as_bytes()).expect("the key");
    at + key.len()
}

fn lease_flags(bytes: &mut [u8]) -> &mut u8 {
    let field = forge::fields(1, 1).into_iter().find(|field| field.name == "lease flags").expect("there");
    &mut bytes[field.at]
}

/// Changes the second axis, which is the last thing in the body. `start` and `end` are small numbers.
fn columns(from: u8, to: u8) -> impl FnOnce(&mut Vec<u8>) {
    move |bytes| {
        let (start, end) = (after(bytes, "start"), after(bytes, "end"));
        assert_eq!((bytes[start], bytes[end]), (2, 4), "the third part");
        (bytes[start], bytes[end]) = (from, to);
    }
}

fn index(index: u8) -> impl FnOnce(&mut Vec<u8>) {
    move |bytes| {
        let at = after(bytes, "index");
        assert_eq!(bytes[at], 2, "the third part");
        bytes[at] = index;
    }
}

#[test]
fn an_honest_part_passes_the_same_way() {
    let mut scene = Scene::new();
    scene.third(|_| {});
    assert_eq!(scene.inbox.len(), 1);
    scene.joined_at_home().expect("nothing was forged");
}

#[test]
fn a_part_that_overlaps_one_that_is_here() {
    let mut scene = Scene::new();
    scene.third(columns(1, 4));
    scene.refused("overlaps part 1");
}

#[test]
fn a_part_that_leaves_the_tensor() {
    let mut scene = Scene::new();
    scene.third(columns(2, 5));
    scene.refused("not in the tensor of shape");
}

#[test]
fn a_part_without_elements() {
    let mut scene = Scene::new();
    scene.third(columns(4, 4));
    scene.refused("no elements");
}

#[test]
fn a_part_that_says_that_it_is_another() {
    let mut scene = Scene::new();
    scene.third(index(0));
    scene.refused("part 0 of the tensor is in this process already");
    let mut scene = Scene::new();
    scene.third(index(3));
    scene.refused("it says that it is part 3 of 3");
}

#[test]
fn a_part_of_another_split_beside_those_that_are_here() {
    let mut scene = Scene::new();
    scene.third(|bytes| {
        let at = after(bytes, "seal");
        bytes[at + 1] ^= 1;
    });
    scene.refused("of another split");
}

/// The indices of the third part meet no other's, and its bytes do: with these strides they are 4 to 7, and
/// the first two parts have 0, 4 and 1, 5.
#[test]
fn a_part_of_the_same_memory_in_another_layout() {
    let mut scene = Scene::new();
    scene.third(|bytes| {
        let words: Vec<_> = forge::fields(1, 1).into_iter().filter(|field| field.name == "layout").collect();
        // The strides stand behind the dtype, the offset and eight extents.
        let [rows, columns] = [words[10], words[11]];
        assert_eq!((rows.get(bytes), columns.get(bytes)), (4, 1), "a packed matrix");
        rows.set(bytes, 1);
        columns.set(bytes, 2);
    });
    scene.refused("of another split");
}

#[test]
fn a_part_of_the_same_memory_with_another_dtype() {
    let mut scene = Scene::new();
    scene.third(|bytes| {
        let first = forge::fields(1, 1).into_iter().find(|field| field.name == "layout").expect("there");
        let rank = first.get(bytes) & 0xff00;
        first.set(bytes, rank | u64::from(DType::I8.code()));
    });
    scene.refused("of another split");
}

#[test]
fn a_part_whose_sender_does_not_say_that_it_gives_it_away() {
    let mut scene = Scene::new();
    // With other parts of it here, the lease itself would be refused.
    scene.sent.clear();
    scene.cluster.run_until_idle();
    scene.third(|bytes| *lease_flags(bytes) &= !4);
    scene.refused("did not give it away");
}

/// A lease cannot be exclusive and split into parts at once.
#[test]
fn a_lease_that_is_sole_and_in_parts() {
    let mut scene = Scene::new();
    scene.third(|bytes| *lease_flags(bytes) |= 1);
    assert_eq!((scene.inbox.len(), scene.inbox.refused().len()), (0, 0));
    assert_eq!(scene.cluster.transport(1).stats().rejected, 1);
    drop(scene.sent);
    scene.cluster.run_until_idle();
    assert_eq!(scene.cluster.leases(0), 0);
}

/// The same frame arrives twice.
#[test]
fn a_part_that_was_sent_before() {
    let scene = Scene::new();
    assert!(scene.cluster.forge_frame(0, 1, &scene.frame));
    scene.cluster.run_until_idle();
    let mut scene = scene;
    drop(scene.third.take());
    scene.refused("part 1 of the tensor is in this process already");
}

/// The frame arrives again after the part has gone home. It meets no other copy here, but both copies meet at
/// home.
#[test]
fn a_part_that_was_sent_before_and_has_left() {
    let mut scene = Scene::new();
    let (to, at_home) = (scene.home.0, Arc::clone(&scene.home.1));
    let second = scene.sent.pop().expect("two");
    scene.cluster.send(1, &to, second);
    scene.cluster.run_until_idle();
    assert_eq!(at_home.len(), 1);
    assert!(scene.cluster.forge_frame(0, 1, &scene.frame));
    scene.cluster.run_until_idle();
    let again = scene.inbox.take_one().message;
    scene.cluster.send(1, &to, again);
    scene.cluster.run_until_idle();
    let refused = at_home.refused();
    assert!(refused.iter().any(|why| why.contains("part 1 of the tensor is in this process")), "{refused:?}");
}

/// A part with a wrong token counts as a part until it is joined.
#[test]
fn a_part_that_was_made_up_is_refused_by_the_join() {
    let mut scene = Scene::new();
    scene.third(|bytes| {
        let at = after(bytes, "token");
        bytes[at + 1] ^= 1;
    });
    let error = scene.joined_at_home().unwrap_err();
    assert!(matches!(error.why, JoinReason::Forged), "{error}");
    assert_eq!(error.parts.len(), 3);
    drop(error);
    scene.cluster.run_until_idle();
    assert_eq!(scene.cluster.leases(0), 0);
}

/// A part is moved to a place where it overlaps no other.
#[test]
fn a_part_in_another_place_is_refused_by_the_join() {
    let mut scene = Scene::new();
    scene.third(columns(2, 3));
    let error = scene.joined_at_home().unwrap_err();
    assert!(matches!(error.why, JoinReason::Forged), "{error}");
}

/// Turns the message of a part into one of the whole tensor.
fn as_tensor(bytes: &mut Vec<u8>) {
    let fields = forge::fields(1, 1);
    let body = fields.last().map(|field| field.at + field.bytes).expect("there");
    bytes.truncate(body);
    // {"$tensor": 0}
    bytes.extend_from_slice(b"\x81\xa7$tensor\x00");
    let length = fields.iter().find(|field| field.name == "body length").expect("there");
    length.set(bytes, 10);
    forge::reseal(bytes);
}

/// The whole tensor comes, for its receiver alone, to a process that has parts of it: it would write those as
/// parts, and all of it as the whole.
#[test]
fn the_whole_of_a_tensor_of_which_parts_are_here() {
    for sole in [0, 1] {
        let mut scene = Scene::new();
        let (to, inbox) = scene.cluster.inbox::<Tensor>(1, 8);
        let third = scene.third.take().expect("not sent yet");
        scene.cluster.tamper_next(0, 1, move |bytes| {
            as_tensor(bytes);
            let flags = lease_flags(bytes);
            *flags = (*flags & !4) | sole;
        });
        scene.cluster.send(0, &to.disguising(), third);
        scene.cluster.run_until_idle();
        assert!(inbox.is_empty() && inbox.refused().is_empty());
        assert_eq!(scene.cluster.transport(1).stats().rejected, 1);
        drop(scene.sent);
        scene.cluster.run_until_idle();
        assert_eq!(scene.cluster.leases(0), 0, "LEASE-2");
    }
}

/// The same, in one message.
#[test]
fn a_tensor_that_comes_as_a_whole_and_in_parts() {
    let cluster = Cluster::new(2);
    cluster.connect();
    let (to, inbox) = cluster.inbox::<(TensorPart, Tensor)>(1, 8);
    let memory = |bytes: &[u8]| cluster.stream(0).from_slice(&[bytes.len()], bytes).expect("memory");
    let (part, other) = (memory(&[0; 8]).split(0, &[8]).expect("one part").remove(0), memory(&[0]).freeze());
    cluster.tamper_next(0, 1, |bytes| {
        for name in ["lease chunk", "lease entry", "lease generation", "lease offset", "lease length"] {
            let both: Vec<_> = forge::fields(2, 2).into_iter().filter(|field| field.name == name).collect();
            let of_part = both[0].get(bytes);
            both[1].set(bytes, of_part);
        }
        forge::reseal(bytes);
    });
    cluster.send(0, &to, (part, other));
    cluster.run_until_idle();
    assert!(inbox.is_empty() && inbox.refused().is_empty());
    assert_eq!(cluster.transport(1).stats().rejected, 1);
}

/// The same lease is named as a whole tensor: memory that others may write cannot be read.
#[test]
fn a_tensor_on_a_lease_in_parts() {
    let mut scene = Scene::new();
    let (to, inbox) = scene.cluster.inbox::<Tensor>(1, 8);
    let third = scene.third.take().expect("not sent yet");
    scene.cluster.tamper_next(0, 1, as_tensor);
    scene.cluster.send(0, &to.disguising(), third);
    scene.cluster.run_until_idle();
    assert!(inbox.is_empty() && inbox.refused()[0].contains("was split"), "{:?}", inbox.refused());
    drop(scene.sent);
    scene.cluster.run_until_idle();
    assert_eq!(scene.cluster.leases(0), 0);
}
