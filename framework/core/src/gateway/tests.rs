//! Tensors that go through slots, on host streams that run late, as those of a GPU do.

mod arenas;

use std::future::Future;
use std::pin::{Pin, pin};
use std::slice::from_ref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::FutureExt;
use tensorpost_hosts::frame::Piece;
use tensorpost_hosts::limits::PIECE_BYTES;
use tensorpost_hosts::net::Memory;
use tokio::sync::mpsc::unbounded_channel;

use super::Door;
use super::command::{Command, store_for};
use super::copier::{Copier, Landing};
use super::copiers::{Copiers, Direction};
use super::head::Head;
use super::prepare::{Packing, make_ready, ready, targets};
use super::store::{Source, Target, sources};
use crate::actor::{Address, SendFailure};
use crate::ids::DeviceId;
use crate::lease::{PoolError, PoolOptions};
use crate::limits::GATEWAY_SLOTS;
use crate::message::raw::RawMessage;
use crate::tensor::{DType, DeviceStream, Tensor, TensorError, TensorStatus};
use crate::testing::Cluster;

/// Work on a stream that ends when the test opens the gate or drops it.
struct Gate(Sender<()>);

impl Gate {
    fn close(stream: &DeviceStream) -> Self {
        let (open, wait) = channel::<()>();
        let work = move |()| {
            let _ = wait.recv();
        };
        stream.run((), work).expect("a host stream");
        Gate(open)
    }

    fn open(self) {
        drop(self.0);
    }
}

fn until(what: &str, mut seen: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !seen() {
        assert!(Instant::now() < deadline, "it did not come about that {what}");
        std::thread::yield_now();
    }
}

/// Starts a copier with a stream of its own in process `i`.
fn copier(cluster: &Cluster, i: usize) -> Arc<Copier> {
    Copier::start(cluster.stream(i).with_new_stream().expect("a stream")).expect("slots")
}

fn bytes(count: usize) -> Vec<u8> {
    (0..count).map(|n| (n * 7 % 251) as u8).collect()
}

fn tensor(stream: &DeviceStream, bytes: &[u8]) -> Tensor {
    stream.from_slice(&[bytes.len()], bytes).expect("memory").freeze()
}

/// Polls the future once.
fn poll<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

fn piece(post: u64, offset: u64, bytes: usize) -> Piece {
    Piece { post, span: 0, offset, bytes: bytes as u32 }
}

/// A message that was accepted on another host waits for memory for its body, as it does for room: nobody
/// would send it again.
#[test]
fn a_large_body_waits_for_memory() {
    const BODY: usize = 200 << 10;
    let cluster = Cluster::with_pools(2, PoolOptions { budget: 1 << 20, first_chunk: 1 << 20 });
    let (to, _inbox) = cluster.inbox::<u32>(1, 64);
    cluster.connect();
    let transport = cluster.transport(0);
    let address = Address::<RawMessage>::new(Arc::clone(transport), to.actor, to.location).with_key(7);
    let held = cluster.stream(0).empty(DType::U8, &[1 << 20]).expect("memory");
    // MessagePack: a body of this many bytes (bin 32).
    let bytes = || [&[0xc6], &(BODY as u32).to_be_bytes()[..], &[1; BODY]].concat();
    let large = || RawMessage { key: 7, body: bytes(), tensors: Vec::new() };
    let error = address.send(large()).now_or_never().expect("it is told").expect_err("there is no memory");
    assert!(matches!(error.reason, SendFailure::Body(PoolError::Full { .. })), "{error}");

    transport.set_gate(Arc::new(Door(unbounded_channel().0)));
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut context = Context::from_waker(&waker);
    let [mut first, mut next] = [large(), large()].map(|message| Box::pin(address.send(message)));
    for sending in [&mut first, &mut next] {
        assert!(sending.as_mut().poll(&mut context).is_pending());
    }
    // The first sender waits at the front, so later messages keep the order (HOST-3).
    assert!(address.send(RawMessage { body: vec![1], ..large() }).now_or_never().is_none());
    cluster.run_until_idle();
    assert_eq!(woken.0.load(Ordering::SeqCst), 0, "nothing has come back");
    drop(held);
    cluster.run_until_idle();
    assert!(woken.0.load(Ordering::SeqCst) > 0);
    for sending in [&mut first, &mut next] {
        assert!(matches!(sending.as_mut().poll(&mut context), Poll::Ready(Ok(()))));
    }
}

