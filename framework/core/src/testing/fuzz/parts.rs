//! Parts of split tensors among three processes, one of which lies about them (WIRE-1, ONE-WRITER, LEASE-2).
//!
//! The tests in `frames/parts.rs` change one thing about one part. Here the liar changes anything about any
//! part that it has, describes parts twice, and sends frames again.
//!
//! After each step this holds, besides "no panic": no two parts of one allocation in an honest process share
//! a byte, and a part that its owner never sent reads as before. No join succeeds without such a part. When
//! the liar has ended and all parts are dropped, all memory is back and the lists of writers are empty.
//!
//! A liar may well make a second writer in *another* process (see [`tensor::part`](crate::tensor::part)), so
//! only the owner writes here.

use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Map, Value};

use super::draws::Draws;
use crate::lease::{LeaseId, Returns};
use crate::message::wire;
use crate::tensor::{TensorMut, TensorPart};
use crate::testing::forge::{self, Field};
use crate::testing::{Cluster, Target, TestInbox};

const OWNER: usize = 0;
const LIAR: usize = 1;
const OTHER: usize = 2;
const HONEST: [usize; 2] = [OWNER, OTHER];

/// Steps of one input.
const MOST_STEPS: usize = 40;

/// Parts that a process keeps; it drops earlier ones.
const MOST_HELD: usize = 24;

/// Frames of the liar that it may send again.
const MOST_FRAMES: usize = 8;

/// Parts that a body describes after the liar's changes.
const MOST_DESCRIBED: usize = 8;

/// The elements of the part that is never sent, and those that are written elsewhere.
const KEPT: u8 = 0x5a;
const WRITTEN: u8 = 0xaa;

/// The events of an input: a test that has seen none of a kind shows nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Parts that honest processes got.
    pub arrived: usize,
    /// Messages that they refused.
    pub refused: usize,
    /// Tensors that they made whole again.
    pub joined: usize,
    /// Joins that failed.
    pub not_joined: usize,
}

/// Plays an input.
///
/// # Panics
/// An invariant does not hold.
pub fn play(input: &[u8]) -> Tally {
    let mut draws = Draws::new(input);
    let mut play = Play::new();
    for _ in 0..MOST_STEPS {
        if draws.are_over() {
            break;
        }
        play.step(&mut draws);
        play.check();
    }
    play.end()
}

type Parts = Vec<TensorPart>;

struct Play {
    cluster: Cluster,
    targets: Vec<Target<Parts>>,
    inboxes: Vec<Arc<TestInbox<Parts>>>,
    /// The parts of each process.
    held: Vec<Parts>,
    /// A part that never leaves its owner, which sends the other parts of its tensor.
    kept: TensorPart,
    /// Frames of the liar.
    frames: Arc<Mutex<Vec<Vec<u8>>>>,
    tally: Tally,
}

impl Play {
    fn new() -> Self {
        let cluster = Cluster::new(3);
        let (targets, inboxes) = (0..3).map(|process| cluster.inbox(process, 32)).unzip();
        cluster.connect();
        let whole = cluster.stream(OWNER).from_slice(&[2, 8], &[KEPT; 16]).expect("memory");
        let mut parts = whole.split(1, &[4, 2, 2]).expect("eight columns");
        let kept = parts.pop().expect("three parts");
        let held = vec![parts, Vec::new(), Vec::new()];
        Play { cluster, targets, inboxes, held, kept, frames: Arc::default(), tally: Tally::default() }
    }

