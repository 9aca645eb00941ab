//! Tracks memory that libraries of this process have from us: its address identifies it when a tensor of a
//! library comes back.
//!
//! A library gets memory *to read* (a received tensor), *to write* (a tensor that was handed over for good,
//! or made for the library), or as a *pool* in which it allocates by itself. A view or a slice of the first
//! two stands on the same lease, so it is sent without a copy. Tensors in a pool are lent out piece by piece.
//!
//! **Dropping a tensor** on a GPU costs a clock write, behind the tensor's last use. The next tensor of a
//! pool that the handler sends has a clock write too, which can stand for both. So a small amount of dropped
//! memory waits for that on the handler's thread, at the latest until the handler is done ([`Handling`]).
//!
//! **Locks.** One for the lists, held for as long as a look takes; nothing is dropped under it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use pyo3::prelude::*;
use smallvec::SmallVec;
use tensorpost_core::bindings::{Handing, closes_before, hand_out, piece_of, seen_as};
use tensorpost_core::limits::MAX_RANK;
use tensorpost_core::os::PerProcess;
use tensorpost_core::tensor::{DType, DeviceStream, DlPack, Layout, Tensor, TensorError};

use crate::capsule::Array;
use crate::failure::exception;
use crate::garbage;

/// The use that a library may make of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    ToRead,
    ToWrite,
    Pool,
}

/// Memory that a library has.
#[derive(Debug)]
pub(crate) struct Handed {
    start: u64,
    number: u64,
    kind: Kind,
    tensor: Tensor,
    /// The stream on which the library works with it; none on the host.
    stream: Option<DeviceStream>,
}

/// By start address, and a number if several start there: the length.
type Known = BTreeMap<(u64, u64), (u64, Weak<Handed>)>;

/// Both lists are under one lock: an address that is not in the first is looked up in the second.
#[derive(Default)]
struct Lists {
    /// Allocations, which are disjoint or identical.
    allocations: Known,
    /// Pools, in which allocations of the first list may lie.
    pools: Known,
}

/// Each process has its own: a forked child hands out only memory that it has made itself.
static LISTS: PerProcess<Mutex<Lists>> = PerProcess::new(Mutex::default);

impl Lists {
    fn of(&mut self, kind: Kind) -> &mut Known {
        if kind == Kind::Pool { &mut self.pools } else { &mut self.allocations }
    }
}

/// Axes of a tensor, on the stack for as many as our tensors have.
type Axes<T> = SmallVec<[T; MAX_RANK]>;

impl Handed {
    fn list(start: u64, kind: Kind, tensor: Tensor, stream: Option<DeviceStream>) -> Arc<Self> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let bytes = tensor.lease().bytes();
        let handed = Arc::new(Handed { start, number, kind, tensor, stream });
        let listed = (bytes, Arc::downgrade(&handed));
        LISTS.get().lock().of(kind).insert((start, number), listed);
        handed
    }

    /// Returns the memory that an address lies in.
    fn at(address: u64) -> Option<Arc<Self>> {
        let find = |known: &Known| {
            let ((start, _), (bytes, handed)) = known.range(..=(address, u64::MAX)).next_back()?;
            if address - start < *bytes { handed.upgrade() } else { None }
        };
        let lists = LISTS.get().lock();
        find(&lists.allocations).or_else(|| find(&lists.pools))
    }
}

impl Drop for Handed {
    fn drop(&mut self) {
        // The entry's memory is freed after the lock is released.
        let listed = LISTS.get().lock().of(self.kind).remove(&(self.start, self.number));
        drop(listed);
    }
}

/// The most bytes that a handler has dropped and that may wait for its next send, and the most tensors.
const MAY_WAIT: u64 = 1 << 20;
const MOST_WAITING: usize = 16;

/// The dropped tensors that wait on a thread for the next tensor that its handler sends.
#[derive(Default)]
struct Waiting {
    tensors: SmallVec<[Arc<Handed>; 4]>,
    bytes: u64,
}

thread_local! {
    /// The waiting tensors of the handler that runs on this thread.
    static WAITING: RefCell<Option<Waiting>> = const { RefCell::new(None) };
}

/// Marks that a handler runs on this thread.
pub(crate) struct Handling(());

impl Handling {
    pub(crate) fn begin() -> Self {
        WAITING.set(Some(Waiting::default()));
        Handling(())
    }
}

impl Drop for Handling {
    fn drop(&mut self) {
        let waiting = WAITING.take();
        drop(waiting);
    }
}

/// Takes the tensors that wait on this thread, to drop them. The handler goes on.
fn taken_from_thread() -> SmallVec<[Arc<Handed>; 4]> {
    let take =
        |waiting: &mut Option<Waiting>| waiting.as_mut().map(std::mem::take).unwrap_or_default().tensors;
    WAITING.with_borrow_mut(take)
}

/// The library's share of the memory: dropped when the library drops it, on any thread.
struct Out(Option<Arc<Handed>>);

impl Drop for Out {
    fn drop(&mut self) {
        let Some(handed) = self.0.take() else { return };
        let bytes = handed.tensor.lease().bytes();
        if handed.stream.is_none() || bytes > MAY_WAIT {
            return;
        }
        let mut handed = Some(handed);
        // Threads of other libraries, and those that are ending, have nothing to wait for.
        let _ = WAITING.try_with(|waiting| {
            if let Ok(mut waiting) = waiting.try_borrow_mut()
                && let Some(waiting) = &mut *waiting
                && waiting.bytes + bytes <= MAY_WAIT
                && waiting.tensors.len() < MOST_WAITING
            {
                waiting.bytes += bytes;
                waiting.tensors.extend(handed.take());
            }
        });
        // Otherwise it is dropped now, also if the handler has no room left for it.
        drop(handed);
    }
}

