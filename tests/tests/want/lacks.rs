//! The node's behaviour when the machine has too little of something: memory, room on the disk, processes,
//! time. Descriptors are in `files.rs`.
//!
//! Limits are a process's, so each test starts this program again, as a node that is short of one thing. The
//! node has to name the thing that it lacks and the limit to raise, to lose nothing that was accepted, to
//! serve on, and to leave nothing behind.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Signal, getpriority_process, kill_process, setpriority_process};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tensorpost::actor::{SendError, SendFailure};
use tensorpost::node::{Spawned, WorkerState};
use tensorpost::prelude::*;
use tensorpost_actors::image::{ImageSize, png};
use tensorpost_actors::ready::{Images, ImagesArgs, Named, Repeat, SavePng, SavePngArgs};
use tensorpost_tests::cases;
use tensorpost_tests::gate::Gate;
use tensorpost_tests::harness::{self, Builder, Case};
use tensorpost_tests::holder::{Hold, Holder, LetGo, Seen};
use tensorpost_tests::wait::{ask, deliver, numbers, until, until_free};
use tensorpost_tests::want::{
    Allocate, Fill, Free, Greedy, LONG, Last, MemoryGroup, Scene, descriptors, end, first_node, has, limit,
    nothing_is_left, pid, pid_of, play, play_as, scene, serve,
};

/// The path at which [`full_disk`] has a disk of 64 KiB of its own.
const DISK: &str = "TENSORPOST_TESTS_DISK";
/// Bytes of memory that all processes of [`full_group`] may have.
const GROUP: u64 = 256 << 20;
/// Messages to a worker without a processor: a dozen full mailboxes.
const MESSAGES: u64 = 96;
/// How long the worker is without a processor, if the others have been served by then. On virtual machines a
/// message took such a worker 0.2 to 54 ms of processor time, and it has 2 % of a core. Each page that it
/// first touches after another process's turn took up to 0.3 ms.
const STARVED: Duration = Duration::from_secs(30);
/// How long a node may stand still in [`time_that_nobody_had_counts_against_nobody`] before it reports that,
/// and how long it does stand still.
const LIMIT: Duration = Duration::from_millis(500);
/// See [`LIMIT`].
const PAUSE: Duration = Duration::from_millis(1200);
const PHOTOGRAPHS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/data");

fn little_memory() {
    const MIB: usize = 1 << 20;
    let before = first_node(Node::builder());
    let node = Node::builder().host_budget(1 << 30).start().unwrap();
    let stream = node.host_stream().unwrap();
    let holder = node.spawn::<Holder>(()).start().unwrap();
    let greedy = node.spawn::<Greedy>(()).name("greedy").start().unwrap();
    let poor = pid(&node, &greedy);
    // After this, everything that it needs apart from tensors is there.
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
    // It cannot map so much memory of another process. The asker hears the reason, and the worker goes on.
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

    // A budget of its own names the holders.
    let node = Node::builder().host_budget(256 << 20).start().unwrap();
    let greedy = node.spawn::<Greedy>(()).start().unwrap();
    let (made, why) = ask(&node, &greedy.address(), Allocate { count: 64, bytes: 16 * MIB });
    assert!((8..=16).contains(&made), "{made} times 16 MiB of 256 MiB");
    has(&why.unwrap(), &["the pool of host memory is full", "of 268435456 bytes"]);
    ask(&node, &greedy.address(), Free);
    assert_eq!(ask(&node, &greedy.address(), Allocate { count: 1, bytes: 16 * MIB }), (1, None));
    end(node, greedy, before);
}

/// The group may have 256 MiB, the pages of tensors included. There the system answers with a kill.
fn full_group() {
    const MIB: usize = 1 << 20;
    let before = first_node(Node::builder());
    let node = Node::builder().host_budget(1 << 30).start().unwrap();
    let holder = [node.spawn::<Holder>(()).start().unwrap()];
    let restart = Restart::on_failure(1).backoff(Duration::from_millis(1), Duration::from_millis(2));
    let greedy = node.spawn::<Greedy>(()).name("greedy").restart(restart).start().unwrap();
    let stream = node.host_stream().unwrap();
    deliver(&node, &holder[0].address(), Hold::with(1, numbers(&stream, 1, 4)));
    let asked = greedy.address().ask(Fill(Allocate { count: 64, bytes: 16 * MIB })).timeout(LONG);
    let error = node.block_on(asked).unwrap_err().to_string();
    has(&error, &["worker `greedy`", "has ended: signal: 9 (SIGKILL)"]);
    println!("{error}");
    // The dead worker's memory is free again, and tensors of others stay valid.
    let again = Fill(Allocate { count: 2, bytes: 16 * MIB });
    let made = node.block_on(greedy.address().ask(again).timeout(LONG));
    assert_eq!(made.unwrap(), (2, None));
    ask(&node, &greedy.address(), Free);
    assert_eq!(ask(&node, &holder[0].address(), LetGo), [1]);
    serve(&node, &holder);
    end(node, (holder, greedy, stream), before);
}

