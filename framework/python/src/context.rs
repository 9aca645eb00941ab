//! The node that a value belongs to, as one of its processes sees it: the transport by which addresses send,
//! and the memory in which tensors must lie to be sent.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use pyo3::prelude::*;
use tensorpost_core::bindings::{Transport, can_leave_by};
use tensorpost_core::device::{Device, DeviceKind};
use tensorpost_core::ids::DeviceId;
use tensorpost_core::lease::PoolError;
use tensorpost_core::limits::LENT_SHARE;
use tensorpost_core::os::fork::INHERITED;
use tensorpost_core::tensor::{DeviceStream, Tensor, TensorError};

use crate::cuda;
use crate::encode;
use crate::failure::{self, exception};
use crate::plan::Plan;
use crate::torch::Ledger;

/// See the module.
pub(crate) struct Context {
    pub(crate) transport: Arc<Transport>,
    stream: DeviceStream,
    /// The host stream of an actor on a GPU, once it needs one.
    host: Mutex<Option<DeviceStream>>,
    /// The streams on GPUs of a process that runs no actor; an actor has its own stream.
    opened: Option<Mutex<Vec<DeviceStream>>>,
    counts: Counts,
    /// The tensors that were sent and that the sender could still write.
    sent: Ledger,
}

/// Counts of how tensors were sent.
#[derive(Default)]
struct Counts {
    forwarded: AtomicU64,
    without_copy: AtomicU64,
    copied: AtomicU64,
    copied_bytes: AtomicU64,
}

impl Context {
    /// Makes the context of an actor.
    pub(crate) fn new(transport: Arc<Transport>, stream: DeviceStream) -> Arc<Self> {
        Self::with(transport, stream, None)
    }

    /// Makes the context of a process that is not a worker.
    pub(crate) fn of_node(transport: Arc<Transport>, host: DeviceStream) -> Arc<Self> {
        Self::with(transport, host, Some(Mutex::default()))
    }

    fn with(
        transport: Arc<Transport>,
        stream: DeviceStream,
        opened: Option<Mutex<Vec<DeviceStream>>>,
    ) -> Arc<Self> {
        // The allocator of a library cannot wait for memory to come back. So senders wait, before the
        // allocator is asked for more.
        transport.bound_lending(LENT_SHARE);
        Arc::new(Context {
            transport,
            stream,
            host: Mutex::default(),
            opened,
            counts: Counts::default(),
            sent: Ledger::default(),
        })
    }

    /// Returns an error in a forked child of its process.
    #[inline]
    pub(crate) fn check_fork(&self, py: Python<'_>, class: &'static str) -> PyResult<()> {
        if self.transport.is_inherited() { Err(exception(py, class, INHERITED.to_owned())) } else { Ok(()) }
    }

    /// Returns the actor's own stream, or the host's.
    pub(crate) fn stream(&self) -> &DeviceStream {
        &self.stream
    }

