//! One tensor that several processes write, each its own part.

use tensorpost::prelude::*;
use tensorpost::tensor::JoinReason;
use tensorpost_tests::cases;
use tensorpost_tests::gate::{Door, Gate};
use tensorpost_tests::harness::{Builder, Case};
use tensorpost_tests::wait::{ask, until_free};

/// "Add this to every element of your part." The part comes back.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = TensorPart)]
struct Add {
    #[tensor(dtype = u64, shape = [_, _])]
    part: TensorPart,
    what: u64,
    /// How often.
    times: usize,
}

/// "Add one to every element of your part, behind this door." The part comes back before that is done.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = TensorPart)]
struct AddLate {
    part: TensorPart,
    door: Option<Door>,
}

/// "Take these and never give them back."
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = usize)]
struct Keep(Vec<TensorPart>);

/// "Join these, and give the whole back."
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Result<Tensor, String>)]
struct Join(Vec<TensorPart>);

struct Adder {
    stream: DeviceStream,
    kept: Vec<TensorPart>,
}

impl Actor for Adder {
    type Context = Context<Self>;
}

impl RemoteActor for Adder {
    type Args = ();

    fn create((): (), env: &Env) -> anyhow::Result<Self> {
        Ok(Adder { stream: env.stream(), kept: Vec::new() })
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Add>().message::<AddLate>().message::<Keep>().message::<Join>();
    }
}

impl Handler<Add> for Adder {
    type Result = MessageResult<Add>;

    fn handle(&mut self, add: Add, _: &mut Context<Self>) -> Self::Result {
        let Add { mut part, what, times } = add;
        for _ in 0..times {
            let kernel = move |(mut part,): (tensorpost::tensor::PartMut<'_, u64>,)| {
                part.runs_mut().flatten().for_each(|element| *element += what);
            };
            self.stream.run((part.of_mut::<u64>(),), kernel).expect("a host stream");
        }
        MessageResult(part)
    }
}

impl Handler<AddLate> for Adder {
    type Result = MessageResult<AddLate>;

    fn handle(&mut self, AddLate { mut part, door }: AddLate, _: &mut Context<Self>) -> Self::Result {
        let kernel = move |(mut part,): (tensorpost::tensor::PartMut<'_, u64>,)| {
            if let Some(door) = door {
                let _ = door.pass();
            }
            part.runs_mut().flatten().for_each(|element| *element += 1);
        };
        self.stream.run((part.of_mut::<u64>(),), kernel).expect("a host stream");
        MessageResult(part)
    }
}

impl Handler<Keep> for Adder {
    type Result = MessageResult<Keep>;

    fn handle(&mut self, keep: Keep, _: &mut Context<Self>) -> Self::Result {
        self.kept.extend(keep.0);
        MessageResult(self.kept.len())
    }
}

impl Handler<Join> for Adder {
    type Result = MessageResult<Join>;

    fn handle(&mut self, join: Join, _: &mut Context<Self>) -> Self::Result {
        let joined = TensorMut::join(join.0, &self.stream).map(TensorMut::freeze);
        MessageResult(joined.map_err(|error| error.to_string()))
    }
}

struct Scene<const N: usize> {
    node: Node,
    stream: DeviceStream,
    workers: [tensorpost::node::Spawned<Adder>; N],
}

impl<const N: usize> Scene<N> {
    fn new(builder: Builder) -> Self {
        let node = builder.start().unwrap();
        let workers = std::array::from_fn(|_| node.spawn::<Adder>(()).start().unwrap());
        let stream = node.host_stream().unwrap();
        Scene { node, stream, workers }
    }

    fn address<M: GpuMessage>(&self, worker: usize) -> Address<M>
    where
        Adder: Handler<M>,
    {
        self.workers[worker].address()
    }
}

const ROWS: usize = 61;
const COLUMNS: usize = 37;

fn counting(stream: &DeviceStream) -> TensorMut {
    let numbers: Vec<u64> = (0..(ROWS * COLUMNS) as u64).collect();
    stream.from_slice(&[ROWS, COLUMNS], &numbers).unwrap()
}