fn full_disk() {
    let disk = std::env::var_os(DISK).map(PathBuf::from);
    let before = first_node(Node::builder());
    let node = Node::builder().trace("/dev/full").start().unwrap();
    let holder = [node.spawn::<Holder>(()).start().unwrap()];
    serve(&node, &holder);
    let error = node.write_trace("/dev/full").unwrap().unwrap_err().to_string();
    has(&error, &["/dev/full", "make room on the disk"]);
    let pipeline = Pipeline::new("traced").trace("/dev/full");
    pictures(&pipeline, &std::env::temp_dir().join("saved"));
    // The run's results count, even if its trace is lost.
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
    let before = first_node(Node::builder());
    let node = Node::builder().start().unwrap();
    let holders = [node.spawn::<Holder>(()).start().unwrap()];
    let restart = Restart::on_failure(2).backoff(Duration::from_millis(1), Duration::from_millis(2));
    let comes_back = node.spawn::<Holder>(()).name("comes-back").restart(restart).start().unwrap();
    serve(&node, &holders);
    // The user's threads are counted, and there are more already.
    limit(std::process::id(), Resource::Nproc, Some(1));
    let error = node.spawn::<Holder>(()).start().unwrap_err().to_string();
    has(&error, &["could not be started", "ulimit -u"]);
    println!("{error}");
    // Nor can a worker be restarted: its senders are told.
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

    // A file that is no program.
    let node = Node::builder().worker_program("/dev/null").start();
    let error = match node {
        Ok(node) => node.spawn::<Holder>(()).start().unwrap_err().to_string(),
        Err(error) => error.to_string(),
    };
    has(&error, &["/dev/null", "may it be executed"]);
    let Err(error) = Node::builder().worker_program("/is/not/there").start() else {
        panic!("there is no such program")
    };
    has(&error.to_string(), &["/is/not/there", "the doctor finds program", "ls -l /is/not/there"]);
    until("all descriptors are closed", || descriptors(std::process::id()) <= before);
}

fn pauses() {
    let gate = Gate::new();
    let builder = Node::builder().hang_limit(LIMIT, OnHang::Restart).start_deadline(LIMIT * 8);
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

/// A worker of the lowest priority shares one core with threads that are busy and have 50 times its weight.
fn little_processor() {
    let before = first_node(Node::builder());
    let node = Node::builder().start().unwrap();
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
    let (over, served, began) = (Arc::default(), Arc::default(), Instant::now());
    // The test may be nice itself; each step of niceness divides the weight by 1.25.
    let nice = getpriority_process(None).unwrap();
    let threads = (50.0 * 1.25_f64.powi(nice - 19)).ceil() as usize;
    let busy = (0..threads).map(|_| {
        let (is_over, are_served) = (Arc::<AtomicBool>::clone(&over), Arc::<AtomicBool>::clone(&served));
        std::thread::spawn(move || {
            sched_setaffinity(None, &core).unwrap();
            let may_end = || are_served.load(Ordering::Relaxed) && began.elapsed() >= STARVED;
            while !(is_over.load(Ordering::Relaxed) || may_end()) {
                std::hint::spin_loop();
            }
        })
    });
    let busy: Vec<_> = busy.collect();
    let used = processor_time(poor);
    // A sender that does not wait gets the message back when the mailbox is full, and can send it again.
    let (mut returned, mut label, stream) = (0, 0, node.host_stream().unwrap());
    while label < MESSAGES {
        match slow.address().try_send(Hold::with(label, numbers(&stream, 1, 4))) {
            Ok(()) => label += 1,
            Err(SendError { message, reason: SendFailure::Full, .. }) => {
                assert_eq!(message.label, label);
                if returned == 0 {
                    // The others are served meanwhile.
                    serve_while(&node, &other);
                    served.store(true, Ordering::Relaxed);
                }
                returned += 1;
                node.block_on(slow.address().send(message)).unwrap();
                label += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(returned > 0, "its mailbox was full");
    assert_eq!(ask(&node, &slow.address(), LetGo), (0..MESSAGES).collect::<Vec<_>>());
    let (took, used) = (began.elapsed(), processor_time(poor) - used);
    println!("{MESSAGES} messages in {took:?}, {used:?} of them on the processor; {returned} given back");
    assert_eq!(node.supervisor().worker(slow.worker()).unwrap().state, WorkerState::Running);
    over.store(true, Ordering::Relaxed);
    until_free(&node);
    busy.into_iter().for_each(|thread| thread.join().unwrap());
    end(node, (slow, other, stream), before);
}

/// Returns how long a process's threads have run.
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

fn memory_that_there_is_not_is_an_error_of_who_asks(_: Builder) {
    play("little_memory");
}

fn a_full_group_costs_the_worker_that_fills_it(_: Builder) {
    let group = MemoryGroup::new(GROUP).unwrap();
    let text = play_as(group.command(&std::env::current_exe().unwrap()), "full_group");
    has(
        &text,
        &[
            "the node did not kill it",
            "memory.events of the cgroup",
            "lower `host_budget` or raise the limit",
        ],
    );
    assert_eq!(group.killed(), Some(1), "{text}");
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
        // As on a machine that is suspended, all processes stop at once, for longer than anything may stand
        // still.
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

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = cases![
        memory_that_there_is_not_is_an_error_of_who_asks,
        a_full_disk_costs_what_was_to_be_written,
        a_process_that_cannot_be_started_is_named_with_its_limit,
        time_that_nobody_had_counts_against_nobody,
    ];
    let slow = cases![a_worker_with_2_percent_of_a_core_loses_nothing];
    // The case checks for losses, and not how long it takes.
    cases.extend(slow.into_iter().map(|case| case.within(harness::DEADLINE * 5)));
    let group = cases![a_full_group_costs_the_worker_that_fills_it];
    cases.extend(group.into_iter().map(|case| case.only_where(|| MemoryGroup::new(GROUP).map(drop))));
    cases
}

pub(crate) const SCENES: &[Scene] = &[
    ("little_memory", little_memory),
    ("full_group", full_group),
    ("full_disk", full_disk),
    ("no_process", no_process),
    ("pauses", pauses),
    ("little_processor", little_processor),
];
