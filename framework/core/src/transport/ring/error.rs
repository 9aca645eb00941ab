//! Errors of rings, and what to do about them.

use std::fmt;

use thiserror::Error;

/// One of a ring's two cursors, for errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cursor {
    /// The producer's: the position up to which it has published.
    Tail,
    /// The consumer's: the position up to which it has consumed.
    Head,
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Cursor::Tail => "tail",
            Cursor::Head => "head",
        })
    }
}

/// The peer wrote data that no sound peer writes (WIRE-1). Nothing after it can be believed: give the ring up
/// and treat the peer as broken. Positions and lengths are in bytes, or in entries for a return ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RingCorrupt {
    /// A cursor moved back.
    #[error("the peer's ring {cursor} went back from {from} to {to}; give up this peer")]
    Backwards {
        /// The cursor.
        cursor: Cursor,
        /// Its last value.
        from: u64,
        /// Its value now.
        to: u64,
    },
    /// A cursor is further than it can be.
    #[error("the peer's ring {cursor} is at {at}, beyond {limit}; give up this peer")]
    Beyond {
        /// The cursor.
        cursor: Cursor,
        /// Its value.
        at: u64,
        /// The furthest it can be.
        limit: u64,
    },
    /// A cursor is inside a record.
    #[error("the peer's ring {cursor} is at {at}, not a multiple of 8; give up this peer")]
    Misaligned {
        /// The cursor.
        cursor: Cursor,
        /// Its value.
        at: u64,
    },
    /// A header says that it is neither a record nor a pad.
    #[error("the ring record at {at} has the unknown marker {marker:#010x}; give up this peer")]
    Marker {
        /// Position of the header.
        at: u64,
        /// The marker in it.
        marker: u32,
    },
    /// The ring continues in other memory, which its reader should have. If the reader has none, the peer has
    /// not offered it before.
    #[error("the ring goes on in other memory from {at} on, which the peer has not sent; give up this peer")]
    Moved {
        /// Position of the header.
        at: u64,
    },
    /// A record is longer than any may be, or than the rest of the ring or of the published bytes.
    #[error("the ring record at {at} says {length} bytes where at most {limit} can be; give up this peer")]
    Length {
        /// Position of the header.
        at: u64,
        /// The length in it.
        length: u32,
        /// The largest possible value there.
        limit: u64,
    },
    /// A pad that does not lead from inside the ring to its end, with a record behind it.
    #[error("the ring pad at {at} of {length} bytes does not lead to a record; give up this peer")]
    Pad {
        /// Position of the header.
        at: u64,
        /// The length in it.
        length: u32,
    },
}

/// Why the producer could not get room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RingError {
    /// The consumer has not made room yet.
    #[error("the ring is full; publish what is in it and try again once the peer has consumed some")]
    Full,
    /// It will never fit.
    #[error("a record of {len} bytes cannot be in this ring, at most {max} can; send it as a lease")]
    TooLarge {
        /// The requested length, in bytes.
        len: usize,
        /// The most, in bytes.
        max: usize,
    },
    /// The peer's cursor is wrong.
    #[error(transparent)]
    Corrupt(#[from] RingCorrupt),
}

/// The error for memory in which no ring can be laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a ring needs a power of two of at least {min} bytes and at most {max}, not {len}")]
pub struct BadCapacity {
    /// The given length, in bytes.
    pub len: usize,
    /// The least, in bytes.
    pub min: usize,
    /// The most, in bytes.
    pub max: usize,
}

impl BadCapacity {
    /// Positions fit a record's `u32` length many times over.
    const MAX: usize = 1 << 30;

    pub(super) fn check(len: usize, min: usize) -> Result<(), Self> {
        if len.is_power_of_two() && (min..=Self::MAX).contains(&len) {
            return Ok(());
        }
        Err(BadCapacity { len, min, max: Self::MAX })
    }
}
