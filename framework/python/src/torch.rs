//! PyTorch, if it is installed: exchanges tensors by DLPack's C exchange API, or by capsules if the version
//! does not have it.
//!
//! Nothing is compiled against it. Memory that other processes read must not be written, and PyTorch ignores
//! the flag that says so. So [`Ledger`] notes the `_version` of a handler's tensors, which every write in
//! place raises, also one to a view.

#![expect(unsafe_code, reason = "the exchange API is C's")]

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::hash::{BuildHasherDefault, Hasher};
use std::mem::MaybeUninit;
use std::ptr::{NonNull, null_mut};

use parking_lot::Mutex;
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyString, PyType};
use smallvec::SmallVec;
use tensorpost_core::tensor::DlPack;

use crate::capsule::{self, Array, Managed};
use crate::failure::exception;

/// `DLPackExchangeAPI` of DLPack 1.2 and later.
#[repr(C)]
struct Exchange {
    version: [u32; 2],
    older: *const c_void,
    allocate: *const c_void,
    from_object: Option<unsafe extern "C" fn(*mut c_void, *mut *mut Managed) -> c_int>,
    to_object: Option<unsafe extern "C" fn(*mut Managed, *mut *mut c_void) -> c_int>,
    view: Option<unsafe extern "C" fn(*mut c_void, *mut Array) -> c_int>,
    stream: Option<unsafe extern "C" fn(i32, i32, *mut *mut c_void) -> c_int>,
}

/// `kDLCUDA`.
const CUDA: i32 = 2;

/// An attribute of PyTorch's own class, written in C. Reading it by its descriptor avoids looking it up in
/// class after class.
struct Attribute {
    descriptor: Py<PyAny>,
    get: ffi::descrgetfunc,
}

impl Attribute {
    /// Returns `None` if it is something else; Python reads it then.
    fn of(class: &Bound<'_, PyType>, name: &Bound<'_, PyString>) -> Option<Self> {
        let py = class.py();
        let descriptor = class.getattr(name).ok()?;
        let plain = py.import("types").and_then(|types| types.getattr("GetSetDescriptorType")).ok()?;
        if !descriptor.get_type().is(&plain) {
            return None;
        }
        // SAFETY: the type is alive, and any slot may be read.
        let slot = unsafe { ffi::PyType_GetSlot(descriptor.get_type_ptr(), ffi::Py_tp_descr_get) };
        if slot.is_null() {
            return None;
        }
        // SAFETY: Python documents that the slot of this number holds such a function.
        let get = unsafe { std::mem::transmute::<*mut c_void, ffi::descrgetfunc>(slot) };
        Some(Attribute { descriptor: descriptor.unbind(), get })
    }

    /// Reads the attribute of an object of the class itself.
    fn of_object<'py>(&self, object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        // SAFETY: called as Python itself does, with the object and its class; it returns a new reference, or
        // null and an error.
        unsafe {
            let value = (self.get)(self.descriptor.as_ptr(), object.as_ptr(), object.get_type_ptr().cast());
            Bound::from_owned_ptr_or_err(object.py(), value)
        }
    }
}

/// The parts of PyTorch that are used.
pub(crate) struct Torch {
    class: Py<PyType>,
    /// Attributes of `class` that are read for each tensor.
    requires_grad: Option<Attribute>,
    version: Option<Attribute>,
    from_dlpack: Py<PyAny>,
    /// The normal mode, for tensors that are made in the inference mode: those have no version counter.
    normally: Py<PyAny>,
    exchange: Option<&'static Exchange>,
}

// SAFETY: the table is constant, and its functions are called with the interpreter.
unsafe impl Send for Torch {}
// SAFETY: as above.
unsafe impl Sync for Torch {}

static TORCH: PyOnceLock<Torch> = PyOnceLock::new();

