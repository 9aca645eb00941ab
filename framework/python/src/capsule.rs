//! DLPack capsules of Python: how one is taken, and how one is made.
//!
//! A managed tensor of another library is let go of on a thread of Rust, when all work with it has passed.
//! Its deleter is Python's, mostly, and needs the interpreter. So what was taken is wrapped: its deleter only
//! puts it where a thread finds it that has the interpreter ([`garbage`]). One that has to ask for the
//! interpreter, and asks while it ends, is ended by Python in the middle of its call, which aborts the
//! process: it asks first whether the interpreter is there ([`Gate`]), and leaves the memory to the end of
//! the process where it is not.
//!
//! **Locks.** The gate's is held for a count, and never while Python is asked for anything.

#![expect(unsafe_code, reason = "capsules hold structs of C")]

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

use parking_lot::{Condvar, Mutex};
use pyo3::ffi;
use pyo3::prelude::*;
use tensorpost_core::os::PerProcess;
use tensorpost_core::tensor::{DeviceStream, DlPack};

use crate::failure::exception;
use crate::{cuda, garbage};

const VERSIONED: &CStr = c"dltensor_versioned";
const USED_VERSIONED: &CStr = c"used_dltensor_versioned";
const UNVERSIONED: &CStr = c"dltensor";
const USED_UNVERSIONED: &CStr = c"used_dltensor";

/// `DLPACK_FLAG_BITMASK_READ_ONLY`.
const READ_ONLY: u64 = 1;

/// `DLTensor` (<https://github.com/dmlc/dlpack/blob/v1.1/include/dlpack/dlpack.h>).
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Array {
    pub(crate) data: *mut c_void,
    pub(crate) device: [i32; 2],
    pub(crate) ndim: i32,
    pub(crate) code: u8,
    pub(crate) bits: u8,
    pub(crate) lanes: u16,
    pub(crate) shape: *const i64,
    pub(crate) strides: *const i64,
    pub(crate) byte_offset: u64,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Managed {
    version: [u32; 2],
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
    flags: u64,
    array: Array,
}

#[cfg(target_pointer_width = "64")]
const _: () = assert!(
    size_of::<Managed>() == 80 && std::mem::offset_of!(Managed, array) == 32 && size_of::<Array>() == 48
);

/// Whether deleters may still ask for the interpreter, and how many are about to.
#[derive(Default)]
struct Gate {
    state: Mutex<GateState>,
    left: Condvar,
}

#[derive(Default)]
struct GateState {
    closed: bool,
    inside: usize,
}

/// A process's own: a forked child has not the threads that let go of memory, and would find the gate as they
/// left it.
static GATE: PerProcess<Gate> = PerProcess::new(Gate::default);

impl Gate {
    /// Runs `delete` with the interpreter, or not at all.
    fn through(&self, delete: impl FnOnce()) {
        {
            let mut state = self.state.lock();
            if state.closed {
                return;
            }
            state.inside += 1;
        }
        Python::try_attach(|_| delete());
        let mut state = self.state.lock();
        state.inside -= 1;
        if state.inside == 0 {
            self.left.notify_all();
        }
    }
}

/// The interpreter is about to end: waits for deleters that are running, and lets no other begin.
#[pyfunction]
pub(crate) fn close(py: Python<'_>) {
    py.detach(|| {
        let gate = GATE.get();
        let mut state = gate.state.lock();
        state.closed = true;
        while state.inside > 0 {
            gate.left.wait(&mut state);
        }
    });
}

/// Drops what needs the interpreter, with it. Where that is ending nothing is dropped.
pub(crate) fn drop_with_interpreter<T>(held: T) {
    let mut held = Some(held);
    GATE.get().through(|| drop(held.take()));
    std::mem::forget(held);
}

/// Takes over what a capsule holds. Its deleter is still the other library's own: it is called with the
/// interpreter, or [guarded].
pub(crate) fn take(capsule: &Bound<'_, PyAny>) -> PyResult<DlPack> {
    let py = capsule.py();
    let refused = |why: String| exception(py, "TensorError", why);
    let has_name = |name: &CStr| {
        // SAFETY: the object is alive, and asked for by a function that takes any.
        unsafe { ffi::PyCapsule_IsValid(capsule.as_ptr(), name.as_ptr()) == 1 }
    };
    let (name, used) = if has_name(VERSIONED) {
        (VERSIONED, USED_VERSIONED)
    } else if has_name(UNVERSIONED) {
        (UNVERSIONED, USED_UNVERSIONED)
    } else {
        return Err(refused(
            "its `__dlpack__` gave no capsule that can be taken; one can be taken once, so ask for a new one"
                .to_owned(),
        ));
    };
    // SAFETY: it is a capsule of this name, as was just asked.
    let managed = unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), name.as_ptr()) };
    let managed = NonNull::new(managed).ok_or_else(|| PyErr::fetch(py))?;
    // SAFETY: as above. The name is a constant, which outlives the capsule.
    if unsafe { ffi::PyCapsule_SetName(capsule.as_ptr(), used.as_ptr()) } != 0 {
        return Err(PyErr::fetch(py));
    }
    let theirs = if name == VERSIONED {
        // SAFETY: what a capsule of this name holds is a `DLManagedTensorVersioned`, and renaming it took it
        // from whoever else looks for one. The memory is there until the deleter is called, says the
        // protocol. Whoever gave the object does not write it any more: the package's docs ask that.
        unsafe { DlPack::from_raw(managed) }.map_err(|error| refused(error.to_string()))?
    } else {
        // SAFETY: as above, of a `DLManagedTensor`.
        unsafe { DlPack::from_raw_unversioned(managed) }
    };
    Ok(theirs)
}

