//! Tensors of other libraries in the same process, by DLPack, without a copy in either direction.
//!
//! **Out.** An export keeps the tensor, and so its lease, until the consumer calls the deleter. The consumer
//! may do so on any thread, at any time, even within another call. [`let_go`] opens a turn for it, so that
//! the clock writes and the return of the lease go out at once. Where the thread is ending, another thread
//! drops the tensor.
//!
//! **In.** Memory of another library becomes a chunk with one lease on it, which no pool knows
//! ([`lease::external`](crate::lease::external)). It lives until the last handle on it was dropped and all
//! work of this process's streams on it has passed. Then its deleter is called, on a thread of its own,
//! because the deleter may wait for Python's lock and no other thread of ours may. Other processes cannot map
//! it, so it cannot be sent to them; `stream.copy(&tensor)` can.
//!
//! **Ready.** DLPack itself has no clocks. `Tensor::to_dlpack` waits on the host until the data is there; on
//! a stream (`DeviceStream::to_dlpack`) nobody waits, and the consumer works on that stream.
//!
//! **Writes.** A shared tensor is marked READ_ONLY. (numpy heeds that, PyTorch does not.) A `TensorMut` is
//! marked as the consumer's alone, and an import with that mark can become a `TensorMut` here.

#![expect(unsafe_code, reason = "the structs are C's, and what they point to is somebody else's")]

mod abi;
mod describe;
mod managed;
#[cfg(feature = "bindings")]
pub(crate) mod outside;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::ffi::c_void;
use std::sync::Arc;

pub use managed::DlPack;

use super::host::in_reach;
use super::{DeviceStream, Tensor, TensorError, TensorMut};
use crate::clock::Ticket;
use crate::device::{Access, ChunkMapping};
use crate::ids::DeviceId;
use crate::lease::Lease;
use crate::lease::external::{Collected, Collector};
use crate::stream::host_wait;
use crate::stream::turn::Turn;
use describe::{Described, MemoryDevice, data_type, describe};
use managed::{After, Contents};

/// The time from which the data of a tensor that comes in by DLPack is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DlPackReady {
    /// It is there: the other library works on the host, or its stream was synchronised.
    Now,
    /// It is there once the work that is on this stream by now is done. That is so with Python's
    /// `__dlpack__(stream=…)` for the number of this stream, or when the other library worked on this stream.
    OnStream,
}

/// Drops the owner of a tensor that a consumer has let go of.
fn let_go(owner: Box<dyn Any + Send>) {
    if !Turn::is_possible() {
        // The thread is ending, and its thread-locals are gone, so another thread drops the tensor.
        Collector::drop_on_collector(owner);
        return;
    }
    let _turn = Turn::begin();
    drop(owner);
}

impl Tensor {
    /// Returns the tensor for another library in this process, to read: see [`DlPack`]. Blocks until the data
    /// is there. The lease stays until the deleter is called; the library's GPU work on the tensor has to be
    /// done by then. [`DeviceStream::to_dlpack`] waits for nothing.
    ///
    /// # Errors
    /// [`TensorError::Tainted`] where the data will never be there.
    pub fn to_dlpack(&self) -> Result<DlPack, TensorError> {
        self.wait(None)?;
        exported_tensor(self, None)
    }
}

impl TensorMut {
    /// Returns the tensor for another library in this process, which may write it and has it alone: see
    /// [`DlPack`]. Blocks until earlier work on it is done. The memory comes back when the deleter is called;
    /// the library's GPU work on it has to be done by then. [`DeviceStream::into_dlpack`] waits for nothing.
    ///
    /// # Errors
    /// [`TensorError::Tainted`] where that work came to nothing, or memory that cannot be mapped writable.
    /// The tensor is dropped.
    pub fn into_dlpack(self) -> Result<DlPack, TensorError> {
        self.wait(None)?;
        exported_mut(self, None)
    }
}

impl DeviceStream {
    /// [`Tensor::to_dlpack`] for a consumer that works on this stream: the stream waits for the data, not the
    /// host, and the memory's reuse waits for the work that is on the stream when the deleter is called.
    ///
    /// # Errors
    /// Memory that this stream's device cannot reach, data that will never be there.
    pub fn to_dlpack(&self, tensor: &Tensor) -> Result<DlPack, TensorError> {
        in_reach(tensor.device(), self)?;
        tensor.read_on(self.clocked())?;
        exported_tensor(tensor, tensor.ready().map(|ready| self.after(ready)))
    }

    /// [`TensorMut::into_dlpack`] for a consumer that works on this stream: the stream waits for earlier
    /// work, not the host, and the memory's reuse waits for the work that is on the stream when the deleter
    /// is called.
    ///
    /// # Errors
    /// As for [`to_dlpack`](Self::to_dlpack). The tensor is dropped.
    pub fn into_dlpack(&self, mut tensor: TensorMut) -> Result<DlPack, TensorError> {
        in_reach(tensor.device(), self)?;
        tensor.write_on(self.clocked())?;
        // The ticket stands for all earlier uses of the memory too: the stream waits for them from here on.
        let after = self.clocked().ticket().map(|ticket| self.after(ticket));
        exported_mut(tensor, after)
    }

    fn after(&self, ticket: Ticket) -> After {
        (Arc::clone(self.clocked().domain()), ticket)
    }