impl Torch {
    /// Returns PyTorch, if this process has imported it.
    pub(crate) fn if_there(py: Python<'_>) -> PyResult<Option<&'static Torch>> {
        if let Some(torch) = TORCH.get(py) {
            return Ok(Some(torch));
        }
        let modules = py.import("sys")?.getattr("modules")?;
        // While it is being imported, it has no class yet.
        let there = modules.call_method1("get", ("torch",))?;
        if there.is_none() || !there.hasattr("compile")? {
            return Ok(None);
        }
        Self::get(py).map(Some)
    }

    /// Returns PyTorch, and imports it if needed.
    pub(crate) fn get(py: Python<'_>) -> PyResult<&'static Torch> {
        TORCH.get_or_try_init(py, || {
            let module = py.import("torch").map_err(|cause| {
                let why =
                    "PyTorch is not there; install it where this interpreter looks (`pip install torch`)";
                let error = exception(py, "TensorError", why.to_owned());
                error.set_cause(py, Some(cause));
                error
            })?;
            let class = module.getattr("Tensor")?.cast_into::<PyType>()?;
            let exchange = match class.getattr("__dlpack_c_exchange_api__") {
                Ok(capsule) => exchange_of(&capsule),
                Err(_) => None,
            };
            Ok(Torch {
                requires_grad: Attribute::of(&class, intern!(py, "requires_grad")),
                version: Attribute::of(&class, intern!(py, "_version")),
                class: class.unbind(),
                from_dlpack: py.import("torch.utils.dlpack")?.getattr("from_dlpack")?.unbind(),
                normally: module.getattr("inference_mode")?.unbind(),
                exchange,
            })
        })
    }

    /// Whether an object is one of its tensors.
    pub(crate) fn is_tensor(&self, object: &Bound<'_, PyAny>) -> PyResult<bool> {
        let class = self.class.bind(object.py());
        Ok(object.get_type().is(class) || object.is_instance(class)?)
    }

    /// Reads an attribute of a tensor. If the tensor is of a subclass, which may override the attribute,
    /// Python looks it up.
    fn read<'py>(
        &self,
        known: Option<&Attribute>,
        tensor: &Bound<'py, PyAny>,
        name: &Bound<'py, PyString>,
    ) -> PyResult<Bound<'py, PyAny>> {
        match known {
            Some(attribute) if tensor.get_type_ptr() == self.class.as_ptr().cast() => {
                attribute.of_object(tensor)
            }
            _ => tensor.getattr(name),
        }
    }

    /// Whether a tensor has a gradient.
    pub(crate) fn requires_grad(&self, tensor: &Bound<'_, PyAny>) -> PyResult<bool> {
        self.read(self.requires_grad.as_ref(), tensor, intern!(tensor.py(), "requires_grad"))?.is_truthy()
    }

    /// Whether its elements are the negatives of the numbers in its memory.
    pub(crate) fn is_negated(&self, tensor: &Bound<'_, PyAny>) -> PyResult<bool> {
        tensor.call_method0(intern!(tensor.py(), "is_neg"))?.is_truthy()
    }

    /// Returns how often a tensor was written, if it counts that.
    pub(crate) fn version(&self, tensor: &Bound<'_, PyAny>) -> PyResult<u64> {
        let version = self.read(self.version.as_ref(), tensor, intern!(tensor.py(), "_version"))?;
        // SAFETY: the object is alive; if it is not an int, that is an error.
        let number = unsafe { ffi::PyLong_AsUnsignedLongLong(version.as_ptr()) };
        // An error returns this number too.
        if number == u64::MAX { PyErr::take(tensor.py()).map_or(Ok(number), Err) } else { Ok(number) }
    }

