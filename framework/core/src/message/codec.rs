//! From a value to the parts of a frame and back.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::body::{Filled, Room, Writer};
use super::meter::{self, Meter, Spent};
use super::nesting::{self, NestingError};
use super::packed::{Lists, Packing};
use super::parts;
#[cfg(feature = "raw")]
use super::raw;
use super::scope::{self, Incoming, Leases, Outgoing, Outline};
use crate::clock::taint::Tainted;
use crate::clock::{ClockDomain, NodeNumber, Ticket};
use crate::fault;
use crate::lease::Lease;
use crate::limits::{MAX_BODY, MAX_DECODE_CALLS, MAX_INLINE_BODY};
use crate::observe::context::TraceContext;
use crate::os::vital;
use crate::tensor::part::Inner;
use crate::tensor::{LayoutError, Tensor};

/// A value, encoded as the parts of a frame.
#[derive(Debug)]
pub struct Encoded {
    /// MessagePack, named form. The buffer is empty if the body is in memory already, which happens only for
    /// other processes.
    pub body: Vec<u8>,
    /// The body, if it is in the memory in which it travels.
    pub(crate) filled: Option<Filled>,
    /// The leases of the value's tensors, each once, with the tickets of their data.
    pub leases: Leases,
    /// The value's tensors.
    pub tensors: Vec<Outline>,
    /// The value's parts of split tensors.
    pub(crate) parts: Vec<Arc<Inner>>,
}

impl Encoded {
    /// Returns whether the value is only a body that goes into the frame.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.leases.is_empty()
            && self.tensors.is_empty()
            && self.parts.is_empty()
            && self.filled.is_none()
            && self.body.len() <= MAX_INLINE_BODY
    }

    /// Returns the length of the body in bytes.
    #[inline]
    pub(crate) fn body_len(&self) -> usize {
        self.filled.as_ref().map_or(self.body.len(), Filled::len)
    }

    /// Moves the body into the buffer.
    pub(crate) fn into_buffer(mut self) -> Self {
        if let Some(filled) = self.filled.take() {
            self.body.extend_from_slice(filled.bytes());
        }
        self
    }

    /// Puts the context of a span behind the body. Returns whether it is there.
    #[inline]
    pub(crate) fn append(&mut self, context: TraceContext) -> bool {
        let Some(filled) = &mut self.filled else { return context.append(&mut self.body, MAX_BODY) };
        // The buffer is empty here, and is emptied again.
        let is_there = context.append(&mut self.body, MAX_BODY - filled.len()) && filled.extend(&self.body);
        self.body.clear();
        is_there
    }

    /// Returns why the data of one of the tensors will never be ready, if that is known.
    pub(crate) fn taint(&self) -> Option<Tainted> {
        let tensors = self.leases.iter().find_map(|(lease, ready)| lease.taint_at(*ready));
        tensors.or_else(|| self.parts.iter().find_map(|part| part.taint()))
    }
}

/// Why a value could not be encoded. Nothing was sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// Serde refused the value.
    #[error("it cannot be serialised: {0}")]
    Serialise(#[from] rmp_serde::encode::Error),
    /// The body is larger than a message's body may be.
    #[error("its body has {bytes} bytes and may have {MAX_BODY}; put the data into a tensor")]
    TooLarge {
        /// The length of the body.
        bytes: usize,
    },
    /// The body is nested too deeply.
    #[error("its body is {0}")]
    Nesting(#[from] NestingError),
    /// A tensor is on memory that other processes cannot map.
    #[error(
        "the {shape:?} tensor in it stands on memory that another library of this process keeps (it came by DLPack), which other \
         processes cannot map; send a copy, made with `stream.copy(&tensor)`"
    )]
    NotShared {
        /// The tensor's shape.
        shape: Vec<usize>,
    },
    /// A tensor belongs to another node of the process.
    #[error(
        "the {shape:?} tensor in it is of {tensor}, and the message goes out by {sender}, whose processes cannot map its memory; send a \
         copy, made with `stream.copy(&tensor)` on a stream of {sender}"
    )]
    OtherNode {
        /// The tensor's shape.
        shape: Vec<usize>,
        /// The node of the tensor. The nodes of a process are counted from 1, in the order in which it
        /// started them.
        tensor: String,
        /// The node of the address that the message is sent to, or of the actor that answers.
        sender: String,
    },
    /// A part of the value cannot go to an actor of another host.
    #[error("it goes to an actor of another host, and {0}")]
    LeavesHost(&'static str),
    /// The body holds bytes that could be read as a part of a split tensor, and that are none of the
    /// message's parts.
    #[error(
        "it describes a part {index} of a split tensor by hand, under the key `$part`, which only a TensorPart may; rename the key, \
         or put the part itself into the message"
    )]
    ForgedPart {
        /// The index that those bytes claim.
        index: u32,
    },
}

