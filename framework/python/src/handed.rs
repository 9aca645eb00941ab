//! Memory that libraries of this process have from us: by its address it is known again when a tensor of
//! theirs comes back.
//!
//! What a library is handed is *to read* (a received tensor), *to write* (one that was handed over for good,
//! or made for it), or a *pool* in which it allocates by itself. A view or a slice of the first two stands on
//! the same lease, so it is sent without a copy. What lies in the third is lent out piece by piece.
//!
//! **What a handler lets go of** on a GPU costs a clock write, behind its last use. The next tensor of a pool
//! that the handler sends has one too, which stands for both; so little memory waits for that on the
//! handler's thread, until the handler is done at the latest ([`Handling`]).
//!
//! **Locks.** The lists' one, for as long as a look takes; nothing is dropped under it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use pyo3::prelude::*;
use smallvec::SmallVec;
use tensorpost_core::foreign::{Handing, closes_before, hand_out, piece_of, seen_as};
use tensorpost_core::limits::MAX_RANK;
use tensorpost_core::os::PerProcess;
use tensorpost_core::tensor::{DType, DeviceStream, DlPack, Layout, Tensor, TensorError};

use crate::capsule::Array;
use crate::failure::exception;
use crate::garbage;

/// What a library may do with memory.
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
    /// On which the library works with it; none on the host.
    stream: Option<DeviceStream>,
}

/// By their beginning, and a number where several begin there: how long they are.
type Known = BTreeMap<(u64, u64), (u64, Weak<Handed>)>;

/// Both under one lock: what is looked for in the first list is looked for in the second where it is not
/// found.
#[derive(Default)]
struct Lists {
    /// Allocations, which are apart from each other, or the same.
    allocations: Known,
    /// Pools, in which others of the first list may lie.
    pools: Known,
}

/// A process's own: a forked child hands out what it has made itself.
static LISTS: PerProcess<Mutex<Lists>> = PerProcess::new(Mutex::default);

impl Lists {
    fn of(&mut self, kind: Kind) -> &mut Known {
        if kind == Kind::Pool { &mut self.pools } else { &mut self.allocations }
    }
}

/// Axes of a tensor, on the stack for as many as tensors of ours have.
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

    /// The memory that an address lies in.
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
        // The memory that the entry names is freed behind the lock.
        let listed = LISTS.get().lock().of(self.kind).remove(&(self.start, self.number));
        drop(listed);
    }
}

/// Bytes that a handler has let go of and that may wait for what it sends next, and how many tensors they may
/// be.
const MAY_WAIT: u64 = 1 << 20;
const MOST_WAITING: usize = 16;

/// What waits on a thread for the next tensor that its handler sends.
#[derive(Default)]
struct Waiting {
    tensors: SmallVec<[Arc<Handed>; 4]>,
    bytes: u64,
}

thread_local! {
    /// Of the handler that runs on this thread.
    static WAITING: RefCell<Option<Waiting>> = const { RefCell::new(None) };
}

/// A handler runs on this thread for as long as this is there.
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

/// What waits on this thread, to be let go of. The handler goes on.
fn taken_from_thread() -> SmallVec<[Arc<Handed>; 4]> {
    let take =
        |waiting: &mut Option<Waiting>| waiting.as_mut().map(std::mem::take).unwrap_or_default().tensors;
    WAITING.with_borrow_mut(take)
}

/// As a library has it: dropped when it lets go, on any thread.
struct Out(Option<Arc<Handed>>);

impl Drop for Out {
    fn drop(&mut self) {
        let Some(handed) = self.0.take() else { return };
        let bytes = handed.tensor.lease().bytes();
        if handed.stream.is_none() || bytes > MAY_WAIT {
            return;
        }
        let mut handed = Some(handed);
        // Threads of others, and those that are ending, have nothing to wait for.
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
        // Else now, as a handler's that has no room left.
        drop(handed);
    }
}

/// The tensor for a library that works on `stream`, or on the host.
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

/// Memory in which a library allocates by itself, and where it begins.
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

/// A tensor of a library that lies in memory of ours.
pub(crate) struct Found {
    handed: Arc<Handed>,
    dtype: DType,
    layout: Layout,
}

impl Found {
    pub(crate) fn kind(&self) -> Kind {
        self.handed.kind
    }

    /// The stream that the library works on with it.
    pub(crate) fn stream(&self) -> Option<&DeviceStream> {
        self.handed.stream.as_ref()
    }

    /// As a tensor on the same lease.
    pub(crate) fn tensor(&self) -> Option<Tensor> {
        let written = (self.handed.kind != Kind::ToRead).then_some(self.stream());
        seen_as(&self.handed.tensor, self.dtype, self.layout, written)
    }

    /// As a tensor on a lease of its own, which keeps `keep`, with what `stream` has written there by now.
    /// Called, as its deleter is, with the interpreter.
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
        // The handler has let go of these before, so what its library did with them stands in front of the
        // piece's ticket.
        for waiting in taken_from_thread() {
            if let Some(piece) = &piece {
                closes_before(&waiting.tensor, piece, stream);
            }
        }
        Ok(piece)
    }
}

/// Whether a tensor of a library lies in memory of ours. What is unusual about it is left to those who say
/// what is wrong.
///
/// # Safety
/// The array is one that a library has just described, with its axes.
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
        // SAFETY: as many as there are axes, as the caller promises.
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

/// The type of the elements, where there are tensors of it.
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