    /// Makes a PyTorch tensor over this memory, and returns its version.
    pub(crate) fn show<'py>(&self, py: Python<'py>, managed: DlPack) -> PyResult<(Bound<'py, PyAny>, u64)> {
        let shown = self.made(py, managed)?;
        match self.version(&shown) {
            Ok(version) => Ok((shown, version)),
            Err(_) => {
                // The same memory, as a tensor with a version counter.
                let normally = self.normally.bind(py).call1((false,))?;
                normally.call_method0("__enter__")?;
                let aliased = shown
                    .call_method0("__dlpack__")
                    .and_then(|capsule| self.from_dlpack.bind(py).call1((capsule,)));
                let none = py.None();
                normally.call_method1("__exit__", (&none, &none, &none))?;
                let shown = aliased?;
                let version = self.version(&shown)?;
                Ok((shown, version))
            }
        }
    }

    fn made<'py>(&self, py: Python<'py>, managed: DlPack) -> PyResult<Bound<'py, PyAny>> {
        let Some(to_object) = self.exchange.and_then(|exchange| exchange.to_object) else {
            let capsule = capsule::give(py, managed, Some((1, 0)))?;
            return self.from_dlpack.bind(py).call1((capsule,));
        };
        let mut object = null_mut();
        // SAFETY: the tensor is valid and owned here; the function takes it over, and returns whether it has
        // made an object.
        unsafe {
            if to_object(managed.into_raw().as_ptr().cast(), &raw mut object) != 0 {
                return Err(PyErr::fetch(py));
            }
            Bound::from_owned_ptr_or_err(py, object.cast::<ffi::PyObject>())
        }
    }

    /// Describes where a tensor lies, without allocating; valid as long as the tensor is alive. `None`
    /// without the exchange API.
    pub(crate) fn view(&self, tensor: &Bound<'_, PyAny>) -> Option<PyResult<Array>> {
        let view = self.exchange.and_then(|exchange| exchange.view)?;
        let mut array = MaybeUninit::uninit();
        // SAFETY: the object is a tensor of the class whose table this is, and there is room for the struct.
        let failed = unsafe { view(tensor.as_ptr().cast(), array.as_mut_ptr()) } != 0;
        if failed {
            return Some(Err(PyErr::fetch(tensor.py())));
        }
        // SAFETY: the call has succeeded, so it has written the struct.
        Some(Ok(unsafe { array.assume_init() }))
    }

    /// Exports a tensor by DLPack, with its storage, without waiting. `None` without the exchange API.
    pub(crate) fn give(&self, tensor: &Bound<'_, PyAny>) -> Option<PyResult<DlPack>> {
        let py = tensor.py();
        let from_object = self.exchange.and_then(|exchange| exchange.from_object)?;
        let mut managed = null_mut();
        // SAFETY: as in `view`.
        if unsafe { from_object(tensor.as_ptr().cast(), &raw mut managed) } != 0 {
            return Some(Err(PyErr::fetch(py)));
        }
        let Some(managed) = NonNull::new(managed) else { return Some(Err(PyErr::fetch(py))) };
        // SAFETY: the call has succeeded, and its result is owned here. The tensor is not written while other
        // processes have it: the docs ask for that, and the ledger checks it.
        let given = unsafe { DlPack::from_raw(managed.cast()) };
        Some(given.map_err(|error| exception(py, "TensorError", error.to_string())))
    }

    /// Returns the stream that PyTorch works on, on this thread. `None` if it does not tell.
    pub(crate) fn current_stream(&self, ordinal: i32) -> Option<u64> {
        let current = self.exchange.and_then(|exchange| exchange.stream)?;
        let mut found = null_mut();
        // SAFETY: it writes one pointer.
        let failed = unsafe { current(CUDA, ordinal, &raw mut found) } != 0;
        (!failed).then_some(found as u64)
    }
}