/// ONE-WRITER: neighbouring columns share every cache line of the tensor. Every element is right over many
/// rounds of scatter and gather of the same memory (CLOCK-1, CLOCK-2).
fn workers_write_neighbouring_columns_at_the_same_time(builder: Builder) {
    let scene = Scene::<3>::new(builder);
    let mut whole = counting(&scene.stream);
    let id = whole.lease().id();
    let rounds = 20_u64;
    for round in 0..rounds {
        let parts = whole.split_evenly(1, 3).unwrap();
        let asks: Vec<_> = (0..)
            .zip(parts)
            .map(|(worker, part)| {
                let add = Add { part, what: 1 + (worker + round) % 3, times: 5 };
                scene.address::<Add>(worker as usize).ask(add)
            })
            .collect();
        let parts: Vec<TensorPart> = asks.into_iter().map(|ask| scene.node.block_on(ask).unwrap()).collect();
        whole = TensorMut::join(parts, &scene.stream).unwrap();
    }
    assert_eq!(whole.lease().id(), id, "one memory all along");
    let sum_for = |worker: u64| (0..rounds).map(|round| 5 * (1 + (worker + round) % 3)).sum::<u64>();
    let added = [sum_for(0), sum_for(1), sum_for(2)];
    let worker_of = |column: usize| if column < 13 { 0 } else { 1 + (column - 13) / 12 };
    for (at, element) in whole.as_slice::<u64>().unwrap().iter().enumerate() {
        assert_eq!(*element, at as u64 + added[worker_of(at % COLUMNS)], "element {at}");
    }
    drop(whole);
    until_free(&scene.node);
}

/// They are joined in a process that neither owns the memory nor split the tensor, and come back as a whole.
fn the_parts_are_joined_in_another_process(builder: Builder) {
    let scene = Scene::<2>::new(builder);
    let mut parts = counting(&scene.stream).split_tiles(&[16, 16]).unwrap();
    assert_eq!(parts.len(), 12);
    let mine = parts.split_off(6);
    let missing = ask(&scene.node, &scene.address::<Join>(0), Join(mine)).unwrap_err();
    assert!(missing.contains("number [0, 1, 2, 3, 4, 5] is missing"), "{missing}");
    drop(parts);

    let parts = counting(&scene.stream).split_tiles(&[16, 16]).unwrap();
    let added: Vec<TensorPart> = parts
        .into_iter()
        .map(|part| ask(&scene.node, &scene.address::<Add>(1), Add { part, what: 7, times: 1 }))
        .collect();
    let whole = ask(&scene.node, &scene.address::<Join>(0), Join(added)).unwrap();
    let expected: Vec<u64> = (7..7 + (ROWS * COLUMNS) as u64).collect();
    assert_eq!(whole.to_vec::<u64>().unwrap(), expected);
    drop(whole);
    until_free(&scene.node);
}

/// LEASE-4: the part of a killed worker is missing, the join names it, and the memory comes back.
fn a_killed_worker_takes_its_part_with_it(builder: Builder) {
    let scene = Scene::<2>::new(builder);
    let mut parts = counting(&scene.stream).split_evenly(0, 4).unwrap();
    let (third, first) = (parts.remove(2), parts.remove(0));
    assert_eq!(ask(&scene.node, &scene.address::<Keep>(0), Keep(vec![third])), 1);
    let first = ask(&scene.node, &scene.address::<Add>(1), Add { part: first, what: 1, times: 1 });
    scene.node.supervisor().kill_worker(scene.workers[0].worker());
    parts.push(first);
    let error = TensorMut::join(parts, &scene.stream).unwrap_err();
    assert!(matches!(&error.why, JoinReason::Missing { missing, count: 4 } if *missing == [2]), "{error}");
    drop(error);
    until_free(&scene.node);
}

