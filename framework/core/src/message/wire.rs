//! The form of a frame: header, leases, tensors, body. All numbers are little-endian.
//!
//! | bytes | what |
//! |---|---|
//! | 48 | header, see [`Header`] |
//! | 64 each | leases, see [`LeaseEntry`] |
//! | 152 each | tensors: index of the lease (2 bytes), 6 bytes of zero, dtype and layout |
//! | the rest | the body in MessagePack, unless it travels as the last lease |
//!
//! WIRE-1: [`Frame::parse`] checks the magic, the checksum, every count against the length and its limit, and
//! every reserved byte. Its result is well-formed. The mailbox checks that the leases exist, and
//! [`codec`](super::codec) that each layout fits its allocation.
//!
//! The **checksum** covers the header, the leases, the tensors and the frame's number among those of its
//! ring. Both ends are on one machine with coherent memory and no wire between them, and a lying peer can
//! compute any checksum. So it is there for errors that nothing else would find. One is a well-formed head
//! that is not the one written (another offset in the chunk, another existing actor). The other is a frame of
//! an earlier lap of the ring, if the tail has moved past bytes that were not written. The body is checked as
//! MessagePack of a type. A large body is not summed because it travels as a lease.
//!
//! The ready ticket is in the lease entry and not with each tensor: slices of one allocation share it, and
//! the receiver waits once. The sender leaves it out if its host sees that the ticket has passed.
//!
//! A body above `MAX_INLINE_BODY` (64 KiB) travels as a host lease, so the ring stays small and one large
//! body does not fill it. The receiver copies it before it decodes it, because the sender could still change
//! it.

use crate::clock::Ticket;
use crate::ids::{ActorId, ChunkId, ProcessId};
use crate::lease::LeaseId;
use crate::limits::{ALLOCATION_UNIT, MAX_BODY, MAX_STREAMS, MAX_TENSORS};
use crate::message::scope::Outline;
use crate::observe::context::CONTEXT_BYTES;
use crate::tensor::Layout;
use crate::tensor::layout::{LayoutError, WIRE_BYTES};

/// `TPF2`: Tensorpost frame, version 2.
pub const MAGIC: u32 = u32::from_le_bytes(*b"TPF2");
/// Bytes of the header.
pub const HEADER_BYTES: usize = 48;
/// Bytes of one lease.
pub const LEASE_BYTES: usize = 64;
/// Bytes of one tensor.
pub const TENSOR_BYTES: usize = 8 + WIRE_BYTES;

/// The purpose of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A message without an answer.
    Send = 1,
    /// A message whose sender waits for the reply.
    Ask = 2,
    /// The reply to an ask.
    Reply = 3,
    /// There will be no reply; the body says why.
    Refusal = 4,
    /// An ask for anything newer than the sender has, see
    /// [`GpuMessage::FOLLOWS`](super::GpuMessage::FOLLOWS). Within a host it is like any ask. Those of
    /// several senders of a host go to another host as one.
    Follow = 5,
}

impl Kind {
    /// Returns whether the sender waits for a reply.
    pub fn is_ask(self) -> bool {
        matches!(self, Kind::Ask | Kind::Follow)
    }

    /// Returns whether the frame goes to an actor, and takes a credit of its mailbox.
    pub fn is_message(self) -> bool {
        self == Kind::Send || self.is_ask()
    }
}

/// The fixed part of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The frame's purpose.
    pub kind: Kind,
    /// Whether the body is in the last lease.
    pub body_in_lease: bool,
    /// Whether the last 32 bytes of the body are the [context of a span](crate::observe::context).
    pub has_context: bool,
    /// Index of the actor in its process; 0 in replies.
    pub index: u16,
    /// The actor; 0 in replies.
    pub actor: ActorId,
    /// Ties a reply to its ask; 0 in sends.
    pub correlation: u64,
    /// The message's type, see [`message_key`](super::message_key).
    pub key: u64,
    /// Length of the body in bytes, wherever it is.
    pub body_bytes: u32,
}

/// A lease in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseEntry {
    /// The lease's id.
    pub id: LeaseId,
    /// Bytes from the chunk's start.
    pub offset: u64,
    /// Bytes of the allocation.
    pub bytes: u64,
    /// The ticket at which its data is ready, if it is not yet.
    pub ready: Option<Ticket>,
    /// Whether the sender hands it over and nobody else holds it.
    pub sole: bool,
    /// Whether the memory was split: parts of it come with the frame, and the sender gives them away.
    pub in_parts: bool,
}

