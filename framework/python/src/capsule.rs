//! DLPack capsules of Python: takes them, and makes them.
//!
//! A managed tensor of another library is dropped on a Rust thread, when all work with it has passed. Its
//! deleter is mostly Python's, and needs the interpreter. So a tensor that was taken is wrapped: the
//! wrapper's deleter only puts it where a thread that has the interpreter finds it ([`garbage`]). If a thread
//! takes the interpreter while that is ending, Python ends the thread in the middle of its call, which aborts
//! the process. So such a thread first asks whether the interpreter is still there ([`Gate`]), and otherwise
//! leaves the memory to the end of the process.
//!
//! **Locks.** The gate's is held only to count, and never during a call of Python.

#![expect(unsafe_code, reason = "capsules hold structs of C")]

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

use pyo3::ffi;
use pyo3::prelude::*;
use tensorpost_core::os::PerProcess;
use tensorpost_core::os::lock::{Condvar, Mutex};
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

/// Whether deleters may still take the interpreter, and how many are about to.
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

/// Each process has its own: a forked child does not have the threads that drop memory, and would find the
/// gate as they left it.
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

/// Closes the gate, because the interpreter is about to end: waits for running deleters, and lets no other
/// begin.
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

/// Drops a value that needs the interpreter, with the interpreter. If that is ending, nothing is dropped.
pub(crate) fn drop_with_interpreter<T>(held: T) {
    let mut held = Some(held);
    GATE.get().through(|| drop(held.take()));
    std::mem::forget(held);
}

/// Takes over the tensor that a capsule holds. Its deleter is still the other library's own, so it must be
/// called with the interpreter, or the tensor must be [guarded].
pub(crate) fn take(capsule: &Bound<'_, PyAny>) -> PyResult<DlPack> {
    let py = capsule.py();
    let refused = |why: String| exception(py, "TensorError", why);
    let has_name = |name: &CStr| {
        // SAFETY: the object is alive, and the function takes any object.
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
    // SAFETY: it is a capsule of this name, as was just checked.
    let managed = unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), name.as_ptr()) };
    let managed = NonNull::new(managed).ok_or_else(|| PyErr::fetch(py))?;
    // SAFETY: as above. The name is a constant, which outlives the capsule.
    if unsafe { ffi::PyCapsule_SetName(capsule.as_ptr(), used.as_ptr()) } != 0 {
        return Err(PyErr::fetch(py));
    }
    let theirs = if name == VERSIONED {
        // SAFETY: a capsule of this name holds a `DLManagedTensorVersioned`, and after the renaming no other
        // consumer can take it. The protocol says that the memory stays until the deleter is called. The
        // program that gave the object does not write it any more: the package's docs ask for that.
        unsafe { DlPack::from_raw(managed) }.map_err(|error| refused(error.to_string()))?
    } else {
        // SAFETY: as above, for a `DLManagedTensor`.
        unsafe { DlPack::from_raw_unversioned(managed) }
    };
    Ok(theirs)
}

/// Wraps a tensor so that its deleter may be called on any thread.
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
    // SAFETY: the struct is of version 1, as it was before. The memory that it points to lives until the
    // inner deleter is called, and that happens only after `let_go` has put the inner tensor away. `let_go`
    // can be called on any thread.
    match unsafe { DlPack::from_raw(managed.cast()) } {
        Ok(guarded) => Ok(guarded),
        Err(error) => unreachable!("the version was looked at before: {error}"),
    }
}

/// A tensor on a GPU that a library which works on other streams has dropped.
struct Ordered {
    ours: NonNull<c_void>,
    stream: DeviceStream,
}

/// Wraps a tensor for a library that works on other streams than `stream`. When the library drops it,
/// `stream` is put behind the work that the library has given the GPU by then, as far as the legacy default
/// stream waits for the library's streams.
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
/// The caller passes a tensor that `ordered` made, once, as a consumer does.
unsafe extern "C" fn let_go_in_order(managed: *mut Managed) {
    // SAFETY: it is the box of `ordered`, and so is its context.
    let Ordered { ours, stream } = unsafe {
        let managed = Box::from_raw(managed);
        *Box::from_raw(managed.context.cast::<Ordered>())
    };
    if let Some(own) = cuda::handle(&stream) {
        // SAFETY: the legacy default stream always exists, and the other stream is ours.
        if let Err(error) = unsafe { cuda::order(&stream, cuda::LEGACY, own) } {
            tracing::error!(%error, "work of another library on a tensor cannot be waited for");
        }
    }
    // SAFETY: it came from `into_raw`, and nothing else holds it any more.
    drop(unsafe { DlPack::from_raw(ours) });
}

/// Reads the description of a managed tensor, which stays with its owner. The axes live as long as the
/// managed tensor.
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
/// The caller passes a tensor that `guarded` made, once, as a consumer does.
unsafe extern "C" fn let_go(managed: *mut Managed) {
    // SAFETY: it is the box of `guarded`.
    let managed = unsafe { Box::from_raw(managed) };
    let Some(theirs) = NonNull::new(managed.context) else { return };
    // SAFETY: it came from `into_raw`, and nothing else holds it any more. Its version was checked when it
    // was taken.
    if let Ok(theirs) = unsafe { DlPack::from_raw(theirs) } {
        garbage::put(Box::new(theirs));
    }
}

/// Makes a capsule that holds `tensor`, in the form that a consumer asks for.
pub(crate) fn give<'py>(
    py: Python<'py>,
    tensor: DlPack,
    max_version: Option<(u32, u32)>,
) -> PyResult<Bound<'py, PyAny>> {
    let (managed, name) = tensor.into_capsule(max_version);
    // SAFETY: the name is one of two constants, and the destructor knows how to drop a capsule that holds
    // `managed`.
    unsafe {
        let capsule = ffi::PyCapsule_New(managed.as_ptr(), name.as_ptr(), Some(unused));
        Bound::from_owned_ptr_or_err(py, capsule)
    }
}

/// Drops the tensor of a capsule that no consumer took.
///
/// # Safety
/// The caller passes a capsule that `give` made, before it is freed, as Python does.
unsafe extern "C" fn unused(capsule: *mut ffi::PyObject) {
    for name in [VERSIONED, UNVERSIONED] {
        // SAFETY: the capsule is alive. Under these names it holds a tensor that no consumer took.
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
