//! A managed tensor of DLPack, and its making from an owner that keeps memory.

use std::any::Any;
use std::ffi::{CStr, c_void};
use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use super::abi::{self, Array, Unversioned, Versioned};
use crate::clock::{ClockDomain, Ticket};
use crate::limits::MAX_RANK;
use crate::tensor::TensorError;

/// A tensor on its way between this framework and another library, in the same process, by
/// [DLPack](https://dmlc.github.io/dlpack): PyTorch, numpy, JAX, CuPy and others. No byte is copied: the
/// memory stays with its owner until the holder of this calls the deleter, which dropping does.
///
/// Out: [`Tensor::to_dlpack`](crate::tensor::Tensor::to_dlpack) and
/// [`TensorMut::into_dlpack`](crate::tensor::TensorMut::into_dlpack), then
/// [`into_capsule`](Self::into_capsule) or [`into_raw`](Self::into_raw). In: [`from_raw`](Self::from_raw),
/// then [`DeviceStream::from_dlpack`](crate::tensor::DeviceStream::from_dlpack).
///
/// ```
/// use tensorpost::prelude::*;
/// use tensorpost::tensor::{DlPack, DlPackReady};
///
/// # fn main() -> anyhow::Result<()> {
/// # let node = Node::builder().start()?;
/// let stream = node.host_stream()?;
/// let tensor = stream.from_slice(&[2, 2], &[1_i32, 2, 3, 4])?.freeze();
/// let managed = tensor.permute(&[1, 0])?.to_dlpack()?.into_raw(); // what a library of C takes
///
/// // SAFETY: it was just made, and nobody else has it.
/// let managed = unsafe { DlPack::from_raw(managed)? };
/// let back = stream.from_dlpack(managed, DlPackReady::Now)?; // the same memory
/// assert_eq!(back.to_vec::<i32>()?, [1, 3, 2, 4]);
/// # Ok(())
/// # }
/// ```
pub struct DlPack {
    held: Held,
    /// The ticket for the data, where this was made here and was no raw pointer since. Only then is it known
    /// without a promise of the caller.
    after: Option<After>,
}

/// A ticket with its clocks: the importing stream may be of another node.
pub(super) type After = (Arc<ClockDomain>, Ticket);

#[derive(Clone, Copy)]
enum Held {
    Versioned(NonNull<Versioned>),
    Unversioned(NonNull<Unversioned>),
}

// SAFETY: the caller of `DlPack::from_raw` promises that the struct may be read, and its deleter called, on
// any thread; an export of this crate owns something that is `Send`. There is no shared access.
unsafe impl Send for DlPack {}

/// A managed tensor of this crate: the struct that consumers see, in one allocation with all that it points
/// to.
struct Export<M> {
    managed: M,
    /// Shape, then strides.
    axes: [i64; 2 * MAX_RANK],
    _owner: Box<dyn Any + Send>,
}

/// The contents of a managed tensor. The pointers of `Array` to its axes are set from the slices.
pub(super) struct Contents<'a> {
    pub(super) data: *mut c_void,
    pub(super) device: abi::Device,
    pub(super) dtype: abi::DataType,
    pub(super) shape: &'a [usize],
    pub(super) strides: &'a [isize],
    pub(super) flags: u64,
}

impl DlPack {
    /// Takes over a `DLManagedTensorVersioned`, which a capsule called `dltensor_versioned` contains. (The
    /// capsule is then to be renamed `used_dltensor_versioned`.)
    ///
    /// # Safety
    /// - It points to a valid `DLManagedTensorVersioned` that nobody else uses, and whose deleter nobody else
    ///   calls.
    /// - Until its deleter is called, its memory is there, on the device and in the layout that it states,
    ///   and may be read. From when its data is [ready](super::DlPackReady), nobody writes it. With
    ///   `DLPACK_FLAG_BITMASK_IS_COPIED` and without `READ_ONLY`, nobody but the holder of this uses it at
    ///   all.
    /// - It may be read, and its deleter called, on any thread. (Python's deleters take the interpreter's
    ///   lock themselves.)
    ///
    /// # Errors
    /// Another major version than 1: the deleter was called, and no other field was read.
    pub unsafe fn from_raw(managed: NonNull<c_void>) -> Result<Self, TensorError> {
        let managed = managed.cast::<Versioned>();
        let taken = DlPack { held: Held::Versioned(managed), after: None };
        // SAFETY: it is valid, as the caller promises. Version and deleter are where they are in every
        // version.
        let version = unsafe { (&raw const (*managed.as_ptr()).version).read() };
        if version.major == abi::MAJOR {
            return Ok(taken);
        }
        Err(TensorError::DlPack {
            why: format!(
                "it is of version {}.{}, and only {}.x is known; ask for one by `max_version=({}, 0)`",
                version.major,
                version.minor,
                abi::MAJOR,
                abi::MAJOR
            ),
        })
    }