/// The reason why bytes are not a frame.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the texts of the errors name their fields")]
pub enum WireError {
    /// There are fewer bytes than the header, or its counts, need.
    #[error("the frame has {found} bytes and needs {wanted}: it was cut short")]
    CutShort { found: usize, wanted: usize },
    /// There are more bytes than the counts need.
    #[error("{bytes} bytes follow the frame")]
    Trailing { bytes: usize },
    /// The frame is of another protocol, or of another version of this one.
    #[error(
        "the frame begins with {found:#010x}, not with {MAGIC:#010x}: another protocol, or another version"
    )]
    Magic { found: u32 },
    /// A bit of the head changed on the way, or this is not the frame that was written here last.
    #[error(
        "the frame's checksum is {found:#010x}, that of its head and place {computed:#010x}: it was damaged"
    )]
    Checksum { found: u32, computed: u32 },
    /// A field has a value that it cannot have.
    #[error("the frame's {field} is {value}, which it cannot be")]
    Field { field: &'static str, value: u64 },
    /// A tensor has an impossible layout.
    #[error("tensor {index} of the frame: {error}")]
    Layout { index: usize, error: LayoutError },
}

/// The buffers for a parsed frame, to be reused for the next one.
#[derive(Debug, Default)]
pub struct Tables {
    leases: Vec<LeaseEntry>,
    tensors: Vec<Outline>,
}

/// A well-formed frame.
#[derive(Debug)]
pub struct Frame<'a> {
    /// The header.
    pub header: Header,
    /// The leases, without that of the body.
    pub leases: &'a [LeaseEntry],
    /// The lease that holds the body.
    pub body_lease: Option<LeaseEntry>,
    /// The tensors.
    pub tensors: &'a [Outline],
    /// The body; empty if it is in a lease.
    pub body: &'a [u8],
}

/// Returns the length of a frame in bytes.
pub fn frame_bytes(leases: usize, tensors: usize, inline_body: usize) -> usize {
    HEADER_BYTES + leases * LEASE_BYTES + tensors * TENSOR_BYTES + inline_body
}

/// Returns the checksum of a frame's `head`, without its first 8 bytes, for the frame with that number. A
/// changed word always changes the sum before it is folded, because each step can be undone.
#[inline]
pub(crate) fn checksum(number: u32, head: &[u8]) -> u32 {
    // FxHash's factor.
    const FACTOR: u64 = 0x517c_c1b7_2722_0a95;
    let (words, _) = head.get(8..).unwrap_or_default().as_chunks::<8>();
    let sum = words.iter().fold(u64::from(number), |sum, word| {
        (sum.rotate_left(5) ^ u64::from_le_bytes(*word)).wrapping_mul(FACTOR)
    });
    (sum ^ (sum >> 32)) as u32
}

/// Returns the part of a frame that the checksum covers: the head as long as it claims to be, or all bytes if
/// there are fewer.
#[inline]
pub(crate) fn head_of(bytes: &[u8]) -> &[u8] {
    let count = |at: usize| {
        bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |field| u16::from_le_bytes(*field))
    };
    bytes.get(..frame_bytes(count(LEASES_AT).into(), count(TENSORS_AT).into(), 0)).unwrap_or(bytes)
}

const _: () = assert!(
    HEADER_BYTES.is_multiple_of(8) && LEASE_BYTES.is_multiple_of(8) && TENSOR_BYTES.is_multiple_of(8)
);

impl Header {
    fn to_bytes(self, leases: usize, tensors: usize) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        let mut put = |at: usize, field: &[u8]| out[at..at + field.len()].copy_from_slice(field);
        put(0, &MAGIC.to_le_bytes());
        // The checksum is at 4.
        put(8, &[self.kind as u8, u8::from(self.body_in_lease) | u8::from(self.has_context) << 1]);
        put(LEASES_AT, &(leases as u16).to_le_bytes());
        put(TENSORS_AT, &(tensors as u16).to_le_bytes());
        put(14, &self.index.to_le_bytes());
        put(16, &self.body_bytes.to_le_bytes());
        // Four zeros are at 20.
        put(24, &self.actor.0.to_le_bytes());
        put(32, &self.correlation.to_le_bytes());
        put(40, &self.key.to_le_bytes());
        out
    }
}

/// The offsets of fields in the header.
pub(crate) const CHECKSUM_AT: usize = 4;
const LEASES_AT: usize = 10;
const TENSORS_AT: usize = 12;

/// Returns the head of a frame without leases and tensors: all of the frame but the body. `number` is that of
/// the frame in its ring.
#[inline]
pub(crate) fn plain_head(header: &Header, number: u32) -> [u8; HEADER_BYTES] {
    let mut head = header.to_bytes(0, 0);
    let checksum = checksum(number, &head);
    head[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&checksum.to_le_bytes());
    head
}

