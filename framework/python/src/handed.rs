//! Memory that libraries of this process have from us: by its address it is known again when a tensor of theirs comes back.
//!
//! What a library is handed is *to read* (a received tensor), *to write* (one that was handed over for good, or made for it), or a
//! *pool* in which it allocates by itself. A view or a slice of the first two stands on the same lease, so it is sent without
//! a copy. What lies in the third is lent out piece by piece.
//!
//! **Locks.** The list's, for as long as a look takes; nothing is dropped under it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use pyo3::prelude::*;
use tensorpost_core::foreign::{Handing, hand_out, piece_of, seen_as};
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

/// Allocations, which are apart from each other, or the same.
static KNOWN: Mutex<Known> = Mutex::new(BTreeMap::new());

/// Pools, in which others of the first list may lie.
static POOLS: Mutex<Known> = Mutex::new(BTreeMap::new());

fn list_of(kind: Kind) -> &'static Mutex<Known> {
    if kind == Kind::Pool { &POOLS } else { &KNOWN }
}

impl Handed {
    fn list(start: u64, kind: Kind, tensor: Tensor, stream: Option<DeviceStream>) -> Arc<Self> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let bytes = tensor.lease().bytes();
        let handed = Arc::new(Handed { start, number, kind, tensor, stream });
        list_of(kind).lock().insert((start, number), (bytes, Arc::downgrade(&handed)));
        handed
    }

    /// The memory that an address lies in.
    fn at(address: u64) -> Option<Arc<Self>> {
        let find = |known: &Mutex<Known>| {
            let known = known.lock();
            let ((start, _), (bytes, handed)) = known.range(..=(address, u64::MAX)).next_back()?;
            if address - start < *bytes { handed.upgrade() } else { None }
        };
        find(&KNOWN).or_else(|| find(&POOLS))
    }
}

impl Drop for Handed {
    fn drop(&mut self) {
        list_of(self.kind).lock().remove(&(self.start, self.number));
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
        Box::new(Handed::list(start, kind, tensor.clone(), stream.cloned()))
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

    /// As a tensor on a lease of its own, which keeps `keep`, with what `stream` has written there by now. Called, as its deleter is, with the
    /// interpreter.
    pub(crate) fn piece(
        &self,
        py: Python<'_>,
        stream: &DeviceStream,
        keep: DlPack,
    ) -> PyResult<Option<Tensor>> {
        garbage::open(py)?;
        let keep = Box::new(keep);
        let piece = piece_of(&self.handed.tensor, self.dtype, &self.layout, stream, keep, garbage::put);
        piece.map_err(|error| exception(py, "TensorError", error.to_string()))
    }
}

/// Whether a tensor of a library lies in memory of ours. What is unusual about it is left to those who say what is wrong.
///
/// # Safety
/// The array is one that a library has just described, with its axes.
#[expect(unsafe_code, reason = "the axes are C's")]
pub(crate) unsafe fn find(array: &Array) -> Option<Found> {
    let address = (array.data as u64).checked_add(array.byte_offset)?;
    let handed = Handed::at(address)?;
    let rank = usize::try_from(array.ndim).ok()?;
    let dtype = dtype_of(array)?;
    let axes = |first: *const i64| -> Option<Vec<i64>> {
        if rank == 0 {
            return Some(Vec::new());
        }
        // SAFETY: as many as there are axes, as the caller promises.
        (!first.is_null()).then(|| unsafe { std::slice::from_raw_parts(first, rank) }.to_vec())
    };
    let shape: Vec<usize> =
        axes(array.shape)?.into_iter().map(usize::try_from).collect::<Result<_, _>>().ok()?;
    let offset = (address - handed.start) as usize;
    if !offset.is_multiple_of(dtype.size()) || shape.contains(&0) {
        return None;
    }
    let layout = if array.strides.is_null() {
        Layout::contiguous(&shape).ok()?.with_offset(offset / dtype.size()).ok()?
    } else {
        let strides: Vec<isize> =
            axes(array.strides)?.into_iter().map(isize::try_from).collect::<Result<_, _>>().ok()?;
        let alone = |(stride, extent): (&isize, &usize)| if *extent == 1 { 0 } else { *stride };
        let strides: Vec<isize> = strides.iter().zip(&shape).map(alone).collect();
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
        _ => return None,
    })
}
