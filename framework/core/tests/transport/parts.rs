//! Split tensors: several processes write one tensor, each its own elements, and it becomes whole again
//! without a copy (ONE-WRITER, CLOCK-1, CLOCK-2, LEASE-2, LEASE-4). Forged parts are in `frames/parts.rs`.

use std::sync::Arc;
use std::sync::mpsc::channel;

use serde::{Deserialize, Serialize};
use tensorpost_core::tensor::part::{JoinReason, SplitReason};
use tensorpost_core::tensor::{DType, DeviceStream, TensorMut, TensorPart};
use tensorpost_core::testing::{Cluster, Target, TestInbox};

type Parts = (Target<Vec<TensorPart>>, Arc<TestInbox<Vec<TensorPart>>>);

fn inboxes<const N: usize>(cluster: &Cluster) -> [Parts; N] {
    cluster.connect();
    std::array::from_fn(|i| cluster.inbox(i, 8))
}

/// Makes a matrix of the numbers from 0, in the first process's memory.
fn matrix(cluster: &Cluster, rows: usize, columns: usize) -> TensorMut {
    let numbers: Vec<f32> = (0..rows * columns).map(|number| number as f32).collect();
    cluster.stream(0).from_slice(&[rows, columns], &numbers).expect("memory")
}

/// Adds `what` to every element, on the stream.
fn add(part: &mut TensorPart, stream: &DeviceStream, what: f32) {
    stream
        .run((part.of_mut::<f32>(),), move |(mut part,)| {
            part.runs_mut().flatten().for_each(|element| *element += what);
        })
        .expect("a host stream");
}

/// Lets three processes add 100, 200 and 300 to the parts that they get in turn, and joins the tensor in the
/// first.
fn round_trip(split: impl Fn(TensorMut) -> Vec<TensorPart>) -> Vec<f32> {
    let cluster = Cluster::new(4);
    let [(home, at_home), workers @ ..] = inboxes::<4>(&cluster);
    let whole = matrix(&cluster, 4, 6);
    let (id, layout) = (whole.lease().id(), *whole.layout());
    let parts = split(whole);
    for (part, (to, _)) in parts.into_iter().zip(workers.iter().cycle()) {
        cluster.send(0, to, vec![part]);
    }
    cluster.run_until_idle();
    for (worker, (_, inbox)) in (1..).zip(&workers) {
        for received in inbox.take() {
            let mut parts = received.message;
            parts.iter_mut().for_each(|part| add(part, cluster.stream(worker), 100.0 * worker as f32));
            cluster.send(worker, &home, parts);
        }
    }
    cluster.run_until_idle();
    let mut back: Vec<TensorPart> = at_home.take().into_iter().flat_map(|parts| parts.message).collect();
    back.reverse(); // the order does not matter
    let mut whole = TensorMut::join(back, cluster.stream(0)).expect("all of them");
    assert_eq!((whole.lease().id(), *whole.layout()), (id, layout), "the same memory");
    let written = whole.as_mut_slice::<f32>().expect("on the host").to_vec();

    // The process owns the whole exclusively at once: it can freeze it and make it writable again.
    let whole = whole.freeze().into_mut(cluster.stream(0)).expect("nobody else has it");
    drop(whole);
    cluster.run_until_idle();
    assert_eq!(cluster.leases(0), 0);
    written
}

#[test]
fn three_processes_write_columns_rows_and_tiles_of_one_tensor() {
    let expected = |worker: fn(usize, usize) -> usize| -> Vec<f32> {
        (0..24).map(|at| at as f32 + 100.0 * worker(at / 6, at % 6) as f32).collect()
    };
    let columns = round_trip(|whole| whole.split(1, &[1, 2, 3]).expect("six columns"));
    assert_eq!(columns, expected(|_, column| [1, 2, 2, 3, 3, 3][column]));
    let rows = round_trip(|whole| whole.split(0, &[2, 1, 1]).expect("four rows"));
    assert_eq!(rows, expected(|row, _| [1, 1, 2, 3][row]));
    let even = round_trip(|whole| whole.split_evenly(0, 3).expect("four rows"));
    assert_eq!(even, rows);
    let tiles = round_trip(|whole| whole.split_tiles(&[3, 4]).expect("a grid of four"));
    assert_eq!(tiles, expected(|row, column| [[1, 2], [3, 1]][row / 3][column / 4]));
}

