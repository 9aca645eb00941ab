//! The driver's own types and numbers, as its header has them. No function of the driver is named here.

use std::ffi::{c_int, c_uint, c_void};

pub(super) const SUCCESS: i32 = 0;
pub(super) const OUT_OF_MEMORY: i32 = 2;
pub(super) const NO_DEVICE: i32 = 100;
pub(super) const NOT_READY: i32 = 600;

/// Returns whether a process that met this code can no longer use the device: its context is lost, with all
/// its work there. Such codes are an uncorrectable error of memory or link, a fault or a failed assertion of
/// a kernel, and the end of the MPS server.
pub(super) const fn loses_context(code: i32) -> bool {
    matches!(code, 214 | 220 | 226 | 700 | 702 | 710 | 714..=719 | 806 | 807)
}

/// Returns a hint for a code that has to do with the machine rather than with the call. `is_first` says that
/// nothing of this process has run on the device yet.
pub(super) const fn advice(code: i32, is_first: bool) -> &'static str {
    match code {
        _ if is_first && loses_context(code) => {
            "; nothing of this process has run there yet: under MPS one that fails, or is killed while its kernels run, takes \
             those with it that start meanwhile, so start this one again"
        }
        800 | 801 => {
            "; the system or the container this runs in may lack the rights for it: it needs the GPU's device files and \
             shared descriptors (`tensorpost doctor` tries them)"
        }
        3 | 34 | 46 | 802 | 803 | 804 | 999 => {
            "; the driver's parts do not fit or are not all there: compare `nvidia-smi` on the machine and in the container"
        }
        805..=808 => "; see the log of the MPS server, and whether it still runs",
        _ => "",
    }
}

pub(super) const PCI_BUS: c_int = 33;
pub(super) const PCI_DEVICE: c_int = 34;
pub(super) const PCI_DOMAIN: c_int = 50;
pub(super) const COMPUTE_MODE: c_int = 20;
/// `CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED`.
pub(super) const FABRIC_SUPPORTED: c_int = 128;
pub(super) const HANDLE_FABRIC: c_uint = 8;

/// `CU_MEM_ALLOCATION_TYPE_PINNED`: device memory that stays where it is.
pub(super) const PINNED: c_uint = 1;
pub(super) const HANDLE_POSIX_FD: c_uint = 1;
pub(super) const LOCATION_DEVICE: c_uint = 1;
pub(super) const PROT_READ: c_uint = 1;
pub(super) const PROT_READ_WRITE: c_uint = 3;
pub(super) const REGISTER_PORTABLE: c_uint = 1;
pub(super) const REGISTER_DEVICE_MAP: c_uint = 2;
pub(super) const REGISTER_READ_ONLY: c_uint = 8;
pub(super) const HOST_ALLOC_PORTABLE: c_uint = 1;
pub(super) const HOST_ALLOC_DEVICE_MAP: c_uint = 2;
pub(super) const EVENT_BLOCKING_SYNC: c_uint = 1;
pub(super) const EVENT_DISABLE_TIMING: c_uint = 2;
pub(super) const OP_WAIT_VALUE_64: c_uint = 4;
pub(super) const OP_WRITE_VALUE_64: c_uint = 5;
/// Cyclic: `(int64)(*address - value) >= 0`, the comparison of [`crate::clock::passed`].
pub(super) const WAIT_GEQ: c_uint = 0;

/// The abilities that a device must have, as numbers of `CUdevice_attribute` and in words.
pub(super) const NEEDED: [(c_int, &str); 5] = [
    (122, "64-bit memory operations on streams"),
    (102, "memory that is mapped by virtual address (VMM)"),
    (103, "memory shared by file descriptor"),
    (113, "read-only registration of host memory"),
    (99, "registration of host memory"),
];

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Location {
    pub(super) kind: c_uint,
    pub(super) id: c_int,
}

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct AllocationProp {
    pub(super) kind: c_uint,
    pub(super) handle_types: c_uint,
    pub(super) location: Location,
    pub(super) win32_metadata: *mut c_void,
    pub(super) flags: [u8; 8],
}

