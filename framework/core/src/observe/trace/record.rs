//! One event of a trace, as seven words. Words from another process's memory are checked one by one (WIRE-1):
//! an impossible record is `None`.

use crate::ids::{ActorId, ProcessId};

/// Words of a record without its stamp.
pub const WORDS: usize = 7;

/// There is no frame: the message stayed within the process.
const NONE: u64 = u64::MAX;
/// Longest time that fits beside kind and form: 78 hours.
const LONGEST: u64 = (1 << 48) - 1;

/// The latest time at which an event may begin: 292 years.
const LATEST: u64 = i64::MAX as u64;

/// The row of the trace that a record belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Track {
    /// An actor, while its handler runs.
    Actor(ActorId),
    /// A thread, in the order in which the process's threads were first seen.
    Thread(u32),
    /// The thread of a host stream, by its clock.
    Stream(u16),
}

/// A frame, as both of its ends know it: the other process, and the position where the frame ends in the ring
/// between the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FrameId {
    pub peer: ProcessId,
    pub end: u64,
}

/// The purpose of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Form {
    Send = 1,
    Ask = 2,
    Reply = 3,
    Refusal = 4,
}

/// An entry of the owner's lease table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaseName {
    pub chunk: u32,
    pub entry: u32,
    pub generation: u32,
}

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// When it began, in nanoseconds of the clock that all processes share.
    pub at: u64,
    pub track: Track,
    pub what: What,
}

/// See [`Record`]. `took` is in nanoseconds, `key` a `message_key`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A handler was called. This is noted before the call, so that it is there when the process dies in it.
    HandlerBegan { key: u64, frame: Option<FrameId> },
    /// The handler returned.
    HandlerEnded { key: u64, frame: Option<FrameId>, took: u64 },
    /// A frame was written.
    Sent { form: Form, key: u64, frame: FrameId, bytes: u64, took: u64 },
    /// A frame was taken out and decoded.
    Delivered { form: Form, key: u64, frame: FrameId, actor: ActorId, took: u64 },
    /// A wait was put on a stream of this process.
    WaitEnqueued { stream: u16, on: ProcessId, clock: u16, value: u64 },
    /// A host stream stood in a wait.
    StreamWaited { on: ProcessId, clock: u16, value: u64, took: u64 },
    /// Memory of this process was handed out.
    LeaseOpened { lease: LeaseName, bytes: u64 },
    /// Another process was given a lease on the memory.
    LeaseGranted { lease: LeaseName, to: ProcessId },
    /// Another process gave its lease on the memory back.
    LeaseReturned { lease: LeaseName, from: ProcessId },
    /// Nobody holds the memory any more.
    LeaseClosed { lease: LeaseName },
}

impl Track {
    fn to_word(self) -> u64 {
        match self {
            Track::Actor(actor) => 1 << 56 | actor.0 & ((1 << 56) - 1),
            Track::Thread(number) => 2 << 56 | u64::from(number),
            Track::Stream(slot) => 3 << 56 | u64::from(slot),
        }
    }

    fn from_word(word: u64) -> Option<Self> {
        let number = word & ((1 << 56) - 1);
        match word >> 56 {
            1 => Some(Track::Actor(ActorId(number))),
            2 => u32::try_from(number).ok().map(Track::Thread),
            3 => u16::try_from(number).ok().map(Track::Stream),
            _ => None,
        }
    }
}

impl Form {
    pub(crate) fn from_byte(byte: u8) -> Option<Self> {
        [Form::Send, Form::Ask, Form::Reply, Form::Refusal].into_iter().find(|form| *form as u8 == byte)
    }
}

impl LeaseName {
    fn to_words(self) -> [u64; 2] {
        [u64::from(self.chunk) | u64::from(self.entry) << 32, u64::from(self.generation)]
    }

    fn from_words(entry_word: u64, generation: u64) -> Option<Self> {
        let generation = u32::try_from(generation).ok()?;
        Some(LeaseName { chunk: entry_word as u32, entry: (entry_word >> 32) as u32, generation })
    }
}

fn frame_words(frame: Option<FrameId>) -> [u64; 2] {
    frame.map_or([NONE, NONE], |frame| [frame.peer.to_bits(), frame.end])
}

fn frame_of(peer: u64, end: u64) -> Option<Option<FrameId>> {
    if peer == NONE {
        return Some(None);
    }
    ProcessId::from_bits(peer).map(|peer| Some(FrameId { peer, end }))
}