    /// Returns the stream on which a library works with memory of this device; `None` on the host, and on a
    /// GPU that this process does not use.
    pub(crate) fn stream_for(&self, device: DeviceId) -> Option<Cow<'_, DeviceStream>> {
        if device == DeviceId::HOST {
            return None;
        }
        if self.stream.kind() == DeviceKind::Cuda {
            return Some(Cow::Borrowed(&self.stream));
        }
        self.opened.as_ref()?;
        self.open(&Device::by_id(device).ok()?).ok().map(Cow::Owned)
    }

    /// Returns a stream of a process that is not a worker.
    fn open(&self, device: &Device) -> Result<DeviceStream, TensorError> {
        let mut opened = self.opened.as_ref().map(Mutex::lock);
        let known = opened.iter().flat_map(|opened| opened.iter());
        if let Some(stream) = known.into_iter().find(|stream| stream.device_id() == device.id()) {
            return Ok(stream.clone());
        }
        let pool = self.transport.pool_for(device.id())?;
        let stream = DeviceStream::new(pool, Arc::clone(self.transport.domain()))?;
        if let Some(opened) = &mut opened {
            opened.push(stream.clone());
        }
        Ok(stream)
    }

    /// Returns a stream of the host.
    pub(crate) fn host_stream(&self) -> Result<DeviceStream, TensorError> {
        if self.stream.kind() == DeviceKind::Host {
            return Ok(self.stream.clone());
        }
        let mut host = self.host.lock();
        if let Some(stream) = &*host {
            return Ok(stream.clone());
        }
        let pool = self.transport.pool_for(DeviceId::HOST)?;
        let stream = DeviceStream::new(pool, Arc::clone(self.transport.domain()))?;
        *host = Some(stream.clone());
        Ok(stream)
    }

    /// Returns the stream for tensors on a GPU, by the GPU's number in this process.
    ///
    /// # Errors
    /// The text says what to do instead.
    pub(crate) fn stream_on(&self, ordinal: i32) -> Result<DeviceStream, String> {
        if self.is_actors() {
            return match cuda::ordinal(&self.stream) {
                Some(own) if own == ordinal => Ok(self.stream.clone()),
                Some(own) => Err(format!(
                    "is on cuda:{ordinal}, and this actor works on cuda:{own}; copy it there first, with `.to(\"cuda:{own}\")`"
                )),
                None => Err(format!(
                    "is on cuda:{ordinal}, and this actor works on the host; spawn it with device=\"cuda:{ordinal}\", or copy it \
                     there first, with `.cpu()`"
                )),
            };
        }
        let device = Device::cuda(usize::try_from(ordinal).unwrap_or(usize::MAX)).map_err(TensorError::from);
        let opened = device.and_then(|device| self.open(&device));
        opened.map_err(|error| format!("is on cuda:{ordinal}, which cannot be opened: {error}"))
    }

    /// Whether this is the context of an actor, for which PyTorch works on the context's stream.
    pub(crate) fn is_actors(&self) -> bool {
        self.opened.is_none()
    }

    /// Notes a PyTorch tensor that is about to be sent and that its sender could write.
    pub(crate) fn note_sent(&self, tensor: &Bound<'_, PyAny>, version: u64) -> PyResult<()> {
        self.sent.note_and_let_go(tensor, version)
    }

    /// Whether writes to sent tensors are checked.
    pub(crate) fn watches_sent(&self) -> bool {
        self.sent.is_open()
    }

    /// Begins to check the writes of an actor's handlers.
    pub(crate) fn watch_sent(&self) {
        self.sent.reopen();
    }

    /// Returns, at the end of a handler, whether it has written a tensor that it had sent.
    pub(crate) fn written_after_send(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.sent.close_and_reopen(py)?.is_some())
    }

    /// Returns how many tensors were forwarded, sent without a copy, and copied, and the bytes of the copied
    /// ones.
    pub(crate) fn counts(&self) -> (u64, u64, u64, u64) {
        let Counts { forwarded, without_copy, copied, copied_bytes } = &self.counts;
        let [forwarded, without_copy, copied, bytes] =
            [forwarded, without_copy, copied, copied_bytes].map(|count| count.load(Ordering::Relaxed));
        (forwarded, without_copy, copied, bytes)
    }

    /// Returns the tensors of `value`, each in memory that other processes can map: a tensor in another
    /// library's memory is copied. On the host the copy is done when this returns.
    pub(crate) fn shared(
        self: &Arc<Self>,
        py: Python<'_>,
        plan: &Plan,
        value: &Bound<'_, PyAny>,
        mut tensors: Vec<Tensor>,
    ) -> PyResult<Vec<Tensor>> {
        for (index, tensor) in tensors.iter_mut().enumerate() {
            if can_leave_by(tensor, &self.transport) {
                let own = tensor.lease().owner() == self.transport.domain().own();
                let count = if own { &self.counts.without_copy } else { &self.counts.forwarded };
                count.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            let copied = py.detach(|| self.copied(tensor));
            *tensor = copied.map_err(|error| {
                failure::note(&error);
                let place = encode::place_of(plan, value, index, self);
                let remedy = remedy(&error, tensor.device());
                exception(py, "TensorError", format!("{place}: it cannot be sent: {error}{remedy}"))
            })?;
            self.counts.copied.fetch_add(1, Ordering::Relaxed);
            self.counts.copied_bytes.fetch_add(tensor.bytes(), Ordering::Relaxed);
        }
        Ok(tensors)
    }

    fn copied(&self, tensor: &Tensor) -> Result<Tensor, TensorError> {
        let on_gpu = self.stream_for(tensor.device());
        let is_in_order = on_gpu.is_some() && self.opened.is_none();
        let stream = on_gpu.map_or_else(|| self.host_stream(), |stream| Ok(stream.into_owned()))?;
        let copy = stream.copy(tensor)?;
        if !is_in_order {
            // The sender works on the host or on another stream, and may write the tensor as soon as the send
            // returns.
            copy.wait(None)?;
        }
        Ok(copy.freeze())
    }
}

/// Returns what to do if there is no memory.
fn remedy(error: &TensorError, device: DeviceId) -> &'static str {
    let option = device == DeviceId::HOST;
    match error {
        TensorError::Pool(PoolError::TooLarge { .. }) if option => {
            "; give the processes more with `tp.Node(host_budget=..)`, or send it in pieces"
        }
        TensorError::Pool(PoolError::TooLarge { .. }) => {
            "; give the processes more with `tp.Node(gpu_budget=..)`, or send it in pieces"
        }
        TensorError::Pool(PoolError::Full { .. }) if option => {
            "; let receivers drop what they hold, or give more with `tp.Node(host_budget=..)`"
        }
        TensorError::Pool(PoolError::Full { .. }) => {
            "; let receivers drop what they hold, or give more with `tp.Node(gpu_budget=..)`"
        }
        _ => "",
    }
}
