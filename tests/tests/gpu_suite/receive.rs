//! Tensors of one device for actors on another: read where they are, copied by `receive_on`, copied through
//! host memory where there is no other way.

use tensorpost::device::DeviceId;
use tensorpost::prelude::*;
use tensorpost_tests::harness::Builder;

use crate::device;

/// A tensor and a part of it.
#[derive(Debug, Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Seen)]
struct Read {
    whole: Tensor,
    part: Option<Tensor>,
}

/// The findings of a [`Reader`].
#[derive(Debug, Serialize, Deserialize)]
struct Seen {
    devices: Vec<DeviceId>,
    whole: Vec<u32>,
    part: Vec<u32>,
    /// Whether the memory is still the sender's.
    is_senders: bool,
    stream: String,
    fetched: u64,
    staged: u64,
}

struct Reader {
    env: Env,
}

impl Actor for Reader {
    type Context = Context<Self>;
}

impl RemoteActor for Reader {
    /// Whether to pretend that the GPUs cannot reach each other.
    type Args = bool;

    fn create(deny: bool, env: &Env) -> anyhow::Result<Self> {
        tensorpost_core::device::testing_deny_reach(deny);
        Ok(Reader { env: env.clone() })
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Read>();
    }
}

impl Handler<Read> for Reader {
    type Result = MessageResult<Read>;

    fn handle(&mut self, read: Read, _: &mut Context<Self>) -> Self::Result {
        let stream = self.env.stream();
        let (stats, me) = (self.env.stats(), stream.clocked().domain().own());
        let part = read.part.as_ref();
        // The host reads tensors on the host, whatever the actor's device.
        let numbers = |tensor: &Tensor| match tensor.to_vec::<u32>() {
            Ok(numbers) => numbers,
            // A kernel can reach the memory, and then the host can read the copy.
            Err(_) => stream.download(&stream.copy(tensor).expect("reach").freeze()).expect("numbers"),
        };
        MessageResult(Seen {
            devices: std::iter::once(&read.whole).chain(part).map(Tensor::device).collect(),
            whole: numbers(&read.whole),
            part: part.map(numbers).unwrap_or_default(),
            is_senders: read.whole.lease().owner() != me,
            stream: stream.name(),
            fetched: stats.bytes_fetched,
            staged: stats.bytes_staged,
        })
    }
}

/// "Pass this on, inside the process."
#[derive(Debug, Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Seen)]
struct Pass(Tensor);

struct Passer {
    next: Address<Read>,
}

impl Actor for Passer {
    type Context = Context<Self>;
}

impl RemoteActor for Passer {
    type Args = Address<Read>;

    fn create(next: Address<Read>, _: &Env) -> anyhow::Result<Self> {
        Ok(Passer { next })
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Pass>();
    }
}

impl Handler<Pass> for Passer {
    type Result = ResponseFuture<Seen>;

    fn handle(&mut self, pass: Pass, _: &mut Context<Self>) -> Self::Result {
        let part = pass.0.slice(0, 1..3).expect("three numbers");
        let asked = self.next.ask(Read { whole: pass.0, part: Some(part) });
        Box::pin(async move { asked.await.expect("a reader") })
    }
}

const ROWS: usize = 64;
const COLUMNS: usize = 1000;

fn matrix(stream: &DeviceStream, first: u32) -> (Tensor, Vec<u32>) {
    let numbers: Vec<u32> = (first..).take(ROWS * COLUMNS).collect();
    (stream.from_slice(&[ROWS, COLUMNS], &numbers).expect("room").freeze(), numbers)
}

/// Returns every device, beginning with the one on which the suite runs.
fn devices() -> Vec<Device> {
    let (first, is_gpu) = device();
    let mut all = vec![first.clone()];
    if is_gpu {
        all.extend(Device::all().into_iter().filter(|device| *device != first));
    }
    all
}

/// Tensors go from each device to each.
pub(crate) fn an_actor_gets_tensors_where_it_wants_them(builder: Builder) {
    let node = builder.start().unwrap();
    let devices = devices();
    let readers: Vec<_> = devices
        .iter()
        .map(|to| {
            let reader = node.spawn::<Reader>(false).device(to.clone()).receive_on(to.clone());
            reader.start().unwrap().address::<Read>()
        })
        .collect();
    for from in &devices {
        let stream = node.stream(from).unwrap();
        for (to, reader) in devices.iter().zip(&readers) {
            let warm = matrix(&stream, 0).0;
            let mut before = node.block_on(reader.ask(Read { whole: warm, part: None })).unwrap().fetched;
            for round in 0..20_u32 {
                let (whole, numbers) = matrix(&stream, round);
                // A slice of it and one of another tensor, in two messages.
                let part = whole.slice(1, 10..20).unwrap();
                let (other, others) = matrix(&stream, round + 7);
                let far = other.slice(0, 60..64).unwrap();
                let seen = node.block_on(reader.ask(Read { whole, part: Some(part) })).unwrap();
                assert_eq!(seen.devices, [to.id(); 2], "from {from} to {to}");
                assert_eq!(seen.whole, numbers);
                let expected: Vec<u32> =
                    (0..ROWS).flat_map(|row| numbers[row * COLUMNS..][10..20].to_vec()).collect();
                assert_eq!(seen.part, expected);
                assert_eq!(seen.is_senders, from == to);
                let bytes = if from == to { 0 } else { 4 * (ROWS * COLUMNS) as u64 };
                assert_eq!((seen.fetched - before, seen.staged), (bytes, 0));
                let seen = node.block_on(reader.ask(Read { whole: far, part: None })).unwrap();
                assert_eq!(seen.whole, others[60 * COLUMNS..]);
                before = seen.fetched;
            }
        }
        drop(stream);
    }
}