    fn step(&mut self, draws: &mut Draws<'_>) {
        match draws.below(8) {
            0 => self.split(draws.below(3), draws),
            1 => {
                let from = draws.below(3);
                let to = (from + 1 + draws.below(2)) % 3;
                let parts = self.take(from, draws);
                self.send(from, to, parts, Vec::new());
            }
            2 | 3 => {
                let to = HONEST[draws.below(2)];
                let lies = (0..=draws.below(3)).map(|_| Lie::drawn(draws)).collect();
                if self.held[LIAR].is_empty() {
                    self.split(LIAR, draws);
                }
                let parts = self.take(LIAR, draws);
                self.send(LIAR, to, parts, lies);
            }
            4 => self.send_again(HONEST[draws.below(2)], draws),
            5 => self.write(),
            6 => self.join(HONEST[draws.below(2)], draws),
            _ => drop(self.take(draws.below(3), draws)),
        }
        match draws.below(4) {
            0 => {
                self.cluster.poll(draws.below(3));
            }
            1 => self.cluster.run_node_until_idle(),
            _ => self.cluster.run_until_idle(),
        }
        self.collect();
    }

    fn split(&mut self, who: usize, draws: &mut Draws<'_>) {
        let (rows, columns) = (1 + draws.below(4), 2 + draws.below(7));
        let zeros = vec![0_u8; rows * columns];
        let whole = self.cluster.stream(who).from_slice(&[rows, columns], &zeros).expect("memory");
        let parts = match draws.below(3) {
            0 => whole.split_evenly(1, 2),
            1 => whole.split_evenly(0, rows),
            _ => whole.split_tiles(&[1, 2]),
        };
        self.held[who].extend(parts.expect("it has as many elements"));
    }

    /// Takes one or two parts of a process, if it has some.
    fn take(&mut self, who: usize, draws: &mut Draws<'_>) -> Parts {
        let held = &mut self.held[who];
        let mut taken = Vec::new();
        for _ in 0..=draws.below(2) {
            if !held.is_empty() {
                taken.push(held.swap_remove(draws.below(held.len())));
            }
        }
        taken
    }

    /// Sends parts. The liar keeps its frame, with these changes, to send it again.
    fn send(&self, from: usize, to: usize, parts: Parts, lies: Vec<Lie>) {
        if self.cluster.gave_up(from, to) {
            return;
        }
        if from == LIAR {
            let frames = Arc::clone(&self.frames);
            self.cluster.tamper_next(LIAR, to, move |frame| {
                change(frame, &lies);
                let mut frames = frames.lock();
                if frames.len() == MOST_FRAMES {
                    frames.remove(0);
                }
                frames.push(frame.clone());
            });
        }
        // A message that cannot be sent now comes back, and its parts are lost.
        let _ = self.cluster.try_send(from, &self.targets[to], parts);
    }

    fn send_again(&self, to: usize, draws: &mut Draws<'_>) {
        let frames = self.frames.lock().clone();
        if !frames.is_empty() && !self.cluster.gave_up(LIAR, to) {
            // Changes that were meant for a message that was not sent are made to this frame.
            let _ = self.cluster.forge_frame(LIAR, to, &frames[draws.below(frames.len())]);
        }
    }

    /// Makes the owner write all parts that it has, but the one that it keeps.
    fn write(&mut self) {
        let stream = self.cluster.stream(OWNER);
        for part in &mut self.held[OWNER] {
            // A part whose dtype is a lie cannot be written as bytes.
            let _ = stream.run((part.of_mut::<u8>(),), |(mut part,)| part.fill(WRITTEN));
        }
    }

    /// Joins all parts of one tensor that a process has.
    fn join(&mut self, who: usize, draws: &mut Draws<'_>) {
        let held = &mut self.held[who];
        if held.is_empty() {
            return;
        }
        let id = held[draws.below(held.len())].lease().id();
        let parts: Parts = held.extract_if(.., |part| part.lease().id() == id).collect();
        match TensorMut::join(parts, self.cluster.stream(who)) {
            Ok(whole) => {
                assert_ne!(id, self.kept.lease().id(), "process {who} has joined it without a part");
                self.tally.joined += 1;
                drop(whole);
            }
            Err(error) => {
                self.tally.not_joined += 1;
                held.extend(error.parts);
            }
        }
    }

    fn collect(&mut self) {
        for (who, inbox) in self.inboxes.iter().enumerate() {
            let held = &mut self.held[who];
            for received in inbox.take() {
                self.tally.arrived += if who == LIAR { 0 } else { received.message.len() };
                held.extend(received.message);
            }
            let more = held.len().saturating_sub(MOST_HELD);
            drop(held.drain(..more));
        }
    }