#[test]
fn parts_know_where_they_are() {
    let cluster = Cluster::new(1);
    let tiles = matrix(&cluster, 4, 6).split_tiles(&[3, 4]).expect("a grid");
    let place = |tile: &TensorPart| (tile.index(), tile.count(), tile.start(), tile.shape().to_vec());
    assert_eq!(
        tiles.iter().map(place).collect::<Vec<_>>(),
        [
            (0, 4, vec![0, 0], vec![3, 4]),
            (1, 4, vec![0, 4], vec![3, 2]),
            (2, 4, vec![3, 0], vec![1, 4]),
            (3, 4, vec![3, 4], vec![1, 2]),
        ]
    );
    assert_eq!(format!("{:?}", tiles[1]), "TensorPart(1 of 4: f32 [3, 2] at [0, 4] on host)");
    assert_eq!((tiles[1].whole_shape(), tiles[1].strides()), (&[4, 6][..], &[6, 1][..]));
}

#[test]
fn a_part_on_the_host_is_seen_in_every_way() {
    let cluster = Cluster::new(1);
    let mut parts = matrix(&cluster, 3, 4).split(1, &[1, 3]).expect("columns");
    assert_eq!(parts[1].to_vec::<f32>().expect("data"), [1.0, 2.0, 3.0, 5.0, 6.0, 7.0, 9.0, 10.0, 11.0]);
    parts[0].copy_from_slice(&[-1.0_f32, -2.0, -3.0]).expect("three rows");
    assert!(parts[0].copy_from_slice(&[0.0_f32; 4]).is_err());
    assert!(parts[0].to_vec::<u8>().is_err(), "another dtype");
    let mut view = parts[1].elements_mut::<f32>().expect("data");
    assert_eq!(view.runs_mut().map(|run| run.len()).collect::<Vec<_>>(), [3, 3, 3]);
    *view.get_mut(&[2, 1]).expect("in range") = 0.5;
    assert!(view.get_mut(&[3, 0]).is_none() && view.get_mut(&[0]).is_none());
    let mut array = parts[1].view_array_mut::<f32>().expect("data");
    assert_eq!((array.shape(), array.strides(), array[[2, 1]]), (&[3, 3][..], &[4, 1][..], 0.5));
    array[[0, 0]] = 8.0;
    let whole = TensorMut::join(parts, cluster.stream(0)).expect("both");
    let written = [-1.0, 8.0, 2.0, 3.0, -2.0, 5.0, 6.0, 7.0, -3.0, 9.0, 0.5, 11.0];
    assert_eq!(whole.freeze().to_vec::<f32>().expect("data"), written);
}

/// The joiner is neither the owner nor the process that split the tensor: any process that has all parts can
/// join.
#[test]
fn parts_travel_on_and_are_joined_where_they_meet() {
    let cluster = Cluster::new(3);
    let [(to_a, at_a), (to_b, at_b), (to_c, at_c)] = inboxes(&cluster);
    cluster.send(0, &to_b, matrix(&cluster, 2, 4).split(1, &[2, 2]).expect("columns"));
    cluster.run_until_idle();
    let mut parts = at_b.take_one().message;
    add(&mut parts[0], cluster.stream(1), 10.0);
    cluster.send(1, &to_c, vec![parts.pop().expect("two")]);
    cluster.run_until_idle();
    let mut second = at_c.take_one().message;
    add(&mut second[0], cluster.stream(2), 20.0);
    cluster.send(1, &to_c, parts);
    cluster.run_until_idle();
    second.extend(at_c.take_one().message);
    let mut whole = TensorMut::join(second, cluster.stream(2)).expect("both are here");
    let all = whole.as_mut_slice::<f32>().expect("on the host");
    assert_eq!(all, [10.0, 11.0, 22.0, 23.0, 14.0, 15.0, 26.0, 27.0]);

    // The joiner may split it again in another way, and may also give it away as a whole.
    let parts = whole.split_evenly(0, 2).expect("rows");
    let whole = TensorMut::join(parts, cluster.stream(2)).expect("both");
    let (back, at_home) = cluster.inbox(0, 8);
    cluster.send(2, &back, whole.freeze());
    cluster.run_until_idle();
    let whole = at_home.take_one().message.into_mut(cluster.stream(0)).expect("handed over");
    drop((whole, to_a, at_a));
    cluster.run_until_idle();
    assert_eq!(cluster.leases(0), 0);
}

