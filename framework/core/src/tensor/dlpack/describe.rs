//! Reads the struct of another library's DLPack tensor. Every field is checked before any is used (WIRE-1, as
//! far as a check can go: only the maker's word says that the memory is there).

use super::abi::{self, Array};
use crate::limits::MAX_RANK;
use crate::tensor::{DType, Layout, TensorError};

/// Where the memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemoryDevice {
    Host,
    /// The GPU with this ordinal in this process.
    Cuda(i32),
}

/// A tensor of somebody else's.
#[derive(Debug, PartialEq)]
pub(super) struct Described {
    pub(super) place: MemoryDevice,
    pub(super) dtype: DType,
    /// From `address` on.
    pub(super) layout: Layout,
    /// The address of the first byte that it touches; 0 where it touches none.
    pub(super) address: u64,
    /// Bytes from there to the end of the last element.
    pub(super) bytes: u64,
}

fn refused(why: String) -> TensorError {
    TensorError::DlPack { why }
}

/// Reads and checks the struct.
///
/// # Safety
/// `shape` and, where it is not null, `strides` point to `ndim` numbers, as far as that is positive.
///
/// # Errors
/// Each names the obstacle and the remedy.
pub(super) unsafe fn describe(array: &Array) -> Result<Described, TensorError> {
    let dtype = dtype(array.dtype)?;
    let place = place(array.device)?;
    let rank = usize::try_from(array.ndim)
        .map_err(|_| refused(format!("it has {} axes; make its ndim 0 or more", array.ndim)))?;
    if rank > MAX_RANK {
        return Err(refused(format!(
            "it has {rank} axes, and a tensor has at most {MAX_RANK}; reshape it first"
        )));
    }
    if rank > 0 && array.shape.is_null() {
        return Err(refused(format!("it has {rank} axes, and its shape is null")));
    }
    // SAFETY: the caller's promise, for at most `MAX_RANK` numbers.
    let shape = unsafe { numbers(array.shape, rank) };
    let shape: Vec<usize> = shape
        .iter()
        .enumerate()
        .map(|(axis, extent)| {
            usize::try_from(*extent)
                .map_err(|_| refused(format!("axis {axis} of its shape has {extent} elements")))
        })
        .collect::<Result<_, _>>()?;
    let layout = if array.strides.is_null() {
        Layout::contiguous(&shape)?
    } else {
        // SAFETY: as for the shape.
        let strides = unsafe { numbers(array.strides, rank) };
        let empty = shape.contains(&0);
        let stride = |(axis, stride): (usize, &i64)| {
            // The stride of an axis of one element, and any stride of an empty tensor, places nothing and may
            // be any number.
            if empty || shape[axis] == 1 {
                return Ok(0);
            }
            isize::try_from(*stride).ok().filter(|stride| *stride >= 0).ok_or_else(|| {
                refused(format!(
                    "the stride of axis {axis} is {stride}, and a tensor's strides are not negative; make it contiguous first"
                ))
            })
        };
        let strides: Vec<isize> = strides.iter().enumerate().map(stride).collect::<Result<_, _>>()?;
        Layout::from_parts(&shape, &strides, 0)?
    };
    let bytes = layout.bytes_span(dtype)?.end as u64;
    if layout.is_empty() {
        return Ok(Described { place, dtype, layout, address: 0, bytes: 0 });
    }
    if array.data.is_null() {
        return Err(refused(format!("its data is null, and its shape {shape:?} has elements")));
    }
    let start = array.data.expose_provenance() as u64;
    let address = start.checked_add(array.byte_offset).filter(|at| at.checked_add(bytes).is_some());
    let address = address.ok_or_else(|| {
        refused(format!(
            "its {bytes} bytes from {start:#x} on, {} further, leave the address space",
            array.byte_offset
        ))
    })?;
    if !address.is_multiple_of(dtype.size() as u64) {
        return Err(refused(format!(
            "its first element is at {address:#x}, which is no multiple of the {} bytes of {dtype}; copy it first",
            dtype.size()
        )));
    }
    Ok(Described { place, dtype, layout, address, bytes })
}

/// # Safety
/// `first` points to `count` numbers, or `count` is 0.
unsafe fn numbers<'a>(first: *const i64, count: usize) -> &'a [i64] {
    if count == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(first, count) }
}

