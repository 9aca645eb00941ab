//! Frames and notices that no honest process would send: everything in them is right except one deliberate
//! fault.
//!
//! [`Cluster::tamper_next`](super::Cluster::tamper_next) hands a test the bytes of a real frame; [`reseal`]
//! makes its checksum right again, so that the receiver has to find the fault itself.

use crate::clock::Ticket;
use crate::ids::ProcessId;
use crate::lease::LeaseId;
use crate::message::wire::{self, CHECKSUM_AT, HEADER_BYTES, LEASE_BYTES, TENSOR_BYTES};
use crate::transport::entry;
use crate::transport::ring::Entry;

/// A change that a test makes to a frame before it is written.
pub(crate) struct Tamper(pub(crate) Change);

/// The change to the bytes of a frame.
type Change = Box<dyn FnOnce(&mut Vec<u8>) + Send + Sync>;

impl std::fmt::Debug for Tamper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tamper")
    }
}

impl Tamper {
    /// Returns the frame with the number `number` as it is written.
    pub(crate) fn of(self, mut frame: Vec<u8>, number: u32) -> Vec<u8> {
        self.0(&mut frame);
        sealed(frame, number)
    }
}

/// A mark in the place of a checksum: the checksum is made right when the frame is written, for the number
/// that the frame has then.
const RESEAL: [u8; 4] = *b"SEAL";

/// Requests that the checksum of a frame be made right when it is written. A frame too short to have one
/// stays as it is.
pub fn reseal(frame: &mut [u8]) {
    if let Some(checksum) = frame.get_mut(CHECKSUM_AT..CHECKSUM_AT + 4) {
        checksum.copy_from_slice(&RESEAL);
    }
}

/// Makes the checksum right now, for the frame with this number in its ring.
pub fn seal(frame: &mut [u8], number: u32) {
    if frame.len() >= HEADER_BYTES {
        let checksum = wire::checksum(number, wire::head_of(frame));
        frame[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&checksum.to_le_bytes());
    }
}

/// Makes the checksum right where a test [asked for it](reseal).
pub(crate) fn sealed(mut frame: Vec<u8>, number: u32) -> Vec<u8> {
    if frame.get(CHECKSUM_AT..CHECKSUM_AT + 4) == Some(&RESEAL) {
        seal(&mut frame, number);
    }
    frame
}

/// A field of a frame, as a range of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// Where it starts.
    pub at: usize,
    /// How many bytes it has, at most 8.
    pub bytes: usize,
}

impl Field {
    /// Puts `value` there, little-endian, cut to the field's size.
    ///
    /// # Panics
    /// The frame ends before the field does.
    pub fn set(self, frame: &mut [u8], value: u64) {
        frame[self.at..self.at + self.bytes].copy_from_slice(&value.to_le_bytes()[..self.bytes]);
    }

    /// Returns the value there.
    ///
    /// # Panics
    /// As [`set`](Self::set).
    pub fn get(self, frame: &[u8]) -> u64 {
        let mut value = [0; 8];
        value[..self.bytes].copy_from_slice(&frame[self.at..self.at + self.bytes]);
        u64::from_le_bytes(value)
    }
}

/// Returns every field of a frame with that many leases and tensors; a layout's fields are words without a
/// name of their own.
pub fn fields(leases: usize, tensors: usize) -> Vec<Field> {
    let header = [
        ("magic", 4),
        ("checksum", 4),
        ("kind", 1),
        ("body in lease", 1),
        ("number of leases", 2),
        ("number of tensors", 2),
        ("index", 2),
        ("body length", 4),
        ("reserved", 4),
        ("actor", 8),
        ("correlation", 8),
        ("key", 8),
    ];
    let lease = [
        ("lease owner", 8),
        ("lease chunk", 4),
        ("lease entry", 4),
        ("lease generation", 4),
        ("lease flags", 4),
        ("lease offset", 8),
        ("lease length", 8),
        ("clock's process", 8),
        ("clock value", 8),
        ("clock", 8),
    ];
    let mut fields = Vec::new();
    let mut at = 0;
    let mut add = |name, bytes| {
        fields.push(Field { name, at, bytes });
        at += bytes;
    };
    header.iter().for_each(|(name, bytes)| add(name, *bytes));
    for _ in 0..leases {
        lease.iter().for_each(|(name, bytes)| add(name, *bytes));
    }
    for _ in 0..tensors {
        add("tensor's lease", 2);
        add("tensor's padding", 6);
        (0..TENSOR_BYTES - 8).step_by(8).for_each(|_| add("layout", 8));
    }
    debug_assert_eq!(at, HEADER_BYTES + leases * LEASE_BYTES + tensors * TENSOR_BYTES);
    fields
}

/// Returns a notice that gives a lease back; `slots` are clocks of the writer with the values of its last
/// uses.
pub fn release(id: LeaseId, uses: &[Ticket]) -> Entry {
    entry::release(id, uses)
}

/// Returns a notice that a lease was taken over from a third process.
pub fn hold(id: LeaseId, by: ProcessId) -> Entry {
    entry::hold(id, by)
}

/// Returns a notice that a lease is passed on to `to`.
pub fn forward(id: LeaseId, to: ProcessId) -> Entry {
    entry::forward(id, to)
}

/// Returns a notice that the frame ending at `end` was not read.
pub fn rejected(end: u64) -> Entry {
    entry::rejected(end)
}

/// Makes the checksum of a notice right.
pub fn reseal_entry(notice: &mut Entry) {
    notice[7] = entry::checksum(notice);
}
