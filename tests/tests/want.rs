//! What a node does when the machine has too little of something: descriptors, memory, room on the disk, processes, time.
//!
//! Limits are a process's, so each test starts this program again, as a node that is short of one thing. The node has to say
//! what it lacks and what to raise, to lose nothing that was accepted, to serve on, and to leave nothing behind.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{
    Pid, Resource, Rlimit, Signal, getpriority_process, getrlimit, kill_process, prlimit,
    set_parent_process_death_signal, setpriority_process, setrlimit,
};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tensorpost::actor::{SendError, SendFailure};
use tensorpost::node::{Spawned, WorkerState};
use tensorpost::prelude::*;
use tensorpost_actors::image::{ImageSize, png};
use tensorpost_actors::ready::{Images, ImagesArgs, Named, Repeat, SavePng, SavePngArgs};
use tensorpost_tests::cases;
use tensorpost_tests::gate::Gate;
use tensorpost_tests::harness::{self, Builder};
use tensorpost_tests::holder::{Hold, Holder, LetGo, Make, Read as ReadIt, Seen};
use tensorpost_tests::wait::{ask, deliver, numbers, until, until_free};

/// Set in the program that is a node in want: which scene it plays, and for whom.
const SCENE: &str = "TENSORPOST_TESTS_WANT";
/// Where [`full_disk`] has a disk of 64 KiB of its own.
const DISK: &str = "TENSORPOST_TESTS_DISK";
/// The descriptors that a process in want of them may have.
const FEW: u64 = 64;
/// How long what takes milliseconds may take on a busy machine.
const LONG: Duration = Duration::from_secs(20);
/// What a worker without a processor is sent.
const MESSAGES: u64 = 500;
/// How long a node may stand still in [`time_that_nobody_had_counts_against_nobody`] before it reports that, and how long it
/// does stand still.
const LIMIT: Duration = Duration::from_millis(500);
/// See [`LIMIT`].
const PAUSE: Duration = Duration::from_millis(1200);
const PHOTOGRAPHS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/data");

/// An actor that uses up what its process may have.
struct Greedy {
    stream: DeviceStream,
    files: Vec<File>,
    tensors: Vec<TensorMut>,
}

/// "Open files until there is no descriptor left, or close them."
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = ())]
struct Open(bool);

/// "Make so many tensors of so many bytes, or as many as there is room for." The reply is how many there were, and why there
/// were no more.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = (usize, Option<String>))]
struct Allocate {
    count: usize,
    bytes: usize,
}

/// "Drop them."
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = ())]
struct Free;

/// "Send this one something." The reply is why that was not possible.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Option<String>)]
struct Tell(Address<Hold>);

/// "What is the last element of this?"
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = u32)]
struct Last(#[tensor(dtype = u32)] Tensor);

impl Actor for Greedy {
    type Context = Context<Self>;
}

impl RemoteActor for Greedy {
    type Args = ();

    fn create((): (), env: &Env) -> anyhow::Result<Self> {
        Ok(Greedy { stream: env.stream(), files: Vec::new(), tensors: Vec::new() })
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Open>().message::<Allocate>().message::<Free>().message::<Tell>().message::<Last>();
    }
}

impl Handler<Open> for Greedy {
    type Result = MessageResult<Open>;

    fn handle(&mut self, Open(all): Open, _: &mut Context<Self>) -> Self::Result {
        self.files = if all { all_files() } else { Vec::new() };
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

impl Handler<Last> for Greedy {
    type Result = MessageResult<Last>;

    fn handle(&mut self, Last(tensor): Last, _: &mut Context<Self>) -> Self::Result {
        MessageResult(*tensor.as_slice::<u32>().unwrap().last().unwrap())
    }
}

/// As many files as this process can open.
fn all_files() -> Vec<File> {
    std::iter::from_fn(|| File::open("/dev/null").ok()).collect()
}

/// This program again, in a scene.
fn scene(mut command: Command, name: &str, folder: &Path) -> Command {
    command.env(SCENE, format!("{name}:{}", std::process::id())).env("TMPDIR", folder).env_remove("RUST_LOG");
    command
}

/// Plays a scene to its end, and returns what its processes have written.
fn play(name: &str) -> String {
    play_as(Command::new("/proc/self/exe"), name)
}

fn play_as(command: Command, name: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let (mut reader, writer) = std::io::pipe().unwrap();
    let mut command = scene(command, name, folder.path());
    command.stdin(Stdio::null()).stdout(writer.try_clone().unwrap()).stderr(writer);
    let mut child = command.spawn().unwrap();
    drop(command);
    // The pipe ends with the last process that has it: one that is left behind hangs this.
    let mut text = Vec::new();
    reader.read_to_end(&mut text).unwrap();
    let (status, text) = (child.wait().unwrap(), String::from_utf8_lossy(&text).into_owned());
    assert!(status.success(), "{status}:\n{text}");
    nothing_is_left(folder.path());
    text
}

fn nothing_is_left(folder: &Path) {
    let names = |folder: &Path| -> Vec<String> {
        let entries = fs::read_dir(folder).into_iter().flatten();
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
    };
    assert_eq!(names(folder), Vec::<String>::new());
    assert!(names(Path::new("/dev/shm")).iter().all(|name| !name.contains("tensorpost")));
}

#[track_caller]
fn has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "`{part}` is missing in: {text}");
    }
}

