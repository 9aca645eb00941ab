//! Two transports; one of them lies. Messages with tensors, parts, addresses and bodies of any size, asks and
//! replies to them, notices, and frames that name memory of the honest one that it lent to nobody. That
//! memory reads as before, and nothing that stands on it is delivered. The tables of the honest one have a
//! bound, and its asks end. When the liar has ended, all that was lent is back (WIRE-1, ONE-WRITER, MBX-2,
//! LEASE-2).

#![no_main]

mod growth;

use std::collections::HashSet;
use std::sync::Arc;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use serde::{Deserialize, Serialize};
use tensorpost_core::__private::actix;
use tensorpost_core::actor::Address;
use tensorpost_core::clock::Ticket;
use tensorpost_core::ids::ProcessId;
use tensorpost_core::lease::LeaseId;
use tensorpost_core::limits::{MAX_INLINE_BODY, MAX_PROCESSES};
use tensorpost_core::message::{GpuMessage, TensorCheckError};
use tensorpost_core::tensor::{DType, Tensor, TensorMut, TensorPart};
use tensorpost_core::testing::{Asked, Cluster, Received, Target, TestInbox, forge};

const LIAR: usize = 0;
const HONEST: usize = 1;

/// A message of an actor that addresses lead to.
#[derive(Serialize, Deserialize)]
struct Ping;

impl actix::Message for Ping {
    type Result = ();
}

impl GpuMessage for Ping {
    type Reply = ();
    const NAME: &'static str = "Ping";
    const SCHEMA: u64 = 1;

    fn check(&self) -> Result<(), TensorCheckError> {
        Ok(())
    }
}

#[derive(Serialize, Deserialize)]
struct Load {
    tensors: Vec<Tensor>,
    parts: Vec<TensorPart>,
    addresses: Vec<Address<Ping>>,
    text: String,
}

/// The parts of a message.
#[derive(Arbitrary, Clone, Copy, Debug)]
struct Content {
    tensors: u8,
    parts: u8,
    addresses: u8,
    /// Around the size above which a body travels as a lease.
    large: bool,
    text: u16,
    /// Of what arrived, too.
    forwards: bool,
}

#[derive(Arbitrary, Debug)]
enum Lie {
    /// These words of the frame.
    Words(Vec<(u16, u64)>),
    /// One of its leases is on this allocation of the honest one.
    Names { lease: u8, which: u8, generation: u8, offset: u16, bytes: u16, flags: Option<u8> },
    /// Its clock is that far ahead.
    Clock { lease: u8, value: u64 },
}

#[derive(Arbitrary, Debug)]
enum Step {
    Send {
        from: u8,
        content: Content,
        ask: bool,
    },
    Lie {
        content: Content,
        lies: Vec<Lie>,
        ask: bool,
    },
    Reply {
        from: u8,
        content: Content,
    },
    /// The liar's next reply is changed.
    LieInReply {
        content: Content,
        lies: Vec<Lie>,
    },
    Notice {
        kind: u8,
        which: u8,
        generation: u8,
        value: u32,
    },
    Entry {
        words: [u64; 8],
        sealed: bool,
    },
    Bytes {
        bytes: Vec<u8>,
    },
    Poll {
        who: u8,
    },
    Node,
    Drop {
        who: u8,
    },
    /// The honest one writes every part that it was sent.
    Write,
    GiveUp,
}

/// Memory of the honest process that nobody was lent.
struct Private {
    read: Tensor,
    written: TensorMut,
    parts: Vec<TensorPart>,
}

impl Private {
    fn new(cluster: &Cluster) -> Self {
        let stream = cluster.stream(HONEST);
        let memory = |pattern: &[u8]| stream.from_slice(&[8], pattern).expect("memory");
        let parts = memory(b"inparts!").split(0, &[4, 4]).expect("two parts");
        Private { read: memory(b"private!").freeze(), written: memory(b"mineonly"), parts }
    }

