//! Tests work that writes its clock by itself, on a device that records the operations of its streams.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::clock::{ClockDomain, ClockPage, Ticket};
use crate::device::fake::Fake;
use crate::device::{Backend, DeviceError, StreamOp};
use crate::ids::ProcessId;
use crate::lease::{Pool, PoolOptions};
use crate::stream::turn::Turn;
use crate::tensor::dlpack::outside::{closes_before, drop_on_collector, piece_of};
use crate::tensor::{DType, DeviceStream, Layout, TensorMut};

struct Scene {
    fake: Arc<Fake>,
    stream: DeviceStream,
}

fn scene() -> Scene {
    let id = ProcessId::new(1, 0).unwrap();
    let domain = ClockDomain::new(id, ClockPage::create().unwrap());
    let fake = Fake::new(1, 4, &[]);
    let options = PoolOptions { budget: 1 << 20, first_chunk: 1 << 20 };
    let backend = Arc::clone(&fake) as Arc<dyn Backend>;
    let pool = Pool::new(backend, Arc::clone(&domain), options, 0);
    let stream = DeviceStream::new(pool, domain).unwrap();
    // The stream behaves as if an endless kernel were at its front: no ticket passes.
    fake.seen.mute.store(true, Ordering::SeqCst);
    Scene { fake, stream }
}

impl Scene {
    fn tensor(&self) -> TensorMut {
        self.stream.empty(DType::U8, &[16]).unwrap()
    }

    /// Does what a graph's launch does: its clock write is not an operation that the stream is given.
    fn launch(&self) -> Ticket {
        self.stream.clocked().put_with_write(|_| Ok(())).unwrap()
    }

    /// Returns the values that the stream was told to write apart from launches.
    fn writes(&self) -> Vec<u64> {
        let ops = self.fake.seen.ops.lock();
        let value = |op: &StreamOp| if let StreamOp::Advance(value) = op { Some(*value) } else { None };
        ops.iter().filter_map(value).collect()
    }
}

/// CLOCK-2: the launch's own write is the last use, and no other is made for it.
#[test]
fn a_launch_stands_for_all_that_was_done_with_its_tensors() {
    let scene = scene();
    let (mut first, mut second) = (scene.tensor(), scene.tensor());
    for tensor in [&mut first, &mut second] {
        tensor.await_on(scene.stream.clocked()).unwrap();
    }
    let before = scene.launch();
    for tensor in [&first, &second] {
        tensor.lease().used_until(scene.stream.clocked(), before, true);
    }
    // Another launch with one of them.
    let end = scene.launch();
    assert_ne!(before, end);
    first.lease().used_until(scene.stream.clocked(), end, true);
    let (first, second) = (first.freeze(), second.freeze());
    assert_eq!((first.ready(), second.ready()), (Some(end), Some(before)));
    let pool = Arc::clone(scene.stream.pool());
    drop((first, second));
    assert!(scene.writes().is_empty(), "{:?}", scene.writes());
    assert_eq!(pool.stats().quarantined_bytes, 32, "their memory waits for the launches");
}

/// Work may be enqueued without notice at any time while the lease exists, so it needs a ticket of its own.
#[test]
fn work_of_another_kind_has_a_ticket_of_its_own() {
    for kernel_first in [true, false] {
        let scene = scene();
        let mut tensor = scene.tensor();
        let single = |tensor: &mut TensorMut| {
            tensor.write_on(scene.stream.clocked()).unwrap();
        };
        if kernel_first {
            single(&mut tensor);
        }
        let end = scene.launch();
        tensor.lease().used_until(scene.stream.clocked(), end, true);
        if !kernel_first {
            single(&mut tensor);
        }
        let frozen = tensor.freeze();
        let ready = frozen.ready().unwrap();
        assert_eq!((ready.value, scene.writes()), (end.value + 1, vec![end.value + 1]), "{kernel_first}");
    }
}

