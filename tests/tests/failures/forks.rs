//! A process of a node forks. Its child changes nothing of its parent's, gets an error wherever it tries, and
//! can have a node of its own.
//!
//! Each test starts this program again, which plays a scene and forks in it: the threads of a test program do
//! not know of the fork.

#![expect(unsafe_code, reason = "forks")]

use std::collections::HashSet;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use tensorpost::actor::{LookupError, RegisterError};
use tensorpost::node::NodeClosed;
use tensorpost::prelude::*;
use tensorpost_core::os::PidFd;
use tensorpost_tests::cases;
use tensorpost_tests::harness::{Builder, Case};

/// Set in the program that plays a scene: its name.
const SCENE: &str = "TENSORPOST_TESTS_FORK";
/// Elements of a tensor.
const LEN: usize = 1 << 13;
/// The text of every error in a child.
const SAID: &str = "this process was forked from one that has a node";

/// "Keep this, and say what is in it."
#[derive(Debug, Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = u64)]
struct Keep {
    values: Tensor,
}

/// "Fork, and have the child do this; reply with the status with which it ended."
#[derive(Debug, Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = i32)]
struct Fork {
    child: String,
}

/// "Say what is in what you keep."
#[derive(Debug, Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Vec<u64>)]
struct Look;

#[derive(Default, RemoteActor)]
#[remote_actor(handles(Keep, Fork, Look))]
struct Keeper {
    kept: Vec<Tensor>,
}

fn kinds(tensors: &[Tensor]) -> Vec<u64> {
    let mut kinds: Vec<_> = tensors.iter().flat_map(|kept| kept.to_vec::<u64>().unwrap()).collect();
    kinds.sort_unstable();
    kinds.dedup();
    kinds
}

impl Handler<Keep> for Keeper {
    type Result = MessageResult<Keep>;

    fn handle(&mut self, Keep { values }: Keep, _: &mut Context<Self>) -> Self::Result {
        let sum = values.to_vec::<u64>().unwrap().iter().sum();
        self.kept.push(values);
        MessageResult(sum)
    }
}

impl Handler<Fork> for Keeper {
    type Result = MessageResult<Fork>;

    fn handle(&mut self, Fork { child }: Fork, ctx: &mut Context<Self>) -> Self::Result {
        // SAFETY: the child only makes calls that a single thread may make.
        let forked = unsafe { libc::fork() };
        if forked != 0 {
            return MessageResult(status_of(forked));
        }
        match child.as_str() {
            // The child comes back to the framework.
            "returns" => {}
            "panics" => panic!("it was told to panic"),
            "stops" => ctx.stop(),
            "lets go" => {
                self.kept.clear();
                end(0);
            }
            "exits" => std::process::exit(0),
            "reads" => end(i32::from(kinds(&self.kept) != [7])),
            "crashes" => std::process::abort(),
            other => panic!("there is no child that {other}"),
        }
        MessageResult(-1)
    }
}

impl Handler<Look> for Keeper {
    type Result = MessageResult<Look>;

    fn handle(&mut self, _: Look, _: &mut Context<Self>) -> Self::Result {
        MessageResult(kinds(&self.kept))
    }
}

/// Ends the child at once.
fn end(status: i32) -> ! {
    // SAFETY: it may be called anywhere, and does not return.
    unsafe { libc::_exit(status) }
}

/// Returns how a child has ended: its status, or minus its signal.
fn status_of(child: i32) -> i32 {
    let pidfd = PidFd::open(u32::try_from(child).expect("a fork")).unwrap();
    if !pidfd.wait(Some(Duration::from_secs(30))).unwrap() {
        // SAFETY: it is a child of this process for which nobody has waited.
        unsafe { libc::kill(child, libc::SIGKILL) };
    }
    let mut status = 0;
    // SAFETY: as above; the status is this function's own.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -libc::WTERMSIG(status) }
}

/// Runs `body` in a child, which exits as a program does, and waits for its end.
fn in_child(body: impl FnOnce()) {
    // SAFETY: the child only makes calls that a single thread may make.
    match unsafe { libc::fork() } {
        0 => {
            let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).is_err();
            std::process::exit(i32::from(panicked))
        }
        child => assert_eq!(status_of(child), 0, "the child has failed, or hung"),
    }
}

#[track_caller]
fn refused<T: std::fmt::Debug, E: std::fmt::Display>(result: Result<T, E>) {
    let said = result.map_err(|error| error.to_string()).unwrap_err();
    assert!(said.contains(SAID), "{said}");
}

fn filled(stream: &DeviceStream, value: u64) -> Tensor {
    stream.from_slice(&[LEN], &vec![value; LEN]).unwrap().freeze()
}

