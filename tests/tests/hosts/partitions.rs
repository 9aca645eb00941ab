//! Hosts in network namespaces, with mutual TLS, whose links go down, or lose all packets in one direction.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use tensorpost::hosts::Hosts;
use tensorpost::prelude::*;
use tensorpost_core::os::{PidFd, since_boot, thorough};
use tensorpost_tests::cases;
use tensorpost_tests::faults::plan::{Draw, fresh_seed};
use tensorpost_tests::harness::{Builder, Case};
use tensorpost_tests::network::{Link, Network, Way, alone, possible};
use tensorpost_tests::wait::{deliver, until, until_free};

use crate::actors::{Echoer, Item, Never, PassOn};
use crate::broken::talk;
use crate::{BUILD, OTHER, Other, address, key_in};

/// Gives the seed of the cuts.
const SEED: &str = "TENSORPOST_PARTITION_SEED";

/// The scenes that a process plays in a namespace of its own.
const SHORT: &str = "short cuts";
const LONG: &str = "long cuts";

/// A head that its agents reach by their links, and the key of all of them.
struct Hub {
    network: Network,
    node: Node,
    key: PathBuf,
    _folder: tempfile::TempDir,
}

impl Hub {
    fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let key = key_in(folder.path());
        let network = Network::own();
        let hosts = Hosts::head("0.0.0.0:0").name("first").build_name(BUILD).key_file(&key);
        let node = Node::builder().hosts(hosts).start().expect("a head");
        Hub { network, node, key, _folder: folder }
    }

    /// Another host, in a namespace of its own.
    fn other(&mut self, as_what: &str) -> (Other, Link) {
        let listens = address(&self.node);
        let (_, port) = listens.rsplit_once(':').expect("a port");
        let key: &Path = &self.key;
        let (mut child, link) = self.network.start(|here| {
            let mut command = Other::command(&format!("{here}:{port}"), as_what);
            command.env("TENSORPOST_KEY_FILE", key);
            command
        });
        let stdin = child.stdin.take();
        (Other { child, stdin }, link)
    }
}

/// HOST-3, HOST-4. A connection outlives the shorter cuts; after the longer ones there is another one.
fn short_cuts() {
    /// An agent has to be heard again 10 s after its last beat that was answered, which was sent up to a
    /// second before the cut. A new connection is tried for 4 s, with seconds in between, and takes another
    /// two on a busy machine.
    const LONGEST: u64 = 3_500;

    let seed = std::env::var(SEED).map_or_else(|_| fresh_seed(), |seed| seed.parse().expect("a number"));
    println!("cuts of seed {seed}: {SEED}={seed} has them again");
    let mut draw = Draw::new(seed);
    let rounds = if thorough() { 3 } else { 1 };
    let mut hub = Hub::start();
    let (mut other, link) = hub.other("2");
    let mut line = [0; 6];
    let stdout = other.child.stdout.as_mut().expect("its output");
    stdout.read_exact(&mut line).expect("it is ready");
    let (answered, calm) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
    let (seen, is_over) = (Arc::clone(&answered), Arc::clone(&calm));
    let cutting = std::thread::spawn(move || {
        let until_answered = || {
            let before = seen.load(Relaxed);
            until("all goes on", || seen.load(Relaxed) > before + 1);
        };
        for _ in 0..rounds {
            for way in Way::ALL {
                until_answered();
                let time = draw.bits() % LONGEST;
                println!("{way:?} for {time} ms");
                link.cut(way);
                std::thread::sleep(Duration::from_millis(time));
                link.mend(way);
            }
        }
        until_answered();
        is_over.store(true, Relaxed);
    });
    talk(&hub.node, &answered, || calm.load(Relaxed));
    cutting.join().expect("it went well");
    let hosts: Vec<_> = hub.node.hosts().expect("hosts").iter().map(|host| host.number).collect();
    assert_eq!(hosts, [0, 1], "it is another host");
    other.end();
}

/// The items that one host has sent.
#[derive(Default)]
struct Come {
    count: AtomicU32,
    wrong: AtomicBool,
}

