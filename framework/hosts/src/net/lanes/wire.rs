//! The encoding of a lane: gRPC messages, written and read as the data of an HTTP/2 stream.
//!
//! Used by all lanes, at both ends of a connection. tonic's codecs would join each message together, on
//! either side. Most messages between hosts are pieces of tensors, so here a message goes out in its two
//! parts, and comes in the parts that HTTP/2 made of it. Its bytes are copied once, to their place.
//!
//! The format is that of [gRPC over HTTP/2](https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md):
//! before each message, a byte that says whether it is compressed, and its length in 4 bytes.
//!
//! *Bounds for a peer*: a message that is longer than [`MAX_LANE_FRAME`], compressed, or in more than
//! [`MAX_LANE_PARTS`] parts is an error, and no more of it is kept.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use futures_util::stream::{BoxStream, StreamExt};
use http::{HeaderMap, HeaderValue, header};
use http_body::{Body as _, Frame};
use tonic::body::Body;
use tonic::transport::Channel;
use tonic::{Code, Status};
use tower_service::Service;

use super::super::codec::Outgoing;
use crate::limits::{MAX_LANE_FRAME, MAX_LANE_PARTS};

/// The bytes before each message.
const PREFIX: usize = 5;

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");

/// Asks the other side for a lane, on which `said` is sent.
///
/// # Errors
/// The other side cannot be asked, or refuses.
pub(in crate::net) async fn call(
    mut channel: Channel,
    method: &'static str,
    said: BoxStream<'static, Outgoing>,
) -> Result<Incoming, Status> {
    let mut request = http::Request::new(Body::new(Said { said, rest: Bytes::new(), end: None }));
    *request.method_mut() = http::Method::POST;
    *request.uri_mut() = http::Uri::from_static(method);
    *request.version_mut() = http::Version::HTTP_2;
    request.headers_mut().insert(header::TE, HeaderValue::from_static("trailers"));
    request.headers_mut().insert(header::CONTENT_TYPE, GRPC);
    let unreachable = |error: tonic::transport::Error| Status::unavailable(error.to_string());
    poll_fn(|cx| channel.poll_ready(cx)).await.map_err(unreachable)?;
    let (answer, body) = channel.call(request).await.map_err(unreachable)?.into_parts();
    match Status::from_header_map(&answer.headers) {
        Some(status) if status.code() != Code::Ok => return Err(status),
        _ => {}
    }
    if answer.status != http::StatusCode::OK {
        return Err(Status::unavailable(format!("it answers with HTTP status {}", answer.status)));
    }
    Ok(Incoming::new(body))
}

/// Answers a request for a lane with the messages to send on it.
pub(in crate::net) fn answer(said: BoxStream<'static, Outgoing>) -> http::Response<Body> {
    let mut ok = HeaderMap::new();
    ok.insert(Status::GRPC_STATUS, HeaderValue::from_static("0"));
    let mut answer = http::Response::new(Body::new(Said { said, rest: Bytes::new(), end: Some(ok) }));
    answer.headers_mut().insert(header::CONTENT_TYPE, GRPC);
    answer
}

/// Messages as the data of a stream.
struct Said {
    said: BoxStream<'static, Outgoing>,
    /// The rest of the message whose beginning was sent.
    rest: Bytes,
    /// The trailers that a server sends after the last message.
    end: Option<HeaderMap>,
}

impl http_body::Body for Said {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if !self.rest.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut self.rest)))));
        }
        let Some(Outgoing { head, rest }) = ready!(self.said.poll_next_unpin(cx)) else {
            return Poll::Ready(self.end.take().map(|end| Ok(Frame::trailers(end))));
        };
        let mut start = BytesMut::with_capacity(PREFIX + head.len());
        start.put_u8(0);
        start.put_u32((head.len() + rest.len()) as u32); // both are bounded by MAX_LANE_FRAME
        start.put(head);
        self.rest = rest;
        Poll::Ready(Some(Ok(Frame::data(start.freeze()))))
    }
}

/// A message, or what is left of it, in the parts in which it came.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parts(VecDeque<Bytes>);

