//! The console of a running node: its contents, its users, and that no watcher costs the node anything (CON-1
//! to CON-3).

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, send,
    socket_with,
};
use rustix::process::{Pid, Signal, kill_process};
use tensorpost::node::{Console, Spawned};
use tensorpost::prelude::*;
use tensorpost_tests::cases;
use tensorpost_tests::gate::Gate;
use tensorpost_tests::harness::{self, Builder, Case};
use tensorpost_tests::holder::{Check, Hold, Holder, LetGo};
use tensorpost_tests::user;
use tensorpost_tests::wait::{ask, deliver, numbers, until};
use tensorpost_watch::console::{
    self, Answer, ConsoleError, Hello, LogLine, NodeSnapshot, ProcessState, Request, SentReport, Severity,
    VERSION,
};

/// A node with its console at a path of its own, and a holder.
struct Scene {
    node: Node,
    holder: Spawned<Holder>,
    path: PathBuf,
    _folder: tempfile::TempDir,
}

impl Scene {
    fn new(builder: Builder) -> Scene {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("console");
        let node = builder.console(Console::At(path.clone())).start().unwrap();
        let holder = node.spawn::<Holder>(()).name("held").mailbox(4).start().unwrap();
        Scene { node, holder, path, _folder: folder }
    }

    fn attach(&self) -> console::Console {
        console::Console::at(&self.path).unwrap()
    }

    /// Looks until all processes have answered: on a busy machine one may be late.
    fn snapshot(&self, console: &mut console::Console) -> NodeSnapshot {
        let mut snapshot = None;
        until("all processes answer", || {
            let now = console.snapshot().unwrap();
            let all = now.processes.iter().all(|process| process.metrics.is_some());
            snapshot = Some(now);
            all
        });
        snapshot.unwrap()
    }

    /// Checks that a message goes through the node and its worker.
    fn works(&self) {
        ask(&self.node, &self.holder.address(), Hold::label(1));
    }

    /// Returns the records of the log that hold `text`; waits for the first.
    fn said(&self, text: &str) -> Vec<LogLine> {
        let mut console = self.attach();
        let mut found = Vec::new();
        until("it is in the log", || {
            let Answer::Log(lines) = console.ask(&Request::Log { after: 0 }).unwrap() else {
                panic!("no log")
            };
            found = lines.into_iter().filter(|line| line.text.contains(text)).collect();
            !found.is_empty()
        });
        found
    }

    /// A connection that keeps to no rules.
    fn raw(&self) -> OwnedFd {
        raw(&self.path)
    }
}

fn raw(path: &Path) -> OwnedFd {
    try_raw(path).unwrap()
}

fn try_raw(path: &Path) -> rustix::io::Result<OwnedFd> {
    let fd = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    connect(&fd, &SocketAddrUnix::new(path)?)?;
    Ok(fd)
}

/// Returns the next packet, or an empty one at the end.
fn packet(fd: &OwnedFd) -> Vec<u8> {
    let mut buffer = vec![0; 1 << 17];
    match recv(fd, &mut buffer[..], RecvFlags::empty()) {
        Ok((_, length)) => buffer[..length].to_vec(),
        Err(Errno::CONNRESET) => Vec::new(),
        Err(error) => panic!("{error}"),
    }
}

fn hello(fd: &OwnedFd) -> Hello {
    serde_json::from_slice(&packet(fd)).unwrap()
}

fn end(node: Node) {
    assert!(node.shutdown(Duration::from_secs(20)).unwrap().is_clean());
}

