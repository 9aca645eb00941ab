//! Tensors in Python: those that came in a message, and those that were made for one. Other libraries read
//! and write them by DLPack, without a copy.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use tensorpost_core::ids::DeviceId;
use tensorpost_core::tensor::{DType, DeviceStream, DlPack, Tensor, TensorError};

use crate::address_space::stream as own_stream;
use crate::context::Context;
use crate::cuda;
use crate::failure::{exception, tensor_error};
use crate::imports::{ON_HOST, taken};
use crate::lent_out::{self, Kind};
use crate::torch::{Ledger, Torch};
use crate::{capsule, pool};

/// A tensor. Its memory stays until the last object that uses it is gone.
#[pyclass(frozen, name = "Tensor", module = "tensorpost")]
pub(crate) struct PyTensor {
    pub(crate) tensor: Tensor,
    /// Whether this process owns it, and may write it in place.
    writable: bool,
    /// The context, in a process of a node.
    context: Option<Arc<Context>>,
    /// The ledger of the handler that it came to, and its index in the message.
    came_to: Option<(Arc<Ledger>, usize)>,
    /// The PyTorch tensor. It is made before it is put here, so that no thread waits for this with the
    /// interpreter.
    shown: OnceLock<Py<PyAny>>,
}

impl PyTensor {
    /// Makes a tensor that is not written.
    pub(crate) fn of(tensor: Tensor) -> Self {
        PyTensor { tensor, writable: false, context: None, came_to: None, shown: OnceLock::new() }
    }

    /// Makes a tensor that came in a message.
    pub(crate) fn arrived(
        tensor: Tensor,
        context: &Arc<Context>,
        came_to: Option<(Arc<Ledger>, usize)>,
    ) -> Self {
        PyTensor { context: Some(Arc::clone(context)), came_to, ..Self::of(tensor) }
    }

    /// Makes a tensor that this process owns.
    pub(crate) fn owned(tensor: Tensor, context: Option<Arc<Context>>) -> Self {
        PyTensor { writable: true, context, ..Self::of(tensor) }
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.writable
    }

    fn kind(&self) -> Kind {
        if self.writable { Kind::ToWrite } else { Kind::ToRead }
    }

    /// Returns the stream on which libraries work with it; `None` on the host.
    pub(crate) fn stream(&self) -> Option<Cow<'_, DeviceStream>> {
        self.context.as_ref()?.stream_for(self.tensor.device())
    }

    /// Hands the tensor to a library that works on our stream, or on the host.
    fn hand(&self, py: Python<'_>) -> PyResult<DlPack> {
        self.hand_on(py, self.stream().as_deref())
    }

    /// As [`hand`](Self::hand), for a known stream.
    fn hand_on(&self, py: Python<'_>, stream: Option<&DeviceStream>) -> PyResult<DlPack> {
        if stream.is_none() && self.tensor.device() != DeviceId::HOST {
            let device = self.tensor.device();
            let why = format!(
                "it is on {device}, and this actor works on the host; spawn it with device=\"cuda:0\""
            );
            return Err(exception(py, "TensorError", why));
        }
        let handed = if stream.is_some() || self.tensor.ready().is_none() {
            lent_out::hand(&self.tensor, self.kind(), stream)
        } else {
            py.detach(|| lent_out::hand(&self.tensor, self.kind(), None))
        };
        handed.map_err(|error| tensor_error(py, &error))
    }

    /// As [`hand`](Self::hand), for PyTorch, which works on the actor's stream, or on a side stream that the
    /// handler has begun.
    fn hand_to_torch(&self, py: Python<'_>, torch: &Torch, stream: &DeviceStream) -> PyResult<DlPack> {
        pool::work_on(py, stream)?;
        let handed = self.hand_on(py, Some(stream))?;
        if let (Some(own), Some(ordinal)) = (cuda::handle(stream), cuda::ordinal(stream)) {
            let current = match torch.current_stream(ordinal) {
                Some(current) => current,
                None => pool::current(py, stream)? as u64,
            };
            // The wait for the tensor's data is on the actor's stream, and came after the event on which the
            // side stream began. SAFETY: PyTorch keeps its current stream alive.
            #[expect(unsafe_code, reason = "the stream is another library's")]
            unsafe { cuda::order(stream, own, current) }.map_err(|why| exception(py, "TensorError", why))?;
        }
        Ok(handed)
    }

    /// As [`hand`](Self::hand), for a library that works on a stream of its own on the GPU.
    fn hand_to_library(&self, py: Python<'_>, other: Option<i64>) -> PyResult<DlPack> {
        let refused = |why: String| exception(py, "TensorError", why);
        let Some(stream) = self.stream() else { return self.hand(py) };
        let Some(own) = cuda::handle(&stream) else { return self.hand(py) };
        // -1: the consumer takes care of the order itself. None: the legacy default stream.
        let other = match other {
            Some(-1) => return self.hand(py),
            None => cuda::LEGACY,
            Some(0) => {
                let why = "stream=0 does not say which default stream; say 1 for the legacy one, or 2 for the thread's";
                return Err(PyBufferError::new_err(why));
            }
            Some(number) => number as u64,
        };
        let handed = self.hand_on(py, Some(&*stream))?;
        // SAFETY: the consumer names an existing stream of its own.
        #[expect(unsafe_code, reason = "the stream is another library's")]
        unsafe { cuda::order(&stream, own, other) }.map_err(refused)?;
        if other == own { Ok(handed) } else { Ok(capsule::ordered(handed, stream.into_owned())) }
    }
}

