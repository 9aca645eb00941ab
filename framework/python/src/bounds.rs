//! Checks whether a tensor of another library lies in the memory that its library has for it.
//!
//! A shape is only a claim of a library. PyTorch frees the storage of a tensor and leaves its shape
//! (`untyped_storage().resize_`), and numpy makes views past the end of an array (`as_strided`): reading such
//! a tensor ends the process, or sends memory that belongs to other objects. So this module asks the library
//! for the extent of the memory before a tensor is taken. A library that tells nothing about its memory is
//! believed.

#![expect(unsafe_code, reason = "the axes are C's")]

use std::ops::Range;

use pyo3::buffer::PyUntypedBuffer;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

use crate::capsule::Array;
use crate::torch::Torch;

/// The most objects in a chain in which each keeps the next one's memory: views of views, and the objects
/// that they were made of.
const MOST_BASES: usize = 64;

/// Returns the addresses from the first element to the last; `None` without elements. An extent past the end
/// of the address space ends at the last address.
///
/// # Safety
/// A library has just described the array, with its axes.
unsafe fn extent(array: &Array) -> Option<Range<u64>> {
    let rank = usize::try_from(array.ndim).ok()?;
    let axis = |first: *const i64, axis: usize| {
        // SAFETY: the array has as many entries as axes, as the caller promises.
        unsafe { first.add(axis).read() }
    };
    let bytes = i128::from(array.bits) * i128::from(array.lanes) / 8;
    let start = i128::from(array.data as u64) + i128::from(array.byte_offset);
    let (mut low, mut high, mut dense) = (start, start + bytes, 1_i128);
    for at in (0..rank).rev() {
        let count = i128::from(axis(array.shape, at));
        if count <= 0 {
            return None;
        }
        let stride = if array.strides.is_null() { dense } else { i128::from(axis(array.strides, at)) };
        let reach = (count - 1).saturating_mul(stride).saturating_mul(bytes);
        if reach < 0 {
            low = low.saturating_add(reach);
        } else {
            high = high.saturating_add(reach);
        }
        dense = dense.saturating_mul(count);
    }
    let address = |number: i128| u64::try_from(number.max(0)).unwrap_or(u64::MAX);
    Some(address(low)..address(high))
}

/// Says why a tensor does not lie in the memory that its library has for it; `None` if it does.
///
/// # Safety
/// As [`extent`].
pub(crate) unsafe fn leaves(source: &Bound<'_, PyAny>, is_torch: bool, array: &Array) -> Option<String> {
    let there = if is_torch { storage_of(source) } else { memory_of(source) }?;
    // SAFETY: the caller's promise.
    let wanted = unsafe { extent(array) }.filter(|it| it.start < there.start || there.end < it.end)?;
    Some(format!(
        "has {} bytes of memory, and its shape and strides reach over {}: its storage was freed or made smaller, or it is a view \
         past its end; make it anew, or copy what is there",
        there.end - there.start,
        wanted.end - wanted.start
    ))
}

/// Returns numpy's class of arrays, if this process has imported numpy.
pub(crate) fn numpy(py: Python<'_>) -> Option<&Bound<'_, PyType>> {
    static ARRAY: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    if let Some(array) = ARRAY.get(py) {
        return Some(array.bind(py));
    }
    let modules = py.import("sys").and_then(|sys| sys.getattr("modules")).ok()?;
    // While numpy is being imported, it may have no class yet.
    let array = modules.get_item("numpy").ok()?.getattr("ndarray").ok()?.cast_into::<PyType>().ok()?;
    Some(ARRAY.get_or_init(py, || array.unbind()).bind(py))
}

/// Returns the memory that an object's library has for it, if the library tells it and it is not the object's
/// own.
fn memory_of(source: &Bound<'_, PyAny>) -> Option<Range<u64>> {
    let py = source.py();
    let Some(array) = numpy(py).filter(|array| source.is_instance(array).unwrap_or(false)) else {
        return pool_of(source);
    };
    let mut at = source.clone();
    for _ in 0..MOST_BASES {
        match at.getattr(intern!(py, "base")) {
            Ok(base) if !base.is_none() => at = base,
            _ if at.is(source) => return None,
            // The array that owns the memory, and fills it densely.
            _ if at.is_instance(array).unwrap_or(false) => {
                let start = at
                    .getattr("__array_interface__")
                    .and_then(|of| of.get_item("data")?.get_item(0)?.extract());
                let bytes = at.getattr("nbytes").and_then(|bytes| bytes.extract());
                return Some(from(start.ok()?, bytes.ok()?));
            }
            _ => return buffer_of(&at),
        }
        if let Ok(Some(torch)) = Torch::if_there(py)
            && torch.is_tensor(&at).unwrap_or(false)
        {
            return storage_of(&at);
        }
    }
    None
}

fn from(start: u64, bytes: u64) -> Range<u64> {
    start..start.saturating_add(bytes)
}

/// Returns the storage of a PyTorch tensor.
fn storage_of(tensor: &Bound<'_, PyAny>) -> Option<Range<u64>> {
    let storage = tensor.call_method0(intern!(tensor.py(), "untyped_storage")).ok()?;
    let number = |name| storage.call_method0(name).and_then(|number| number.extract::<u64>()).ok();
    Some(from(number(intern!(tensor.py(), "data_ptr"))?, number(intern!(tensor.py(), "nbytes"))?))
}

/// Returns the memory of a CuPy array.
fn pool_of(array: &Bound<'_, PyAny>) -> Option<Range<u64>> {
    let memory = array.getattr("data").and_then(|data| data.getattr("mem")).ok()?;
    let number = |name| memory.getattr(name).and_then(|number| number.extract::<u64>()).ok();
    Some(from(number("ptr")?, number("size")?))
}

/// Returns the memory of the buffer over which a numpy array was made.
fn buffer_of(owner: &Bound<'_, PyAny>) -> Option<Range<u64>> {
    let buffer = PyUntypedBuffer::get(owner).ok()?;
    Some(from(buffer.buf_ptr() as u64, buffer.len_bytes() as u64))
}
