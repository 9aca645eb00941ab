//! Statistics of tensors, as a tensor of words that can be sent before it is computed.

use tensorpost::prelude::*;

use super::{OpError, expect_shape, is_cuda};
use crate::image::stats::Stats;

/// Blocks that a GPU measures with, each of which has five words in the summary.
pub(super) const BLOCKS: usize = 256;

/// Elements of a summary: the seven words of [`Stats::to_words`], and scratch for a GPU.
pub const SUMMARY_WORDS: usize = 7 + BLOCKS * 5;

/// Returns the statistics of packed floats of any shape, as [`Stats::of`] computes them: a new tensor of
/// seven words, for [`read_stats`]. It is a view of [`SUMMARY_WORDS`] words.
///
/// # Errors
/// [`OpError`] says what is wrong with the tensor or the device; no memory.
pub fn stats(stream: &DeviceStream, values: &Tensor) -> Result<Tensor, OpError> {
    let mut summary = stream.empty(DType::U64, &[SUMMARY_WORDS])?;
    stats_into(stream, values, &mut summary)?;
    Ok(summary.freeze().slice(0, ..7)?)
}

/// Computes [`stats`] into a tensor of `u64`, `[SUMMARY_WORDS]`; the words behind the first seven are
/// scratch.
///
/// # Errors
/// As [`stats`], no memory excepted.
pub fn stats_into(stream: &DeviceStream, values: &Tensor, summary: &mut TensorMut) -> Result<(), OpError> {
    expect_shape("the tensor for statistics", summary.shape(), &[SUMMARY_WORDS])?;
    if is_cuda(stream)? {
        #[cfg(feature = "cuda")]
        return super::cuda::stats::launch(stream, values, summary);
    }
    stream.run((values.of::<f32>(), summary.of_mut::<u64>()), |(values, summary)| {
        summary[..7].copy_from_slice(&Stats::of(values).to_words());
    })?;
    Ok(())
}

/// Returns the statistics in a tensor that [`stats`] or [`stats_into`] filled. Blocks until they are there.
///
/// # Errors
/// A tensor of another dtype, device or fewer than seven elements; data that will never be there.
pub fn read_stats(stream: &DeviceStream, summary: &Tensor) -> Result<Stats, OpError> {
    let words = stream.download::<u64>(&summary.slice(0, ..7)?)?;
    match <[u64; 7]>::try_from(words) {
        Ok(words) => Ok(Stats::from_words(words)),
        Err(words) => Err(super::wrong("the statistics", &[words.len()], "[7]")),
    }
}
