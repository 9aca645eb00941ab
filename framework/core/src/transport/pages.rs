//! The memory that a process writes for its peers to read, and its layout.
//!
//! | memory | one per | written by | holds |
//! |---|---|---|---|
//! | wake page | process | it | its sleep word, and whether it wants to be woken for room |
//! | link memory | ordered pair | the sender | its tails, and for the other direction: the half that it has mapped, its cursors, the credits that it grants, and the mailbox states of its actors |
//! | ring memory | ordered pair | the sender | both rings |
//!
//! Each link has memory of its own, so that the next process of a peer's slot begins with zeros while the
//! last one is still read to the end. The rings are apart from the words, because their memory is given back
//! when they are idle, and can go back only as a whole: see `link/renewal.rs`.
//!
//! ONE-WRITER: each is a memfd that its writer maps writable and then seals against any further writable
//! mapping, so a peer can only read it.
//!
//! The capacity of a mailbox is per sending process. Credits are counters that only grow, one per actor, on
//! the page that the *receiver* writes: it counts the sender's messages that are done with. Each has one
//! writer, and there is no shared permit.
//!
//! `wakeups` uses it for the wake page, and each link's connection for the rest. **Locks.** None: words are
//! atomic, and each ring has one writer and one reader. **On a crash** of the writer the memory stays as it
//! is for as long as any process has it mapped, so peers can read everything that the writer had posted. **On
//! cancellation** nothing happens.

#![expect(unsafe_code, reason = "the words and bytes of the rings are made here, over mapped memory")]

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::limits::{MAX_ACTORS, RETURN_SLOTS, RING_BYTES};
use crate::os::memfd::{self, ReadOnlyFd};
use crate::os::{Access, BadMemfd, InForks, Mapping, Memfd};
use crate::transport::ring::{NativeBytes, NativeWord, NativeWords};

const LINE: usize = 64;
const PAGE: usize = 4096;
const SLEEP: usize = 0;
const WANTS: usize = LINE;
const WAKE_PAGE_BYTES: usize = PAGE;

const DATA_TAIL: usize = 0;
const RETURN_TAIL: usize = LINE;
// In the cache line of its tail, because the same process writes it, and rarely.
const RETURN_FRONT: usize = RETURN_TAIL + 8;
const DATA_HEAD: usize = 2 * LINE;
const RETURN_HEAD: usize = 3 * LINE;
const TAKEN: usize = 4 * LINE;
const CREDITS: usize = PAGE;
const MAILBOX_STATES: usize = 2 * PAGE;
const LINK_BYTES: usize = 3 * PAGE;

const RETURNS: usize = 0;
const RETURN_BYTES: usize = RETURN_SLOTS * LINE;
const DATA: usize = RETURNS + RETURN_BYTES;
const RINGS_BYTES: usize = DATA + RING_BYTES;

const _: () = assert!(MAX_ACTORS * 8 <= PAGE && DATA.is_multiple_of(PAGE));

/// A piece of shared memory with its descriptor.
#[derive(Debug)]
struct Shared {
    mapping: Arc<Mapping>,
    fd: OwnedFd,
}

impl Shared {
    fn create(name: &str, bytes: usize) -> io::Result<Self> {
        let memfd = Memfd::create(name, bytes as u64)?;
        let mapping = Arc::new(Mapping::map_own(memfd.as_fd(), bytes, InForks::Blank)?);
        // ONE-WRITER: from here on the kernel refuses every other writable mapping, and every write.
        memfd.seal_future_write()?;
        Ok(Shared { mapping, fd: memfd.into_fd() })
    }

    fn open(fd: OwnedFd, bytes: usize) -> Result<Self, BadMemfd> {
        memfd::check_one_writer(fd.as_fd(), bytes as u64)?;
        let mapping = Arc::new(Mapping::map(fd.as_fd(), bytes, Access::ReadOnly)?);
        Ok(Shared { mapping, fd })
    }

    fn word(&self, offset: usize) -> NativeWord {
        let at = self.location(offset).cast();
        // SAFETY: offsets are constants and multiples of 8 below the mapped length; the mapping stays for as
        // long as the word keeps it. If it is read-only, the word is only loaded: the kernel would stop a
        // store, and each constructor below passes it to the loading side.
        unsafe { NativeWord::from_raw(at, self.mapping.clone()) }
    }

    fn words(&self, offset: usize, count: usize) -> NativeWords {
        assert!(
            offset + 8 * count <= self.mapping.len(),
            "words are in the memory that they are looked for in"
        );
        // SAFETY: as for `word`, for each of them: they end before the mapping does.
        unsafe { NativeWords::from_raw(self.location(offset).cast(), count, self.mapping.clone()) }
    }

    fn bytes(&self, offset: usize, len: usize) -> NativeBytes {
        // SAFETY: the range lies in the mapping, which `NativeBytes` keeps; each region is used by one
        // producer or one consumer of this process: each `RingMemory` is split once.
        unsafe { NativeBytes::from_raw(self.location(offset), len, self.mapping.clone()) }
    }

