//! A node that is short of a resource: this program again, as a node in a scene, and an actor that uses up
//! its process's share.
//!
//! Limits are a process's, so each case starts a process that is a node.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit, set_parent_process_death_signal};
use tensorpost::node::{Node, Spawned};
use tensorpost::prelude::*;

use crate::harness::{self, Builder, Case};
use crate::holder::{Hold, Holder, LetGo, Read as ReadIt};
use crate::wait::{ask, deliver, numbers, until, until_free};

/// Set in the program that is a node in want: the scene that it plays, and the id of the process that started
/// it.
const SCENE: &str = "TENSORPOST_TESTS_WANT";

/// How long a step of milliseconds may take on a busy machine.
pub const LONG: Duration = Duration::from_secs(20);

/// An actor that uses up its process's share of a resource.
#[derive(Debug)]
pub struct Greedy {
    stream: DeviceStream,
    files: Vec<File>,
    tensors: Vec<TensorMut>,
}

/// "Open files until only this many descriptors are left, or close them."
#[derive(Debug, Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = ())]
pub struct Open(pub Option<usize>);

/// "Make this many tensors of this many bytes, or as many as there is room for." The reply is how many there
/// were, and why there were no more.
#[derive(Debug, Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = (usize, Option<String>))]
pub struct Allocate {
    /// How many.
    pub count: usize,
    /// The bytes of each.
    pub bytes: usize,
}

/// As [`Allocate`], but all of them are written: pages that nobody has touched take no memory.
#[derive(Debug, Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = (usize, Option<String>))]
pub struct Fill(pub Allocate);

/// "Drop them."
#[derive(Debug, Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = ())]
pub struct Free;

/// "Send a message to this one." The reply is why that was not possible.
#[derive(Debug, Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Option<String>)]
pub struct Tell(pub Address<Hold>);

/// "Have that one send a message to this one." The reply is why that was not possible.
#[derive(Debug, Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Option<String>)]
pub struct Through {
    /// The sender.
    pub by: Address<Tell>,
    /// The receiver.
    pub to: Address<Hold>,
}