fn dtype(dtype: abi::DataType) -> Result<DType, TensorError> {
    let abi::DataType { code, bits, lanes } = dtype;
    // Two to a byte, as PyTorch has them.
    if (code, bits, lanes) == (abi::FLOAT4_E2M1FN, 4, 2) {
        return Ok(DType::F4E2M1X2);
    }
    if lanes != 1 {
        return Err(refused(format!(
            "its elements have {lanes} lanes, and those of a tensor have one; give it an axis of {lanes} instead"
        )));
    }
    let known = match (code, bits) {
        (abi::BOOL, 8) => Some(DType::Bool),
        (abi::UINT, 8) => Some(DType::U8),
        (abi::UINT, 16) => Some(DType::U16),
        (abi::UINT, 32) => Some(DType::U32),
        (abi::UINT, 64) => Some(DType::U64),
        (abi::INT, 8) => Some(DType::I8),
        (abi::INT, 16) => Some(DType::I16),
        (abi::INT, 32) => Some(DType::I32),
        (abi::INT, 64) => Some(DType::I64),
        (abi::FLOAT, 16) => Some(DType::F16),
        (abi::BFLOAT, 16) => Some(DType::BF16),
        (abi::FLOAT, 32) => Some(DType::F32),
        (abi::FLOAT, 64) => Some(DType::F64),
        (abi::FLOAT8_E4M3FN, 8) => Some(DType::F8E4M3),
        (abi::FLOAT8_E5M2, 8) => Some(DType::F8E5M2),
        (abi::FLOAT8_E4M3FNUZ, 8) => Some(DType::F8E4M3Fnuz),
        (abi::FLOAT8_E5M2FNUZ, 8) => Some(DType::F8E5M2Fnuz),
        (abi::FLOAT8_E8M0FNU, 8) => Some(DType::F8E8M0),
        (abi::COMPLEX, 64) => Some(DType::Complex64),
        (abi::COMPLEX, 128) => Some(DType::Complex128),
        _ => None,
    };
    known.ok_or_else(|| {
        let kind = match code {
            abi::INT => "int".to_owned(),
            abi::UINT => "uint".to_owned(),
            abi::FLOAT => "float".to_owned(),
            abi::BFLOAT => "bfloat".to_owned(),
            abi::COMPLEX => "complex".to_owned(),
            abi::BOOL => "bool".to_owned(),
            other => format!("type {other} of "),
        };
        let names = DType::ALL.map(DType::name).join(", ");
        refused(format!("its dtype is {kind}{bits}, and a tensor has one of {names}; convert it first"))
    })
}

/// Returns the DLPack type for a dtype of this crate.
pub(super) fn data_type(dtype: DType) -> abi::DataType {
    let code = match dtype {
        DType::Bool => abi::BOOL,
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => abi::UINT,
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => abi::INT,
        DType::F16 | DType::F32 | DType::F64 => abi::FLOAT,
        DType::BF16 => abi::BFLOAT,
        DType::F8E4M3 => abi::FLOAT8_E4M3FN,
        DType::F8E5M2 => abi::FLOAT8_E5M2,
        DType::F8E4M3Fnuz => abi::FLOAT8_E4M3FNUZ,
        DType::F8E5M2Fnuz => abi::FLOAT8_E5M2FNUZ,
        DType::F8E8M0 => abi::FLOAT8_E8M0FNU,
        DType::F4E2M1X2 => return abi::DataType { code: abi::FLOAT4_E2M1FN, bits: 4, lanes: 2 },
        DType::Complex64 | DType::Complex128 => abi::COMPLEX,
    };
    // Lossless: 128 at most.
    abi::DataType { code, bits: dtype.size() as u8 * 8, lanes: 1 }
}

fn place(device: abi::Device) -> Result<MemoryDevice, TensorError> {
    match device.kind {
        abi::CPU | abi::CUDA_HOST => Ok(MemoryDevice::Host),
        abi::CUDA => Ok(MemoryDevice::Cuda(device.id)),
        other => Err(refused(format!(
            "it is on a device of DLPack's type {other}, and tensors are on the CPU (1, 3) or a CUDA GPU (2); copy it there first"
        ))),
    }
}
