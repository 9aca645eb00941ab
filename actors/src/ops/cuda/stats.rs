//! Launches of `stats.cu`.

#![expect(unsafe_code, reason = "a kernel launch is a call into code that Rust cannot check")]

use cudarc::driver::{LaunchConfig, PushKernelArg};
use tensorpost::prelude::*;

use super::{Source, THREADS, kernel, refused};
use crate::ops::OpError;
use crate::ops::stats::BLOCKS;

pub(super) const SOURCE: Source = Source {
    name: "stats.cu",
    text: include_str!("stats.cu"),
    kernels: &["stats_parts", "stats_join", "stats_squares", "stats_deviation"],
};

/// Launches the kernels. The caller has checked that the summary has seven words, and five for each of
/// [`BLOCKS`].
pub(in crate::ops) fn launch(
    stream: &DeviceStream,
    values: &Tensor,
    summary: &mut TensorMut,
) -> Result<(), OpError> {
    let n = values.len() as u64;
    let blocks = values.len().div_ceil(THREADS as usize).clamp(1, BLOCKS) as u32;
    let (values, mut words) = (stream.view::<f32>(values)?, stream.view_mut::<u64>(summary)?);
    let config = |blocks| LaunchConfig {
        grid_dim: (blocks, 1, 1),
        block_dim: (THREADS, 1, 1), // as many as the source says
        shared_mem_bytes: 0,
    };
    // SAFETY (of each launch): the kernel has these parameters; it reads below `n`, the number of elements,
    // and the words of its blocks, and writes those and the first seven. The stream runs the launches one
    // after the other.
    let parts = kernel(stream, &SOURCE, "stats_parts")?;
    let mut args = stream.launch_builder(&parts)?;
    args.arg(&values).arg(&n).arg(&mut words);
    // SAFETY: as above.
    unsafe { args.launch(config(blocks)) }.map_err(refused("stats_parts", "launched"))?;

    let join = kernel(stream, &SOURCE, "stats_join")?;
    let mut args = stream.launch_builder(&join)?;
    args.arg(&n).arg(&mut words).arg(&blocks);
    // SAFETY: as above.
    unsafe { args.launch(config(1)) }.map_err(refused("stats_join", "launched"))?;

    let squares = kernel(stream, &SOURCE, "stats_squares")?;
    let mut args = stream.launch_builder(&squares)?;
    args.arg(&values).arg(&n).arg(&mut words);
    // SAFETY: as above.
    unsafe { args.launch(config(blocks)) }.map_err(refused("stats_squares", "launched"))?;

    let deviation = kernel(stream, &SOURCE, "stats_deviation")?;
    let mut args = stream.launch_builder(&deviation)?;
    args.arg(&mut words).arg(&blocks);
    // SAFETY: as above.
    unsafe { args.launch(config(1)) }.map_err(refused("stats_deviation", "launched"))?;
    Ok(())
}