/// "What is the last element of this?"
#[derive(Debug, Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = u32)]
pub struct Last(#[tensor(dtype = u32)] pub Tensor);

impl Actor for Greedy {
    type Context = Context<Self>;
}

impl RemoteActor for Greedy {
    type Args = ();

    fn create((): (), env: &Env) -> anyhow::Result<Self> {
        Ok(Greedy { stream: env.stream(), files: Vec::new(), tensors: Vec::new() })
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Open>().message::<Allocate>().message::<Free>().message::<Tell>().message::<Through>();
        on.message::<Last>().message::<Fill>();
    }
}

impl Handler<Open> for Greedy {
    type Result = MessageResult<Open>;

    fn handle(&mut self, Open(left): Open, _: &mut Context<Self>) -> Self::Result {
        self.files.clear();
        self.files = left.map_or(Vec::new(), all_files_but);
        MessageResult(())
    }
}

impl Handler<Allocate> for Greedy {
    type Result = MessageResult<Allocate>;

    fn handle(&mut self, Allocate { count, bytes }: Allocate, _: &mut Context<Self>) -> Self::Result {
        let why = (0..count).find_map(|_| match self.stream.zeros(DType::U8, &[bytes]) {
            Ok(tensor) => {
                self.tensors.push(tensor);
                None
            }
            Err(error) => Some(error.to_string()),
        });
        MessageResult((self.tensors.len(), why))
    }
}

impl Handler<Fill> for Greedy {
    type Result = MessageResult<Fill>;

    fn handle(&mut self, Fill(Allocate { count, bytes }): Fill, _: &mut Context<Self>) -> Self::Result {
        let why = (0..count).find_map(|_| match self.stream.zeros(DType::U8, &[bytes]) {
            Ok(mut tensor) => {
                tensor.as_mut_slice::<u8>().unwrap().fill(1);
                self.tensors.push(tensor);
                None
            }
            Err(error) => Some(error.to_string()),
        });
        MessageResult((self.tensors.len(), why))
    }
}

impl Handler<Free> for Greedy {
    type Result = MessageResult<Free>;

    fn handle(&mut self, _: Free, _: &mut Context<Self>) -> Self::Result {
        self.tensors.clear();
        MessageResult(())
    }
}

impl Handler<Tell> for Greedy {
    type Result = ResponseFuture<Option<String>>;

    fn handle(&mut self, Tell(to): Tell, _: &mut Context<Self>) -> Self::Result {
        Box::pin(async move { to.send(Hold::label(5)).await.err().map(|error| error.to_string()) })
    }
}

impl Handler<Through> for Greedy {
    type Result = ResponseFuture<Option<String>>;

    fn handle(&mut self, Through { by, to }: Through, _: &mut Context<Self>) -> Self::Result {
        Box::pin(async move { by.ask(Tell(to)).await.unwrap_or_else(|error| Some(error.to_string())) })
    }
}

impl Handler<Last> for Greedy {
    type Result = MessageResult<Last>;

    fn handle(&mut self, Last(tensor): Last, _: &mut Context<Self>) -> Self::Result {
        MessageResult(*tensor.as_slice::<u32>().unwrap().last().unwrap())
    }
}

/// A cgroup with a memory limit, of either version. It is removed with this value, and has no process by
/// then.
#[derive(Debug)]
pub struct MemoryGroup(PathBuf);

impl MemoryGroup {
    /// Makes a cgroup of this many bytes in the group of this process or, where that may have none in it, in
    /// the outermost one.
    ///
    /// # Errors
    /// The reason why none can be made here.
    pub fn new(bytes: u64) -> Result<Self, String> {
        let groups = fs::read_to_string("/proc/self/cgroup").map_err(|error| error.to_string())?;
        let mut why_not = Vec::new();
        for line in groups.lines() {
            let Some((controllers, path)) = line.split_once(':').and_then(|(_, rest)| rest.split_once(':'))
            else {
                continue;
            };
            let (root, maximum, swap) = match controllers {
                "" => ("/sys/fs/cgroup", "memory.max", "memory.swap.max"),
                "memory" => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.swappiness"),
                _ => continue,
            };
            for parent in [Path::new(root).join(path.trim_start_matches('/')), PathBuf::from(root)] {
                let group = parent.join(format!("tensorpost-{}", std::process::id()));
                if let Err(error) = fs::create_dir(&group) {
                    why_not.push(format!("{}: {error}", group.display()));
                    continue;
                }
                let group = MemoryGroup(group);
                match fs::write(group.0.join(maximum), bytes.to_string()) {
                    Ok(()) => {
                        // Many machines have no swap, or do not count it.
                        let _ = fs::write(group.0.join(swap), "0");
                        return Ok(group);
                    }
                    Err(error) => why_not.push(format!("{}: {error}", group.0.join(maximum).display())),
                }
            }
        }
        Err(format!("no cgroup with a limit of memory can be made here ({})", why_not.join("; ")))
    }

    /// Returns a command that runs `program` in the cgroup.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ > \"$0\" && exec \"$1\""]).arg(self.0.join("cgroup.procs")).arg(program);
        command
    }

    /// Returns how many processes the system has killed for want of memory.
    pub fn killed(&self) -> Option<u64> {
        let texts = ["memory.events", "memory.oom_control"].map(|name| fs::read_to_string(self.0.join(name)));
        let lines = texts.iter().flatten().flat_map(|text| text.lines());
        lines.filter_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok()).next()
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // Processes that have ended leave it a moment later.
        let began = std::time::Instant::now();
        while fs::remove_dir(&self.0).is_err() && began.elapsed() < LONG {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Opens as many files as this process can, except for this many.
pub fn all_files_but(left: usize) -> Vec<File> {
    let mut files: Vec<_> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    files.truncate(files.len().saturating_sub(left));
    files
}

/// Returns a command that runs this program again, in a scene.
pub fn scene(mut command: Command, name: &str, folder: &Path) -> Command {
    command.env(SCENE, format!("{name}:{}", std::process::id())).env("TMPDIR", folder).env_remove("RUST_LOG");
    command
}

/// Plays a scene to its end, and returns the output of its processes.
pub fn play(name: &str) -> String {
    play_as(Command::new("/proc/self/exe"), name)
}

/// As [`play`], by another command.
pub fn play_as(command: Command, name: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let (mut reader, writer) = std::io::pipe().unwrap();
    let mut command = scene(command, name, folder.path());
    command.stdin(Stdio::null()).stdout(writer.try_clone().unwrap()).stderr(writer);
    let mut child = command.spawn().unwrap();
    drop(command);
    // The pipe ends with the last process that has it, so a process that is left behind hangs this.
    let mut text = Vec::new();
    reader.read_to_end(&mut text).unwrap();
    let (status, text) = (child.wait().unwrap(), String::from_utf8_lossy(&text).into_owned());
    assert!(status.success(), "{status}:\n{text}");
    nothing_is_left(folder.path());
    text
}

/// Asserts that a folder is empty, and that no shared memory has a name.
pub fn nothing_is_left(folder: &Path) {
    let names = |folder: &Path| -> Vec<String> {
        let entries = fs::read_dir(folder).into_iter().flatten();
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
    };
    assert_eq!(names(folder), Vec::<String>::new());
    assert!(names(Path::new("/dev/shm")).iter().all(|name| !name.contains("tensorpost")));
}

/// Asserts that all of these are in the text.
#[track_caller]
pub fn has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "`{part}` is missing in: {text}");
    }
}