/// DEATH-3, in every way in which a part can be used. The first worker dies while its stream waits at a door,
/// behind which it would have written the parts that others hold by then.
fn what_a_dead_writer_had_not_written_of_a_part_is_lost_wherever_the_part_went(builder: Builder) {
    let scene = Scene::<3>::new(builder);
    let (node, stream) = (&scene.node, &scene.stream);
    let gate = Gate::new();
    let late = |part, door| ask(node, &scene.address::<AddLate>(0), AddLate { part, door });
    let add = |worker, part| ask(node, &scene.address::<Add>(worker), Add { part, what: 1, times: 1 });
    let split = || counting(stream).split_evenly(1, 3).unwrap().into_iter();
    let mut parts = split();
    let first = late(parts.next().unwrap(), Some(gate.door()));
    let at_the_door = gate.arrival();
    // This is behind a wait in the second worker; this process knows of no other clock than that one's.
    let second = add(1, late(parts.next().unwrap(), None));
    let third = add(2, parts.next().unwrap());
    assert_eq!([first.status(), second.status()], [TensorStatus::Pending; 2]);
    // They are joined while nobody knows of the loss: here, and in the third worker. Only one part of each is
    // lost.
    let some_late = || {
        let [a, b, c] = split().collect::<Vec<_>>().try_into().expect("three");
        vec![a, late(b, None), add(2, c)]
    };
    let here = TensorMut::join(some_late(), stream).unwrap();
    let there = ask(node, &scene.address::<Join>(2), Join(some_late())).unwrap();
    assert_eq!((here.status(), there.status()), (TensorStatus::Pending, TensorStatus::Pending));
    // And split again.
    let again = some_late();
    let again = TensorMut::join(again, stream).unwrap().split_evenly(0, 2).unwrap();

    let dead = node.supervisor().worker(scene.workers[0].worker()).unwrap().process;
    node.supervisor().kill_worker(scene.workers[0].worker());
    let is_lost = |error: &TensorError| matches!(error, TensorError::Tainted { by } if *by == dead);
    let mut parts = vec![first, second, third];
    for part in &mut parts[..2] {
        assert!(is_lost(&part.wait(None).unwrap_err()), "{part:?}");
        assert_eq!(part.status(), TensorStatus::Tainted { by: dead });
        assert!(is_lost(&part.elements_mut::<u64>().unwrap_err()), "{part:?}");
        assert!(is_lost(&part.write_on(stream.clocked()).unwrap_err()), "{part:?}");
        let fill = |(mut part,): (tensorpost::tensor::PartMut<'_, u64>,)| part.fill(1);
        assert!(is_lost(&stream.run((part.of_mut::<u64>(),), fill).unwrap_err()), "{part:?}");
    }
    assert!(parts[2].to_vec::<u64>().is_ok());
    // The join refuses it, and gives all back; so does a message.
    let error = TensorMut::join(parts, stream).unwrap_err();
    assert!(matches!(&error.why, JoinReason::Tensor(error) if is_lost(error)), "{error}");
    let mut parts = error.parts;
    let part = parts.swap_remove(0);
    let error = node.block_on(scene.address::<Add>(2).ask(Add { part, what: 1, times: 1 })).unwrap_err();
    let AskError::NotSent(unsent) = error else { panic!("{error}") };
    assert!(matches!(unsent.reason, SendFailure::Tainted(_)), "{unsent}");
    // A tensor that had been joined is lost as a whole.
    assert_eq!(here.status(), TensorStatus::Tainted { by: dead });
    assert!(is_lost(&here.as_slice::<u64>().unwrap_err()));
    assert!(is_lost(&here.freeze().to_vec::<u64>().unwrap_err()));
    assert!(is_lost(&there.to_vec::<u64>().unwrap_err()));
    for mut part in again {
        assert!(is_lost(&part.to_vec::<u64>().unwrap_err()), "{part:?}");
    }
    // DEATH-2: new parts work, also on the streams that waited.
    drop((there, parts, unsent));
    let parts: Vec<_> = split().map(|part| add(1, add(2, part))).collect();
    let whole = TensorMut::join(parts, stream).unwrap().freeze();
    assert_eq!(whole.to_vec::<u64>().unwrap(), (2..2 + (ROWS * COLUMNS) as u64).collect::<Vec<_>>());
    drop((whole, at_the_door));
    until_free(node);
}

/// An ask whose part has the wrong form gives the message back with the part.
fn a_part_that_does_not_fit_comes_back(builder: Builder) {
    let scene = Scene::<1>::new(builder);
    let part = scene.stream.zeros(DType::F32, &[2, 2]).unwrap().split_evenly(0, 1).unwrap().remove(0);
    let error =
        scene.node.block_on(scene.address::<Add>(0).ask(Add { part, what: 1, times: 1 })).unwrap_err();
    let AskError::NotSent(unsent) = error else { panic!("{error}") };
    assert!(unsent.to_string().contains("its dtype must be u64"), "{unsent}");
    TensorMut::join([unsent.message.part], &scene.stream).unwrap();
    until_free(&scene.node);
}

pub(crate) fn cases() -> Vec<Case> {
    cases![
        workers_write_neighbouring_columns_at_the_same_time,
        the_parts_are_joined_in_another_process,
        a_killed_worker_takes_its_part_with_it,
        what_a_dead_writer_had_not_written_of_a_part_is_lost_wherever_the_part_went,
        a_part_that_does_not_fit_comes_back,
    ]
}