/// Why the content of a frame is not a value of the type that it claims to be. Its leases went back.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the texts of the errors name their fields")]
pub enum DecodeError {
    /// The body is not one value, or is nested too deeply.
    #[error("its body is malformed: {0}")]
    Nesting(#[from] NestingError),
    /// Serde refused the body.
    #[error("its body is not what the type needs: {0}")]
    Deserialise(#[from] rmp_serde::decode::Error),
    /// The value would take more memory than a body of this length may.
    #[error(
        "its body has {bytes} bytes, and decoded it would take more than the {may} that it may; put large fields of the type that \
         may be absent into a Box, and data into a tensor"
    )]
    TooMuch { bytes: usize, may: usize },
    /// The type holds itself without a container between, and so has no end.
    #[error(
        "its type holds itself through more than {MAX_DECODE_CALLS} options and newtypes; put a struct with a named field between"
    )]
    TooDeep,
    /// A `Deserialize` of the type panicked. The process goes on.
    #[error("reading it panicked: {0}")]
    Panicked(String),
    /// A tensor's layout leaves its allocation.
    #[error("tensor {index}: {error}")]
    Layout { index: usize, error: LayoutError },
    /// A tensor names a lease that the frame does not have.
    #[error("tensor {index} stands on lease {lease}, and the frame has {leases}")]
    NoSuchLease { index: usize, lease: u16, leases: usize },
}

/// Encodes `value`; `body` is a buffer to reuse.
///
/// # Errors
/// See [`EncodeError`]; `value` is untouched.
pub fn encode<T: Serialize>(value: &T, body: Vec<u8>) -> Result<Encoded, EncodeError> {
    encode_as(value, body, Lists::Packed)
}

/// As [`encode`], with a form for lists of bytes.
///
/// # Errors
/// See [`EncodeError`]; `value` is untouched.
pub(crate) fn encode_as<T: Serialize>(
    value: &T,
    body: Vec<u8>,
    lists: Lists,
) -> Result<Encoded, EncodeError> {
    encode_into(value, body, lists, None, None).map(|(encoded, _)| encoded)
}

/// As [`encode`], for processes of one node: everything in the value must belong to that node.
///
/// # Errors
/// See [`EncodeError`]; `value` is untouched.
pub fn encode_in<T: Serialize>(
    value: &T,
    body: Vec<u8>,
    node: &Arc<ClockDomain>,
) -> Result<Encoded, EncodeError> {
    let (encoded, _) = encode_into(value, body, Lists::Packed, None, Some(node.node()))?;
    encoded.check_node(node)?;
    Ok(encoded)
}

/// As [`encode`], for a node that is not known yet. Also returns the node of the value's addresses, if it has
/// any.
///
/// # Errors
/// See [`EncodeError`]; `value` is untouched.
pub(crate) fn encode_for_later<T: Serialize>(
    value: &T,
) -> Result<(Encoded, Option<NodeNumber>), EncodeError> {
    encode_into(value, Vec::new(), Lists::Packed, None, None)
}

