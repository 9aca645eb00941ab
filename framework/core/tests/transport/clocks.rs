//! Streams wait for streams, never the host (CLOCK-1), and memory is not used again under a stream that still
//! uses it (CLOCK-2).

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use tensorpost_core::clock::Ticket;
use tensorpost_core::device::Keep;
use tensorpost_core::lease::PoolOptions;
use tensorpost_core::tensor::{DType, DeviceStream, Tensor};
use tensorpost_core::testing::Cluster;

/// Work on a stream that ends when the test says so.
struct Gate(Sender<()>);

impl Gate {
    /// Closes the gate: work submitted to `stream` from here on does not run before the gate opens.
    fn close(stream: &DeviceStream) -> Self {
        let (open, wait) = channel();
        let any = stream.empty(DType::U8, &[1]).expect("memory").freeze();
        stream
            .run((any.of::<u8>(),), move |_| {
                let _ = wait.recv();
            })
            .expect("a host stream");
        Gate(open)
    }

    fn open(self) {
        self.0.send(()).expect("the stream waits");
    }
}

/// Submits a read of `tensor` to `stream`.
fn look(stream: &DeviceStream, tensor: &Tensor) -> Receiver<Vec<f32>> {
    let (seen, saw) = channel();
    stream
        .run((tensor.of::<f32>(),), move |(all,)| {
            let _ = seen.send(all.to_vec());
        })
        .expect("a host stream");
    saw
}

/// Submits a write of `value` to `stream`, and returns the tensor that is ready when it is done.
fn fill(stream: &DeviceStream, count: usize, value: f32) -> Tensor {
    let mut tensor = stream.empty(DType::F32, &[count]).expect("memory");
    stream.run((tensor.of_mut::<f32>(),), move |(all,)| all.fill(value)).expect("a host stream");
    tensor.freeze()
}

fn passed(cluster: &Cluster, process: usize, ticket: &Ticket) -> bool {
    cluster.transport(process).domain().passed(ticket).expect("a known clock")
}

/// CLOCK-1, and that no host thread waits: everything here runs on a single thread.
#[test]
fn a_receivers_stream_waits_for_the_senders_clock() {
    let cluster = Cluster::new(2);
    let (to, inbox) = cluster.inbox::<Tensor>(1, 8);
    let gate = Gate::close(cluster.stream(0));
    // The tensor is delivered twice, and the stream has to wait both times.
    let tensor = fill(cluster.stream(0), 4, 7.0);
    cluster.send(0, &to, tensor.clone());
    cluster.send(0, &to, tensor);
    cluster.run_until_idle();
    let got = inbox.take();
    assert_eq!(got.len(), 2);
    for received in &got {
        let ticket = received.message.ready().expect("not ready yet");
        assert_eq!(ticket.process, cluster.process(0));
        assert_eq!(received.tickets.as_slice(), [ticket]);
        assert!(!passed(&cluster, 1, &ticket));
    }
    let other = cluster.stream(1).with_new_stream().expect("a stream");
    let saw = [look(cluster.stream(1), &got[0].message), look(&other, &got[1].message)];
    // A stream without such a wait goes on meanwhile.
    let free = cluster.stream(1).with_new_stream().expect("a stream");
    let own = fill(&free, 1, 1.0);
    assert_eq!(look(&free, &own).recv().expect("it runs"), [1.0]);
    assert!(saw.iter().all(|saw| saw.try_recv().is_err()), "a kernel ran before its data was there");
    gate.open();
    for saw in saw {
        assert_eq!(saw.recv().expect("it runs"), [7.0; 4]);
    }
}

/// CLOCK-1 across a process that only passes a tensor on: the last receiver waits for the first writer.
#[test]
fn a_forwarded_tensor_still_waits_for_its_writer() {
    let cluster = Cluster::new(3);
    let [(to_b, at_b), (to_c, at_c)] = [1, 2].map(|i| cluster.inbox::<Tensor>(i, 8));
    let gate = Gate::close(cluster.stream(0));
    let tensor = fill(cluster.stream(0), 4, 7.0);
    let kept = tensor.clone();
    cluster.send(0, &to_b, tensor);
    cluster.run_until_idle();
    // C knows A's clock for itself, not from B.
    cluster.send(1, &to_c, at_b.take_one().message);
    cluster.run_until_idle();
    let got = at_c.take_one();
    assert_eq!(got.message.ready().map(|ticket| ticket.process), Some(cluster.process(0)));
    let saw = look(cluster.stream(2), &got.message);
    assert!(saw.try_recv().is_err());
    gate.open();
    assert_eq!(saw.recv().expect("it runs"), [7.0; 4]);
    drop(kept);
}

/// A process other than the owner wrote the tensor in place, so that process's clock counts.
#[test]
fn a_tensor_written_by_a_holder_waits_for_the_holder() {
    let cluster = Cluster::new(3);
    let [(to_a, at_a), (to_b, at_b), (to_c, at_c)] = [0, 1, 2].map(|i| cluster.inbox::<Tensor>(i, 8));
    cluster.send(0, &to_b, fill(cluster.stream(0), 4, 7.0));
    cluster.run_until_idle();
    let gate = Gate::close(cluster.stream(1));
    let mut tensor = at_b.take_one().message.into_mut(cluster.stream(1)).expect("moved all the way");
    cluster.stream(1).run((tensor.of_mut::<f32>(),), |(all,)| all.fill(8.0)).expect("a host stream");
    // The tensor goes back to the owner by way of C, which does nothing with it.
    cluster.send(1, &to_c, tensor.freeze());
    cluster.run_until_idle();
    cluster.send(2, &to_a, at_c.take_one().message);
    cluster.run_until_idle();
    let got = at_a.take_one().message;
    assert_eq!(got.ready().map(|ticket| ticket.process), Some(cluster.process(1)));
    let saw = look(cluster.stream(0), &got);
    assert!(saw.try_recv().is_err());
    gate.open();
    assert_eq!(saw.recv().expect("it runs"), [8.0; 4]);
}

