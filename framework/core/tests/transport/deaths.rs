//! The effects of a death on the streams of other processes (DEATH-1, DEATH-3), step by step: several
//! transports in one process, and the node's own broker between them.

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use tensorpost_core::tensor::{DType, DeviceStream, Tensor, TensorError, TensorMut, TensorStatus};
use tensorpost_core::testing::{Cluster, Target, TestInbox, forge};

/// Work on a stream that ends when the test ends. It stands for work that a dying process had not done.
struct Gate(Sender<()>);

impl Gate {
    fn close(stream: &DeviceStream) -> Self {
        let (open, wait) = channel::<()>();
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

/// Makes a tensor that a kernel writes.
fn fill(stream: &DeviceStream, value: f32) -> Tensor {
    let mut tensor = stream.empty(DType::F32, &[4]).expect("memory");
    stream.run((tensor.of_mut::<f32>(),), move |(all,)| all.fill(value)).expect("a host stream");
    tensor.freeze()
}

/// Makes a new tensor from another on the stream, as a stage of a chain does.
fn add_one(stream: &DeviceStream, from: &Tensor) -> Result<Tensor, TensorError> {
    let mut to = stream.empty(DType::F32, &[4])?;
    stream.run((from.of::<f32>(), to.of_mut::<f32>()), |(from, to)| {
        to.iter_mut().zip(from).for_each(|(to, from)| *to = from + 1.0);
    })?;
    Ok(to.freeze())
}

/// Adds `from` to `sum`, in place.
fn add_to(stream: &DeviceStream, sum: &mut TensorMut, from: &Tensor) -> Result<(), TensorError> {
    // The written tensor is named first, and the later one in the same call must be ordered too.
    stream.run((sum.of_mut::<f32>(), from.of::<f32>()), |(sum, from)| {
        sum.iter_mut().zip(from).for_each(|(sum, from)| *sum += from);
    })
}

#[track_caller]
fn is_lost<T: std::fmt::Debug>(result: Result<T, TensorError>, cluster: &Cluster, dead: usize) {
    match result {
        Err(TensorError::Tainted { by }) => assert_eq!(by, cluster.process(dead)),
        other => panic!("not an error that names the dead: {other:?}"),
    }
}

#[track_caller]
fn is_good(tensor: &Tensor, value: f32) {
    assert_eq!(tensor.to_vec::<f32>().expect("it does not depend on the dead"), [value; 4]);
}

/// The mailbox of each process.
type Inboxes = Vec<(Target<Tensor>, Arc<TestInbox<Tensor>>)>;

fn cluster(n: usize) -> (Cluster, Inboxes) {
    let cluster = Cluster::new(n);
    cluster.connect();
    let inboxes = (0..n).map(|i| cluster.inbox::<Tensor>(i, 64)).collect();
    (cluster, inboxes)
}

/// Sends `tensor` from one process to another, and takes it out there.
fn pass(cluster: &Cluster, inboxes: &Inboxes, from: usize, to: usize, tensor: Tensor) -> Tensor {
    cluster.send(from, &inboxes[to].0, tensor);
    cluster.run_until_idle();
    inboxes[to].1.take_one().message
}

/// DEATH-3: a reader is told when the writer of the data dies meanwhile, and gets none of the memory's bytes.
#[test]
fn who_downloads_what_dies_meanwhile_is_told() {
    type Read = fn(&DeviceStream, &Tensor) -> Result<(), TensorError>;
    let reads: [Read; 2] = [
        |stream, tensor| stream.download::<f32>(tensor).map(drop),
        |stream, tensor| stream.download_bytes(tensor).map(drop),
    ];
    for read in reads {
        let (cluster, inboxes) = cluster(2);
        let _gate = Gate::close(cluster.stream(0));
        let tensor = pass(&cluster, &inboxes, 0, 1, fill(cluster.stream(0), 5.0));
        let stream = cluster.stream(1);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| read(stream, &tensor));
            let begun = Instant::now();
            while stream.waits().0 == 0 {
                assert!(begun.elapsed() < Duration::from_secs(20), "nobody waits");
                std::thread::yield_now();
            }
            cluster.end(0);
            cluster.run_until_idle();
            is_lost(reader.join().expect("no panic"), &cluster, 0);
        });
    }
}

