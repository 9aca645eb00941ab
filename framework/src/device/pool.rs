//! Cutting chunks into tensors: bookkeeping only, no memory is touched and no driver is called.
//!
//! Units are [`ALLOCATION_UNIT`] bytes, which is therefore the alignment of every block. Chunks come in powers of
//! two, so that whatever was asked for fits the chunk that was made for it: the allocator underneath sorts free
//! ranges into size classes and takes a range only from a class whose every member is large enough. A tensor
//! larger than the pool's largest shared chunk has a chunk of its own.
//!
//! A pool has at most [`MAX_POOL_CHUNKS`]: each costs its owner, the node and every reader a descriptor or a mapping.
//! So chunks double up to a size that depends on the budget, and towards its end the next one takes the largest power
//! of two that is left, and not just the room for one tensor.
//!
//! The bookkeeping dies with its process; the memory does not (LEASE-4).

use std::collections::BTreeMap;
use std::fmt;

use offset_allocator::{Allocation, Allocator};

use crate::limits::{ALLOCATION_UNIT, LARGEST_CHUNK, LARGEST_SHARED_CHUNK, MAX_POOL_CHUNKS};

/// Fewest and most blocks in a chunk, whatever its size; in between, one for every eight units. The bookkeeping for a
/// chunk takes about 32 bytes a block.
const LEAST_BLOCKS: u32 = 64;
const MOST_BLOCKS: u32 = 256 << 10;

/// The rest of a budget makes no chunk if it is below this share.
const LEAST_SHARE: u64 = 1 << 10;

/// A shared chunk can be this share of a large budget, so that half of [`MAX_POOL_CHUNKS`] take all of it.
const LARGEST_SHARE: u64 = MAX_POOL_CHUNKS as u64 / 2;

/// Part of a chunk that was given out. Goes back with [`SubAllocator::free`], once.
#[must_use = "a block that is not freed is lost until its chunk is"]
pub struct Block {
    /// Index of the chunk, or [`Block::NO_CHUNK`] for a block of no bytes.
    pub chunk: u32,
    /// Where it starts in the chunk, in bytes; a multiple of [`ALLOCATION_UNIT`].
    pub offset: u64,
    /// Its length in bytes, as asked for.
    pub bytes: u64,
    place: Place,
}

enum Place {
    /// No bytes, no room.
    Nowhere,
    /// A chunk of its own.
    Whole,
    Part(Allocation),
}

impl Block {
    /// The chunk of a block of no bytes: none.
    pub const NO_CHUNK: u32 = u32::MAX;
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Block({} bytes at {} of chunk {})", self.bytes, self.offset, self.chunk)
    }
}

/// One chunk, in numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkStats {
    /// Its index.
    pub index: u32,
    /// Its length in bytes.
    pub bytes: u64,
    /// What is given out, in bytes, rounded up to whole units.
    pub used: u64,
    /// Blocks that are given out.
    pub blocks: u32,
    /// A block of this many bytes certainly fits (a somewhat larger one may).
    pub largest_free: u64,
}

/// All chunks, in numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubAllocatorStats {
    /// Length of all chunks together in bytes.
    pub bytes: u64,
    /// What is given out, in bytes, rounded up to whole units.
    pub used: u64,
    /// The largest of the chunks' `largest_free`.
    pub largest_free: u64,
    /// Each chunk, by index.
    pub chunks: Vec<ChunkStats>,
}

struct Chunk {
    bytes: u64,
    used: u64,
    blocks: u32,
    /// `None` for a chunk that holds one tensor at a time.
    parts: Option<Allocator>,
}

/// The bookkeeping of one pool's chunks.
pub struct SubAllocator {
    first_chunk_bytes: u64,
    granularity: u64,
    /// Largest chunk that tensors share; a power of two.
    largest_shared: u64,
    /// Smallest chunk that is worth a descriptor, where less was not asked for.
    least: u64,
    chunks: BTreeMap<u32, Chunk>,
}

impl SubAllocator {
    /// No chunks yet; the first is to have `first_chunk_bytes` bytes, all together `budget` at most, and all are multiples
    /// of `granularity`.
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

