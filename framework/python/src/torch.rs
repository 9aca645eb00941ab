//! PyTorch, where it is installed: its tensors by DLPack's C exchange API, and by capsules where a version has none.
//!
//! Nothing is compiled against it. Of a handler's tensors [`Ledger`] notes their `_version`, which every write in place raises, also one
//! to a view: memory that others read must not be written, and PyTorch does not heed the flag that says so.

#![expect(unsafe_code, reason = "the exchange API is C's")]

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::{NonNull, null_mut};

use parking_lot::Mutex;
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;
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

/// What is known of PyTorch.
pub(crate) struct Torch {
    class: Py<PyType>,
    from_dlpack: Py<PyAny>,
    /// The normal mode, for tensors that are made in the inference mode: those count no versions.
    normally: Py<PyAny>,
    exchange: Option<&'static Exchange>,
}

// SAFETY: the table is constant, and its functions are called with the interpreter.
unsafe impl Send for Torch {}
// SAFETY: as above.
unsafe impl Sync for Torch {}

static TORCH: PyOnceLock<Torch> = PyOnceLock::new();

impl Torch {
    /// PyTorch, if this process has imported it.
    pub(crate) fn if_there(py: Python<'_>) -> PyResult<Option<&'static Torch>> {
        if let Some(torch) = TORCH.get(py) {
            return Ok(Some(torch));
        }
        let modules = py.import("sys")?.getattr("modules")?;
        // While it is being imported it has no class yet.
        let there = modules.call_method1("get", ("torch",))?;
        if there.is_none() || !there.hasattr("compile")? {
            return Ok(None);
        }
        Self::get(py).map(Some)
    }

    /// PyTorch, which is imported where it was not.
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

    /// A tensor of it over this memory, and its version.
    pub(crate) fn show<'py>(&self, py: Python<'py>, managed: DlPack) -> PyResult<(Bound<'py, PyAny>, u64)> {
        let shown = self.made(py, managed)?;
        match shown.getattr(intern!(py, "_version")).and_then(|version| version.extract()) {
            Ok(version) => Ok((shown, version)),
            Err(_) => {
                // The same memory, as a tensor that counts.
                let normally = self.normally.bind(py).call1((false,))?;
                normally.call_method0("__enter__")?;
                let aliased = shown
                    .call_method0("__dlpack__")
                    .and_then(|capsule| self.from_dlpack.bind(py).call1((capsule,)));
                let none = py.None();
                normally.call_method1("__exit__", (&none, &none, &none))?;
                let shown = aliased?;
                let version = shown.getattr(intern!(py, "_version"))?.extract()?;
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
        // SAFETY: the tensor is valid and this one's to give; the function steals it, and says whether it has made an object.
        unsafe {
            if to_object(managed.into_raw().as_ptr().cast(), &raw mut object) != 0 {
                return Err(PyErr::fetch(py));
            }
            Bound::from_owned_ptr_or_err(py, object.cast::<ffi::PyObject>())
        }
    }

    /// Where a tensor lies, as long as the tensor is there: nothing is made for it. `None` without the exchange API.
    pub(crate) fn view(&self, tensor: &Bound<'_, PyAny>) -> Option<PyResult<Array>> {
        let view = self.exchange.and_then(|exchange| exchange.view)?;
        let mut array = MaybeUninit::uninit();
        // SAFETY: the object is a tensor of the class whose table this is, and there is room for the struct.
        let failed = unsafe { view(tensor.as_ptr().cast(), array.as_mut_ptr()) } != 0;
        if failed {
            return Some(Err(PyErr::fetch(tensor.py())));
        }
        // SAFETY: it has succeeded, and so has written it.
        Some(Ok(unsafe { array.assume_init() }))
    }

    /// A tensor by DLPack, with its storage. Nothing is waited for. `None` without the exchange API.
    pub(crate) fn give(&self, tensor: &Bound<'_, PyAny>) -> Option<PyResult<DlPack>> {
        let py = tensor.py();
        let from_object = self.exchange.and_then(|exchange| exchange.from_object)?;
        let mut managed = null_mut();
        // SAFETY: as in `view`.
        if unsafe { from_object(tensor.as_ptr().cast(), &raw mut managed) } != 0 {
            return Some(Err(PyErr::fetch(py)));
        }
        let Some(managed) = NonNull::new(managed) else { return Some(Err(PyErr::fetch(py))) };
        // SAFETY: it has succeeded, and what it made is this one's. Nobody writes it while others have it: docs and ledger.
        let given = unsafe { DlPack::from_raw(managed.cast()) };
        Some(given.map_err(|error| exception(py, "TensorError", error.to_string())))
    }

    /// The stream that PyTorch works on, on this thread. `None` where it does not say.
    pub(crate) fn current_stream(&self, ordinal: i32) -> Option<u64> {
        let current = self.exchange.and_then(|exchange| exchange.stream)?;
        let mut found = null_mut();
        // SAFETY: it writes one pointer.
        let failed = unsafe { current(CUDA, ordinal, &raw mut found) } != 0;
        (!failed).then_some(found as u64)
    }
}

/// The table in its capsule, where its version is known.
fn exchange_of(capsule: &Bound<'_, PyAny>) -> Option<&'static Exchange> {
    let name = c"dlpack_exchange_api";
    // SAFETY: the first function takes any object; the second is called for a capsule of this name. What it holds is
    // constant, and stays as long as the process: DLPack says so.
    let exchange = unsafe {
        if ffi::PyCapsule_IsValid(capsule.as_ptr(), name.as_ptr()) != 1 {
            return None;
        }
        ffi::PyCapsule_GetPointer(capsule.as_ptr(), name.as_ptr()).cast::<Exchange>().as_ref()?
    };
    (exchange.version[0] == 1).then_some(exchange)
}

/// A tensor of PyTorch whose memory others read.
struct Noted {
    tensor: Py<PyAny>,
    version: u64,
    /// Which of the message's.
    index: usize,
}

impl Noted {
    /// How often it was written since, if it was.
    fn written(&self, py: Python<'_>) -> PyResult<Option<(usize, u64)>> {
        let version: u64 = self.tensor.bind(py).getattr(intern!(py, "_version"))?.extract()?;
        Ok((version != self.version).then(|| (self.index, version.wrapping_sub(self.version))))
    }
}

#[derive(Default)]
struct Notes {
    /// By the object, which is there for as long as it is noted.
    noted: HashMap<usize, Noted>,
    /// How many were left when those that nobody else has were last let go of.
    left: usize,
    /// Of those, the first that had been written.
    written: Option<(usize, u64)>,
}

/// What a handler was shown of its message, or has sent.
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

    /// A tensor was shown, if the handler is not done.
    pub(crate) fn note(&self, tensor: &Bound<'_, PyAny>, version: u64, index: usize) {
        if let Some(notes) = &mut *self.notes.lock() {
            let noted = || Noted { tensor: tensor.clone().unbind(), version, index };
            notes.noted.entry(tensor.as_ptr().addr()).or_insert_with(noted);
        }
    }

    /// Lets go of tensors that nobody else has: a handler may send without end, and their memory is to come back before it is done.
    /// What a view writes whose tensor has gone is not found. Looks at all only when they are twice as many as were left.
    pub(crate) fn let_go(&self, py: Python<'_>) -> PyResult<()> {
        let gone: Vec<Noted> = match &mut *self.notes.lock() {
            Some(notes) if notes.noted.len() > 2 * notes.left => {
                // SAFETY: of an object that is held; the interpreter is (`py`).
                let is_ours_alone = |noted: &Noted| unsafe { ffi::Py_REFCNT(noted.tensor.as_ptr()) } == 1;
                let gone = notes.noted.extract_if(|_, noted| is_ours_alone(noted));
                let gone = gone.map(|(_, noted)| noted).collect();
                notes.left = notes.noted.len();
                gone
            }
            _ => return Ok(()),
        };
        // Without the lock: what drops here may be anybody's class.
        for noted in gone {
            if let Some(written) = noted.written(py)?
                && let Some(notes) = &mut *self.notes.lock()
            {
                notes.written.get_or_insert(written);
            }
        }
        Ok(())
    }

    /// The handler is done: the first tensor that was written, and how often.
    pub(crate) fn close(&self, py: Python<'_>) -> PyResult<Option<(usize, u64)>> {
        let Some(Notes { noted, mut written, .. }) = self.notes.lock().take() else { return Ok(None) };
        for noted in noted.into_values() {
            written = [written, noted.written(py)?].into_iter().flatten().min();
        }
        Ok(written)
    }
}