/// Takes memory: memory that was given back belongs to somebody else at once.
fn take_memory(stream: &DeviceStream) -> Vec<Tensor> {
    (0..64).map(|_| filled(stream, 666)).collect()
}

fn keeper(node: &Node) -> Address<Keep> {
    node.spawn::<Keeper>(()).start().unwrap().address()
}

/// The program's child calls everything, and drops everything.
fn calls(node: Node) -> anyhow::Result<()> {
    let keeper = keeper(&node);
    let stream = node.host_stream()?;
    let tensor = filled(&stream, 7);
    let sum = 7 * LEN as u64;
    assert_eq!(node.block_on(keeper.ask(Keep { values: tensor.clone() }))?, sum);
    let (own, channel) = node.channel::<Keep>()?;
    node.block_on(own.send(Keep { values: tensor.clone() }))?;
    let (watch, progress) = (node.watch(&keeper), node.progress());
    let open = keeper.ask(Keep { values: tensor.clone() });
    // Each process has its own copy: the child takes the values out of its own memory.
    let mut both = Some((node, channel, watch, progress, open, stream, tensor));
    in_child(|| {
        let (node, mut channel, mut watch, progress, open, stream, tensor) = both.take().unwrap();
        let message = || Keep { values: tensor.clone() };
        refused(keeper.try_send(message()));
        refused(node.block_on(keeper.send(message())));
        refused(node.block_on(keeper.ask(message())));
        refused(own.try_send(message()));
        refused(node.block_on(open));
        refused(node.block_on(channel.recv()).map(drop));
        refused(channel.blocking_recv().map(drop));
        assert!(channel.try_recv().is_none() && watch.blocking_recv().is_none());
        assert!(matches!(node.lookup::<Keep>("nobody"), Err(LookupError::Forked)));
        assert!(matches!(node.register("a", &keeper), Err(RegisterError::Forked)));
        assert!(matches!(node.metrics(), Err(NodeClosed::Forked)));
        assert!(matches!(node.report().map(drop), Err(NodeClosed::Forked)));
        assert!(matches!(node.shutdown(Duration::ZERO).map(drop), Err(NodeClosed::Forked)));
        refused(node.spawn::<Keeper>(()).start().map(drop));
        refused(node.channel::<Keep>().map(drop));
        refused(node.host_stream().map(drop));
        refused(stream.from_slice(&[1], &[1_u64]).map(drop));
        refused(node.run_until_ctrl_c(Duration::ZERO).map(drop));
        assert!(node.workers().is_empty());
        // The data was there before the fork.
        assert_eq!(tensor.to_vec::<u64>().unwrap(), vec![7; LEN]);
        drop((channel, watch, progress, stream, tensor, node));
    });
    let (node, mut channel, mut watch, progress, open, stream, tensor) = both.unwrap();
    assert_eq!(node.block_on(open)?, sum, "its own answer, and no child's");
    assert_eq!(channel.blocking_recv()?.values.to_vec::<u64>()?, vec![7; LEN]);
    drop(tensor);
    let others = take_memory(&stream);
    for other in others.iter().cycle().take(300) {
        assert_eq!(node.block_on(keeper.ask(Keep { values: other.clone() }))?, 666 * LEN as u64);
    }
    assert!(watch.try_recv().is_none());
    drop((channel, others, progress));
    assert!(node.shutdown(Duration::from_secs(10))?.is_clean());
    Ok(())
}

/// A child has a node of its own while its parent's runs, and after the parent's has ended.
fn own(node: Node, another: fn() -> Builder) -> anyhow::Result<()> {
    let whole = |node: &Node| {
        let values = filled(&node.host_stream().unwrap(), 3);
        assert_eq!(node.block_on(keeper(node).ask(Keep { values })).unwrap(), 3 * LEN as u64);
    };
    whole(&node);
    let with_own = || {
        let node = another().start().unwrap();
        whole(&node);
        assert!(node.shutdown(Duration::from_secs(10)).unwrap().is_clean());
    };
    in_child(with_own);
    whole(&node);
    assert!(node.shutdown(Duration::from_secs(10))?.is_clean());
    drop(node);
    in_child(with_own);
    // And the child of a child.
    in_child(|| in_child(with_own));
    Ok(())
}