/// A chain of four: the first dies with its work undone, and all others have work queued behind it.
#[test]
fn taint_goes_down_a_chain_before_anybody_is_released() {
    let (cluster, inboxes) = cluster(4);
    let mut good = vec![pass(&cluster, &inboxes, 0, 1, fill(cluster.stream(0), 1.0))];
    for i in 1..4 {
        let made = add_one(cluster.stream(i), &good[i - 1]).expect("nobody has died");
        good.push(if i < 3 { pass(&cluster, &inboxes, i, i + 1, made) } else { made });
    }
    // Work that was done before the death stays good. Streams are threads, which may not have run yet.
    good.iter().zip(1..).for_each(|(tensor, value)| is_good(tensor, value as f32));
    let gate = Gate::close(cluster.stream(0));
    let mut at = pass(&cluster, &inboxes, 0, 1, fill(cluster.stream(0), 5.0));
    let mut lost = vec![at.clone()];
    for i in 1..4 {
        let made = add_one(cluster.stream(i), &at).expect("nobody has died");
        assert_eq!(made.status(), TensorStatus::Pending);
        lost.push(made.clone());
        if i < 3 {
            at = pass(&cluster, &inboxes, i, i + 1, made);
            lost.push(at.clone());
        }
    }
    let begin = Instant::now();
    cluster.end(0);
    cluster.run_until_idle();
    println!("marked and released after {:?}", begin.elapsed());
    for tensor in &lost {
        assert_eq!(tensor.status(), TensorStatus::Tainted { by: cluster.process(0) });
        is_lost(tensor.to_vec::<f32>(), &cluster, 0);
    }
    for i in 1..4 {
        // The tensors that came to this process.
        let (stream, came) = (cluster.stream(i), &lost[2 * (i - 1)]);
        // DEATH-1: no stream waits for ever.
        stream.synchronize().expect("the stream goes on");
        is_lost(stream.download::<f32>(came), &cluster, 0);
        is_lost(add_one(stream, came), &cluster, 0);
        is_lost(stream.copy(came), &cluster, 0);
        is_lost(
            came.clone().into_mut(stream).map_err(|_| TensorError::Tainted { by: cluster.process(0) }),
            &cluster,
            0,
        );
    }
    for (i, tensor) in good.iter().enumerate() {
        assert_eq!(tensor.status(), TensorStatus::Ready);
        is_good(tensor, i as f32 + 1.0);
    }
    drop(gate);
}

/// DEATH-2: a stream that was marked goes on, and its later work is good.
#[test]
fn a_marked_stream_loses_what_it_had_and_nothing_else() {
    let (cluster, inboxes) = cluster(3);
    let stream = cluster.stream(1);
    let before = pass(&cluster, &inboxes, 2, 1, fill(cluster.stream(2), 1.0));
    let made_before = add_one(stream, &before).expect("nobody has died");
    let gate = Gate::close(cluster.stream(0));
    let lost = pass(&cluster, &inboxes, 0, 1, fill(cluster.stream(0), 5.0));
    let lost = add_one(stream, &lost).expect("nobody has died");
    cluster.end(0);
    cluster.run_until_idle();
    is_lost(lost.to_vec::<f32>(), &cluster, 0);
    is_good(&made_before, 2.0);
    // The first result may have been under way when the stream was marked, and is given up. The next one is
    // not.
    let _first = add_one(stream, &before).expect("a good tensor");
    for round in 0..3 {
        let made = add_one(stream, &before).expect("a good tensor");
        let made = pass(&cluster, &inboxes, 1, 2, made);
        is_good(&add_one(cluster.stream(2), &made).expect("a good tensor"), 3.0);
        assert_eq!(made.status(), TensorStatus::Ready, "round {round}");
    }
    drop(gate);
}

