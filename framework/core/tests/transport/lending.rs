//! With a bound on lent memory, messages wait while too much of their sender's memory is out (MBX-2). No
//! message is lost or overtaken. Any process that frees the memory wakes the waiting sender.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tensorpost_core::api::message::GpuMessage;
use tensorpost_core::bindings::{drop_on_collector, piece_of};
use tensorpost_core::lease::PoolOptions;
use tensorpost_core::tensor::{DType, Layout, Tensor};
use tensorpost_core::testing::{Cluster, Lack, Unsent};

/// The number of elements of a tensor of 8 KiB.
const SMALL: usize = 2 << 10;
/// How many such tensors may be out.
const MOST: usize = 8;
const MEMORY_OUT: Unsent = Unsent::NotNow(Lack::Memory);

#[derive(Debug, Serialize, Deserialize, GpuMessage)]
#[gpu_message(crate = tensorpost_core)]
struct Item(Tensor);

/// Makes processes with 128 KiB each, half of which may be out.
fn cluster(processes: usize) -> Cluster {
    let cluster = Cluster::with_pools(processes, PoolOptions { budget: 128 << 10, first_chunk: 128 << 10 });
    (0..processes).for_each(|process| cluster.transport(process).bound_lending(2));
    cluster
}

fn item(cluster: &Cluster, process: usize, elements: usize, value: usize) -> Item {
    let stream = cluster.stream(process);
    Item(stream.from_slice(&[elements], &vec![value as f32; elements]).expect("memory").freeze())
}

fn value(item: &Item) -> usize {
    item.0.to_vec::<f32>().expect("data")[0] as usize
}

#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn poll<F: Future + Unpin>(future: &mut F, woken: &Arc<Woken>) -> Poll<F::Output> {
    let waker = Waker::from(Arc::clone(woken));
    Pin::new(future).poll(&mut Context::from_waker(&waker))
}

#[test]
fn who_is_ahead_waits_for_bytes_and_not_for_the_mailbox_alone() {
    let cluster = cluster(2);
    let (to, at_b) = cluster.inbox::<Item>(1, 64);
    cluster.connect();
    for number in 0..MOST {
        cluster.send(0, &to, item(&cluster, 0, SMALL, number));
    }
    let pool = cluster.stream(0).pool();
    assert_eq!(pool.lending(), ((MOST * SMALL * 4) as u64, false));
    let (back, unsent) = cluster.try_send(0, &to, item(&cluster, 0, SMALL, 77)).expect_err("the bound");
    assert_eq!((value(&back), unsent), (77, MEMORY_OUT), "the message comes back");
    drop(back);
    let address = cluster.address(0, &to);
    let woken = Arc::new(Woken::default());
    let mut sending = address.send(item(&cluster, 0, SMALL, MOST));
    assert!(poll(&mut sending, &woken).is_pending());
    // It waits in front, so later senders wait behind it (MBX-1).
    let mut next = address.send(item(&cluster, 0, SMALL, MOST + 1));
    assert!(poll(&mut next, &woken).is_pending());
    assert!(address.try_send(item(&cluster, 0, SMALL, 78)).is_err());
    cluster.run_until_idle();
    assert_eq!(at_b.len(), MOST);
    assert!(poll(&mut sending, &woken).is_pending(), "they have arrived, and nothing has come back");
    let mut kept = at_b.take();
    woken.0.store(0, Ordering::SeqCst);
    drop(kept.remove(0));
    cluster.run_until_idle();
    assert!(woken.0.load(Ordering::SeqCst) > 0, "memory came back");
    assert!(matches!(poll(&mut sending, &woken), Poll::Ready(Ok(()))));
    assert!(poll(&mut next, &woken).is_pending());
    drop(kept);
    cluster.run_until_idle();
    assert!(matches!(poll(&mut next, &woken), Poll::Ready(Ok(()))));
    cluster.run_until_idle();
    // Both messages came. They are refused because an address sends with another key than a cluster, whose
    // key is all that this mailbox takes.
    assert_eq!((at_b.len(), at_b.refused().len()), (0, 2), "{:?}", at_b.refused());
    cluster.run_until_idle();
    assert_eq!(pool.lending().0, 0);
}

