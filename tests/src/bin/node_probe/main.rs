//! The program that `tests/node_process.rs` watches: a node with fake actors that plays one scene, named by
//! its first argument. Its workers are this program again.

mod fake;

use std::io::Read;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fake::FakeNode;
use rustix::process::{Pid, Signal, kill_process};
use tensorpost::actor::ActorId;
use tensorpost::device::DeviceId;
use tensorpost::node::{Node, ProcessId, Restart, Sharing, StartError, WorkerId, WorkerState};
use tensorpost_core::ids::ChunkId;
use tensorpost_core::node::NewActor;
use tensorpost_core::transport::control_channel::{FromNode, Location};
use tensorpost_tests::wait;

const DEADLINE: Duration = Duration::from_secs(60);

fn main() -> Result<()> {
    let scene = std::env::args().nth(1).unwrap_or_default();
    let is_worker = std::env::var_os("TENSORPOST_WORKER").is_some();
    match scene.as_str() {
        "exits-early" if is_worker => {
            eprintln!("a library is missing");
            std::process::exit(7)
        }
        "never-says-hello" if is_worker => loop {
            std::thread::park();
        },
        "taken-late" => tensorpost_core::__private::before_main(),
        "keeper" => eprintln!("main has begun"),
        _ => {}
    }
    fake::run_if_worker();
    let builder = Node::builder();
    match scene.as_str() {
        "not-a-worker" => Ok(()),
        "actors" => actors(&fake::start(builder)?),
        "chunks" => chunks(&fake::start(builder)?),
        "deaths" => deaths(&fake::start(builder)?),
        "refused" => {
            let other = std::env::args().nth(2).context("the other program")?;
            let node = fake::start(builder.worker_program(other))?;
            println!("error: {}", node.supervisor().spawn_worker("other").unwrap_err());
            Ok(())
        }
        "exits-early" | "cannot-open" | "cannot-stage" | "taken-late" => {
            let node = fake::start(builder)?;
            println!("error: {}", node.supervisor().spawn_worker(&scene).unwrap_err());
            Ok(())
        }
        "keeper" => {
            let error = fake::start(builder.sharing(Sharing::Mps)).err().context("there is a daemon")?;
            println!("error: {error}");
            Ok(())
        }
        "never-says-hello" => {
            let node = fake::start(builder.start_deadline(Duration::from_millis(300)))?;
            println!("error: {}", node.supervisor().spawn_worker("mute").unwrap_err());
            Ok(())
        }
        "waits" => waits(&fake::start(builder)?),
        "dropped" => {
            let node = fake::start(builder)?;
            print_pids(&node, 2)?;
            drop(node);
            println!("dropped");
            wait_for_stdin()
        }
        "logs" => {
            tracing_subscriber::fmt().with_writer(std::io::stdout).with_ansi(false).init();
            logs(&fake::start(builder.worker_log("info"))?)
        }
        "drains" => drains(&fake::start(builder)?),
        "late" => late(&fake::start(builder)?),
        "shared-gpu" => shared_gpu(&fake::start(builder.testing_pretend_mps())?),
        "stuck" => stuck(&fake::start(builder)?),
        "signals" => {
            let node = fake::start(builder)?;
            let worker = node.supervisor().spawn_worker("worker")?;
            if let Some(type_name) = std::env::args().nth(2) {
                start(&node, worker, &type_name, "")?;
            }
            tracing_subscriber::fmt().with_writer(std::io::stdout).with_ansi(false).init();
            let report = node.processes.run_until_ctrl_c(DEADLINE)?;
            println!("clean: {}, killed: {:?}", report.is_clean(), report.workers[0].killed);
            Ok(())
        }
        "runs-itself" => {
            let node = fake::start(builder)?;
            let worker = node.supervisor().spawn_worker("worker")?;
            start(&node, worker, "runs-itself", "")?;
            finish(&node)
        }
        other => anyhow::bail!("there is no scene `{other}`"),
    }
}

