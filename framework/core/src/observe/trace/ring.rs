//! A process's trace, in memory that it alone writes and the node reads (ONE-WRITER).
//!
//! **On a crash** of the process only the record that it was writing is lost: the node has had the memory
//! mapped since the process began. **When the ring is full** the oldest record is overwritten and counted
//! (MBX-2).
//!
//! Threads take turns by a counter and never wait for each other. A record of 64 bytes begins with a stamp
//! made of its number and its other words. A reader that finds another stamp has met a record that is half
//! written, overwritten, or never written, and leaves it out. So neither side needs order between the words,
//! and a liar gains nothing (WIRE-1).
//!
//! Names (of messages, actors, threads, streams) are written once each, beside the ring, so that they outlive
//! overwritten records.

use std::collections::HashMap;
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::record::{Record, WORDS};
use crate::limits::MAX_TRACE_NAME;
use crate::os::{Access, BadMemfd, InForks, Mapping, Memfd, memfd};

const MAGIC: u64 = u64::from_le_bytes(*b"TPTRACE\0");
const VERSION: u64 = 1;
const HEAD_AT: usize = 64;
const NAMES_LEN_AT: usize = 128;
const NAMES_DROPPED_AT: usize = 136;
const NAMES_AT: usize = 4096;
const NAMES_BYTES: usize = 64 << 10;
const RECORDS_AT: usize = NAMES_AT + NAMES_BYTES;
const RECORD_BYTES: usize = (WORDS + 1) * 8;

/// The fewest and the most records of a ring.
const RECORDS: RangeInclusive<usize> = 16..=1 << 24;

/// The kind of thing that a name belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Of {
    /// A message type, by its key.
    Message = 1,
    /// An actor, by its id.
    Actor = 2,
    /// A thread, by its number.
    Thread = 3,
    /// A stream, by its clock; its name is the actor's that it belongs to.
    Stream = 4,
}

impl Of {
    pub(crate) fn from_byte(byte: u8) -> Option<Self> {
        [Of::Message, Of::Actor, Of::Thread, Of::Stream].into_iter().find(|of| *of as u8 == byte)
    }
}

/// The reason why memory is no ring of this build (WIRE-1).
#[derive(Debug, thiserror::Error)]
pub enum BadRing {
    #[error("the trace is not in the memory that it has to be in: {0}")]
    Memory(#[from] BadMemfd),
    #[error("the memory is no trace of this build: header {magic:#x} {version:#x}")]
    Header { magic: u64, version: u64 },
    #[error("a trace could not be mapped: {0}")]
    Os(#[from] io::Error),
}

/// See the module.
#[derive(Debug)]
pub struct Ring {
    mapping: Mapping,
    fd: OwnedFd,
    records: usize,
    /// Tells the rings of one process apart.
    id: u64,
    /// The names that were written already.
    named: Mutex<HashMap<(Of, u64), u64>>,
}

/// The contents of a ring at one look.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// Records in the order in which writing them began.
    pub records: Vec<Record>,
    /// Records that were overwritten before anybody read them.
    pub dropped: u64,
    /// Records that are half written or invalid.
    pub damaged: u64,
    /// Names that found no room.
    pub names_dropped: u64,
    pub names: HashMap<(Of, u64), String>,
}

fn bytes_for(records: usize) -> usize {
    RECORDS_AT + records * RECORD_BYTES
}

/// Returns the stamp of a record, which depends on its number and all its words; never 0.
fn stamp(number: u64, words: &[u64; WORDS]) -> u64 {
    let mut hash = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for word in words {
        hash = (hash.rotate_left(29) ^ word).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    }
    (hash ^ hash >> 31) | 1
}

impl Ring {
    /// Makes this process's own ring for `records` records. Nobody else can map it writable.
    pub fn create(records: usize) -> io::Result<Self> {
        let records = records.clamp(*RECORDS.start(), *RECORDS.end());
        let bytes = bytes_for(records);
        let memfd = Memfd::create("tensorpost-trace", bytes as u64)?;
        let mapping = Mapping::map_own(memfd.as_fd(), bytes, InForks::Blank)?;
        for (offset, value) in [(0, MAGIC), (8, VERSION)] {
            if let Some(word) = mapping.word64(offset) {
                word.store(value, Ordering::Relaxed);
            }
        }
        memfd.seal_future_write()?;
        Ok(Self::of(mapping, memfd.into_fd(), records))
    }

