//! The C structs of DLPack 1.x, as `dlpack.h` has them
//! (<https://github.com/dmlc/dlpack/blob/v1.1/include/dlpack/dlpack.h>). They are a few lines and do not
//! change within a major version; a crate for them would bring more code than that.

use std::ffi::c_void;

/// `DLPACK_MAJOR_VERSION`: structs of another one are laid out differently behind the deleter.
pub(super) const MAJOR: u32 = 1;
/// The lowest minor version that knows every flag used here.
pub(super) const MINOR: u32 = 1;

/// `DLPACK_FLAG_BITMASK_READ_ONLY`: nobody may write.
pub(super) const READ_ONLY: u64 = 1 << 0;
/// `DLPACK_FLAG_BITMASK_IS_COPIED`: solely owned by the consumer until it calls the deleter.
pub(super) const IS_COPIED: u64 = 1 << 1;

/// `kDLCPU`.
pub(super) const CPU: i32 = 1;
/// `kDLCUDA`.
pub(super) const CUDA: i32 = 2;
/// `kDLCUDAHost`: page-locked memory of the host.
pub(super) const CUDA_HOST: i32 = 3;

/// `kDLInt`.
pub(super) const INT: u8 = 0;
/// `kDLUInt`.
pub(super) const UINT: u8 = 1;
/// `kDLFloat`.
pub(super) const FLOAT: u8 = 2;
/// `kDLBfloat`.
pub(super) const BFLOAT: u8 = 4;
/// `kDLComplex`.
pub(super) const COMPLEX: u8 = 5;
/// `kDLBool`.
pub(super) const BOOL: u8 = 6;
/// `kDLFloat8_e4m3fn`.
pub(super) const FLOAT8_E4M3FN: u8 = 10;
/// `kDLFloat8_e4m3fnuz`.
pub(super) const FLOAT8_E4M3FNUZ: u8 = 11;
/// `kDLFloat8_e5m2`.
pub(super) const FLOAT8_E5M2: u8 = 12;
/// `kDLFloat8_e5m2fnuz`.
pub(super) const FLOAT8_E5M2FNUZ: u8 = 13;
/// `kDLFloat8_e8m0fnu`.
pub(super) const FLOAT8_E8M0FNU: u8 = 14;
/// `kDLFloat4_e2m1fn`.
pub(super) const FLOAT4_E2M1FN: u8 = 17;

/// `DLPackVersion`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Version {
    pub(super) major: u32,
    pub(super) minor: u32,
}

/// `DLDevice`. C compilers give the enum 32 bits.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Device {
    pub(super) kind: i32,
    pub(super) id: i32,
}

/// `DLDataType`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DataType {
    pub(super) code: u8,
    pub(super) bits: u8,
    pub(super) lanes: u16,
}

/// `DLTensor`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Array {
    pub(super) data: *mut c_void,
    pub(super) device: Device,
    pub(super) ndim: i32,
    pub(super) dtype: DataType,
    pub(super) shape: *mut i64,
    /// In elements; null for packed ones.
    pub(super) strides: *mut i64,
    /// From `data` to the first element, in bytes.
    pub(super) byte_offset: u64,
}

/// `DLManagedTensor`, which older consumers ask for (`max_version=None`).
#[repr(C)]
#[derive(Debug)]
pub(super) struct Unversioned {
    pub(super) array: Array,
    pub(super) context: *mut c_void,
    pub(super) deleter: Option<unsafe extern "C" fn(*mut Unversioned)>,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Versioned {
    pub(super) version: Version,
    pub(super) context: *mut c_void,
    pub(super) deleter: Option<unsafe extern "C" fn(*mut Versioned)>,
    pub(super) flags: u64,
    pub(super) array: Array,
}

// The layout that a C compiler gives them where pointers have 64 bits.
#[cfg(target_pointer_width = "64")]
const _: () = {
    assert!(size_of::<Array>() == 48 && std::mem::offset_of!(Array, byte_offset) == 40);
    assert!(size_of::<Unversioned>() == 64 && std::mem::offset_of!(Unversioned, deleter) == 56);
    assert!(size_of::<Versioned>() == 80 && std::mem::offset_of!(Versioned, array) == 32);
};
