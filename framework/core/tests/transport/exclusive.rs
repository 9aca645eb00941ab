//! Exclusive hand-over: a tensor that is moved all the way becomes writable, and one with a handle left
//! anywhere does not (ONE-WRITER).

use std::sync::Arc;
use std::sync::mpsc::channel;

use tensorpost_core::limits::MAX_INLINE_BODY;
use tensorpost_core::tensor::{DeviceStream, Tensor, TensorMut};
use tensorpost_core::testing::{Cluster, Target, TestInbox};

fn numbers(cluster: &Cluster, process: usize) -> Tensor {
    cluster.stream(process).from_slice(&[4], &[1_f32, 2.0, 3.0, 4.0]).expect("memory").freeze()
}

fn inboxes<const N: usize>(cluster: &Cluster) -> [(Target<Tensor>, Arc<TestInbox<Tensor>>); N] {
    cluster.connect();
    std::array::from_fn(|i| cluster.inbox(i, 8))
}

/// Lets process `i` take the frames in its rings. The others only answer requests for chunks.
fn receive(cluster: &Cluster, i: usize, inbox: &TestInbox<Tensor>) -> Tensor {
    while inbox.is_empty() {
        cluster.poll(i);
        cluster.run_node_until_idle();
    }
    inbox.take_one().message
}

fn doubled(tensor: Tensor, stream: &DeviceStream) -> Tensor {
    let mut tensor = tensor.into_mut(stream).expect("it was moved all the way");
    stream
        .run((tensor.of_mut::<f32>(),), |(all,)| all.iter_mut().for_each(|x| *x *= 2.0))
        .expect("a host stream");
    tensor.freeze()
}

fn is_refused(tensor: Tensor, stream: &DeviceStream) -> Tensor {
    let not_sole = tensor.into_mut(stream).expect_err("somebody else has it");
    // The tensor comes back whole.
    assert_eq!(not_sole.tensor.to_vec::<f32>().expect("data"), [1.0, 2.0, 3.0, 4.0]);
    not_sole.tensor
}

#[test]
fn one_buffer_goes_through_a_pipeline_and_back_in_place() {
    let cluster = Cluster::new(3);
    let [(to_a, at_a), (to_b, at_b), (to_c, at_c)] = inboxes(&cluster);
    let tensor = numbers(&cluster, 0);
    let id = tensor.lease().id();
    cluster.send(0, &to_b, tensor);
    // The tensor is writable in the very handler that it is delivered to: only the receiver has run since.
    for round in 0..3 {
        let tensor = receive(&cluster, 1, &at_b);
        assert_eq!(tensor.lease().id(), id);
        cluster.send(1, &to_c, doubled(tensor, cluster.stream(1)));
        let tensor = receive(&cluster, 2, &at_c);
        cluster.send(2, &to_a, doubled(tensor, cluster.stream(2)));
        let tensor = receive(&cluster, 0, &at_a);
        let tensor = doubled(tensor, cluster.stream(0));
        let factor = 8_f32.powi(round + 1);
        assert_eq!(tensor.to_vec::<f32>().expect("data"), [1.0, 2.0, 3.0, 4.0].map(|x| x * factor));
        cluster.send(0, &to_b, tensor);
    }
    cluster.run_until_idle();
    drop(at_b.take_one());
    cluster.run_until_idle();
    assert_eq!(cluster.leases(0), 0);
}

#[test]
fn a_clone_left_with_the_sender_is_in_the_way() {
    let cluster = Cluster::new(2);
    let [(_, _), (to_b, at_b)] = inboxes(&cluster);
    let tensor = numbers(&cluster, 0);
    let kept = tensor.slice(0, ..1).expect("in range");
    cluster.send(0, &to_b, tensor);
    let got = receive(&cluster, 1, &at_b);
    let got = is_refused(got, cluster.stream(1));
    drop(kept);
    cluster.run_until_idle();
    // That was decided when the tensor was sent. Another hand-over decides again.
    drop(is_refused(got, cluster.stream(1)));
}

#[test]
fn a_clone_left_with_the_receiver_is_in_the_way() {
    let cluster = Cluster::new(2);
    let [(_, _), (to_b, at_b)] = inboxes(&cluster);
    cluster.send(0, &to_b, numbers(&cluster, 0));
    let got = receive(&cluster, 1, &at_b);
    let clone = got.clone();
    let got = is_refused(got, cluster.stream(1));
    drop(clone);
    assert!(got.is_sole());
    drop(doubled(got, cluster.stream(1)));
}

#[test]
fn a_clone_sent_to_a_third_process_is_in_the_way() {
    let cluster = Cluster::new(3);
    let [(_, _), (to_b, at_b), (to_c, at_c)] = inboxes(&cluster);
    let tensor = numbers(&cluster, 0);
    cluster.send(0, &to_c, tensor.clone());
    cluster.send(0, &to_b, tensor);
    let b = receive(&cluster, 1, &at_b);
    let c = receive(&cluster, 2, &at_c);
    drop(is_refused(b, cluster.stream(1)));
    cluster.run_until_idle();
    drop(is_refused(c, cluster.stream(2)));
}