/// Nobody waits for a ticket of a tensor that never left its stream.
#[test]
fn an_accumulator_is_lost_with_what_was_added_to_it() {
    let (cluster, inboxes) = cluster(3);
    let stream = cluster.stream(1);
    let other = stream.with_new_stream().expect("a stream");
    let [mut sum, mut apart, mut early] = [(); 3].map(|()| stream.zeros(DType::F32, &[4]).expect("memory"));
    let good = pass(&cluster, &inboxes, 2, 1, fill(cluster.stream(2), 1.0));
    add_to(stream, &mut sum, &good).expect("good");
    add_to(stream, &mut early, &good).expect("good");
    add_to(&other, &mut apart, &good).expect("good");
    let early = early.freeze();
    let gate = Gate::close(cluster.stream(0));
    let lost = pass(&cluster, &inboxes, 0, 1, fill(cluster.stream(0), 5.0));
    add_to(stream, &mut sum, &lost).expect("nobody has died");
    cluster.end(0);
    cluster.run_until_idle();
    assert_eq!(sum.status(), TensorStatus::Tainted { by: cluster.process(0) });
    for _ in 0..3 {
        // The sum stays tainted, whatever the stream does meanwhile.
        is_good(&add_one(&other, &good).expect("good"), 2.0);
        is_lost(add_to(stream, &mut sum, &good), &cluster, 0);
        is_lost(sum.as_slice::<f32>().map(<[f32]>::to_vec), &cluster, 0);
        is_lost(sum.as_mut_slice::<f32>().map(|all| all.to_vec()), &cluster, 0);
    }
    let sum = sum.freeze();
    is_lost(sum.to_vec::<f32>(), &cluster, 0);
    let (_, why) = cluster.try_send(1, &inboxes[2].0, sum).expect_err("it is tainted");
    println!("{why:?}");
    is_good(&early, 1.0);
    add_to(&other, &mut apart, &good).expect("another stream");
    is_good(&apart.freeze(), 2.0);
    drop(gate);
}

/// A tensor that was on its way when its writer died arrives later, and is found tainted.
#[test]
fn a_late_delivery_is_tainted_and_an_earlier_good_one_is_not() {
    let (cluster, inboxes) = cluster(4);
    let good = fill(cluster.stream(0), 1.0);
    is_good(&good, 1.0);
    cluster.send(0, &inboxes[1].0, good);
    // A handed-over tensor is ready when the giver's last use is over, one clock value later. The stream that
    // advances the clock is a thread, so the test waits for it.
    cluster.stream(0).synchronize().expect("nobody has died");
    let gate = Gate::close(cluster.stream(0));
    cluster.send(0, &inboxes[1].0, fill(cluster.stream(0), 5.0));
    cluster.end(0);
    // The receiver had read nothing before the death.
    cluster.run_until_idle();
    let [first, second] = <[_; 2]>::try_from(inboxes[1].1.take()).expect("both arrive");
    is_good(&first.message, 1.0);
    is_lost(second.message.to_vec::<f32>(), &cluster, 0);
    // A process that had no link with the dead gets its memory from a third process. The certificate tells it
    // whether the data is good.
    let forwarded = pass(&cluster, &inboxes, 1, 3, first.message);
    is_good(&forwarded, 1.0);
    assert!(cluster.try_send(1, &inboxes[3].0, second.message).is_err(), "it is not sent on");
    drop(gate);
}