    fn leases(&self) -> [LeaseId; 3] {
        [self.read.lease().id(), self.written.lease().id(), self.parts[0].lease().id()]
    }

    fn check(&mut self) {
        assert_eq!(self.read.as_slice::<u8>().expect("on the host"), b"private!");
        assert_eq!(self.written.as_slice::<u8>().expect("on the host"), b"mineonly");
        let parts: Vec<u8> =
            self.parts.iter_mut().flat_map(|part| part.to_vec::<u8>().expect("on the host")).collect();
        assert_eq!(parts, b"inparts!");
    }
}

struct Play {
    cluster: Cluster,
    targets: Vec<Target<Load>>,
    inboxes: Vec<Arc<TestInbox<Load>>>,
    arrived: Vec<Vec<Received<Load>>>,
    pings: Vec<(Target<Ping>, Arc<TestInbox<Ping>>)>,
    asked: Vec<Asked<Load>>,
    private: Private,
    secret: HashSet<LeaseId>,
    /// All leases that were ever lent; their entries are used again.
    lent: Vec<LeaseId>,
}

impl Play {
    fn new() -> Self {
        let cluster = Cluster::new(2);
        let (targets, inboxes) = (0..2).map(|i| cluster.inbox(i, 16)).unzip();
        let pings = (0..2).map(|i| cluster.inbox(i, 4)).collect();
        cluster.connect();
        let private = Private::new(&cluster);
        let secret = private.leases().into_iter().collect();
        let arrived = vec![Vec::new(), Vec::new()];
        Play {
            cluster,
            targets,
            inboxes,
            arrived,
            pings,
            asked: Vec::new(),
            private,
            secret,
            lent: Vec::new(),
        }
    }

    fn collect(&mut self) {
        for (who, (arrived, inbox)) in self.arrived.iter_mut().zip(&self.inboxes).enumerate() {
            for received in inbox.take() {
                let Load { tensors, parts, .. } = &received.message;
                let leases = tensors.iter().map(Tensor::lease).chain(parts.iter().map(TensorPart::lease));
                if who == HONEST {
                    leases.for_each(|lease| {
                        assert!(!self.secret.contains(&lease.id()), "{lease:?} was lent to nobody")
                    });
                }
                arrived.push(received);
            }
        }
        self.pings.iter().for_each(|(_, inbox)| drop(inbox.take()));
    }

    fn load(&mut self, from: usize, content: Content) -> Load {
        let stream = self.cluster.stream(from);
        let tensors = content.tensors % 4;
        let mut tensors: Vec<Tensor> =
            (0..tensors).map(|n| stream.zeros(DType::U8, &[n.into()]).expect("memory").freeze()).collect();
        let mut parts = Vec::new();
        if content.parts % 4 > 0 {
            let whole = stream.zeros(DType::U8, &[8]).expect("memory");
            parts = whole.split(0, &[2, 2, 4]).expect("three parts");
            parts.truncate(usize::from(content.parts % 4));
        }
        if content.forwards
            && let Some(received) = self.arrived[from].pop()
        {
            tensors.extend(received.message.tensors);
            parts.extend(received.message.parts);
        }
        if from == HONEST {
            let leases = tensors.iter().map(Tensor::lease).chain(parts.iter().map(TensorPart::lease));
            let own = leases.filter(|lease| lease.owner() == self.cluster.process(HONEST));
            self.lent.extend(own.map(|lease| lease.id()));
        }
        let address = |n: u8| self.cluster.address(from, &self.pings[usize::from(n) % 2].0);
        let length = usize::from(content.text) + if content.large { MAX_INLINE_BODY - 64 } else { 0 };
        let addresses = (0..content.addresses % 3).map(address).collect();
        Load { tensors, parts, addresses, text: "x".repeat(length) }
    }

