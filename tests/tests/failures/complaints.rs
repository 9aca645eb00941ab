//! Common complaints about systems that share tensors between processes, one test each. A test's name states
//! that the complaint does not hold here.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tensorpost::device::{Device, DeviceId};
use tensorpost::node::Spawned;
use tensorpost::prelude::*;
use tensorpost::tensor::{LeaseId, PoolError, TensorError};
use tensorpost_tests::cases;
use tensorpost_tests::gate::{Door, Gate};
use tensorpost_tests::harness::{Builder, Case};
use tensorpost_tests::holder::{Check, Hold, Holder, LetGo, Make};
use tensorpost_tests::wait::{ask, deliver, numbers, until, until_allocations, until_free};

/// "Add these up, slowly, on your stream." The reply arrives before the sum is computed.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Tensor)]
struct SlowSum {
    tensor: Tensor,
    /// Where the stream waits before it reads.
    door: Option<Door>,
}

/// "What are you, and how do you know this device?"
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Identity)]
struct WhoAreYou {
    tensor: Tensor,
    device: Device,
}

#[derive(Debug, Serialize, Deserialize)]
struct Identity {
    pid: u32,
    /// The value of [`MARK`] in that process.
    mark: u64,
    /// The device of the tensor that came, as its process names it.
    device: DeviceId,
    /// The device that the message named.
    told: DeviceId,
    /// The device's name in that process.
    text: String,
    /// All devices that its process sees, in its order.
    devices: Vec<DeviceId>,
}

/// "Send it to your own neighbour." The reply is the neighbour's answer.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Arrived)]
struct PutAndGet {
    tensor: Tensor,
    via: Option<Address<PutAndGet>>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Arrived {
    pid: u32,
    lease: LeaseId,
    tensor: Tensor,
}

/// A mark that a fork would copy: the node's program writes it before it starts its workers.
static MARK: AtomicU64 = AtomicU64::new(0);

struct Worker {
    stream: DeviceStream,
}

impl Actor for Worker {
    type Context = Context<Self>;
}

impl RemoteActor for Worker {
    type Args = ();

    fn create((): (), env: &Env) -> anyhow::Result<Self> {
        Ok(Worker { stream: env.stream() })
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<SlowSum>().message::<WhoAreYou>().message::<PutAndGet>();
    }
}

impl Handler<SlowSum> for Worker {
    type Result = MessageResult<SlowSum>;

    fn handle(&mut self, SlowSum { tensor, door }: SlowSum, _: &mut Context<Self>) -> Self::Result {
        let mut sum = self.stream.zeros(DType::U64, &[1]).expect("room for a number");
        let add = move |(from, to): (&[u32], &mut [u64])| {
            if let Some(door) = door {
                door.pass().expect("the gate is there");
            }
            to[0] = from.iter().map(|n| u64::from(*n)).sum();
        };
        self.stream.run((tensor.of::<u32>(), sum.of_mut::<u64>()), add).expect("numbers, on this device");
        MessageResult(sum.freeze())
    }
}

impl Handler<WhoAreYou> for Worker {
    type Result = MessageResult<WhoAreYou>;

    fn handle(&mut self, WhoAreYou { tensor, device }: WhoAreYou, _: &mut Context<Self>) -> Self::Result {
        MessageResult(Identity {
            pid: std::process::id(),
            mark: MARK.load(Ordering::Relaxed),
            device: tensor.lease().device(),
            told: device.id(),
            text: device.to_string(),
            devices: Device::all().iter().map(Device::id).collect(),
        })
    }
}

impl Handler<PutAndGet> for Worker {
    type Result = ResponseFuture<Arrived>;