#[derive(Debug, Serialize, Deserialize, GpuMessage)]
#[gpu_message(crate = tensorpost_core)]
struct Blob(Vec<u8>);

/// A body that does not fit into the frame counts as memory that is out, until the receiver has copied it. A
/// body that could not be sent must not count as memory that came back: its sender would try again at once,
/// for ever.
#[test]
fn large_bodies_wait_as_tensors_do() {
    const BODY: usize = 200 << 10;
    let cluster = Cluster::with_pools(2, PoolOptions { budget: 1 << 20, first_chunk: 1 << 20 });
    cluster.transport(0).bound_lending(2);
    let (to, at_b) = cluster.inbox::<Blob>(1, 64);
    cluster.connect();
    for number in 0..2 {
        cluster.send(0, &to, Blob(vec![number; BODY]));
    }
    let (back, unsent) = cluster.try_send(0, &to, Blob(vec![7; BODY])).expect_err("the bound");
    assert_eq!((back.0.len(), unsent), (BODY, MEMORY_OUT));
    let woken = Arc::new(Woken::default());
    let address = cluster.address(0, &to);
    let mut sending = address.send(back);
    for _ in 0..10 {
        assert!(poll(&mut sending, &woken).is_pending());
    }
    assert_eq!(woken.0.load(Ordering::SeqCst), 0, "nothing has come back");
    cluster.run_until_idle();
    assert_eq!(at_b.len(), 2);
    assert!(woken.0.load(Ordering::SeqCst) > 0, "the bodies were copied");
    assert!(matches!(poll(&mut sending, &woken), Poll::Ready(Ok(()))));
}

/// The memory of a copied body goes back to the pool if the frame cannot be sent yet. The sender does not
/// wait for that memory: if it looked again because of it, it would never stop.
#[test]
fn a_large_body_waits_for_room_without_a_look_of_its_own() {
    let cluster = Cluster::with_pools(2, PoolOptions { budget: 8 << 20, first_chunk: 8 << 20 });
    cluster.transport(0).bound_lending(2);
    let (to, _at_b) = cluster.inbox(1, 1 << 16);
    cluster.connect();
    for bytes in [60 << 10, 1] {
        let sent =
            (0..1 << 15).take_while(|_| cluster.try_send(0, &to, Blob(vec![1; bytes])).is_ok()).count();
        assert!((1..1 << 15).contains(&sent), "the ring is full: {sent}");
    }
    let (address, woken) = (cluster.address(0, &to), Arc::new(Woken::default()));
    let mut sending = address.send(Blob(vec![2; 200 << 10]));
    for _ in 0..3 {
        assert!(poll(&mut sending, &woken).is_pending());
    }
    cluster.run_until_idle();
    assert!(matches!(poll(&mut sending, &woken), Poll::Ready(Ok(()))));
}

#[test]
fn memory_of_others_is_passed_on_whatever_is_out() {
    let cluster = cluster(3);
    let [(to_b, at_b), (to_c, at_c)] = [1, 2].map(|process| cluster.inbox::<Item>(process, 64));
    let (to_a, at_a) = cluster.inbox::<Item>(0, 64);
    cluster.connect();
    for number in 0..MOST {
        cluster.send(1, &to_c, item(&cluster, 1, SMALL, number));
        cluster.send(0, &to_b, item(&cluster, 0, SMALL, number));
    }
    cluster.run_until_idle();
    assert_eq!(cluster.try_send(1, &to_c, item(&cluster, 1, SMALL, 0)).expect_err("the bound").1, MEMORY_OUT);
    // B is at its bound, and forwards the tensors that it was given, also back to their owner.
    for (index, received) in at_b.take().into_iter().enumerate() {
        cluster.send(1, if index % 2 == 0 { &to_c } else { &to_a }, received.message);
    }
    cluster.run_until_idle();
    assert_eq!((at_c.len(), at_a.len()), (MOST + MOST / 2, MOST / 2));
    // A is still at its bound, with half of what it lent, and a message with memory that came back to it
    // goes.
    for _ in 0..MOST / 2 {
        cluster.send(0, &to_b, item(&cluster, 0, SMALL, 0));
    }
    assert_eq!(cluster.try_send(0, &to_b, item(&cluster, 0, SMALL, 0)).expect_err("the bound").1, MEMORY_OUT);
    for received in at_a.take() {
        cluster.send(0, &to_b, received.message);
    }
}

