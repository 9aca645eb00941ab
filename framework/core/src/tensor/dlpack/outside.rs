//! Tensors that a language binding hands to its libraries, and recognises when they come back.
//!
//! Such a library makes views and slices of the tensors it was given, and its user sends those. The binding
//! finds their lease by the address, and [`seen_as`] makes a tensor on that lease. Memory in which a library
//! allocates by itself is one lease, and is lent out piece by piece: [`piece_of`] opens an entry of its own
//! in the lease table. It keeps the memory, which the library must not use anew, until that entry is closed
//! and its uses have passed.
//!
//! **Invariants.** The binding upholds ONE-WRITER here: a library that was handed writable memory keeps it
//! while others read, so the binding checks after each handler whether the library has written. A piece is
//! never sole.

use std::any::Any;
use std::sync::Arc;

use super::describe::data_type;
use super::managed::Contents;
use super::{DeviceStream, DlPack, Tensor, TensorError, abi, device_of, in_reach, pointer};
use crate::lease::external::Collector;
use crate::lease::{Lease, LetGo};
use crate::tensor::nodes::check_node;
use crate::tensor::{DType, Layout};

/// How a library may use memory that it is handed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handing {
    /// It only reads.
    ToRead,
    /// It reads and writes: the tensor was a `TensorMut` before.
    ToWrite,
}

/// Returns the tensor for a library that works on `stream`, or on the host where `stream` is `None`; then
/// this blocks until the data is there. `owner` is called with the address of the allocation in this process;
/// its result is kept until the library lets go.
///
/// # Errors
/// Memory out of reach, or that cannot be mapped writable; data that will never be there.
pub fn hand_out(
    tensor: &Tensor,
    handing: Handing,
    stream: Option<&DeviceStream>,
    owner: impl FnOnce(u64) -> Box<dyn Any + Send>,
) -> Result<DlPack, TensorError> {
    let after = match stream {
        Some(stream) => {
            in_reach(tensor.device(), stream)?;
            tensor.read_on(stream.clocked())?;
            tensor.ready().map(|ready| stream.after(ready))
        }
        None => {
            tensor.wait(None)?;
            None
        }
    };
    let (start, flags) = match handing {
        Handing::ToRead => (tensor.lease().address(), abi::READ_ONLY),
        Handing::ToWrite => {
            // Note the library's writes on the stream, so that later users wait for them.
            if let Some(stream) = stream {
                tensor.lease().written_on(stream.clocked());
            }
            (tensor.lease().writable()?.0, 0)
        }
    };
    let data = start + tensor.layout().offset() as u64 * tensor.dtype().size() as u64;
    let contents = Contents {
        data: pointer(data, tensor.is_empty()),
        device: device_of(tensor.device())?,
        dtype: data_type(tensor.dtype()),
        shape: tensor.shape(),
        strides: tensor.strides(),
        flags,
    };
    // Call `owner` last, when nothing can fail any more: dropping its result means that the library has let
    // go.
    Ok(DlPack::of(&contents, after, owner(start)))
}

/// Returns the memory of `tensor` with another layout, whose offset is from the beginning of the allocation.
/// `None` where the layout leaves the allocation, or the stream is of another node. `written`: the library
/// has put the data there by now, on that stream or on the host.
pub fn seen_as(
    tensor: &Tensor,
    dtype: DType,
    layout: Layout,
    written: Option<Option<&DeviceStream>>,
) -> Option<Tensor> {
    let lease = tensor.lease();
    if layout.bytes_span(dtype).ok()?.end as u64 > lease.bytes() {
        return None;
    }
    let ready = match written {
        None => tensor.ready(),
        Some(None) => None,
        Some(Some(stream)) => {
            check_node(lease, stream.clocked()).ok()?;
            lease.written_on(stream.clocked());
            stream.clocked().ticket()
        }
    };
    Some(Tensor::from_parts(lease.clone(), dtype, layout, ready))
}

/// Takes a value that is to be dropped later. It is called once, on any thread, with locks of the pool held:
/// it may only pass the value to a thread that may drop it.
pub type PutAway = fn(Box<dyn Any + Send>);

/// Drops `held` on a thread of the framework: the simplest [`PutAway`].
pub fn drop_on_collector(held: Box<dyn Any + Send>) {
    Collector::drop_on_collector(held);
}

/// A value that goes to `put_away` when this drops.
struct Held {
    held: Option<Box<dyn Any + Send>>,
    put_away: PutAway,
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            (self.put_away)(held);
        }
    }
}

/// Notes that a library let go of `tensor` before `later` was [made](piece_of) from the work on `stream`: the
/// clock write for `later` also stands for the library's uses of `tensor` on `stream`. The caller drops
/// `tensor` next; where it is not the last handle, nothing changes.
///
/// The caller promises the order: a ticket from before the library let go does not stand for its last uses
/// (CLOCK-2).
pub fn closes_before(tensor: &Tensor, later: &Tensor, stream: &DeviceStream) {
    if let Some(end) = later.ready() {
        tensor.lease().closes_at(stream.clocked(), end);
    }
}

/// Returns a part of the memory of `whole` as an allocation of its own, with the data that `stream` has
/// written there by now. `whole` has to be this process's own. When nobody has a lease on the part any more
/// and all uses of it have passed, `keep` goes to `put_away`; the part counts as lent out until `put_away`
/// has dropped it. Returns `None` where `layout`, counted from the beginning of `whole`'s allocation, leaves
/// that allocation.
///
/// # Errors
/// A layout that has no place in memory, a stream of another node.
pub fn piece_of(
    whole: &Tensor,
    dtype: DType,
    layout: &Layout,
    stream: &DeviceStream,
    keep: Box<dyn Any + Send>,
    put_away: PutAway,
) -> Result<Option<Tensor>, TensorError> {
    check_node(whole.lease(), stream.clocked())?;
    let span = layout.bytes_span(dtype)?;
    let (Some(pool), true) = (whole.lease().pool(), span.end as u64 <= whole.lease().bytes()) else {
        return Ok(None);
    };
    // Align the start as allocations are aligned, so that the layouts inside are aligned: the bytes before
    // belong to the library too.
    let start = span.start as u64 / crate::limits::ALLOCATION_UNIT * crate::limits::ALLOCATION_UNIT;
    let Some(layout) = layout.moved_back(start as usize / dtype.size()) else { return Ok(None) };
    let bytes = span.end as u64 - start;
    let let_go = LetGo::new(pool, bytes.max(1));
    let closed = let_go.closed();
    // Fields drop in this order: the library gets its memory back when the last one, `let_go`, says so.
    let held: Box<dyn Any + Send> = Box::new((whole.clone(), keep, let_go));
    let keep = Held { held: Some(held), put_away };
    let lease: Lease = Arc::clone(pool).lend(whole.lease(), start, bytes, Box::new(keep), closed);
    lease.set_home(stream.clocked());
    let ready = stream.clocked().ticket();
    // Later uses by the library are in the order of its own stream, and no holder of the piece depends on
    // them: when the lease goes, no further clock write stands for them.
    match ready {
        Some(ticket) => lease.used_until(stream.clocked(), ticket, true),
        None => lease.written_on(stream.clocked()),
    }
    Ok(Some(Tensor::from_parts(lease, dtype, layout, ready)))
}
