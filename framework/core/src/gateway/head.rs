//! The head of a message between hosts: everything but its pieces. It holds the key, a small body, and the
//! geometry of the tensors.
//!
//! The spans of a message are its tensors in order, and then a body that is too large for the head.
//! Everything from another host is checked before it is believed (WIRE-1): the geometry by itself, and
//! against the spans. A head has [one form](one_form); a small body is behind it, and is not copied.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tensorpost_hosts::frame::{WireError, one_form};

use crate::ids::DeviceId;
use crate::limits::{MAX_BODY, MAX_INLINE_BODY, MAX_TENSORS};
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Outline {
    pub(super) dtype: DType,
    pub(super) shape: Vec<usize>,
    /// Whether it was in GPU memory. The number of the GPU would mean nothing on another host (HOST-1).
    pub(super) on_gpu: bool,
    /// As the type and the shape say.
    #[serde(skip)]
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
        let (length, here) = match &self.body {
            HeadBody::Here(body) => (body.len(), &body[..]),
            HeadBody::Span(bytes) => (*bytes, <&[u8]>::default()),
        };
        one_form::encode_before(&(self.key, length, &self.tensors), here)
    }

    /// Decodes the head of a message with these spans.
    ///
    /// # Errors
    /// The bytes are not a valid head, or are that of another message.
    pub(super) fn decode(bytes: Bytes, spans: &[u64]) -> Result<Self, HeadError> {
        let field = |what, found: usize| Err(HeadError::Field { what, found: found as u64 });
        let (said, here): ((u64, usize, Vec<Outline>), _) = one_form::decode_front(&bytes)?;
        let (key, length, mut tensors) = said;
        let body = match length {
            0..=MAX_INLINE_BODY if here.len() == length => HeadBody::Here(bytes.slice_ref(here)),
            0..=MAX_INLINE_BODY => return field("number of bytes of a short body", here.len()),
            ..=MAX_BODY if here.is_empty() => HeadBody::Span(length),
            _ => return field("length of a long body", length),
        };
        if tensors.len() > MAX_TENSORS {
            return field("number of tensors", tensors.len());
        }
        for tensor in &mut tensors {
            tensor.bytes = Layout::contiguous(&tensor.shape)?.packed_bytes(tensor.dtype)?;
        }
        let head = Head { key, body, tensors };
        if head.spans() == spans { Ok(head) } else { Err(HeadError::Spans) }
    }
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
        let here = |body: &'static [u8]| HeadBody::Here(Bytes::from_static(body));
        // More elements than any memory can hold.
        let outline = Outline { dtype: DType::F32, shape: vec![usize::MAX; 2], on_gpu: false, bytes: 1 };
        let large = Head { key: 1, body: here(&[]), tensors: vec![outline] };
        assert!(matches!(Head::decode(large.encode(), &[1]), Err(HeadError::Layout(_))));
        let small = Head { key: 1, body: here(&[7]), tensors: Vec::new() };
        let behind = [&small.encode()[..], &[7]].concat();
        assert!(matches!(Head::decode(behind.into(), &[]), Err(HeadError::Field { found: 2, .. })));
        let long = Head { body: HeadBody::Span(MAX_BODY + 1), ..small };
        assert!(matches!(Head::decode(long.encode(), &long.spans()), Err(HeadError::Field { .. })));
        assert!(Head::decode(Bytes::from_static(&[0; 8]), &[]).is_err());
    }
}
