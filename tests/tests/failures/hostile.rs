//! Workers that break the rules, with real processes: they may spoil everything within their reach, and only
//! they pay for it (ONE-WRITER, WIRE-1). `framework/core/tests` tests the effects of forged frames, notices
//! and link messages step by step.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

use std::time::Duration;

use serde_json::Value;
use tensorpost::actor::EndReason;
use tensorpost::device::DeviceId;
use tensorpost::node::{Spawned, WorkerState};
use tensorpost::prelude::*;
use tensorpost_core::ids::{ActorId, ChunkId, ProcessId};
use tensorpost_core::observe::hang_probe::HangProbe;
use tensorpost_core::observe::log::LogRecord;
use tensorpost_core::transport::WhyRefused;
use tensorpost_core::transport::control_channel::{LinkMessage, ToNode};
use tensorpost_tests::cases;
use tensorpost_tests::faults::plan::Draw;
use tensorpost_tests::harness::{Builder, Case};
use tensorpost_tests::holder::{Check, Hold, Holder, LetGo};
use tensorpost_tests::intruder::{Deed, Intruder};
use tensorpost_tests::wait::{ask, deliver, numbers, until, until_free};

/// "Keep this, and talk to these", so that there is something to spoil.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = ())]
struct Meet {
    tensor: Tensor,
    others: Vec<Address<Check>>,
}

/// "Write garbage into everything of these names that you can write." The reply, if there is one, is how many
/// bytes.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = usize)]
struct Spoil {
    names: Vec<String>,
    seed: u64,
}

/// "Try to write memory of others." The reply lists the attempts, and whether each was possible.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Vec<(String, bool)>)]
struct Trespass;

/// "Store into the first mapping of this name that belongs to others."
#[derive(Serialize, Deserialize, GpuMessage)]
struct Store {
    name: String,
}

struct Vandal {
    held: Vec<Tensor>,
}

impl Actor for Vandal {
    type Context = Context<Self>;
}

impl RemoteActor for Vandal {
    type Args = ();

    fn create((): (), _: &Env) -> anyhow::Result<Self> {
        Ok(Vandal { held: Vec::new() })
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Meet>().message::<Spoil>().message::<Trespass>().message::<Store>();
    }
}

/// A shared mapping of this process.
struct Shared {
    name: String,
    from: u64,
    to: u64,
    writable: bool,
    range: String,
}

fn shared() -> Vec<Shared> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let found = maps.lines().filter_map(|line| {
        let (_, name) = line.split_once("/memfd:tensorpost-")?;
        let mut fields = line.split_ascii_whitespace();
        let (range, permissions) = (fields.next()?, fields.next()?);
        let (from, to) = range.split_once('-')?;
        let address = |text| u64::from_str_radix(text, 16).ok();
        let name = name.trim_end_matches(" (deleted)").to_owned();
        let writable = permissions.contains('w');
        Some(Shared { name, from: address(from)?, to: address(to)?, writable, range: range.to_owned() })
    });
    found.collect()
}

impl Handler<Meet> for Vandal {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, Meet { tensor, others }: Meet, _: &mut Context<Self>) -> Self::Result {
        self.held.push(tensor);
        let asked: Vec<_> = others.iter().map(|other| other.ask(Check)).collect();
        Box::pin(async move { drop(futures_util::future::join_all(asked).await) })
    }
}

impl Handler<Spoil> for Vandal {
    type Result = MessageResult<Spoil>;

    fn handle(&mut self, Spoil { names, seed }: Spoil, _: &mut Context<Self>) -> Self::Result {
        let memory = OpenOptions::new().write(true).open("/proc/self/mem").unwrap();
        let mut draw = Draw::new(seed);
        let mut bytes = 0;
        for mapping in shared().iter().filter(|mapping| mapping.writable && names.contains(&mapping.name)) {
            for at in (mapping.from..mapping.to).step_by(8) {
                memory.write_all_at(&draw.bits().to_le_bytes(), at).unwrap();
                bytes += 8;
            }
        }
        MessageResult(bytes)
    }
}

impl Handler<Trespass> for Vandal {
    type Result = MessageResult<Trespass>;