    fn check(&mut self) {
        for who in HONEST {
            let kept = (who == OWNER).then_some(&self.kept);
            let parts: Vec<&TensorPart> = self.held[who].iter().chain(kept).collect();
            let places: Vec<Place> = parts.iter().map(|part| Place::of(part)).collect();
            if let Some((one, other)) = shared(&places) {
                panic!("process {who} has two writers of a byte: {:?} and {:?}", parts[one], parts[other]);
            }
        }
        assert_eq!(self.kept.to_vec::<u8>().expect("on the host"), [KEPT; 4], "it was written elsewhere");
    }

    fn end(mut self) -> Tally {
        self.cluster.run_until_idle();
        self.collect();
        self.check();
        self.cluster.end(LIAR);
        // The next round takes the frames that waited for leases which the one before has let go.
        for _ in 0..3 {
            self.cluster.run_until_idle();
            self.collect();
            self.check();
            self.held.iter_mut().for_each(Vec::clear);
        }
        self.cluster.run_until_idle();
        for who in HONEST {
            let _ = self.cluster.stream(who).synchronize();
            self.tally.refused += self.inboxes[who].refused().len();
        }
        let Play { cluster, kept, tally, .. } = self;
        drop(kept);
        cluster.run_until_idle();
        for who in HONEST {
            let pool = cluster.stream(who).pool();
            assert_eq!(cluster.leases(who), 0, "process {who}: {}", pool.holders());
            let foreign = Returns::writers(&**cluster.transport(who));
            assert_eq!((pool.writers().allocations(), foreign.allocations()), (0, 0), "process {who}");
        }
        tally
    }
}

/// The bytes of a part: its allocation, and the runs in the chunk.
struct Place {
    id: LeaseId,
    runs: Vec<Range<u64>>,
}

impl Place {
    fn of(part: &TensorPart) -> Self {
        let (base, size) = (part.lease().offset(), part.dtype().size() as u64);
        let byte = |element: usize| base + element as u64 * size;
        let runs = part.layout().contiguous_runs().map(|run| byte(run.start)..byte(run.end)).collect();
        Place { id: part.lease().id(), runs }
    }

    fn meets(&self, other: &Place) -> bool {
        let meets = |a: &Range<u64>, b: &Range<u64>| a.start < b.end && b.start < a.end;
        self.id == other.id && self.runs.iter().any(|run| other.runs.iter().any(|other| meets(run, other)))
    }
}

/// Returns the first two places of one allocation that share a byte.
fn shared(places: &[Place]) -> Option<(usize, usize)> {
    places.iter().enumerate().find_map(|(one, place)| {
        let other = places[one + 1..].iter().position(|other| place.meets(other))?;
        Some((one, one + 1 + other))
    })
}