    /// Takes over a `DLManagedTensor`, without a version, which a capsule called `dltensor` contains. (The
    /// capsule is then to be renamed `used_dltensor`.)
    ///
    /// # Safety
    /// As for [`from_raw`](Self::from_raw), of a `DLManagedTensor`.
    pub unsafe fn from_raw_unversioned(managed: NonNull<c_void>) -> Self {
        DlPack { held: Held::Unversioned(managed.cast()), after: None }
    }

    /// Gives it away as a `DLManagedTensorVersioned`, for a capsule called `dltensor_versioned`. The new
    /// holder has to call its deleter, once.
    pub fn into_raw(self) -> NonNull<c_void> {
        match self.held {
            Held::Versioned(managed) => {
                let _given = ManuallyDrop::new(self);
                managed.cast()
            }
            Held::Unversioned(_) => versioned(self.array(), 0, Box::new(self)).cast(),
        }
    }

    /// Gives it away as a `DLManagedTensor`, for consumers that know no version, and a capsule called
    /// `dltensor`. This form cannot say that nobody may write, so the new holder has to know it: memory that
    /// came from another process is mapped read-only, and a write faults.
    pub fn into_raw_unversioned(self) -> NonNull<c_void> {
        match self.held {
            Held::Unversioned(managed) => {
                let _given = ManuallyDrop::new(self);
                managed.cast()
            }
            Held::Versioned(_) => unversioned(self.array(), Box::new(self)).cast(),
        }
    }

    /// Gives it away in the form that a consumer asks for with the `max_version` of Python's `__dlpack__`:
    /// versioned from 1.0 on, and unversioned below that and for `None`. Returns the name of the capsule too.
    pub fn into_capsule(self, max_version: Option<(u32, u32)>) -> (NonNull<c_void>, &'static CStr) {
        if max_version.is_some_and(|(major, _)| major >= abi::MAJOR) {
            (self.into_raw(), c"dltensor_versioned")
        } else {
            (self.into_raw_unversioned(), c"dltensor")
        }
    }

    /// Returns whether nobody may write it. The form without a version does not say, and is taken to be
    /// read-only.
    pub fn is_read_only(&self) -> bool {
        self.flags() & abi::READ_ONLY != 0
    }

    /// Returns whether only the holder of this uses the memory.
    pub(super) fn is_sole(&self) -> bool {
        self.flags() & (abi::READ_ONLY | abi::IS_COPIED) == abi::IS_COPIED
    }

    fn flags(&self) -> u64 {
        match self.held {
            // SAFETY: the struct is valid until its deleter is called, which only `drop` does.
            Held::Versioned(managed) => unsafe { (&raw const (*managed.as_ptr()).flags).read() },
            Held::Unversioned(_) => abi::READ_ONLY,
        }
    }

    pub(super) fn array(&self) -> Array {
        match self.held {
            // SAFETY: as in `flags`; `from_raw` refuses other versions.
            Held::Versioned(managed) => unsafe { (&raw const (*managed.as_ptr()).array).read() },
            // SAFETY: as in `flags`.
            Held::Unversioned(managed) => unsafe { (&raw const (*managed.as_ptr()).array).read() },
        }
    }

    pub(super) fn after(&self) -> Option<&After> {
        self.after.as_ref()
    }

