//! Page-locked host memory: blocks for uploads and downloads, and the words in which streams report their
//! progress. Events are kept here too.
//!
//! The driver would take plain memory too. But copies from it may block the caller until the stream gets
//! there, which no message path may do (CLOCK-1). Blocks are reused and never freed, because freeing may wait
//! for the whole device.

#![expect(unsafe_code, reason = "reads and writes memory that the driver allocated")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::super::{Access, ChunkMapping, DeviceError, STAGING_BYTES};
use super::Shared;
use super::driver::Event;
use crate::ids::DeviceId;

/// The largest block: larger copies are made in pieces of this many bytes.
pub(super) const PIECE: usize = 8 << 20;
/// The smallest block.
const LEAST: usize = 64 << 10;
const CLASSES: usize = (PIECE / LEAST).ilog2() as usize + 1;
/// If the blocks have more bytes than this, an upload waits for its own earlier pieces before it takes more.
const PLENTY: usize = 256 << 20;

const _: () = assert!(PIECE as u64 == STAGING_BYTES);
const _: () = assert!(LEAST.is_power_of_two() && PIECE.is_power_of_two());

/// The blocks and words of one device that are unused at the moment.
#[derive(Default)]
pub(super) struct Free {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Blocks by size class.
    blocks: [Vec<Raw>; CLASSES],
    /// The bytes of all blocks that were ever made.
    bytes: usize,
    words: Vec<WordAt>,
    events: Vec<Event>,
}

impl Free {
    /// Keeps an event for its next user.
    pub(super) fn put_event(&self, event: Event) {
        self.state.lock().events.push(event);
    }

    /// Returns an event that was put back.
    pub(super) fn take_event(&self) -> Option<Event> {
        self.state.lock().events.pop()
    }
}

/// The driver's memory, by address.
struct Raw(*mut u8);

// SAFETY: this is an address, and only its owner uses the memory.
unsafe impl Send for Raw {}
// SAFETY: a shared reference only shows the address; code that reads the memory behind it has its own
// contract.
unsafe impl Sync for Raw {}

/// A block of page-locked memory, given back when dropped.
pub(super) struct Pinned {
    shared: Arc<Shared>,
    at: Raw,
    class: usize,
}

impl Pinned {
    /// Takes a block of at least `bytes` bytes, at most [`PIECE`]; its contents are undefined.
    pub(super) fn take(shared: &Arc<Shared>, bytes: usize) -> Result<Self, DeviceError> {
        let class = (bytes.clamp(LEAST, PIECE).next_power_of_two() / LEAST).ilog2() as usize;
        let known = {
            let mut state = shared.free.state.lock();
            state.blocks[class].pop()
        };
        let at = match known {
            Some(at) => at,
            None => {
                shared.bind()?;
                let at = Raw(shared.driver.alloc_host(LEAST << class)?);
                shared.free.state.lock().bytes += LEAST << class;
                at
            }
        };
        Ok(Pinned { shared: Arc::clone(shared), at, class })
    }

    /// Returns where the block starts, for the host and the device alike.
    pub(super) fn address(&self) -> u64 {
        self.at.0 as u64
    }

    fn len(&self) -> usize {
        LEAST << self.class
    }

    /// Copies `bytes` to the start of the block. No stream uses the block yet.
    pub(super) fn write(&mut self, bytes: &[u8]) {
        let bytes = &bytes[..bytes.len().min(self.len())];
        // SAFETY: the block has that many bytes, belongs to this value alone (`&mut`), and no work was given
        // its address.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.at.0, bytes.len()) };
    }

    /// Copies the start of the block to `bytes`.
    ///
    /// # Safety
    /// The work that writes the block is done, and wrote at least as many bytes.
    pub(super) unsafe fn read(&self, bytes: &mut [u8]) {
        let count = bytes.len().min(self.len());
        // SAFETY: the bytes are in range. By the caller's contract they are written, and nobody writes them
        // at the moment.
        unsafe { std::ptr::copy_nonoverlapping(self.at.0, bytes.as_mut_ptr(), count) };
    }
}

/// Makes a chunk of a block, which streams keep until they are done with it.
pub(super) fn as_chunk(block: Pinned) -> Arc<ChunkMapping> {
    let (at, bytes) = (block.address(), block.len() as u64);
    // SAFETY: this is host memory of this length, which the block owns until it is dropped; it gives out no
    // references.
    unsafe { ChunkMapping::new(at, bytes, Access::ReadWrite, DeviceId::HOST, Box::new(block)) }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let mut state = self.shared.free.state.lock();
        state.blocks[self.class].push(Raw(self.at.0));
    }
}

/// Returns whether taking another large block would exceed [`PLENTY`].
pub(super) fn is_short(shared: &Shared) -> bool {
    let state = shared.free.state.lock();
    state.blocks[CLASSES - 1].is_empty() && state.bytes + PIECE > PLENTY
}

/// The bytes from one word to the next, so that streams do not share a cache line.
const LINE: usize = 64;

struct WordAt {
    host: Raw,
    device: u64,
}

/// A word of page-locked memory that one stream writes and this process reads; given back on drop.
pub(super) struct Word {
    shared: Arc<Shared>,
    at: Option<WordAt>,
    host: *const AtomicU64,
}

// SAFETY: the pointer is to an atomic that lives as long as the process.
unsafe impl Send for Word {}
// SAFETY: as above.
unsafe impl Sync for Word {}

impl Word {
    pub(super) fn take(shared: &Arc<Shared>) -> Result<Self, DeviceError> {
        let known = shared.free.state.lock().words.pop();
        let at = match known {
            Some(at) => at,
            None => Self::make(shared)?,
        };
        let host = at.host.0.cast_const().cast();
        Ok(Word { shared: Arc::clone(shared), at: Some(at), host })
    }

    /// Cuts a new block into words. Words are never freed, because a process has few streams.
    fn make(shared: &Arc<Shared>) -> Result<WordAt, DeviceError> {
        const WORDS: usize = 4096 / LINE;
        shared.bind()?;
        let host = shared.driver.alloc_host(WORDS * LINE)?;
        let device = shared.driver.device_address(host)?;
        // SAFETY: the block has that many bytes and no other user yet.
        unsafe { std::ptr::write_bytes(host, 0, WORDS * LINE) };
        let mut state = shared.free.state.lock();
        state.words.extend((1..WORDS).map(|index| WordAt {
            host: Raw(host.wrapping_add(index * LINE)),
            device: device + (index * LINE) as u64,
        }));
        Ok(WordAt { host: Raw(host), device })
    }

    /// Returns the address at which the device sees the word.
    pub(super) fn device_address(&self) -> u64 {
        self.at.as_ref().map_or(0, |at| at.device)
    }

    /// Returns the value that the stream wrote last. All work of the stream before that write is visible
    /// afterwards.
    pub(super) fn load(&self) -> u64 {
        // SAFETY: the word is aligned, was zeroed when it was made, and is never freed; the device writes it
        // as a whole.
        unsafe { &*self.host }.load(Ordering::Acquire)
    }
}

impl Drop for Word {
    /// Gives the word back. The stream's writes to it are all done; its next user goes on from its value.
    fn drop(&mut self) {
        if let Some(at) = self.at.take() {
            self.shared.free.state.lock().words.push(at);
        }
    }
}
