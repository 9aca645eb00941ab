//! Processes of a host that are killed, or that stand still for a while.

use std::io::{BufRead, BufReader, Write};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tensorpost::prelude::*;
use tensorpost_core::os::{PidFd, thorough};
use tensorpost_tests::cases;
use tensorpost_tests::faults::plan::{Draw, fresh_seed};
use tensorpost_tests::harness::{Builder, Case};
use tensorpost_tests::wait::{ask, stop, until};

use crate::actors::{Echo, Echoer, Never};
use crate::broken::talk;
use crate::{Other, address, head};

/// Gives the seed of the kills and stops.
const SEED: &str = "TENSORPOST_KILL_SEED";

/// Runs a head in a process of its own, until its standard input ends.
pub(crate) fn be_the_head() -> ! {
    let node = head(Node::builder());
    println!("{}", address(&node));
    std::io::stdout().flush().expect("somebody reads it");
    let _ = std::io::stdin().read_line(&mut String::new());
    drop(node);
    std::process::exit(0);
}

/// Starts a head, and an agent of it.
fn a_head_and_its_agent() -> [Other; 2] {
    let mut command = Other::command("", "head");
    let mut child = command.env_remove("TENSORPOST_HEAD").spawn().expect("it starts");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("its output")).read_line(&mut line).expect("its address");
    let stdin = child.stdin.take();
    let head = Other { child, stdin };
    let agent = Other::start_at(line.trim(), 1);
    [head, agent]
}

fn all_of(other: &Other) -> Vec<PidFd> {
    let all = other.processes().into_iter();
    all.map(|(pid, _)| PidFd::open(pid.cast_unsigned()).expect("a process")).collect()
}

fn go_on(pid: u32) {
    let process = Pid::from_raw(pid.cast_signed()).expect("a process");
    kill_process(process, Signal::CONT).expect("it is there");
}

/// HOST-10, seen from the other side: agents cannot know whether their head has started other workers.
fn agents_end_when_their_head_is_killed_or_stands_still(_: Builder) {
    /// They end 10 s after the last beat that was answered; the rest is for processes that end slowly on a
    /// busy machine.
    const BOUND: Duration = Duration::from_secs(13);
    /// In this time it answers no beat, and connections to it break.
    const SHORT: Duration = Duration::from_millis(4_500);

    let [mut killed, mut its_agent] = a_head_and_its_agent();
    let [stopped, mut waiting] = a_head_and_its_agent();
    let workers = [&its_agent, &waiting].map(all_of);
    let of_the_killed = all_of(&killed);
    assert!(workers.iter().all(|workers| workers.len() == 4), "{:?}", its_agent.processes());
    let both = [stopped.id(), stopped.gateway().as_raw_pid().cast_unsigned()];
    let lives = |worker: &PidFd| !worker.wait(Some(Duration::ZERO)).expect("a process");

    both.into_iter().for_each(stop);
    std::thread::sleep(SHORT);
    both.into_iter().for_each(go_on);
    assert!(workers.iter().flatten().all(lives), "it came back in time");

    both.into_iter().for_each(stop);
    killed.kill();
    let since = Instant::now();
    for worker in of_the_killed.iter().chain(workers.iter().flatten()) {
        assert!(worker.wait(Some(Duration::from_secs(20))).expect("a process"), "it works on");
    }
    assert!(since.elapsed() < BOUND, "{:?}", since.elapsed());
    for agent in [&mut its_agent, &mut waiting] {
        assert_eq!(agent.end_of().code(), Some(1), "its workers were killed");
    }
}

/// A process that stands still for a while.
#[derive(Clone, Copy, Debug)]
enum Stopped {
    /// After 5 s it would be replaced, and messages under way would be lost ([`gateways`](crate::gateways)).
    Gateway(u32),
    Other(u32),
}

impl Stopped {
    fn pid(self) -> u32 {
        let (Stopped::Gateway(pid) | Stopped::Other(pid)) = self;
        pid
    }
}

