//! Cuts chunks into tensors. This is bookkeeping only: no memory is touched and no driver is called.
//!
//! Units are [`ALLOCATION_UNIT`] bytes, which is therefore the alignment of every block. Chunks come in
//! powers of two, so that a request fits the chunk that was made for it. The allocator underneath sorts free
//! ranges into size classes, and takes a range only from a class whose every member is large enough. A tensor
//! larger than the pool's largest shared chunk has a chunk of its own.
//!
//! A pool has at most [`MAX_POOL_CHUNKS`]: each costs its owner, the node and every reader a descriptor or a
//! mapping. So chunks double up to a size that depends on the budget. Towards the end of the budget, the next
//! chunk takes the largest power of two that is left, and not just the room for one tensor.
//!
//! A chunk has a record for each eighth of its units, and a large chunk has relatively fewer. In a chunk that
//! fills with small tensors these share blocks (`slabs`), so all of it can be used whatever their size.
//!
//! The bookkeeping dies with its process; the memory does not (LEASE-4).

mod slabs;

use std::collections::BTreeMap;
use std::fmt;
#[cfg(feature = "bindings")]
use std::sync::Arc;
#[cfg(feature = "bindings")]
use std::sync::atomic::{AtomicBool, Ordering};

use offset_allocator::{Allocation, Allocator};

use self::slabs::Slabs;
use crate::limits::{ALLOCATION_UNIT, LARGEST_CHUNK, LARGEST_SHARED_CHUNK, MAX_POOL_CHUNKS};

/// The number of blocks of a chunk that is so small that each of its units may be a block.
const FEW_BLOCKS: u32 = 1024;
/// The number of blocks up to which a chunk has one for every eight units. The bookkeeping takes 32 bytes a
/// block.
const MANY_BLOCKS: u32 = 256 << 10;

/// Returns the largest number of blocks in a chunk of `units` units. Between [`FEW_BLOCKS`] and
/// [`MANY_BLOCKS`] it is an eighth of them. In the largest chunks it is one for every [`slabs::MOST_UNITS`],
/// so that tensors too large for a slab fill them too.
fn most_blocks(units: u32) -> u32 {
    // The allocator needs two more than it gives out.
    let few = units.saturating_add(2).min(FEW_BLOCKS);
    (units / 8).clamp(few, MANY_BLOCKS.max(units / slabs::MOST_UNITS))
}

/// If the rest of a budget is below this share, it makes no chunk.
const LEAST_SHARE: u64 = 1 << 10;

/// A shared chunk may take this share of a large budget, so that half of [`MAX_POOL_CHUNKS`] take all of it.
const LARGEST_SHARE: u64 = MAX_POOL_CHUNKS as u64 / 2;

/// A part of a chunk that was given out. It goes back with [`SubAllocator::free`], once.
#[must_use = "a block that is not freed is lost until its chunk is"]
pub struct Block {
    /// Index of the chunk.
    pub chunk: u32,
    /// The start in the chunk, in bytes; a multiple of [`ALLOCATION_UNIT`].
    pub offset: u64,
    /// The length in bytes, as requested.
    pub bytes: u64,
    place: BlockPlace,
}

enum BlockPlace {
    /// A chunk of its own.
    Whole,
    Part(Allocation),
    /// In a slab, beside others of its size.
    Slab(slabs::SlabPlace),
    /// Inside of a block that its owner frees: this only keeps the block.
    #[cfg(feature = "bindings")]
    Lent {
        _keep: Box<dyn std::any::Any + Send>,
        closed: Arc<AtomicBool>,
    },
}

#[cfg(feature = "bindings")]
impl Block {
    /// Makes a part of a block that is given out. `keep` is dropped when another block's room would go back.
    pub(crate) fn lent(
        chunk: u32,
        offset: u64,
        bytes: u64,
        keep: Box<dyn std::any::Any + Send>,
        closed: Arc<AtomicBool>,
    ) -> Self {
        Block { chunk, offset, bytes, place: BlockPlace::Lent { _keep: keep, closed } }
    }

    /// Notes that nobody uses the block any more. Returns the bytes that go back to a library, if it is a
    /// part of another block.
    pub(crate) fn close_lent(&self) -> u64 {
        let BlockPlace::Lent { closed, .. } = &self.place else { return 0 };
        closed.store(true, Ordering::Release);
        self.bytes
    }
}

impl Block {
    /// Returns whether it is a part of another block.
    pub(crate) fn is_lent(&self) -> bool {
        #[cfg(feature = "bindings")]
        return matches!(self.place, BlockPlace::Lent { .. });
        #[cfg(not(feature = "bindings"))]
        false
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Block({} bytes at {} of chunk {})", self.bytes, self.offset, self.chunk)
    }
}

/// The result of a look for idle chunks.
#[derive(Debug, Default)]
pub struct Idle {
    /// The idle chunks.
    pub chunks: Vec<IdleChunk>,
    /// Whether some are empty, and were not at the last look.
    pub lately: bool,
    /// Whether some are in use.
    pub in_use: bool,
}

