//! Tensors of the host in Python: from any object that speaks DLPack, and to it, without a copy.

use pyo3::exceptions::{PyBufferError, PyException, PyTypeError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyTuple};
use tensorpost_core::api::message::TensorMismatch;
use tensorpost_core::device::DeviceKind;
use tensorpost_core::message::portable::TensorShape;
use tensorpost_core::tensor::{DType, DlPackReady, Tensor, TensorError};

use crate::address_space::stream as own_stream;
use crate::capsule;
use crate::failure::exception;

/// `kDLCPU` and `kDLCUDAHost`: what the host can reach.
const ON_HOST: [i32; 2] = [1, 3];

/// A tensor in host memory that nobody writes. Its memory is another library's, or was copied, and stays until the last
/// object that uses it is gone.
#[pyclass(frozen, name = "Tensor", module = "tensorpost")]
#[derive(Debug)]
pub(crate) struct PyTensor {
    tensor: Tensor,
}

impl PyTensor {
    pub(crate) fn of(tensor: Tensor) -> Self {
        PyTensor { tensor }
    }
}

#[pymethods]
impl PyTensor {
    #[new]
    fn new(source: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(PyTensor { tensor: taken(source)? })
    }

    /// The type of the elements, such as `"f32"`.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.tensor.dtype().name()
    }

    /// Elements along each axis.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.tensor.shape())
    }

    /// From one element to the next along each axis, in elements.
    #[getter]
    fn strides<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.tensor.strides())
    }

    /// Number of axes.
    #[getter]
    fn ndim(&self) -> usize {
        self.tensor.rank()
    }

    /// Number of elements.
    #[getter]
    fn size(&self) -> usize {
        self.tensor.len()
    }

    /// Bytes that its elements take.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.tensor.len() as u64 * self.tensor.dtype().size() as u64
    }

    /// Where it is: `"host"`.
    #[getter]
    fn device(&self) -> String {
        self.tensor.device().to_string()
    }

    /// A copy of its elements, packed, the last axis first.
    fn tobytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let stream = own_stream(py)?;
        let bytes = py.detach(|| stream.download_bytes(&self.tensor));
        let bytes = bytes.map_err(|error| exception(py, "TensorError", error.to_string()))?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// The tensor for another library: see the array API standard.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if stream.is_some() {
            return Err(PyBufferError::new_err(
                "the tensor is on the host, which has no streams; ask with stream=None",
            ));
        }
        if let Some((kind, id)) = dl_device
            && kind != ON_HOST[0]
        {
            return Err(PyBufferError::new_err(format!(
                "the tensor is on the host, and a copy for device ({kind}, {id}) was asked for; take it on the host, and copy it there"
            )));
        }
        let refused = |error: TensorError| exception(py, "TensorError", error.to_string());
        let managed = if copy == Some(true) {
            let own = own_stream(py)?;
            py.detach(|| own.copy(&self.tensor).and_then(|copy| copy.into_dlpack()))
        } else {
            py.detach(|| self.tensor.to_dlpack())
        };
        capsule::give(py, managed.map_err(refused)?, max_version)
    }

    /// Where the tensor is, as DLPack says it: `(1, 0)`, the host.
    fn __dlpack_device__(&self) -> (i32, i32) {
        (ON_HOST[0], 0)
    }

    /// What an annotation asks of a tensor: `Tensor[f32, 3, ..., ...]`.
    #[classmethod]
    fn __class_getitem__<'py>(
        class: &Bound<'py, pyo3::types::PyType>,
        asked: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        class.py().import("tensorpost._types")?.call_method1("tensor_of", (asked,))
    }

    fn __repr__(&self) -> String {
        format!("Tensor({}, shape={:?}, {})", self.dtype(), self.tensor.shape(), self.device())
    }
}