#[test]
fn a_join_says_what_is_missing_or_foreign_and_gives_the_parts_back() {
    let cluster = Cluster::new(1);
    let stream = cluster.stream(0);
    let mut parts = matrix(&cluster, 4, 4).split_evenly(1, 4).expect("columns");
    drop(parts.remove(2));
    drop(parts.remove(0));
    let error = TensorMut::join(parts, stream).unwrap_err();
    assert!(error.to_string().contains("of 4 parts, number [0, 2] is missing"), "{error}");
    assert!(matches!(&error.why, JoinReason::Missing { missing, count: 4 } if *missing == [0, 2]));
    let mut parts = error.parts;
    assert_eq!(parts.iter().map(TensorPart::index).collect::<Vec<_>>(), [1, 3]);

    parts.extend(matrix(&cluster, 4, 4).split_evenly(1, 4).expect("columns"));
    let error = TensorMut::join(parts, stream).unwrap_err();
    assert!(matches!(error.why, JoinReason::Foreign { position: 2 }), "{error}");

    // An earlier split of the same memory is a different split.
    let old = TensorMut::join(error.parts.into_iter().skip(2), stream).expect("those four");
    let halves = old.split_evenly(0, 2).expect("rows");
    assert!(matches!(TensorMut::join(Vec::new(), stream).unwrap_err().why, JoinReason::Nothing));
    drop(halves);
    assert_eq!(cluster.leases(0), 0, "parts that are gone leave nothing behind");
}

#[test]
fn what_cannot_be_split_comes_back() {
    let cluster = Cluster::new(1);
    type Split = fn(TensorMut) -> Result<Vec<TensorPart>, tensorpost_core::tensor::SplitError>;
    type Expected = fn(&SplitReason) -> bool;
    let refusals: [(Split, Expected); 8] = [
        (|t| t.split(1, &[2, 3]), |why| matches!(why, SplitReason::Sum { axis: 1, extent: 6, sum: 5 })),
        (|t| t.split(1, &[usize::MAX, 2]), |why| matches!(why, SplitReason::Sum { .. })),
        (|t| t.split(1, &[0, 6]), |why| matches!(why, SplitReason::Empty { axis: 1, part: 0 })),
        (|t| t.split(2, &[1]), |why| matches!(why, SplitReason::Layout(_))),
        (|t| t.split_evenly(0, 5), |why| matches!(why, SplitReason::Layout(_))),
        (|t| t.split_tiles(&[4]), |why| matches!(why, SplitReason::Rank { rank: 2, given: 1 })),
        (|t| t.split_tiles(&[4, 0]), |why| matches!(why, SplitReason::Empty { axis: 1, .. })),
        (|t| t.split(0, &[]), |why| matches!(why, SplitReason::Sum { sum: 0, .. })),
    ];
    let mut whole = matrix(&cluster, 4, 6);
    for (split, expected) in refusals {
        let error = split(whole).unwrap_err();
        assert!(expected(&error.why), "{error}");
        whole = *error.tensor;
    }
    let stream = cluster.stream(0);
    let many = stream.zeros(DType::U8, &[1025]).expect("memory").split_tiles(&[1]).unwrap_err();
    assert!(matches!(many.why, SplitReason::TooMany { parts: 1025 }));
    let nothing = stream.zeros(DType::U8, &[0, 4]).expect("memory").split_evenly(1, 2).unwrap_err();
    assert!(matches!(nothing.why, SplitReason::Empty { axis: 0, .. }));
    // A scalar has one part.
    let one = stream.zeros(DType::U8, &[]).expect("memory").split_tiles(&[]).expect("one tile");
    assert_eq!((one.len(), TensorMut::join(one, stream).expect("it").len()), (1, 1));
}