/// Writes everything of a frame before its inline body into `out`, in place of the previous contents.
/// `number` is that of the frame in its ring, from zero.
pub fn write_head(
    out: &mut Vec<u8>,
    header: &Header,
    leases: &[LeaseEntry],
    tensors: &[Outline],
    number: u32,
) {
    out.clear();
    out.extend_from_slice(&header.to_bytes(leases.len(), tensors.len()));
    for lease in leases {
        lease.write(out);
    }
    for tensor in tensors {
        out.extend_from_slice(&tensor.lease.to_le_bytes());
        out.extend_from_slice(&[0; 6]);
        out.extend_from_slice(&tensor.layout.to_wire(tensor.dtype));
    }
    let checksum = checksum(number, out);
    out[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&checksum.to_le_bytes());
}

impl LeaseEntry {
    fn write(&self, out: &mut Vec<u8>) {
        let flags =
            u32::from(self.sole) | u32::from(self.ready.is_some()) << 1 | u32::from(self.in_parts) << 2;
        let ready = self.ready.unwrap_or(Ticket { process: ProcessId::NODE, slot: 0, value: 0 });
        out.extend_from_slice(&self.id.chunk.owner.to_bits().to_le_bytes());
        out.extend_from_slice(&self.id.chunk.index.to_le_bytes());
        out.extend_from_slice(&self.id.entry.to_le_bytes());
        out.extend_from_slice(&self.id.generation.to_le_bytes());
        out.extend_from_slice(&flags.to_le_bytes());
        out.extend_from_slice(&self.offset.to_le_bytes());
        out.extend_from_slice(&self.bytes.to_le_bytes());
        out.extend_from_slice(&ready.process.to_bits().to_le_bytes());
        out.extend_from_slice(&ready.value.to_le_bytes());
        out.extend_from_slice(&u64::from(ready.slot).to_le_bytes());
    }

    fn read(bytes: &[u8; LEASE_BYTES]) -> Result<Self, WireError> {
        let mut reader = Reader { bytes, at: 0 };
        let process = |field, bits| ProcessId::from_bits(bits).ok_or(WireError::Field { field, value: bits });
        let owner = process("lease owner", reader.u64()?)?;
        let index = reader.u32()?;
        let id = LeaseId { chunk: ChunkId { owner, index }, entry: reader.u32()?, generation: reader.u32()? };
        let flags = reader.u32()?;
        // Memory in parts has other writers, so nobody holds it exclusively.
        if flags > 7 || flags & 5 == 5 {
            return Err(WireError::Field { field: "lease flags", value: u64::from(flags) });
        }
        let (offset, bytes) = (reader.u64()?, reader.u64()?);
        // A layout that is aligned in its allocation is aligned in memory only if the allocation is.
        if !offset.is_multiple_of(ALLOCATION_UNIT) {
            return Err(WireError::Field { field: "lease offset", value: offset });
        }
        if offset.checked_add(bytes).is_none() {
            return Err(WireError::Field { field: "lease length", value: bytes });
        }
        let clock = process("clock's process", reader.u64()?)?;
        let (value, slot) = (reader.u64()?, reader.u64()?);
        if slot >= MAX_STREAMS as u64 {
            return Err(WireError::Field { field: "clock", value: slot });
        }
        let ready = (flags & 2 != 0).then_some(Ticket { process: clock, slot: slot as u16, value });
        Ok(LeaseEntry { id, offset, bytes, ready, sole: flags & 1 != 0, in_parts: flags & 4 != 0 })
    }
}