/// The descriptors of a process.
fn descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

/// Sets the soft limit of a process, or takes it away.
fn limit(pid: u32, resource: Resource, current: Option<u64>) {
    let maximum = getrlimit(resource).maximum;
    prlimit(pid_of(pid), resource, Rlimit { current: current.or(maximum), maximum }).unwrap();
}

fn pid_of(pid: u32) -> Option<Pid> {
    Pid::from_raw(pid.cast_signed())
}

fn pid<A: RemoteActor>(node: &Node, of: &Spawned<A>) -> u32 {
    node.supervisor().worker(of.worker()).unwrap().pid
}

/// They answer, and get what they are sent.
fn serve(node: &Node, holders: &[Spawned<Holder>]) {
    let stream = node.host_stream().unwrap();
    for holder in holders {
        deliver(node, &holder.address(), Hold::with(7, numbers(&stream, 3, 50)));
        assert_eq!(ask(node, &holder.address(), ReadIt(numbers(&stream, 5, 3))), [5, 6, 7]);
        assert_eq!(ask(node, &holder.address(), LetGo), [7]);
    }
    until_free(node);
}

fn make(node: &Node, holder: &Spawned<Holder>) -> Result<Tensor, String> {
    let make = Make { elements: vec![1, 2, 3], door: None };
    node.block_on(holder.address().ask(make).timeout(LONG)).map_err(|error| error.to_string())
}

/// A node that has come and gone: what its program keeps after that is no leak of the next one.
fn first_node(builder: Builder) -> usize {
    let node = builder.start().unwrap();
    serve(&node, &[node.spawn::<Holder>(()).start().unwrap()]);
    end(node, (), usize::MAX);
    descriptors(std::process::id())
}

/// Ends a node, none of whose workers is in the middle of anything, and drops what the test still holds of it.
fn end(node: Node, held: impl Sized, descriptors_before: usize) {
    let report = node.shutdown(LONG).unwrap();
    assert!(report.is_clean(), "{report:?}");
    drop((held, node));
    until("all descriptors are closed", || descriptors(std::process::id()) <= descriptors_before);
}