/// CLOCK-1 on the way out and on the way back: no host thread waits, and nobody sees an element too early.
#[test]
fn writers_and_the_join_wait_for_who_had_the_part_before() {
    let cluster = Cluster::new(2);
    let [(home, at_home), (to_b, at_b)] = inboxes(&cluster);
    let mut parts = matrix(&cluster, 2, 2).split_evenly(1, 2).expect("columns");
    let (open_a, gate_a) = channel::<()>();
    let (open_b, gate_b) = channel::<()>();
    cluster
        .stream(0)
        .run((parts[1].of_mut::<f32>(),), move |(mut part,)| {
            gate_a.recv().expect("the test lives");
            part.fill(1.0);
        })
        .expect("a host stream");
    cluster.send(0, &to_b, vec![parts.pop().expect("two")]);
    cluster.run_until_idle();
    let mut received = at_b.take_one().message;
    cluster
        .stream(1)
        .run((received[0].of_mut::<f32>(),), move |(mut part,)| {
            gate_b.recv().expect("the test lives");
            part.runs_mut().flatten().for_each(|element| *element *= 7.0);
        })
        .expect("a host stream");
    cluster.send(1, &home, received);
    cluster.run_until_idle();
    parts.extend(at_home.take_one().message);
    // The join is on a stream of its own, so that only it can order the read.
    let stream = cluster.stream(0).with_new_stream().expect("a stream");
    let mut whole = TensorMut::join(parts, &stream).expect("both");
    stream
        .run((whole.of_mut::<f32>(),), |(all,)| all.iter_mut().for_each(|element| *element += 0.5))
        .expect("a host stream");
    let whole = whole.freeze();
    // Every stream has had its chance to run too early.
    open_b.send(()).expect("it waits");
    std::thread::yield_now();
    open_a.send(()).expect("it waits");
    assert_eq!(whole.to_vec::<f32>().expect("data"), [0.5, 7.5, 2.5, 7.5]);
}

/// A slow kernel on one part does not delay the holders of the others.
#[test]
fn a_part_waits_for_its_own_writers_only() {
    let cluster = Cluster::new(2);
    let [_, (to_b, at_b)] = inboxes(&cluster);
    let mut parts = matrix(&cluster, 2, 2).split_evenly(1, 2).expect("columns");
    let slow = cluster.stream(0).with_new_stream().expect("a stream");
    let (open, gate) = channel::<()>();
    slow.run((parts[0].of_mut::<f32>(),), move |_| gate.recv().expect("the test lives"))
        .expect("a host stream");
    cluster.send(0, &to_b, vec![parts.pop().expect("two")]);
    cluster.run_until_idle();
    let mut received = at_b.take_one();
    let waits_for: Vec<_> = received.tickets.iter().map(|ticket| (ticket.process, ticket.slot)).collect();
    assert_eq!(received.message[0].to_vec::<f32>().expect("data"), [1.0, 3.0], "{waits_for:?}");
    open.send(()).expect("it waits");
}

/// Different streams write the parts of one message. On the wire the parts have one lease, and one ticket for
/// all.
#[test]
fn parts_in_one_message_wait_for_the_writers_of_each() {
    let cluster = Cluster::new(3);
    let [_, (to_b, at_b), (to_c, at_c)] = inboxes(&cluster);
    let mut parts = matrix(&cluster, 2, 3).split_evenly(1, 3).expect("columns");
    let slow = [(); 2].map(|()| {
        let (open, gate) = channel::<()>();
        let stream = cluster.stream(0).with_new_stream().expect("a stream");
        (stream, open, gate)
    });
    let opens = slow.map(|(stream, open, gate)| {
        let mut part = parts.remove(0);
        stream
            .run((part.of_mut::<f32>(),), move |(mut part,)| {
                gate.recv().expect("the test lives");
                part.fill(-1.0);
            })
            .expect("a host stream");
        parts.push(part);
        open
    });
    cluster.send(0, &to_b, parts);
    cluster.run_until_idle();
    // A part that is used on the way waits for the writers of the others too, because the lease has one
    // ticket.
    let mut received = at_b.take_one().message;
    add(&mut received[0], cluster.stream(1), 10.0);
    cluster.send(1, &to_c, received);
    cluster.run_until_idle();
    let parts = at_c.take_one().message;
    let whole = TensorMut::join(parts, cluster.stream(2)).expect("all three").freeze();
    for open in opens {
        std::thread::yield_now();
        open.send(()).expect("it waits");
    }
    assert_eq!(whole.to_vec::<f32>().expect("data"), [-1.0, -1.0, 12.0, -1.0, -1.0, 15.0]);
}

/// LEASE-4: a part is lost with its process, the join says which, and the memory comes back.
#[test]
fn a_part_that_dies_with_its_process_is_missing_and_the_memory_returns() {
    let cluster = Cluster::new(3);
    let [(home, at_home), (to_b, at_b), (to_c, at_c)] = inboxes(&cluster);
    let mut parts = matrix(&cluster, 2, 6).split_evenly(1, 3).expect("columns");
    cluster.send(0, &to_c, vec![parts.remove(2)]);
    cluster.send(0, &to_b, vec![parts.remove(1)]);
    cluster.run_until_idle();
    let dead = at_c.take_one();
    cluster.end(2);
    cluster.send(1, &home, at_b.take_one().message);
    cluster.run_until_idle();
    parts.extend(at_home.take_one().message);
    let error = TensorMut::join(parts, cluster.stream(0)).unwrap_err();
    assert!(matches!(&error.why, JoinReason::Missing { missing, count: 3 } if *missing == [2]), "{error}");
    drop(error);
    cluster.run_until_idle();
    assert_eq!(cluster.leases(0), 0);
    drop(dead);
}