impl Parts {
    /// Returns all parts in order.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.0.iter().map(|part| &part[..])
    }

    /// Joins the parts.
    pub(in crate::net) fn into_bytes(mut self) -> Bytes {
        self.copy_to_bytes(self.remaining())
    }
}

impl From<Bytes> for Parts {
    fn from(bytes: Bytes) -> Self {
        Parts(VecDeque::from([bytes]))
    }
}

impl Buf for Parts {
    fn remaining(&self) -> usize {
        self.0.iter().map(Bytes::len).sum()
    }

    fn chunk(&self) -> &[u8] {
        self.iter().find(|part| !part.is_empty()).unwrap_or_default()
    }

    fn advance(&mut self, mut count: usize) {
        while let Some(first) = self.0.front_mut() {
            if first.len() > count {
                return first.advance(count);
            }
            count -= first.len();
            self.0.pop_front();
        }
        assert!(count == 0, "there are not that many bytes");
    }

    fn copy_to_bytes(&mut self, count: usize) -> Bytes {
        if let Some(first) = self.0.front_mut().filter(|first| first.len() >= count) {
            return first.split_to(count);
        }
        let mut all = BytesMut::with_capacity(count);
        all.put(self.take(count));
        all.freeze()
    }
}

/// The incoming messages of a lane.
pub(in crate::net) struct Incoming {
    body: Body,
    /// Bytes that were not taken yet.
    came: Parts,
    bytes: usize,
}

impl Incoming {
    pub(in crate::net) fn new(body: Body) -> Self {
        Incoming { body, came: Parts::default(), bytes: 0 }
    }

    /// Returns the next message; `None` at the end.
    ///
    /// # Errors
    /// The stream breaks, or the message is not a valid one.
    ///
    /// # Cancel safety
    /// Nothing is lost if the future is dropped.
    pub(in crate::net) async fn message(&mut self) -> Result<Option<Parts>, Status> {
        loop {
            if let Some(length) = self.length()?
                && self.bytes >= PREFIX + length
            {
                return Ok(Some(self.cut(length)));
            }
            if self.came.0.len() >= MAX_LANE_PARTS {
                return Err(Status::out_of_range(format!(
                    "a message came in {MAX_LANE_PARTS} parts, and is not whole"
                )));
            }
            match poll_fn(|cx| Pin::new(&mut self.body).poll_frame(cx)).await {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => {
                        self.bytes += data.len();
                        self.came.0.push_back(data);
                    }
                    Err(other) => match other.into_trailers() {
                        Ok(trailers) => return ended(&trailers),
                        Err(_) => continue,
                    },
                },
                Some(Err(status)) => return Err(status),
                None if self.bytes == 0 => return Ok(None),
                None => return Err(Status::unavailable("it ends in the middle of a message")),
            }
        }
    }

    /// Returns the length of the message at the front, if its prefix has come.
    fn length(&self) -> Result<Option<usize>, Status> {
        if self.bytes < PREFIX {
            return Ok(None);
        }
        let mut prefix = [0; PREFIX];
        let front = self.came.iter().flatten().take(PREFIX);
        front.zip(&mut prefix).for_each(|(byte, at)| *at = *byte);
        let [compressed, length @ ..] = prefix;
        let length = u32::from_be_bytes(length) as usize;
        if compressed != 0 {
            return Err(Status::out_of_range("a message is compressed, as none is on a lane"));
        }
        if length > MAX_LANE_FRAME {
            return Err(Status::out_of_range(format!(
                "a message has {length} bytes, and those of a lane have {MAX_LANE_FRAME} at most"
            )));
        }
        Ok(Some(length))
    }

    /// Takes the message at the front, which has come.
    fn cut(&mut self, length: usize) -> Parts {
        self.came.advance(PREFIX);
        let mut message = VecDeque::with_capacity(self.came.0.len());
        let mut missing = length;
        while missing > 0 {
            let Some(mut part) = self.came.0.pop_front() else { break };
            if part.len() > missing {
                let rest = part.split_off(missing);
                self.came.0.push_front(rest);
            }
            missing -= part.len();
            message.push_back(part);
        }
        self.bytes -= PREFIX + length;
        Parts(message)
    }
}