fn few_files_in_the_node() {
    let before = first_node(program(Node::builder()));
    setrlimit(Resource::Nofile, Rlimit { current: Some(FEW), maximum: Some(FEW) }).unwrap();
    let node = program(Node::builder()).start().unwrap();
    let mut holders = Vec::new();
    let why = loop {
        match node.spawn::<Holder>(()).start() {
            Ok(holder) => holders.push(holder),
            Err(error) => break error.to_string(),
        }
        serve(&node, &holders[holders.len() - 1..]);
    };
    has(&why, &["could not be started", "ulimit -n"]);
    assert!(holders.len() >= 2, "{} workers are few for {FEW} descriptors", holders.len());
    println!("{} workers, then: {why}", holders.len());
    // What was kept free is for those that run.
    for holder in &holders[1..] {
        assert_eq!(make(&node, holder).unwrap().to_vec::<u32>().unwrap(), [1, 2, 3]);
    }
    serve(&node, &holders);
    // There is room again when they have ended, for what they had made too.
    for ended in holders.drain(1..) {
        node.supervisor().kill_worker(ended.worker());
        node.supervisor().await_end(ended.worker());
    }
    until("a worker can be started", || {
        node.spawn::<Holder>(()).start().map(|new| holders.push(new)).is_ok()
    });
    serve(&node, &holders);

    // The program takes them all: memory that a worker makes cannot be known to others.
    let taken = all_files();
    let why = make(&node, &holders[1]).unwrap_err();
    has(&why, &["ulimit -n"]);
    println!("{why}");
    let ended = holders.remove(1);
    node.supervisor().await_end(ended.worker());
    serve(&node, &holders);
    drop(taken);
    until("a worker can be started", || {
        node.spawn::<Holder>(()).start().map(|new| holders.push(new)).is_ok()
    });
    serve(&node, &holders);
    end(node, (holders, ended), before);
}

fn few_files_in_a_worker() {
    let before = first_node(program(Node::builder()));
    let node = program(Node::builder()).start().unwrap();
    let stream = node.host_stream().unwrap();
    let holder = node.spawn::<Holder>(()).start().unwrap();
    let greedy = node.spawn::<Greedy>(()).name("greedy").restart(Restart::on_failure(3)).start().unwrap();
    limit(pid(&node, &greedy), Resource::Nofile, Some(FEW));
    ask(&node, &greedy.address(), Open(true));
    // It cannot make memory, and says what to raise.
    let (made, why) = ask(&node, &greedy.address(), Allocate { count: 1, bytes: 100 });
    assert_eq!(made, 0);
    has(&why.unwrap(), &["ulimit -n"]);
    // Nor can it make a link to somebody new.
    let why = ask(&node, &greedy.address(), Tell(holder.address())).unwrap();
    has(&why, &["there is no way", "ulimit -n"]);
    println!("{why}");
    ask(&node, &greedy.address(), Open(false));
    assert_eq!(ask(&node, &greedy.address(), Tell(holder.address())), None);
    until("the message comes", || ask(&node, &holder.address(), LetGo) == [5]);
    assert_eq!(ask(&node, &greedy.address(), Allocate { count: 1, bytes: 100 }), (1, None));
    // It cannot take in a tensor that it would have to map: it ends, says why, and comes back.
    ask(&node, &greedy.address(), Open(true));
    let error = node.block_on(greedy.address().ask(Last(numbers(&stream, 1, 3))).timeout(LONG)).unwrap_err();
    has(&error.to_string(), &["greedy", "ulimit -n"]);
    println!("{error}");
    assert_eq!(ask(&node, &greedy.address(), Last(numbers(&stream, 1, 3))), 3);
    assert_eq!(node.report().unwrap().restarts[0].restarts, 1);
    let held = [holder];
    serve(&node, &held);
    end(node, (held, greedy, stream), before);
}