/// A handler forks, and its child ends in each way.
fn handlers(node: Node) -> anyhow::Result<()> {
    let spawned = node.spawn::<Keeper>(()).start()?;
    let keeper: Address<Keep> = spawned.address();
    let (forks, looks): (Address<Fork>, Address<Look>) = (spawned.address(), spawned.address());
    let stream = node.host_stream()?;
    let values = filled(&stream, 7);
    node.block_on(keeper.ask(Keep { values: values.clone() }))?;
    drop(values);
    let before: Vec<_> = node.workers().iter().map(|worker| worker.pid).collect();
    for (child, ends) in [
        ("returns", 0),
        ("panics", 101),
        ("stops", 0),
        ("lets go", 0),
        ("exits", 0),
        ("reads", 0),
        ("crashes", -libc::SIGABRT),
    ] {
        let ended = node.block_on(forks.ask(Fork { child: child.to_owned() }))?;
        assert_eq!(ended, ends, "a child that {child}");
        let others = take_memory(&stream);
        assert_eq!(node.block_on(looks.ask(Look))?, [7], "after a child that {child}");
        drop(others);
    }
    let workers = node.workers();
    assert_eq!(workers.iter().map(|worker| worker.pid).collect::<Vec<_>>(), before);
    assert!(workers.iter().all(|worker| worker.complaints == 0));
    assert!(node.shutdown(Duration::from_secs(10))?.is_clean());
    Ok(())
}

/// The sockets that this process has.
fn sockets() -> HashSet<PathBuf> {
    let links = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let targets = links.filter_map(|link| std::fs::read_link(link.path()).ok());
    targets.filter(|target| target.to_string_lossy().starts_with("socket:")).collect()
}

/// A child outlives the node, and has nothing that would delay its end or the next node's start: no socket
/// but those that existed `before` the node.
fn outlives(node: Node, before: &HashSet<PathBuf>) -> anyhow::Result<()> {
    let keeper = keeper(&node);
    let values = filled(&node.host_stream()?, 7);
    node.block_on(keeper.ask(Keep { values }))?;
    let port = node.serve("127.0.0.1:0")?;
    let (reader, mut writer) = std::io::pipe()?;
    // SAFETY: the child only makes calls that a single thread may make.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let sockets = sockets().difference(before).count();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let shared = |line: &&str| line.contains("tensorpost-") && line.contains(" rw-s ");
        let writable = maps.lines().filter(shared).count();
        drop(writer);
        // The child lives until the parent has no more use for it.
        let ended = std::io::Read::read(&mut &reader, &mut [0]);
        end(i32::from(ended.is_err() || sockets + writable > 0));
    }
    drop(reader);
    let workers: Vec<_> = node.workers().iter().map(|worker| PidFd::open(worker.pid).unwrap()).collect();
    assert!(node.shutdown(Duration::from_secs(10))?.is_clean());
    drop(node);
    assert!(workers.iter().all(|worker| worker.wait(Some(Duration::ZERO)).unwrap()));
    TcpListener::bind(port)?;
    std::io::Write::write_all(&mut writer, b"x")?;
    assert_eq!(status_of(child), 0, "it has sockets of the node's, or memory that it may write");
    Ok(())
}

/// Plays a scene if this process was started for one; returns whether it was.
pub(super) fn play() -> bool {
    let Ok(scene) = std::env::var(SCENE) else { return false };
    let builder = Node::builder;
    // tokio has sockets too, connected to itself.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let before = sockets();
    // A worker goes on from here.
    let node = builder().start().unwrap();
    match scene.as_str() {
        "calls" => calls(node),
        "own" => own(node, builder),
        "handlers" => handlers(node),
        "outlives" => outlives(node, &before),
        other => panic!("there is no scene `{other}`"),
    }
    .unwrap();
    drop(runtime);
    println!("well");
    true
}

#[track_caller]
fn plays_well(scene: &str) {
    let mut command = Command::new("/proc/self/exe");
    command.env(SCENE, scene).env_remove("RUST_LOG").stdin(Stdio::null());
    let output = command.output().unwrap();
    let text =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(output.status.success() && text.contains("well\n"), "{scene}: {}\n{text}", output.status);
}

fn each_call_in_a_forked_child_says_so_and_changes_nothing_of_its_parents(_: Builder) {
    plays_well("calls");
}

fn a_forked_child_has_a_node_of_its_own(_: Builder) {
    plays_well("own");
}

fn a_handlers_forked_child_ends_nothing_of_the_workers(_: Builder) {
    plays_well("handlers");
}

fn a_forked_child_that_outlives_the_node_holds_nothing_of_it(_: Builder) {
    plays_well("outlives");
}

pub(super) fn cases() -> Vec<Case> {
    cases![
        each_call_in_a_forked_child_says_so_and_changes_nothing_of_its_parents,
        a_forked_child_has_a_node_of_its_own,
        a_handlers_forked_child_ends_nothing_of_the_workers,
        a_forked_child_that_outlives_the_node_holds_nothing_of_it,
    ]
}