impl Record {
    pub(crate) fn to_words(self) -> [u64; WORDS] {
        let lease_words = |lease: LeaseName, last: u64| {
            let [entry_word, generation] = lease.to_words();
            [entry_word, generation, last, 0]
        };
        let (kind, form, took, rest) = match self.what {
            What::HandlerBegan { key, frame } => {
                let [peer, end] = frame_words(frame);
                (1, 0, 0, [key, peer, end, 0])
            }
            What::HandlerEnded { key, frame, took } => {
                let [peer, end] = frame_words(frame);
                (2, 0, took, [key, peer, end, 0])
            }
            What::Sent { form, key, frame, bytes, took } => {
                (3, form as u64, took, [key, frame.peer.to_bits(), frame.end, bytes])
            }
            What::Delivered { form, key, frame, actor, took } => {
                (4, form as u64, took, [key, frame.peer.to_bits(), frame.end, actor.0])
            }
            What::WaitEnqueued { stream, on, clock, value } => {
                (5, 0, 0, [on.to_bits(), u64::from(clock), value, u64::from(stream)])
            }
            What::StreamWaited { on, clock, value, took } => {
                (6, 0, took, [on.to_bits(), u64::from(clock), value, 0])
            }
            What::LeaseOpened { lease, bytes } => (7, 0, 0, lease_words(lease, bytes)),
            What::LeaseGranted { lease, to } => (8, 0, 0, lease_words(lease, to.to_bits())),
            What::LeaseReturned { lease, from } => (9, 0, 0, lease_words(lease, from.to_bits())),
            What::LeaseClosed { lease } => (10, 0, 0, lease_words(lease, 0)),
        };
        let head = kind | form << 8 | took.min(LONGEST) << 16;
        [head, self.at, self.track.to_word(), rest[0], rest[1], rest[2], rest[3]]
    }

    pub fn from_words(words: [u64; WORDS]) -> Option<Self> {
        let [head, at, track, a, b, c, d] = words;
        // A slice has to end after it began, and no clock of nanoseconds gets that far.
        if at > LATEST {
            return None;
        }
        let (form, took) = ((head >> 8) as u8, head >> 16);
        let frame = || ProcessId::from_bits(b).map(|peer| FrameId { peer, end: c });
        let lease = || LeaseName::from_words(a, b);
        let clock = || u16::try_from(b).ok();
        let what = match head as u8 {
            1 => What::HandlerBegan { key: a, frame: frame_of(b, c)? },
            2 => What::HandlerEnded { key: a, frame: frame_of(b, c)?, took },
            3 => What::Sent { form: Form::from_byte(form)?, key: a, frame: frame()?, bytes: d, took },
            4 => {
                let form = Form::from_byte(form)?;
                What::Delivered { form, key: a, frame: frame()?, actor: ActorId(d), took }
            }
            5 => {
                let (on, stream) = (ProcessId::from_bits(a)?, u16::try_from(d).ok()?);
                What::WaitEnqueued { stream, on, clock: clock()?, value: c }
            }
            6 => What::StreamWaited { on: ProcessId::from_bits(a)?, clock: clock()?, value: c, took },
            7 => What::LeaseOpened { lease: lease()?, bytes: c },
            8 => What::LeaseGranted { lease: lease()?, to: ProcessId::from_bits(c)? },
            9 => What::LeaseReturned { lease: lease()?, from: ProcessId::from_bits(c)? },
            10 => What::LeaseClosed { lease: lease()? },
            _ => return None,
        };
        Some(Record { at, track: Track::from_word(track)?, what })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<What> {
        let peer = ProcessId::new(3, 9).unwrap();
        let (frame, lease) =
            (FrameId { peer, end: 1 << 40 }, LeaseName { chunk: 1 << 24, entry: u32::MAX, generation: 7 });
        vec![
            What::HandlerBegan { key: 5, frame: None },
            What::HandlerEnded { key: 5, frame: Some(frame), took: 77 },
            What::Sent { form: Form::Ask, key: 1, frame, bytes: 4096, took: 3 },
            What::Delivered { form: Form::Refusal, key: u64::MAX, frame, actor: ActorId(4), took: 0 },
            What::WaitEnqueued { stream: 2, on: peer, clock: 29, value: u64::MAX },
            What::StreamWaited { on: peer, clock: 1, value: 8, took: LONGEST },
            What::LeaseOpened { lease, bytes: 12 },
            What::LeaseGranted { lease, to: peer },
            What::LeaseReturned { lease, from: peer },
            What::LeaseClosed { lease },
        ]
    }

    #[test]
    fn every_record_comes_back_as_it_was() {
        for track in [Track::Actor(ActorId(9)), Track::Thread(1), Track::Stream(7)] {
            for what in all() {
                let record = Record { at: 123, track, what };
                assert_eq!(Record::from_words(record.to_words()), Some(record));
            }
        }
    }

    // WIRE-1.
    #[test]
    fn words_that_are_no_record_are_none() {
        let good = Record { at: 1, track: Track::Thread(0), what: all()[2] }.to_words();
        assert!(Record::from_words([0; WORDS]).is_none() && Record::from_words([u64::MAX; WORDS]).is_none());
        let with = |at: usize, word| {
            let mut words = good;
            words[at] = word;
            Record::from_words(words)
        };
        assert!(with(0, 99).is_none(), "a kind that there is not");
        assert!(with(0, 3 | 9 << 8).is_none(), "a form that there is not");
        assert!(with(2, 0).is_none() && with(2, 3 << 56 | 1 << 20).is_none(), "no track");
        assert!(with(4, 0xffff).is_none(), "a process that there cannot be");
        assert!(with(1, u64::MAX).is_none(), "nothing can end after that");
    }
}