/// Counts how often it is woken.
#[derive(Default)]
struct Woken(AtomicU32);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// HOST-6: a strided tensor is sent when there is memory to pack it. Until then it says that it waits.
#[tokio::test]
async fn what_is_to_be_packed_waits_for_memory() {
    let cluster = Cluster::with_pools(1, PoolOptions { budget: 1 << 20, first_chunk: 1 << 20 });
    let stream = cluster.stream(0);
    let columns = |rows: usize| {
        let all = stream.zeros(DType::U8, &[rows, 2]).expect("memory").freeze();
        all.slice(1, 0..1).expect("a view")
    };
    let strided = [columns(100 << 10), columns(100 << 10)];
    let held = stream.empty(DType::U8, &[500 << 10]).expect("memory");
    let copiers = Copiers::new(cluster.transport(0));
    let (turn, told) = (Packing::default(), tokio::sync::Notify::new());
    let mut packing = Box::pin(ready(strided.to_vec(), stream.clone(), copiers, turn, || told.notify_one()));
    let waits = tokio::time::timeout(Duration::from_secs(20), told.notified());
    tokio::select! {
        done = &mut packing => panic!("there is room for one of them: {:?}", done.map(|_| ())),
        waits = waits => waits.expect("it says that it waits"),
    }
    drop(held);
    cluster.run_until_idle();
    let packed = packing.await.expect("there is room");
    assert!(packed.iter().all(|tensor| tensor.is_contiguous() && tensor.shape() == [100 << 10, 1]));
}

/// MBX-2: there are as many copies as slots. A slot comes back when its bytes have left, and not before.
#[tokio::test]
async fn a_piece_goes_when_its_copy_has_passed_and_slots_bound_the_copies() {
    let cluster = Cluster::new(1);
    let (copier, data) = (copier(&cluster, 0), bytes((GATEWAY_SLOTS + 1) * 100));
    let tensor = tensor(cluster.stream(0), &data);
    let gate = Gate::close(copier.stream());
    let read = |index: usize| copier.read(&tensor, index as u64 * 100, 100);
    let mut reads: Vec<_> = (0..=GATEWAY_SLOTS).map(|index| Box::pin(read(index))).collect();
    for read in &mut reads {
        assert!(poll(read.as_mut()).is_pending(), "nothing has passed");
    }
    assert_eq!(copier.free_slots(), 0);
    gate.open();
    let last = reads.pop().expect("one more than slots");
    let mut came = Vec::new();
    for (index, read) in reads.into_iter().enumerate() {
        came.push(read.await.expect("it was good"));
        assert_eq!(came[index], data[index * 100..][..100]);
    }
    let mut last = pin!(last);
    assert!(poll(last.as_mut()).is_pending(), "all slots are on their way");
    came.truncate(GATEWAY_SLOTS - 1);
    assert_eq!(last.await.expect("it was good"), data[GATEWAY_SLOTS * 100..]);
    drop(came);
    assert_eq!(copier.free_slots(), GATEWAY_SLOTS);
    for (offset, count) in [(data.len() as u64 - 99, 100), (u64::MAX, 100), (0, PIECE_BYTES as usize + 1)] {
        let refused = copier.read(&tensor, offset, count).await;
        assert!(matches!(refused, Err(TensorError::Device(_))), "{refused:?}");
    }
    assert_eq!(copier.free_slots(), GATEWAY_SLOTS);
}