fn seen_of(node: &Node, reader: &Address<Read>, read: Read) -> Seen {
    node.block_on(reader.ask(read)).expect("a reply")
}

/// A tensor that comes the short way, as a value, is copied as well.
pub(crate) fn tensors_from_the_same_process_are_brought_too(builder: Builder) {
    let node = builder.start().unwrap();
    let devices = devices();
    for (from, to) in devices.iter().zip(devices.iter().cycle().skip(1)) {
        let worker = node.worker("both").unwrap();
        let reader = node.spawn::<Reader>(false).device(to.clone()).receive_on(to.clone()).worker(worker);
        let reader = reader.start().unwrap().address::<Read>();
        let passer = node.spawn::<Passer>(reader).device(from.clone()).worker(worker).start().unwrap();
        let stream = node.stream(from).unwrap();
        for round in 0..10 {
            let (whole, numbers) = matrix(&stream, round);
            let seen = node.block_on(passer.address::<Pass>().ask(Pass(whole))).unwrap();
            assert_eq!((seen.devices, seen.is_senders), (vec![to.id(); 2], from == to));
            assert_eq!(seen.part, numbers[COLUMNS..3 * COLUMNS]);
            assert_eq!(seen.whole, numbers);
        }
    }
}

/// Returns the first two GPUs, or the reason why there are none.
pub(crate) fn two_gpus() -> Result<[Device; 2], String> {
    crate::there_is_a_gpu()?;
    let mut gpus = devices().into_iter().filter(|device| device.kind() == DeviceKind::Cuda);
    let two = gpus.next().zip(gpus.next());
    two.map(|(first, second)| [first, second]).ok_or_else(|| "there are no two GPUs".to_owned())
}

/// Only the reader copies anything. The workers count the GPUs the other way round (see `main`).
pub(crate) fn a_gpu_reads_the_memory_of_another_where_it_is(builder: Builder) {
    let [from, to] = two_gpus().unwrap();
    let node = builder.start().unwrap();
    for [from, to] in [[&from, &to], [&to, &from]] {
        let stream = node.stream(from).unwrap();
        let reader = node.spawn::<Reader>(false).device(to.clone()).start().unwrap().address::<Read>();
        for round in 0..50 {
            let (whole, numbers) = matrix(&stream, round);
            let seen = node.block_on(reader.ask(Read { whole, part: None })).unwrap();
            assert_eq!((seen.devices, seen.is_senders), (vec![from.id()], true));
            assert_eq!((seen.whole, seen.fetched), (numbers, 0));
            let ours = node.stream(to).unwrap().name();
            assert_ne!(seen.stream, ours, "the worker counts as the node does");
        }
    }
}

/// Without peer access the tensors come all the same, through host memory; the copies are counted, and the
/// log names the pair.
pub(crate) fn a_gpu_out_of_reach_is_copied_from_through_the_host(builder: Builder) {
    let [from, to] = two_gpus().unwrap();
    let node = builder.start().unwrap();
    let stream = node.stream(&from).unwrap();
    for receive_on in [false, true] {
        let reader = node.spawn::<Reader>(true).device(to.clone());
        let reader = if receive_on { reader.receive_on(to.clone()) } else { reader };
        let reader = reader.start().unwrap().address::<Read>();
        for round in 1..=20 {
            let (whole, numbers) = matrix(&stream, round);
            let seen = node.block_on(reader.ask(Read { whole, part: None })).unwrap();
            assert_eq!((seen.devices, seen.is_senders), (vec![to.id()], false));
            assert_eq!(seen.whole, numbers);
            let bytes = u64::from(round) * 4 * (ROWS * COLUMNS) as u64;
            assert_eq!((seen.fetched, seen.staged), (bytes, bytes));
        }
        // More than one piece of host memory at a time.
        let numbers: Vec<u32> = (0..20 << 20).collect();
        let whole = stream.from_slice(&[numbers.len()], &numbers).unwrap().freeze();
        let part = whole.slice(0, (15 << 20)..(15 << 20) + 3).unwrap();
        let before = seen_of(&node, &reader, Read { whole: part, part: None });
        assert_eq!(before.whole, numbers[15 << 20..(15 << 20) + 3]);
        // The last four elements of each of 20 rows, because a reply does not hold all: 76 MiB from first to
        // last.
        let some = whole.view(&[20, 1 << 20]).unwrap().slice(1, (1 << 20) - 4..1 << 20).unwrap();
        let seen = seen_of(&node, &reader, Read { whole: some, part: None });
        let expected: Vec<u32> = (1..=20).flat_map(|piece| (piece << 20) - 4..piece << 20).collect();
        assert_eq!(seen.whole, expected);
        assert!(seen.staged - before.staged > 75 << 20, "{} bytes", seen.staged - before.staged);
    }
}