    /// Creates a managed tensor that keeps `owner` until its deleter is called.
    pub(super) fn of(contents: &Contents<'_>, after: Option<After>, owner: Box<dyn Any + Send>) -> Self {
        let mut axes = [0; 2 * MAX_RANK];
        let rank = contents.shape.len();
        for (axis, (extent, stride)) in contents.shape.iter().zip(contents.strides).enumerate() {
            // Lossless: LAYOUT-2 and LAYOUT-3 bound both by `isize::MAX`.
            (axes[axis], axes[rank + axis]) = (*extent as i64, *stride as i64);
        }
        let array = Array {
            data: contents.data,
            device: contents.device,
            // Lossless: at most `MAX_RANK`.
            ndim: rank as i32,
            dtype: contents.dtype,
            // `exported` sets the pointers, once the axes have their final address.
            shape: null_mut(),
            strides: null_mut(),
            byte_offset: 0,
        };
        DlPack { held: Held::Versioned(exported(array, contents.flags, Some(axes), owner)), after }
    }
}

impl Drop for DlPack {
    fn drop(&mut self) {
        match self.held {
            Held::Versioned(managed) => {
                // SAFETY: it is valid, nobody else calls the deleter, and this was not given away.
                unsafe {
                    if let Some(delete) = (&raw const (*managed.as_ptr()).deleter).read() {
                        delete(managed.as_ptr());
                    }
                }
            }
            Held::Unversioned(managed) => {
                // SAFETY: as above.
                unsafe {
                    if let Some(delete) = (&raw const (*managed.as_ptr()).deleter).read() {
                        delete(managed.as_ptr());
                    }
                }
            }
        }
    }
}

impl fmt::Debug for DlPack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if matches!(self.held, Held::Versioned(_)) { "versioned" } else { "unversioned" };
        write!(f, "DlPack({kind}, device {}, {} axes)", self.array().device.kind, self.array().ndim)
    }
}

fn versioned(array: Array, flags: u64, owner: Box<dyn Any + Send>) -> NonNull<Versioned> {
    exported(array, flags, None, owner)
}

fn exported(
    array: Array,
    flags: u64,
    axes: Option<[i64; 2 * MAX_RANK]>,
    owner: Box<dyn Any + Send>,
) -> NonNull<Versioned> {
    let version = abi::Version { major: abi::MAJOR, minor: abi::MINOR };
    let deleter: unsafe extern "C" fn(*mut Versioned) = delete_versioned;
    let managed = Versioned { version, context: null_mut(), deleter: Some(deleter), flags, array };
    let own_axes = axes.is_some();
    let export = Export { managed, axes: axes.unwrap_or_default(), _owner: owner };
    let export = Box::into_raw(Box::new(export));
    // SAFETY: it was just made, and nobody else has it. No reference is made: the consumers' pointers into
    // the allocation are all derived from this one pointer, so none of them invalidates another.
    unsafe {
        (*export).managed.context = export.cast();
        if own_axes {
            let axes = (&raw mut (*export).axes).cast::<i64>();
            (*export).managed.array.shape = axes;
            (*export).managed.array.strides = axes.add(array.ndim as usize);
        }
        NonNull::new_unchecked(&raw mut (*export).managed)
    }
}

/// Returns the same array, whose axes `owner` keeps.
fn unversioned(array: Array, owner: Box<dyn Any + Send>) -> NonNull<Unversioned> {
    let deleter: unsafe extern "C" fn(*mut Unversioned) = delete_unversioned;
    let managed = Unversioned { array, context: null_mut(), deleter: Some(deleter) };
    let export = Box::into_raw(Box::new(Export { managed, axes: [0; 2 * MAX_RANK], _owner: owner }));
    // SAFETY: as in `exported`.
    unsafe {
        (*export).managed.context = export.cast();
        NonNull::new_unchecked(&raw mut (*export).managed)
    }
}

/// # Safety
/// As a consumer calls it: with a struct that `exported` made, once, when nobody uses it any more.
unsafe extern "C" fn delete_versioned(managed: *mut Versioned) {
    // SAFETY: its context is the allocation that it lies in.
    unsafe { delete((*managed).context.cast::<Export<Versioned>>()) }
}

/// # Safety
/// As a consumer calls it: with a struct that `unversioned` made, once, when nobody uses it any more.
unsafe extern "C" fn delete_unversioned(managed: *mut Unversioned) {
    // SAFETY: its context is the allocation that it lies in.
    unsafe { delete((*managed).context.cast::<Export<Unversioned>>()) }
}

/// # Safety
/// `export` came from `Box::into_raw`, and is not used any more.
unsafe fn delete<M>(export: *mut Export<M>) {
    // SAFETY: the caller's promise.
    let export = unsafe { Box::from_raw(export) };
    let Export { _owner: owner, .. } = *export;
    super::let_go(owner);
}
