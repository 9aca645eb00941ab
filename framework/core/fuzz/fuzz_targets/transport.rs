//! Three transports; one of them lies. Any sequence of honest messages, frames with words of them changed,
//! raw bytes, notices, polls and drops. The liar keeps none of the others' memory, and the others go on
//! serving each other (WIRE-1, LEASE-1, LEASE-2).

#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use tensorpost_core::clock::Ticket;
use tensorpost_core::ids::ChunkId;
use tensorpost_core::lease::LeaseId;
use tensorpost_core::tensor::{DType, Tensor};
use tensorpost_core::testing::{Cluster, Received, forge};

const LIAR: usize = 0;
const HONEST: [usize; 2] = [1, 2];

#[derive(Arbitrary, Debug)]
enum Step {
    /// An honest message with new memory.
    Send {
        from: u8,
        to: u8,
        tensors: u8,
    },
    /// An honest message with what arrived.
    Forward {
        from: u8,
        to: u8,
    },
    /// The same by the liar, with these words changed: where and to what.
    Lie {
        to: u8,
        words: Vec<(u16, u64)>,
        sealed: bool,
    },
    /// Bytes that never were a frame.
    Bytes {
        to: u8,
        bytes: Vec<u8>,
    },
    /// A notice by the liar about a lease in the lease table, or nearly.
    Notice {
        to: u8,
        kind: u8,
        entry: u8,
        generation: u8,
        chunk: u8,
        value: u32,
    },
    /// Any notice.
    Entry {
        to: u8,
        words: [u64; 8],
        sealed: bool,
    },
    Poll {
        who: u8,
    },
    Node,
    /// One that arrived is done with.
    Drop {
        who: u8,
    },
    /// One that arrived is written.
    Write {
        who: u8,
    },
}

struct Play {
    cluster: Cluster,
    targets: Vec<tensorpost_core::testing::Target<Vec<Tensor>>>,
    inboxes: Vec<std::sync::Arc<tensorpost_core::testing::TestInbox<Vec<Tensor>>>>,
    arrived: Vec<Vec<Received<Vec<Tensor>>>>,
}

impl Play {
    fn new() -> Self {
        let cluster = Cluster::new(3);
        let (targets, inboxes) = (0..3).map(|i| cluster.inbox(i, 16)).unzip();
        cluster.connect();
        Play { cluster, targets, inboxes, arrived: (0..3).map(|_| Vec::new()).collect() }
    }

    fn collect(&mut self) {
        for (arrived, inbox) in self.arrived.iter_mut().zip(&self.inboxes) {
            arrived.extend(inbox.take());
        }
    }

    fn send(&self, from: usize, to: usize, tensors: Vec<Tensor>) {
        if from != to && !self.cluster.gave_up(from, to) {
            // It may have to wait: then it comes back, and is dropped.
            let _ = self.cluster.try_send(from, &self.targets[to], tensors);
        }
    }

    fn new_tensors(&self, owner: usize, count: u8) -> Vec<Tensor> {
        let stream = self.cluster.stream(owner);
        (0..count % 4).map(|n| stream.zeros(DType::U8, &[n.into()]).expect("memory").freeze()).collect()
    }

    fn step(&mut self, step: Step) {
        let other = |to: u8| HONEST[usize::from(to) % 2];
        match step {
            Step::Send { from, to, tensors } => {
                let from = usize::from(from) % 3;
                self.send(from, usize::from(to) % 3, self.new_tensors(from, tensors));
            }
            Step::Forward { from, to } => {
                let from = usize::from(from) % 3;
                if let Some(received) = self.arrived[from].pop() {
                    self.send(from, usize::from(to) % 3, received.message);
                }
            }
            Step::Lie { to, words, sealed } => {
                if self.cluster.gave_up(LIAR, other(to)) {
                    return;
                }
                self.cluster.tamper_next(LIAR, other(to), move |frame| {
                    for (at, value) in words {
                        let at = usize::from(at) % frame.len();
                        let end = (at + 8).min(frame.len());
                        frame[at..end].copy_from_slice(&value.to_le_bytes()[..end - at]);
                    }
                    if sealed {
                        forge::reseal(frame);
                    }
                });
                let mut tensors = self.new_tensors(LIAR, 2);
                tensors.extend(self.arrived[LIAR].pop().into_iter().flat_map(|received| received.message));
                self.send(LIAR, other(to), tensors);
            }
            Step::Bytes { to, bytes } => {
                if !self.cluster.gave_up(LIAR, other(to)) && bytes.len() < 4096 {
                    let _ = self.cluster.forge_frame(LIAR, other(to), &bytes);
                }
            }
            Step::Notice { to, kind, entry, generation, chunk, value } => {
                let owner = self.cluster.process(other(to));
                let id = LeaseId {
                    chunk: ChunkId { owner, index: (chunk % 2).into() },
                    entry: (entry % 8).into(),
                    generation: (generation % 8).into(),
                };
                let ticket = Ticket { process: self.cluster.process(LIAR), slot: 0, value: value.into() };
                self.notice(
                    other(to),
                    match kind % 5 {
                        4 => forge::forward(id, self.cluster.process(value as usize % 3)),
                        0 => forge::hold(id, self.cluster.process(value as usize % 3)),
                        1 => forge::release(id, &[]),
                        2 => forge::release(id, &[ticket]),
                        _ => forge::rejected(value.into()),
                    },
                );
            }
            Step::Entry { to, mut words, sealed } => {
                if sealed {
                    forge::reseal_entry(&mut words);
                }
                self.notice(other(to), words);
            }
            Step::Poll { who } => {
                self.cluster.poll(usize::from(who) % 3);
                self.collect();
            }
            Step::Node => self.cluster.run_node_until_idle(),
            Step::Drop { who } => drop(self.arrived[usize::from(who) % 3].pop()),
            Step::Write { who } => {
                let who = usize::from(who) % 3;
                let received = self.arrived[who].pop();
                for tensor in received.into_iter().flat_map(|received| received.message) {
                    // The liar's word about its own memory may be false, so the memory is written without a
                    // wait.
                    drop(tensor.into_mut(self.cluster.stream(who)));
                }
            }
        }
    }

    fn notice(&self, to: usize, notice: [u64; 8]) {
        if !self.cluster.gave_up(LIAR, to) {
            let _ = self.cluster.forge_notice(LIAR, to, notice);
        }
    }

    /// The liar ends. Everything of the others comes back, and they serve each other.
    fn end(mut self) {
        self.cluster.run_until_idle();
        self.collect();
        self.cluster.end(LIAR);
        self.cluster.run_until_idle();
        self.collect();
        self.arrived.iter_mut().for_each(Vec::clear);
        self.cluster.run_until_idle();
        self.collect();
        self.arrived.iter_mut().for_each(Vec::clear);
        self.cluster.run_until_idle();
        for (from, to) in [(1, 2), (2, 1)] {
            assert!(!self.cluster.gave_up(from, to), "an honest process gave another up");
            self.cluster.send(from, &self.targets[to], self.new_tensors(from, 3));
            self.cluster.run_until_idle();
            drop(self.inboxes[to].take_one());
            self.cluster.run_until_idle();
            assert_eq!(self.cluster.leases(from), 0, "{}", self.cluster.stream(from).pool().holders());
        }
    }
}

fuzz_target!(|steps: Vec<Step>| {
    let mut play = Play::new();
    for step in steps.into_iter().take(64) {
        play.step(step);
    }
    play.end();
});
