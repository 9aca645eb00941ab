//! Takes tensors of other libraries to send them: a tensor that lies in our memory is recognised, and one
//! that cannot be taken is an error that says what to do.

use std::sync::Arc;

use pyo3::exceptions::{PyException, PyTypeError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;
use tensorpost_core::api::message::TensorMismatch;
use tensorpost_core::bindings::seen_as;
use tensorpost_core::device::DeviceKind;
use tensorpost_core::ids::DeviceId;
use tensorpost_core::message::portable::TensorShape;
use tensorpost_core::tensor::{DType, DeviceStream, DlPack, DlPackReady, Tensor, TensorError};

use crate::address_space::stream as own_stream;
use crate::context::Context;
use crate::failure::exception;
use crate::lent_out::{self, Found, Kind};
use crate::tensor::PyTensor;
use crate::torch::Torch;
use crate::{bounds, capsule, cuda};

/// `kDLCPU` and `kDLCUDAHost`: memory that the host can access.
pub(crate) const ON_HOST: [i32; 2] = [1, 3];
/// `kDLCUDA`.
const ON_CUDA: i32 = 2;

/// Takes a tensor from a Python object: one of ours, or any object with `__dlpack__`.
pub(crate) fn taken(source: &Bound<'_, PyAny>, context: Option<&Arc<Context>>) -> PyResult<Tensor> {
    let py = source.py();
    if let Ok(own) = source.cast::<PyTensor>() {
        return Ok(own_tensor(own.get()));
    }
    let torch = match Torch::if_there(py)? {
        Some(torch) if torch.is_tensor(source)? => Some(torch),
        _ => None,
    };
    // First the cheap case: a plain tensor that lies in our memory.
    if let (Some(torch), Some(context)) = (torch, context)
        && !torch.requires_grad(source)?
        && !torch.is_negated(source).unwrap_or(true)
        && let Some(known) = known_again(source, torch, context)?
    {
        return Ok(known);
    }
    let name = source.get_type().name().map(|name| name.to_string()).unwrap_or_default();
    let refused = |why: String| exception(py, "TensorError", why);
    if !source.hasattr("__dlpack__")? || !source.hasattr("__dlpack_device__")? {
        return Err(refused(format!(
            "a {name} is no tensor; give a tp.Tensor, or an object with `__dlpack__`, such as a numpy array or a torch tensor"
        )));
    }
    let odd = if torch.is_some() { is_not_plain(source) } else { is_masked(source) };
    if let Some(why) = odd {
        return Err(refused(format!("the {name} {why}")));
    }
    let unwilling = |cause: PyErr| {
        if !cause.is_instance_of::<PyException>(py) {
            // Ctrl-C, or the end of the program, which is not the object's error.
            return cause;
        }
        let error = refused(format!("the {name} does not give itself by DLPack: {}", cause.value(py)));
        error.set_cause(py, Some(cause));
        error
    };
    let device = source.call_method0("__dlpack_device__").and_then(|device| device.extract::<(i32, i32)>());
    let (kind, id) = device.map_err(unwilling)?;
    let stream = place(kind, id, context).map_err(|why| refused(format!("the {name} {why}")))?;
    let handle = stream.as_ref().and_then(cuda::handle);
    let given = given(source, handle).map_err(unwilling)?;
    let managed = capsule::take(&given)?;
    let (managed, array) = capsule::array_of(managed);
    // SAFETY: it was just made, and is alive.
    #[expect(unsafe_code, reason = "the axes are C's")]
    if let Some(why) = unsafe { bounds::leaves(source, torch.is_some(), &array) } {
        return Err(refused(format!("the {name} {why}")));
    }
    if let Some(context) = context {
        // SAFETY: it was just made, and is alive.
        #[expect(unsafe_code, reason = "the axes are C's")]
        let found = unsafe { lent_out::find(&array) };
        if let Some(found) = found {
            return as_found(source, &found, managed, context)?.ok_or_else(|| {
                refused(format!("the {name} leaves the memory that it was given; copy it first"))
            });
        }
    }
    let managed = capsule::guarded(py, managed)?;
    let tensor = match &stream {
        Some(stream) => stream.from_dlpack(managed, DlPackReady::OnStream),
        None => own_stream(py)?.from_dlpack(managed, DlPackReady::Now),
    };
    tensor.map_err(|error| refused(format!("the {name} cannot be taken: {}", why(&error))))
}

/// Returns one of our tensors, with the data that was written into it by now.
fn own_tensor(own: &PyTensor) -> Tensor {
    if !own.is_writable() {
        return own.tensor.clone();
    }
    let stream = own.stream();
    let layout = *own.tensor.layout();
    // The layout is the tensor's own, so it lies in the allocation.
    seen_as(&own.tensor, own.tensor.dtype(), layout, Some(stream.as_deref()))
        .unwrap_or_else(|| own.tensor.clone())
}

/// Recognises a PyTorch tensor in our memory.
fn known_again(source: &Bound<'_, PyAny>, torch: &Torch, context: &Arc<Context>) -> PyResult<Option<Tensor>> {
    // A tensor without an address, such as a sparse one, is an error that is reported later.
    let Some(Ok(array)) = torch.view(source) else { return Ok(None) };
    // SAFETY: the axes belong to the object, which is alive.
    #[expect(unsafe_code, reason = "the axes are C's")]
    let Some(found) = (unsafe { lent_out::find(&array) }) else { return Ok(None) };
    let stream = if found.kind() == Kind::Pool { Some(context.stream()) } else { found.stream() };
    if !in_order(stream, torch, array.device[1]) {
        return Ok(None);
    }
    match found.kind() {
        Kind::ToRead | Kind::ToWrite => seen(source, &found, context),
        // The memory around it in the pool belongs to other tensors, so its extent is checked.
        // SAFETY: as above.
        #[expect(unsafe_code, reason = "the axes are C's")]
        Kind::Pool if unsafe { bounds::leaves(source, true, &array) }.is_some() => Ok(None),
        Kind::Pool => match torch.give(source) {
            Some(given) => as_found(source, &found, given?, context),
            None => Ok(None),
        },
    }
}

/// Returns a tensor that lies in our memory, with the handle that keeps it; its library has put our stream
/// behind its work.
fn as_found(
    source: &Bound<'_, PyAny>,
    found: &Found,
    managed: DlPack,
    context: &Arc<Context>,
) -> PyResult<Option<Tensor>> {
    if found.kind() != Kind::Pool {
        return seen(source, found, context);
    }
    // On the stream that comes behind the library's work. It need not be the stream that took the pool's
    // memory: there may be several actors in this process.
    let piece = found.piece(source.py(), context.stream(), managed)?;
    note(source, context)?;
    Ok(piece)
}

/// Returns a tensor that lies in our memory, on its own lease.
fn seen(source: &Bound<'_, PyAny>, found: &Found, context: &Arc<Context>) -> PyResult<Option<Tensor>> {
    if found.kind() == Kind::ToWrite {
        note(source, context)?;
    }
    Ok(found.tensor())
}

/// Notes a tensor, so that later writes to it are found.
fn note(source: &Bound<'_, PyAny>, context: &Arc<Context>) -> PyResult<()> {
    if !context.watches_sent() {
        return Ok(());
    }
    // Only PyTorch's tensors count their writes.
    let torch = Torch::if_there(source.py())?;
    if let Some(torch) = torch.filter(|torch| torch.is_tensor(source).unwrap_or(false))
        && let Ok(version) = torch.version(source)
    {
        context.note_sent(source, version)?;
    }
    Ok(())
}

/// Whether PyTorch's current work is on our stream.
fn in_order(stream: Option<&DeviceStream>, torch: &Torch, ordinal: i32) -> bool {
    let Some(stream) = stream else { return true };
    cuda::handle(stream).is_some_and(|handle| torch.current_stream(ordinal) == Some(handle))
}

/// Returns the stream on which a library's memory is used here; `None` on the host.
fn place(kind: i32, id: i32, context: Option<&Arc<Context>>) -> Result<Option<DeviceStream>, String> {
    if ON_HOST.contains(&kind) {
        return Ok(None);
    }
    if kind != ON_CUDA {
        return Err(format!(
            "is on device {id} of DLPack's type {kind}, and tensors are on the host or on a CUDA GPU; copy it there first"
        ));
    }
    match context {
        Some(context) => context.stream_on(id).map(Some),
        None => Err(format!(
            "is on cuda:{id}, and a tensor on its own is on the host; send it in a message as it is, or copy it there first, with \
             `.cpu()`"
        )),
    }
}

/// Returns the property of a PyTorch tensor that its memory alone does not show, and what to do about it.
fn is_not_plain(source: &Bound<'_, PyAny>) -> Option<&'static str> {
    let is = |property: &str| source.getattr(property).is_ok_and(|is| is.is_truthy().unwrap_or(false));
    if is("requires_grad") {
        return Some("requires a gradient; detach it first, with `.detach()`");
    }
    let says = |method: &str| source.call_method0(method).is_ok_and(|is| is.is_truthy().unwrap_or(false));
    if says("is_neg") {
        return Some(
            "has a minus sign that is not in its memory, as `.conj().imag` has; write it there first, with `.resolve_neg()`",
        );
    }
    if says("is_conj") {
        return Some(
            "is the conjugate of what is in its memory; write it there first, with `.resolve_conj()`",
        );
    }
    if says("_is_zerotensor") {
        return Some("is zeros without memory; give it some first, with `.clone()`");
    }
    if is("is_sparse") || is("is_sparse_csr") {
        return Some("is sparse; make it dense first, with `.to_dense()`");
    }
    if is("is_mkldnn") {
        return Some("has a layout of MKL-DNN; make it dense first, with `.to_dense()`");
    }
    if is("is_nested") {
        return Some("is nested; send its parts, or pad it first, with `.to_padded_tensor(0)`");
    }
    is("is_quantized").then_some("is quantized; convert it first, with `.dequantize()`")
}

/// Recognises a numpy array with a mask, which its memory does not show.
fn is_masked(source: &Bound<'_, PyAny>) -> Option<&'static str> {
    let array = bounds::numpy(source.py())?;
    if source.get_type().is(array) || !source.is_instance(array).unwrap_or(false) {
        return None;
    }
    let masked = source.py().import("numpy.ma").and_then(|masked| masked.getattr("MaskedArray")).ok()?;
    let is = source.is_instance(&masked).unwrap_or(false);
    is.then_some("has a mask, which is not sent with it; fill it first, with `.filled(0)`, and send the mask by itself")
}

/// Asks an object for a capsule with a version, or without one if the object does not know versions. A tensor
/// on a GPU must be ready for work on `stream`.
fn given<'py>(source: &Bound<'py, PyAny>, stream: Option<u64>) -> PyResult<Bound<'py, PyAny>> {
    let py = source.py();
    static KNOWN: PyOnceLock<Py<PyDict>> = PyOnceLock::new();
    let with_version = || {
        let arguments = PyDict::new(py);
        arguments.set_item("max_version", (1, 1))?;
        PyResult::Ok(arguments)
    };
    let without_version = PyDict::new(py);
    let arguments = match stream {
        Some(stream) => {
            let arguments = with_version()?;
            arguments.set_item("stream", stream)?;
            without_version.set_item("stream", stream)?;
            arguments
        }
        None => KNOWN.get_or_try_init(py, || with_version().map(Bound::unbind))?.bind(py).clone(),
    };
    match source.call_method("__dlpack__", (), Some(&arguments)) {
        Err(error) if error.is_instance_of::<PyTypeError>(py) => {
            source.call_method("__dlpack__", (), Some(&without_version))
        }
        given => given,
    }
}

/// Returns the text of an error of the core, without words that only Rust programs know.
fn why(error: &TensorError) -> String {
    match error {
        TensorError::DlPack { why } => why.clone(),
        other => other.to_string(),
    }
}

/// The dtype and shape that an annotation asks of a tensor.
#[derive(Debug)]
pub(crate) struct Asked {
    /// In words.
    pub(crate) shape: TensorShape,
    /// The type of the elements, if there is one of this name.
    dtype: Option<DType>,
}

impl Asked {
    pub(crate) fn new(shape: TensorShape) -> Self {
        let dtype = shape.dtype.as_ref().and_then(|name| name.parse().ok());
        Asked { shape, dtype }
    }

    /// Checks a tensor against it.
    pub(crate) fn check(&self, tensor: &Tensor) -> Result<(), String> {
        if let Some(wanted) = self.dtype
            && wanted != tensor.dtype()
        {
            let mismatch = TensorMismatch::DType { wanted, found: tensor.dtype() };
            return Err(format!(
                "{mismatch}; convert it first, with `.astype(..)` of numpy or `.to(..)` of torch"
            ));
        }
        if let Some(shape) = &self.shape.shape {
            let found = tensor.shape();
            let fits = shape.len() == found.len()
                && shape
                    .iter()
                    .zip(found)
                    .all(|(wanted, found)| wanted.is_none_or(|wanted| wanted == *found as u64));
            if !fits {
                let axes =
                    shape.iter().map(|axis| axis.map_or_else(|| "_".to_owned(), |axis| axis.to_string()));
                let wanted = format!("[{}]", axes.collect::<Vec<_>>().join(", "));
                let mismatch = TensorMismatch::Shape { wanted, found: found.to_vec() };
                return Err(format!("{mismatch}; reshape it first"));
            }
        }
        let Some(device) = self.shape.device.as_deref() else { return Ok(()) };
        let on_host = tensor.device() == DeviceId::HOST;
        let (wanted, remedy) = match device {
            "host" if !on_host => (DeviceKind::Host, "copy it there first, with `.cpu()`"),
            "cuda" if on_host => (DeviceKind::Cuda, "copy it there first, with `.cuda()`"),
            _ => return Ok(()),
        };
        let mismatch = TensorMismatch::Device { wanted, found: tensor.device() };
        Err(format!("{mismatch}; {remedy}"))
    }
}