/// When a connection ends, its reads are dropped. Their memory is kept until the copies have completed, and
/// their slots come back.
#[test]
fn a_read_that_nobody_waits_for_ends_behind_its_copy() {
    let cluster = Cluster::new(1);
    let copier = copier(&cluster, 0);
    let tensor = tensor(cluster.stream(0), &bytes(1000));
    let gate = Gate::close(copier.stream());
    let mut read = Box::pin(copier.read(&tensor, 0, 1000));
    assert!(poll(read.as_mut()).is_pending());
    drop(read);
    drop(tensor);
    assert_eq!((copier.free_slots(), cluster.leases(0)), (GATEWAY_SLOTS - 1, 1));
    gate.open();
    until("it has passed", || (copier.free_slots(), cluster.leases(0)) == (GATEWAY_SLOTS, 0));
}

/// HOST-6. The test reads the tensor before it is ready, which the gateway never does, so that its loss falls
/// into the copy.
#[tokio::test]
async fn what_is_lost_while_it_is_copied_is_not_sent() {
    let cluster = Cluster::new(2);
    cluster.connect();
    let (to, inbox) = cluster.inbox::<Tensor>(1, 8);
    let gate = Gate::close(cluster.stream(0));
    let mut made = cluster.stream(0).empty(DType::U8, &[100]).expect("memory");
    cluster.stream(0).run((made.of_mut::<u8>(),), |(all,)| all.fill(1)).expect("a host stream");
    cluster.send(0, &to, made.freeze());
    cluster.run_until_idle();
    let pending = inbox.take_one().message;
    let good = tensor(cluster.stream(1), &bytes(100));

    let (copier, (told, mut commands)) = (copier(&cluster, 1), unbounded_channel());
    let store = store_for(7, 0, told);
    store.lend(1, Arc::new([Source::Staged(pending.clone(), Arc::clone(&copier))]));
    store.lend(2, Arc::new([Source::Staged(good, Arc::clone(&copier))]));
    let mut lost = store.read(piece(1, 0, 100));
    assert!(poll(lost.as_mut()).is_pending());
    cluster.end(0);
    cluster.run_until_idle();
    assert_eq!(lost.await, None);
    let said = commands.try_recv().expect("the gateway is told");
    assert!(matches!(said, Command::Spoilt { host: 7, session: 0, post: 1, why: None }));
    // The other message is sent over the same stream.
    assert_eq!(store.read(piece(2, 0, 100)).await.as_deref(), Some(&bytes(100)[..]));
    assert!(commands.try_recv().is_err());
    // Any other reason why a piece cannot be read is reported.
    assert_eq!(store.read(piece(2, 50, 100)).await, None);
    let said = commands.try_recv().expect("the gateway is told");
    assert!(matches!(said, Command::Spoilt { host: 7, session: 0, post: 2, why: Some(_) }));
    store.released(1);
    store.clear();
    drop((pending, store));
    until("all slots are back", || copier.free_slots() == GATEWAY_SLOTS);
    gate.open();
}

/// HOST-7: no stream of the gateway waits for a tensor, so reads through that stream go on meanwhile.
#[test]
fn what_is_not_there_yet_is_waited_for_on_the_host() {
    let cluster = Cluster::new(1);
    let copiers = Copiers::staging(cluster.transport(0), true);
    let out = copiers.get(DeviceId::HOST, Direction::Out).expect("a copier");
    let late = cluster.stream(0).with_new_stream().expect("a stream");
    let gate = Gate::close(&late);
    let matrix = late.from_slice(&[2, 50], &bytes(100)).expect("memory").freeze();
    let columns = matrix.permute(&[1, 0]).expect("transposed");
    let there = tensor(cluster.stream(0), &bytes(300));
    assert!(!copiers.are_ready(from_ref(&matrix)) && !copiers.are_ready(from_ref(&columns)));
    assert!(copiers.are_ready(from_ref(&there)));
    let (host, wanted) = (cluster.stream(0).clone(), vec![matrix, columns]);
    let used = Arc::clone(&copiers);
    let waiting = std::thread::spawn(move || make_ready(&wanted, &host, &used));
    let read = async { out.read(&there, 0, 300).await.expect("it was good") };
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    assert_eq!(runtime.block_on(read), bytes(300));
    assert!(!waiting.is_finished(), "the gate is closed");
    gate.open();
    let ready = waiting.join().expect("no panic").expect("they are good");
    assert!(copiers.are_ready(&ready));
    let transposed: Vec<u8> = (0..100).map(|n| bytes(100)[n % 2 * 50 + n / 2]).collect();
    assert_eq!(ready[1].to_vec::<u8>().expect("bytes"), transposed);
    assert_eq!(out.stream().waits().0, 0);
}

