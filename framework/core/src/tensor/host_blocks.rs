//! The elements of a host tensor in row-major order, a block at a time, whatever the strides.

use super::layout::ContiguousRuns;
use super::{Element, Tensor, TensorError};

/// Elements of a block. Computing block by block gives the same result for packed and for strided tensors.
pub(super) const BLOCK: usize = 1024;

/// Blocks of [`BLOCK`] elements; the last may be shorter. Long packed runs are lent in place; shorter runs
/// are copied together.
#[derive(Debug)]
pub(super) struct Blocks<'t, T> {
    /// From the first element that the layout touches, at the offset `first`, to the last.
    span: &'t [T],
    first: usize,
    runs: ContiguousRuns,
    /// The rest of the current run.
    run: &'t [T],
    copied: Vec<T>,
}

impl<'t, T: Element> Blocks<'t, T> {
    /// Blocks the thread until the data is there.
    pub(super) fn new(tensor: &'t Tensor) -> Result<Self, TensorError> {
        let span = tensor.span_slice::<T>()?;
        let (first, runs) = (tensor.layout().span().start, tensor.layout().contiguous_runs());
        Ok(Blocks { span, first, runs, run: &[], copied: Vec::new() })
    }

    /// `None` after the last.
    pub(super) fn next(&mut self) -> Option<&[T]> {
        self.copied.clear();
        while self.copied.len() < BLOCK {
            if self.run.is_empty() {
                let Some(run) = self.runs.next() else { break };
                self.run = &self.span[run.start - self.first..run.end - self.first];
            }
            let (now, later) = self.run.split_at(self.run.len().min(BLOCK - self.copied.len()));
            self.run = later;
            if now.len() == BLOCK {
                return Some(now);
            }
            self.copied.extend_from_slice(now);
        }
        (!self.copied.is_empty()).then_some(&self.copied)
    }
}