/// The ticket of a forwarded tensor is that of its writer, whichever process forwards it.
#[test]
fn a_forwarded_tensor_is_tainted_wherever_it_is() {
    let (cluster, inboxes) = cluster(4);
    let gate = Gate::close(cluster.stream(0));
    let at_1 = pass(&cluster, &inboxes, 0, 1, fill(cluster.stream(0), 5.0));
    let at_2 = pass(&cluster, &inboxes, 1, 2, at_1.clone());
    let at_3 = pass(&cluster, &inboxes, 2, 3, at_2.clone());
    let made = add_one(cluster.stream(3), &at_3).expect("nobody has died");
    // Another copy is on its way when the writer dies.
    cluster.send(2, &inboxes[3].0, at_2.clone());
    cluster.end(0);
    cluster.run_until_idle();
    let late = inboxes[3].1.take_one().message;
    for tensor in [at_1, at_2, at_3, made, late] {
        is_lost(tensor.to_vec::<f32>(), &cluster, 0);
    }
    drop(gate);
}

/// LEASE-4: a process that joined after the owner had ended was not told of that end. It only knows that it
/// has a link to a later life.
#[test]
fn memory_of_an_earlier_life_is_taken_once_the_next_is_there() {
    let (mut cluster, inboxes) = cluster(3);
    let at_1 = pass(&cluster, &inboxes, 0, 1, fill(cluster.stream(0), 5.0));
    is_good(&at_1, 5.0);
    cluster.end(0);
    cluster.end(2);
    cluster.run_until_idle();
    let (next, late) = (cluster.revive(0), cluster.revive(2));
    let (to, inbox) = cluster.inbox::<Tensor>(late, 8);
    // The owner's half of the link waits, so the link stays as it is.
    cluster.stop(next);
    cluster.begin_link(late, next);
    cluster.begin_link(1, late);
    cluster.run_node_until_idle();
    cluster.send(1, &to, at_1);
    for _ in 0..4 {
        // The process asks for the chunk first.
        cluster.poll(late);
        cluster.run_node_until_idle();
    }
    assert!(inbox.is_empty(), "that the owner has ended is not known yet");
    cluster.go_on(next);
    cluster.run_until_idle();
    assert_eq!(cluster.transport(late).stats().rejected, 0);
    is_good(&inbox.take_one().message, 5.0);
}

/// LEASE-1: an owner that was given up here counts no lease of this process, and may write its memory again
/// at any time.
#[test]
fn memory_of_one_that_was_given_up_is_refused() {
    let (cluster, inboxes) = cluster(3);
    let at_1 = pass(&cluster, &inboxes, 0, 1, fill(cluster.stream(0), 5.0));
    is_good(&at_1, 5.0);
    // The receiver has the chunk.
    is_good(&pass(&cluster, &inboxes, 1, 2, at_1.clone()), 5.0);
    // The owner sends it more messages than it has room for, which is the owner's fault.
    let (numbers, _taken) = cluster.inbox::<u32>(2, 2);
    let (tell, frame) = channel();
    cluster.tamper_next(0, 2, move |bytes| tell.send(bytes.clone()).expect("the test lives"));
    cluster.send(0, &numbers, 1);
    let mut frame = frame.recv().expect("it was written");
    // The frame is written again, so it gets the sequence number of that second time.
    forge::reseal(&mut frame);
    for _ in 0..5 {
        assert!(cluster.forge_frame(0, 2, &frame));
    }
    cluster.run_until_idle();
    assert!(cluster.gave_up(2, 0));
    let rejected = || cluster.transport(2).stats().rejected;
    let before = rejected();
    cluster.send(1, &inboxes[2].0, at_1);
    cluster.run_until_idle();
    assert!(inboxes[2].1.is_empty());
    assert_eq!(rejected(), before + 1);
    assert_eq!(cluster.leases(0), 0, "it is given back all the same");
    assert!(!cluster.gave_up(2, 1), "its sender has done nothing wrong");
}