    fn handle(&mut self, _: Trespass, _: &mut Context<Self>) -> Self::Result {
        let memory = OpenOptions::new().write(true).open("/proc/self/mem").unwrap();
        let mut tried = Vec::new();
        for Shared { name, from, range, .. } in shared().iter().filter(|mapping| !mapping.writable) {
            tried.push((
                format!("{name} through /proc/self/mem"),
                memory.write_all_at(&[0xff], *from).is_ok(),
            ));
            // Where the kernel shows the file behind a mapping, it may be possible to open it once more.
            let again = OpenOptions::new().write(true).open(format!("/proc/self/map_files/{range}"));
            let written = again.and_then(|file| file.write_all_at(&[0xff], 0));
            // The chunks of others are sealed against nothing but a change of size: a chunk that was handed
            // over is written by its new holder. A malicious process of the same user can write them, as it
            // can trace any other.
            if name != "chunk" {
                tried.push((format!("{name} through its file"), written.is_ok()));
            }
        }
        MessageResult(tried)
    }
}

impl Handler<Store> for Vandal {
    type Result = ();

    fn handle(&mut self, Store { name }: Store, _: &mut Context<Self>) {
        let others = shared().into_iter().find(|mapping| !mapping.writable && mapping.name == name);
        store(others.expect("a mapping of that name").from);
    }
}

/// Writes a word where that must not be possible.
#[expect(unsafe_code, reason = "a stray write is what is tested")]
fn store(address: u64) {
    // SAFETY: none is claimed for the write, which the kernel stops; nothing of this process lies in the
    // mapping, and the process ends here.
    unsafe { std::ptr::write_volatile(address as *mut u64, u64::MAX) };
}

struct Scene {
    node: Node,
    stream: DeviceStream,
    vandal: Spawned<Vandal>,
    peers: [Spawned<Holder>; 2],
}

impl Scene {
    fn new(builder: Builder) -> Self {
        let node = builder.worker_log("off").start().unwrap();
        let peer = || node.spawn::<Holder>(()).start().unwrap();
        let (peers, vandal) = ([peer(), peer()], node.spawn::<Vandal>(()).name("vandal").start().unwrap());
        let scene = Scene { stream: node.host_stream().unwrap(), vandal, peers, node };
        let others = scene.peers.iter().map(Spawned::address).collect();
        ask(&scene.node, &scene.vandal.address(), Meet { tensor: numbers(&scene.stream, 0, 100), others });
        scene
    }

    /// Checks that the others serve each other, and lose nothing.
    fn check(&self) {
        for peer in &self.peers {
            let tensor = numbers(&self.stream, 3, 50);
            assert_eq!(ask(&self.node, &peer.address(), Hold::with(9, tensor)), 1);
            assert_eq!(ask(&self.node, &peer.address(), LetGo), [9]);
        }
    }

    fn has_exited(&self) -> bool {
        let state = self.node.supervisor().worker(self.vandal.worker()).map(|status| status.state);
        !matches!(state, Some(WorkerState::Running))
    }

    fn end(self) {
        self.node.supervisor().kill_worker(self.vandal.worker());
        self.node.supervisor().await_end(self.vandal.worker());
        self.check();
        until_free(&self.node);
        let report = self.node.shutdown(std::time::Duration::from_secs(20)).unwrap();
        // The worker that was killed is not among those that are shut down.
        assert!(report.is_clean(), "{report:?}");
    }
}

/// The worker writes garbage into everything that it may write: its rings, its cursors and credits, its
/// clocks, its wake page.
fn garbage_in_its_own_pages_costs_the_worker_alone(builder: Builder) {
    let names = ["link", "wake", "clocks"];
    for round in 0..6_u64 {
        let scene = Scene::new(builder_like(&builder));
        let names = match round {
            0..3 => vec![names[round as usize].to_owned()],
            _ => names.iter().map(|name| (*name).to_owned()).collect(),
        };
        let spoil = Spoil { names: names.clone(), seed: round };
        // There may be no answer: the rings are garbage.
        let asked = scene.vandal.address().ask(spoil).timeout(std::time::Duration::from_millis(500));
        drop(scene.node.block_on(asked));
        for _ in 0..20 {
            scene.check();
            // A process that talks to it gets an error or nothing, and goes on.
            let meet = Meet { tensor: numbers(&scene.stream, 0, 10), others: vec![] };
            let asked = scene.vandal.address().ask(meet).timeout(std::time::Duration::from_millis(5));
            drop(scene.node.block_on(asked));
        }
        scene.end();
    }
}

/// The settings of one more node of the same program.
fn builder_like(_: &Builder) -> Builder {
    Node::builder()
}