/// HOST-4, HOST-10, for each way in which a link can be cut: all workers of the agent have stopped by the
/// time at which the head may start others.
fn long_cuts() {
    let mut hub = Hub::start();
    let mut others = Way::ALL.map(|_| {
        let other = hub.other("serves");
        let before = hub.node.hosts().expect("hosts").len();
        assert_eq!(
            hub.node.await_hosts(before + 1, Duration::from_secs(20)).expect("hosts").len(),
            before + 1
        );
        other
    });
    let node = &hub.node;
    let hosts = node.hosts().expect("hosts");
    let placed = [1, 2, 3].map(|at: usize| {
        let spawn = node.spawn::<Echoer>(()).on(&hosts[at]).restart(Restart::on_failure(3));
        spawn.start().expect("an actor there")
    });
    let asked = placed.each_ref().map(|placed| {
        let mut asked = placed.address().ask(Never);
        node.block_on(asked.accepted()).expect("it is accepted");
        asked
    });
    let came = placed.each_ref().map(|placed| {
        let (to, mut items) = node.channel::<Item>().expect("a channel");
        deliver(node, &placed.address(), PassOn { to, items: u32::MAX });
        let come = Arc::new(Come::default());
        let counting = Arc::clone(&come);
        std::thread::spawn(move || {
            while let Ok(item) = items.blocking_recv() {
                if item.number != counting.count.fetch_add(1, Relaxed) {
                    counting.wrong.store(true, Relaxed);
                }
            }
        });
        come
    });
    until("items of all come", || came.iter().all(|come| come.count.load(Relaxed) > 100));

    let workers = others.each_ref().map(|(other, _)| {
        let all = other.processes().into_iter();
        all.map(|(pid, _)| PidFd::open(pid.cast_unsigned()).expect("a process")).collect::<Vec<_>>()
    });
    let watches = placed.each_ref().map(|placed| node.watch(&placed.address::<Never>()));
    for ((_, link), way) in others.iter().zip(Way::ALL) {
        link.cut(way);
    }
    let cut = since_boot();
    let ended = workers.map(|workers| {
        std::thread::spawn(move || {
            for worker in workers {
                assert!(worker.wait(Some(Duration::from_secs(30))).expect("a process"), "it works on");
            }
            since_boot()
        })
    });
    let given_up = watches.map(|mut watch| {
        std::thread::spawn(move || {
            let event = watch.blocking_recv().expect("an event");
            assert!(event.is_final(), "{event}");
            (since_boot(), event.to_string())
        })
    });
    for (at, (ended, given_up)) in ended.into_iter().zip(given_up).enumerate() {
        let (ended, (given_up, why)) = (ended.join().expect("it ends"), given_up.join().expect("an event"));
        let (worked, waited) = (ended.saturating_sub(cut), given_up.saturating_sub(cut));
        println!(
            "{:?}: its workers ended after {worked:.1?}, the verdict came after {waited:.1?}",
            Way::ALL[at]
        );
        assert!(ended < given_up, "two lives of an actor at once");
        assert!(why.contains(&format!("host {}", at + 1)), "{why}");
    }
    for asked in asked {
        let error = node.block_on(asked).expect_err("it is never answered").to_string();
        assert!(error.contains("`other`") && error.contains("nobody knows"), "{error}");
    }
    // The network comes back, and nobody is there to use it.
    let before = came.each_ref().map(|come| come.count.load(Relaxed));
    for ((other, link), way) in others.iter_mut().zip(Way::ALL) {
        link.mend(way);
        assert_eq!(other.end_of().code(), Some(1), "its workers were killed");
    }
    assert_eq!(
        came.each_ref().map(|come| come.count.load(Relaxed)),
        before,
        "sent by a worker that had ended"
    );
    assert!(came.iter().all(|come| !come.wrong.load(Relaxed)), "lost, doubled or reordered");
    assert_eq!(node.hosts().expect("hosts").len(), 1);
    drop(placed);
    until_free(node);
}

/// Becomes a head in a namespace of its own, where a test has started this process as one.
pub(crate) fn play(scene: &str) {
    match scene {
        SHORT => short_cuts(),
        LONG => long_cuts(),
        _ => unreachable!("no scene is called {scene}"),
    }
}

fn is_fine(scene: &str) {
    let program = std::env::current_exe().expect("this program");
    let status = alone(&program).env(OTHER, scene).status().expect("it starts");
    assert!(status.success(), "{status}");
}

fn a_link_that_is_cut_for_less_than_the_grace_loses_nothing(_: Builder) {
    is_fine(SHORT);
}

fn workers_of_an_agent_that_is_cut_off_end_before_the_verdict(_: Builder) {
    is_fine(LONG);
}

pub(crate) fn cases() -> Vec<Case> {
    let cases = cases![
        workers_of_an_agent_that_is_cut_off_end_before_the_verdict,
        a_link_that_is_cut_for_less_than_the_grace_loses_nothing,
    ];
    cases.into_iter().map(|case| case.only_where(possible)).collect()
}