/// Returns the table in its capsule, if its version is known.
fn exchange_of(capsule: &Bound<'_, PyAny>) -> Option<&'static Exchange> {
    let name = c"dlpack_exchange_api";
    // SAFETY: the first function takes any object; the second is called for a capsule of this name. DLPack
    // says that the table in it is constant, and lives as long as the process.
    let exchange = unsafe {
        if ffi::PyCapsule_IsValid(capsule.as_ptr(), name.as_ptr()) != 1 {
            return None;
        }
        ffi::PyCapsule_GetPointer(capsule.as_ptr(), name.as_ptr()).cast::<Exchange>().as_ref()?
    };
    (exchange.version[0] == 1).then_some(exchange)
}

/// A PyTorch tensor whose memory other processes read.
struct Noted {
    tensor: Py<PyAny>,
    version: u64,
    /// Its index in the message.
    index: usize,
}

impl Noted {
    /// Returns how often it was written since, if it was.
    fn written(&self, py: Python<'_>) -> PyResult<Option<(usize, u64)>> {
        let version = Torch::get(py)?.version(self.tensor.bind(py))?;
        Ok((version != self.version).then(|| (self.index, version.wrapping_sub(self.version))))
    }
}

/// Up to so many tensors are searched one by one; further ones are found by their addresses.
const FEW: usize = 16;

/// Hashes addresses of objects. No attacker chooses them.
#[derive(Default)]
struct OfAddress(u64);

impl Hasher for OfAddress {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_usize(usize::from(*byte)));
    }

    fn write_usize(&mut self, address: usize) {
        // 2^64 divided by the golden ratio: the bits that differ go to the top, and the rotation moves them
        // to where the table looks.
        self.0 = (self.0 ^ address as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(26);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[derive(Default)]
struct Notes {
    /// The first tensors. They nearly always need no heap memory.
    few: SmallVec<[Noted; 2]>,
    /// The others, by the address of the object, which is alive for as long as it is noted.
    many: HashMap<usize, Noted, BuildHasherDefault<OfAddress>>,
    /// How many were left when the tensors that only the ledger holds were last dropped.
    left: usize,
    /// The first of the dropped tensors that had been written.
    written: Option<(usize, u64)>,
}

impl Notes {
    fn count(&self) -> usize {
        self.few.len() + self.many.len()
    }

    fn add(&mut self, tensor: &Bound<'_, PyAny>, version: u64, index: usize) {
        if self.few.iter().any(|noted| noted.tensor.is(tensor)) {
            return;
        }
        let noted = || Noted { tensor: tensor.clone().unbind(), version, index };
        if self.few.len() < FEW {
            // A tensor that came when there were many is in that map.
            if !self.many.contains_key(&tensor.as_ptr().addr()) {
                self.few.push(noted());
            }
        } else {
            self.many.entry(tensor.as_ptr().addr()).or_insert_with(noted);
        }
    }

    /// Returns the first tensor that was written, and how often.
    fn written(self, py: Python<'_>) -> PyResult<Option<(usize, u64)>> {
        let Notes { few, many, mut written, .. } = self;
        for noted in few.into_iter().chain(many.into_values()) {
            written = [written, noted.written(py)?].into_iter().flatten().min();
        }
        Ok(written)
    }

    /// Takes out the tensors that only the ledger holds. Checks them only when they are twice as many as were
    /// left the last time.
    fn alone(&mut self, _: Python<'_>) -> Vec<Noted> {
        if self.count() <= 2 * self.left {
            return Vec::new();
        }
        // SAFETY: the object is alive, and the interpreter is held.
        let is_ours_alone = |noted: &Noted| unsafe { ffi::Py_REFCNT(noted.tensor.as_ptr()) } == 1;
        let mut gone = Vec::new();
        let mut at = 0;
        while at < self.few.len() {
            if is_ours_alone(&self.few[at]) {
                gone.push(self.few.swap_remove(at));
            } else {
                at += 1;
            }
        }
        gone.extend(self.many.extract_if(|_, noted| is_ours_alone(noted)).map(|(_, noted)| noted));
        self.left = self.count();
        gone
    }
}

/// The tensors that a handler was shown, or has sent.
#[derive(Default)]
pub(crate) struct Ledger {
    notes: Mutex<Option<Notes>>,
}

impl Ledger {
    pub(crate) fn open() -> Self {
        Ledger { notes: Mutex::new(Some(Notes::default())) }
    }

    /// Begins anew.
    pub(crate) fn reopen(&self) {
        *self.notes.lock() = Some(Notes::default());
    }

    pub(crate) fn is_open(&self) -> bool {
        self.notes.lock().is_some()
    }

    /// Notes a tensor that was shown, if the handler is not done.
    pub(crate) fn note(&self, tensor: &Bound<'_, PyAny>, version: u64, index: usize) {
        if let Some(notes) = &mut *self.notes.lock() {
            notes.add(tensor, version, index);
        }
    }

    /// As [`note`](Self::note), and drops tensors that only the ledger holds: a handler may send without end,
    /// and their memory must come back before it is done. A write through a view whose tensor is gone is not
    /// found.
    pub(crate) fn note_and_let_go(&self, tensor: &Bound<'_, PyAny>, version: u64) -> PyResult<()> {
        let py = tensor.py();
        let gone = match &mut *self.notes.lock() {
            Some(notes) => {
                notes.add(tensor, version, 0);
                notes.alone(py)
            }
            None => return Ok(()),
        };
        // Without the lock: dropping a tensor may run code of any class.
        for noted in gone {
            if let Some(written) = noted.written(py)?
                && let Some(notes) = &mut *self.notes.lock()
            {
                notes.written.get_or_insert(written);
            }
        }
        Ok(())
    }

    /// Closes the ledger when the handler is done. Returns the first tensor that was written, and how often.
    pub(crate) fn close(&self, py: Python<'_>) -> PyResult<Option<(usize, u64)>> {
        let notes = self.notes.lock().take();
        notes.map_or(Ok(None), |notes| notes.written(py))
    }

    /// As [`close`](Self::close), and begins anew for the next handler.
    pub(crate) fn close_and_reopen(&self, py: Python<'_>) -> PyResult<Option<(usize, u64)>> {
        let notes = {
            let mut notes = self.notes.lock();
            match &mut *notes {
                // Nearly all handlers end here.
                Some(notes) if notes.count() == 0 && notes.written.is_none() => return Ok(None),
                notes => notes.replace(Notes::default()),
            }
        };
        notes.map_or(Ok(None), |notes| notes.written(py))
    }
}