/// Returns the number of descriptors of a process.
pub fn descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

/// Sets the soft limit of a process, or takes it away.
pub fn limit(pid: u32, resource: Resource, current: Option<u64>) {
    let maximum = getrlimit(resource).maximum;
    prlimit(pid_of(pid), resource, Rlimit { current: current.or(maximum), maximum }).unwrap();
}

/// Returns the process with that number.
pub fn pid_of(pid: u32) -> Option<Pid> {
    Pid::from_raw(pid.cast_signed())
}

/// Returns the process id of an actor.
pub fn pid<A: RemoteActor>(node: &Node, of: &Spawned<A>) -> u32 {
    node.supervisor().worker(of.worker()).unwrap().pid
}

/// Asserts that the holders answer, and get their messages.
pub fn serve(node: &Node, holders: &[Spawned<Holder>]) {
    let stream = node.host_stream().unwrap();
    for holder in holders {
        deliver(node, &holder.address(), Hold::with(7, numbers(&stream, 3, 50)));
        assert_eq!(ask(node, &holder.address(), ReadIt(numbers(&stream, 5, 3))), [5, 6, 7]);
        assert_eq!(ask(node, &holder.address(), LetGo), [7]);
    }
    until_free(node);
}

/// Starts and ends a node: memory that its program keeps after that is no leak of the next one.
pub fn first_node(builder: Builder) -> usize {
    let node = builder.start().unwrap();
    serve(&node, &[node.spawn::<Holder>(()).start().unwrap()]);
    end(node, (), usize::MAX);
    descriptors(std::process::id())
}

/// Ends a node whose workers are all idle, and drops the values that the test still holds of it.
pub fn end(node: Node, held: impl Sized, descriptors_before: usize) {
    let report = node.shutdown(LONG).unwrap();
    assert!(report.is_clean(), "{report:?}");
    drop((held, node));
    until("all descriptors are closed", || descriptors(std::process::id()) <= descriptors_before);
}

/// A node in want: its name and its function.
pub type Scene = (&'static str, fn());

/// Plays a scene, or runs the cases, one after the other.
pub fn run(cases: Vec<Case>, scenes: &[Scene]) {
    let Ok(set) = std::env::var(SCENE) else { harness::run_one_by_one(cases) };
    let (scene, parent) = set.split_once(':').unwrap();
    // A test that is given up leaves no node behind.
    set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
    assert_eq!(std::os::unix::process::parent_id().to_string(), parent);
    tracing_subscriber::fmt().with_max_level(tracing::Level::WARN).with_writer(std::io::stderr).init();
    let (_, play) = scenes.iter().find(|(name, _)| *name == scene).expect("a scene of that name");
    play();
}