    fn send(&mut self, from: usize, content: Content, ask: bool) {
        let to = 1 - from;
        if self.cluster.gave_up(from, to) {
            return;
        }
        let load = self.load(from, content);
        if ask {
            // An ask that cannot be sent now is as good as none.
            if let Ok(asked) = self.cluster.try_ask(from, &self.targets[to], load)
                && from == HONEST
            {
                self.asked.push(asked);
            }
        } else {
            let _ = self.cluster.try_send(from, &self.targets[to], load);
        }
    }

    /// An allocation of the honest one: a private one, or one that was lent once.
    fn lease(&self, which: u8, generation: u8) -> LeaseId {
        let private = self.private.leases();
        let all: Vec<LeaseId> = private.into_iter().chain(self.lent.iter().rev().take(5).copied()).collect();
        let id = all[usize::from(which) % all.len()];
        // Nearly always the right one.
        LeaseId { generation: id.generation.wrapping_add(if generation == 1 { 1 } else { 0 }), ..id }
    }

    fn lie(&self, lies: Vec<Lie>) {
        type Change = Box<dyn Fn(&mut Vec<u8>) + Send + Sync>;
        let changes: Vec<Change> = lies
            .into_iter()
            .take(4)
            .map(|lie| -> Change {
                match lie {
                    Lie::Words(words) => Box::new(move |frame| {
                        for (at, value) in &words {
                            let at = usize::from(*at) % frame.len();
                            let end = (at + 8).min(frame.len());
                            frame[at..end].copy_from_slice(&value.to_le_bytes()[..end - at]);
                        }
                    }),
                    Lie::Names { lease, which, generation, offset, bytes, flags } => {
                        let id = self.lease(which, generation);
                        let (own, owned) = (self.private.read.lease(), id.chunk.owner.to_bits());
                        // In units of memory, as tensors lie.
                        let offset = if offset == 0 { own.offset() } else { u64::from(offset % 16) * 512 };
                        let bytes = if bytes == 0 { own.bytes() } else { bytes.into() };
                        Box::new(move |frame| {
                            field(frame, lease, |name| match name {
                                "lease owner" => Some(owned),
                                "lease chunk" => Some(id.chunk.index.into()),
                                "lease entry" => Some(id.entry.into()),
                                "lease generation" => Some(id.generation.into()),
                                "lease offset" => Some(offset),
                                "lease length" => Some(bytes),
                                "lease flags" => flags.map(u64::from),
                                _ => None,
                            });
                        })
                    }
                    Lie::Clock { lease, value } => Box::new(move |frame| {
                        field(frame, lease, |name| (name == "clock value").then_some(value));
                    }),
                }
            })
            .collect();
        self.cluster.tamper_next(LIAR, HONEST, move |frame| {
            changes.iter().for_each(|change| change(frame));
            forge::reseal(frame);
        });
    }

