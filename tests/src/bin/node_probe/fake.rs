//! A transport and actors without tensors, which are enough to watch the processes of a node.
//!
//! "Messages" between processes are link messages that go through the node; a handler takes [`WORK`] for
//! each. The name of an actor's type says how it behaves.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use parking_lot::{Condvar, Mutex};
use tensorpost::device::DeviceId;
use tensorpost::node::{NodeBuilder, NodeError, ProcessId, Supervisor};
use tensorpost_core::clock::ProcessPages;
use tensorpost_core::device::Access;
use tensorpost_core::ids::ChunkId;
use tensorpost_core::node::{Activity, Identity, Notices, ProcessRuntime, Processes, StartActor};
use tensorpost_core::os::vital;
use tensorpost_core::transport::control_channel::{ControlChannel, FromNode, LinkMessage, ToNode};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// How long a handler works on one message: long enough that a shutdown finds some messages waiting.
const WORK: Duration = Duration::from_millis(1);

/// The fake's node.
pub(crate) struct FakeNode {
    pub(crate) transport: Arc<Transport>,
    pub(crate) processes: Processes,
}

impl FakeNode {
    pub(crate) fn supervisor(&self) -> &Supervisor {
        self.processes.supervisor()
    }
}

/// Runs this process if it is a worker, before a scene begins.
pub(crate) fn run_if_worker() {
    tensorpost_core::node::run_if_worker(fingerprint(), &open);
}

pub(crate) fn start(builder: NodeBuilder) -> Result<FakeNode, NodeError> {
    let (transport, processes) = builder.start_processes(fingerprint(), &open)?;
    Ok(FakeNode { transport, processes })
}

/// Another file name stands for another build with other types.
fn fingerprint() -> u64 {
    let mut hasher = DefaultHasher::new();
    std::env::current_exe().unwrap().file_name().hash(&mut hasher);
    hasher.finish()
}

fn open(
    identity: &Identity,
    control: Arc<dyn ControlChannel>,
    _: ProcessPages,
) -> Result<Arc<Transport>, String> {
    if identity.name == "cannot-open" {
        return Err("no GPU 7 here".to_owned());
    }
    let (to_actors, link_messages) = unbounded_channel();
    Ok(Arc::new_cyclic(|this| Transport {
        this: this.clone(),
        me: identity.clone(),
        control,
        sent: AtomicU64::new(0),
        received: AtomicU64::new(0),
        waiting: AtomicU64::new(0),
        stopping: AtomicBool::new(false),
        from_node: Mutex::default(),
        changed: Condvar::new(),
        to_actors,
        link_messages: Mutex::new(Some(link_messages)),
        hang_at_stop: AtomicBool::new(false),
        loses_gpu: AtomicBool::new(false),
    }))
}

pub(crate) struct Transport {
    this: Weak<Transport>,
    pub(crate) me: Identity,
    pub(crate) control: Arc<dyn ControlChannel>,
    sent: AtomicU64,
    received: AtomicU64,
    waiting: AtomicU64,
    stopping: AtomicBool,
    from_node: Mutex<Vec<FromNode>>,
    changed: Condvar,
    to_actors: UnboundedSender<ProcessId>,
    link_messages: Mutex<Option<UnboundedReceiver<ProcessId>>>,
    hang_at_stop: AtomicBool,
    loses_gpu: AtomicBool,
}

impl ProcessRuntime for Transport {
    fn from_node(&self, message: FromNode, descriptors: Vec<OwnedFd>) {
        if let FromNode::LinkMessage { from, .. } = message {
            assert!(descriptors.len() == 5 || descriptors.is_empty());
            self.waiting.fetch_add(1, Ordering::SeqCst);
            self.received.fetch_add(1, Ordering::SeqCst);
            let _ = self.to_actors.send(from);
        }
        if let FromNode::Taint(update) = &message {
            let _ =
                self.control.send(ToNode::Tainted { round: update.round, ranges: Vec::new() }, Vec::new());
        }
        self.from_node.lock().push(message);
        self.changed.notify_all();
    }

    fn activity(&self) -> Activity {
        Activity {
            sent: self.sent.load(Ordering::SeqCst),
            received: self.received.load(Ordering::SeqCst),
            busy: self.waiting.load(Ordering::SeqCst) > 0,
            leaves_unread: false,
        }
    }

    fn probe_gpus(&self) -> bool {
        if self.loses_gpu.load(Ordering::SeqCst) {
            vital::fail_with_gpu("a GPU was lost to it: as it was told");
            return false;
        }
        true
    }

    fn stopping(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        println!("{} is told that the node is stopping", self.me.name);
    }

    fn begin_actors(&self) -> Result<(), String> {
        if self.me.name == "cannot-stage" {
            return Err("no stage today".to_owned());
        }
        let link_messages = self.link_messages.lock().take().ok_or("actors were begun twice")?;
        let transport = self.this.upgrade().ok_or("nobody holds it")?;
        actix::spawn(handle_link_messages(transport, link_messages));
        Ok(())
    }

    fn start_actor(
        self: Arc<Self>,
        start: StartActor,
        notices: Notices,
    ) -> LocalBoxFuture<'static, Result<(), String>> {
        self.play(start, notices).boxed_local()
    }

    fn stop_actors(&self) -> LocalBoxFuture<'_, ()> {
        async move {
            if self.hang_at_stop.load(Ordering::SeqCst) {
                std::future::pending::<()>().await;
            }
            println!("{} handled {}", self.me.name, self.received.load(Ordering::SeqCst));
        }
        .boxed_local()
    }
}