fn new_actor(type_name: &str, name: Option<&str>, args: Vec<u8>) -> NewActor {
    NewActor {
        label: None,
        name: name.map(str::to_owned),
        type_name: type_name.to_owned(),
        type_key: 0,
        args,
        device: DeviceId::HOST,
        receive_on: None,
        own_thread: false,
        capacity: 16,
        takes: None,
    }
}

fn start(
    node: &FakeNode,
    worker: WorkerId,
    type_name: &str,
    args: &str,
) -> Result<(ActorId, Location), StartError> {
    node.supervisor().start_actor(worker, new_actor(type_name, None, args.into()))
}

fn finish(node: &FakeNode) -> Result<()> {
    let report = node.supervisor().shutdown(DEADLINE)?;
    ensure!(report.is_clean(), "{report:?}");
    println!("clean shutdown of {}", report.workers.len());
    Ok(())
}

fn wait_for_stdin() -> Result<()> {
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

fn print_pids(node: &FakeNode, count: usize) -> Result<()> {
    for i in 0..count {
        // A worker lives as long as the node, not as the thread that asked for it.
        let spawn = || node.supervisor().spawn_worker(&format!("worker-{i}"));
        std::thread::scope(|scope| scope.spawn(spawn).join()).expect("no panic")?;
    }
    let pids: Vec<_> = node.supervisor().workers().iter().map(|worker| worker.pid.to_string()).collect();
    println!("pids {}", pids.join(" "));
    Ok(())
}

fn waits(node: &FakeNode) -> Result<()> {
    print_pids(node, 3)?;
    wait_for_stdin()
}

fn actors(node: &FakeNode) -> Result<()> {
    let supervisor = node.supervisor();
    let (one, two) = (supervisor.spawn_worker("one")?, supervisor.spawn_worker("two")?);
    let (a, location_a) = supervisor.start_actor(one, new_actor("quiet", Some("a"), vec![]))?;
    let (b, location_b) = supervisor.start_actor(one, new_actor("quiet", Some("b"), vec![]))?;
    let (c, location_c) = start(node, two, "length", "")?;
    ensure!(a != b && b != c && location_a != location_b && location_a.process == location_b.process);
    ensure!(location_c.process != location_a.process && location_c.capacity == 16);
    ensure!(node.transport.look_up("b") == Some(location_b.process));

    // Arguments larger than a packet travel in several.
    let mut args = vec![1; 3_000_000];
    args.push(77);
    supervisor.start_actor(two, new_actor("length", None, args))?;
    println!(
        "error: {}",
        supervisor.start_actor(two, new_actor("length", None, vec![0; 9 << 20])).unwrap_err()
    );
    println!("error: {}", start(node, two, "fail", "disk on fire").unwrap_err());
    println!("error: {}", start(node, two, "panic", "purpose").unwrap_err());
    println!("error: {}", supervisor.start_actor(two, new_actor("quiet", Some("a"), vec![])).unwrap_err());
    // An actor that has ended gives its name back; the notice arrives right behind the message that it
    // started.
    supervisor.start_actor(two, new_actor("ends", Some("short"), vec![]))?;
    start(node, two, "quiet", "")?;
    ensure!(node.transport.look_up("short").is_none());

    let (own, location) = supervisor.adopt_actor(Some("in the node"), 4, None)?;
    ensure!(
        location.process == ProcessId::NODE && node.transport.look_up("in the node") == Some(ProcessId::NODE)
    );
    supervisor.actor_ended(own);
    ensure!(node.transport.look_up("in the node").is_none());
    let status = supervisor.worker(one).context("status")?;
    ensure!(status.state == WorkerState::Running && status.actors == 2 && status.complaints == 0);
    finish(node)?;
    println!("error: {}", supervisor.spawn_worker("after").unwrap_err());
    Ok(())
}

fn deaths(node: &FakeNode) -> Result<()> {
    let supervisor = node.supervisor();
    let (one, two) = (supervisor.spawn_worker("one")?, supervisor.spawn_worker("two")?);
    let (_, location) = supervisor.start_actor(one, new_actor("quiet", Some("a"), vec![]))?;
    println!("error: {}", start(node, one, "exit", "").unwrap_err());
    // Every process is told, the name is free, and the other actors go on.
    node.transport.wait_for(|message| match message {
        FromNode::Exited { process } if *process == location.process => Some(()),
        _ => None,
    });
    ensure!(node.transport.look_up("a").is_none());
    println!("error: {}", start(node, one, "quiet", "").unwrap_err());
    supervisor.start_actor(two, new_actor("quiet", Some("a"), vec![]))?;
    supervisor.kill_worker(two);
    match supervisor.await_end(two) {
        Some(WorkerState::Exited { exit: Some(exit), why: Some(why) }) => println!("killed: {exit}: {why}"),
        other => anyhow::bail!("{other:?}"),
    }
    supervisor.spawn_worker("three")?;
    finish(node)
}

/// Chunks that exist, chunks that never existed, and chunks whose owner dies before anybody can know.
fn chunks(node: &FakeNode) -> Result<()> {
    let (supervisor, transport) = (node.supervisor(), &node.transport);
    let (owner, asker) = (supervisor.spawn_worker("owner")?, supervisor.spawn_worker("asker")?);
    let (_, location) = start(node, owner, "publishes", "")?;
    let chunk = |index| ChunkId { owner: location.process, index };
    ensure!(transport.has_chunk(chunk(0)), "published");
    ensure!(!transport.has_chunk(chunk(99)), "forged");
    transport.publish(ChunkId { owner: ProcessId::NODE, index: 0 });
    start(node, asker, "wants-chunk", "0")?;
    start(node, asker, "wants-chunk", "99")?;

    let status = supervisor.worker(owner).context("status")?;
    // The whole process has to stop: otherwise its control thread would say that there is no chunk, and the
    // death below would be part of the shutdown.
    wait::stop(status.pid);
    transport.want_chunk(chunk(7));
    supervisor.kill_worker(owner);
    transport.wait_for(|message| {
        matches!(message, FromNode::NoChunk { chunk: of, .. } if *of == chunk(7)).then_some(())
    });
    ensure!(transport.has_chunk(chunk(0)), "it outlives its owner");
    ensure!(supervisor.worker(asker).context("status")?.complaints == 0);
    finish(node)
}

fn logs(node: &FakeNode) -> Result<()> {
    let worker = node.supervisor().spawn_worker("talker")?;
    start(node, worker, "logs", "")?;
    start(node, worker, "floods", "200000")?;
    finish(node)?;
    let dropped = node.supervisor().worker(worker).context("status")?.logs_dropped;
    println!("the worker dropped {dropped}");
    Ok(())
}

fn drains(node: &FakeNode) -> Result<()> {
    let supervisor = node.supervisor();
    let (from, to) = (supervisor.spawn_worker("from")?, supervisor.spawn_worker("to")?);
    let (_, location) = supervisor.start_actor(to, new_actor("quiet", Some("sink"), vec![]))?;
    // A link takes each link message once.
    node.transport.send_link_message(location.process);
    start(node, from, "source", "sink 1")?;
    finish(node)
}

fn late(node: &FakeNode) -> Result<()> {
    let supervisor = node.supervisor();
    let (slow, good) = (supervisor.spawn_worker("slow")?, supervisor.spawn_worker("good")?);
    start(node, slow, "hang-at-stop", "")?;
    start(node, good, "quiet", "")?;
    let report = node.supervisor().shutdown(Duration::from_secs(2))?;
    for worker in &report.workers {
        println!("{}: killed {:?}", worker.name, worker.killed);
    }
    ensure!(report.drained && !report.is_clean());
    Ok(())
}

fn signal(pid: u32, signal: Signal) -> Result<()> {
    Ok(kill_process(Pid::from_raw(pid.cast_signed()).context("no process")?, signal)?)
}

/// Workers that share a GPU through MPS, as far as the node can tell. One of them is killed.
fn shared_gpu(node: &FakeNode) -> Result<()> {
    let supervisor = node.supervisor();
    let gpu = |of: u8| DeviceId([of; 16]);
    let workers = [("a", 7), ("b", 7), ("c", 7), ("d", 7), ("elsewhere", 8)].map(|(name, of)| -> Result<_> {
        let worker = supervisor.spawn_worker(name)?;
        let actor = NewActor { device: gpu(of), ..new_actor("quiet", None, vec![]) };
        supervisor.start_supervised(worker, actor, Restart::on_failure(9))?;
        Ok(worker)
    });
    let all = workers.map(|worker| worker.expect("it starts"));
    let [a, b, c, ..] = all;
    let pids = || all.map(|of| supervisor.worker(of).map_or(0, |status| status.pid));
    let restarts = || all.map(|of| supervisor.worker(of).map_or(0, |status| status.restarts));
    let kill = |worker| -> Result<_> {
        let before = pids();
        signal(supervisor.worker(worker).context("status")?.pid, Signal::KILL)?;
        // The killed worker is back last: the workers that end with it have ended before.
        wait::until("the killed one is back", || {
            let now = supervisor.worker(worker);
            now.is_some_and(|now| now.state == WorkerState::Running && !before.contains(&now.pid))
        });
        Ok((before, pids()))
    };
    let (before, now) = kill(a)?;
    ensure!(before[1..] == now[1..], "nobody has lost anything: {before:?}, {now:?}");

    // A stopped worker does not answer, and the others do not wait for ever.
    wait::stop(now[2]);
    let (before, now) = kill(a)?;
    signal(now[2], Signal::CONT)?;
    ensure!(before[1..] == now[1..], "nobody has said that anything is lost: {before:?}, {now:?}");

    // A worker that breaks without losing its GPU restarts alone.
    let before = pids();
    let _ = start(node, b, "breaks", "");
    wait::until("the broken one is back", || {
        let now = supervisor.worker(b);
        now.is_some_and(|now| now.state == WorkerState::Running && now.pid != before[1])
    });
    let now = pids();
    ensure!(before[0] == now[0] && before[2..] == now[2..], "nobody else: {before:?}, {now:?}");

    // Two die at once.
    start(node, b, "loses-gpu", "")?;
    let before = pids();
    signal(before[3], Signal::KILL)?;
    signal(before[0], Signal::KILL)?;
    wait::until("all are back", || {
        let is_back = |of| supervisor.worker(of).is_some_and(|status| status.state == WorkerState::Running);
        let now = pids();
        all.into_iter().all(is_back) && (0..4).all(|at| now[at] != before[at])
    });
    ensure!(pids()[4] == before[4], "and nobody else: {before:?}, {:?}", pids());
    ensure!(restarts() == [3, 2, 1, 1, 0], "each once for each of its ends: {:?}", restarts());
    for of in [b, c] {
        let status = supervisor.worker(of).context("status")?;
        println!("{} ended: {}", status.name, status.last_end.context("it has ended")?);
    }
    finish(node)
}

/// The node writes to a worker that is stopped (not dead) until the bound; the other worker goes on
/// meanwhile.
fn stuck(node: &FakeNode) -> Result<()> {
    let supervisor = node.supervisor();
    let (stuck, good) = (supervisor.spawn_worker("stuck")?, supervisor.spawn_worker("good")?);
    let status = supervisor.worker(stuck).context("status")?;
    wait::stop(status.pid);
    // Anything that the node sends to a worker, often.
    let fault = tensorpost::testing::fault::Fault::new(
        "nowhere",
        tensorpost::testing::fault::Action::Delay(Duration::ZERO),
    );
    for _ in 0..20_000 {
        supervisor.arm(stuck, fault.clone());
    }
    start(node, good, "quiet", "")?;
    match supervisor.await_end(stuck) {
        Some(WorkerState::Exited { why: Some(why), .. }) => println!("stuck: {why}"),
        other => anyhow::bail!("{other:?}"),
    }
    start(node, good, "quiet", "")?;
    finish(node)
}