    /// Takes room for `bytes` bytes. `None` where no chunk has it: add one of
    /// [`chunk_size_for`](Self::chunk_size_for) bytes and try again, which then succeeds.
    ///
    /// No bytes take no room, and belong to no chunk.
    pub fn allocate(&mut self, bytes: u64) -> Option<Block> {
        if bytes == 0 {
            return Some(Block { chunk: Block::NO_CHUNK, offset: 0, bytes, place: Place::Nowhere });
        }
        // The lowest index first, so that later chunks run empty and can be given back.
        let shared = bytes <= self.largest_shared;
        self.chunks.iter_mut().find_map(|(&index, chunk)| chunk.allocate(index, bytes, shared))
    }

    /// How large the next chunk is to be, in which `bytes` bytes certainly fit, where the pool may grow by `left` bytes.
    /// `None` where that is not enough, or not worth a chunk, or there are [`MAX_POOL_CHUNKS`].
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

    /// How large a new chunk should be in which `bytes` bytes certainly fit. Chunks double in size as they become
    /// more, up to the largest shared one. `u64::MAX` where no chunk can be that large.
    pub fn chunk_size_for(&self, bytes: u64) -> u64 {
        if bytes > self.largest_shared {
            return self.smallest_chunk_for(bytes);
        }
        let shared = self.chunks.values().filter(|chunk| chunk.parts.is_some()).count().min(32) as u32;
        let grown = self.first_chunk_bytes.saturating_mul(1 << shared).min(self.largest_shared);
        self.whole(grown.max(bytes.next_power_of_two()))
    }

    /// The smallest new chunk in which `bytes` bytes fit, for a pool that comes to the end of its budget.
    pub fn smallest_chunk_for(&self, bytes: u64) -> u64 {
        if bytes > self.largest_shared {
            return self.whole(bytes);
        }
        // Lossless: at most LARGEST_CHUNK / ALLOCATION_UNIT units.
        let units = offset_allocator::ext::min_allocator_size(bytes.div_ceil(ALLOCATION_UNIT).max(1) as u32);
        self.whole(u64::from(units) * ALLOCATION_UNIT)
    }

    /// Adds an empty chunk. An index in use is a mistake of the caller's, and changes nothing.
    pub fn add_chunk(&mut self, index: u32, bytes: u64) {
        debug_assert!(
            index != Block::NO_CHUNK && !self.chunks.contains_key(&index),
            "chunk {index} is in use"
        );
        let parts = (bytes <= self.largest_shared).then(|| {
            let units = (bytes / ALLOCATION_UNIT) as u32; // at most LARGEST_CHUNK / ALLOCATION_UNIT
            Allocator::with_max_allocs(units, (units / 8).clamp(LEAST_BLOCKS, MOST_BLOCKS))
        });
        self.chunks.entry(index).or_insert(Chunk { bytes, used: 0, blocks: 0, parts });
    }

    /// Gives a block's room back.
    pub fn free(&mut self, block: Block) {
        if matches!(block.place, Place::Nowhere) {
            return;
        }
        let Some(chunk) = self.chunks.get_mut(&block.chunk) else {
            debug_assert!(false, "{block:?} belongs to another pool");
            return;
        };
        chunk.used -= block.bytes.next_multiple_of(ALLOCATION_UNIT);
        chunk.blocks -= 1;
        if let (Place::Part(part), Some(parts)) = (block.place, &mut chunk.parts) {
            parts.free(part);
        }
    }

    /// Whether a chunk is there and nothing of it is given out.
    pub fn is_chunk_empty(&self, index: u32) -> bool {
        self.chunks.get(&index).is_some_and(|chunk| chunk.blocks == 0)
    }

    /// Forgets an empty chunk; says whether it did. One that is in use stays.
    pub fn remove_chunk(&mut self, index: u32) -> bool {
        self.is_chunk_empty(index) && self.chunks.remove(&index).is_some()
    }

    /// The bookkeeping in numbers.
    pub fn stats(&self) -> SubAllocatorStats {
        let mut stats = SubAllocatorStats::default();
        for (&index, chunk) in &self.chunks {
            let (bytes, used, blocks, largest_free) =
                (chunk.bytes, chunk.used, chunk.blocks, chunk.largest_free());
            stats.bytes += bytes;
            stats.used += used;
            stats.largest_free = stats.largest_free.max(largest_free);
            stats.chunks.push(ChunkStats { index, bytes, used, blocks, largest_free });
        }
        stats
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
                let part = parts.allocate(u32::try_from(room / ALLOCATION_UNIT).ok()?)?;
                (u64::from(part.offset) * ALLOCATION_UNIT, Place::Part(part))
            }
            // Small tensors would keep a large chunk from ever being given back.
            None if self.blocks == 0 && !shared && bytes > self.bytes / 2 => (0, Place::Whole),
            None => return None,
        };
        self.used += room;
        self.blocks += 1;
        Some(Block { chunk: index, offset, bytes, place })
    }

    fn largest_free(&self) -> u64 {
        match &self.parts {
            Some(parts) => u64::from(parts.storage_report().largest_free_region) * ALLOCATION_UNIT,
            None if self.blocks == 0 => self.bytes,
            None => 0,
        }
    }
}

