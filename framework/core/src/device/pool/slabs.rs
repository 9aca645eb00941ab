//! Many small tensors of one size in one block of a chunk.
//!
//! The allocator of a chunk keeps a record for each block. Enough records for a chunk full of the smallest
//! tensors would be a fourteenth of its memory, written when the chunk is made. So from a certain number of
//! blocks on, small tensors share a block: a slab, whose places are bits of a mask.
//!
//! Only [`Chunk`](super::Chunk) uses them. A place is given out once until it comes back. A slab whose places
//! are all back goes back as a whole.

use offset_allocator::Allocation;

/// The largest tensor in a slab, in units.
pub(super) const MOST_UNITS: u32 = 64;
/// The largest number of places in a slab.
const MOST_PLACES: u32 = 256;
/// The longest slab, in units.
const LONGEST: u32 = 2048;

const WORDS: usize = (MOST_PLACES / u64::BITS) as usize;

/// A place in a slab.
#[derive(Clone, Copy)]
pub(super) struct SlabPlace {
    slab: u32,
    index: u32,
}

struct Slab {
    part: Allocation,
    /// The units of each place.
    units: u32,
    /// The places that are free.
    free: [u64; WORDS],
    /// The slab's position in its size's list of slabs with a free place.
    at: u32,
    /// The number of places that are given out.
    used: u32,
}

/// The slabs of one chunk.
#[derive(Default)]
pub(super) struct Slabs {
    slabs: Vec<Option<Slab>>,
    /// The indices without a slab.
    empty: Vec<u32>,
    /// By size in units: the slabs with a free place.
    open: Vec<Vec<u32>>,
}

/// Returns the number of places in a slab for tensors of `units` units.
const fn places(units: u32) -> u32 {
    let fitting = LONGEST / units;
    if fitting < MOST_PLACES { fitting } else { MOST_PLACES }
}

/// Returns the units that a slab for tensors of `units` units takes.
pub(super) const fn length(units: u32) -> u32 {
    units * places(units)
}

impl Slabs {
    /// Takes a place for a tensor of `units` units. Returns it with its offset in units, or `None` if no slab
    /// has one.
    pub(super) fn take(&mut self, units: u32) -> Option<(u32, SlabPlace)> {
        let open = self.open.get_mut(units as usize)?;
        let number = *open.last()?;
        let slab = self.slabs.get_mut(number as usize)?.as_mut()?;
        let word = slab.free.iter().position(|free| *free != 0)?;
        let bit = slab.free[word].trailing_zeros();
        slab.free[word] &= !(1 << bit);
        slab.used += 1;
        if slab.used == places(units) {
            open.pop();
        }
        let index = word as u32 * u64::BITS + bit;
        Some((slab.part.offset + index * units, SlabPlace { slab: number, index }))
    }

    /// Adds a slab for tensors of `units` units, at most [`MOST_UNITS`], in `part`, which has the [`length`]
    /// for them.
    pub(super) fn add(&mut self, units: u32, part: Allocation) {
        if self.open.is_empty() {
            self.open.resize_with(MOST_UNITS as usize + 1, Vec::new);
        }
        let mut free = [0; WORDS];
        (0..places(units)).for_each(|index| free[(index / u64::BITS) as usize] |= 1 << (index % u64::BITS));
        let open = &mut self.open[units as usize];
        let slab = Some(Slab { part, units, free, at: open.len() as u32, used: 0 });
        let number = match self.empty.pop() {
            Some(number) => {
                self.slabs[number as usize] = slab;
                number
            }
            None => {
                self.slabs.push(slab);
                (self.slabs.len() - 1) as u32
            }
        };
        open.push(number);
    }

    /// Takes a place back. Returns the block of its slab if that was the slab's last used place.
    pub(super) fn free(&mut self, place: SlabPlace) -> Option<Allocation> {
        let of = self.slabs.get_mut(place.slab as usize)?;
        let slab = of.as_mut()?;
        let (word, bit) = ((place.index / u64::BITS) as usize, 1 << (place.index % u64::BITS));
        debug_assert_eq!(slab.free[word] & bit, 0, "a place comes back once");
        let open = &mut self.open[slab.units as usize];
        if slab.used == places(slab.units) {
            slab.at = open.len() as u32;
            open.push(place.slab);
        }
        slab.free[word] |= bit;
        slab.used -= 1;
        if slab.used > 0 {
            return None;
        }
        let (part, at) = (slab.part, slab.at as usize);
        *of = None;
        self.empty.push(place.slab);
        open.swap_remove(at);
        let moved = open.get(at).copied();
        if let Some(Some(moved)) = moved.map(|number| self.slabs[number as usize].as_mut()) {
            moved.at = at as u32;
        }
        Some(part)
    }
}
