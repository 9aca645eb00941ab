//! Taking a tensor apart.

use std::error::Error;
use std::ops::Range;

use super::seal::{seal, tokens};
use super::{Claim, TensorError, TensorMut, TensorPart, cut, form_of};
use crate::device::DeviceError;
use crate::lease::writers::{Area, Clash, Piece};
use crate::limits::MAX_PARTS;
use crate::tensor::LayoutError;

/// The reason why a tensor was not split, and the tensor, unchanged.
#[derive(Debug, thiserror::Error)]
#[error("the tensor of shape {:?} was not split: {why}", .tensor.shape())]
#[non_exhaustive]
pub struct SplitError {
    /// The tensor; in a box, because errors are passed along by value.
    pub tensor: Box<TensorMut>,
    /// The reason.
    pub why: SplitReason,
}

/// Why a tensor cannot be split.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SplitReason {
    /// The parts do not make up the axis.
    #[error("the parts have {sum} elements along axis {axis}, which has {extent}")]
    Sum {
        /// The axis.
        axis: usize,
        /// Elements that it has.
        extent: usize,
        /// Elements of all parts together.
        sum: usize,
    },
    /// A part would have no element.
    #[error("part {part} along axis {axis} has no element; leave it out")]
    Empty {
        /// The axis.
        axis: usize,
        /// The part's number, in the order of the axis.
        part: usize,
    },
    /// One extent per axis is needed.
    #[error("a tile has one extent per axis: {rank} of them, and {given} were given")]
    Rank {
        /// Axes of the tensor.
        rank: usize,
        /// The number of extents that were given.
        given: usize,
    },
    /// More parts than allowed.
    #[error("it would have {parts} parts, and may have {MAX_PARTS}; make them larger")]
    TooMany {
        /// The number of parts.
        parts: usize,
    },
    /// There is no such axis, or it has fewer elements than the parts asked for.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The memory is written as parts already: a peer sent this process memory that was not its own.
    #[error(transparent)]
    Clash(Box<dyn Error + Send + Sync>),
    /// The memory cannot be mapped writable.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

impl From<Clash> for SplitReason {
    fn from(clash: Clash) -> Self {
        SplitReason::Clash(clash.into())
    }
}

impl TensorMut {
    /// Splits along `axis` into consecutive parts of `sizes` elements: `split(1, &[10, 20])` of a matrix of
    /// thirty columns is its first ten columns and the other twenty. No byte is copied; see [`TensorPart`].
    ///
    /// # Errors
    /// [`SplitError`] gives the tensor back: there is no such axis, the sizes do not add up to it, one is
    /// zero, or there are more than [`MAX_PARTS`].
    pub fn split(self, axis: usize, sizes: &[usize]) -> Result<Vec<TensorPart>, SplitError> {
        let cuts = self.layout().slice(axis, ..).map_err(SplitReason::from).and_then(|_| {
            let mut cuts = whole_axes(&self);
            cuts[axis] = consecutive(axis, self.shape()[axis], sizes)?;
            Ok(cuts)
        });
        self.split_along(cuts)
    }

    /// Splits along `axis` into `parts` parts of equal size; where the elements do not divide evenly, the
    /// first parts have one element more.
    ///
    /// # Errors
    /// As [`split`](Self::split), and more parts than elements.
    pub fn split_evenly(self, axis: usize, parts: usize) -> Result<Vec<TensorPart>, SplitError> {
        let cuts = self.layout().split(axis, parts).map_err(SplitReason::from).and_then(|parts| {
            let sizes: Vec<usize> = parts.map(|part| part.shape()[axis]).collect();
            let mut cuts = whole_axes(&self);
            cuts[axis] = consecutive(axis, self.shape()[axis], &sizes)?;
            Ok(cuts)
        });
        self.split_along(cuts)
    }

    /// Splits into tiles of `tile` elements along each axis, in row-major order. Where an axis does not
    /// divide evenly, its last tiles are smaller.
    ///
    /// # Errors
    /// As [`split`](Self::split), and a tile of another rank.
    pub fn split_tiles(self, tile: &[usize]) -> Result<Vec<TensorPart>, SplitError> {
        let shape = self.shape().to_vec();
        let cuts = if tile.len() == shape.len() {
            shape
                .iter()
                .zip(tile)
                .enumerate()
                .map(|(axis, (extent, tile))| tiles(axis, *extent, *tile))
                .collect()
        } else {
            Err(SplitReason::Rank { rank: shape.len(), given: tile.len() })
        };
        self.split_along(cuts)
    }

