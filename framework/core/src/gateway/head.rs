//! The head of a message between hosts: everything but its pieces. It holds the key, a small body, and the
//! geometry of the tensors.
//!
//! The spans of a message are its tensors in order, and then a body that is too large for the head.
//! Everything from another host is checked before it is believed (WIRE-1): the geometry by itself, and
//! against the spans.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tensorpost_hosts::frame::WireError;

use crate::ids::DeviceId;
use crate::limits::{MAX_BODY, MAX_INLINE_BODY, MAX_RANK, MAX_TENSORS};
use crate::tensor::{DType, Layout, Tensor};

/// The head of a message; see the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) key: u64,
    pub(super) body: HeadBody,
    pub(super) tensors: Vec<Outline>,
}

/// The place of the body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum HeadBody {
    Here(Bytes),
    /// The last span, with this number of bytes.
    Span(usize),
}

/// The geometry of a packed tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Outline {
    pub(super) dtype: DType,
    pub(super) shape: Vec<usize>,
    /// Whether it was in GPU memory. The number of the GPU would mean nothing on another host (HOST-1).
    pub(super) on_gpu: bool,
    bytes: usize,
}

/// Why bytes from another host are not a valid head.
#[derive(Debug, thiserror::Error)]
pub(super) enum HeadError {
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error(transparent)]
    Layout(#[from] crate::tensor::LayoutError),
    #[error("its {what} is {found}, which cannot be")]
    Field { what: &'static str, found: u64 },
    #[error("its spans are not those of its tensors and its body")]
    Spans,
}

impl From<bytes::TryGetError> for HeadError {
    fn from(error: bytes::TryGetError) -> Self {
        HeadError::Wire(error.into())
    }
}

impl Outline {
    fn of(tensor: &Tensor) -> Self {
        let (dtype, shape) = (tensor.dtype(), tensor.shape().to_vec());
        // A tensor of more than `usize::MAX` bytes exceeds every pool, and is refused where it is copied.
        let on_gpu = tensor.device() != DeviceId::HOST;
        Outline { dtype, shape, on_gpu, bytes: usize::try_from(tensor.bytes()).unwrap_or(usize::MAX) }
    }

    /// Returns the bytes of its span. A tensor without elements has one byte that belongs nowhere, so that
    /// its memory, too, has to exist before the message goes on.
    fn span(&self) -> u64 {
        (self.bytes as u64).max(1)
    }

    /// Returns whether the tensor has elements.
    pub(super) fn has_bytes(&self) -> bool {
        self.bytes > 0
    }
}

impl Head {
    /// Makes the head of a message with this body. A large body has to be sent as a span.
    pub(super) fn of(key: u64, body: &Bytes, tensors: &[Tensor]) -> Self {
        let body = match body.len() {
            0..=MAX_INLINE_BODY => HeadBody::Here(body.clone()),
            bytes => HeadBody::Span(bytes),
        };
        Head { key, body, tensors: tensors.iter().map(Outline::of).collect() }
    }

    /// Returns the number of bytes of each span.
    pub(super) fn spans(&self) -> Vec<u64> {
        let tensors = self.tensors.iter().map(Outline::span);
        let body = match &self.body {
            HeadBody::Span(bytes) => Some(*bytes as u64),
            HeadBody::Here(_) => None,
        };
        tensors.chain(body).collect()
    }

    pub(super) fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        out.put_u64_le(self.key);
        match &self.body {
            HeadBody::Here(body) => {
                out.put_u8(0);
                out.put_u32_le(body.len() as u32);
                out.extend_from_slice(body);
            }
            HeadBody::Span(bytes) => {
                out.put_u8(1);
                out.put_u32_le(*bytes as u32);
            }
        }
        out.put_u16_le(self.tensors.len() as u16);
        for tensor in &self.tensors {
            out.put_u8(tensor.dtype.code());
            out.put_u8(tensor.on_gpu.into());
            out.put_u8(tensor.shape.len() as u8);
            tensor.shape.iter().for_each(|extent| out.put_u64_le(*extent as u64));
        }
        out.freeze()
    }

    /// Decodes the head of a message with these spans.
    ///
    /// # Errors
    /// The bytes are not a valid head, or are that of another message.
    pub(super) fn decode(mut bytes: Bytes, spans: &[u64]) -> Result<Self, HeadError> {
        let field = |what, found: u64| Err(HeadError::Field { what, found });
        let from = &mut bytes;
        let key = from.try_get_u64_le()?;
        let kind = from.try_get_u8()?;
        let len = from.try_get_u32_le()? as usize;
        let body = match kind {
            0 if len > MAX_INLINE_BODY => return field("length of a short body", len as u64),
            0 if len > from.len() => return Err(WireError::CutShort { wanted: len, left: from.len() }.into()),
            0 => HeadBody::Here(from.split_to(len)),
            1 if !(MAX_INLINE_BODY + 1..=MAX_BODY).contains(&len) => {
                return field("length of a long body", len as u64);
            }
            1 => HeadBody::Span(len),
            other => return field("kind of body", other.into()),
        };
        let count = usize::from(from.try_get_u16_le()?);
        if count > MAX_TENSORS {
            return field("number of tensors", count as u64);
        }
        let tensors = (0..count).map(|_| outline(from)).collect::<Result<_, _>>()?;
        if !from.is_empty() {
            return Err(WireError::Trailing { bytes: from.len() }.into());
        }
        let head = Head { key, body, tensors };
        if head.spans() == spans { Ok(head) } else { Err(HeadError::Spans) }
    }
}

