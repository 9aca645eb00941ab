//! NIXL lanes between two hosts, with host memory: with a fake NIXL, and with the one that `TENSORPOST_NIXL`
//! names.

#![expect(unsafe_code, reason = "memory that others write by its address, as NIXL does")]

use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;

use super::renewals::{keep, listen_on, renewed};
use super::*;
use crate::frame::{Piece, Run};
use crate::ids::Gateway as Which;
use crate::nixl::{Agent, Arena, Arenas, Library, MemoryPlace, Nixl, NixlError, Part, Passing, Region};

const BOUNDS: Bounds = Bounds { window: 16 << 20, wide: 64 << 20, piece: 256 << 10, run: 1 << 20 };

/// Host memory that is written by its address.
struct Dram {
    /// Accessed only by the address.
    _memory: Vec<u8>,
    region: Region,
    _counted: Arc<()>,
}

impl Arena for Dram {
    fn memory(&self) -> Region {
        self.region
    }

    fn enter(&self) -> Result<(), String> {
        Ok(())
    }

    fn fill(&self, offset: u64, bytes: &[u8]) -> Result<(), String> {
        copy(
            bytes.as_ptr().expose_provenance() as u64,
            self.memory().part(offset, bytes.len() as u64).address,
            bytes.len(),
        );
        Ok(())
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), String> {
        let from = self.memory().part(offset, bytes.len() as u64).address;
        copy(from, bytes.as_mut_ptr().expose_provenance() as u64, bytes.len());
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

fn copy(from: u64, to: u64, bytes: usize) {
    let from = std::ptr::with_exposed_provenance::<u8>(from as usize);
    let to = std::ptr::with_exposed_provenance_mut::<u8>(to as usize);
    // SAFETY: the tests pass ranges of live memory, and only one thread writes them at a time.
    unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) };
}

struct HostArenas {
    memory: Arc<Buffers>,
    /// A clone of it in each arena counts the arenas.
    counted: Arc<()>,
}

impl Arenas for HostArenas {
    fn lands(&self, post: Seq, _: u16) -> BoxFuture<'_, Option<u8>> {
        async move {
            self.memory.until_seen(post).await;
            Some(0)
        }
        .boxed()
    }

    fn reserve(&self, _: u8, bytes: u64) -> Result<Arc<dyn Arena>, String> {
        let mut memory = vec![0; bytes as usize];
        let address = memory.as_mut_ptr().expose_provenance() as u64;
        let (region, counted) =
            (Region { place: MemoryPlace::Host, address, bytes }, Arc::clone(&self.counted));
        Ok(Arc::new(Dram { _memory: memory, region, _counted: counted }))
    }

    fn export<'a>(&'a self, run: Run, arena: &'a Arc<dyn Arena>, offset: u64) -> BoxFuture<'a, bool> {
        async move {
            let piece = Piece { post: run.post, span: run.span, offset: run.offset, bytes: run.bytes as u32 };
            let Some(bytes) = self.memory.read(piece).await else { return false };
            arena.fill(offset, &bytes).is_ok()
        }
        .boxed()
    }

    fn import<'a>(&'a self, run: Run, arena: &'a Arc<dyn Arena>, offset: u64) -> BoxFuture<'a, Passing> {
        async move {
            let mut bytes = vec![0; run.bytes as usize];
            arena.read(offset, &mut bytes).expect("memory");
            let piece = Piece { post: run.post, span: run.span, offset: run.offset, bytes: run.bytes as u32 };
            self.memory.write(piece, Parts::from(Bytes::from(bytes))).await;
            Passing(std::future::ready(()).boxed())
        }
        .boxed()
    }
}

/// A fake NIXL: all of its agents are in this process.
#[derive(Debug, Default)]
struct False {
    memory: Mutex<HashMap<String, Region>>,
    /// The names of all agents that ever existed.
    names: Mutex<HashSet<String>>,
    writes: AtomicUsize,
    /// While this is set, new writes stay in progress.
    stuck: AtomicBool,
    /// Counts polls of writes that were in progress.
    looks: AtomicUsize,
    /// Writes that were in progress when their agent ended.
    given_up: AtomicUsize,
    /// Writes go nowhere, and are reported as done.
    lies: AtomicBool,
}

struct FalseAgent {
    name: String,
    all: Arc<False>,
    other: Option<String>,
    /// How many writes are in progress.
    stuck: usize,
}

