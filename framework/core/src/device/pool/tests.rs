use super::*;
use crate::os::thorough;
use proptest::prelude::*;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// A chunk, in numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ChunkStats {
    /// The chunk's index.
    index: u32,
    /// The chunk's length in bytes.
    bytes: u64,
    /// The bytes that are given out, rounded up to whole units.
    used: u64,
    /// The blocks that are given out.
    blocks: u32,
    /// The size of a block that certainly fits (a somewhat larger one may).
    largest_free: u64,
}

/// All chunks, in numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct SubAllocatorStats {
    /// The length of all chunks together in bytes.
    bytes: u64,
    /// The bytes that are given out, rounded up to whole units.
    used: u64,
    /// The largest of the chunks' `largest_free`.
    largest_free: u64,
    /// Each chunk, by index.
    chunks: Vec<ChunkStats>,
}

impl SubAllocator {
    /// Returns the bookkeeping in numbers.
    fn stats(&self) -> SubAllocatorStats {
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
}

impl Chunk {
    fn largest_free(&self) -> u64 {
        match &self.parts {
            Some(parts) => u64::from(parts.allocator.storage_report().largest_free_region) * ALLOCATION_UNIT,
            None if self.blocks == 0 => self.bytes,
            None => 0,
        }
    }
}

/// Allocates as a pool does: with a new chunk if none has room. Says whether it took one.
fn take(allocator: &mut SubAllocator, next: &mut u32, bytes: u64, smallest: bool) -> (Block, bool) {
    if let Some(block) = allocator.allocate(bytes) {
        return (block, false);
    }
    let size = if smallest { allocator.smallest_chunk_for(bytes) } else { allocator.chunk_size_for(bytes) };
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

/// Grows as far as possible by tensors of `bytes` bytes. Returns the sizes of the chunks.
fn grown(first: u64, granularity: u64, budget: u64, bytes: u64) -> Vec<u64> {
    let mut allocator = SubAllocator::new(first, granularity, budget);
    let (mut sizes, mut total): (Vec<u64>, u64) = (Vec::new(), 0);
    // Grows as a pool does: to a quarter of its budget first.
    for limit in [budget / 4, budget] {
        while allocator.next_chunk(bytes, limit.saturating_sub(total)).is_some() {
            let size = allocator.next_chunk(bytes, budget - total).expect("there is more than that");
            assert!(size >= bytes && size.is_multiple_of(granularity), "{size}");
            allocator.add_chunk(sizes.len() as u32, size);
            sizes.push(size);
            total += size;
            assert!(total <= budget);
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
        // Without optimisation the allocator takes a tenth of a second for some chunks.
        for &bytes in if thorough() { &[1, 4096, 3 * MIB][..] } else { &[1] } {
            let sizes = grown(first, granularity, budget, bytes);
            let total: u64 = sizes.iter().sum();
            // At the cap there are no more chunks. Everywhere else the rest is less than is worth a chunk, or
            // than fits.
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
fn a_huge_tensor_has_a_chunk_of_its_own_that_serves_the_next() {
    let (mut allocator, mut next) = (SubAllocator::new(64 * MIB, 2 * MIB, 16 * GIB), 0);
    let (huge, _) = take(&mut allocator, &mut next, 3 * GIB, false);
    let (small, new) = take(&mut allocator, &mut next, 512, false);
    assert!(new && small.chunk != huge.chunk && huge.offset == 0);
    let own = huge.chunk;
    allocator.free(huge);
    let (again, new) = take(&mut allocator, &mut next, 2 * GIB, false);
    assert!(!new && again.chunk == own);
    assert!(allocator.allocate(u64::MAX).is_none());
    allocator.free(again);
    allocator.free(small);
    assert_eq!(allocator.stats().used, 0);
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
            prop_assert_eq!(allocator.stats().used, 0);
        }
    }

    /// Steps: take this many bytes, or free the block at this position among the live ones.
    #[test]
    fn live_blocks_never_overlap_and_all_of_it_comes_back(
        steps in prop::collection::vec((any::<bool>(), 1_u64..300_000, any::<prop::sample::Index>()), 1..200),
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
            let mut ranges: Vec<_> = live.iter()
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
            prop_assert_eq!(chunk.blocks, 0);
        }
    }
}

/// Takes tensors of `bytes` bytes until one chunk of `chunk` bytes is full. Returns the share of it that they
/// take.
fn share_of(chunk: u64, budget: u64, bytes: u64) -> f64 {
    let mut allocator = SubAllocator::new(chunk, 4096, budget);
    allocator.add_chunk(0, chunk);
    let mut blocks = Vec::new();
    while let Some(block) = allocator.allocate(bytes) {
        blocks.push(block);
    }
    let mut places: Vec<_> = blocks.iter().map(|block| block.offset).collect();
    places.sort_unstable();
    let room = bytes.next_multiple_of(ALLOCATION_UNIT);
    assert!(places.windows(2).all(|pair| pair[0] + room <= pair[1]), "tensors of {bytes} bytes overlap");
    assert!(places.last().is_none_or(|last| last + room <= chunk), "a tensor leaves its chunk");
    let share = (blocks.len() as u64 * room) as f64 / chunk as f64;
    // Freed from both ends, so that slabs close out of order.
    let rest = blocks.split_off(blocks.len() / 2);
    rest.into_iter().rev().chain(blocks).for_each(|block| allocator.free(block));
    let stats = allocator.stats();
    assert_eq!((stats.used, stats.largest_free), (0, chunk), "{stats:?}");
    share
}

#[test]
fn tensors_of_any_size_can_use_a_whole_chunk() {
    for chunk in [4 * 4096, MIB, 64 * MIB] {
        for bytes in [1, 512, 513, 1500, 4096, 5000, 20_000, 32 << 10, 33 << 10, 64 << 10] {
            if chunk >= 64 * bytes {
                let share = share_of(chunk, GIB, bytes);
                assert!(share >= 0.95, "{bytes} bytes use {share:.3} of a chunk of {chunk}");
            }
        }
    }
}

/// The chunks are as large as a GPU's pool makes them, where a record for eight units each would be too many.
#[test]
fn small_tensors_can_use_the_largest_chunks() {
    for bytes in [16 << 10, 33 << 10] {
        let share = share_of(8 * GIB, 130 * GIB, bytes);
        assert!(share >= 0.95, "{bytes} bytes use {share:.3} of a chunk of 8 GiB");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Tensors that share blocks are given back in any order. Steps: take this many bytes, or free the block
    /// at this position among the live ones.
    #[test]
    fn places_in_slabs_never_overlap_and_all_of_them_come_back(
        steps in prop::collection::vec((0..4_u8, 1_u64..4096, any::<prop::sample::Index>()), 1000..2000),
    ) {
        let (mut allocator, mut next) = (SubAllocator::new(MIB, 4096, GIB), 0);
        let mut live: Vec<Block> = Vec::new();
        let mut in_slabs = false;
        for (step, (kind, bytes, which)) in steps.into_iter().enumerate() {
            if kind > 0 || live.is_empty() {
                let (block, _) = take(&mut allocator, &mut next, bytes, false);
                in_slabs |= matches!(block.place, BlockPlace::Slab(_));
                live.push(block);
            } else {
                let block = live.swap_remove(which.index(live.len()));
                allocator.free(block);
            }
            if step % 100 == 0 {
                let mut ranges: Vec<_> = live.iter()
                    .map(|block| (block.chunk, block.offset, block.offset + block.bytes)).collect();
                ranges.sort_unstable();
                for pair in ranges.windows(2) {
                    prop_assert!(pair[0].0 != pair[1].0 || pair[0].2 <= pair[1].1, "{:?} overlap", pair);
                }
            }
        }
        prop_assert!(in_slabs, "the test is of slabs");
        for block in live.drain(..) {
            allocator.free(block);
        }
        for chunk in allocator.stats().chunks {
            prop_assert_eq!((chunk.largest_free, chunk.blocks), (chunk.bytes, 0));
        }
    }
}

#[test]
fn a_chunk_is_idle_when_nothing_was_in_it_between_two_looks() {
    let mut pool = SubAllocator::new(1 << 20, 1, 8 << 20);
    pool.add_chunk(0, 1 << 20);
    assert!(pool.idle().chunks.is_empty(), "nothing was ever written");
    let block = pool.allocate(1000).expect("room");
    assert!(pool.idle().in_use);
    pool.free(block);
    // The chunk was in use at the last look, or has been since.
    let found = pool.idle();
    assert!(matches!(&found.chunks[..], [one] if one.index == 0 && one.bytes == 1 << 20), "{found:?}");
    let block = pool.allocate(1000).expect("room");
    assert!(!pool.is_idle(&found.chunks[0]));
    pool.free(block);
    assert!(!pool.is_idle(&found.chunks[0]), "something was written meanwhile");
    let lately = pool.idle();
    assert!(lately.lately && lately.chunks.is_empty());
    let found = pool.idle();
    assert!(pool.is_idle(&found.chunks[0]));
    pool.note_given_back(&found.chunks[0]);
    let nothing = pool.idle();
    assert!(nothing.chunks.is_empty() && !nothing.lately && !nothing.in_use, "it is given back once");
}