/// Two processes die at once, one of them in the middle of marking the taint that follows from the other.
#[test]
fn two_deaths_are_two_certificates() {
    for second in [1, 2] {
        let (cluster, inboxes) = cluster(4);
        let gates = [0, second].map(|i| Gate::close(cluster.stream(i)));
        let from_first = pass(&cluster, &inboxes, 0, 3, fill(cluster.stream(0), 5.0));
        let from_second = pass(&cluster, &inboxes, second, 3, fill(cluster.stream(second), 6.0));
        let by_first = add_one(cluster.stream(3), &from_first).expect("nobody has died");
        let other = cluster.stream(3).with_new_stream().expect("a stream");
        let by_second = add_one(&other, &from_second).expect("nobody has died");
        // The second process does not take the first round in.
        cluster.stop(second);
        cluster.end(0);
        assert_eq!(by_second.status(), TensorStatus::Pending);
        assert_eq!(by_first.status(), TensorStatus::Tainted { by: cluster.process(0) }, "told, not released");
        assert!(!cluster.transport(3).domain().passed(&from_first.ready().expect("pending")).expect("known"));
        cluster.end(second);
        cluster.run_until_idle();
        is_lost(by_first.to_vec::<f32>(), &cluster, 0);
        is_lost(by_second.to_vec::<f32>(), &cluster, second);
        other.synchronize().expect("released");
        cluster.stream(3).synchronize().expect("released");
        drop(gates);
    }
}

/// DEATH-3: a certificate comes before the news that its process has ended, even while the round of another
/// death is on. Here a stopped process holds that round up, and a message between two live processes names a
/// clock of the second dead process.
#[test]
fn a_death_in_the_round_of_another_loses_no_message_between_the_living() {
    let cluster = Cluster::new(5);
    let inboxes: Inboxes = (0..5).map(|i| cluster.inbox::<Tensor>(i, 64)).collect();
    let (dead, from, to, first, stopped) = (0, 1, 2, 3, 4);
    let gate = Gate::close(cluster.stream(dead));
    let tensor = pass(&cluster, &inboxes, dead, from, fill(cluster.stream(dead), 5.0));
    // The link exists, and its receiver knows nothing of the writer.
    drop(pass(&cluster, &inboxes, from, to, fill(cluster.stream(from), 1.0)));
    let kept = tensor.clone();
    cluster.send(from, &inboxes[to].0, tensor);
    gate.open();
    cluster.stream(dead).synchronize().expect("its work is done");
    cluster.stop(stopped);
    cluster.end(first);
    cluster.end(dead);
    for _ in 0..4 {
        for i in [from, to] {
            cluster.poll(i);
        }
        cluster.run_node_until_idle();
    }
    let got = inboxes[to].1.take();
    assert_eq!(got.len(), 1, "{:?}", cluster.transport(to).stats());
    is_good(&got[0].message, 5.0);
    is_good(&kept, 5.0);
    cluster.go_on(stopped);
    cluster.run_until_idle();
    is_good(&got[0].message, 5.0);
}