#[derive(Debug)]
struct Shared(Arc<False>);

impl Nixl for Shared {
    fn agent(&self, name: &str, _: Part) -> Result<Box<dyn Agent>, NixlError> {
        Ok(Box::new(FalseAgent { name: name.to_owned(), all: Arc::clone(&self.0), other: None, stuck: 0 }))
    }
}

impl Agent for FalseAgent {
    fn register(&mut self, memory: Region) -> Result<(), NixlError> {
        assert!(self.all.names.lock().insert(self.name.clone()), "two agents have the name {}", self.name);
        self.all.memory.lock().insert(self.name.clone(), memory);
        Ok(())
    }

    fn metadata(&mut self) -> Result<Bytes, NixlError> {
        Ok(Bytes::from(self.name.clone()))
    }

    fn connect(&mut self, name: &str, metadata: &[u8], memory: Region) -> Result<(), NixlError> {
        let known = self.all.memory.lock().get(name) == Some(&memory) && metadata == name.as_bytes();
        self.other = known.then(|| name.to_owned());
        if known { Ok(()) } else { Err(NixlError::Argument { what: "a stranger" }) }
    }

    fn begin(&mut self, from: Region, to: Region) -> Result<u64, NixlError> {
        let all = &self.all;
        // Held during the copy, so that deregistration waits for it.
        let memory = all.memory.lock();
        if !self.other.as_ref().is_some_and(|other| memory.contains_key(other)) {
            // The other side may have noticed first that their connection broke. Nothing is written there any
            // more.
            return Err(NixlError::Argument { what: "memory that was deregistered" });
        }
        if all.stuck.load(Relaxed) {
            self.stuck += 1;
            return Ok(0);
        }
        if !all.lies.load(Relaxed) {
            copy(from.address, to.address, from.bytes as usize);
        }
        all.writes.fetch_add(1, Relaxed);
        Ok(1)
    }

    fn is_done(&mut self, write: u64) -> Result<bool, NixlError> {
        if write == 1 {
            return Ok(true);
        }
        let is_done = !self.all.stuck.load(Relaxed);
        match is_done {
            true => self.stuck -= 1,
            false => drop(self.all.looks.fetch_add(1, Relaxed)),
        }
        Ok(is_done)
    }
}

impl Drop for FalseAgent {
    fn drop(&mut self) {
        self.all.given_up.fetch_add(self.stuck, Relaxed);
        self.all.memory.lock().remove(&self.name);
    }
}

/// Makes the parts that a host needs for NIXL; each arena holds a clone of `counted`.
fn using(nixl: &Arc<dyn Nixl>, memory: &Arc<Buffers>, counted: &Arc<()>) -> Option<NixlUse> {
    let arenas = Arc::new(HostArenas { memory: Arc::clone(memory), counted: Arc::clone(counted) });
    // As if there were no gRPC lane: on this machine both lanes copy, and which one is faster does not matter
    // to the tests.
    Some(NixlUse { nixl: Arc::clone(nixl), arenas, lanes: 0 })
}

/// Makes two hosts that use NIXL, the first of which listens for the second.
async fn two(nixl: Arc<dyn Nixl>) -> (Gateway, Gateway, Listener) {
    let host = |own: u16, other: u16| {
        let pulse = Pulse::Link(LinkPulse::default());
        Gateway::with(own, other, pulse, BOUNDS, |memory| using(&nixl, memory, &Arc::default()))
    };
    let (zero, one) = (host(0, 1), host(1, 0));
    zero.serve(1, 8);
    let security = Security::loopback();
    let listener = zero.listen(&security).await;
    let (dial, keeping) = (dial(listener.address(), &security, 1), Arc::clone(&one.peer));
    tokio::spawn(async move { dial.keep(&keeping).await });
    (zero, one, listener)
}