/// As [`encode_as`]. A large list of bytes goes into memory of `room`.
fn encode_into<T: Serialize>(
    value: &T,
    mut body: Vec<u8>,
    lists: Lists,
    room: Option<Room<'_>>,
    node: Option<NodeNumber>,
) -> Result<(Encoded, Option<NodeNumber>), EncodeError> {
    body.clear();
    let mut writer = Writer::new(body, room);
    let (outgoing, node) = scope::encoding(node, || {
        let mut serializer = rmp_serde::Serializer::new(&mut writer).with_struct_map();
        match lists {
            Lists::Packed => value.serialize(Packing(&mut serializer)),
            Lists::Numbers => value.serialize(&mut serializer),
        }
    })?;
    let (body, filled) = writer.finish().map_err(<rmp_serde::encode::Error as serde::ser::Error>::custom)?;
    #[cfg(feature = "raw")]
    let (mut outgoing, mut body, mut filled) = (outgoing, body, filled);
    #[cfg(feature = "raw")]
    if let Some(raw) = outgoing.raw.take() {
        // A raw value brings its own body, and serde has only seen a placeholder.
        (body, filled) = (raw, None);
    }
    let bytes = filled.as_ref().map_or(&*body, Filled::bytes);
    if bytes.len() > MAX_BODY {
        return Err(EncodeError::TooLarge { bytes: bytes.len() });
    }
    // A receiver refuses a body that is nested too deeply, and a forged part must not leave (SAFE-1). Here
    // the sender still has its message and learns why.
    nesting::check(bytes)?;
    parts::check(bytes, &outgoing)?;
    let Outgoing { leases, tensors, parts, .. } = outgoing;
    Ok((Encoded { body, filled, leases, tensors, parts }, node))
}

/// As [`encode_in`], for another process: that process must be able to map all memory in the value. A large
/// list of bytes goes into memory of `room`.
///
/// # Errors
/// See [`EncodeError`]; `value` is untouched.
pub(crate) fn encode_for_peer<T: Serialize>(
    value: &T,
    body: Vec<u8>,
    lists: Lists,
    room: Option<Room<'_>>,
    node: &Arc<ClockDomain>,
) -> Result<Encoded, EncodeError> {
    let (encoded, _) = encode_into(value, body, lists, room, Some(node.node()))?;
    encoded.check_node(node)?;
    if let Some(lease) = encoded.leases.iter().position(|(lease, _)| !lease.can_leave()) {
        return Err(EncodeError::NotShared { shape: encoded.shape_on(lease) });
    }
    Ok(encoded)
}

impl Encoded {
    /// SAFE-1: the ids of a lease and of its chunk mean other memory in another node.
    fn check_node(&self, node: &Arc<ClockDomain>) -> Result<(), EncodeError> {
        let Some(lease) = self.leases.iter().position(|(lease, _)| !lease.is_of(node)) else { return Ok(()) };
        let [tensor, sender] = [self.leases[lease].0.domain(), node].map(|of| of.node().to_string());
        Err(EncodeError::OtherNode { shape: self.shape_on(lease), tensor, sender })
    }

    /// Returns the shape of the first tensor on a lease.
    fn shape_on(&self, lease: usize) -> Vec<usize> {
        let stands_on = |tensor: &&Outline| usize::from(tensor.lease) == lease;
        self.tensors.iter().find(stands_on).map(|tensor| tensor.layout.shape().to_vec()).unwrap_or_default()
    }

    /// Checks that the value can go to an actor of another host.
    ///
    /// # Errors
    /// [`EncodeError::LeavesHost`].
    pub(crate) fn may_leave_host(&self) -> Result<(), EncodeError> {
        if !self.parts.is_empty() {
            let why =
                "has a part of a split tensor, whose other parts stay here; join them first, or send a copy";
            return Err(EncodeError::LeavesHost(why));
        }
        Ok(())
    }
}