impl Transport {
    /// Waits for a message from the node for which `find` returns something.
    pub(crate) fn wait_for<T>(&self, find: impl Fn(&FromNode) -> Option<T>) -> T {
        let mut messages = self.from_node.lock();
        loop {
            if let Some(found) = messages.iter().find_map(&find) {
                return found;
            }
            self.changed.wait(&mut messages);
        }
    }

    /// The process of the actor called `name`.
    pub(crate) fn look_up(&self, name: &str) -> Option<ProcessId> {
        static TICKET: AtomicU64 = AtomicU64::new(1);
        let ticket = TICKET.fetch_add(1, Ordering::SeqCst);
        self.control.send(ToNode::Lookup { ticket, name: name.to_owned() }, Vec::new()).unwrap();
        self.wait_for(|message| match message {
            FromNode::Found { ticket: of, found } if *of == ticket => Some(found.clone()),
            _ => None,
        })
        .map(|named| named.location.process)
    }

    /// Asks for a chunk, and returns whether there is one.
    pub(crate) fn has_chunk(&self, wanted: ChunkId) -> bool {
        self.want_chunk(wanted);
        self.wait_for(|message| match message {
            FromNode::Chunk { chunk, .. } if *chunk == wanted => Some(true),
            FromNode::NoChunk { chunk, .. } if *chunk == wanted => Some(false),
            _ => None,
        })
    }

    pub(crate) fn want_chunk(&self, chunk: ChunkId) {
        self.control.send(ToNode::WantChunk { chunk, access: Access::ReadOnly }, Vec::new()).unwrap();
    }

    pub(crate) fn publish(&self, chunk: ChunkId) {
        let null = std::fs::File::open("/dev/null").unwrap();
        let descriptors = vec![null.try_clone().unwrap().into(), null.into()];
        let message = ToNode::PublishChunk { chunk, device: DeviceId::HOST, bytes: 1 };
        self.control.send(message, descriptors).unwrap();
    }

    pub(crate) fn send_link_message(&self, to: ProcessId) {
        self.sent.fetch_add(1, Ordering::SeqCst);
        // The node gives up a process that sends anything but memory and local sockets.
        let pairs = [(); 3].map(|()| std::os::unix::net::UnixStream::pair().unwrap());
        let descriptors =
            pairs.into_iter().flat_map(|(one, other)| [one.into(), other.into()]).take(5).collect();
        self.control
            .send(ToNode::Route { to, link_message: LinkMessage::Link { number: 1 } }, descriptors)
            .unwrap();
    }
}

async fn handle_link_messages(transport: Arc<Transport>, mut link_messages: UnboundedReceiver<ProcessId>) {
    while link_messages.recv().await.is_some() {
        tokio::time::sleep(WORK).await;
        transport.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Transport {
    async fn play(self: Arc<Self>, start: StartActor, notices: Notices) -> Result<(), String> {
        let args = String::from_utf8_lossy(&start.made_of.args).into_owned();
        match start.made_of.type_name.as_str() {
            "quiet" => {}
            "breaks" => drop(vital::fail("it broke, as it was told")),
            "loses-gpu" => self.loses_gpu.store(true, Ordering::SeqCst),
            "fail" => return Err(format!("no memory\n\nCaused by:\n    {args}")),
            "panic" => panic!("create panicked on {args}"),
            "length" => println!("{} bytes, last {:?}", start.made_of.args.len(), start.made_of.args.last()),
            "ends" => notices.actor_stopped(start.actor, Some("it was done".to_owned())),
            "exit" => std::process::exit(5),
            // `<index>` of a chunk of the node.
            "wants-chunk" => {
                let chunk = ChunkId { owner: ProcessId::NODE, index: args.parse().unwrap() };
                println!("{} has the chunk: {}", self.me.name, self.has_chunk(chunk));
            }
            "publishes" => {
                let chunk = ChunkId { owner: self.me.process, index: 0 };
                self.publish(chunk);
            }
            "busy" => {
                self.waiting.fetch_add(1, Ordering::SeqCst);
            }
            "hang-at-stop" => self.hang_at_stop.store(true, Ordering::SeqCst),
            "source" => {
                // `<name of the receiver> <messages>`
                let (name, count) = args.split_once(' ').unwrap();
                let (name, count) = (name.to_owned(), count.parse::<u64>().unwrap());
                let transport = self.clone();
                transport.waiting.fetch_add(1, Ordering::SeqCst);
                std::thread::spawn(move || {
                    let to = transport.look_up(&name).unwrap();
                    for _ in 0..count {
                        transport.send_link_message(to);
                    }
                    transport.waiting.fetch_sub(1, Ordering::SeqCst);
                });
            }
            "logs" => {
                let span = tracing::info_span!("frame", id = 3).entered();
                tracing::warn!(target: "demo::blur", count = 2, "it is warm");
                tracing::debug!("nobody asked for this");
                drop(span);
                let _ =
                    std::thread::Builder::new().name("aside".into()).spawn(|| panic!("boom")).unwrap().join();
            }
            "floods" => {
                for i in 0..args.parse::<u64>().unwrap() {
                    tracing::info!("flood {i}");
                }
            }
            "runs-itself" => {
                let me = std::env::current_exe().unwrap();
                let status = std::process::Command::new(me).arg("not-a-worker").status().unwrap();
                println!("the child of a worker: {status}");
            }
            other => return Err(format!("no actor type `{other}`")),
        }
        Ok(())
    }
}
