//! A post office and actors without tensors: enough to see what the processes of a node do.
//!
//! "Messages" between processes are letters by way of the node; a handler takes [`WORK`] for each. What an actor does
//! is its type's name.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tensorpost::device::DeviceId;
use tensorpost::node::ProcessId;
use tensorpost_core::clock::ProcessPages;
use tensorpost_core::device::Access;
use tensorpost_core::ids::ChunkId;
use tensorpost_core::mailbox::port::{FromNode, Letter, Port, ToNode};
use tensorpost_core::node::{Activity, Identity, Notices, Residence, Resident, Stage, StartActor};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// How long one message is worked on: long enough that a shutdown finds some waiting.
const WORK: Duration = Duration::from_millis(1);

pub(crate) struct Fake;

impl Residence for Fake {
    type Resident = Office;
    type Stage = FakeStage;

    /// Another file name plays another build with other types.
    fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        std::env::current_exe().unwrap().file_name().hash(&mut hasher);
        hasher.finish()
    }

    fn open(&self, identity: &Identity, port: Arc<dyn Port>, _: ProcessPages) -> Result<Arc<Office>, String> {
        if identity.name == "cannot-open" {
            return Err("no GPU 7 here".to_owned());
        }
        let (to_stage, letters) = unbounded_channel();
        Ok(Arc::new(Office {
            me: identity.clone(),
            port,
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
            from_node: Mutex::default(),
            changed: Condvar::new(),
            to_stage,
            letters: Mutex::new(Some(letters)),
        }))
    }

    fn stage(&self, office: Arc<Office>, notices: Notices) -> Result<FakeStage, String> {
        if office.me.name == "cannot-stage" {
            return Err("no stage today".to_owned());
        }
        let letters = office.letters.lock().take().ok_or("a second stage")?;
        actix::spawn(handle_letters(office.clone(), letters));
        Ok(FakeStage { office, notices, hang_at_stop: AtomicBool::new(false) })
    }
}

pub(crate) struct Office {
    pub(crate) me: Identity,
    pub(crate) port: Arc<dyn Port>,
    sent: AtomicU64,
    received: AtomicU64,
    waiting: AtomicU64,
    stopping: AtomicBool,
    from_node: Mutex<Vec<FromNode>>,
    changed: Condvar,
    to_stage: UnboundedSender<ProcessId>,
    letters: Mutex<Option<UnboundedReceiver<ProcessId>>>,
}

impl Resident for Office {
    fn from_node(&self, message: FromNode, descriptors: Vec<OwnedFd>) {
        if let FromNode::Letter { from, .. } = message {
            assert!(descriptors.len() == 4 || descriptors.is_empty());
            self.waiting.fetch_add(1, Ordering::SeqCst);
            self.received.fetch_add(1, Ordering::SeqCst);
            let _ = self.to_stage.send(from);
        }
        if let FromNode::Taint(news) = &message {
            let _ = self.port.send(ToNode::Tainted { round: news.round, ranges: Vec::new() }, Vec::new());
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

    fn stopping(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        println!("{} is told that the node is stopping", self.me.name);
    }
}

impl Office {
    /// Waits for a message from the node that `find` takes.
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
        self.port.send(ToNode::Lookup { ticket, name: name.to_owned() }, Vec::new()).unwrap();
        self.wait_for(|message| match message {
            FromNode::Found { ticket: of, found } if *of == ticket => Some(*found),
            _ => None,
        })
        .map(|(_, place)| place.process)
    }

    /// Asks for a chunk, and says whether there is one.
    pub(crate) fn has_chunk(&self, wanted: ChunkId) -> bool {
        self.want_chunk(wanted);
        self.wait_for(|message| match message {
            FromNode::Chunk { chunk, .. } if *chunk == wanted => Some(true),
            FromNode::NoChunk { chunk, .. } if *chunk == wanted => Some(false),
            _ => None,
        })
    }

    pub(crate) fn want_chunk(&self, chunk: ChunkId) {
        self.port.send(ToNode::WantChunk { chunk, access: Access::ReadOnly }, Vec::new()).unwrap();
    }

    pub(crate) fn publish(&self, chunk: ChunkId) {
        let null = std::fs::File::open("/dev/null").unwrap();
        let descriptors = vec![null.try_clone().unwrap().into(), null.into()];
        let message = ToNode::PublishChunk { chunk, device: DeviceId::HOST, bytes: 1 };
        self.port.send(message, descriptors).unwrap();
    }

    pub(crate) fn send_letter(&self, to: ProcessId) {
        self.sent.fetch_add(1, Ordering::SeqCst);
        // A process that sends anything but memory and local sockets is given up.
        let pairs = [(); 2].map(|()| std::os::unix::net::UnixStream::pair().unwrap());
        let descriptors = pairs.into_iter().flat_map(|(one, other)| [one.into(), other.into()]).collect();
        self.port.send(ToNode::Route { to, letter: Letter::Link }, descriptors).unwrap();
    }
}

async fn handle_letters(office: Arc<Office>, mut letters: UnboundedReceiver<ProcessId>) {
    while letters.recv().await.is_some() {
        tokio::time::sleep(WORK).await;
        office.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

pub(crate) struct FakeStage {
    office: Arc<Office>,
    notices: Notices,
    hang_at_stop: AtomicBool,
}

impl Stage for FakeStage {
    async fn start_actor(&self, start: StartActor) -> Result<(), String> {
        let args = String::from_utf8_lossy(&start.args).into_owned();
        match start.type_name.as_str() {
            "quiet" => {}
            "fail" => return Err(format!("no memory\n\nCaused by:\n    {args}")),
            "panic" => panic!("create panicked on {args}"),
            "length" => println!("{} bytes, last {:?}", start.args.len(), start.args.last()),
            "ends" => self.notices.actor_stopped(start.actor, Some("it was done".to_owned())),
            "exit" => std::process::exit(5),
            // `<index>` of a chunk of the node.
            "wants-chunk" => {
                let chunk = ChunkId { owner: ProcessId::NODE, index: args.parse().unwrap() };
                println!("{} has the chunk: {}", self.office.me.name, self.office.has_chunk(chunk));
            }
            "publishes" => {
                let chunk = ChunkId { owner: self.office.me.process, index: 0 };
                self.office.publish(chunk);
            }
            "busy" => {
                self.office.waiting.fetch_add(1, Ordering::SeqCst);
            }
            "hang-at-stop" => self.hang_at_stop.store(true, Ordering::SeqCst),
            "source" => {
                // `<name of the receiver> <messages>`
                let (name, count) = args.split_once(' ').unwrap();
                let (name, count) = (name.to_owned(), count.parse::<u64>().unwrap());
                let office = self.office.clone();
                office.waiting.fetch_add(1, Ordering::SeqCst);
                std::thread::spawn(move || {
                    let to = office.look_up(&name).unwrap();
                    for _ in 0..count {
                        office.send_letter(to);
                    }
                    office.waiting.fetch_sub(1, Ordering::SeqCst);
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

    async fn stop_actors(&self) {
        if self.hang_at_stop.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        let office = &self.office;
        println!("{} handled {}", office.me.name, office.received.load(Ordering::SeqCst));
    }
}
