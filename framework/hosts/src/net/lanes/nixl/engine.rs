//! The thread of one end of a route, with an agent of NIXL and its arena. It ends on an order, or when its
//! peer is gone.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use super::super::super::peer::Peer;
use super::Way;
use crate::limits::NIXL_DEADLINE;
use crate::nixl::{Agent, Arena, At, Heard, NixlError, NixlUse, Offer, Part, Region, Sizes, Took, Wrote};

/// An order for such a thread.
#[derive(Debug)]
pub(super) enum Order {
    /// Make an arena that the other side writes to.
    Make { device: u8 },
    /// Make an arena to read from, connect to the other side's, and probe it.
    Connect { device: u8, offer: Offer },
    /// Write from a slot to the start of the other side's memory plus `to`.
    Write { slot: u8, to: u64, bytes: u64 },
    /// End the thread.
    Close,
}

/// For this long after the last event a thread polls without pause for a complete write or a new order. A
/// slot over NVLink takes less than that, however many are before it, and a wake-up costs a third of it.
const EAGER: Duration = Duration::from_millis(1);
/// How long the thread sleeps between polls after that.
const NAP: Duration = Duration::from_micros(50);

/// Starts a thread with its first order.
pub(super) fn start(peer: &Arc<Peer>, way: Way, at: At, first: Order) {
    let Some(ends) = &peer.nixl else { return };
    let (orders, told) = mpsc::channel();
    // The thread that begins now will read it.
    let _ = orders.send(first);
    ends.engines.lock().insert((way, at.route), orders);
    let name = name(peer, way);
    let (weak, using, sizes) = (Arc::downgrade(peer), ends.using.clone(), ends.sizes);
    let thread = thread::Builder::new().name("tp-nixl".to_owned());
    let spawned = thread.spawn(move || {
        let mut engine = Engine {
            peer: weak.clone(),
            using,
            sizes,
            way,
            at,
            name,
            agent: None,
            arena: None,
            to: None,
            writes: Vec::new(),
            happened: Instant::now(),
        };
        engine.run(&told);
        engine.settle();
        // The agent is dropped before its memory, and both before the end is reported.
        drop(engine);
        if let Some(peer) = weak.upgrade() {
            ended(&peer, way, at);
        }
    });
    if let Err(error) = spawned {
        let why = format!("there is no thread for it: {error}");
        peer.heard(match way {
            Way::In => Heard::Made { at, made: Err(why) },
            Way::Out => Heard::Connected { at, took: Err(why) },
        });
    }
}

/// Returns a name that no other agent has or had: of this process, of the gateway before it, or of another
/// host. At most 64 characters.
fn name(peer: &Peer, way: Way) -> String {
    static NUMBER: AtomicU64 = AtomicU64::new(1);
    let ((own, gateway), number) = (peer.own(), NUMBER.fetch_add(1, Relaxed));
    let end = if way == Way::In { "in" } else { "out" };
    format!("tensorpost-{}-{:x}-{:x}-{number:x}-{end}", own.host.0, own.life.0, gateway.0)
}

/// Reports that an agent has ended.
pub(super) fn ended(peer: &Arc<Peer>, way: Way, at: At) {
    if way == Way::Out
        && let Some(ends) = &peer.nixl
    {
        let arena = ends.arenas.lock().remove(&(way, at));
        drop(arena);
    }
    peer.heard(match way {
        Way::In => Heard::ClosedIn { at },
        Way::Out => Heard::ClosedOut { at },
    });
}

struct Engine {
    peer: Weak<Peer>,
    using: NixlUse,
    sizes: Sizes,
    way: Way,
    at: At,
    name: String,
    // Dropped before the arena, because that deregisters the memory.
    agent: Option<Box<dyn Agent>>,
    arena: Option<Arc<dyn Arena>>,
    /// The other side's arena.
    to: Option<Region>,
    writes: Vec<Write>,
    /// When the last order came, or the last write ended.
    happened: Instant,
}

/// A write that is under way.
struct Write {
    /// NIXL's number for it.
    number: u64,
    slot: u8,
    /// When it was begun, and how long the call took.
    since: Instant,
    begin: Duration,
}

impl Engine {
    fn run(&mut self, told: &Receiver<Order>) {
        loop {
            let order = match self.writes.is_empty() && !self.is_eager() {
                true => told.recv().map_err(|_| TryRecvError::Disconnected),
                false => told.try_recv(),
            };
            let is_told = order.is_ok();
            if is_told {
                self.happened = Instant::now();
            }
            match order {
                Ok(Order::Make { device }) => {
                    let made = self.make(device).map_err(|error| error.to_string());
                    self.tell(Heard::Made { at: self.at, made });
                }
                Ok(Order::Connect { device, offer }) => {
                    let took = self.connect(device, &offer).map_err(|error| error.to_string());
                    self.tell(Heard::Connected { at: self.at, took });
                }
                Ok(Order::Write { slot, to, bytes }) => self.write(slot, to, bytes),
                Ok(Order::Close) | Err(TryRecvError::Disconnected) => return,
                Err(TryRecvError::Empty) => {}
            }
            if !self.progress() && !is_told {
                rest(self.happened);
            }
        }
    }

    fn tell(&self, heard: Heard) {
        if let Some(peer) = self.peer.upgrade() {
            peer.heard(heard);
        }
    }

