//! A failure of earlier work on a stream is reported, and loses no order (CLOCK-1, CLOCK-2). In each case
//! here, unrelated work has failed on the stream that is to wait for the others, and nobody was told yet.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, Once};
use std::time::{Duration, Instant};

use tensorpost_core::device::host::HostStream;
use tensorpost_core::tensor::{DType, DeviceStream, Tensor, TensorError, TensorMut, TensorPart};
use tensorpost_core::testing::Cluster;

/// Long enough to show that something does not wait.
const A_MOMENT: Duration = Duration::from_millis(100);

/// Silences the panics of the tests' closures. All other panics are reported as ever.
fn say_nothing_of_it() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let others = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if panic.payload_as_str() != Some("unrelated") {
                others(panic);
            }
        }));
    });
}

/// Lets a closure on the stream panic. Nobody has asked for the failure yet.
fn fail(stream: &DeviceStream) {
    say_nothing_of_it();
    stream.run((), |()| panic!("unrelated")).expect("it is queued");
    let backend = stream.clocked().backend().clone();
    let backend = backend.as_any().downcast_ref::<HostStream>().expect("a host stream");
    while !backend.is_idle() {
        std::thread::yield_now();
    }
}

/// Checks that the next caller still gets the failure.
fn is_reported(stream: &DeviceStream) {
    let error = stream.synchronize().expect_err("a closure has panicked");
    assert!(error.to_string().contains("unrelated"), "{error}");
}

type Gate = Arc<Mutex<Receiver<()>>>;

fn gate() -> (Sender<()>, Gate) {
    let (open, wait) = channel();
    (open, Arc::new(Mutex::new(wait)))
}

fn pass(gate: &Gate) {
    // Dropping the sender opens it, too.
    let _ = gate.lock().expect("nobody panics with it").recv();
}

/// Submits a read to `stream` that lasts until the gate opens.
fn read(stream: &DeviceStream, tensor: &Tensor, gate: &Gate) {
    let gate = Arc::clone(gate);
    stream.run((tensor.of::<u64>(),), move |(_,)| pass(&gate)).expect("a host stream");
}

fn in_a_moment() -> Option<Instant> {
    Some(Instant::now() + A_MOMENT)
}

/// Checks that the writable tensor waits for the read, and goes on after it.
fn comes_after(tensor: &TensorMut, open: Sender<()>) {
    let early = tensor.wait(in_a_moment());
    assert!(matches!(early, Err(TensorError::TimedOut)), "it did not wait for a reader: {early:?}");
    drop(open);
    tensor.wait(None).expect("the reader is done");
}

fn one(stream: &DeviceStream) -> Tensor {
    stream.from_slice(&[1], &[1_u64]).expect("memory").freeze()
}

#[test]
fn a_writer_on_another_stream_waits_for_readers() {
    // The failure is on the stream that the memory belongs to, or on the writer's.
    for failed in 0..2 {
        let cluster = Cluster::new(1);
        let first = cluster.stream(0);
        let [second, third] = [(); 2].map(|()| first.with_new_stream().expect("a stream"));
        let (open, gate) = gate();
        let tensor = one(first);
        read(&second, &tensor, &gate);
        let failed = [first, &third][failed];
        fail(failed);
        let tensor = tensor.into_mut(&third).expect("nobody else has it");
        comes_after(&tensor, open);
        is_reported(failed);
    }
}

#[test]
fn the_next_holder_waits_for_readers_here() {
    // The failure is on the sender's stream, or on the one that the tensor is delivered to.
    for failed in 0..2 {
        let cluster = Cluster::new(2);
        let (to, inbox) = cluster.inbox::<Tensor>(1, 8);
        cluster.connect();
        let first = cluster.stream(0);
        let second = first.with_new_stream().expect("a stream");
        let (open, gate) = gate();
        let tensor = one(first);
        read(&second, &tensor, &gate);
        fail(cluster.stream(failed));
        cluster.send(0, &to, tensor);
        cluster.run_until_idle();
        let tensor = inbox.take_one().message.into_mut(cluster.stream(1)).expect("it was moved all the way");
        comes_after(&tensor, open);
        is_reported(cluster.stream(failed));
    }
}

