//! Nodes of their own, in programs of their own: a node that is killed, and a node whose workers count the
//! GPUs differently.
//!
//! A scene is this program again, with [`SCENE`] in its environment; its workers inherit that, and become
//! workers.

#![expect(unsafe_code, reason = "sets a variable before there are threads")]

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Lines};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs};

use rustix::process::{Pid, Signal, kill_process};
use tensorpost::device::DeviceId;
use tensorpost::node::Sharing;
use tensorpost::prelude::*;
use tensorpost_core::os::PidFd;
use tensorpost_tests::harness::Builder;
use tensorpost_tests::players;
use tensorpost_tests::wait::until;

use crate::device;

/// The scene that this process plays.
const SCENE: &str = "TENSORPOST_TESTS_SCENE";
/// A file with the value of [`VISIBLE`] for the next worker.
const ORDER: &str = "TENSORPOST_TESTS_ORDER";
pub(crate) const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// A process may have a little more or less of the driver's memory than before.
const MEMORY_SLACK: u64 = 64 << 20;

/// A worker calls this first: it takes the order in which its test wants it to see the GPUs. Returns whether
/// there was one.
pub(crate) fn take_order() -> bool {
    let order = env::var_os(ORDER).and_then(|file| fs::read_to_string(file).ok());
    if let Some(order) = order.as_ref().filter(|order| !order.is_empty()) {
        // SAFETY: this is the first call of the program; there is no other thread.
        unsafe { env::set_var(VISIBLE, order) };
    }
    order.is_some()
}

/// Plays the scene for which this process was started, if any.
pub(crate) fn play() -> bool {
    let Ok(scene) = env::var(SCENE) else { return false };
    let builder = Node::builder();
    let played = match scene.as_str() {
        "isolated" => balls(builder.sharing(Sharing::Isolated)),
        "mps" => balls(builder.sharing(Sharing::Mps)),
        "orders" => orders(builder),
        "free" => free_memory(),
        other => Err(anyhow::anyhow!("there is no scene `{other}`")),
    };
    if let Err(error) = played {
        println!("failed {error:#}");
    }
    true
}

fn scene(name: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.env(SCENE, name).env_remove("RUST_LOG").stdin(Stdio::null()).stdout(Stdio::piped());
    command
}

/// The node that is to be killed.
fn balls(builder: Builder) -> anyhow::Result<()> {
    let (device, _) = device();
    // Pools grow up to a quarter of their budget rather than wait; the test does not ask how fast the system
    // takes gigabytes back.
    let node = builder.host_budget(256 << 20).gpu_budget(1 << 30).start()?;
    players::play_for_ever(&node, &device, 3, 1 << 20)
}

/// Prints the device's free bytes, as a process sees them that has a context there and nothing else.
fn free_memory() -> anyhow::Result<()> {
    let (device, _) = device();
    let context = cudarc::driver::CudaContext::new(device.ordinal().unwrap_or(0))?;
    println!("free {}", context.mem_get_info()?.0);
    Ok(())
}

/// A scene, seen from outside.
struct Running {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Running {
    fn start(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Running { child, lines }
    }