/// A change to a message of parts. Numbers past the end of a list begin again at its start.
#[derive(Clone, Copy, Debug)]
enum Lie {
    /// A number in the description of a part.
    Number { part: usize, name: &'static str, value: u64 },
    /// The same, with the number of another part of the message.
    NumberOf { part: usize, name: &'static str, other: usize },
    /// The same, with another number than before.
    OtherNumber { part: usize, name: &'static str },
    /// The indices along one axis.
    Range { part: usize, axis: usize, start: u64, end: u64 },
    /// One axis more or less.
    Axes { part: usize, more: bool },
    /// A part is described once more.
    Twice { part: usize },
    /// A word of a whole's layout.
    Layout { tensor: usize, word: usize, value: u64 },
    /// A field of a lease.
    Lease { lease: usize, name: &'static str, value: u64 },
    /// A byte of the body.
    Byte { at: u16, value: u8 },
}

impl Lie {
    fn drawn(draws: &mut Draws<'_>) -> Self {
        const NAMES: [&str; 5] = ["tensor", "index", "count", "seal", "token"];
        let part = draws.below(4);
        match draws.below(12) {
            0 => Lie::Number { part, name: NAMES[draws.below(5)], value: draws.number() },
            1 | 2 => Lie::NumberOf { part, name: NAMES[draws.below(5)], other: draws.below(4) },
            3 => Lie::OtherNumber { part, name: NAMES[draws.below(5)] },
            4 | 5 => {
                let (start, length) = (draws.below(8) as u64, draws.number());
                Lie::Range { part, axis: draws.below(3), start, end: start.wrapping_add(length % 9) }
            }
            6 => Lie::Range { part, axis: draws.below(3), start: draws.number(), end: draws.number() },
            7 => Lie::Axes { part, more: draws.whether() },
            8 => Lie::Twice { part },
            9 | 10 => {
                // The words of the dtype, the offset, two extents and two strides.
                let word = [0, 1, 2, 3, 10, 11][draws.below(6)];
                let value = match word {
                    // The rank is the second byte of the first word.
                    0 => u64::from(draws.byte() % 20) | u64::from(draws.byte() % 4) << 8,
                    _ => u64::from(draws.byte() % 16),
                };
                Lie::Layout { tensor: part, word, value }
            }
            _ => match draws.below(4) {
                0 => Lie::Lease { lease: part, name: "lease flags", value: draws.below(10) as u64 },
                1 => Lie::Lease { lease: part, name: "lease offset", value: draws.below(4) as u64 * 512 },
                2 => Lie::Lease { lease: part, name: "lease length", value: u64::from(draws.byte()) * 4 },
                _ => Lie::Byte { at: draws.pair(), value: draws.byte() },
            },
        }
    }

    /// Tells the lie, if it is about the descriptions in the body.
    fn about_parts(self, parts: &mut Vec<Value>) {
        match self {
            Lie::Number { part, name, value } => {
                if let Some(form) = form(parts, part) {
                    form.insert(name.to_owned(), value.into());
                }
            }
            Lie::NumberOf { part, name, other } => {
                let value = form(parts, other).and_then(|form| form.get(name).cloned());
                if let (Some(form), Some(value)) = (form(parts, part), value) {
                    form.insert(name.to_owned(), value);
                }
            }
            Lie::OtherNumber { part, name } => {
                if let Some(form) = form(parts, part) {
                    let before = form.get(name).and_then(Value::as_u64).unwrap_or_default();
                    form.insert(name.to_owned(), (before ^ 1).into());
                }
            }
            Lie::Range { part, axis, start, end } => {
                let area = form(parts, part).and_then(|form| form.get_mut("area"));
                if let Some(area) = area.and_then(Value::as_array_mut)
                    && !area.is_empty()
                {
                    let axis = axis % area.len();
                    area[axis] = range(start, end);
                }
            }
            Lie::Axes { part, more } => {
                let area = form(parts, part).and_then(|form| form.get_mut("area"));
                if let Some(area) = area.and_then(Value::as_array_mut) {
                    if more {
                        area.push(range(0, 1));
                    } else {
                        area.pop();
                    }
                }
            }
            Lie::Twice { part } => {
                if !parts.is_empty() && parts.len() < MOST_DESCRIBED {
                    parts.push(parts[part % parts.len()].clone());
                }
            }
            Lie::Layout { .. } | Lie::Lease { .. } | Lie::Byte { .. } => {}
        }
    }

    /// Tells the lie, if it is about the rest of the frame.
    fn about_the_rest(self, head: &mut [u8], fields: &[Field], body: &mut [u8]) {
        let set = |head: &mut [u8], name: &str, nth: usize, value: u64| {
            if let Some(field) = fields.iter().filter(|field| field.name == name).nth(nth) {
                field.set(head, value);
            }
        };
        let count = |name: &str| fields.iter().filter(|field| field.name == name).count();
        match self {
            Lie::Layout { tensor, word, value } => {
                let tensor = tensor % count("tensor's lease").max(1);
                let words = (wire::TENSOR_BYTES - 8) / 8;
                set(head, "layout", tensor * words + word, value);
            }
            Lie::Lease { lease, name, value } => {
                let lease = lease % count(name).max(1);
                set(head, name, lease, value);
            }
            Lie::Byte { at, value } if !body.is_empty() => body[usize::from(at) % body.len()] = value,
            _ => {}
        }
    }
}

/// Returns the description of a part.
fn form(parts: &mut [Value], part: usize) -> Option<&mut Map<String, Value>> {
    let part = part % parts.len().max(1);
    parts.get_mut(part)?.get_mut("$part")?.as_object_mut()
}

/// Returns the indices along an axis, as serde writes a range.
fn range(start: u64, end: u64) -> Value {
    serde_json::json!({ "start": start, "end": end })
}

/// Makes the changes to a frame, and has its checksum made right.
fn change(frame: &mut Vec<u8>, lies: &[Lie]) {
    let of_header = |name: &str| forge::fields(0, 0).into_iter().find(|field| field.name == name);
    let (Some(leases), Some(tensors), Some(length)) =
        (of_header("number of leases"), of_header("number of tensors"), of_header("body length"))
    else {
        unreachable!("a header has these");
    };
    let (leases, tensors) = (leases.get(frame) as usize, tensors.get(frame) as usize);
    let fields = forge::fields(leases, tensors);
    let mut body = frame.split_off(wire::frame_bytes(leases, tensors, 0).min(frame.len()));
    // Other frames of the liar, such as refusals, have other bodies.
    if let Ok(Value::Array(mut parts)) = rmp_serde::from_slice::<Value>(&body) {
        lies.iter().for_each(|lie| lie.about_parts(&mut parts));
        body = rmp_serde::to_vec(&parts).expect("lists, maps and numbers");
        length.set(frame, body.len() as u64);
    }
    lies.iter().for_each(|lie| lie.about_the_rest(frame, &fields, &mut body));
    frame.append(&mut body);
    forge::reseal(frame);
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use super::super::draws::of_seed;
    use super::*;
    use crate::ids::{ChunkId, ProcessId};
    use crate::os::thorough;

    /// Fails if [`Writers`](crate::lease::Writers) compares areas alone: then a liar has a part described
    /// under another dtype or other strides, whose indices meet no other part's, and whose bytes do.
    #[test]
    fn whatever_a_holder_says_of_parts_no_byte_has_two_writers() {
        let mut all = Tally::default();
        for seed in 0..if thorough() { 600 } else { 60 } {
            let Tally { arrived, refused, joined, not_joined } = play(&of_seed(seed, 400));
            all.arrived += arrived;
            all.refused += refused;
            all.joined += joined;
            all.not_joined += not_joined;
        }
        let Tally { arrived, refused, joined, not_joined } = all;
        assert!(arrived > 0 && refused > 0 && joined > 0 && not_joined > 0, "{all:?}");
    }

    #[test]
    fn a_byte_with_two_writers_is_seen() {
        let chunk = ChunkId { owner: ProcessId::NODE, index: 0 };
        let id = |entry| LeaseId { entry, generation: 1, chunk };
        let place = |entry, runs: &[(u64, u64)]| Place {
            id: id(entry),
            runs: runs.iter().map(|(from, to)| *from..*to).collect(),
        };
        let [even, odd] = [place(1, &[(0, 2), (4, 6)]), place(1, &[(2, 4), (6, 8)])];
        assert_eq!(shared(&[even, odd]), None);
        let [even, odd, other] =
            [place(1, &[(0, 2), (4, 6)]), place(1, &[(2, 4), (6, 8)]), place(2, &[(0, 8)])];
        assert_eq!(shared(&[even, odd, other]), None, "another allocation");
        let [one, odd, whole] = [place(2, &[(0, 1)]), place(1, &[(2, 4), (6, 8)]), place(1, &[(7, 9)])];
        assert_eq!(shared(&[one, odd, whole]), Some((1, 2)));
    }
}