    /// Makes the agent with its memory.
    fn begin(&mut self, device: u8) -> Result<(&mut dyn Agent, Arc<dyn Arena>), EngineError> {
        let bytes = self.sizes.arena();
        let arena = self.using.arenas.reserve(device, bytes).map_err(EngineError)?;
        arena.enter().map_err(EngineError)?;
        self.arena = Some(Arc::clone(&arena));
        let part = match self.way {
            Way::In => Part::Written,
            Way::Out => Part::Writer,
        };
        let agent = self.agent.insert(self.using.nixl.agent(&self.name, part)?);
        agent.register(arena.memory())?;
        if let Some(ends) = self.peer.upgrade().as_ref().and_then(|peer| peer.nixl.as_ref()) {
            ends.arenas.lock().insert((self.way, self.at), Arc::clone(&arena));
        }
        Ok((&mut **agent, arena))
    }

    fn make(&mut self, device: u8) -> Result<Offer, EngineError> {
        let name = self.name.clone();
        let (agent, arena) = self.begin(device)?;
        Ok(Offer { memory: arena.memory(), name, metadata: agent.metadata()? })
    }

    /// Returns the time of the second write of a probe.
    fn connect(&mut self, device: u8, offer: &Offer) -> Result<Took, EngineError> {
        let (at, slot) = (self.at, self.sizes.slot);
        let (agent, arena) = self.begin(device)?;
        agent.connect(&offer.name, &offer.metadata, offer.memory)?;
        arena.fill(0, &pattern(at, slot)).map_err(EngineError)?;
        let (from, to) = (arena.memory().part(0, slot), offer.memory.part(0, slot));
        let mut took = Took::ZERO;
        // The first write makes the connections that are needed.
        for _ in 0..2 {
            let since = Instant::now();
            let write = agent.begin(from, to)?;
            while !agent.is_done(write)? {
                rest(since);
            }
            took = since.elapsed();
        }
        self.to = Some(offer.memory);
        Ok(took)
    }

    fn is_eager(&self) -> bool {
        self.happened.elapsed() < EAGER
    }

    fn write(&mut self, slot: u8, to: u64, bytes: u64) {
        let asked = Instant::now();
        let begun = match (&mut self.agent, &self.arena, &self.to) {
            (Some(agent), Some(arena), Some(other)) => {
                let from = arena.memory().part(u64::from(slot) * self.sizes.slot, bytes);
                agent.begin(from, other.part(to, bytes)).map_err(|error| error.to_string())
            }
            _ => Err("there is no agent".to_owned()),
        };
        match begun {
            Ok(number) => {
                let since = Instant::now();
                self.writes.push(Write { number, slot, since, begin: since.duration_since(asked) });
            }
            Err(why) => self.tell(Heard::Written { at: self.at, slot, written: Err(why) }),
        }
    }

    /// HOST-11. Waits for the writes that were abandoned. An agent that ends gives them up, but a device
    /// still does the copies that it was told to do. They go into an arena that is used again once this end
    /// has reported that it is gone.
    fn settle(&mut self) {
        let Some(agent) = &mut self.agent else { return };
        let since = Instant::now();
        loop {
            self.writes.retain(|write| matches!(agent.is_done(write.number), Ok(false)));
            // A write that takes longer than this is stuck, and may never end.
            if self.writes.is_empty() || since.elapsed() > NIXL_DEADLINE {
                return;
            }
            rest(since);
        }
    }

    /// Reports writes that are complete. Returns whether there were some.
    fn progress(&mut self) -> bool {
        let Some(agent) = &mut self.agent else { return false };
        let mut ended = Vec::new();
        self.writes.retain(|write| {
            let written = match agent.is_done(write.number) {
                Ok(false) => return true,
                Ok(true) => Ok(Wrote { begin: write.begin, took: write.since.elapsed() }),
                Err(error) => Err(error.to_string()),
            };
            ended.push((write.slot, written));
            false
        });
        let some = !ended.is_empty();
        if some {
            self.happened = Instant::now();
        }
        for (slot, written) in ended {
            self.tell(Heard::Written { at: self.at, slot, written });
        }
        some
    }
}

/// Pauses between two polls, of which the first was made at `since`: NIXL has no notification.
fn rest(since: Instant) {
    if since.elapsed() < EAGER { thread::yield_now() } else { thread::sleep(NAP) }
}

/// Why there is no agent.
#[derive(Debug)]
struct EngineError(String);

impl std::fmt::Display for EngineError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<NixlError> for EngineError {
    fn from(error: NixlError) -> Self {
        EngineError(error.to_string())
    }
}

/// Returns the bytes that a probe writes, which differ for each arena.
fn pattern(at: At, bytes: u64) -> Vec<u8> {
    let seed = u64::from(at.epoch) << 8 | u64::from(at.route);
    let word = |index: u64| (index ^ seed << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    (0..bytes / 8).flat_map(word).collect()
}

/// Returns whether a probe was written to slot 0.
pub(super) fn has_pattern(arena: &dyn Arena, at: At, bytes: u64) -> bool {
    let mut found = vec![0; bytes as usize];
    let read = arena.enter().and_then(|()| arena.read(0, &mut found));
    if let Err(error) = &read {
        tracing::warn!(target: "tensorpost::hosts", "a probe of NIXL cannot be read: {error}");
    }
    read.is_ok() && found == pattern(at, bytes)
}