    /// Returns the next line that begins with this, without its beginning.
    fn line(&mut self, with: &str) -> String {
        for line in self.lines.by_ref().map(Result::unwrap) {
            assert!(!line.starts_with("failed "), "{line}");
            if let Some(rest) = line.strip_prefix(with) {
                return rest.trim().to_owned();
            }
        }
        panic!("the scene has ended without `{with}`");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the free bytes of the GPU, or `None` on the host, whose memory everybody uses.
fn free_bytes() -> Option<u64> {
    let (_, is_gpu) = device();
    is_gpu.then(|| Running::start(scene("free")).line("free ").parse().unwrap())
}

/// Returns the processes whose environment names this folder: a scene's node, whose temporary files are
/// there, its children, and their children.
fn processes_of(folder: &Path) -> Vec<(u32, String)> {
    let wanted = folder.as_os_str().as_encoded_bytes();
    let pids =
        fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let is_its = |pid: &u32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.windows(wanted.len()).any(|part| part == wanted)
    };
    let name = |pid| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().to_owned();
    pids.filter(is_its).map(|pid: u32| (pid, name(pid))).collect()
}

fn names(folder: &Path) -> HashSet<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Kills a node with workers on the device in the middle of traffic, and checks for leftovers.
fn is_killed_and_leaves_nothing(sharing: &str) {
    let free = free_bytes();
    let shared = names(Path::new("/dev/shm"));
    let folder = tempfile::tempdir().unwrap();
    let mut command = scene(sharing);
    command.env("TMPDIR", folder.path());
    let mut running = Running::start(command);
    let pids: Vec<u32> = running.line("pids ").split(' ').map(|pid| pid.parse().unwrap()).collect();
    let workers: Vec<_> = pids[1..].iter().map(|pid| PidFd::open(*pid).unwrap()).collect();
    while running.line("hops ").parse::<u64>().unwrap() < 200 {}
    // Everything that is searched for later exists now.
    let there = processes_of(folder.path());
    println!("{sharing}: {there:?}");
    assert!(pids.iter().all(|pid| there.iter().any(|(other, _)| other == pid)), "{there:?}");
    if sharing == "mps" {
        let daemons = there.iter().filter(|(_, name)| name.starts_with("nvidia-cuda-mps")).count();
        assert!(daemons >= 2, "a control daemon and a server: {there:?}");
        assert!(names(folder.path()).iter().any(|name| name.starts_with("tensorpost-mps-")));
    }
    if let Some(free) = free {
        assert!(free_bytes().unwrap() + MEMORY_SLACK < free, "the workers use memory of the GPU");
    }
    // A process that cannot act any more ends too.
    kill_process(Pid::from_raw(pids[1].cast_signed()).unwrap(), Signal::STOP).unwrap();
    let start = Instant::now();
    running.child.kill().unwrap();
    for worker in &workers {
        assert!(worker.wait(Some(Duration::from_secs(30))).unwrap(), "a worker outlived its node");
    }
    let took = start.elapsed();
    running.child.wait().unwrap();
    println!("{sharing}: the workers have ended after {took:?}");
    assert!(took < Duration::from_secs(1), "{took:?}");
    until("no process of it is left", || processes_of(folder.path()).is_empty());
    println!("{sharing}: all its processes have ended after {:?}", start.elapsed());
    until("no file of it is left", || names(folder.path()).is_empty());
    let left: Vec<_> = names(Path::new("/dev/shm")).difference(&shared).cloned().collect();
    println!("{sharing}: new in /dev/shm: {left:?}");
    assert!(left.iter().all(|name| !name.contains("tensorpost")), "{left:?}");
    if let Some(free) = free {
        let is_back = || free_bytes().unwrap() + MEMORY_SLACK >= free;
        until("the GPU's memory is back", is_back);
        println!("{sharing}: the memory is back after {:?} at most", start.elapsed());
    }
}

/// On a GPU the test compares the free memory, so nothing else may use it meanwhile: `--test-threads=1`.
pub(crate) fn a_node_that_is_killed_leaves_nothing_on_the_device(_: Builder) {
    is_killed_and_leaves_nothing("isolated");
}

/// The same with a daemon and its server.
pub(crate) fn a_node_that_is_killed_leaves_no_mps_daemon(_: Builder) {
    is_killed_and_leaves_nothing("mps");
}

/// "How do you count, and what is in this?" It is passed on first, if there is an actor to pass it on to.
#[derive(Debug, Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Vec<Counted>)]
struct Count {
    tensor: Tensor,
    device: Device,
    next: Option<Address<Count>>,
}

/// A worker's report on its devices.
#[derive(Debug, Serialize, Deserialize)]
struct Counted {
    visible: Option<String>,
    /// In its order.
    all: Vec<DeviceId>,
    /// The worker's numbers of the device that the message named, and of the tensor's.
    numbers: [Option<usize>; 2],
    tensor: DeviceId,
    elements: Vec<u32>,
}

struct Counter {
    stream: DeviceStream,
}

impl Actor for Counter {
    type Context = Context<Self>;
}

impl RemoteActor for Counter {
    type Args = ();