    fn step(&mut self, step: Step) {
        let gave_up = self.cluster.gave_up(LIAR, HONEST);
        match step {
            Step::Send { from, content, ask } => self.send(usize::from(from) % 2, content, ask),
            Step::Lie { content, lies, ask } => {
                if !gave_up {
                    self.lie(lies);
                    self.send(LIAR, content, ask);
                }
            }
            Step::Reply { from, content } => self.reply(usize::from(from) % 2, content),
            Step::LieInReply { content, lies } => {
                if !gave_up {
                    self.lie(lies);
                    self.reply(LIAR, content);
                }
            }
            Step::Notice { kind, which, generation, value } => {
                let id = self.lease(which, generation);
                let ticket = Ticket { process: self.cluster.process(LIAR), slot: 0, value: value.into() };
                let other = ProcessId::new((value % 8) as u16, value >> 8).expect("a small slot");
                self.notice(match kind % 6 {
                    4 => forge::forward(id, other),
                    5 => forge::forward(id, self.cluster.process(value as usize % 2)),
                    0 => forge::hold(id, other),
                    1 => forge::release(id, &[]),
                    2 => forge::release(id, &[ticket]),
                    _ => forge::rejected(value.into()),
                });
            }
            Step::Entry { mut words, sealed } => {
                if sealed {
                    forge::reseal_entry(&mut words);
                }
                self.notice(words);
            }
            Step::Bytes { bytes } => {
                if !gave_up && bytes.len() < 4096 {
                    let _ = self.cluster.forge_frame(LIAR, HONEST, &bytes);
                }
            }
            Step::Poll { who } => {
                self.cluster.poll(usize::from(who) % 2);
            }
            Step::Node => self.cluster.run_node_until_idle(),
            Step::Drop { who } => drop(self.arrived[usize::from(who) % 2].pop()),
            Step::Write => {
                let stream = self.cluster.stream(HONEST);
                for part in self.arrived[HONEST].iter_mut().flat_map(|received| &mut received.message.parts) {
                    // On the stream: what the liar said of its clocks may be a lie, and nobody waits for it
                    // here.
                    let _ = stream.run((part.of_mut::<u8>(),), |(mut part,)| {
                        part.runs_mut().flatten().for_each(|element| *element = 0xaa);
                    });
                }
            }
            Step::GiveUp => {
                if let Some(asked) = self.asked.pop() {
                    asked.give_up();
                }
            }
        }
    }

    fn reply(&mut self, from: usize, content: Content) {
        let Some(at) = self.arrived[from].iter().position(|received| received.receipt.wants_reply()) else {
            return;
        };
        let received = self.arrived[from].swap_remove(at);
        let load = self.load(from, content);
        received.receipt.reply(load);
    }

    fn notice(&self, notice: [u64; 8]) {
        if !self.cluster.gave_up(LIAR, HONEST) {
            let _ = self.cluster.forge_notice(LIAR, HONEST, notice);
        }
    }

    fn check(&mut self) {
        self.collect();
        self.private.check();
        // MBX-2: its own chunks, the liar's, and those that a frame which waits may name.
        assert!(
            self.cluster.chunks_known(HONEST) <= 2048,
            "{} chunks known",
            self.cluster.chunks_known(HONEST)
        );
        assert!(self.cluster.links(HONEST) <= MAX_PROCESSES, "{} links", self.cluster.links(HONEST));
    }

    fn end(mut self) {
        self.cluster.run_until_idle();
        self.check();
        self.cluster.end(LIAR);
        for _ in 0..3 {
            self.cluster.run_until_idle();
            self.check();
            self.arrived.iter_mut().for_each(Vec::clear);
        }
        for asked in std::mem::take(&mut self.asked) {
            assert!(asked.take().is_some(), "an ask to the dead has not ended");
        }
        self.cluster.run_until_idle();
        self.cluster.stream(HONEST).synchronize().ok();
        self.private.check();
        assert_eq!(self.cluster.leases(HONEST), 3, "{}", self.cluster.stream(HONEST).pool().holders());
        drop(self.private);
        self.cluster.run_until_idle();
        assert_eq!(self.cluster.leases(HONEST), 0, "{}", self.cluster.stream(HONEST).pool().holders());
    }
}

/// Sets fields of one of a frame's leases, where it has any.
fn field(frame: &mut [u8], lease: u8, value: impl Fn(&str) -> Option<u64>) {
    let all = forge::fields(usize::from(lease % 4) + 1, 0);
    let first = all.iter().rposition(|field| field.name == "lease owner").unwrap_or(all.len());
    for field in &all[first..] {
        if let Some(value) = value(field.name)
            && field.at + field.bytes <= frame.len()
        {
            field.set(frame, value);
        }
    }
}

fuzz_target!(|steps: Vec<Step>| {
    // Two transports, and 48 bodies of at most 128 KiB on either side. The threads of the last input may be
    // on their way out.
    growth::bounded(64 << 20, 4 << 20, || {
        let mut play = Play::new();
        for step in steps.into_iter().take(48) {
            play.step(step);
            play.check();
        }
        play.end();
    });
});