fn outline(from: &mut Bytes) -> Result<Outline, HeadError> {
    let field = |what, found: u64| HeadError::Field { what, found };
    let code = from.try_get_u8()?;
    let dtype = DType::from_code(code).ok_or(field("element type", code.into()))?;
    let on_gpu = match from.try_get_u8()? {
        0 => false,
        1 => true,
        other => return Err(field("kind of memory", other.into())),
    };
    let rank = usize::from(from.try_get_u8()?);
    if rank > MAX_RANK {
        return Err(field("number of axes", rank as u64));
    }
    let mut shape = Vec::with_capacity(rank);
    for _ in 0..rank {
        let extent = from.try_get_u64_le()?;
        shape.push(usize::try_from(extent).map_err(|_| field("extent", extent))?);
    }
    let bytes = Layout::contiguous(&shape)?.packed_bytes(dtype)?;
    Ok(Outline { dtype, shape, on_gpu, bytes })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn head() -> impl Strategy<Value = Head> {
        let tensor = (0..DType::ALL.len(), any::<bool>(), prop::collection::vec(0_usize..5, 0..4)).prop_map(
            |(dtype, on_gpu, shape)| {
                let dtype = DType::ALL[dtype];
                let bytes = shape.iter().product::<usize>() * dtype.size();
                Outline { dtype, shape, on_gpu, bytes }
            },
        );
        let body = prop_oneof![
            prop::collection::vec(any::<u8>(), 0..40).prop_map(|body| HeadBody::Here(Bytes::from(body))),
            (MAX_INLINE_BODY + 1..=MAX_BODY).prop_map(HeadBody::Span),
        ];
        (any::<u64>(), body, prop::collection::vec(tensor, 0..5)).prop_map(|(key, body, tensors)| Head {
            key,
            body,
            tensors,
        })
    }

    proptest! {
        #[test]
        fn it_comes_back_and_is_refused_where_it_is_cut(head in head(), at in any::<prop::sample::Index>()) {
            let (bytes, spans) = (head.encode(), head.spans());
            prop_assert_eq!(Head::decode(bytes.clone(), &spans).expect("as it was"), head);
            prop_assert!(Head::decode(bytes.slice(..at.index(bytes.len())), &spans).is_err());
            let mut more = spans;
            more.push(1);
            prop_assert!(Head::decode(bytes, &more).is_err());
        }

        #[test]
        fn any_bytes_are_refused_or_have_one_form(head in head(), at in any::<prop::sample::Index>(), to in any::<u8>()) {
            let spans = head.spans();
            let mut bytes = head.encode().to_vec();
            let at = at.index(bytes.len());
            bytes[at] = to;
            if let Ok(read) = Head::decode(Bytes::from(bytes.clone()), &spans) {
                prop_assert_eq!(read.encode(), bytes);
            }
        }
    }

    #[test]
    fn what_no_host_writes_is_refused() {
        let mut out = BytesMut::new();
        out.put_u64_le(1);
        out.put_u8(0);
        out.put_u32_le(0);
        out.put_u16_le(1);
        out.put_slice(&[DType::F32.code(), 0, 2]);
        // More elements than any memory can hold.
        out.put_u64_le(u64::MAX);
        out.put_u64_le(u64::MAX);
        assert!(Head::decode(out.freeze(), &[]).is_err());
        assert!(Head::decode(Bytes::from_static(&[0; 8]), &[]).is_err());
    }
}