    fn create((): (), env: &Env) -> anyhow::Result<Self> {
        Ok(Counter { stream: env.stream() })
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Count>();
    }
}

impl Handler<Count> for Counter {
    type Result = ResponseFuture<Vec<Counted>>;

    fn handle(&mut self, Count { tensor, device, next }: Count, _: &mut Context<Self>) -> Self::Result {
        let number = |id| Device::by_id(id).expect("it is visible here").ordinal();
        let copy = self.stream.copy(&tensor).expect("reach").freeze();
        let counted = Counted {
            visible: env::var(VISIBLE).ok(),
            all: Device::all().iter().map(Device::id).collect(),
            numbers: [number(device.id()), number(tensor.device())],
            tensor: tensor.device(),
            elements: self.stream.download(&copy).expect("elements"),
        };
        let further = next.map(|next| next.ask(Count { tensor: copy, device, next: None }));
        Box::pin(async move {
            let mut all = vec![counted];
            if let Some(further) = further {
                all.extend(further.await.expect("the other worker answers"));
            }
            all
        })
    }
}

/// The node counts the GPUs as they are, its first worker from the other end, and its second one by UUIDs.
fn orders(builder: Builder) -> anyhow::Result<()> {
    let order = PathBuf::from(env::var_os(ORDER).expect("where to write it"));
    let (device, _) = device();
    let gpus: Vec<Device> =
        Device::all().into_iter().filter(|stream| stream.kind() == DeviceKind::Cuda).collect();
    let backwards: Vec<String> = (0..gpus.len()).rev().map(|number| number.to_string()).collect();
    let by_identity: Vec<String> = gpus.iter().map(|stream| stream.id().to_string()).collect();
    let node = builder.start()?;
    let mut counters = Vec::new();
    for visible in [backwards, by_identity] {
        fs::write(&order, visible.join(","))?;
        counters.push(node.spawn::<Counter>(()).device(device.clone()).start()?.address::<Count>());
    }
    let elements: Vec<u32> = (0..1000).collect();
    for [first, second] in [[0, 1], [1, 0]] {
        let tensor = node.stream(&device)?.from_slice(&[1000], &elements)?.freeze();
        let count = Count { tensor, device: device.clone(), next: Some(counters[second].clone()) };
        let counted = node.block_on(counters[first].ask(count))?;
        for Counted { visible, all, numbers, tensor, elements: got } in &counted {
            println!("a worker with {VISIBLE}={visible:?}: {numbers:?} of {all:?}");
            anyhow::ensure!(*tensor == device.id() && *got == elements, "the tensor is another there");
            anyhow::ensure!(numbers[0] == numbers[1], "the device that was told is not the tensor's");
            anyhow::ensure!(all.len() == gpus.len() + 1, "it sees other devices: {all:?}");
        }
        let differ = counted[0].numbers != counted[1].numbers;
        // Where the number of GPUs is odd, the one in the middle has the same number from both ends.
        let middle = device.ordinal().is_none_or(|number| 2 * number + 1 == gpus.len());
        anyhow::ensure!(differ != middle, "both count alike: {counted:?}");
    }
    println!("done");
    Ok(())
}

/// "Device 0 here is device 1 there." With one GPU, it is a number in one worker's variable and a UUID in the
/// other's.
pub(crate) fn workers_that_count_the_gpus_differently_mean_the_same(_: Builder) {
    let folder = tempfile::tempdir().unwrap();
    let mut command = scene("orders");
    command.env(ORDER, folder.path().join("order")).env_remove(VISIBLE);
    let mut running = Running::start(command);
    running.line("done");
}