    fn handle(&mut self, PutAndGet { tensor, via }: PutAndGet, _: &mut Context<Self>) -> Self::Result {
        let Some(neighbour) = via else {
            let (pid, lease) = (std::process::id(), tensor.lease().id());
            return Box::pin(async move { Arrived { pid, lease, tensor } });
        };
        let asked = neighbour.ask(PutAndGet { tensor, via: None });
        Box::pin(async move { asked.await.expect("it lives in the same process") })
    }
}

fn holder(node: &Node) -> Spawned<Holder> {
    node.spawn::<Holder>(()).start().unwrap()
}

fn worker(node: &Node) -> Spawned<Worker> {
    node.spawn::<Worker>(()).start().unwrap()
}

fn kill<A: RemoteActor>(node: &Node, victim: &Spawned<A>) {
    node.supervisor().kill_worker(victim.worker());
    node.supervisor().await_end(victim.worker());
}

/// "The consumer was killed, and the producer's memory never came back."
fn memory_comes_back_when_the_consumer_is_killed(builder: Builder) {
    let node = builder.start().unwrap();
    let stream = node.host_stream().unwrap();
    for round in 0..5 {
        let consumer = holder(&node);
        for index in 0..10 {
            ask(&node, &consumer.address(), Hold::with(0, numbers(&stream, index, 1000)));
        }
        until_allocations(&node, 10);
        kill(&node, &consumer);
        until_free(&node);
        assert_eq!(stream.pool().stats().chunk_bytes, 64 << 20, "round {round}: it is used again");
    }
}

/// "A handle that was exported and never opened keeps the memory for good."
fn memory_that_nobody_ever_opened_comes_back(builder: Builder) {
    let node = builder.start().unwrap();
    let stream = node.host_stream().unwrap();
    let (consumer, gate) = (holder(&node), Gate::new());
    deliver(&node, &consumer.address(), Hold::at(0, &gate.door()));
    let arrival = gate.arrival();
    // The messages lie in its ring and its mailbox; it is killed before it looks at any of them.
    for index in 0..50 {
        deliver(&node, &consumer.address(), Hold::with(1, numbers(&stream, index, 1000)));
    }
    until_allocations(&node, 50);
    kill(&node, &consumer);
    drop(arrival);
    until_free(&node);
    // The memory of a message that could not even be sent comes back too.
    let error = node.block_on(consumer.address::<Hold>().send(Hold::with(2, numbers(&stream, 0, 1000))));
    drop(error.expect_err("it is gone"));
    until_free(&node);
}

/// "Sent to several, and unpacked several times each, the reference count goes wrong."
fn one_tensor_to_many_opened_many_times_is_counted_exactly(builder: Builder) {
    const CONSUMERS: usize = 4;
    let node = builder.start().unwrap();
    let stream = node.host_stream().unwrap();
    let consumers: Vec<_> = (0..CONSUMERS).map(|_| holder(&node)).collect();
    let tensor = numbers(&stream, 5, 1000);
    for times in 1..=7 {
        for consumer in &consumers {
            // Twice in one message, and one message after the other.
            let twice = vec![tensor.clone(), tensor.slice(0, 10..20).unwrap()];
            let held = ask(&node, &consumer.address(), Hold { label: 0, tensors: twice, door: None });
            assert_eq!(held, 2 * times);
        }
    }
    until_allocations(&node, 1);
    drop(tensor);
    for (index, consumer) in consumers.iter().enumerate() {
        assert_eq!(
            stream.pool().stats().allocations,
            1,
            "{index} of {CONSUMERS} have let go, and not one more"
        );
        ask(&node, &consumer.address(), LetGo);
        // An answer may be quicker than the releases, which have all arrived once the next answer has.
        ask(&node, &consumer.address(), LetGo);
    }
    until_free(&node);
}

/// "The producer has to outlive its consumers."
fn consumers_read_on_when_the_producer_has_ended(builder: Builder) {
    let node = builder.start().unwrap();
    let (producer, keeper) = (holder(&node), holder(&node));
    let elements: Vec<u32> = (0..5000).collect();
    let tensor = ask(&node, &producer.address(), Make { elements: elements.clone(), door: None });
    tensor.to_vec::<u32>().unwrap();
    ask(&node, &keeper.address(), Hold::with(0, tensor.clone()));
    kill(&node, &producer);
    assert_eq!(tensor.to_vec::<u32>().unwrap(), elements);
    // A process that has never seen the producer reads it, too.
    let reader = worker(&node);
    let sum = ask(&node, &reader.address(), SlowSum { tensor, door: None });
    assert_eq!(sum.item::<u64>().unwrap(), (0..5000).sum::<u64>());
    ask(&node, &keeper.address(), LetGo);
}

/// "A tensor that was received cannot be sent on."
fn a_received_tensor_can_be_sent_on_and_the_owner_learns_who_has_it(builder: Builder) {
    let node = builder.start().unwrap();
    let (first, second) = (worker(&node), holder(&node));
    let maker = holder(&node);
    let made = ask(&node, &maker.address(), Make { elements: vec![1, 2, 3], door: None });
    let owner = made.lease().owner();
    let arrived = ask(&node, &first.address(), PutAndGet { tensor: made, via: None });
    assert_eq!(arrived.lease.chunk.owner, owner, "it is still the maker's memory");
    ask(&node, &second.address(), Hold::with(0, arrived.tensor));
    let allocations = || ask(&node, &maker.address(), Check).allocations;
    until("only the second has it", || allocations() == 1);
    kill(&node, &first);
    assert_eq!(allocations(), 1);
    ask(&node, &second.address(), LetGo);
    until("the owner has it back", || allocations() == 0);
}

/// "Putting and getting inside one process copies, or deadlocks."
fn put_and_get_inside_one_process_is_the_same_memory(builder: Builder) {
    let node = builder.start().unwrap();
    let stream = node.host_stream().unwrap();
    let place = node.worker("both").unwrap();
    let here = || node.spawn::<Worker>(()).worker(place).start().unwrap();
    let (first, second) = (here(), here());
    let tensor = numbers(&stream, 0, 100);
    let lease = tensor.lease().id();
    let arrived = ask(&node, &first.address(), PutAndGet { tensor, via: Some(second.address()) });
    assert_eq!(arrived.lease, lease);
    assert_eq!(arrived.tensor.to_vec::<u32>().unwrap(), (0..100).collect::<Vec<_>>());
    // And to the actor itself.
    let tensor = arrived.tensor;
    let arrived = ask(&node, &first.address(), PutAndGet { tensor, via: Some(first.address()) });
    assert_eq!(arrived.lease, lease);
    drop(arrived);
    until_free(&node);
}

/// "A buffer that is overwritten and sent again is read half new, half old."
fn a_buffer_that_is_written_again_is_read_as_it_was_sent(builder: Builder) {
    let node = builder.host_budget(64 << 20).start().unwrap();
    let stream = node.host_stream().unwrap();
    let (reader, gate) = (worker(&node), Gate::new());
    let size = 1 << 20;
    let mut sums = Vec::new();
    let mut doors = Vec::new();
    let mut places = std::collections::BTreeSet::new();
    for round in 0..100_u32 {
        // The reader's stream waits before it reads the first of them.
        let door = (round == 0).then(|| gate.door());
        let mut buffer = node.block_on(stream.empty_when_free(DType::U32, &[size])).unwrap();
        places.insert(buffer.lease().offset());
        stream.run((buffer.of_mut::<u32>(),), move |(to,): (&mut [u32],)| to.fill(round)).unwrap();
        // The buffer is given away at once: nobody waits for the write, nor for the read.
        sums.push(ask(&node, &reader.address(), SlowSum { tensor: buffer.freeze(), door }));
        if round == 0 {
            doors.push(gate.arrival());
        } else if round == 3 {
            doors.drain(..).for_each(tensorpost_tests::gate::Arrival::open);
        }
    }
    for (round, sum) in (0_u64..).zip(sums) {
        assert_eq!(sum.item::<u64>().unwrap(), round * size as u64);
    }
    assert!(places.len() < 100, "the same memory was written again");
    until_free(&node);
}

/// "When the pool is full, everything hangs, and nobody says why."
fn a_full_pool_is_an_error_with_a_name_and_at_once(builder: Builder) {
    let node = builder.host_budget(64 << 20).start().unwrap();
    let stream = node.host_stream().unwrap();
    let hoarder = holder(&node);
    let process = node.supervisor().worker(hoarder.worker()).unwrap().process.to_string();
    let mut held = 0;
    let begin = Instant::now();
    let error = loop {
        match stream.zeros(DType::U8, &[8 << 20]) {
            Ok(tensor) => {
                deliver(&node, &hoarder.address(), Hold::with(0, tensor.freeze()));
                held += 1;
            }
            Err(error) => break error,
        }
        assert!(held <= 8, "the budget holds eight");
    };
    assert!(matches!(&error, TensorError::Pool(PoolError::Full { .. })), "{error}");
    assert!(error.to_string().contains(&process), "`{process}` holds them all: {error}");
    assert!(begin.elapsed() < Duration::from_secs(10));
    ask(&node, &hoarder.address(), LetGo);
    until_free(&node);
    stream.zeros(DType::U8, &[8 << 20]).unwrap();
}

/// "Device 0 here is device 1 there." A device is its UUID, with tensors, in arguments and in messages; the
/// number by which a process counts it stays in that process. (`gpu_suite` tests that two workers which count
/// the GPUs differently understand each other, for it takes GPUs.)
fn a_device_is_named_by_its_identity_in_every_process(builder: Builder) {
    let node = builder.start().unwrap();
    let stream = node.host_stream().unwrap();
    let worker = worker(&node);
    // A device that is the sender's fourth, and that the receiver need not see at all.
    #[derive(Serialize)]
    struct Elsewhere {
        id: DeviceId,
        kind: DeviceKind,
        name: &'static str,
        ordinal: Option<usize>,
    }
    let id = DeviceId([7; 16]);
    let fourth = Elsewhere { id, kind: DeviceKind::Cuda, name: "a GPU", ordinal: Some(3) };
    let fourth: Device = rmp_serde::from_slice(&rmp_serde::to_vec_named(&fourth).unwrap()).unwrap();
    let mut here: Vec<_> = Device::all().iter().map(Device::id).collect();
    here.sort();
    let mut devices = Device::all();
    devices.push(fourth);
    for device in devices {
        let ask_for = WhoAreYou { tensor: numbers(&stream, 0, 3), device: device.clone() };
        let who = ask(&node, &worker.address(), ask_for);
        assert_eq!((who.device, who.told), (DeviceId::HOST, device.id()));
        assert_eq!(who.text, device.id().to_string(), "no number of another process");
        let mut there = who.devices;
        there.sort();
        assert_eq!(there, here, "the same devices, in whatever order");
    }
    assert!(here.iter().all(|id| Device::by_id(*id).is_ok_and(|device| device.id() == *id)));
}

/// "After the GPU was touched, a fork breaks." There is no fork: a worker is a program that was executed,
/// with nothing of the node's memory, threads or driver in it.
fn a_worker_starts_afresh_and_is_no_fork(builder: Builder) {
    MARK.store(4711, Ordering::Relaxed);
    let node = builder.start().unwrap();
    // The node has used its device before it spawns.
    let stream = node.host_stream().unwrap();
    let tensor = numbers(&stream, 0, 3);
    let spawned = worker(&node);
    let who = ask(&node, &spawned.address(), WhoAreYou { tensor, device: Device::host() });
    assert_eq!(who.mark, 0, "a fork would have brought the value along");
    assert_ne!(who.pid, std::process::id());
    let image = |pid: u32| std::fs::read_link(format!("/proc/{pid}/exe")).unwrap();
    assert_eq!(image(who.pid), image(std::process::id()));
    // A forked child of a test harness has its threads' names; this one has a control thread of its own.
    let threads = std::fs::read_dir(format!("/proc/{}/task", who.pid)).unwrap();
    let names: Vec<_> =
        threads.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok()).collect();
    assert!(names.iter().any(|name| name.starts_with("tp-control")), "{names:?}");
}

pub(crate) fn cases() -> Vec<Case> {
    cases![
        memory_comes_back_when_the_consumer_is_killed,
        memory_that_nobody_ever_opened_comes_back,
        one_tensor_to_many_opened_many_times_is_counted_exactly,
        consumers_read_on_when_the_producer_has_ended,
        a_received_tensor_can_be_sent_on_and_the_owner_learns_who_has_it,
        put_and_get_inside_one_process_is_the_same_memory,
        a_buffer_that_is_written_again_is_read_as_it_was_sent,
        a_full_pool_is_an_error_with_a_name_and_at_once,
        a_device_is_named_by_its_identity_in_every_process,
        a_worker_starts_afresh_and_is_no_fork,
    ]
}