#[test]
fn the_next_use_of_released_memory_waits_for_readers_there() {
    // The failure is on the stream of the holder that gives it back, or on the one where the owner uses it
    // next.
    for failed in 0..2 {
        let cluster = Cluster::new(2);
        let (to, inbox) = cluster.inbox::<Tensor>(1, 8);
        cluster.connect();
        let (open, gate) = gate();
        let tensor = one(cluster.stream(0));
        cluster.send(0, &to, tensor.clone());
        cluster.run_until_idle();
        let there = inbox.take_one();
        let reader = cluster.stream(1).with_new_stream().expect("a stream");
        // The first stream of the holder joins the work of the others.
        cluster.stream(1).run((there.message.of::<u64>(),), |(_,)| {}).expect("a host stream");
        read(&reader, &there.message, &gate);
        fail(cluster.stream(1 - failed));
        drop(there);
        cluster.run_until_idle();
        let tensor = tensor.into_mut(cluster.stream(0)).expect("the other has let go");
        comes_after(&tensor, open);
        is_reported(cluster.stream(1 - failed));
    }
}

#[test]
fn the_next_holder_waits_for_readers_that_let_go_before() {
    let cluster = Cluster::new(3);
    let (to_b, at_b) = cluster.inbox::<Tensor>(1, 8);
    let (to_c, at_c) = cluster.inbox::<Tensor>(2, 8);
    cluster.connect();
    let first = cluster.stream(0);
    let (open, gate) = gate();
    let tensor = one(first);
    cluster.send(0, &to_b, tensor.clone());
    cluster.run_until_idle();
    let there = at_b.take_one();
    read(cluster.stream(1), &there.message, &gate);
    drop(there);
    cluster.run_until_idle();
    fail(first);
    cluster.send(0, &to_c, tensor);
    cluster.run_until_idle();
    let tensor = at_c.take_one().message;
    match tensor.into_mut(cluster.stream(2)) {
        Ok(tensor) => comes_after(&tensor, open),
        Err(not_sole) => panic!("the last one has let go: {}", not_sole.why),
    }
    is_reported(first);
}

#[test]
fn the_owner_waits_for_all_streams_of_a_holder_that_let_go() {
    let cluster = Cluster::new(2);
    let (to, inbox) = cluster.inbox::<Tensor>(1, 8);
    cluster.connect();
    let tensor = one(cluster.stream(0));
    cluster.send(0, &to, tensor.clone());
    cluster.run_until_idle();
    let there = inbox.take_one();
    let first = cluster.stream(1);
    let (open, gate) = gate();
    first.run((there.message.of::<u64>(),), |(_,)| {}).expect("a host stream");
    // These are more streams than a release has room for.
    let others: Vec<_> = (0..6).map(|_| first.with_new_stream().expect("a stream")).collect();
    others.iter().for_each(|other| read(other, &there.message, &gate));
    fail(first);
    drop(there);
    cluster.run_until_idle();
    let tensor = tensor.into_mut(cluster.stream(0)).expect("the other has let go");
    comes_after(&tensor, open);
    is_reported(first);
}

#[test]
fn parts_in_one_message_wait_for_each_other() {
    let cluster = Cluster::new(2);
    let (to, inbox) = cluster.inbox::<Vec<TensorPart>>(1, 8);
    cluster.connect();
    let first = cluster.stream(0);
    let second = first.with_new_stream().expect("a stream");
    let (open, gate) = gate();
    let whole = first.zeros(DType::U64, &[2]).expect("memory");
    let mut parts = whole.split(0, &[1, 1]).expect("two parts");
    for (part, stream) in parts.iter_mut().zip([first, &second]) {
        let gate = Arc::clone(&gate);
        let slow = stream.clocked() == second.clocked();
        stream
            .run((part.of_mut::<u64>(),), move |(_,)| {
                if slow {
                    pass(&gate);
                }
            })
            .expect("a host stream");
    }
    fail(first);
    cluster.send(0, &to, parts);
    cluster.run_until_idle();
    let parts = inbox.take_one().message;
    let whole = TensorMut::join(parts, cluster.stream(1)).expect("all parts");
    comes_after(&whole, open);
    is_reported(first);
}
