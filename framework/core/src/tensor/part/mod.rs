//! Parts of one tensor that several processes write at the same time.
//!
//! [`TensorMut::split`] takes a writable tensor apart into disjoint parts: columns, rows, tiles. Each
//! [`TensorPart`] is the only handle on its elements, can be written, and travels in messages like a tensor.
//! The process that has all of them makes the tensor whole again with [`TensorMut::join`]: no byte is copied,
//! and the new writer's stream waits for all earlier work on each part (CLOCK-1, CLOCK-2).
//!
//! **ONE-WRITER.** The unit that has one writer is an element, and no element is in two parts. A part is a
//! box of indices of a layout that does not overlap itself, and the boxes of a split do not meet. A part
//! cannot be cloned, and leaves its process when it is sent; [`Writers`] refuses a part that would come to
//! one process twice. No access needs to be atomic. Parts may share a page and a cache line, but a store
//! changes the bytes that it names and no others, on a CPU as on a GPU (where caches merge lines under byte
//! masks). So writers of neighbouring bytes do not disturb each other, although sharing a line may cost them
//! time. A *stray* write is another matter. A page is mapped writable as a whole, and a process that has a
//! part maps the part's whole chunk writable: its out-of-bounds writes can reach everything in that chunk.
//! Safe code cannot write out of bounds; a kernel of the user's can.
//!
//! **WIRE-1.** A receiver recomputes everything that it can about a part: it cuts the part's layout out of
//! the whole anew, and the whole must lie in its lease. The receiver takes the sender's word that the sender
//! *gave up* the part, as for a tensor that is handed over. The process that has a part refuses a second part
//! over the same elements (no two writers in one process), and one that describes the whole in another way:
//! then the same indices would be other elements. A part that is not of the split is found when the
//! parts are joined: each carries a token that only its holders know, and all tokens together have to give
//! the seal that each part names. So no process has to ask the owner, and parts travel as fast as tensors.
//! The price: a process that lies can make a second writer in another process. But such a process could write
//! to that memory itself.
//!
//! A part has its own list of streams, so a slow kernel on one part does not delay the holders of other
//! parts.
//!
//! **On drop** a part is lost: its lease goes back, and a join misses it. **When a process dies** its parts
//! are lost in the same way (LEASE-4): the join says which are missing, and the memory comes back when the
//! other parts drop.

mod join;
mod seal;
mod split;
pub mod view;

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use smallvec::SmallVec;

pub use join::{JoinError, JoinReason};
pub use split::{SplitError, SplitReason};

use super::layout::WIRE_BYTES;
use super::nodes::check_node;
use super::{DType, DeviceStream, Layout, Tensor, TensorError, TensorMut, TensorStatus};
use crate::clock::Ticket;
use crate::clock::taint::{Tainted, TicketStatus};
use crate::device::DeviceError;
use crate::ids::DeviceId;
use crate::lease::table::Uses;
use crate::lease::writers::{Area, Clash, Piece};
use crate::lease::{Lease, is_last};
use crate::limits::MAX_PARTS;
use crate::stream::Stream;

#[cfg(doc)]
use crate::lease::Writers;

/// A piece of a tensor that only this process may write. It can be sent, but not cloned.
///
/// ```
/// use tensorpost::prelude::*;
///
/// # fn main() -> anyhow::Result<()> {
/// # let node = Node::builder().start()?;
/// # let stream = node.host_stream()?;
/// let matrix = stream.zeros(DType::F32, &[2, 4])?;
/// let mut parts = matrix.split(1, &[1, 3])?; // the first column, and the other three
/// // Each could be in a process of its own now.
/// for (number, part) in parts.iter_mut().enumerate() {
///     stream.run((part.of_mut::<f32>(),), move |(mut part,)| part.fill(number as f32))?;
/// }
/// let matrix = TensorMut::join(parts, &stream)?.freeze();
/// assert_eq!(matrix.to_vec::<f32>()?, [0.0, 1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0]);
/// # Ok(())
/// # }
/// ```
#[must_use = "a part that is dropped is missing when the tensor is joined"]
pub struct TensorPart(Arc<Inner>);

/// The state that a part shares with the encoded message it is in, until the message is written. Nothing else
/// shares it.
pub(crate) struct Inner {
    lease: Lease,
    dtype: DType,
    /// The tensor that was split.
    whole: Layout,
    /// This part of it.
    layout: Layout,
    piece: Piece,
    count: u32,
    /// Known only to present and past holders of this part.
    token: u64,
    /// The ticket for the work of other processes on it.
    ready: Option<Ticket>,
    /// Streams of this process that used this part, without those that used other parts of the lease.
    users: Mutex<SmallVec<[Stream; 1]>>,
    /// The earliest value that can stand for the last of those uses, see `Lease::taint`.
    written: Mutex<Option<Ticket>>,
    /// The address of the allocation, in its writable mapping.
    address: u64,
    /// The address of the first element, to write.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "only kernels are given it"))]
    first_element: u64,
}