fn what_others_own_cannot_be_written(builder: Builder) {
    let scene = Scene::new(builder);
    let tried = ask(&scene.node, &scene.vandal.address(), Trespass);
    for name in ["link", "wake", "clocks", "chunk"] {
        assert!(tried.iter().any(|(what, _)| what.starts_with(name)), "{name} is not among {tried:?}");
    }
    let written: Vec<_> = tried.iter().filter(|(_, written)| *written).collect();
    assert!(written.is_empty(), "it has written {written:?}");
    assert!(!scene.has_exited());
    scene.check();
    scene.end();
}

fn a_store_into_what_others_own_faults(builder: Builder) {
    for name in ["link", "wake", "clocks", "chunk"] {
        let scene = Scene::new(builder_like(&builder));
        deliver(&scene.node, &scene.vandal.address(), Store { name: name.to_owned() });
        until(&format!("a store into `{name}` ends the worker"), || scene.has_exited());
        let state = scene.node.supervisor().await_end(scene.vandal.worker());
        let Some(WorkerState::Exited { exit: Some(exit), .. }) = state else { panic!("{state:?}") };
        use std::os::unix::process::ExitStatusExt;
        assert_eq!(exit.signal(), Some(11), "`{name}`: {exit}");
        scene.check();
        scene.end();
    }
}

/// A message on a worker's control socket, in the variants that are tested.
#[derive(Serialize)]
pub(crate) enum Up {
    ActorsStopped,
    Failing { why: String, lost_gpu: bool },
    OpenFailed { why: String },
    Node(ToNode),
    HangProbe { round: u64, hang_probe: HangProbe },
    Log(LogRecord),
    LogsDropped { count: u64 },
    Started { actor: ActorId, result: Result<(), String> },
    ActorStopped { actor: ActorId, why: Option<EndReason>, away: bool },
    Activity { round: u64, activity: Value },
    Metrics { round: u64, metrics: Value, survey: Option<Value> },
    UserMetrics { updates: Value, dropped: u64 },
    Trace { interval: Option<u64> },
    Pong { number: u64 },
    GpusLookedAt { number: u64 },
}

impl Up {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        rmp_serde::to_vec_named(self).unwrap()
    }
}

/// A node with a worker that was taken over, and a worker that was not.
pub(crate) struct Break {
    pub(crate) node: Node,
    pub(crate) evil: Spawned<Intruder>,
    pub(crate) innocent: Spawned<Intruder>,
}

impl Break {
    pub(crate) fn new(builder: Builder) -> Self {
        let node = builder.worker_log("off").start().unwrap();
        let evil = node.spawn::<Intruder>(()).name("evil").start().unwrap();
        let innocent = node.spawn::<Intruder>(()).name("innocent").start().unwrap();
        ask(&node, &innocent.address(), Deed::Nothing);
        Break { node, evil, innocent }
    }

    /// There may be no answer.
    pub(crate) fn does(&self, deed: Deed) {
        drop(self.node.block_on(self.evil.address().ask(deed).timeout(Duration::from_secs(5))));
    }

    /// Checks that the node starts a worker, and that the innocent worker answers and was not blamed.
    pub(crate) fn goes_on(&self) {
        let fresh = self.node.spawn::<Intruder>(()).start().unwrap();
        ask(&self.node, &fresh.address(), Deed::Nothing);
        ask(&self.node, &self.innocent.address(), Deed::Nothing);
        let innocent = self.node.supervisor().worker(self.innocent.worker()).unwrap();
        assert_eq!((innocent.state, innocent.complaints), (WorkerState::Running, 0));
    }

    pub(crate) fn end_of_the_evil(&self) -> String {
        match self.node.supervisor().await_end(self.evil.worker()) {
            Some(WorkerState::Exited { why, .. }) => why.unwrap_or_default(),
            state => panic!("{state:?}"),
        }
    }
}

// A ring must not wait for the process at its other end, alive or dead.
fn a_worker_that_spoils_its_doorbells_holds_up_nobody(builder: Builder) {
    let scene = Break::new(builder);
    scene.does(Deed::SpoilBells);
    scene.goes_on();
    scene.node.supervisor().kill_worker(scene.evil.worker());
    scene.end_of_the_evil();
    scene.goes_on();
}