/// HOST-6: a tensor that will never be ready is refused before anything of it leaves.
#[test]
fn what_will_never_be_there_is_not_made_ready() {
    let cluster = Cluster::new(2);
    cluster.connect();
    let (to, inbox) = cluster.inbox::<Tensor>(1, 8);
    let gate = Gate::close(cluster.stream(0));
    cluster.send(0, &to, tensor(cluster.stream(0), &bytes(10)));
    cluster.run_until_idle();
    let tensor = inbox.take_one().message;
    let copiers = Copiers::staging(cluster.transport(1), true);
    let host = cluster.stream(1).clone();
    let waiting = std::thread::spawn(move || make_ready(&[tensor], &host, &copiers));
    cluster.end(0);
    cluster.run_until_idle();
    let lost = waiting.join().expect("no panic");
    assert!(matches!(lost, Err(TensorError::Tainted { by }) if by == cluster.process(0)), "{lost:?}");
    gate.open();
}

/// HOST-8: a piece has landed when its copy is submitted, and the tensor is ready when the last copy has
/// completed.
#[tokio::test]
async fn pieces_land_in_any_order_and_the_tensor_is_there_when_they_have_passed() {
    let cluster = Cluster::new(1);
    let (copier, data) = (copier(&cluster, 0), bytes(3 * PIECE_BYTES as usize - 5));
    let tensor = copier.stream().empty(DType::U8, &[data.len()]).expect("memory");
    let landing = Landing::new(&copier, tensor).expect("a host stream");
    let store = store_for(7, 0, unbounded_channel().0);
    store.expect(1);
    let mut early = store.write(piece(1, 0, 1), Bytes::copy_from_slice(&data[..PIECE_BYTES as usize]).into());
    assert!(poll(early.as_mut()).is_pending(), "there is no memory yet");
    let gate = Gate::close(copier.stream());
    store.prepared(1, vec![Target::Staged(landing)]);
    early.await;
    for index in [2, 1] {
        let at = index * PIECE_BYTES as usize;
        let bytes = Bytes::copy_from_slice(&data[at..data.len().min(at + PIECE_BYTES as usize)]);
        assert!(
            store.write(piece(1, at as u64, bytes.len()), bytes.into()).now_or_never().is_some(),
            "it waits"
        );
    }
    assert_eq!(copier.free_slots(), GATEWAY_SLOTS - 3);
    let Some(Target::Staged(landing)) = store.take(1).pop() else { panic!("another target") };
    let tensor = landing.into_tensor().expect("nobody writes it any more").freeze();
    assert_eq!(tensor.status(), TensorStatus::Pending);
    gate.open();
    assert!(tensor.to_vec::<u8>().expect("bytes") == data);
    until("all slots are back", || copier.free_slots() == GATEWAY_SLOTS);
}