/// Sends a message from `one` to `zero`, and checks that it arrives.
async fn passes(zero: &Gateway, one: &Gateway, number: u8) {
    static ALL: LazyLock<Bytes> =
        LazyLock::new(|| (0..(5_usize << 19) + 400).map(|at| (at >> 8) as u8 ^ at as u8).collect());
    let bytes = ALL.slice(usize::from(number)..(5 << 19) + 77 + usize::from(number));
    let to = To::Send(actor(0, 1));
    let came = async {
        loop {
            let whole = bytes.len() as u64;
            let lend = |post, offer: &mut dyn FnMut(OnDevice)| {
                one.memory.lend(post, vec![bytes.clone()]);
                offer(OnDevice { span: 0, device: 0, bytes: whole });
            };
            match one.peer.post(to, Bytes::from(vec![number]), vec![whole], lend) {
                Ok(_) => break,
                Err(_) => drop(one.next().await),
            }
        }
        let released = async { while !matches!(one.next().await, Some(Event::Released { .. })) {} };
        let message = async {
            loop {
                if let Some(Event::Message { post, message }) = zero.next().await {
                    return (post, message);
                }
            }
        };
        let ((), (post, message)) = tokio::join!(released, message);
        assert_eq!(message.head, vec![number]);
        assert!(zero.memory.take(post) == [bytes.to_vec()], "message {number} is not what was sent");
        zero.peer.with(|session| session.done(post));
    };
    tokio::time::timeout(Duration::from_secs(60), came).await.expect("it comes");
    assert_eq!(one.memory.lent(), 0);
}

/// Sends messages until one goes by NIXL: the first ones have the route made.
async fn until_used(zero: &Gateway, one: &Gateway) {
    let used = async {
        let mut number = 1;
        while one.peer.nixl_routes() == 0 {
            passes(zero, one, number).await;
            number = number.wrapping_add(1).max(1);
            // On a busy machine a probe may have taken too long, which counts for the whole connection.
            if number.is_multiple_of(16)
                && let Some(link) = one.peer.link()
            {
                one.peer.cut(link);
                until_there(one).await;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), used).await.expect("a route");
}

/// Waits for the stream.
async fn until_there(one: &Gateway) {
    let there = one.peer.until_nixl();
    tokio::time::timeout(Duration::from_secs(60), there).await.expect("a stream for NIXL");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tensors_go_by_nixl_once_it_was_found_to_be_faster() {
    let fabric = Arc::new(False::default());
    let (zero, one, _listener) = two(Arc::new(Shared(Arc::clone(&fabric)))).await;
    until_there(&one).await;
    until_used(&zero, &one).await;
    let before = fabric.writes.load(Relaxed);
    passes(&zero, &one, 7).await;
    assert_eq!(fabric.writes.load(Relaxed) - before, 3, "two slots and a part of one");
    assert_eq!((one.peer.nixl_failures(), zero.peer.nixl_failures()), (0, 0));

    // A write never ends: the rest goes by gRPC, and the next route is a new one.
    fabric.stuck.store(true, Relaxed);
    passes(&zero, &one, 8).await;
    assert_eq!((one.peer.nixl_failures(), one.peer.nixl_routes()), (1, 0));
    fabric.stuck.store(false, Relaxed);
    until_used(&zero, &one).await;

    // The same after a connection that broke.
    let link = one.peer.link().expect("a connection");
    one.peer.cut(link);
    until_there(&one).await;
    passes(&zero, &one, 9).await;
    until_used(&zero, &one).await;

    // With the session all agents end, and their registrations with them.
    one.peer.end();
    zero.peer.end();
    until_closed(&fabric).await;
}

/// HOST-11. A device goes on with its copies after the agent has ended, so the agent ends only after its
/// writes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_ends_after_its_writes() {
    let fabric = Arc::new(False::default());
    let (zero, one, _listener) = two(Arc::new(Shared(Arc::clone(&fabric)))).await;
    until_there(&one).await;
    until_used(&zero, &one).await;
    let until_looked = async |more: usize| {
        let from = fabric.looks.load(Relaxed);
        while fabric.looks.load(Relaxed) < from + more && fabric.given_up.load(Relaxed) == 0 {
            tokio::task::yield_now().await;
        }
    };
    fabric.stuck.store(true, Relaxed);
    let cut = async {
        until_looked(1).await;
        one.peer.cut(one.peer.link().expect("a connection"));
        while one.peer.nixl_routes() > 0 {
            tokio::task::yield_now().await;
        }
        until_looked(1_000).await;
        fabric.stuck.store(false, Relaxed);
    };
    tokio::join!(passes(&zero, &one, 7), cut);
    until_there(&one).await;
    until_used(&zero, &one).await;
    assert_eq!(fabric.given_up.load(Relaxed), 0, "writes were in progress when their agent ended");
}

/// Waits until no agent is left.
async fn until_closed(fabric: &False) {
    let ended = async {
        while !fabric.memory.lock().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), ended).await.expect("all agents end");
}

