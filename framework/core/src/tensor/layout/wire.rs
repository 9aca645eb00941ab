//! The form in which a layout and its element type travel in a frame's tensor table.
//!
//! | bytes | holds |
//! |---|---|
//! | 0 | code of the element type |
//! | 1 | rank |
//! | 2..8 | zero |
//! | 8..16 | offset, `u64` |
//! | 16..80 | extents, one `u64` per axis, zero past the rank |
//! | 80..144 | strides, one `i64` per axis, zero past the rank |
//!
//! Numbers are little-endian, offset and strides in elements. Each layout has exactly one form: accepted
//! bytes encode to the same bytes again.

use super::dims::Dims;
use super::{Layout, LayoutError};
use crate::limits::MAX_RANK;
use crate::tensor::dtype::DType;

/// Bytes of a number in the form.
const WORD: usize = size_of::<u64>();
/// Position of the first extent, in words.
const SHAPE: usize = 2;
/// Position of the first stride, in words.
const STRIDES: usize = SHAPE + MAX_RANK;

/// Bytes of a layout with its element type on the wire, whatever its rank.
pub const WIRE_BYTES: usize = (STRIDES + MAX_RANK) * WORD;

impl Layout {
    /// This layout, of elements of type `dtype`, as it travels.
    #[expect(clippy::wrong_self_convention, reason = "a layout is several cache lines long")]
    pub(crate) fn to_wire(&self, dtype: DType) -> [u8; WIRE_BYTES] {
        let mut bytes = [0; WIRE_BYTES];
        let (words, _) = bytes.as_chunks_mut::<WORD>();
        words[0][0] = dtype.code();
        words[0][1] = self.rank() as u8;
        words[1] = (self.offset as u64).to_le_bytes();
        for (word, &extent) in words[SHAPE..].iter_mut().zip(self.shape.iter()) {
            *word = (extent as u64).to_le_bytes();
        }
        for (word, &stride) in words[STRIDES..].iter_mut().zip(self.strides.iter()) {
            *word = (stride as i64).to_le_bytes();
        }
        bytes
    }

    /// Reads what [`to_wire`](Self::to_wire) wrote, believing none of it (WIRE-1).
    ///
    /// Accepted geometry is sound in itself: its elements, their bytes and the bytes of a packed copy are all
    /// representable. [`fits`](Self::fits) says whether it lies inside the memory that it came with, and
    /// [`packed_bytes`](Self::packed_bytes) whether a copy of it is affordable.
    ///
    /// # Errors
    /// The `Wire…` variants of [`LayoutError`] for a form that no version writes, those of
    /// [`from_parts`](Self::from_parts), and [`LayoutError::TooManyBytes`].
    pub(crate) fn from_wire(bytes: &[u8]) -> Result<(DType, Self), LayoutError> {
        let Ok(form) = <&[u8; WIRE_BYTES]>::try_from(bytes) else {
            return Err(LayoutError::WireLength { bytes: bytes.len() });
        };
        let (words, _) = form.as_chunks::<WORD>();
        let [code, rank, ..] = words[0];
        let dtype = DType::from_code(code).ok_or(LayoutError::WireDType { code })?;
        let rank = usize::from(rank);
        if rank > MAX_RANK {
            return Err(LayoutError::TooManyAxes { rank });
        }
        // A word at a time: most of the form is unused, and this is done for each tensor that comes.
        let any = |words: &[[u8; WORD]]| words.iter().fold(0, |any, word| any | u64::from_le_bytes(*word));
        let padding = u64::from_le_bytes(words[0]) >> 16;
        if padding | any(&words[SHAPE + rank..STRIDES]) | any(&words[STRIDES + rank..]) != 0 {
            return Err(LayoutError::WirePadding { at: first_padding(form, rank) });
        }
        let too_large = |word: usize| LayoutError::WireNumber { at: word * WORD };
        let unsigned =
            |word: usize| usize::try_from(u64::from_le_bytes(words[word])).map_err(|_| too_large(word));
        let signed =
            |word: usize| isize::try_from(i64::from_le_bytes(words[word])).map_err(|_| too_large(word));
        let mut layout = Self { shape: Dims::defaults(rank), strides: Dims::defaults(rank), offset: 0 };
        for axis in 0..rank {
            layout.shape[axis] = unsigned(SHAPE + axis)?;
            layout.strides[axis] = signed(STRIDES + axis)?;
        }
        layout.offset = unsigned(1)?;
        layout.check()?;
        layout.packed_bytes(dtype)?;
        layout.bytes_span(dtype)?;
        Ok((dtype, layout))
    }
}

/// Returns the position of the first nonzero byte where a form of this rank has to be zero; 0 where there is
/// none.
#[cold]
fn first_padding(form: &[u8; WIRE_BYTES], rank: usize) -> usize {
    let unused = [2..WORD, (SHAPE + rank) * WORD..STRIDES * WORD, (STRIDES + rank) * WORD..WIRE_BYTES];
    unused.into_iter().flatten().find(|&at| form[at] != 0).unwrap_or_default()
}