fn little_memory() {
    const MIB: usize = 1 << 20;
    let before = first_node(program(Node::builder()));
    let node = program(Node::builder()).host_budget(1 << 30).start().unwrap();
    let stream = node.host_stream().unwrap();
    let holder = node.spawn::<Holder>(()).start().unwrap();
    let greedy = node.spawn::<Greedy>(()).name("greedy").start().unwrap();
    let poor = pid(&node, &greedy);
    // So that all that it needs apart from tensors is there.
    assert_eq!(ask(&node, &greedy.address(), Last(numbers(&stream, 1, 3))), 3);
    let status = fs::read_to_string(format!("/proc/{poor}/status")).unwrap();
    let kib = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
    let bytes = kib.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024;
    limit(poor, Resource::As, Some(bytes + (256 << 20)));
    let (made, why) = ask(&node, &greedy.address(), Allocate { count: 64, bytes: 16 * MIB });
    assert!((4..16).contains(&made), "{made} times 16 MiB of 256 MiB");
    let why = why.unwrap();
    has(&why, &["host memory has no room", "lower the budgets", "ulimit -v"]);
    println!("{made} tensors, then: {why}");
    // It cannot map so much of another's memory. Whoever asked hears why, and it goes on.
    let large = stream.zeros(DType::U32, &[64 * MIB]).unwrap().freeze();
    let error = node.block_on(greedy.address().ask(Last(large.clone())).timeout(LONG)).unwrap_err();
    has(&error.to_string(), &["cannot be mapped", "ulimit -v"]);
    println!("{error}");
    ask(&node, &greedy.address(), Free);
    assert_eq!(ask(&node, &greedy.address(), Last(numbers(&stream, 1, 3))), 3);
    assert_eq!(ask(&node, &greedy.address(), Allocate { count: made, bytes: 16 * MIB }), (made, None));
    ask(&node, &greedy.address(), Free);
    limit(poor, Resource::As, None);
    assert_eq!(ask(&node, &greedy.address(), Last(large)), 0);
    assert_eq!(node.supervisor().worker(greedy.worker()).unwrap().state, WorkerState::Running);
    let held = [holder];
    serve(&node, &held);
    end(node, (held, greedy, stream), before);

    // A budget of its own says who has it.
    let node = program(Node::builder()).host_budget(256 << 20).start().unwrap();
    let greedy = node.spawn::<Greedy>(()).start().unwrap();
    let (made, why) = ask(&node, &greedy.address(), Allocate { count: 64, bytes: 16 * MIB });
    assert!((8..=16).contains(&made), "{made} times 16 MiB of 256 MiB");
    has(&why.unwrap(), &["the pool of host memory is full", "of 268435456 bytes"]);
    ask(&node, &greedy.address(), Free);
    assert_eq!(ask(&node, &greedy.address(), Allocate { count: 1, bytes: 16 * MIB }), (1, None));
    end(node, greedy, before);
}

fn full_disk() {
    let disk = std::env::var_os(DISK).map(PathBuf::from);
    let before = first_node(program(Node::builder()));
    let node = program(Node::builder()).trace("/dev/full").start().unwrap();
    let holder = [node.spawn::<Holder>(()).start().unwrap()];
    serve(&node, &holder);
    let error = node.write_trace("/dev/full").unwrap().unwrap_err().to_string();
    has(&error, &["/dev/full", "make room on the disk"]);
    let pipeline = Pipeline::new("traced").trace("/dev/full");
    pictures(&pipeline, &std::env::temp_dir().join("saved"));
    // What it has done counts, whatever becomes of its trace.
    let report = node.run_pipeline(&pipeline).unwrap().wait().unwrap();
    assert_eq!(report.stage("SavePng").map(|stage| stage.items_in), Some(3));
    fs::remove_dir_all(std::env::temp_dir().join("saved")).unwrap();

    if let Some(disk) = disk {
        let old = disk.join("old");
        fs::write(&old, "as it was").unwrap();
        let mut filler = File::create(disk.join("filler")).unwrap();
        while filler.write_all(&[0; 4096]).is_ok() {}
        let names = || fs::read_dir(&disk).unwrap().count();
        let error = node.write_trace(&old).unwrap().unwrap_err().to_string();
        has(&error, &["/old", "make room on the disk"]);
        let error = png::write_gray8(&old, &[0; 64], ImageSize::new(8, 8).unwrap()).unwrap_err();
        has(&error.to_string(), &["/old", "No space"]);
        let pipeline = Pipeline::new("saved");
        pictures(&pipeline, &disk);
        let error = node.run_pipeline(&pipeline).unwrap().wait().unwrap_err();
        has(&error.to_string(), &["SavePng", ".png", "No space left", "has room"]);
        println!("{error}");
        assert_eq!((names(), fs::read(&old).unwrap()), (2, b"as it was".to_vec()));
        drop(filler);
        fs::remove_file(disk.join("filler")).unwrap();
        node.write_trace(&old).unwrap().unwrap();
        assert_eq!(names(), 1);
    }
    serve(&node, &holder);
    end(node, holder, before);
}