/// A tensor of what Python has: one of ours, or any object with `__dlpack__`.
pub(crate) fn taken(source: &Bound<'_, PyAny>) -> PyResult<Tensor> {
    if let Ok(own) = source.cast::<PyTensor>() {
        return Ok(own.get().tensor.clone());
    }
    let py = source.py();
    let name = source.get_type().name().map(|name| name.to_string()).unwrap_or_default();
    let refused = |why: String| exception(py, "TensorError", why);
    if !source.hasattr("__dlpack__")? || !source.hasattr("__dlpack_device__")? {
        return Err(refused(format!(
            "a {name} is no tensor; give a tp.Tensor, or an object with `__dlpack__`, such as a numpy array or a torch tensor"
        )));
    }
    if let Some(why) = is_not_plain(source) {
        return Err(refused(format!("the {name} {why}")));
    }
    let unwilling = |cause: PyErr| {
        if !cause.is_instance_of::<PyException>(py) {
            // Ctrl-C, or the end of the program, and nothing of the object's.
            return cause;
        }
        let error = refused(format!("the {name} does not give itself by DLPack: {}", cause.value(py)));
        error.set_cause(py, Some(cause));
        error
    };
    let device = source.call_method0("__dlpack_device__").and_then(|device| device.extract::<(i32, i32)>());
    let (kind, id) = device.map_err(unwilling)?;
    if !ON_HOST.contains(&kind) {
        let device =
            if kind == 2 { format!("cuda:{id}") } else { format!("device {id} of DLPack's type {kind}") };
        return Err(refused(format!(
            "the {name} is on {device}, and tensors of Python are on the host; copy it there first, with `.cpu()` for one"
        )));
    }
    let given = given(source).map_err(unwilling)?;
    let managed = capsule::take(&given)?;
    let tensor = own_stream(py)?.from_dlpack(managed, DlPackReady::Now);
    tensor.map_err(|error| refused(format!("the {name} cannot be taken: {}", why(&error))))
}

/// What a tensor of PyTorch is that its memory alone does not say, and what to do.
fn is_not_plain(source: &Bound<'_, PyAny>) -> Option<&'static str> {
    let is = |property: &str| source.getattr(property).is_ok_and(|is| is.is_truthy().unwrap_or(false));
    // Others have none of these, and are asked once.
    let gradient = source.getattr("requires_grad").ok()?;
    if gradient.is_truthy().unwrap_or(false) {
        return Some("requires a gradient; detach it first, with `.detach()`");
    }
    if is("is_sparse") || is("is_sparse_csr") {
        return Some("is sparse; make it dense first, with `.to_dense()`");
    }
    is("is_quantized").then_some("is quantized; convert it first, with `.dequantize()`")
}

/// Asks for a capsule with a version, and without one whoever does not know of versions.
fn given<'py>(source: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = source.py();
    static KNOWN: PyOnceLock<Py<PyDict>> = PyOnceLock::new();
    let arguments = KNOWN.get_or_try_init(py, || {
        let arguments = PyDict::new(py);
        arguments.set_item("max_version", (1, 1))?;
        PyResult::Ok(arguments.unbind())
    })?;
    match source.call_method("__dlpack__", (), Some(arguments.bind(py))) {
        Err(error) if error.is_instance_of::<PyTypeError>(py) => source.call_method0("__dlpack__"),
        given => given,
    }
}

/// An error of the core's without the words that only its own programs know.
fn why(error: &TensorError) -> String {
    match error {
        TensorError::DlPack { why } => why.clone(),
        other => other.to_string(),
    }
}

/// Checks a tensor against what its annotation asks.
pub(crate) fn check(tensor: &Tensor, asked: &TensorShape) -> Result<(), String> {
    if let Some(wanted) = asked.dtype.as_ref().and_then(|name| name.parse::<DType>().ok())
        && wanted != tensor.dtype()
    {
        let mismatch = TensorMismatch::DType { wanted, found: tensor.dtype() };
        return Err(format!(
            "{mismatch}; convert it first, with `.astype(..)` of numpy or `.to(..)` of torch"
        ));
    }
    if let Some(shape) = &asked.shape {
        let found = tensor.shape();
        let fits = shape.len() == found.len()
            && shape
                .iter()
                .zip(found)
                .all(|(wanted, found)| wanted.is_none_or(|wanted| wanted == *found as u64));
        if !fits {
            let axes = shape.iter().map(|axis| axis.map_or_else(|| "_".to_owned(), |axis| axis.to_string()));
            let wanted = format!("[{}]", axes.collect::<Vec<_>>().join(", "));
            let mismatch = TensorMismatch::Shape { wanted, found: found.to_vec() };
            return Err(format!("{mismatch}; reshape it first"));
        }
    }
    if asked.device.as_deref().is_some_and(|device| device != "host") {
        let mismatch = TensorMismatch::Device { wanted: DeviceKind::Cuda, found: tensor.device() };
        return Err(format!("{mismatch}; this package has tensors of the host only so far"));
    }
    Ok(())
}
