//! Launches of `quantise.cu`.

#![expect(unsafe_code, reason = "a kernel launch is a call into code that Rust cannot check")]

use cudarc::driver::PushKernelArg;
use tensorpost::prelude::*;

use super::{Source, kernel, line, refused};
use crate::ops::OpError;

pub(super) const SOURCE: Source =
    Source { name: "quantise.cu", text: include_str!("quantise.cu"), kernels: &["to_gray8"] };

/// Launches the kernel. The caller has checked that the tensors have the same shape.
pub(in crate::ops) fn launch(
    stream: &DeviceStream,
    values: &Tensor,
    gain: f32,
    gray: &mut TensorMut,
) -> Result<(), OpError> {
    let to_gray8 = kernel(stream, &SOURCE, "to_gray8")?;
    let n = values.len();
    let (values, mut gray) = (stream.view::<f32>(values)?, stream.view_mut::<u8>(gray)?);
    let mut args = stream.launch_builder(&to_gray8)?;
    args.arg(&values).arg(&gain).arg(&mut gray).arg(&n);
    // SAFETY: the kernel has these parameters, and stays below `n`, the number of elements of both tensors.
    unsafe { args.launch(line(n)) }.map_err(refused("to_gray8", "launched"))?;
    Ok(())
}