/// A holder shares a tensor that it had exclusively. From then on no process has it exclusively, neither
/// there nor where it goes.
#[test]
fn a_tensor_that_was_forwarded_is_not_exclusive_any_more() {
    let cluster = Cluster::new(3);
    let [(_, _), (to_b, at_b), (to_c, at_c)] = inboxes(&cluster);
    cluster.send(0, &to_b, numbers(&cluster, 0));
    let got = receive(&cluster, 1, &at_b);
    assert!(got.is_sole());
    cluster.send(1, &to_c, got.clone());
    // The tensor is refused while the copy is on its way, and also once it has arrived.
    let got = is_refused(got, cluster.stream(1));
    cluster.run_until_idle();
    let got = is_refused(got, cluster.stream(1));
    let first = at_c.take_one().message;
    cluster.send(1, &to_c, got);
    cluster.run_until_idle();
    let second = at_c.take_one().message;
    let second = is_refused(second, cluster.stream(2));
    drop(is_refused(first, cluster.stream(2)));
    drop(second);
    cluster.run_until_idle();
    assert_eq!(cluster.leases(0), 0);
}

/// Two messages were encoded with the same tensor, and are sent one after the other once no handle is left.
#[test]
fn two_messages_with_one_tensor_are_both_shared() {
    let cluster = Cluster::new(3);
    let [(_, _), (to_b, at_b), (to_c, at_c)] = inboxes(&cluster);
    let tensor = numbers(&cluster, 0);
    let (first, second) = (cluster.prepare(0, &to_b, tensor.clone()), cluster.prepare(0, &to_c, tensor));
    first.commit();
    second.commit();
    drop(is_refused(receive(&cluster, 1, &at_b), cluster.stream(1)));
    drop(is_refused(receive(&cluster, 2, &at_c), cluster.stream(2)));
}

/// A message that waits to be written keeps no handle, and its receiver must see the data that was sent.
#[test]
fn a_tensor_in_a_message_that_waits_cannot_be_written() {
    let cluster = Cluster::new(2);
    let [(_, _), (to_b, at_b)] = inboxes(&cluster);
    let tensor = numbers(&cluster, 0);
    let waiting = cluster.prepare(0, &to_b, tensor.clone());
    let tensor = is_refused(tensor, cluster.stream(0));
    waiting.commit();
    drop(tensor);
    assert_eq!(receive(&cluster, 1, &at_b).to_vec::<f32>().expect("data"), [1.0, 2.0, 3.0, 4.0]);
}

/// Does the same for a reply that found no room in the ring.
#[test]
fn a_tensor_in_a_reply_that_waits_cannot_be_written() {
    let cluster = Cluster::new(2);
    let (to, inbox) = cluster.inbox::<u32>(1, 256);
    let (back, at_a) = cluster.inbox::<Vec<u8>>(0, 256);
    cluster.connect();
    let asked = cluster.ask::<u32, Tensor>(0, &to, 7);
    cluster.run_until_idle();
    for bytes in [MAX_INLINE_BODY / 2, 1000, 1] {
        while cluster.try_send(1, &back, vec![1_u8; bytes]).is_ok() {}
    }
    let tensor = numbers(&cluster, 1);
    inbox.take_one().receipt.reply(tensor.clone());
    assert!(cluster.transport(1).is_busy(), "the reply waits for room");
    drop(is_refused(tensor, cluster.stream(1)));
    cluster.run_until_idle();
    drop(at_a.take());
    cluster.run_until_idle();
    let reply = asked.take().expect("it came").expect("a reply");
    assert_eq!(reply.to_vec::<f32>().expect("data"), [1.0, 2.0, 3.0, 4.0]);
}

/// CLOCK-2 for a hand-over: the new writer also waits for readers that have let go, but whose streams still
/// read.
#[test]
fn a_new_writer_waits_for_the_readers_before_it() {
    let cluster = Cluster::new(3);
    let [(_, _), (to_b, at_b), (to_c, at_c)] = inboxes(&cluster);
    let tensor = numbers(&cluster, 0);
    cluster.send(0, &to_c, tensor.clone());
    let reader = receive(&cluster, 2, &at_c);
    let (release, gate) = channel::<()>();
    let (seen, saw) = channel();
    let stream = cluster.stream(2);
    stream
        .run((reader.of::<f32>(),), move |(all,)| {
            gate.recv().expect("the test lives");
            seen.send(all.to_vec()).expect("the test lives");
        })
        .expect("a host stream");
    drop(reader);
    cluster.run_until_idle();
    // C has given its lease back; its stream has not read yet.
    cluster.send(0, &to_b, tensor);
    let got = receive(&cluster, 1, &at_b);
    let written = match got.into_mut(cluster.stream(1)) {
        Ok(tensor) => Ok(zeroed(tensor, cluster.stream(1))),
        Err(not_sole) => Err(not_sole),
    };
    assert!(written.is_ok(), "C has let go, so it is B's own: {written:?}");
    // B's stream has had every chance to write too early.
    std::thread::yield_now();
    release.send(()).expect("the reader waits");
    assert_eq!(saw.recv().expect("it reads"), [1.0, 2.0, 3.0, 4.0]);
    let written = written.expect("checked").freeze();
    assert_eq!(written.to_vec::<f32>().expect("data"), [0.0; 4]);
}

fn zeroed(mut tensor: TensorMut, stream: &DeviceStream) -> TensorMut {
    stream.run((tensor.of_mut::<f32>(),), |(all,)| all.fill(0.0)).expect("a host stream");
    tensor
}