    /// Opens another process's ring to read. That process was told to make one for `records` records.
    pub fn open(fd: OwnedFd, records: usize) -> Result<Self, BadRing> {
        let records = records.clamp(*RECORDS.start(), *RECORDS.end());
        let bytes = bytes_for(records);
        memfd::check_one_writer(fd.as_fd(), bytes as u64)?;
        let mapping = Mapping::map(fd.as_fd(), bytes, Access::ReadOnly)?;
        let ring = Self::of(mapping, fd, records);
        match (ring.word_at(0), ring.word_at(8)) {
            (MAGIC, VERSION) => Ok(ring),
            (magic, version) => Err(BadRing::Header { magic, version }),
        }
    }

    fn of(mapping: Mapping, fd: OwnedFd, records: usize) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Ring { mapping, fd, records, id, named: Mutex::default() }
    }

    /// Returns a descriptor for the node.
    pub fn export(&self) -> io::Result<OwnedFd> {
        memfd::read_only_fd(self.fd.as_fd())
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Writes a record, over the oldest one if there is no other room. Never waits.
    pub(crate) fn write(&self, record: Record) {
        let Some(head) = self.mapping.word64(HEAD_AT) else { return };
        let number = head.fetch_add(1, Ordering::Relaxed);
        let words = record.to_words();
        let at = RECORDS_AT + (number % self.records as u64) as usize * RECORD_BYTES;
        let stamped = std::iter::once(stamp(number, &words)).chain(words);
        for (index, word) in stamped.enumerate() {
            if let Some(place) = self.mapping.word64(at + index * 8) {
                place.store(word, Ordering::Relaxed);
            }
        }
    }

    /// Adds a name. A name that was written already costs a look into a table.
    pub(crate) fn name(&self, of: Of, id: u64, name: &str) {
        let name = &name[..name.floor_char_boundary(MAX_TRACE_NAME)];
        let mut named = self.named.lock();
        let hash = hash_of(name);
        if named.get(&(of, id)) == Some(&hash) {
            return;
        }
        // A line holds the kind and the length of the name, the id, and the text in whole words.
        let bytes = 16 + name.len().next_multiple_of(8);
        let (Some(len), Some(dropped)) =
            (self.mapping.word64(NAMES_LEN_AT), self.mapping.word64(NAMES_DROPPED_AT))
        else {
            return;
        };
        let at = len.load(Ordering::Relaxed) as usize;
        if at + bytes > NAMES_BYTES {
            dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let mut line = Vec::with_capacity(bytes);
        line.extend_from_slice(&(u64::from(of as u8) << 32 | name.len() as u64).to_ne_bytes());
        line.extend_from_slice(&id.to_ne_bytes());
        line.extend_from_slice(name.as_bytes());
        line.resize(bytes, 0);
        if self.mapping.copy_in(NAMES_AT + at, &line).is_ok() {
            // NAMES release: pairs with the acquire in `names`.
            len.store((at + bytes) as u64, Ordering::Release);
            // Only names that found room are kept, so this is bounded as the memory is (MBX-2).
            named.insert((of, id), hash);
        }
    }

    fn word_at(&self, offset: usize) -> u64 {
        self.mapping.watch64(offset).map_or(0, |word| word.load())
    }

    /// Returns the current contents. The ring's process may go on writing.
    pub fn snapshot(&self) -> Snapshot {
        let written = self.word_at(HEAD_AT);
        let first = written.saturating_sub(self.records as u64);
        let mut snapshot =
            Snapshot { dropped: first, names_dropped: self.word_at(NAMES_DROPPED_AT), ..Snapshot::default() };
        for number in first..written {
            let at = RECORDS_AT + (number % self.records as u64) as usize * RECORD_BYTES;
            let mut words = [0; WORDS + 1];
            for (index, word) in words.iter_mut().enumerate() {
                *word = self.mapping.watch64(at + index * 8).map_or(0, |word| word.load_relaxed());
            }
            let [stamped, rest @ ..] = words;
            match Record::from_words(rest).filter(|_| stamped == stamp(number, &rest)) {
                Some(record) => snapshot.records.push(record),
                None => snapshot.damaged += 1,
            }
        }
        snapshot.names = self.names();
        snapshot
    }

    /// As [`snapshot`](Self::snapshot), for records that began in this interval. The ring's process may go on
    /// writing, if the node traces anyway.
    pub fn snapshot_of(&self, interval: RangeInclusive<u64>) -> Snapshot {
        let mut snapshot = self.snapshot();
        // A ring that goes further back has lost nothing of the interval.
        if snapshot.records.first().is_some_and(|first| first.at < *interval.start()) {
            snapshot.dropped = 0;
        }
        snapshot.records.retain(|record| interval.contains(&record.at));
        snapshot
    }

    fn names(&self) -> HashMap<(Of, u64), String> {
        // NAMES acquire: pairs with the release in `name`.
        let len = (self.word_at(NAMES_LEN_AT) as usize).min(NAMES_BYTES);
        let mut bytes = vec![0; len];
        let mut names = HashMap::new();
        if self.mapping.copy_out(NAMES_AT, &mut bytes).is_err() {
            return names;
        }
        let mut rest = bytes.as_slice();
        // WIRE-1: the first invalid line ends the names.
        while let Some((name, after)) = parse(rest) {
            names.insert((name.0, name.1), name.2);
            rest = after;
        }
        names
    }
}

/// Writes that only a lying process makes to its own trace (WIRE-1).
#[cfg(feature = "testing")]
impl Ring {
    fn forge(&self, at: usize, words: impl IntoIterator<Item = u64>) {
        for (index, word) in words.into_iter().enumerate() {
            if let Some(place) = self.mapping.word64(at + index * 8) {
                place.store(word, Ordering::Relaxed);
            }
        }
    }

    /// Clears the ring to its first state.
    pub fn forge_clear(&self) {
        self.forge(HEAD_AT, [0]);
        self.forge(NAMES_LEN_AT, [0, 0]);
        self.forge(RECORDS_AT, std::iter::repeat_n(0, self.records * RECORD_BYTES / 8));
    }

    /// Moves the cursor.
    pub fn forge_cursor(&self, to: u64) {
        self.forge(HEAD_AT, [to]);
    }

    /// Writes a record of these words, with its stamp or with another.
    pub fn forge_record(&self, words: [u64; WORDS], stamped: bool) {
        let number = self.word_at(HEAD_AT);
        let stamp = if stamped { stamp(number, &words) } else { words[0] };
        let at = RECORDS_AT + (number % self.records as u64) as usize * RECORD_BYTES;
        self.forge(at, std::iter::once(stamp).chain(words));
        self.forge_cursor(number.wrapping_add(1));
    }

    /// Writes these bytes where the names are, and sets their length to `len`.
    pub fn forge_names(&self, bytes: &[u8], len: u64) {
        // Bytes that find no room are not written.
        let _ = self.mapping.copy_in(NAMES_AT, &bytes[..bytes.len().min(NAMES_BYTES)]);
        self.forge(NAMES_LEN_AT, [len]);
    }
}

type Line = (Of, u64, String);

fn parse(line: &[u8]) -> Option<(Line, &[u8])> {
    let (head, rest) = line.split_first_chunk::<8>()?;
    let (id, rest) = rest.split_first_chunk::<8>()?;
    let head = u64::from_ne_bytes(*head);
    let of = Of::from_byte(u8::try_from(head >> 32).ok()?)?;
    let len = (head & 0xffff_ffff) as usize;
    if len > MAX_TRACE_NAME {
        return None;
    }
    let text = std::str::from_utf8(rest.get(..len)?).ok()?.to_owned();
    Some(((of, u64::from_ne_bytes(*id), text), rest.get(len.next_multiple_of(8)..)?))
}

fn hash_of(text: &str) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::super::record::{Track, What};
    use super::*;

    fn record(at: u64) -> Record {
        Record { at, track: Track::Thread(0), what: What::HandlerBegan { key: at * 3, frame: None } }
    }

    fn pair(records: usize) -> (Ring, Ring) {
        let writer = Ring::create(records).unwrap();
        let reader = Ring::open(writer.export().unwrap(), records).unwrap();
        (writer, reader)
    }

    // MBX-2: the oldest records are overwritten and counted.
    #[test]
    fn what_is_written_over_is_counted() {
        let (writer, reader) = pair(16);
        assert_eq!(reader.snapshot().records, []);
        for at in 0..100 {
            writer.write(record(at));
        }
        let seen = reader.snapshot();
        assert_eq!((seen.dropped, seen.damaged), (84, 0));
        assert_eq!(
            seen.records.iter().map(|record| record.at).collect::<Vec<_>>(),
            (84..100).collect::<Vec<_>>()
        );
    }

    // ONE-WRITER.
    #[test]
    fn only_its_process_writes_it() {
        let (_writer, reader) = pair(16);
        reader.write(record(1));
        assert_eq!(reader.snapshot().records, []);
        assert!(Mapping::map(reader.fd.as_fd(), 4096, Access::ReadWrite).is_err());
    }

    // WIRE-1.
    #[test]
    fn a_record_that_was_tampered_with_is_left_out_and_counted() {
        let (writer, reader) = pair(16);
        (0..4).for_each(|at| writer.write(record(at)));
        for word in 0..=WORDS {
            let place = writer.mapping.word64(RECORDS_AT + RECORD_BYTES + word * 8).unwrap();
            let before = place.fetch_xor(1 << 20, Ordering::Relaxed);
            let seen = reader.snapshot();
            assert_eq!((seen.records.len(), seen.damaged), (3, 1), "word {word}");
            place.store(before, Ordering::Relaxed);
        }
        writer.mapping.word64(HEAD_AT).unwrap().store(u64::MAX, Ordering::Relaxed);
        assert_eq!(reader.snapshot().damaged, 16, "a cursor that lies costs a look at every place");
        writer.mapping.word64(NAMES_LEN_AT).unwrap().store(u64::MAX, Ordering::Relaxed);
        assert!(reader.snapshot().names.is_empty());
    }

    #[test]
    fn names_are_written_once_cut_and_bounded() {
        let (writer, reader) = pair(16);
        writer.name(Of::Actor, 7, "blur");
        let len = writer.word_at(NAMES_LEN_AT);
        writer.name(Of::Actor, 7, "blur");
        assert_eq!(writer.word_at(NAMES_LEN_AT), len);
        writer.name(Of::Actor, 7, "sharpen");
        writer.name(Of::Message, 7, &"ü".repeat(MAX_TRACE_NAME));
        let names = reader.snapshot().names;
        assert_eq!(names[&(Of::Actor, 7)], "sharpen");
        assert_eq!(names[&(Of::Message, 7)].len(), MAX_TRACE_NAME);
        for id in 0..10_000 {
            writer.name(Of::Thread, id, "a thread with a name of some length");
        }
        let seen = reader.snapshot();
        assert!(seen.names_dropped > 0 && seen.names.len() > 1000);
        assert_eq!(seen.names_dropped as usize + seen.names.len(), 10_002);
    }

    #[test]
    fn threads_write_at_the_same_time_and_nothing_is_lost_or_mixed() {
        let (writer, reader) = pair(1 << 12);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let writer = &writer;
                scope.spawn(move || (0..1000).for_each(|at| writer.write(record(thread * 1000 + at))));
            }
            for _ in 0..50 {
                let seen = reader.snapshot();
                let fits = |record: &Record| matches!(record.what, What::HandlerBegan { key, .. } if key == record.at * 3);
                assert!(seen.records.iter().all(fits));
            }
        });
        let mut seen: Vec<_> = reader.snapshot().records.iter().map(|record| record.at).collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..4000).collect::<Vec<_>>());
    }

    #[test]
    fn other_memory_is_refused() {
        let memfd = Memfd::create("test", bytes_for(16) as u64).unwrap();
        memfd.seal_future_write().unwrap();
        assert!(matches!(Ring::open(memfd.into_fd(), 16), Err(BadRing::Header { .. })));
        let small = Ring::create(16).unwrap();
        assert!(matches!(Ring::open(small.export().unwrap(), 64), Err(BadRing::Memory(_))));
    }
}