impl<'a> Frame<'a> {
    /// Reads a frame, the `number`th of its ring, from zero; `tables` is where its leases and tensors go.
    ///
    /// # Errors
    /// See [`WireError`].
    #[inline]
    pub fn parse(bytes: &'a [u8], tables: &'a mut Tables, number: u32) -> Result<Self, WireError> {
        let magic = Reader { bytes, at: 0 }.u32()?;
        if magic != MAGIC {
            return Err(WireError::Magic { found: magic });
        }
        let Some(fixed) = bytes.first_chunk::<HEADER_BYTES>() else {
            return Err(WireError::CutShort { found: bytes.len(), wanted: HEADER_BYTES });
        };
        let mut reader = Reader { bytes: fixed, at: 4 };
        let found = reader.u32()?;
        let kind = reader.u8()?;
        let flags = reader.u8()?;
        let leases = usize::from(reader.u16()?);
        let tensors = usize::from(reader.u16()?);
        let index = reader.u16()?;
        let body_bytes = reader.u32()?;
        let reserved = reader.u32()?;
        let actor = ActorId(reader.u64()?);
        let (correlation, key) = (reader.u64()?, reader.u64()?);
        // The checksum comes first: until then only the frame's claimed length is used.
        let computed = checksum(number, head_of(bytes));
        if found != computed {
            return Err(WireError::Checksum { found, computed });
        }
        let kind = match kind {
            1 => Kind::Send,
            2 => Kind::Ask,
            3 => Kind::Reply,
            4 => Kind::Refusal,
            5 => Kind::Follow,
            other => return Err(WireError::Field { field: "kind", value: u64::from(other) }),
        };
        let (body_in_lease, has_context) = match flags {
            flags @ 0..=3 => (flags & 1 != 0, flags & 2 != 0),
            other => return Err(WireError::Field { field: "flags", value: u64::from(other) }),
        };
        // The body may have a lease besides those of the tensors.
        if leases > MAX_TENSORS + 1 || (body_in_lease && leases == 0) {
            return Err(WireError::Field { field: "number of leases", value: leases as u64 });
        }
        if tensors > MAX_TENSORS {
            return Err(WireError::Field { field: "number of tensors", value: tensors as u64 });
        }
        if body_bytes as usize > MAX_BODY {
            return Err(WireError::Field { field: "body length", value: u64::from(body_bytes) });
        }
        if has_context && (body_bytes as usize) < CONTEXT_BYTES {
            return Err(WireError::Field { field: "body length", value: u64::from(body_bytes) });
        }
        if reserved != 0 {
            return Err(WireError::Field { field: "reserved word", value: u64::from(reserved) });
        }
        let wanted = frame_bytes(leases, tensors, if body_in_lease { 0 } else { body_bytes as usize });
        if bytes.len() < wanted {
            return Err(WireError::CutShort { found: bytes.len(), wanted });
        }
        if bytes.len() > wanted {
            return Err(WireError::Trailing { bytes: bytes.len() - wanted });
        }
        // The counts match the length, so both tables lie inside the frame.
        let mut reader = Reader { bytes, at: HEADER_BYTES };
        let header = Header { kind, body_in_lease, has_context, index, actor, correlation, key, body_bytes };
        let Tables { leases: entries, tensors: outlines } = tables;
        entries.clear();
        for _ in 0..leases {
            entries.push(LeaseEntry::read(reader.array()?)?);
        }
        // Taken out before the tensors are read, because no tensor may name the body's lease.
        let body_lease = if body_in_lease { entries.pop() } else { None };
        if body_lease.is_some_and(|lease| lease.bytes < u64::from(body_bytes)) {
            return Err(WireError::Field { field: "body length", value: u64::from(body_bytes) });
        }
        outlines.clear();
        for index in 0..tensors {
            outlines.push(reader.tensor(index, entries.len())?);
        }
        let body = &bytes[reader.at..];
        Ok(Frame { header, leases: entries, body_lease, tensors: outlines, body })
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    #[inline]
    fn array<const N: usize>(&mut self) -> Result<&'a [u8; N], WireError> {
        let Some(field) = self.bytes.get(self.at..).and_then(<[u8]>::first_chunk::<N>) else {
            return Err(WireError::CutShort { found: self.bytes.len(), wanted: self.at + N });
        };
        self.at += N;
        Ok(field)
    }

    #[inline]
    fn u8(&mut self) -> Result<u8, WireError> {
        Ok(u8::from_le_bytes(*self.array()?))
    }

    #[inline]
    fn u16(&mut self) -> Result<u16, WireError> {
        Ok(u16::from_le_bytes(*self.array()?))
    }

    #[inline]
    fn u32(&mut self) -> Result<u32, WireError> {
        Ok(u32::from_le_bytes(*self.array()?))
    }

    #[inline]
    fn u64(&mut self) -> Result<u64, WireError> {
        Ok(u64::from_le_bytes(*self.array()?))
    }

    fn tensor(&mut self, index: usize, leases: usize) -> Result<Outline, WireError> {
        let lease = self.u16()?;
        if usize::from(lease) >= leases {
            return Err(WireError::Field { field: "tensor's lease", value: u64::from(lease) });
        }
        let padding = self.array::<6>()?;
        if padding != &[0; 6] {
            return Err(WireError::Field { field: "tensor's padding", value: u64::from(padding[0]) });
        }
        let (dtype, layout) = Layout::from_wire(self.array::<WIRE_BYTES>()?)
            .map_err(|error| WireError::Layout { index, error })?;
        Ok(Outline { lease, dtype, layout })
    }
}