fn ended(trailers: &HeaderMap) -> Result<Option<Parts>, Status> {
    match Status::from_header_map(trailers) {
        Some(status) if status.code() != Code::Ok => Err(status),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use futures_util::stream;
    use proptest::prelude::*;

    use super::*;

    /// A stream as HTTP/2 would deliver it, in these parts.
    struct Came(VecDeque<Bytes>);

    impl http_body::Body for Came {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
            Poll::Ready(self.0.pop_front().map(|part| Ok(Frame::data(part))))
        }
    }

    /// Encodes these messages as bytes.
    fn said(messages: Vec<(Bytes, Bytes)>) -> Vec<u8> {
        let messages = messages.into_iter().map(|(head, rest)| Outgoing { head, rest });
        let mut said = Said { said: stream::iter(messages).boxed(), rest: Bytes::new(), end: None };
        let mut all = Vec::new();
        while let Some(frame) =
            poll_fn(|cx| Pin::new(&mut said).poll_frame(cx)).now_or_never().expect("at once")
        {
            all.extend_from_slice(&frame.expect("no error").into_data().expect("no trailers"));
        }
        all
    }

    fn next(incoming: &mut Incoming) -> Result<Option<Parts>, Status> {
        incoming.message().now_or_never().expect("at once")
    }

    fn comes(parts: Vec<Bytes>) -> Incoming {
        Incoming::new(Body::new(Came(parts.into())))
    }

    fn bytes() -> impl Strategy<Value = Bytes> {
        prop::collection::vec(any::<u8>(), 0..60).prop_map(Bytes::from)
    }

    proptest! {
        #[test]
        fn messages_come_whole_however_they_were_cut(
            messages in prop::collection::vec((bytes(), bytes()), 0..6),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
        ) {
            let all = said(messages.clone());
            let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(all.len() + 1)).collect();
            cuts.extend([0, all.len()]);
            cuts.sort_unstable();
            let parts = cuts.windows(2).map(|cut| Bytes::copy_from_slice(&all[cut[0]..cut[1]])).collect();
            let mut incoming = comes(parts);
            for (head, rest) in messages {
                let mut whole = next(&mut incoming).expect("a message").expect("not the end");
                prop_assert_eq!(whole.remaining(), head.len() + rest.len());
                let front = whole.copy_to_bytes(head.len());
                prop_assert_eq!((front, whole.into_bytes()), (head, rest));
            }
            prop_assert!(next(&mut incoming).expect("no error").is_none());
        }

        // WIRE-1.
        #[test]
        fn of_garbage_no_more_is_taken_than_came(
            parts in prop::collection::vec(bytes(), 0..20),
        ) {
            let (all, mut taken) = (parts.iter().map(Bytes::len).sum::<usize>(), 0);
            let mut incoming = comes(parts);
            while let Ok(Some(message)) = next(&mut incoming) {
                taken += PREFIX + message.remaining();
            }
            prop_assert!(taken + incoming.bytes <= all && incoming.bytes == incoming.came.remaining());
        }
    }

    #[test]
    fn what_no_lane_says_is_refused_before_it_has_come() {
        let prefix = |compressed: u8, length: usize| {
            let length = u32::try_from(length).expect("small").to_be_bytes();
            Bytes::from([&[compressed][..], &length].concat())
        };
        let refused = |parts| next(&mut comes(parts)).expect_err("it is none");
        let long = refused(vec![prefix(0, MAX_LANE_FRAME + 1)]);
        assert!(long.code() == Code::OutOfRange && long.message().contains("bytes"), "{long}");
        let compressed = refused(vec![prefix(1, 5)]);
        assert!(compressed.code() == Code::OutOfRange && compressed.message().contains("compressed"));
        let mut crumbs = vec![prefix(0, MAX_LANE_PARTS)];
        crumbs.extend(std::iter::repeat_n(Bytes::from_static(b"."), MAX_LANE_PARTS - 1));
        let crumbs = refused(crumbs);
        assert!(crumbs.code() == Code::OutOfRange && crumbs.message().contains("parts"), "{crumbs}");
        let cut = refused(vec![prefix(0, 5), Bytes::from_static(b"1234")]);
        assert_eq!(cut.code(), Code::Unavailable);
    }
}