fn a_look_shows_actors_processes_memory_and_links(builder: Builder) {
    let scene = Scene::new(builder);
    let mut console = scene.attach();
    assert_eq!((console.hello().console, console.hello().pid), (VERSION, std::process::id()));
    let stream = scene.node.host_stream().unwrap();
    ask(&scene.node, &scene.holder.address(), Hold::with(1, numbers(&stream, 0, 4096)));
    let mut snapshot = scene.snapshot(&mut console);
    until("the look is newer than the message", || {
        snapshot = scene.snapshot(&mut console);
        snapshot.actors[0].metrics.as_ref().is_some_and(|metrics| metrics.handled == 1)
    });
    assert_eq!(
        (snapshot.node.pid, snapshot.node.stopping, snapshot.node.hang_limit),
        (std::process::id(), false, None)
    );

    let actor = &snapshot.actors[0];
    assert_eq!((actor.name.as_str(), actor.capacity, actor.state), ("held", 4, ProcessState::Running));
    let metrics = actor.metrics.as_ref().unwrap();
    assert_eq!((NodeSnapshot::device(metrics.device).as_str(), metrics.capacity), ("host", 4));

    let names: Vec<_> = snapshot.processes.iter().map(|process| process.name.as_str()).collect();
    assert_eq!(names, ["node", "held"]);
    assert_eq!(snapshot.processes[1].pid, ask(&scene.node, &scene.holder.address(), Check).pid);
    assert_eq!(snapshot.process(actor.process), "held");

    let own = snapshot.pools.iter().find(|pool| snapshot.process(pool.owner) == "node").unwrap();
    assert_eq!((own.pool.held, own.pool.in_flight, own.pool.tensors), (4096 * 4, 4096 * 4, 1));
    assert!(own.pool.budget >= own.pool.chunks && own.pool.chunks >= own.pool.held);
    let holder = &own.pool.holders[0];
    assert_eq!((snapshot.process(holder.process), holder.bytes, holder.tensors), ("held", 4096 * 4, 1));
    assert!(holder.oldest > Duration::ZERO);

    let link = snapshot.links.iter().find(|link| snapshot.process(link.from) == "node").unwrap();
    assert!(link.link.open && snapshot.process(link.link.peer) == "held");
    // A sender may have had it locked.
    let counts = |sent: &Vec<SentReport>| sent.iter().any(|sent| sent.index == actor.index && sent.sent >= 1);
    assert!(link.link.sent.as_ref().is_none_or(counts), "{link:?}");
    assert_eq!(link.link.lent, 1);

    // The program sees the same.
    let metrics = scene.node.metrics().unwrap();
    let row = &metrics.rows(&metrics)[0];
    assert_eq!((row.capacity, row.restarts, row.state), (4, 0, ProcessState::Running));
    end(scene.node);
}

fn it_is_found_by_its_name_and_a_second_node_has_another(builder: Builder) {
    let first = builder.start().unwrap();
    let second = Node::builder().start().unwrap();
    let _one = first.spawn::<Holder>(()).name("one").start().unwrap();
    let _two = second.spawn::<Holder>(()).name("two").start().unwrap();
    let own = || {
        let mut nodes = console::nodes().unwrap();
        nodes.retain(|node| node.pid == std::process::id());
        nodes
    };
    let names = |node: &console::FoundNode| {
        let snapshot = node.connect().unwrap().snapshot().unwrap();
        snapshot.actors.into_iter().map(|actor| actor.name).collect::<Vec<_>>()
    };
    let found = own();
    assert_eq!(found.len(), 2, "{found:?}");
    let mut both: Vec<_> = found.iter().flat_map(names).collect();
    both.sort();
    assert_eq!(both, ["one", "two"]);
    end(second);
    until("its name is gone", || own().len() == 1);
    end(first);
    until("the other one is gone", || own().is_empty());
}

fn nothing_listens_where_it_is_off(builder: Builder) {
    let node = builder.console(false).start().unwrap();
    assert!(console::nodes().unwrap().iter().all(|node| node.pid != std::process::id()));
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    let names =
        threads.map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).unwrap_or_default());
    assert!(names.into_iter().all(|name| name.trim() != "tp-console"));
    end(node);
}

fn a_socket_that_cannot_be_made_costs_the_run_nothing(builder: Builder) {
    let node = builder.console(Console::At("/there/is/no/such/folder".into())).start().unwrap();
    let holder = node.spawn::<Holder>(()).start().unwrap();
    ask(&node, &holder.address(), Hold::label(1));
    end(node);
}