/// The description of a part in a message. The frame has the whole's layout and dtype.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) piece: Piece,
    pub(crate) count: u32,
    pub(crate) token: u64,
}

/// The reason why something that came as a part is no part (WIRE-1).
#[derive(Debug, thiserror::Error)]
pub(crate) enum BadPart {
    #[error("its sender kept a handle on it, or did not give it away at all; move the part into the message")]
    NotGiven,
    #[error("it says that it is part {index} of {count}")]
    Number { index: u32, count: u32 },
    #[error("its indices are not in the tensor of shape {shape:?}")]
    OutOfBounds { shape: Vec<usize> },
    #[error("the tensor it is of has elements that overlap")]
    Overlaps,
    #[error(transparent)]
    Clash(#[from] Clash),
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl TensorPart {
    /// Returns a part that came in a message, on a lease of its own. `whole` is the tensor as the frame
    /// describes it.
    pub(crate) fn arrived(whole: &Tensor, claim: Claim) -> Result<Self, BadPart> {
        let lease = whole.lease();
        if !lease.is_in_parts() {
            return Err(BadPart::NotGiven);
        }
        if claim.piece.index >= claim.count || claim.count as usize > MAX_PARTS {
            return Err(BadPart::Number { index: claim.piece.index, count: claim.count });
        }
        if whole.layout().overlaps_itself() {
            return Err(BadPart::Overlaps);
        }
        let out = || BadPart::OutOfBounds { shape: whole.shape().to_vec() };
        let layout = cut(whole.layout(), &claim.piece.area).ok_or_else(out)?;
        let (address, _) = lease.writable()?;
        let form = form_of(lease, whole.dtype(), whole.layout());
        lease.writers().enter(lease.id(), &form, [claim.piece.clone()])?;
        Ok(Self::entered(
            lease.clone(),
            address,
            whole.dtype(),
            *whole.layout(),
            layout,
            claim,
            whole.ready(),
        ))
    }

    /// Returns a part whose piece is in the list of writers.
    fn entered(
        lease: Lease,
        address: u64,
        dtype: DType,
        whole: Layout,
        layout: Layout,
        claim: Claim,
        ready: Option<Ticket>,
    ) -> Self {
        lease.add_handle();
        let first_element = address + layout.offset() as u64 * dtype.size() as u64;
        let Claim { piece, count, token } = claim;
        let users = Mutex::default();
        TensorPart(Arc::new(Inner {
            lease,
            dtype,
            whole,
            layout,
            piece,
            count,
            token,
            ready,
            users,
            written: Mutex::default(),
            address,
            first_element,
        }))
    }

    /// Returns the type of the elements.
    pub fn dtype(&self) -> DType {
        self.0.dtype
    }

    /// Returns the number of elements along each axis.
    pub fn shape(&self) -> &[usize] {
        self.0.layout.shape()
    }

    /// Returns the distance in elements between neighbours along each axis: that of the whole tensor.
    pub fn strides(&self) -> &[isize] {
        self.0.layout.strides()
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.0.layout.len()
    }

    /// Returns whether there is no element, which never happens.
    pub fn is_empty(&self) -> bool {
        self.0.layout.is_empty()
    }

    /// Returns shape, strides and offset together.
    pub fn layout(&self) -> &Layout {
        &self.0.layout
    }

    /// Returns the part's number, counted from zero in the order in which the split gave the parts.
    pub fn index(&self) -> usize {
        self.0.piece.index as usize
    }

    /// Returns into how many parts the tensor was split.
    pub fn count(&self) -> usize {
        self.0.count as usize
    }

    /// Returns the index of its first element in the whole tensor, one number per axis.
    pub fn start(&self) -> Vec<usize> {
        self.0.piece.area.ranges().iter().map(|range| range.start).collect()
    }

    /// Returns the shape of the whole tensor.
    pub fn whole_shape(&self) -> &[usize] {
        self.0.whole.shape()
    }

    /// Returns the device that the memory is on.
    pub fn device(&self) -> DeviceId {
        self.0.lease.device()
    }

    /// Returns the lease that the part stands on. Parts of one tensor in one process may share it.
    pub fn lease(&self) -> &Lease {
        &self.0.lease
    }

    /// Returns the address of the first element; a kernel takes it as an argument by reference.
    #[cfg(feature = "cuda")]
    pub(crate) fn first_element(&self) -> &u64 {
        &self.0.first_element
    }

    inside! {
        /// Makes work on `stream` from here on wait for all earlier uses of this part, in other processes and
        /// on other streams, and makes later uses wait for that work. Returns the writable address of the
        /// first element of the *allocation*; the layout's offset is not added. Elements between those of the
        /// part belong to other parts.
        ///
        /// # Errors
        /// [`TensorError::Tainted`] where earlier work on the part was lost with a process, a refusal of the
        /// device, an unknown clock of the process that had the part before.
        pub fn write_on(&mut self, stream: &Stream) -> Result<u64, TensorError> {
            check_node(&self.0.lease, stream)?;
            if let Some(tainted) = self.0.taint() {
                return Err(tainted.into());
            }
            let domain = self.0.lease.domain();
            let others = self.0.users.lock().clone();
            // CLOCK-1 for the ticket that came with the part, CLOCK-2 for this process's other streams.
            let others = others.iter().filter(|other| *other != stream).filter_map(Stream::ticket);
            stream.wait(others.chain(self.0.ready))?;
            let mut users = self.0.users.lock();
            if !users.contains(stream) {
                users.push(stream.clone());
            }
            let mut written = self.0.written.lock();
            // The update may have come since the check above, and a tainted part stays tainted (DEATH-3).
            if let Some((ticket, by)) = written.and_then(|ticket| Some((ticket, domain.tainted_by(&ticket)?))) {
                return Err(Tainted { ticket, by }.into());
            }
            *written = Some(stream.next_ticket());
            // Note the use in the lease too: the memory's reuse waits for that work.
            self.0.lease.used_on(stream);
            Ok(self.0.address)
        }
    }

    /// Returns whether the work on it is done, on its way, or lost with a process. Never blocks.
    pub fn status(&self) -> TensorStatus {
        let domain = self.0.lease.domain();
        // `last_uses` checks for taint last; the ticket that it returns then is tainted, and is asked again
        // here.
        let uses = self.0.last_uses();
        match uses.iter().find_map(|ticket| domain.tainted_by(ticket)) {
            Some(by) => TensorStatus::Tainted { by },
            None if uses.iter().all(|ticket| matches!(domain.status(ticket), Ok(TicketStatus::Ready))) => {
                TensorStatus::Ready
            }
            None => TensorStatus::Pending,
        }
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.0
    }
}

impl Inner {
    /// Returns tickets for all work on this part so far.
    pub(crate) fn last_uses(&self) -> Uses {
        let users = self.users.lock().clone();
        // A stream that used the part waited for `ready` first.
        let uses: Uses = if users.is_empty() {
            self.ready.into_iter().collect()
        } else {
            users.iter().filter_map(Stream::ticket).collect()
        };
        // Check after taking the tickets: a marked stream may have left its marked range meanwhile, and its
        // ticket would no longer show the loss.
        match self.taint() {
            Some(tainted) => std::iter::once(tainted.ticket).collect(),
            None => uses,
        }
    }

    /// Returns the taint of the work on it, if one is known (DEATH-3).
    pub(crate) fn taint(&self) -> Option<Tainted> {
        let domain = self.lease.domain();
        if !domain.has_taint() {
            return None;
        }
        let written = *self.written.lock();
        let tainted = |ticket| domain.tainted_by(&ticket).map(|by| Tainted { ticket, by });
        self.ready.into_iter().chain(written).find_map(tainted)
    }

    /// Returns whether only the message that it is in has it: the value was dropped, and nobody kept a
    /// handle.
    pub(crate) fn is_last(self: &Arc<Self>) -> bool {
        is_last(self)
    }

    pub(crate) fn lease(&self) -> &Lease {
        &self.lease
    }

    pub(crate) fn dtype(&self) -> DType {
        self.dtype
    }

    pub(crate) fn whole(&self) -> &Layout {
        &self.whole
    }

    pub(crate) fn claim(&self) -> Claim {
        Claim { piece: self.piece.clone(), count: self.count, token: self.token }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.lease.domain().is_inherited() {
            return;
        }
        self.lease.writers().leave(self.lease.id(), self.piece.seal, self.piece.index);
        self.lease.remove_handle();
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "part {} of {}", self.piece.index, self.count)
    }
}

impl fmt::Debug for TensorPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { piece, count, dtype, layout, .. } = &*self.0;
        let (shape, device) = (layout.shape(), self.device());
        write!(
            f,
            "TensorPart({} of {count}: {dtype} {shape:?} at {:?} on {device})",
            piece.index,
            self.start()
        )
    }
}

/// Bytes of the form of a whole.
const FORM_BYTES: usize = WIRE_BYTES + size_of::<u64>();

/// Returns the form of a whole: its dtype and layout, and where its allocation begins. Two wholes of the same
/// form have the same bytes at each index.
fn form_of(lease: &Lease, dtype: DType, whole: &Layout) -> [u8; FORM_BYTES] {
    let mut form = [0; FORM_BYTES];
    let (of_layout, offset) = form.split_at_mut(WIRE_BYTES);
    of_layout.copy_from_slice(&whole.to_wire(dtype));
    offset.copy_from_slice(&lease.offset().to_le_bytes());
    form
}

/// Returns the elements of `whole` whose indices are in `area`; `None` where some are not there.
fn cut(whole: &Layout, area: &Area) -> Option<Layout> {
    if area.ranges().len() != whole.rank() {
        return None;
    }
    let mut part = *whole;
    for (axis, range) in area.ranges().iter().enumerate() {
        part = part.slice(axis, range.clone()).ok()?;
    }
    Some(part)
}