/// Two streams are ordered only by the tickets that they wait for.
#[test]
fn launches_on_two_streams_are_both_waited_for() {
    let scene = scene();
    let other = scene.stream.with_new_stream().unwrap();
    let tensor = scene.tensor().freeze();
    tensor.lease().used_until(scene.stream.clocked(), scene.launch(), false);
    let end = other.clocked().put_with_write(|_| Ok(())).unwrap();
    tensor.lease().used_until(other.clocked(), end, false);
    drop(tensor);
    assert_eq!(scene.writes().len(), 2, "each stream is asked for a ticket");
}

/// A piece that a library lends is over at its ticket; later work on it in this process is not.
#[test]
fn a_piece_of_a_library_is_one_write() {
    for read_here in [false, true] {
        let scene = scene();
        let whole = scene.tensor().freeze();
        let layout = Layout::contiguous(&[16]).unwrap();
        let kept = Box::new(());
        let piece = piece_of(&whole, DType::U8, &layout, &scene.stream, kept, drop_on_collector);
        let piece = piece.unwrap().unwrap();
        let ready = piece.ready().unwrap().value;
        if read_here {
            piece.read_on(scene.stream.clocked()).unwrap();
        }
        drop(piece);
        let expected = if read_here { vec![ready, ready + 1] } else { vec![ready] };
        assert_eq!(scene.writes(), expected, "read here: {read_here}");
        assert_eq!(scene.stream.pool().stats().quarantined_bytes, 16, "CLOCK-2: it waits for its last use");
    }
}

/// CLOCK-2: if a library drops a tensor before it lends the next piece, its uses are over at that piece's
/// ticket. If a handle is left, or another stream used the tensor, the end is unknown.
#[test]
fn a_piece_stands_for_what_was_let_go_of_before() {
    for how in ["one stream", "another stream", "a handle is left"] {
        let scene = scene();
        let (whole, other) = (scene.tensor().freeze(), scene.stream.with_new_stream().unwrap());
        let received = scene.tensor().freeze();
        received.read_on(scene.stream.clocked()).unwrap();
        if how == "another stream" {
            received.read_on(other.clocked()).unwrap();
        }
        let left = (how == "a handle is left").then(|| received.clone());
        let layout = Layout::contiguous(&[16]).unwrap();
        let piece = piece_of(&whole, DType::U8, &layout, &scene.stream, Box::new(()), drop_on_collector);
        let piece = piece.unwrap().unwrap();
        let ready = piece.ready().unwrap().value;
        closes_before(&received, &piece, &scene.stream);
        drop(received);
        let on_first = |more: &[u64]| [&[ready][..], more].concat();
        let expected = match how {
            "one stream" => on_first(&[]),
            // Each stream is asked for a ticket.
            "another stream" => vec![ready, ready + 1, 1],
            _ => on_first(&[]),
        };
        assert_eq!(scene.writes(), expected, "{how}");
        if let Some(left) = left {
            left.read_on(scene.stream.clocked()).unwrap();
            drop(left);
            assert_eq!(scene.writes(), [ready, ready + 1], "what was done behind the piece");
        }
        assert!(scene.stream.pool().stats().quarantined_bytes >= 16, "{how}: it waits for its last use");
    }
}

/// The launch's write passes a ticket that was issued before. The ticket of a failed launch passes all the
/// same.
#[test]
fn a_launch_pays_what_is_owed() {
    let scene = scene();
    let stream = scene.stream.clocked();
    let turn = Turn::begin();
    let owed = stream.ticket().unwrap();
    assert_eq!(scene.launch(), owed);
    drop(turn);
    assert!(scene.writes().is_empty(), "it was paid: {:?}", scene.writes());
    let refused = || DeviceError::Refused { what: "a test".to_owned() };
    let mut given = 0;
    let error = stream.put_with_write(|value| {
        given = value;
        Err(refused())
    });
    assert!(matches!(error, Err(DeviceError::Refused { .. })));
    assert_eq!((given, scene.writes()), (owed.value + 1, vec![owed.value + 1]));
}