fn no_worker_has_the_socket(builder: Builder) {
    let scene = Scene::new(builder);
    let _watcher = scene.attach();
    let worker = ask(&scene.node, &scene.holder.address(), Check).pid;
    let table = std::fs::read_to_string("/proc/net/unix").unwrap();
    let path = scene.path.to_str().unwrap();
    // They are the listener, and the node's end of the connection.
    let inodes: Vec<_> = table.lines().filter(|line| line.ends_with(path)).collect();
    assert!(inodes.len() >= 2, "{inodes:?}");
    let descriptors = |pid: u32| {
        let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
        entries.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok()).collect::<Vec<_>>()
    };
    let (of_worker, of_node) = (descriptors(worker), descriptors(std::process::id()));
    for line in inodes {
        let inode = line.split_whitespace().nth(6).unwrap();
        let socket = PathBuf::from(format!("socket:[{inode}]"));
        assert!(of_node.contains(&socket) && !of_worker.contains(&socket), "{line}");
    }
    end(scene.node);
}

fn an_actor_that_stands_still_and_its_full_mailbox_are_seen(builder: Builder) {
    let scene = Scene::new(builder);
    let gate = Gate::new();
    let address = scene.holder.address();
    deliver(&scene.node, &address, Hold::at(0, &gate.door()));
    let arrival = gate.arrival();
    (1..=3).for_each(|label| deliver(&scene.node, &address, Hold::label(label)));
    let mut console = scene.attach();
    until("its queue is seen", || {
        let snapshot = scene.snapshot(&mut console);
        // The worker's one thread waits in the handler, and messages behind it stay where their senders have
        // put them.
        let handled = snapshot.actors[0].metrics.as_ref().unwrap().handled;
        (handled, snapshot.waiting(&snapshot.actors[0])) == (0, Some(4))
    });
    arrival.open();
    assert_eq!(ask(&scene.node, &scene.holder.address(), LetGo), [0, 1, 2, 3]);
    end(scene.node);
}

// CON-1: a worker that does not answer is not asked over and over, so it lives.
fn a_stopped_process_is_silent_and_is_itself_again_afterwards(builder: Builder) {
    let scene = Scene::new(builder);
    let pid = ask(&scene.node, &scene.holder.address(), Check).pid;
    let pid = Pid::from_raw(pid.cast_signed()).unwrap();
    let mut console = scene.attach();
    kill_process(pid, Signal::STOP).unwrap();
    until("it is silent", || console.snapshot().unwrap().processes[1].state == ProcessState::Silent);
    // It may have answered a question before it stopped.
    until("its actor is silent", || {
        let snapshot = console.snapshot().unwrap();
        (snapshot.actors[0].state, snapshot.actors[0].metrics.is_none()) == (ProcessState::Silent, true)
    });
    kill_process(pid, Signal::CONT).unwrap();
    until("it runs", || console.snapshot().unwrap().processes[1].state == ProcessState::Running);
    scene.works();
    end(scene.node);
}

fn a_restart_is_seen(builder: Builder) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("console");
    let node = builder.console(Console::At(path.clone())).start().unwrap();
    let soon = Restart::on_failure(5).backoff(Duration::from_millis(1), Duration::from_millis(5));
    let holder = node.spawn::<Holder>(()).name("mortal").restart(soon).start().unwrap();
    let mut console = console::Console::at(&path).unwrap();
    node.supervisor().kill_worker(holder.worker());
    until("it has come back", || {
        let snapshot = console.snapshot().unwrap();
        let process = snapshot.processes.iter().find(|process| process.name == "mortal").unwrap();
        let actor = snapshot.actors.iter().find(|actor| actor.name == "mortal").unwrap();
        process.restarts == 1 && process.last_end.is_some() && actor.state == ProcessState::Running
    });
    end(node);
}