fn pictures(pipeline: &Pipeline, folder: &Path) {
    let args = SavePngArgs { folder: folder.to_owned(), gain: 1.0 };
    pipeline
        .source::<Images>(ImagesArgs::folder(PHOTOGRAPHS).repeat(Repeat::Images(3)))
        .sink::<SavePng<Named>>(args);
}

fn no_process() {
    let before = first_node(program(Node::builder()));
    let node = program(Node::builder()).start().unwrap();
    let holders = [node.spawn::<Holder>(()).start().unwrap()];
    let restart = Restart::on_failure(2).backoff(Duration::from_millis(1), Duration::from_millis(2));
    let comes_back = node.spawn::<Holder>(()).name("comes-back").restart(restart).start().unwrap();
    serve(&node, &holders);
    // The user's threads are counted, and there are more already.
    limit(std::process::id(), Resource::Nproc, Some(1));
    let error = node.spawn::<Holder>(()).start().unwrap_err().to_string();
    has(&error, &["could not be started", "ulimit -u"]);
    println!("{error}");
    // Nor can one be restarted: its senders are told.
    node.supervisor().kill_worker(comes_back.worker());
    let error = node.block_on(async {
        loop {
            if let Err(error) = comes_back.address().send(Hold::label(1)).timeout(LONG).await {
                break error;
            }
        }
    });
    assert!(matches!(error.reason, SendFailure::GaveUp(_)), "{error}");
    has(&error.to_string(), &["ulimit -u"]);
    serve(&node, &holders);
    limit(std::process::id(), Resource::Nproc, None);
    let another = [node.spawn::<Holder>(()).start().unwrap()];
    serve(&node, &another);
    end(node, (holders, comes_back, another), before);

    // What is no program.
    let node = program(Node::builder()).worker_program("/dev/null").start();
    let error = match node {
        Ok(node) => node.spawn::<Holder>(()).start().unwrap_err().to_string(),
        Err(error) => error.to_string(),
    };
    has(&error, &["/dev/null", "may it be executed"]);
    let Err(error) = program(Node::builder()).worker_program("/is/not/there").start() else {
        panic!("there is no such program")
    };
    has(&error.to_string(), &["/is/not/there", "the doctor finds program", "ls -l /is/not/there"]);
    until("all descriptors are closed", || descriptors(std::process::id()) <= before);
}

fn pauses() {
    let gate = Gate::new();
    let builder = program(Node::builder()).hang_limit(LIMIT, OnHang::Restart).start_deadline(LIMIT * 8);
    let node = builder.start().unwrap();
    let restart = || Restart::always(3);
    let waits = node.spawn::<Holder>(()).name("waits").restart(restart()).start().unwrap();
    let other = node.spawn::<Holder>(()).name("other").restart(restart()).start().unwrap();
    serve(&node, std::slice::from_ref(&other));
    let mut line = String::new();
    for round in 0..2 {
        // One is in the middle of something, with more to do behind it.
        deliver(&node, &waits.address(), Hold::at(round, &gate.door()));
        deliver(&node, &waits.address(), Hold::label(10 + round));
        let arrival = gate.arrival();
        println!("pids {} {}", pid(&node, &waits), pid(&node, &other));
        std::io::stdin().read_line(&mut line).unwrap();
        arrival.open();
        assert_eq!(ask(&node, &waits.address(), Seen).len() as u64, 2 * (round + 1));
        serve(&node, std::slice::from_ref(&other));
    }
    let report = node.report().unwrap();
    assert!(report.hangs.is_empty(), "{:?}", report.hangs);
    assert!(report.restarts.iter().all(|worker| worker.restarts == 0), "{:?}", report.restarts);
    drop((waits, other));
    let report = node.shutdown(LONG).unwrap();
    assert!(report.is_clean(), "{report:?}");
}