/// After an abort, or the loss of the host, memory and slots come back after the copies. The host waits for
/// those copies before the memory is used again (HOST-7, CLOCK-2).
#[tokio::test]
async fn what_was_begun_of_a_message_that_never_comes_is_given_back() {
    let cluster = Cluster::with_pools(1, PoolOptions { budget: 1 << 20, first_chunk: 1 << 20 });
    let copiers = Copiers::staging(cluster.transport(0), true);
    let copier = copiers.get(DeviceId::HOST, Direction::In).expect("a copier");
    let store = store_for(7, 0, unbounded_channel().0);
    let like = |bytes: usize| {
        let tensor = cluster.stream(0).empty(DType::U8, &[bytes]).expect("memory").freeze();
        Head::of(1, &Bytes::new(), &[tensor])
    };
    let (most, too_much) = (like(1000 << 10), {
        let small = like(1);
        let mut head = small.clone();
        head.tensors[0] = like_many(&small);
        head
    });
    until("the memory is free again", || cluster.leases(0) == 0);
    store.expect(1);
    store.prepared(1, targets(&most, cluster.stream(0), &copiers, None).await);
    let gate = Gate::close(copier.stream());
    store.write(piece(1, 0, 1000), Bytes::from(bytes(1000)).into()).await;
    assert_eq!(copier.free_slots(), GATEWAY_SLOTS - 1);
    drop(store.take(1));
    // Later pieces of the aborted message are dropped.
    store.write(piece(1, PIECE_BYTES, 1000), Bytes::from(bytes(1000)).into()).await;
    let waits = copier.stream().waits().0;
    let mut next = Box::pin(targets(&most, cluster.stream(0), &copiers, None));
    // The wait has a thread of its own.
    for _ in 0..20 {
        assert!(poll(next.as_mut()).is_pending(), "the copy has not passed");
        tokio::task::yield_now().await;
    }
    gate.open();
    let next = next.await;
    assert!(matches!(next[..], [Target::Staged(_)]), "{next:?}");
    assert_eq!(copier.stream().waits().0, waits);
    until("all slots are back", || copier.free_slots() == GATEWAY_SLOTS);
    // A tensor larger than the pool can ever hold is refused with the reason, and not waited for.
    let never = targets(&too_much, cluster.stream(0), &copiers, None).await;
    assert!(matches!(&never[..], [Target::Nowhere(why)] if why.contains("budget")), "{never:?}");
}

/// An outline of 2 MiB.
fn like_many(head: &Head) -> super::head::Outline {
    let mut head = head.clone();
    head.tensors[0].shape = vec![2 << 20];
    Head::decode(head.encode(), &[2 << 20]).expect("a head").tensors.remove(0)
}

/// A tensor without elements has a span of one byte, so that there is memory for it before its message goes
/// on.
#[tokio::test]
async fn a_tensor_without_elements_has_a_span_and_no_bytes() {
    let cluster = Cluster::new(1);
    let empty = cluster.stream(0).zeros(DType::F32, &[0, 3]).expect("nothing").freeze();
    // The other host may say that it was on a GPU, even if there is none here.
    for on_gpu in [false, true] {
        let copiers = Copiers::staging(cluster.transport(0), on_gpu);
        let mut head = Head::of(1, &Bytes::new(), from_ref(&empty));
        head.tensors[0].on_gpu = on_gpu;
        assert_eq!(head.spans(), [1]);
        let sources = sources(&head, from_ref(&empty), &Bytes::new(), &copiers);
        assert!(matches!(&sources[..], [Source::Body(one)] if one.len() == 1), "{sources:?}");
        let targets = targets(&head, cluster.stream(0), &copiers, Some(DeviceId::HOST)).await;
        let store = store_for(7, 0, unbounded_channel().0);
        store.expect(1);
        store.prepared(1, targets);
        store.write(piece(1, 0, 1), Bytes::from_static(&[0]).into()).await;
        let tensor = match store.take(1).pop() {
            Some(Target::Staged(landing)) if on_gpu => landing.into_tensor(),
            Some(Target::InPlace(memory)) if !on_gpu => memory.into_tensor(),
            other => panic!("it is lost: {other:?}"),
        };
        assert_eq!(tensor.expect("nobody writes it").shape(), [0, 3]);
    }
}