/// `CUmemAccessDesc`.
#[repr(C)]
pub(super) struct AccessDesc {
    pub(super) location: Location,
    pub(super) flags: c_uint,
}

/// `CUstreamBatchMemOpParams`: wait and write have the same fields at the same places.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct MemOp {
    operation: c_uint,
    address: u64,
    value: u64,
    flags: c_uint,
    alias: u64,
    pad: u64,
}

// The sizes of the driver's own types, as in its header.
const _: () = assert!(size_of::<MemOp>() == 6 * 8);
const _: () = assert!(size_of::<AllocationProp>() == 32 && size_of::<AccessDesc>() == 12);
const _: () = assert!(size_of::<AllocationProp>() == size_of::<cudarc::driver::sys::CUmemAllocationProp>());
const _: () = assert!(size_of::<AccessDesc>() == size_of::<cudarc::driver::sys::CUmemAccessDesc>());

impl MemOp {
    /// Makes the stream wait until the 64-bit word at `address`, as the device sees it, has passed `value`.
    pub(super) fn wait(address: u64, value: u64) -> Self {
        MemOp { operation: OP_WAIT_VALUE_64, address, value, flags: WAIT_GEQ, alias: 0, pad: 0 }
    }

    /// Writes the 64-bit word at `address`, once all work before it is done and visible to the system.
    pub(super) fn write(address: u64, value: u64) -> Self {
        MemOp { operation: OP_WRITE_VALUE_64, address, value, flags: 0, alias: 0, pad: 0 }
    }
}

/// `CUDA_KERNEL_NODE_PARAMS` in its first form: a kernel in a graph.
#[cfg(feature = "graphs")]
#[repr(C)]
pub(super) struct KernelNode {
    pub(super) function: *mut c_void,
    pub(super) grid: [c_uint; 3],
    pub(super) block: [c_uint; 3],
    pub(super) shared_bytes: c_uint,
    /// The addresses of the parameters, as many as the kernel has.
    pub(super) parameters: *mut *mut c_void,
    pub(super) extra: *mut *mut c_void,
}

/// `CUDA_BATCH_MEM_OP_NODE_PARAMS`: operations on words in a graph.
#[cfg(feature = "graphs")]
#[repr(C)]
pub(super) struct BatchNode {
    context: *mut c_void,
    count: c_uint,
    ops: *mut MemOp,
    flags: c_uint,
}

#[cfg(feature = "graphs")]
const _: () = {
    assert!(size_of::<KernelNode>() == size_of::<cudarc::driver::sys::CUDA_KERNEL_NODE_PARAMS_st>());
    assert!(size_of::<KernelNode>() == 56 && size_of::<BatchNode>() == 32);
};

#[cfg(feature = "graphs")]
impl BatchNode {
    /// Makes parameters that point to `ops`, and are valid as long as `ops` does not move.
    pub(super) fn new(context: *mut c_void, ops: &mut [MemOp]) -> Self {
        BatchNode { context, count: ops.len() as c_uint, ops: ops.as_mut_ptr(), flags: 0 }
    }
}

/// The largest number of operations in one call; the driver takes 256.
pub(super) const MAX_BATCH: usize = 256;

/// Memory of one device that can be exported as a descriptor.
pub(super) fn chunk_prop(device: c_int) -> AllocationProp {
    AllocationProp {
        kind: PINNED,
        handle_types: HANDLE_POSIX_FD,
        location: Location { kind: LOCATION_DEVICE, id: device },
        win32_metadata: std::ptr::null_mut(),
        flags: [0; 8],
    }
}

/// Memory of one device that other machines can map.
pub(super) fn fabric_prop(device: c_int) -> AllocationProp {
    AllocationProp { handle_types: HANDLE_FABRIC, ..chunk_prop(device) }
}
