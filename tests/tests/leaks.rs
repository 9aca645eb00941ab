//! Nothing grows: not the memory of any process, not its descriptors, not its threads, not the pools. The
//! test has a binary of its own, so that nothing else moves the numbers.
//!
//! It sends 100,000 messages, or with `TENSORPOST_MANY` set a million. Run that with `--release`.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tensorpost::node::Spawned;
use tensorpost::prelude::*;
use tensorpost_tests::cases;
use tensorpost_tests::harness::{self, Builder};
use tensorpost_tests::holder::{Check, Hold, Holder, LetGo, Make};
use tensorpost_tests::wait::{ask, deliver, numbers, until, until_free};

/// "Add one to each, and have the others do so too." The reply is the last one's tensor.
#[derive(Debug, Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Tensor)]
struct Increment {
    tensor: Tensor,
    route: Vec<Address<Increment>>,
}

/// "What do you use?"
#[derive(Debug, Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Usage)]
struct Measure;

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Usage {
    /// Resident, anonymous memory: the process's own. Pages of shared chunks are in `chunk_bytes`.
    resident: u64,
    descriptors: usize,
    /// Mappings of memory that processes share.
    mappings: usize,
    threads: usize,
    chunk_bytes: u64,
}

impl Usage {
    fn of_this_process(stream: &DeviceStream) -> Usage {
        let count = |path: &str| std::fs::read_dir(path).unwrap().count();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        // The clocks of dead processes stay for a while, up to a bounded number.
        let mappings =
            maps.lines().filter(|line| line.contains("/memfd:") && !line.contains("-clocks")).count();
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let resident = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        Usage {
            resident: resident.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10,
            descriptors: count("/proc/self/fd"),
            mappings,
            threads: count("/proc/self/task"),
            chunk_bytes: stream.pool().stats().chunk_bytes,
        }
    }

    /// Describes any growth beyond the usual variation and this many bytes that are remembered.
    fn growth(&self, later: &Usage, remembered: u64) -> Option<String> {
        // Five per cent, and a page or two per allocator arena.
        let bound = self.resident + self.resident / 20 + (256 << 10) + remembered;
        let steady = later.resident <= bound
            && later.descriptors <= self.descriptors
            && later.mappings <= self.mappings
            && later.threads <= self.threads
            && later.chunk_bytes <= self.chunk_bytes;
        (!steady).then(|| format!("{self:?} became {later:?}"))
    }
}

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
        on.message::<Increment>().message::<Measure>();
    }
}

impl Handler<Increment> for Worker {
    type Result = ResponseFuture<Tensor>;

    fn handle(&mut self, Increment { tensor, mut route }: Increment, _: &mut Context<Self>) -> Self::Result {
        let mut sum = self.stream.empty(DType::U32, tensor.shape()).expect("room for a small tensor");
        let add =
            |(from, to): (&[u32], &mut [u32])| to.iter_mut().zip(from).for_each(|(to, from)| *to = from + 1);
        self.stream.run((tensor.of::<u32>(), sum.of_mut::<u32>()), add).expect("the same shape and device");
        let tensor = sum.freeze();
        if route.is_empty() {
            return Box::pin(async move { tensor });
        }
        let next = route.remove(0);
        let asked = next.ask(Increment { tensor, route });
        Box::pin(async move { asked.await.expect("the others are there") })
    }
}

impl Handler<Measure> for Worker {
    type Result = MessageResult<Measure>;

    fn handle(&mut self, _: Measure, _: &mut Context<Self>) -> Self::Result {
        MessageResult(Usage::of_this_process(&self.stream))
    }
}

/// Bytes that a process keeps of a worker that has exited: how far its clocks had come (`MAX_CERTIFICATES`),
/// in the node its report entry, and the spare capacity of both processes' tables.
const REMEMBERED: u64 = 1536;

fn messages() -> u32 {
    if std::env::var_os("TENSORPOST_MANY").is_some() { 1_000_000 } else { 100_000 }
}

struct Scene {
    node: Node,
    stream: DeviceStream,
    workers: Vec<Spawned<Worker>>,
}

impl Scene {
    fn new(builder: Builder, workers: usize) -> Self {
        let node = builder.start().unwrap();
        let workers = (0..workers).map(|_| node.spawn::<Worker>(()).start().unwrap()).collect();
        Scene { stream: node.host_stream().unwrap(), node, workers }
    }

    fn usage(&self) -> Vec<Usage> {
        let workers = self.workers.iter().map(|worker| ask(&self.node, &worker.address(), Measure));
        let mut usage: Vec<Usage> = workers.collect();
        // This is last, because asking may make a link.
        usage.push(Usage::of_this_process(&self.stream));
        usage
    }