/// The number of elements of a tensor that takes the whole pool, so that the next allocation has to use the
/// same memory.
const COUNT: usize = 8 << 10;

fn one_tensor_pools() -> PoolOptions {
    PoolOptions { budget: 4 * COUNT as u64, first_chunk: 4 * COUNT as u64 }
}

/// CLOCK-2: the memory is handed out again while a holder's stream still has to read it, and the new user's
/// stream waits.
#[test]
fn memory_is_not_written_under_a_holders_stream() {
    let cluster = Cluster::with_pools(2, one_tensor_pools());
    let (to, inbox) = cluster.inbox::<Tensor>(1, 8);
    let tensor = fill(cluster.stream(0), COUNT, 1.0);
    let address = tensor.lease().address();
    cluster.send(0, &to, tensor);
    cluster.run_until_idle();

    let gate = Gate::close_with(cluster.stream(1), &inbox.take_one().message);
    cluster.run_until_idle();
    // The lease is back but its last use is not over: the host does not wait, the stream does.
    assert_eq!(cluster.leases(0), 0);
    let reused = fill(cluster.stream(0), COUNT, 2.0);
    assert_eq!(reused.lease().address(), address, "the pool has no other memory");
    assert!(reused.ready().is_some(), "the write has to wait");
    let saw = gate.open_and_see();
    assert!(saw.iter().all(|x| *x == 1.0), "the reader saw the next one's data");
    assert_eq!(reused.to_vec::<f32>().expect("data"), vec![2.0; COUNT]);
}

/// Does the same without the wait, and shows what the test above would see if CLOCK-2 did not hold. The new
/// user's stream is not told of the reader, and the reader sees the new data.
#[test]
#[expect(unsafe_code, reason = "a write that no safe function makes")]
fn without_the_wait_a_reader_sees_the_next_ones_data() {
    let cluster = Cluster::with_pools(2, one_tensor_pools());
    let (to, inbox) = cluster.inbox::<Tensor>(1, 8);
    cluster.send(0, &to, fill(cluster.stream(0), COUNT, 1.0));
    cluster.run_until_idle();
    let gate = Gate::close_with(cluster.stream(1), &inbox.take_one().message);
    cluster.run_until_idle();
    let allocation = cluster.stream(0).pool().allocate(4 * COUNT as u64).expect("the same memory");
    assert!(
        allocation.after.iter().any(|ticket| ticket.process == cluster.process(1)),
        "{:?}",
        allocation.after
    );
    cluster.stream(0).synchronize().expect("its own write is done");
    let address = allocation.lease.address();
    let stream = cluster.stream(0).with_new_stream().expect("a stream");
    let keep = Keep::from_iter([Arc::clone(allocation.lease.mapping())]);
    // SAFETY: the allocation is that long and writable. The write is *not* ordered with the other process's
    // stream, which is the point of the test. That stream waits for the gate all the while, so nobody reads
    // these bytes before the gate opens.
    unsafe { stream.clocked().backend().fill(address, 4 * COUNT as u64, 0x40, keep) }.expect("a host stream");
    stream.synchronize().expect("it has nothing to wait for");
    let saw = gate.open_and_see();
    assert!(saw.iter().all(|x| *x == f32::from_bits(0x4040_4040)), "the reader saw {:?}", &saw[..4]);
    drop(allocation);
}

/// While the pool has other memory, it leaves alone a block that a stream still uses, and nobody waits.
#[test]
fn memory_in_use_is_left_alone_while_there_is_other() {
    let cluster = Cluster::new(2);
    let (to, inbox) = cluster.inbox::<Tensor>(1, 8);
    let tensor = fill(cluster.stream(0), COUNT, 1.0);
    let address = tensor.lease().address();
    cluster.send(0, &to, tensor);
    cluster.run_until_idle();
    let gate = Gate::close_with(cluster.stream(1), &inbox.take_one().message);
    cluster.run_until_idle();
    assert_eq!(cluster.stream(0).pool().stats().quarantined_bytes, 4 * COUNT as u64);
    let next = fill(cluster.stream(0), COUNT, 2.0);
    assert_ne!(next.lease().address(), address);
    next.wait(None).expect("nobody to wait for");
    let saw = gate.open_and_see();
    assert!(saw.iter().all(|x| *x == 1.0));
    // Once the clock has passed, the block is memory like any other.
    cluster.stream(1).synchronize().expect("idle");
    drop(fill(cluster.stream(0), COUNT, 3.0));
    // The stream's own write may still have been running when its tensor was dropped.
    cluster.stream(0).synchronize().expect("idle");
    drop(cluster.stream(0).empty(DType::U8, &[1]).expect("there is memory"));
    assert_eq!(cluster.stream(0).pool().stats().quarantined_bytes, 0);
}

/// A stream with a pending read of a tensor, held up by the test.
struct Reading {
    gate: Gate,
    saw: Receiver<Vec<f32>>,
}

impl Gate {
    fn close_with(stream: &DeviceStream, tensor: &Tensor) -> Reading {
        Reading { gate: Gate::close(stream), saw: look(stream, tensor) }
    }
}

impl Reading {
    fn open_and_see(self) -> Vec<f32> {
        assert!(self.saw.try_recv().is_err(), "it has not read yet");
        self.gate.open();
        self.saw.recv().expect("it reads")
    }
}