/// A drawn event for one process or another.
#[derive(Debug)]
enum Event {
    /// The worker of an actor that comes back.
    Kill,
    Stop(Stopped, Duration),
}

impl Event {
    fn draw(draw: &mut Draw, processes: &[Stopped]) -> Self {
        let kind = draw.below(8);
        if kind < 2 {
            return Event::Kill;
        }
        let process = processes[draw.below(processes.len())];
        let time = match (kind, process) {
            (2, Stopped::Gateway(_)) => 2_500 + draw.below(1_000),
            // Connections to it break, and the head goes on without it for less than its grace.
            (2, Stopped::Other(_)) => 4_500 + draw.below(1_500),
            _ => 1 + draw.below(800),
        };
        Event::Stop(process, Duration::from_millis(time as u64))
    }
}

/// HOST-3, HOST-4: SIGSTOP and SIGCONT of an agent's node, gateway and workers, and of the head's gateway;
/// SIGKILL of a worker there.
fn kills_and_stops_lose_only_what_the_killed_had(builder: Builder) {
    let seed = std::env::var(SEED).map_or_else(|_| fresh_seed(), |seed| seed.parse().expect("a number"));
    println!("kills and stops of seed {seed}: {SEED}={seed} has them again");
    let mut draw = Draw::new(seed);
    let events = if thorough() { 24 } else { 5 };
    let node = head(builder);
    let other = Other::start_at(&address(&node), 2);
    let as_they_are = |(pid, name): (i32, String)| match name.as_str() {
        "gateway" => Stopped::Gateway(pid.cast_unsigned()),
        _ => Stopped::Other(pid.cast_unsigned()),
    };
    let mut stopped: Vec<Stopped> = other.processes().into_iter().map(as_they_are).collect();
    let gateway = node.workers().into_iter().find(|worker| worker.name == "gateway").expect("it has one");
    stopped.extend([Stopped::Other(other.id()), Stopped::Gateway(gateway.pid)]);
    let hosts = node.hosts().expect("hosts");
    let victim = node.spawn::<Echoer>(()).name("victim").on(&hosts[1]);
    let victim = victim.restart(Restart::on_failure(events).backoff(Duration::ZERO, Duration::ZERO));
    let victim = victim.start().expect("an actor there");
    let (answered, calm) = (AtomicU32::new(0), AtomicBool::new(false));

    let kill = || {
        let mut asked = victim.address().ask(Never);
        node.block_on(asked.accepted()).expect("it is accepted");
        // Once it answers this, its next life has begun: otherwise that life might take the message.
        let pid = ask(&node, &victim.address(), Echo::empty()).pid;
        kill_process(Pid::from_raw(pid.cast_signed()).expect("a process"), Signal::KILL)
            .expect("it is there");
        let error = node.block_on(asked).expect_err("it is never answered").to_string();
        assert!(error.contains("SIGKILL") && error.contains("host 1"), "{error}");
        until("its next life answers", || {
            let echoed = node.block_on(victim.address().ask(Echo::empty()));
            echoed.is_ok_and(|echoed| echoed.pid != pid)
        });
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..events {
                let before = answered.load(Relaxed);
                until("all goes on", || answered.load(Relaxed) > before + 1);
                let event = Event::draw(&mut draw, &stopped);
                println!("{event:?}");
                match event {
                    Event::Kill => kill(),
                    Event::Stop(process, time) => {
                        stop(process.pid());
                        std::thread::sleep(time);
                        go_on(process.pid());
                    }
                }
            }
            calm.store(true, Relaxed);
        });
        talk(&node, &answered, || calm.load(Relaxed));
    });
    assert_eq!(node.hosts().expect("hosts").len(), 2, "it was given up");
    drop(victim);
    other.end();
}

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = cases![kills_and_stops_lose_only_what_the_killed_had];
    cases = cases.into_iter().map(|case| case.within(Duration::from_secs(120))).collect();
    cases.extend(cases![agents_end_when_their_head_is_killed_or_stands_still]);
    cases
}