// Nor must the close of a descriptor hold anybody up.
fn a_descriptor_that_closes_slowly_holds_up_nobody(builder: Builder) {
    let scene = Break::new(builder_like(&builder));
    scene.does(Deed::SendLingering(Up::ActorsStopped.bytes()));
    assert!(scene.end_of_the_evil().contains("neither memory nor a local socket"));
    scene.goes_on();

    // The node cannot know the properties of a GPU's chunk: the wrong number of descriptors, and later the
    // worker's end.
    let scene = Break::new(builder);
    let owner = scene.node.supervisor().worker(scene.evil.worker()).unwrap().process;
    let chunk = ChunkId { owner, index: 1 << 20 };
    let publish = ToNode::PublishChunk { chunk, device: DeviceId::HOST, bytes: 1 };
    scene.does(Deed::SendLingering(Up::Node(publish).bytes()));
    until("the node complains", || {
        scene.node.supervisor().worker(scene.evil.worker()).is_some_and(|evil| evil.complaints > 0)
    });
    scene.goes_on();
    scene.node.supervisor().kill_worker(scene.evil.worker());
    scene.end_of_the_evil();
    scene.goes_on();
}

// The reason that a worker gives for its end goes to all others, so it must fit; and it must not pass for
// another process's words.
fn a_reason_of_any_length_or_form_costs_its_worker_alone(builder: Builder) {
    for why in
        ["x".repeat((8 << 20) - 64), "well\nERROR tensorpost::node: worker `innocent` ended".repeat(100)]
    {
        let scene = Break::new(builder_like(&builder));
        let other = scene.node.spawn::<Intruder>(()).start().unwrap();
        scene.does(Deed::Say(Up::Failing { why, lost_gpu: true }.bytes(), 1));
        let why = scene.end_of_the_evil();
        assert!(why.len() <= 16 << 10, "{} bytes", why.len());
        assert!(why.lines().skip(1).all(|line| line.starts_with("    | ")), "{why}");
        scene.goes_on();
        ask(&scene.node, &other.address(), Deed::Nothing);
    }
    drop(builder);
}

// A worker that says forbidden things is given up for that; the workers that it talked about are not.
fn a_worker_that_says_too_much_is_given_up(builder: Builder) {
    let scene = Break::new(builder);
    let failed = Up::OpenFailed { why: "it has long been open".into() };
    scene.does(Deed::Say(failed.bytes(), 100_000));
    assert!(scene.end_of_the_evil().contains("it must not say"));
    scene.goes_on();
}

// Nor does a flood cost the receiver of a link message anything: the node passes each link message on once.
fn a_flood_of_link_messages_costs_its_sender(builder: Builder) {
    let scene = Break::new(builder);
    let to = scene.node.supervisor().worker(scene.innocent.worker()).unwrap().process;
    let half = Up::Node(ToNode::Route { to, link_message: LinkMessage::Link { number: 1 } }).bytes();
    scene.does(Deed::SayWithMemory(half, 20_000));
    scene.end_of_the_evil();
    scene.goes_on();
}

// A third process cannot refuse a link between others, nor can a peer refuse a link that is open: the refusal
// goes to the node, and no further.
fn refusals_of_links_that_are_not_there_to_be_refused_cost_their_sender(builder: Builder) {
    for number in [1, 2, 1 << 40] {
        let scene = Break::new(builder_like(&builder));
        let innocent = scene.node.supervisor().worker(scene.innocent.worker()).unwrap().process;
        // The node has made an open link to each, and these two have none to each other.
        for peer in [innocent, ProcessId::NODE] {
            let refuse = ToNode::RefuseLink { peer, number, why: WhyRefused::System(24) };
            scene.does(Deed::Say(Up::Node(refuse).bytes(), 200));
            scene.goes_on();
        }
        assert!(scene.end_of_the_evil().contains("it must not say"));
        scene.goes_on();
    }
    drop(builder);
}

pub(crate) fn cases() -> Vec<Case> {
    cases![
        garbage_in_its_own_pages_costs_the_worker_alone,
        what_others_own_cannot_be_written,
        a_store_into_what_others_own_faults,
        a_worker_that_spoils_its_doorbells_holds_up_nobody,
        a_descriptor_that_closes_slowly_holds_up_nobody,
        a_reason_of_any_length_or_form_costs_its_worker_alone,
        a_worker_that_says_too_much_is_given_up,
        a_flood_of_link_messages_costs_its_sender,
        refusals_of_links_that_are_not_there_to_be_refused_cost_their_sender,
    ]
}