/// Makes a gateway of a host in a session with this gateway of the other host. It follows another gateway of
/// its own host, or of the other.
fn next(
    nixl: &Arc<dyn Nixl>,
    (own, gateway): (u16, u32),
    (other, of): (u16, Which),
    before: Option<&Gateway>,
) -> (Gateway, Arc<()>) {
    let (memory, counted, refused) =
        (Arc::new(Buffers::default()), Arc::new(()), Arc::new(Refused::default()));
    let session = Session::of_gateways((who(own), Which(gateway)), (who(other), of), BOUNDS);
    let (lent, pulse) = (Arc::clone(&memory) as Arc<dyn Memory>, Pulse::Link(LinkPulse::default()));
    let using = using(nixl, &memory, &counted);
    let peer = match before {
        Some(before) => before.peer.followed_by(session, lent, pulse, using),
        None => Peer::with_nixl(session, lent, pulse, Arc::clone(&refused), using),
    };
    (Gateway { own, peer, memory, refused }, counted)
}

/// HOST-11. The agents of a gateway that dies end with it. The other side's agents end, then its arenas are
/// free, and the next session has others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nixl_is_used_with_the_next_gateway_of_either_host() {
    let fabric = Arc::new(False::default());
    let nixl = Arc::new(Shared(Arc::clone(&fabric))) as Arc<dyn Nixl>;
    let (zero, one, listener) = two(Arc::clone(&nixl)).await;
    until_there(&one).await;
    until_used(&zero, &one).await;

    // The gateway that is written to ends, as when its process does.
    let socket = listener.socket().try_clone_to_owned().expect("a descriptor");
    drop(listener);
    zero.peer.end();
    let (zero, arenas) = next(&nixl, (0, 2), (1, Which::UNKNOWN), None);
    zero.serve(1, 8);
    let (listener, peers) = listen_on(&zero, socket.into()).await;
    let (_, found) = renewed(&one).await;
    until_closed(&fabric).await;
    let (one, _) = next(&nixl, (1, 1), (0, found), Some(&one));
    keep(&one, listener.address());
    until_there(&one).await;
    until_used(&zero, &one).await;
    let before = fabric.writes.load(Relaxed);
    passes(&zero, &one, 7).await;
    assert_eq!(fabric.writes.load(Relaxed) - before, 3, "two slots and a part of one");
    assert!(Arc::strong_count(&arenas) > 2, "there is an arena");

    // The gateway that writes ends: it reports no more ends.
    one.peer.end();
    let (one, _) = next(&nixl, (1, 2), (0, Which::UNKNOWN), None);
    keep(&one, listener.address());
    let (_, found) = renewed(&zero).await;
    until_closed(&fabric).await;
    let released = async {
        while Arc::strong_count(&arenas) > 2 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), released).await.expect("its arenas are free");
    let (next_zero, _) = next(&nixl, (0, 2), (1, found), Some(&zero));
    next_zero.serve(1, 8);
    assert!(peers.add(Arc::clone(&next_zero.peer)));
    until_there(&one).await;
    until_used(&next_zero, &one).await;
    assert_eq!((one.peer.nixl_failures(), next_zero.peer.nixl_failures()), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nixl_is_not_used_where_its_bytes_do_not_come() {
    let fabric = Arc::new(False::default());
    fabric.lies.store(true, Relaxed);
    let (zero, one, _listener) = two(Arc::new(Shared(Arc::clone(&fabric)))).await;
    until_there(&one).await;
    for number in 1_u8.. {
        passes(&zero, &one, number).await;
        if one.peer.nixl_failures() == u64::from(crate::limits::MAX_NIXL_BREAKS) {
            break;
        }
    }
    assert_eq!(one.peer.nixl_routes(), 0);
    assert_eq!(zero.refused.count(crate::refused::Kind::Forged), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tensors_go_by_the_nixl_that_is_installed() {
    let nixl = match Library::load() {
        Ok(nixl) => nixl.on_loopback(),
        Err(error) if std::env::var_os("TENSORPOST_NIXL").is_none() => {
            return eprintln!("left out: {error}");
        }
        Err(error) => panic!("{error}"),
    };
    let (zero, one, _listener) = two(Arc::new(nixl)).await;
    until_there(&one).await;
    until_used(&zero, &one).await;
    for number in 1..9 {
        passes(&zero, &one, number).await;
    }
    assert_eq!((one.peer.nixl_failures(), zero.peer.nixl_failures()), (0, 0));
}