// CON-3.
fn an_answer_that_no_packet_holds_comes_whole(builder: Builder) {
    let scene = Scene::new(builder);
    // A process has room for 29 of them.
    let worker = |i: u32| scene.node.spawn::<Holder>(()).name(format!("{i:0200}")).start().unwrap();
    let mut more: Vec<_> = (0..4).map(worker).collect();
    for i in 4..104 {
        let beside = more[i as usize % 4].worker();
        more.push(scene.node.spawn::<Holder>(()).worker(beside).name(format!("{i:0200}")).start().unwrap());
    }
    let mut console = scene.attach();
    let snapshot = scene.snapshot(&mut console);
    assert!(snapshot.actors.len() > more.len() && snapshot.left_out == 0);
    assert!(serde_json::to_vec(&snapshot).unwrap().len() > 64 << 10);
    assert!(snapshot.actors.iter().all(|actor| actor.metrics.is_some()));
    end(scene.node);
}

fn a_watcher_that_does_not_read_is_let_go_and_said_once(builder: Builder) {
    let scene = Scene::new(builder);
    for _ in 0..2 {
        let watcher = scene.raw();
        let question = serde_json::to_vec(&Request::Look).unwrap();
        until("it is let go", || {
            match send(&watcher, &question, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(_) | Err(Errno::AGAIN) => false,
                Err(Errno::PIPE | Errno::CONNRESET) => true,
                Err(error) => panic!("{error}"),
            }
        });
        scene.works();
    }
    assert_eq!(scene.said("does not read").len(), 1);
    scene.snapshot(&mut scene.attach());
    end(scene.node);
}

fn a_watcher_that_sends_garbage_is_told_let_go_and_said_once(builder: Builder) {
    let scene = Scene::new(builder);
    for garbage in [&b"\xff\xfe"[..], b"{\"Look\":", b"\"Destroy\"", &[b'['; 4096], &[b'x'; 60_000]] {
        let watcher = scene.raw();
        assert_eq!(hello(&watcher).console, VERSION);
        send(&watcher, garbage, SendFlags::NOSIGNAL).unwrap();
        let answer = String::from_utf8(packet(&watcher)).unwrap();
        assert!(answer.contains("no question"), "{answer}");
        assert!(packet(&watcher).is_empty());
        scene.works();
    }
    assert_eq!(scene.said("no question").len(), 1);
    end(scene.node);
}

fn of_a_thousand_connections_four_are_answered(builder: Builder) {
    let scene = Scene::new(builder);
    let connections: Vec<_> = (0..1000).map(|_| scene.raw()).collect();
    let hellos: Vec<_> = connections.iter().map(hello).collect();
    assert!(hellos.iter().all(|hello| hello.console == VERSION));
    assert_eq!(hellos.iter().filter(|hello| hello.refused.is_none()).count(), 4);
    let refused = console::Console::at(&scene.path).unwrap_err();
    assert!(
        matches!(&refused, ConsoleError::Refused(why) if why.contains(&std::process::id().to_string())),
        "{refused}"
    );
    scene.works();
    drop(connections);
    // The node notices that they have gone when it gets to it.
    until("there is room", || console::Console::at(&scene.path).is_ok());
    assert_eq!(scene.said("was refused").len(), 1);
    end(scene.node);
}

// CON-2. A test of the server covers the decision about users, without another user.
fn another_user_is_told_nothing(builder: Builder) {
    let node = builder.start().unwrap();
    let holder = node.spawn::<Holder>(()).start().unwrap();
    let found = console::nodes().unwrap().into_iter().find(|node| node.pid == std::process::id()).unwrap();
    assert!(user::is_told_nothing(&user::Tries::Console(&found.place()[1..])), "it was told something");
    ask(&node, &holder.address(), Hold::label(1));
    let mut console = found.connect().unwrap();
    until("it is in the log", || {
        let Answer::Log(lines) = console.ask(&Request::Log { after: 0 }).unwrap() else { panic!("no log") };
        let said: Vec<_> = lines.iter().filter(|line| line.text.contains("another user")).collect();
        assert!(said.len() <= 1, "{said:?}");
        said.first().is_some_and(|line| line.severity == Severity::Warn)
    });
    end(node);
}

