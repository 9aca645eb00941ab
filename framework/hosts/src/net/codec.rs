//! gRPC messages that are plain bytes, without protobuf. All streams but the [lanes](super::lanes) use them.

use bytes::{Buf, BufMut, Bytes};
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

/// An outgoing message: two parts, one after the other, so that a piece's bytes need not be copied behind its
/// name.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    pub(super) head: Bytes,
    pub(super) rest: Bytes,
}

impl From<Bytes> for Outgoing {
    fn from(head: Bytes) -> Self {
        Outgoing { head, rest: Bytes::new() }
    }
}

/// A codec for messages of about this many bytes.
#[derive(Clone, Copy)]
pub(super) struct BytesCodec(pub(super) usize);

impl BytesCodec {
    fn settings(self) -> BufferSettings {
        BufferSettings::new(self.0, self.0)
    }
}

impl Codec for BytesCodec {
    type Encode = Outgoing;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for BytesCodec {
    type Item = Outgoing;
    type Error = Status;

    fn encode(&mut self, item: Outgoing, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.reserve(item.head.len() + item.rest.len());
        to.put(item.head);
        to.put(item.rest);
        Ok(())
    }

    fn buffer_settings(&self) -> BufferSettings {
        self.settings()
    }
}

impl Decoder for BytesCodec {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }

    fn buffer_settings(&self) -> BufferSettings {
        self.settings()
    }
}