/// A chunk without blocks.
#[derive(Debug)]
pub struct IdleChunk {
    /// The chunk's index.
    pub index: u32,
    /// The chunk's length in bytes.
    pub bytes: u64,
    cut: u64,
}

struct Chunk {
    bytes: u64,
    used: u64,
    blocks: u32,
    /// The number of blocks that were ever cut out of it.
    cut: u64,
    /// That number at the last [look](SubAllocator::idle).
    seen: u64,
    /// That number when its memory was given back last.
    given_back: u64,
    /// `None` for a chunk that holds one tensor at a time.
    parts: Option<Parts>,
}

/// A chunk that tensors share.
struct Parts {
    allocator: Allocator,
    slabs: Slabs,
    /// The number of blocks that the allocator has given out, each a tensor or a slab.
    count: u32,
    /// The number of blocks from which on small tensors go into slabs. Each block may leave a hole behind it,
    /// which is a record too, and the slabs of a whole chunk take less than a quarter of the records.
    plenty: u32,
}

/// The bookkeeping of one pool's chunks.
pub struct SubAllocator {
    first_chunk_bytes: u64,
    granularity: u64,
    /// The largest chunk that tensors share; a power of two.
    largest_shared: u64,
    /// The smallest chunk that is worth a descriptor, unless less was requested.
    least: u64,
    chunks: BTreeMap<u32, Chunk>,
}

impl SubAllocator {
    /// Makes the bookkeeping without chunks. The first chunk will have `first_chunk_bytes` bytes, and all
    /// together at most `budget`; all are multiples of `granularity`.
    pub fn new(first_chunk_bytes: u64, granularity: u64, budget: u64) -> Self {
        let share = (budget / LARGEST_SHARE).min(LARGEST_CHUNK).next_power_of_two();
        let largest_shared = share.max(LARGEST_SHARED_CHUNK);
        let first_chunk_bytes = first_chunk_bytes.clamp(ALLOCATION_UNIT, largest_shared).next_power_of_two();
        SubAllocator {
            first_chunk_bytes,
            granularity: granularity.max(ALLOCATION_UNIT),
            largest_shared,
            least: budget / LEAST_SHARE,
            chunks: BTreeMap::new(),
        }
    }

    /// Takes room for `bytes` bytes. `None` if no chunk has it: add a chunk of
    /// [`chunk_size_for`](Self::chunk_size_for) bytes and try again, which then succeeds. `bytes` must not be
    /// 0, because an empty block has no place.
    pub fn allocate(&mut self, bytes: u64) -> Option<Block> {
        debug_assert!(bytes > 0, "a block of no bytes has no place");
        // Searched from the lowest index, so the blocks stay together.
        let shared = bytes <= self.largest_shared;
        self.chunks.iter_mut().find_map(|(&index, chunk)| chunk.allocate(index, bytes, shared))
    }

    /// Returns the size of the next chunk, in which `bytes` bytes certainly fit, if the pool may grow by
    /// `left` bytes. `None` if that is not enough, or not worth a chunk, or there are [`MAX_POOL_CHUNKS`].
    pub fn next_chunk(&self, bytes: u64, left: u64) -> Option<u64> {
        if self.chunks.len() >= MAX_POOL_CHUNKS {
            return None;
        }
        let wish = self.chunk_size_for(bytes);
        if wish <= left {
            return Some(wish);
        }
        let smallest = self.smallest_chunk_for(bytes);
        if smallest > left {
            return None;
        }
        if bytes > self.largest_shared {
            return Some(smallest);
        }
        // `smallest` is a multiple of the granularity, and so is a power of two above it.
        let size = smallest.max(1 << left.ilog2());
        (size >= self.least).then_some(size)
    }

    /// Returns the size of a new chunk in which `bytes` bytes certainly fit. Chunks double in size as they
    /// become more, up to the largest shared one. `u64::MAX` if no chunk can be that large.
    pub fn chunk_size_for(&self, bytes: u64) -> u64 {
        if bytes > self.largest_shared {
            return self.smallest_chunk_for(bytes);
        }
        let shared = self.chunks.values().filter(|chunk| chunk.parts.is_some()).count().min(32) as u32;
        let grown = self.first_chunk_bytes.saturating_mul(1 << shared).min(self.largest_shared);
        self.whole(grown.max(bytes.next_power_of_two()))
    }

    /// Returns the smallest new chunk in which `bytes` bytes fit, for a pool that comes to the end of its
    /// budget.
    pub fn smallest_chunk_for(&self, bytes: u64) -> u64 {
        if bytes > self.largest_shared {
            return self.whole(bytes);
        }
        // Lossless: at most LARGEST_CHUNK / ALLOCATION_UNIT units.
        let units = offset_allocator::ext::min_allocator_size(bytes.div_ceil(ALLOCATION_UNIT).max(1) as u32);
        self.whole(u64::from(units) * ALLOCATION_UNIT)
    }