/// The same tensor with a deleter that may be called on any thread.
pub(crate) fn guarded(py: Python<'_>, theirs: DlPack) -> PyResult<DlPack> {
    garbage::open(py)?;
    let read_only = if theirs.is_read_only() { READ_ONLY } else { 0 };
    let theirs = theirs.into_raw();
    // SAFETY: it is a valid `DLManagedTensorVersioned`, and only read.
    let mut managed = unsafe { theirs.cast::<Managed>().read() };
    managed.context = theirs.as_ptr();
    managed.deleter = Some(let_go);
    managed.flags |= read_only;
    let managed = NonNull::from(Box::leak(Box::new(managed)));
    // SAFETY: the struct is of version 1, as it was before; what it points to lives until the inner deleter
    // is called, which only happens to what `let_go` has put away. That can be called on any thread.
    match unsafe { DlPack::from_raw(managed.cast()) } {
        Ok(guarded) => Ok(guarded),
        Err(error) => unreachable!("the version was looked at before: {error}"),
    }
}

/// What is let go of on a GPU by a library that works on other streams.
struct Ordered {
    ours: NonNull<c_void>,
    stream: DeviceStream,
}

/// The same tensor for a library that works on other streams than `stream`: when it lets go, that one goes
/// behind what the library has given the GPU by then, as far as its streams are of those that the legacy
/// default stream comes behind.
pub(crate) fn ordered(ours: DlPack, stream: DeviceStream) -> DlPack {
    let ours = ours.into_raw();
    // SAFETY: it is a valid `DLManagedTensorVersioned`, and only read.
    let mut managed = unsafe { ours.cast::<Managed>().read() };
    managed.context = Box::into_raw(Box::new(Ordered { ours, stream })).cast();
    managed.deleter = Some(let_go_in_order);
    let managed = NonNull::from(Box::leak(Box::new(managed)));
    // SAFETY: as in `guarded`; the inner deleter is called by `let_go_in_order` alone.
    match unsafe { DlPack::from_raw(managed.cast()) } {
        Ok(ordered) => ordered,
        Err(error) => unreachable!("the version was looked at before: {error}"),
    }
}

/// # Safety
/// As a consumer calls it: with what `ordered` made, once.
unsafe extern "C" fn let_go_in_order(managed: *mut Managed) {
    // SAFETY: it is the box of `ordered`, and so is its context.
    let Ordered { ours, stream } = unsafe {
        let managed = Box::from_raw(managed);
        *Box::from_raw(managed.context.cast::<Ordered>())
    };
    if let Some(own) = cuda::handle(&stream) {
        // SAFETY: the legacy default stream is always there, and the other one is ours.
        if let Err(error) = unsafe { cuda::order(&stream, cuda::LEGACY, own) } {
            tracing::error!(%error, "work of another library on a tensor cannot be waited for");
        }
    }
    // SAFETY: it came from `into_raw`, and nobody has it any more.
    drop(unsafe { DlPack::from_raw(ours) });
}

/// The tensor of a managed one that is read, and stays whose it is; the axes are there as long as it is.
pub(crate) fn array_of(managed: DlPack) -> (DlPack, Array) {
    let raw = managed.into_raw();
    // SAFETY: it is a valid `DLManagedTensorVersioned`, and only read.
    let array = unsafe { (*raw.cast::<Managed>().as_ptr()).array };
    // SAFETY: it came from `into_raw`.
    match unsafe { DlPack::from_raw(raw) } {
        Ok(managed) => (managed, array),
        Err(error) => unreachable!("the version was looked at before: {error}"),
    }
}

/// # Safety
/// As a consumer calls it: with what `guarded` made, once.
unsafe extern "C" fn let_go(managed: *mut Managed) {
    // SAFETY: it is the box of `guarded`.
    let managed = unsafe { Box::from_raw(managed) };
    let Some(theirs) = NonNull::new(managed.context) else { return };
    // SAFETY: it came from `into_raw`, and nobody has it any more. Its version was looked at when it was
    // taken.
    if let Ok(theirs) = unsafe { DlPack::from_raw(theirs) } {
        garbage::put(Box::new(theirs));
    }
}

/// A capsule that holds `tensor`, in the form that a consumer asks for.
pub(crate) fn give<'py>(
    py: Python<'py>,
    tensor: DlPack,
    max_version: Option<(u32, u32)>,
) -> PyResult<Bound<'py, PyAny>> {
    let (managed, name) = tensor.into_capsule(max_version);
    // SAFETY: the name is one of two constants, and the destructor knows what it has to do with what holds
    // `managed`.
    unsafe {
        let capsule = ffi::PyCapsule_New(managed.as_ptr(), name.as_ptr(), Some(unused));
        Bound::from_owned_ptr_or_err(py, capsule)
    }
}

/// Lets go of the tensor of a capsule that nobody took.
///
/// # Safety
/// As Python calls it: with a capsule that `give` made, before it goes.
unsafe extern "C" fn unused(capsule: *mut ffi::PyObject) {
    for name in [VERSIONED, UNVERSIONED] {
        // SAFETY: the capsule is alive. Under these names it holds a tensor that nobody took.
        unsafe {
            if ffi::PyCapsule_IsValid(capsule, name.as_ptr()) == 1
                && let Some(managed) = NonNull::new(ffi::PyCapsule_GetPointer(capsule, name.as_ptr()))
            {
                let tensor = if name == VERSIONED {
                    DlPack::from_raw(managed).ok()
                } else {
                    Some(DlPack::from_raw_unversioned(managed))
                };
                drop(tensor);
            }
        }
    }
}