#[pymethods]
impl PyTensor {
    #[new]
    fn new(source: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(Self::of(taken(source, None)?))
    }

    /// The type of the elements, such as `"f32"`.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.tensor.dtype().name()
    }

    /// The number of elements along each axis.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.tensor.shape())
    }

    /// The distance from one element to the next along each axis, in elements.
    #[getter]
    fn strides<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.tensor.strides())
    }

    /// The number of axes.
    #[getter]
    fn ndim(&self) -> usize {
        self.tensor.rank()
    }

    /// The number of elements.
    #[getter]
    fn size(&self) -> usize {
        self.tensor.len()
    }

    /// The bytes that its elements take.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.tensor.bytes()
    }

    /// The device that it is on: `"host"`, or a GPU of this process, such as `"cuda:0"`.
    #[getter]
    fn device(&self) -> String {
        let ordinal = self.stream().and_then(|stream| cuda::ordinal(&stream));
        ordinal.map_or_else(|| self.tensor.device().to_string(), |ordinal| format!("cuda:{ordinal}"))
    }

    /// Whether this process owns it, and may write it in place.
    #[getter]
    fn writable(&self) -> bool {
        self.writable
    }

    /// Returns a copy of its elements, packed, with the last axis varying fastest.
    fn tobytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = match self.stream() {
            Some(stream) => py.detach(|| stream.download_bytes(&self.tensor)),
            None => {
                let stream = own_stream(py)?;
                py.detach(|| stream.download_bytes(&self.tensor))
            }
        };
        let bytes = bytes.map_err(|error| tensor_error(py, &error))?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// Returns the tensor in PyTorch: the same memory, on the actor's stream.
    fn torch<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        if let Some(shown) = self.shown.get() {
            return Ok(shown.bind(py).clone());
        }
        let torch = Torch::get(py)?;
        let handed = match (&self.context, self.stream()) {
            (Some(context), Some(stream)) if !context.is_actors() => {
                let current = pool::current(py, &stream)?;
                self.hand_to_library(py, Some(current))?
            }
            (_, Some(stream)) => self.hand_to_torch(py, torch, &stream)?,
            (_, None) => self.hand_on(py, None)?,
        };
        let (shown, version) = torch.show(py, handed)?;
        if let (false, Some((ledger, index))) = (self.writable, &self.came_to) {
            ledger.note(&shown, version, *index);
        }
        let shown = self.shown.get_or_init(|| shown.unbind());
        Ok(shown.bind(py).clone())
    }

    /// Returns the tensor in numpy: the same memory, which must be the host's.
    fn numpy<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let this = slf.get();
        if this.tensor.device() != DeviceId::HOST {
            let why = format!(
                "it is on {}, and numpy works on the host; say `.torch().cpu().numpy()`",
                this.device()
            );
            return Err(exception(py, "TensorError", why));
        }
        let dtype = this.tensor.dtype();
        if matches!(
            dtype,
            DType::BF16
                | DType::F8E4M3
                | DType::F8E5M2
                | DType::F8E4M3Fnuz
                | DType::F8E5M2Fnuz
                | DType::F8E8M0
                | DType::F4E2M1X2
        ) {
            let why =
                format!("numpy has no {dtype}; say `.torch()`, and convert it or look at its bytes there");
            return Err(exception(py, "TensorError", why));
        }
        py.import("numpy")?.call_method1("from_dlpack", (slf,))
    }

    /// Returns the tensor for another library: see the array API standard.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<i64>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let here = self.__dlpack_device__();
        let on_host = here.0 == ON_HOST[0];
        if stream.is_some() && on_host {
            return Err(PyBufferError::new_err(
                "the tensor is on the host, which has no streams; ask with stream=None",
            ));
        }
        if let Some(wanted) = dl_device
            && wanted != here
            && !(on_host && wanted.0 == ON_HOST[0])
        {
            let (kind, id) = wanted;
            let place = if on_host { "the host".to_owned() } else { self.device() };
            return Err(PyBufferError::new_err(format!(
                "the tensor is on {place}, and a copy for device ({kind}, {id}) was asked for; take it there, and copy it \
                 with the library: take it on the host, and copy it there, or the other way round"
            )));
        }
        let refused = |error: TensorError| tensor_error(py, &error);
        let managed = if copy == Some(true) {
            match self.stream() {
                Some(own) => {
                    let copy = own.copy(&self.tensor).map_err(refused)?;
                    PyTensor::owned(copy.freeze(), self.context.clone()).hand_to_library(py, stream)?
                }
                None => {
                    let own = own_stream(py)?;
                    py.detach(|| own.copy(&self.tensor).and_then(|copy| copy.into_dlpack()))
                        .map_err(refused)?
                }
            }
        } else {
            self.hand_to_library(py, stream)?
        };
        capsule::give(py, managed, max_version)
    }

    /// Returns the device of the tensor in DLPack's terms: `(1, 0)`, the host, or `(2, 0)`, the first GPU.
    fn __dlpack_device__(&self) -> (i32, i32) {
        let ordinal = self.stream().and_then(|stream| cuda::ordinal(&stream));
        ordinal.map_or((ON_HOST[0], 0), |ordinal| (2, ordinal))
    }

    /// Makes an annotation with a dtype and shape: `Tensor[f32, 3, ..., ...]`.
    #[classmethod]
    fn __class_getitem__<'py>(
        class: &Bound<'py, pyo3::types::PyType>,
        asked: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        class.py().import("tensorpost._types")?.call_method1("tensor_of", (asked,))
    }

    fn __repr__(&self) -> String {
        let writable = if self.writable { ", writable" } else { "" };
        format!("Tensor({}, shape={:?}, {}{writable})", self.dtype(), self.tensor.shape(), self.device())
    }
}

/// Makes a tensor in this process's pool, with uninitialised elements, to be written.
pub(crate) fn empty(
    py: Python<'_>,
    context: &Arc<Context>,
    shape: Vec<usize>,
    dtype: &str,
) -> PyResult<PyTensor> {
    let refused = |why: String| exception(py, "TensorError", why);
    let dtype: DType = dtype.parse().map_err(|_| {
        refused(format!("{dtype:?} is no dtype; there are {}", DType::ALL.map(DType::name).join(", ")))
    })?;
    let made = context.stream().empty(dtype, &shape).and_then(|made| {
        // On the host, libraries do not work on a stream, so this waits for the last user of the memory.
        if made.device() == DeviceId::HOST {
            py.detach(|| made.wait(None))?;
        }
        Ok(made)
    });
    let made = made.map_err(|error| refused(error.to_string()))?;
    Ok(PyTensor::owned(made.freeze(), Some(Arc::clone(context))))
}