/// A stopped third process keeps nobody waiting, is not believed meanwhile, and believes nothing itself.
#[test]
fn a_stopped_process_holds_nobody_up_and_is_believed_again() {
    let (cluster, inboxes) = cluster(4);
    let good = pass(&cluster, &inboxes, 1, 2, fill(cluster.stream(1), 1.0));
    is_good(&good, 1.0);
    let gate = Gate::close(cluster.stream(0));
    // 1 waits for 0, and 2 for 1. 2 does not know of 0.
    let at_1 = pass(&cluster, &inboxes, 0, 1, fill(cluster.stream(0), 5.0));
    let at_2 = pass(&cluster, &inboxes, 1, 2, add_one(cluster.stream(1), &at_1).expect("nobody has died"));
    let made = add_one(cluster.stream(2), &at_2).expect("nobody has died");
    let at_3 = pass(&cluster, &inboxes, 2, 3, made.clone());
    // 2 also has other work, unrelated to the death.
    let second = cluster.stream(2).with_new_stream().expect("a stream");
    let slow = Gate::close(&second);
    let apart = pass(&cluster, &inboxes, 2, 3, add_one(&second, &good).expect("nobody has died"));
    cluster.stop(2);
    cluster.end(0);
    assert!(
        !cluster.transport(3).domain().passed(&at_3.ready().expect("pending")).expect("known"),
        "it waits"
    );
    cluster.overdue();
    is_lost(at_1.to_vec::<f32>(), &cluster, 0);
    // Values that 2 had not reached by then are not believed.
    is_lost(at_3.to_vec::<f32>(), &cluster, 0);
    is_lost(apart.to_vec::<f32>(), &cluster, 0);
    // 0 is released, so 1 and then 2 run on. 2 has not been told of the death, but it sees that it is behind.
    cluster.stream(1).synchronize().expect("released");
    cluster.stream(2).synchronize().expect("released");
    for tensor in [&at_2, &made] {
        let soon = Some(Instant::now() + Duration::from_millis(20));
        assert!(matches!(tensor.wait(soon), Err(TensorError::TimedOut)), "it must not be believed");
        assert_eq!(tensor.status(), TensorStatus::Pending);
    }
    cluster.go_on(2);
    cluster.run_until_idle();
    for tensor in [&at_2, &made, &at_3] {
        is_lost(tensor.to_vec::<f32>(), &cluster, 0);
    }
    slow.open();
    is_good(&apart, 2.0);
    drop(gate);
}

/// A process that joins after a death knows as much as those that were there.
#[test]
fn streams_of_one_process_that_wait_for_each_other_are_marked_together() {
    let (cluster, inboxes) = cluster(2);
    let gate = Gate::close(cluster.stream(0));
    let lost = pass(&cluster, &inboxes, 0, 1, fill(cluster.stream(0), 5.0));
    let streams: Vec<DeviceStream> =
        (0..4).map(|_| cluster.stream(1).with_new_stream().expect("a stream")).collect();
    let mut made = vec![lost];
    // The streams go against the order of the clocks, so that one look at each is not enough.
    for stream in streams.iter().rev() {
        let next = add_one(stream, made.last().expect("one at least")).expect("nobody has died");
        made.push(next);
    }
    let unrelated = cluster.stream(1).with_new_stream().expect("a stream");
    let apart = fill(&unrelated, 3.0);
    drop(streams);
    cluster.end(0);
    cluster.run_until_idle();
    for tensor in &made {
        is_lost(tensor.to_vec::<f32>(), &cluster, 0);
    }
    is_good(&apart, 3.0);
    drop(gate);
}

/// An ask whose answer depends on the dead ends with an error that names it.
#[test]
fn an_ask_is_told_that_the_answer_is_lost() {
    let (cluster, inboxes) = cluster(3);
    let gate = Gate::close(cluster.stream(0));
    let lost = pass(&cluster, &inboxes, 0, 1, fill(cluster.stream(0), 5.0));
    let sent_before = cluster.ask::<Tensor, Tensor>(2, &inboxes[1].0, fill(cluster.stream(2), 1.0));
    let sent_after = cluster.ask::<Tensor, Tensor>(2, &inboxes[1].0, fill(cluster.stream(2), 1.0));
    cluster.run_until_idle();
    let [first, second] = <[_; 2]>::try_from(inboxes[1].1.take()).expect("both arrive");
    let made = add_one(cluster.stream(1), &lost).expect("nobody has died");
    // The first reply is tainted on its way, and the second is refused when it is to be sent.
    first.receipt.reply(made.clone());
    cluster.end(0);
    second.receipt.reply(made);
    cluster.run_until_idle();
    for asked in [sent_before, sent_after] {
        let failure = asked.take().expect("an ask always ends").expect_err("the answer is lost");
        assert!(failure.to_string().contains(&cluster.process(0).to_string()), "{failure}");
    }
    drop(gate);
}