    fn split_along(
        self,
        cuts: Result<Vec<Vec<Range<usize>>>, SplitReason>,
    ) -> Result<Vec<TensorPart>, SplitError> {
        match cuts.and_then(|cuts| self.parts(&cuts)) {
            // Each part is a handle by now, so dropping this handle releases no lease.
            Ok(parts) => Ok(parts),
            Err(why) => Err(SplitError { tensor: Box::new(self), why }),
        }
    }

    /// Returns the parts of a grid; the caller drops the tensor.
    fn parts(&self, cuts: &[Vec<Range<usize>>]) -> Result<Vec<TensorPart>, SplitReason> {
        if let Some(axis) = self.shape().iter().position(|extent| *extent == 0) {
            return Err(SplitReason::Empty { axis, part: 0 });
        }
        let count = cuts.iter().try_fold(1, |product: usize, axis| product.checked_mul(axis.len()));
        let count = count
            .filter(|count| *count <= MAX_PARTS)
            .ok_or(SplitReason::TooMany { parts: count.unwrap_or(usize::MAX) })?;
        let (lease, whole) = (self.lease(), *self.layout());
        let (address, _) = lease.writable().map_err(TensorError::from)?;
        let areas: Vec<Area> = (0..count).filter_map(|index| area(cuts, index)).collect();
        let layouts: Vec<_> = areas.iter().filter_map(|area| cut(&whole, area)).collect();
        let tokens: Vec<u64> = tokens(count).collect();
        let places = areas.iter().zip(tokens.iter().copied());
        let seal = seal(lease.id(), self.dtype(), &whole, places);
        let pieces: Vec<Piece> = (0..).zip(areas).map(|(index, area)| Piece { seal, index, area }).collect();
        // Each part has a writer of its own, which has to come after all earlier work on the whole.
        let ready = self.last_use().map_err(|_unordered| {
            let what = "to wait for what other streams do with the tensor".to_owned();
            TensorError::Device(DeviceError::Refused { what })
        })?;
        let form = form_of(lease, self.dtype(), &whole);
        lease.writers().enter(lease.id(), &form, pieces.iter().cloned())?;
        lease.set_in_parts();
        let parts = pieces.into_iter().zip(layouts).zip(tokens).map(|((piece, layout), token)| {
            let claim = Claim { piece, count: count as u32, token };
            TensorPart::entered(lease.clone(), address, self.dtype(), whole, layout, claim, ready)
        });
        Ok(parts.collect())
    }
}

/// Returns every axis in one piece.
fn whole_axes(tensor: &TensorMut) -> Vec<Vec<Range<usize>>> {
    tensor.shape().iter().map(|extent| std::iter::once(0..*extent).collect()).collect()
}

fn consecutive(axis: usize, extent: usize, sizes: &[usize]) -> Result<Vec<Range<usize>>, SplitReason> {
    if let Some(part) = sizes.iter().position(|size| *size == 0) {
        return Err(SplitReason::Empty { axis, part });
    }
    let sum = sizes.iter().fold(0_usize, |sum, size| sum.saturating_add(*size));
    if sum != extent || extent == 0 {
        return Err(SplitReason::Sum { axis, extent, sum });
    }
    let mut end = 0;
    let range = |size: &usize| {
        let start = end;
        end += size;
        start..end
    };
    Ok(sizes.iter().map(range).collect())
}

fn tiles(axis: usize, extent: usize, tile: usize) -> Result<Vec<Range<usize>>, SplitReason> {
    if tile == 0 || extent == 0 {
        return Err(SplitReason::Empty { axis, part: 0 });
    }
    let parts = extent.div_ceil(tile);
    if parts > MAX_PARTS {
        return Err(SplitReason::TooMany { parts });
    }
    Ok((0..parts).map(|part| part * tile..((part + 1).saturating_mul(tile)).min(extent)).collect())
}

/// Returns the box at `index` of the grid, in row-major order.
fn area(cuts: &[Vec<Range<usize>>], mut index: usize) -> Option<Area> {
    let mut ranges = Vec::with_capacity(cuts.len());
    for axis in cuts.iter().rev() {
        ranges.push(axis.get(index % axis.len())?.clone());
        index /= axis.len();
    }
    Area::new(ranges.into_iter().rev())
}