impl fmt::Debug for SubAllocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SubAllocator").field(&self.stats()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    /// Allocates as a pool does: with a new chunk where none has room. Says whether it took one.
    fn take(allocator: &mut SubAllocator, next: &mut u32, bytes: u64, smallest: bool) -> (Block, bool) {
        if let Some(block) = allocator.allocate(bytes) {
            return (block, false);
        }
        let size =
            if smallest { allocator.smallest_chunk_for(bytes) } else { allocator.chunk_size_for(bytes) };
        allocator.add_chunk(*next, size);
        *next += 1;
        (allocator.allocate(bytes).expect("what a chunk was made for fits it"), true)
    }

    #[test]
    fn chunks_double_up_to_a_bound() {
        let mut allocator = SubAllocator::new(64 * MIB, 2 * MIB, 16 * GIB);
        let sizes: Vec<_> = (0..6)
            .map(|index| {
                let size = allocator.chunk_size_for(1);
                allocator.add_chunk(index, size);
                size / MIB
            })
            .collect();
        assert_eq!(sizes, [64, 128, 256, 512, 1024, 1024]);
        assert_eq!(allocator.chunk_size_for(GIB), GIB);
        assert_eq!(allocator.chunk_size_for(GIB + 1), GIB + 2 * MIB);
        assert_eq!(allocator.chunk_size_for(u64::MAX), u64::MAX);
        assert_eq!(allocator.smallest_chunk_for(1), 2 * MIB);
    }

    /// Grows as far as it can by tensors of `bytes` bytes: the sizes of its chunks.
    fn grown(first: u64, granularity: u64, budget: u64, bytes: u64) -> Vec<u64> {
        let mut allocator = SubAllocator::new(first, granularity, budget);
        let mut sizes: Vec<u64> = Vec::new();
        // As a pool does it: to a quarter of its budget first.
        for limit in [budget / 4, budget] {
            let total = |sizes: &[u64]| sizes.iter().sum::<u64>();
            while allocator.next_chunk(bytes, limit.saturating_sub(total(&sizes))).is_some() {
                let size =
                    allocator.next_chunk(bytes, budget - total(&sizes)).expect("there is more than that");
                assert!(size >= bytes && size.is_multiple_of(granularity), "{size}");
                allocator.add_chunk(sizes.len() as u32, size);
                sizes.push(size);
                assert!(total(&sizes) <= budget);
            }
        }
        sizes
    }

    #[test]
    fn few_chunks_take_all_of_any_budget() {
        for (first, granularity, budget) in [
            (64 * MIB, 4096, 4 * GIB),
            (64 * MIB, 2 * MIB, 130 * GIB),
            (64 * MIB, 4096, 2048 * GIB),
            (4096, 4096, 64 * GIB),
            (MIB, 4096, 5 * MIB + 4096),
            (64 * MIB, 4096, 3 * GIB - 4096),
        ] {
            for bytes in [1, 4096, 3 * MIB] {
                let sizes = grown(first, granularity, budget, bytes);
                let total: u64 = sizes.iter().sum();
                // At the cap there is no more; everywhere else less is left than is worth a chunk, or than fits.
                let left = budget - total;
                let least = (budget / LEAST_SHARE).max(granularity).max(2 * bytes);
                assert!(left <= 2 * least, "{left} of {budget} by {bytes} in {} chunks", sizes.len());
                assert!(sizes.len() <= MAX_POOL_CHUNKS, "{} chunks of {budget}", sizes.len());
            }
        }
        let mut allocator = SubAllocator::new(4096, 4096, GIB);
        for index in 0..MAX_POOL_CHUNKS as u32 {
            allocator.add_chunk(index, 4096);
        }
        assert_eq!(allocator.next_chunk(1, GIB), None, "there are as many as there may be");
    }

    #[test]
    fn nothing_takes_no_room() {
        let mut allocator = SubAllocator::new(64 * MIB, 4096, 4 * GIB);
        let nothing = allocator.allocate(0).unwrap();
        assert_eq!((nothing.chunk, nothing.bytes), (Block::NO_CHUNK, 0));
        allocator.free(nothing);
        assert!(allocator.allocate(1).is_none());
        assert_eq!(allocator.stats(), SubAllocatorStats::default());
    }

    #[test]
    fn a_huge_tensor_has_a_chunk_of_its_own_that_serves_the_next() {
        let (mut allocator, mut next) = (SubAllocator::new(64 * MIB, 2 * MIB, 16 * GIB), 0);
        let (huge, _) = take(&mut allocator, &mut next, 3 * GIB, false);
        let (small, new) = take(&mut allocator, &mut next, 512, false);
        assert!(new && small.chunk != huge.chunk && huge.offset == 0);
        let own = huge.chunk;
        assert!(!allocator.remove_chunk(own));
        allocator.free(huge);
        let (again, new) = take(&mut allocator, &mut next, 2 * GIB, false);
        assert!(!new && again.chunk == own);
        assert!(allocator.allocate(u64::MAX).is_none());
        allocator.free(again);
        assert!(allocator.remove_chunk(own) && !allocator.remove_chunk(own));
        allocator.free(small);
    }

    #[test]
    fn many_small_blocks_run_out_of_room_and_not_of_sense() {
        let (mut allocator, mut next) = (SubAllocator::new(MIB, 4096, GIB), 0);
        let blocks: Vec<_> = (0..4096).map(|_| take(&mut allocator, &mut next, 1, false).0).collect();
        assert_eq!(allocator.stats().used, 4096 * ALLOCATION_UNIT);
        for block in blocks {
            allocator.free(block);
        }
        assert_eq!(allocator.stats().used, 0);
        assert!((0..next).all(|index| allocator.remove_chunk(index)));
    }

    proptest! {
        #[test]
        fn a_chunk_made_for_a_size_fits_it(bytes in 1..4 * GIB, granularity in 9_u32..22) {
            for smallest in [false, true] {
                let (mut allocator, mut next) = (SubAllocator::new(64 * MIB, 1 << granularity, 16 * GIB), 0);
                let (block, new) = take(&mut allocator, &mut next, bytes, smallest);
                prop_assert!(new);
                prop_assert_eq!(allocator.stats().bytes % (1 << granularity), 0);
                allocator.free(block);
                prop_assert!(allocator.is_chunk_empty(0));
            }
        }

        /// Steps: take this many bytes, or free the block at this place among the live ones.
        #[test]
        fn live_blocks_never_overlap_and_all_of_it_comes_back(
            steps in prop::collection::vec((any::<bool>(), 0_u64..300_000, any::<prop::sample::Index>()), 1..200),
        ) {
            let (mut allocator, mut next) = (SubAllocator::new(MIB, 4096, GIB), 0);
            let mut live: Vec<Block> = Vec::new();
            for (takes, bytes, which) in steps {
                if takes || live.is_empty() {
                    let (block, _) = take(&mut allocator, &mut next, bytes, false);
                    prop_assert_eq!(block.offset % ALLOCATION_UNIT, 0);
                    live.push(block);
                } else {
                    let block = live.swap_remove(which.index(live.len()));
                    allocator.free(block);
                }
                let mut ranges: Vec<_> = live.iter().filter(|block| block.bytes > 0)
                    .map(|block| (block.chunk, block.offset, block.offset + block.bytes)).collect();
                ranges.sort_unstable();
                for pair in ranges.windows(2) {
                    prop_assert!(pair[0].0 != pair[1].0 || pair[0].2 <= pair[1].1, "{:?} overlap", pair);
                }
                let stats = allocator.stats();
                for (chunk, _, end) in ranges {
                    prop_assert!(stats.chunks.iter().any(|of| of.index == chunk && end <= of.bytes));
                }
                let used: u64 = live.iter().map(|block| block.bytes.next_multiple_of(ALLOCATION_UNIT)).sum();
                prop_assert_eq!(stats.used, used);
            }
            for block in live.drain(..) {
                allocator.free(block);
            }
            let stats = allocator.stats();
            prop_assert_eq!(stats.used, 0);
            for chunk in stats.chunks {
                prop_assert_eq!(chunk.largest_free, chunk.bytes);
                prop_assert!(allocator.remove_chunk(chunk.index));
            }
        }
    }
}