fn the_log_has_what_the_node_says_of_its_workers(builder: Builder) {
    let scene = Scene::new(builder);
    scene.node.supervisor().kill_worker(scene.holder.worker());
    scene.node.supervisor().await_end(scene.holder.worker());
    let line = scene.said("ended").remove(0);
    assert_eq!((line.severity, line.worker.as_deref()), (Severity::Error, Some("held")));
    assert!(line.unix_ms > 1_700_000_000_000);
    let Answer::Log(rest) = scene.attach().ask(&Request::Log { after: line.number }).unwrap() else {
        panic!("no log")
    };
    assert!(rest.iter().all(|later| later.number > line.number));
    drop(scene.node.shutdown(Duration::from_secs(20)));
}

fn a_worker_goes_by_its_name_where_people_look(builder: Builder) {
    let scene = Scene::new(builder);
    let beside = scene.node.spawn::<Holder>(()).name("beside.12").worker(scene.holder.worker()).own_thread();
    let beside = beside.start().unwrap();
    let pid = ask(&scene.node, &beside.address(), Check).pid;
    let shown = |path: String| std::fs::read_to_string(path).unwrap();
    assert_eq!(shown(format!("/proc/{pid}/comm")), "tp:held\n");
    let own = std::env::args().next().unwrap();
    // The arguments are those of the program.
    let line = shown(format!("/proc/{pid}/cmdline"));
    assert_eq!(line.split('\0').next(), Some(own.as_str()));
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let names: Vec<_> =
        threads.map(|task| shown(format!("{}/comm", task.unwrap().path().display()))).collect();
    assert!(names.contains(&"tp:beside.12\n".to_owned()), "{names:?}");
    end(scene.node);
}

fn a_stop_lets_everything_under_way_finish(builder: Builder) {
    let scene = Scene::new(builder);
    let gate = Gate::new();
    deliver(&scene.node, &scene.holder.address(), Hold::at(0, &gate.door()));
    let arrival = gate.arrival();
    let mut console = scene.attach();
    let stop = Request::Stop { within: Duration::from_secs(60) };
    assert_eq!(console.ask(&stop).unwrap(), Answer::Stopping);
    until("it is seen to stop", || console.snapshot().unwrap().node.stopping);
    arrival.open();
    until("it has ended", || match console.snapshot() {
        Ok(_) => false,
        Err(ConsoleError::Ended) => true,
        Err(error) => panic!("{error}"),
    });
    let report = scene.node.shutdown(Duration::from_secs(20)).unwrap();
    assert!(report.is_clean() && report.drained, "{report:?}");
}

fn a_stop_ends_the_wait_for_a_signal(builder: Builder) {
    let scene = Scene::new(builder);
    let path = scene.path.clone();
    let stopper = std::thread::spawn(move || {
        let mut console = console::Console::at(&path).unwrap();
        console.ask(&Request::Stop { within: Duration::from_secs(60) }).unwrap()
    });
    assert!(scene.node.run_until_ctrl_c(Duration::from_secs(60)).unwrap().is_clean());
    assert_eq!(stopper.join().unwrap(), Answer::Stopping);
}

pub(crate) fn cases() -> Vec<Case> {
    // One after the other, because names of nodes are those of this process.
    let of_others = cases![another_user_is_told_nothing].into_iter();
    let of_others = of_others.map(|case| case.only_where(user::possible));
    let all = cases![
        a_look_shows_actors_processes_memory_and_links,
        it_is_found_by_its_name_and_a_second_node_has_another,
        nothing_listens_where_it_is_off,
        a_socket_that_cannot_be_made_costs_the_run_nothing,
        no_worker_has_the_socket,
        an_actor_that_stands_still_and_its_full_mailbox_are_seen,
        a_stopped_process_is_silent_and_is_itself_again_afterwards,
        a_restart_is_seen,
        an_answer_that_no_packet_holds_comes_whole,
        a_watcher_that_does_not_read_is_let_go_and_said_once,
        a_watcher_that_sends_garbage_is_told_let_go_and_said_once,
        of_a_thousand_connections_four_are_answered,
        the_log_has_what_the_node_says_of_its_workers,
        a_worker_goes_by_its_name_where_people_look,
        a_stop_lets_everything_under_way_finish,
        a_stop_ends_the_wait_for_a_signal,
    ];
    harness::alone(all.into_iter().chain(of_others).collect())
}