    /// Plays `round` until the usage is warm, then plays the other rounds, and compares. Each round may leave
    /// this many bytes `remembered`.
    fn check(&self, rounds: u32, remembered: u64, mut round: impl FnMut(u32)) {
        let warm = rounds / 5;
        let remembered = remembered * u64::from(rounds - warm);
        (0..warm).for_each(&mut round);
        until_free(&self.node);
        let before = self.usage();
        (warm..rounds).for_each(&mut round);
        until_free(&self.node);
        // Resources of a process that was killed go when its death is known, a moment after it. A leak stays.
        let settled = Instant::now() + Duration::from_secs(5);
        loop {
            let after = self.usage();
            let growth =
                before.iter().zip(&after).map(|(before, after)| before.growth(after, remembered)).enumerate();
            let Some((process, growth)) = growth.into_iter().find(|(_, growth)| growth.is_some()) else {
                break;
            };
            assert!(Instant::now() < settled, "process {process} of the scene: {growth:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(self.node.stats().rejected, 0);
    }
}

/// Asks with tensors through three processes, 64 at a time: 6 messages each, from 3 pools.
fn asks_with_tensors_through_three_processes(builder: Builder) {
    let scene = Scene::new(builder, 3);
    let (first, others) = scene.workers.split_first().unwrap();
    let address = first.address::<Increment>();
    let route: Vec<_> = others.iter().map(Spawned::address).collect();
    scene.check(messages() / 2 / 6 / 64, 0, |round| {
        let asked = (0..64).map(|index| {
            let tensor = numbers(&scene.stream, round + index, 1 + (index as usize * 37) % 500);
            address.ask(Increment { tensor, route: route.clone() })
        });
        let answers = scene.node.block_on(join_all(asked.collect::<Vec<_>>()));
        for (index, answer) in (0..).zip(answers) {
            let sum = answer.unwrap().slice(0, ..1).unwrap();
            assert_eq!(sum.item::<u32>().unwrap(), round + index + 3);
        }
    });
}

/// Plain sends of many small tensors, every sort of failure among them.
fn sends_refusals_and_timeouts(builder: Builder) {
    let scene = Scene::new(builder, 1);
    let node = &scene.node;
    let holder = node.spawn::<Holder>(()).mailbox(16).start().unwrap();
    let (hold, make) = (holder.address::<Hold>(), holder.address::<Make>());
    // This process does not know that the holder takes none of these.
    let wrong = hold.cast::<Increment>();
    let health = AtomicBool::new(true);
    scene.check(messages() / 4 / 50, 0, |round| {
        for index in 0..40 {
            let message = Hold::with(0, numbers(&scene.stream, index, 100));
            if let Err(error) = hold.try_send(message) {
                deliver(node, &hold, error.message);
            }
        }
        for index in 0..5 {
            // The sends are not waited for: some never go, some replies come late.
            drop(hold.send(Hold::with(0, numbers(&scene.stream, index, 100))));
            drop(make.ask(Make { elements: vec![index; 10], door: None }));
        }
        // Each is refused there.
        let refused = Increment { tensor: numbers(&scene.stream, 0, 10), route: vec![] };
        assert!(node.block_on(wrong.ask(refused)).is_err());
        ask(node, &holder.address(), LetGo);
        if round % 100 == 0 {
            let now = ask(node, &holder.address(), Check);
            health.fetch_and(now.chunk_bytes <= 64 << 20, Ordering::Relaxed);
        }
    });
    assert!(health.into_inner(), "the holder's pool has grown");
    until("the holder's memory is free", || ask(node, &holder.address(), Check).allocations == 0);
}

/// Workers that come and go leave nothing in the node, or in workers that exchanged messages with them. Their
/// memory lasts as long as somebody holds it, here for two rounds, in a process that they never knew and in
/// the node (LEASE-4).
fn workers_that_come_and_go(builder: Builder) {
    let scene = Scene::new(builder, 1);
    let node = &scene.node;
    let fixed = &scene.workers[0];
    let keeper = node.spawn::<Holder>(()).start().unwrap();
    let mut kept = VecDeque::new();
    scene.check(messages() / 1000, REMEMBERED, |round| {
        let worker = node.spawn::<Worker>(()).start().unwrap();
        let message = Increment { tensor: numbers(&scene.stream, round, 10), route: vec![fixed.address()] };
        let of_fixed = ask(node, &worker.address(), message);
        assert_eq!(of_fixed.slice(0, ..1).unwrap().item::<u32>().unwrap(), round + 2);
        let message = Increment { tensor: numbers(&scene.stream, round, 10), route: vec![worker.address()] };
        let sum = ask(node, &fixed.address(), message);
        ask(node, &keeper.address(), Hold::with(0, sum.clone()));
        // Its stream may be behind its answer, and a tensor that it has not finished when it dies is lost.
        sum.wait(None).unwrap();
        node.supervisor().kill_worker(worker.worker());
        node.supervisor().await_end(worker.worker());
        kept.push_back(sum);
        if kept.len() > 2 {
            ask(node, &keeper.address(), LetGo);
            let oldest = kept.pop_front().unwrap();
            assert_eq!(oldest.slice(0, ..1).unwrap().item::<u32>().unwrap(), round);
        }
    });
}

fn main() {
    let cases = cases![
        asks_with_tensors_through_three_processes,
        sends_refusals_and_timeouts,
        workers_that_come_and_go,
    ];
    let deadline = harness::DEADLINE * messages().div_ceil(100_000);
    harness::run_one_by_one(cases.into_iter().map(|case| case.within(deadline)).collect())
}