    fn location(&self, offset: usize) -> NonNull<u8> {
        assert!(offset < self.mapping.len(), "offsets into pages are constants below their length");
        // SAFETY: in range of a mapping, which never is at address zero.
        unsafe { NonNull::new_unchecked(self.mapping.addr().add(offset)) }
    }
}

/// A process's wake page.
#[derive(Debug)]
pub(crate) struct WakePage(Shared, ReadOnlyFd);

impl WakePage {
    /// Makes this process's own.
    pub(crate) fn create() -> io::Result<Self> {
        Ok(WakePage(Shared::create("tensorpost-wake", WAKE_PAGE_BYTES)?, ReadOnlyFd::default()))
    }

    /// Opens a peer's, to read.
    pub(crate) fn open(fd: OwnedFd) -> Result<Self, BadMemfd> {
        Ok(WakePage(Shared::open(fd, WAKE_PAGE_BYTES)?, ReadOnlyFd::default()))
    }

    /// Returns a descriptor for a peer.
    pub(crate) fn export(&self) -> io::Result<OwnedFd> {
        self.1.of(self.0.fd.as_fd())
    }

    /// Returns the word that says whether the process sleeps (see [`doorbell`](crate::transport::doorbell)).
    pub(crate) fn sleep(&self) -> NativeWord {
        self.0.word(SLEEP)
    }

    /// Returns the word that is not zero while the process wants its doorbell rung for room, credits and
    /// releases too.
    pub(crate) fn wants(&self) -> NativeWord {
        self.0.word(WANTS)
    }
}

/// The words of one direction of a link, written by its sender.
#[derive(Debug)]
pub(crate) struct LinkMemory(Shared);

impl LinkMemory {
    /// Makes this process's own half.
    pub(crate) fn create() -> io::Result<Self> {
        Shared::create("tensorpost-link", LINK_BYTES).map(LinkMemory)
    }

    /// Opens a peer's half, to read.
    pub(crate) fn open(fd: OwnedFd) -> Result<Self, BadMemfd> {
        Shared::open(fd, LINK_BYTES).map(LinkMemory)
    }

    /// Returns a descriptor for the peer.
    pub(crate) fn export(&self) -> io::Result<OwnedFd> {
        memfd::read_only_fd(self.0.fd.as_fd())
    }

    /// Returns the tails of the data ring and of the return ring.
    pub(crate) fn tails(&self) -> (NativeWord, NativeWord) {
        (self.0.word(DATA_TAIL), self.0.word(RETURN_TAIL))
    }

    /// Returns the word with the position that lies at the front of the return ring.
    pub(crate) fn return_front(&self) -> NativeWord {
        self.0.word(RETURN_FRONT)
    }

    /// Returns the writer's cursors into the data ring and the return ring of the other direction.
    pub(crate) fn heads(&self) -> (NativeWord, NativeWord) {
        (self.0.word(DATA_HEAD), self.0.word(RETURN_HEAD))
    }

    /// Returns the word with the number of the peer's half that the writer has mapped; zero before. Once it
    /// is set, the writer sees everything that the peer writes.
    pub(crate) fn taken(&self) -> NativeWord {
        self.0.word(TAKEN)
    }

    /// Returns the counts of messages from the peer that each of the writer's actors is done with.
    pub(crate) fn credits(&self) -> NativeWords {
        self.0.words(CREDITS, MAX_ACTORS)
    }

    /// Returns the words that say how many messages of the peer each of the writer's actors takes at a time;
    /// [`NOBODY`](super::link::NOBODY), [`CLOSED`](super::link::CLOSED) or [`AWAY`](super::link::AWAY) if
    /// there is no actor. They are apart from the credits, because each send loads them, and they change once
    /// in a life.
    pub(crate) fn mailbox_states(&self) -> NativeWords {
        self.0.words(MAILBOX_STATES, MAX_ACTORS)
    }
}

/// The rings of one direction of a link, written by its sender.
#[derive(Debug)]
pub(crate) struct RingMemory(Shared);

impl RingMemory {
    /// Makes this process's own.
    pub(crate) fn create() -> io::Result<Self> {
        Shared::create("tensorpost-rings", RINGS_BYTES).map(RingMemory)
    }

    /// Opens a peer's, to read.
    pub(crate) fn open(fd: OwnedFd) -> Result<Self, BadMemfd> {
        Shared::open(fd, RINGS_BYTES).map(RingMemory)
    }

    /// Returns a descriptor for the peer.
    pub(crate) fn export(&self) -> io::Result<OwnedFd> {
        memfd::read_only_fd(self.0.fd.as_fd())
    }

    /// Returns the bytes of the data ring and of the return ring. They keep the memory, but not its
    /// descriptor.
    pub(crate) fn into_bytes(self) -> (NativeBytes, NativeBytes) {
        (self.0.bytes(DATA, RING_BYTES), self.0.bytes(RETURNS, RETURN_BYTES))
    }
}