/// LEASE-2: a message with parts that nobody opens.
#[test]
fn parts_that_are_never_received_give_their_leases_back() {
    let cluster = Cluster::new(2);
    let [_, (to_b, at_b)] = inboxes(&cluster);
    cluster.send(0, &to_b, matrix(&cluster, 2, 6).split_evenly(1, 3).expect("columns"));
    cluster.run_until_idle();
    drop(at_b.take_one());
    // The receiver expects another type for one of the messages.
    let parts = matrix(&cluster, 2, 6).split_evenly(1, 3).expect("columns");
    cluster.send(0, &to_b.disguising::<(u8, Vec<TensorPart>)>(), (7, parts));
    cluster.run_until_idle();
    assert_eq!((at_b.len(), at_b.refused().len()), (0, 1));
    assert_eq!(cluster.leases(0), 0);
}

/// A part of which the message keeps a second handle.
struct Shared(Arc<TensorPart>);

impl Serialize for Shared {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

/// ONE-WRITER: a sender that keeps a part has not given it away, and the receiver gets none.
#[test]
fn a_part_that_was_kept_is_refused_where_it_was_sent() {
    let cluster = Cluster::new(2);
    cluster.connect();
    let (to_b, at_b) = cluster.inbox::<TensorPart>(1, 8);
    let parts = matrix(&cluster, 2, 2).split_evenly(1, 2).expect("columns");
    let [first, second] = <[TensorPart; 2]>::try_from(parts).expect("two");
    let kept = Arc::new(second);
    cluster.send(0, &to_b.disguising(), Shared(Arc::clone(&kept)));
    cluster.run_until_idle();
    assert!(at_b.is_empty() && at_b.refused()[0].contains("kept a handle"), "{:?}", at_b.refused());
    let second = Arc::into_inner(kept).expect("the message is gone");
    let whole = TensorMut::join([second, first], cluster.stream(0)).expect("it is still here");
    drop(whole);
    cluster.run_until_idle();
    assert_eq!(cluster.leases(0), 0);
}

#[derive(Serialize)]
struct Twice<'p>(&'p TensorPart, &'p TensorPart);

#[test]
fn a_part_is_in_a_message_once_and_outside_of_one_never() {
    let cluster = Cluster::new(2);
    cluster.connect();
    let (to_b, _at_b) = cluster.inbox::<TensorPart>(1, 8);
    let parts = matrix(&cluster, 2, 2).split_evenly(1, 1).expect("one");
    let (_, unsent) = cluster.try_send(0, &to_b.disguising(), Twice(&parts[0], &parts[0])).unwrap_err();
    assert!(format!("{unsent:?}").contains("twice"), "{unsent:?}");
    let error = rmp_serde::to_vec(&parts[0]).unwrap_err();
    assert!(error.to_string().contains("part of a message"), "{error}");
}

/// Serde reads such a value several times.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Either {
    Several { part: TensorPart, others: Vec<TensorPart> },
    One { part: TensorPart },
}

#[test]
fn a_part_may_be_in_an_untagged_enum() {
    let cluster = Cluster::new(2);
    cluster.connect();
    let (to_b, at_b) = cluster.inbox::<Either>(1, 8);
    let mut parts = matrix(&cluster, 2, 3).split_evenly(1, 3).expect("columns");
    let part = parts.pop().expect("three");
    cluster.send(0, &to_b, Either::One { part });
    let part = parts.pop().expect("two");
    cluster.send(0, &to_b, Either::Several { part, others: parts });
    cluster.run_until_idle();
    let received: Vec<Vec<TensorPart>> = at_b
        .take()
        .into_iter()
        .map(|received| match received.message {
            Either::One { part } => vec![part],
            Either::Several { part, mut others } => {
                others.push(part);
                others
            }
        })
        .collect();
    assert_eq!(received.iter().map(Vec::len).collect::<Vec<_>>(), [1, 2]);
    TensorMut::join(received.into_iter().flatten(), cluster.stream(1)).expect("all three");
}