/// Calls [`tensors`], for the fuzz targets. A program must never call it: a second tensor on the lease of a
/// writable one is a second name for memory that has a writer.
///
/// # Errors
/// As for a frame.
#[cfg(feature = "testing")]
#[doc(hidden)]
pub fn testing_tensors(
    leases: &[(Lease, Option<Ticket>)],
    outlines: &[Outline],
) -> Result<Vec<Tensor>, DecodeError> {
    tensors(leases, outlines)
}

/// Makes the tensors of a frame from its leases. Every layout is checked against its allocation (WIRE-1).
///
/// # Errors
/// A layout leaves its allocation, or a lease does not exist.
pub(crate) fn tensors(
    leases: &[(Lease, Option<Ticket>)],
    outlines: &[Outline],
) -> Result<Vec<Tensor>, DecodeError> {
    let mut tensors = Vec::with_capacity(outlines.len());
    for (index, outline) in outlines.iter().enumerate() {
        let Some((lease, ready)) = leases.get(usize::from(outline.lease)) else {
            return Err(DecodeError::NoSuchLease { index, lease: outline.lease, leases: leases.len() });
        };
        let fits = outline.layout.fits(outline.dtype, lease.bytes());
        fits.map_err(|error| DecodeError::Layout { index, error })?;
        tensors.push(Tensor::from_parts(lease.clone(), outline.dtype, outline.layout, *ready));
    }
    Ok(tensors)
}

/// Decodes a body with its tensors. `context` is the transport that addresses inside connect to.
///
/// # Errors
/// See [`DecodeError`]; the tensors were dropped.
pub fn decode<T: DeserializeOwned>(
    body: &[u8],
    tensors: Vec<Tensor>,
    context: Option<Arc<dyn Any + Send + Sync>>,
) -> Result<T, DecodeError> {
    nesting::check(body)?;
    let in_parts = tensors.iter().any(|tensor| tensor.lease().is_in_parts());
    let forms = if in_parts { parts::forms(body).collect() } else { Vec::new() };
    // The type's `Deserialize` is the user's code. It runs on the reader's thread, which all actors need.
    let read = AssertUnwindSafe(|| {
        fault::point("wire.decode");
        let incoming = Incoming {
            tensors,
            context,
            forms,
            #[cfg(feature = "raw")]
            raw: raw::is_raw::<T>().then(|| body.to_vec()),
        };
        let decoded = scope::decoding(incoming, || read(body));
        fault::point("wire.decoded");
        decoded
    });
    catch_unwind(read).unwrap_or_else(|panic| {
        if panic.is::<meter::TooDeep>() {
            return Err(DecodeError::TooDeep);
        }
        Err(DecodeError::Panicked(vital::panic_text(panic.as_ref()).to_owned()))
    })
}

/// Reads a value whose body has passed the check of its nesting.
fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, DecodeError> {
    let may = meter::allowance(body.len());
    let meter = Meter::new(may);
    let mut from = rmp_serde::Deserializer::from_read_ref(body);
    let _on_stack = meter::OnStack::begin();
    T::deserialize(meter.over(&mut from)).map_err(|error| match meter.spent() {
        Some(Spent::Bytes) => DecodeError::TooMuch { bytes: body.len(), may },
        Some(Spent::Calls) => DecodeError::TooDeep,
        None => error.0.into(),
    })
}

/// Reads and writes `Vec<u8>` as MessagePack bytes; serde by itself would write a list of numbers.
pub(crate) mod bytes {
    use std::fmt;

    use serde::de::{Error, Visitor};
    use serde::{Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(bytes)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        deserializer.deserialize_byte_buf(Bytes)
    }

    struct Bytes;

    impl Visitor<'_> for Bytes {
        type Value = Vec<u8>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("bytes")
        }

        fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
            Ok(bytes.to_vec())
        }

        fn visit_byte_buf<E: Error>(self, bytes: Vec<u8>) -> Result<Vec<u8>, E> {
            Ok(bytes)
        }
    }
}