#[test]
fn what_is_larger_than_the_bound_goes_when_little_is_out() {
    let cluster = cluster(2);
    let (to, at_b) = cluster.inbox::<Item>(1, 64);
    cluster.connect();
    cluster.send(0, &to, item(&cluster, 0, SMALL, 0));
    cluster.send(0, &to, item(&cluster, 0, 20 << 10, 1));
    assert_eq!(cluster.try_send(0, &to, item(&cluster, 0, SMALL, 2)).expect_err("the bound").1, MEMORY_OUT);
    cluster.run_until_idle();
    drop(at_b.take());
    cluster.send(0, &to, item(&cluster, 0, SMALL, 2));
}

#[test]
fn the_end_of_a_holder_frees_who_waits() {
    let cluster = cluster(3);
    let [(to_b, at_b), (to_c, _at_c)] = [1, 2].map(|process| cluster.inbox::<Item>(process, 64));
    cluster.connect();
    for number in 0..MOST {
        cluster.send(0, &to_b, item(&cluster, 0, SMALL, number));
    }
    cluster.run_until_idle();
    let woken = Arc::new(Woken::default());
    let to_c = cluster.address(0, &to_c);
    let mut sending = to_c.send(item(&cluster, 0, SMALL, MOST));
    assert!(poll(&mut sending, &woken).is_pending());
    cluster.abandon(1);
    cluster.run_until_idle();
    assert!(woken.0.load(Ordering::SeqCst) > 0, "LEASE-4: what it held is there again");
    assert!(matches!(poll(&mut sending, &woken), Poll::Ready(Ok(()))));
    drop(at_b);
}

/// The memory that a library keeps of a piece, until it may let go.
struct Kept(Mutex<Receiver<()>>);

impl Drop for Kept {
    fn drop(&mut self) {
        let _ = self.0.lock().expect("no panic").recv();
    }
}

#[test]
fn a_piece_is_out_until_its_library_has_it_back() {
    let cluster = cluster(2);
    let (to, at_b) = cluster.inbox::<Item>(1, 64);
    cluster.connect();
    let stream = cluster.stream(0);
    let whole = stream.zeros(DType::F32, &[MOST * SMALL]).expect("memory").freeze();
    let (go, may_go) = channel();
    let kept = Box::new(Kept(Mutex::new(may_go)));
    let layout = Layout::contiguous(&[MOST * SMALL]).expect("it has a size");
    let piece = piece_of(&whole, DType::F32, &layout, stream, kept, drop_on_collector);
    let piece = piece.expect("it has a place").expect("it lies in it");
    cluster.send(0, &to, Item(piece));
    cluster.run_until_idle();
    drop(at_b.take());
    cluster.run_until_idle();
    let woken = Arc::new(Woken::default());
    let address = cluster.address(0, &to);
    let mut sending = address.send(item(&cluster, 0, SMALL, 1));
    assert!(
        poll(&mut sending, &woken).is_pending(),
        "nobody has a lease on it, and the library has not let go"
    );
    go.send(()).expect("it waits for this");
    let until = Instant::now() + Duration::from_secs(30);
    while poll(&mut sending, &woken).is_pending() {
        assert!(Instant::now() < until, "nobody was woken");
        std::thread::yield_now();
    }
    assert!(woken.0.load(Ordering::SeqCst) > 0, "who waits is told");
}