/// A worker as nice as can be, on one core with threads that are busy and 50 times its weight.
fn little_processor() {
    let before = first_node(program(Node::builder()));
    let node = program(Node::builder()).start().unwrap();
    let slow = node.spawn::<Holder>(()).name("slow").mailbox(8).start().unwrap();
    let other = [node.spawn::<Holder>(()).start().unwrap()];
    serve(&node, std::slice::from_ref(&slow));
    let cores = sched_getaffinity(None).unwrap();
    let mut core = CpuSet::new();
    core.set((0..CpuSet::MAX_CPU).rev().find(|at| cores.is_set(*at)).unwrap());
    let poor = pid(&node, &slow);
    for entry in fs::read_dir(format!("/proc/{poor}/task")).unwrap() {
        let thread: u32 = entry.unwrap().file_name().to_string_lossy().parse().unwrap();
        setpriority_process(pid_of(thread), 19).unwrap();
        sched_setaffinity(pid_of(thread), &core).unwrap();
    }
    let over = Arc::new(AtomicBool::new(false));
    // The test may be nice itself; each step of niceness divides the weight by 1.25.
    let nice = getpriority_process(None).unwrap();
    let threads = (50.0 * 1.25_f64.powi(nice - 19)).ceil() as usize;
    let busy = (0..threads).map(|_| {
        let is_over = Arc::clone(&over);
        std::thread::spawn(move || {
            sched_setaffinity(None, &core).unwrap();
            while !is_over.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        })
    });
    let busy: Vec<_> = busy.collect();
    let (began, used) = (Instant::now(), processor_time(poor));
    // Whoever does not wait gets the message back when the mailbox is full, and can send it again.
    let (mut returned, mut label, stream) = (0, 0, node.host_stream().unwrap());
    while label < MESSAGES {
        match slow.address().try_send(Hold::with(label, numbers(&stream, 1, 4))) {
            Ok(()) => label += 1,
            Err(SendError { message, reason: SendFailure::Full }) => {
                assert_eq!(message.label, label);
                returned += 1;
                node.block_on(slow.address().send(message)).unwrap();
                label += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    // The others are served meanwhile.
    serve_while(&node, &other);
    assert_eq!(ask(&node, &slow.address(), LetGo), (0..MESSAGES).collect::<Vec<_>>());
    let (took, used) = (began.elapsed(), processor_time(poor) - used);
    println!("{MESSAGES} messages in {took:?}, {used:?} of them on the processor; {returned} given back");
    assert_eq!(node.supervisor().worker(slow.worker()).unwrap().state, WorkerState::Running);
    until_free(&node);
    over.store(true, Ordering::Relaxed);
    busy.into_iter().for_each(|thread| thread.join().unwrap());
    end(node, (slow, other, stream), before);
}

/// How long a process's threads have run.
fn processor_time(pid: u32) -> Duration {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let of_each = threads.map(|entry| fs::read_to_string(entry.unwrap().path().join("schedstat")).unwrap());
    of_each.map(|text| Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())).sum()
}

/// As [`serve`], while others hold memory.
fn serve_while(node: &Node, holders: &[Spawned<Holder>]) {
    for holder in holders {
        deliver(node, &holder.address(), Hold::label(1));
        assert_eq!(ask(node, &holder.address(), LetGo), [1]);
    }
}

fn a_node_with_64_descriptors_says_so_and_serves_those_it_has(_: Builder) {
    let text = play("few_files_in_the_node");
    has(&text, &["the node may open no more files and has lost what this worker sent"]);
}

fn a_worker_with_64_descriptors_costs_itself(_: Builder) {
    play("few_files_in_a_worker");
}

fn memory_that_there_is_not_is_an_error_of_who_asks(_: Builder) {
    play("little_memory");
}

fn a_full_disk_costs_what_was_to_be_written(_: Builder) {
    let folder = tempfile::tempdir().unwrap();
    let with_disk = |program: &Path| {
        let mut command = Command::new("unshare");
        if !rustix::process::getuid().is_root() {
            command.arg("--map-root-user");
        }
        let mounts = format!("mount -t tmpfs -o size=64k none \"${DISK}\" && exec \"$0\"");
        command.args(["--mount", "sh", "-c", &mounts]).arg(program).env(DISK, folder.path());
        command
    };
    // The disk goes with its process. Where nothing may be mounted `/dev/full` has to do.
    let mounts =
        with_disk(Path::new("true")).stderr(Stdio::null()).status().is_ok_and(|status| status.success());
    println!("a disk can be mounted: {mounts}");
    let this = std::env::current_exe().unwrap();
    let command = if mounts { with_disk(&this) } else { Command::new(this) };
    let text = play_as(command, "full_disk");
    has(&text, &["the trace could not be written to /dev/full"]);
}

fn a_process_that_cannot_be_started_is_named_with_its_limit(_: Builder) {
    let mut command = Command::new("/proc/self/exe");
    if rustix::process::getuid().is_root() {
        // Root has as many processes as it wants.
        command.uid(65534).gid(65534);
    }
    let text = play_as(command, "no_process");
    has(&text, &["ulimit -u"]);
}

fn time_that_nobody_had_counts_against_nobody(_: Builder) {
    let folder = tempfile::tempdir().unwrap();
    let mut command = scene(Command::new("/proc/self/exe"), "pauses", folder.path());
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    for _ in 0..2 {
        let line = lines.by_ref().find(|line| line.starts_with("pids ")).expect("the scene goes on");
        let workers = line.split(' ').skip(1).map(|pid| pid.parse::<u32>().unwrap());
        let all: Vec<_> = std::iter::once(child.id()).chain(workers).collect();
        // As a machine that is suspended: all at once, for longer than anything may stand still.
        all.iter().for_each(|pid| kill_process(pid_of(*pid).unwrap(), Signal::STOP).unwrap());
        std::thread::sleep(PAUSE);
        all.iter().for_each(|pid| kill_process(pid_of(*pid).unwrap(), Signal::CONT).unwrap());
        writeln!(child.stdin.as_ref().unwrap(), "go on").unwrap();
    }
    assert!(lines.all(|line| !line.contains("panicked")));
    assert!(child.wait().unwrap().success());
    nothing_is_left(folder.path());
}

fn a_worker_with_2_percent_of_a_core_loses_nothing(_: Builder) {
    play("little_processor");
}

fn program(builder: Builder) -> Builder {
    builder.actor::<Holder>().actor::<Greedy>().source::<Images>().sink::<SavePng<Named>>()
}

fn main() {
    let Ok(set) = std::env::var(SCENE) else {
        harness::run_one_by_one(
            program,
            cases![
                a_node_with_64_descriptors_says_so_and_serves_those_it_has,
                a_worker_with_64_descriptors_costs_itself,
                memory_that_there_is_not_is_an_error_of_who_asks,
                a_full_disk_costs_what_was_to_be_written,
                a_process_that_cannot_be_started_is_named_with_its_limit,
                time_that_nobody_had_counts_against_nobody,
                a_worker_with_2_percent_of_a_core_loses_nothing,
            ],
            harness::DEADLINE,
        )
    };
    let _ = program(Node::builder()).run_if_worker();
    let (scene, parent) = set.split_once(':').unwrap();
    // A test that is given up leaves no node behind.
    set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
    assert_eq!(std::os::unix::process::parent_id().to_string(), parent);
    tracing_subscriber::fmt().with_max_level(tracing::Level::WARN).with_writer(std::io::stderr).init();
    match scene {
        "few_files_in_the_node" => few_files_in_the_node(),
        "few_files_in_a_worker" => few_files_in_a_worker(),
        "little_memory" => little_memory(),
        "full_disk" => full_disk(),
        "no_process" => no_process(),
        "pauses" => pauses(),
        "little_processor" => little_processor(),
        other => panic!("there is no scene `{other}`"),
    }
}