/// Hands a tensor to a library that works on `stream`, or on the host.
pub(crate) fn hand(
    tensor: &Tensor,
    kind: Kind,
    stream: Option<&DeviceStream>,
) -> Result<DlPack, TensorError> {
    let handing = if kind == Kind::ToRead { Handing::ToRead } else { Handing::ToWrite };
    hand_out(tensor, handing, stream, |start| {
        Box::new(Out(Some(Handed::list(start, kind, tensor.clone(), stream.cloned()))))
    })
}

/// Hands out memory in which a library allocates by itself. Returns also its start address.
pub(crate) fn pool(tensor: &Tensor, stream: &DeviceStream) -> Result<(u64, Arc<Handed>), TensorError> {
    let mut made = None;
    let export = hand_out(tensor, Handing::ToWrite, Some(stream), |start| {
        let handed = Handed::list(start, Kind::Pool, tensor.clone(), Some(stream.clone()));
        made = Some((start, handed));
        Box::new(())
    })?;
    drop(export);
    made.ok_or_else(|| TensorError::DlPack { why: "it was not handed out".to_owned() })
}

/// A tensor of a library that lies in our memory.
pub(crate) struct Found {
    handed: Arc<Handed>,
    dtype: DType,
    layout: Layout,
}

impl Found {
    pub(crate) fn kind(&self) -> Kind {
        self.handed.kind
    }

    /// Returns the stream that the library works on with it.
    pub(crate) fn stream(&self) -> Option<&DeviceStream> {
        self.handed.stream.as_ref()
    }

    /// Returns it as a tensor on the same lease.
    pub(crate) fn tensor(&self) -> Option<Tensor> {
        let written = (self.handed.kind != Kind::ToRead).then_some(self.stream());
        seen_as(&self.handed.tensor, self.dtype, self.layout, written)
    }

    /// Returns it as a tensor on a lease of its own, which keeps `keep`, with the data that `stream` has
    /// written there by now. Must be called with the interpreter, as the tensor's deleter must.
    pub(crate) fn piece(
        &self,
        py: Python<'_>,
        stream: &DeviceStream,
        keep: DlPack,
    ) -> PyResult<Option<Tensor>> {
        garbage::open(py)?;
        let keep = Box::new(keep);
        let piece = piece_of(&self.handed.tensor, self.dtype, &self.layout, stream, keep, garbage::put);
        let piece = piece.map_err(|error| exception(py, "TensorError", error.to_string()))?;
        // The handler has dropped these before, so the library's work on them is ahead of the piece's ticket.
        for waiting in taken_from_thread() {
            if let Some(piece) = &piece {
                closes_before(&waiting.tensor, piece, stream);
            }
        }
        Ok(piece)
    }
}

/// Returns the memory of ours in which a tensor of a library lies. An unusual tensor is not found here; the
/// caller's other checks report what is wrong.
///
/// # Safety
/// A library has just described the array, with its axes.
#[expect(unsafe_code, reason = "the axes are C's")]
pub(crate) unsafe fn find(array: &Array) -> Option<Found> {
    let address = (array.data as u64).checked_add(array.byte_offset)?;
    let handed = Handed::at(address)?;
    let rank = usize::try_from(array.ndim).ok()?;
    let dtype = dtype_of(array)?;
    let axes = |first: *const i64| -> Option<&[i64]> {
        if rank == 0 {
            return Some(&[]);
        }
        // SAFETY: it has as many entries as there are axes, as the caller promises.
        (!first.is_null()).then(|| unsafe { std::slice::from_raw_parts(first, rank) })
    };
    let shape: Axes<usize> =
        axes(array.shape)?.iter().map(|extent| usize::try_from(*extent)).collect::<Result<_, _>>().ok()?;
    let offset = (address - handed.start) as usize;
    if !offset.is_multiple_of(dtype.size()) || shape.contains(&0) {
        return None;
    }
    let layout = if array.strides.is_null() {
        Layout::contiguous(&shape).ok()?.with_offset(offset / dtype.size()).ok()?
    } else {
        let of_axis = |(stride, extent): (&i64, &usize)| {
            if *extent == 1 { Ok(0) } else { isize::try_from(*stride) }
        };
        let strides: Axes<isize> =
            axes(array.strides)?.iter().zip(&shape).map(of_axis).collect::<Result<_, _>>().ok()?;
        Layout::from_parts(&shape, &strides, offset / dtype.size()).ok()?
    };
    Some(Found { handed, dtype, layout })
}

/// Returns the type of the elements, if there are tensors of it.
fn dtype_of(array: &Array) -> Option<DType> {
    Some(match (array.code, array.bits, array.lanes) {
        (0, 8, 1) => DType::I8,
        (0, 16, 1) => DType::I16,
        (0, 32, 1) => DType::I32,
        (0, 64, 1) => DType::I64,
        (1, 8, 1) => DType::U8,
        (1, 16, 1) => DType::U16,
        (1, 32, 1) => DType::U32,
        (1, 64, 1) => DType::U64,
        (2, 16, 1) => DType::F16,
        (2, 32, 1) => DType::F32,
        (2, 64, 1) => DType::F64,
        (4, 16, 1) => DType::BF16,
        (6, 8, 1) => DType::Bool,
        (10, 8, 1) => DType::F8E4M3,
        (11, 8, 1) => DType::F8E4M3Fnuz,
        (12, 8, 1) => DType::F8E5M2,
        (13, 8, 1) => DType::F8E5M2Fnuz,
        (14, 8, 1) => DType::F8E8M0,
        (17, 4, 2) => DType::F4E2M1X2,
        (5, 64, 1) => DType::Complex64,
        (5, 128, 1) => DType::Complex128,
        _ => return None,
    })
}