    /// Imports a tensor of another library in this process without a copy. It has to be on this stream's
    /// device. It lives until its last handle was dropped and all work of this process on it has passed; then
    /// its deleter is called, on a thread of its own.
    ///
    /// This process and its actors can use it like any other tensor. Other processes cannot map its memory:
    /// send them `stream.copy(&tensor)`. It can become writable ([`Tensor::into_mut`]) if the other library
    /// says that it keeps nothing of it (`DLPACK_FLAG_BITMASK_IS_COPIED`), as [`TensorMut::into_dlpack`]
    /// does.
    ///
    /// This stream cannot wait for one of another node: if such a stream has exported the tensor, this call
    /// blocks until the data is there.
    ///
    /// # Errors
    /// [`TensorError::DlPack`] names the obstacle: a dtype or a device that does not exist here, lanes,
    /// negative strides, null data, sizes beyond the address space. [`TensorError::OtherDevice`] for memory
    /// of another device. After an error the deleter has been called.
    pub fn from_dlpack(&self, tensor: DlPack, ready: DlPackReady) -> Result<Tensor, TensorError> {
        // SAFETY: the caller of `from_raw` has promised that its struct is valid, and so are its axes.
        let described = unsafe { describe(&tensor.array())? };
        let Described { place, dtype, layout, address, bytes } = described;
        self.check_place(place)?;
        let (sole, access) =
            (tensor.is_sole(), if tensor.is_read_only() { Access::ReadOnly } else { Access::ReadWrite });
        let collector = Collector::get()?;
        // SAFE-1: a tensor that never was a raw pointer comes without a promise that its data is there.
        let after = match tensor.after() {
            Some((domain, ticket)) if !Arc::ptr_eq(domain, self.clocked().domain()) => {
                // CLOCK-1, on the clocks of its own node.
                host_wait(domain, *ticket, None)?;
                None
            }
            after => after.map(|(_, ticket)| *ticket),
        };
        let holder = Collected::new(tensor, collector);
        // SAFETY: the memory is there until the deleter is called, as the caller of `from_raw` has promised,
        // and `holder` calls the deleter when it is dropped. A tensor without elements touches no memory.
        // Nobody is given a reference into the memory.
        let mapping =
            unsafe { ChunkMapping::new(address, bytes.max(1), access, self.device_id(), Box::new(holder)) };
        let lease = Lease::external(Arc::clone(self.clocked().domain()), mapping, bytes, sole, collector);
        lease.set_home(self.clocked());
        let ready = match ready {
            DlPackReady::Now => after,
            DlPackReady::OnStream => {
                self.clocked().wait(after)?;
                lease.used_on(self.clocked());
                self.clocked().ticket()
            }
        };
        Ok(Tensor::from_parts(lease, dtype, layout, ready))
    }

    fn check_place(&self, place: MemoryDevice) -> Result<(), TensorError> {
        let is_here = match place {
            MemoryDevice::Host => self.device_id() == DeviceId::HOST,
            MemoryDevice::Cuda(ordinal) => self.ordinal() == Some(ordinal),
        };
        if is_here {
            return Ok(());
        }
        let tensor = match place {
            MemoryDevice::Host => "the host".to_owned(),
            MemoryDevice::Cuda(ordinal) => format!("cuda:{ordinal}"),
        };
        Err(TensorError::OtherDevice { tensor, stream: self.name() })
    }

    fn ordinal(&self) -> Option<i32> {
        ordinal_of(self.device_id())
    }
}

/// Returns the number of a GPU in this process.
#[cfg(feature = "cuda")]
fn ordinal_of(device: DeviceId) -> Option<i32> {
    if device == DeviceId::HOST {
        return None;
    }
    let backend = crate::device::cuda::CudaBackend::by_id(device).ok()?;
    i32::try_from(backend.ordinal()).ok()
}

/// There are no GPUs.
#[cfg(not(feature = "cuda"))]
fn ordinal_of(_: DeviceId) -> Option<i32> {
    None
}

fn exported_tensor(tensor: &Tensor, after: Option<After>) -> Result<DlPack, TensorError> {
    let data = tensor.lease().address() + tensor.layout().offset() as u64 * tensor.dtype().size() as u64;
    let contents = Contents {
        data: pointer(data, tensor.is_empty()),
        device: device_of(tensor.device())?,
        dtype: data_type(tensor.dtype()),
        shape: tensor.shape(),
        strides: tensor.strides(),
        flags: abi::READ_ONLY,
    };
    Ok(DlPack::of(&contents, after, Box::new(tensor.clone())))
}

fn exported_mut(tensor: TensorMut, after: Option<After>) -> Result<DlPack, TensorError> {
    let (address, _mapping) = tensor.lease().writable()?;
    let data = address + tensor.layout().offset() as u64 * tensor.dtype().size() as u64;
    let (shape, strides) = (tensor.shape().to_vec(), tensor.strides().to_vec());
    let contents = Contents {
        data: pointer(data, tensor.is_empty()),
        device: device_of(tensor.device())?,
        dtype: data_type(tensor.dtype()),
        shape: &shape,
        strides: &strides,
        flags: abi::IS_COPIED,
    };
    Ok(DlPack::of(&contents, after, Box::new(tensor)))
}

/// DLPack wants null where there is no element.
fn pointer(address: u64, is_empty: bool) -> *mut c_void {
    // Lossless where memory files have these seals: addresses have 64 bits there.
    if is_empty { std::ptr::null_mut() } else { std::ptr::with_exposed_provenance_mut(address as usize) }
}

fn device_of(device: DeviceId) -> Result<abi::Device, TensorError> {
    if device == DeviceId::HOST {
        return Ok(abi::Device { kind: abi::CPU, id: 0 });
    }
    let ordinal = ordinal_of(device).ok_or_else(|| TensorError::DlPack {
        why: format!("{device} has no number in this process; use it on a stream of one that has"),
    })?;
    Ok(abi::Device { kind: abi::CUDA, id: ordinal })
}
