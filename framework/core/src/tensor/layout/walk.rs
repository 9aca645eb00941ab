//! Walking the elements in row-major order, for copies on the host.

use std::iter::FusedIterator;
use std::ops::Range;

use super::Layout;
use crate::limits::MAX_RANK;

impl Layout {
    /// Returns the offset of every element, in row-major order of the indices.
    pub fn offsets(&self) -> impl ExactSizeIterator<Item = usize> + FusedIterator + Clone + use<> {
        // Fewer axes mean fewer carries; the order stays the same.
        Offsets::new(self.coalesced())
    }

    /// Returns the elements in row-major order as ranges of offsets, all of one length: the longest for which
    /// the inner axes are packed.
    ///
    /// A contiguous layout is one run; one whose innermost axis is strided has a run for each element.
    pub(crate) fn contiguous_runs(&self) -> ContiguousRuns {
        let mut outer = self.coalesced();
        let mut run = 1;
        if let (Some(&1), Some(inner)) = (outer.strides.last(), outer.rank().checked_sub(1))
            && !outer.is_empty()
        {
            run = outer.shape[inner];
            outer.shape.remove(inner);
            outer.strides.remove(inner);
        }
        ContiguousRuns { starts: Offsets::new(outer), run }
    }
}

/// The offsets of a layout's elements; from [`Layout::offsets`].
#[derive(Clone, Debug)]
struct Offsets {
    layout: Layout,
    /// Index of the next element along each axis.
    index: [usize; MAX_RANK],
    /// Offset of the next element.
    next: usize,
    /// Elements that are still to come.
    left: usize,
}

impl Offsets {
    fn new(layout: Layout) -> Self {
        Offsets { layout, index: [0; MAX_RANK], next: layout.offset(), left: layout.len() }
    }
}

impl Iterator for Offsets {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        self.left = self.left.checked_sub(1)?;
        let offset = self.next;
        for (axis, (extent, stride)) in self.layout.axes().enumerate().rev() {
            if self.index[axis] + 1 < extent {
                self.index[axis] += 1;
                self.next += stride;
                break;
            }
            // The carry: go back to the start of this axis, by exactly what the steps along it have added.
            self.next -= self.index[axis] * stride;
            self.index[axis] = 0;
        }
        Some(offset)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Offsets {}
impl FusedIterator for Offsets {}

/// Packed runs of a layout's elements; from [`Layout::contiguous_runs`].
#[derive(Clone, Debug)]
pub(crate) struct ContiguousRuns {
    starts: Offsets,
    run: usize,
}

impl ContiguousRuns {
    /// Returns the number of elements of each run.
    #[cfg(test)]
    pub(crate) fn run_len(&self) -> usize {
        self.run
    }
}

impl Iterator for ContiguousRuns {
    type Item = Range<usize>;

    fn next(&mut self) -> Option<Range<usize>> {
        // LAYOUT-3 bounds the sum.
        self.starts.next().map(|start| start..start + self.run)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.starts.size_hint()
    }
}

impl ExactSizeIterator for ContiguousRuns {}
impl FusedIterator for ContiguousRuns {}