    /// Adds an empty chunk. An index in use is the caller's mistake, and changes nothing.
    pub fn add_chunk(&mut self, index: u32, bytes: u64) {
        debug_assert!(!self.chunks.contains_key(&index), "chunk {index} is in use");
        let parts = (bytes <= self.largest_shared).then(|| {
            let units = (bytes / ALLOCATION_UNIT) as u32; // at most LARGEST_CHUNK / ALLOCATION_UNIT
            Parts::new(units)
        });
        self.chunks.entry(index).or_insert(Chunk {
            bytes,
            used: 0,
            blocks: 0,
            cut: 0,
            seen: 0,
            given_back: 0,
            parts,
        });
    }

    /// Gives a block's room back.
    pub fn free(&mut self, block: Block) {
        if block.is_lent() {
            return;
        }
        let Some(chunk) = self.chunks.get_mut(&block.chunk) else {
            debug_assert!(false, "{block:?} belongs to another pool");
            return;
        };
        chunk.used -= block.bytes.next_multiple_of(ALLOCATION_UNIT);
        chunk.blocks -= 1;
        if let Some(parts) = &mut chunk.parts {
            parts.free(block.place);
        }
    }

    /// Looks for chunks whose memory can be given back. Such a chunk has had blocks since its memory was last
    /// given back. It has none now, and had none since the last look.
    pub fn idle(&mut self) -> Idle {
        let mut idle = Idle::default();
        for (&index, chunk) in self.chunks.iter_mut().filter(|(_, chunk)| chunk.cut != chunk.given_back) {
            let was = std::mem::replace(&mut chunk.seen, chunk.cut);
            if chunk.blocks > 0 {
                idle.in_use = true;
            } else if was == chunk.cut {
                idle.chunks.push(IdleChunk { index, bytes: chunk.bytes, cut: chunk.cut });
            } else {
                idle.lately = true;
            }
        }
        idle
    }

    /// Returns whether nothing was cut out of a chunk since it was found idle.
    pub fn is_idle(&self, found: &IdleChunk) -> bool {
        self.chunks.get(&found.index).is_some_and(|chunk| chunk.blocks == 0 && chunk.cut == found.cut)
    }

    /// Forgets a chunk without blocks. Returns whether it did.
    pub fn remove_chunk(&mut self, found: &IdleChunk) -> bool {
        let is_idle = self.is_idle(found);
        if is_idle {
            self.chunks.remove(&found.index);
        }
        is_idle
    }

    /// Notes that the memory of a chunk was given back.
    pub fn note_given_back(&mut self, found: &IdleChunk) {
        if let Some(chunk) = self.chunks.get_mut(&found.index) {
            chunk.given_back = found.cut;
        }
    }

    fn whole(&self, bytes: u64) -> u64 {
        bytes.checked_next_multiple_of(self.granularity).unwrap_or(u64::MAX)
    }
}

impl Chunk {
    fn allocate(&mut self, index: u32, bytes: u64, shared: bool) -> Option<Block> {
        let room = bytes.checked_next_multiple_of(ALLOCATION_UNIT)?;
        if room > self.bytes - self.used {
            return None;
        }
        let (offset, place) = match &mut self.parts {
            Some(parts) => {
                let (offset, place) = parts.allocate(u32::try_from(room / ALLOCATION_UNIT).ok()?)?;
                (u64::from(offset) * ALLOCATION_UNIT, place)
            }
            // Small tensors would keep a large chunk from ever being given back.
            None if self.blocks == 0 && !shared && bytes > self.bytes / 2 => (0, BlockPlace::Whole),
            None => return None,
        };
        self.used += room;
        self.blocks += 1;
        self.cut += 1;
        Some(Block { chunk: index, offset, bytes, place })
    }
}

impl Parts {
    fn new(units: u32) -> Self {
        let most = most_blocks(units);
        let allocator = Allocator::with_max_allocs(units, most);
        Parts { allocator, slabs: Slabs::default(), count: 0, plenty: most / 4 }
    }

    /// Allocates room for a tensor of `units` units. Returns its offset in units, and its place.
    fn allocate(&mut self, units: u32) -> Option<(u32, BlockPlace)> {
        if units <= slabs::MOST_UNITS {
            // An existing slab is filled first: it goes back only when it is empty.
            let mut taken = self.slabs.take(units);
            if taken.is_none() && self.count >= self.plenty {
                // If there is no room for a slab, there may be room for the tensor alone.
                if let Some(part) = self.allocator.allocate(slabs::length(units)) {
                    self.count += 1;
                    self.slabs.add(units, part);
                    taken = self.slabs.take(units);
                }
            }
            if let Some((offset, place)) = taken {
                return Some((offset, BlockPlace::Slab(place)));
            }
        }
        let part = self.allocator.allocate(units)?;
        self.count += 1;
        Some((part.offset, BlockPlace::Part(part)))
    }

    fn free(&mut self, place: BlockPlace) {
        let part = match place {
            BlockPlace::Whole => None,
            BlockPlace::Part(part) => Some(part),
            BlockPlace::Slab(place) => self.slabs.free(place),
            #[cfg(feature = "bindings")]
            BlockPlace::Lent { .. } => None,
        };
        if let Some(part) = part {
            self.allocator.free(part);
            self.count -= 1;
        }
    }
}

#[cfg(test)]
mod tests;
