//! The lane that takes everything: pieces, each a gRPC message, over as many connections as were asked for.
//!
//! *When a stream ends*, for whatever reason, so does its connection: pieces that had not landed are sent
//! again over the next one.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream, FuturesOrdered, Stream, StreamExt};
use tonic::Code;

use super::super::codec::Outgoing;
use super::super::peer::Peer;
use super::Lane;
use super::wire::Incoming;
use crate::frame::{Piece, decode_piece, encode_piece};
use crate::ids::Seq;
use crate::limits::{MAX_LANES, READ_AHEAD};
use crate::refused::Kind;
use crate::session::{Bounds, Link, OnDevice, Session};

/// The gRPC lane; see the module.
pub(super) struct Grpc;

impl Lane for Grpc {
    fn method(&self) -> &'static str {
        "/tensorpost.Hosts/Lane"
    }

    fn streams(&self, connections: u16) -> u16 {
        connections.clamp(1, MAX_LANES)
    }

    fn is_needed(&self) -> bool {
        true
    }

    fn window(&self, bounds: Bounds) -> u64 {
        bounds.window
    }

    fn put(&self, _: &mut Session, _: Seq, _: &OnDevice) -> bool {
        // The session names the pieces of all spans that go no other way, each to the stream that asks first.
        true
    }

    fn begin(
        &self,
        peer: &Arc<Peer>,
        link: Link,
        from: Incoming,
        address: SocketAddr,
    ) -> BoxStream<'static, Outgoing> {
        tokio::spawn(gather(Arc::clone(peer), link, from, address));
        pieces(Arc::clone(peer), link).boxed()
    }
}

/// Returns the pieces to send on a lane, in the order in which the session names them.
fn pieces(peer: Arc<Peer>, link: Link) -> impl Stream<Item = Outgoing> + Send + use<> {
    let asking = Arc::clone(&peer);
    let named = stream::unfold(asking, move |peer| async move { Some((peer.next_piece(link).await?, peer)) });
    Pieces { peer, named: named.boxed(), reading: FuturesOrdered::new() }
}

/// The stream of [`pieces`]. While the bytes of one piece are still being read, the next is asked for. If
/// memory can be read at once, a lane takes no piece that another lane could send.
struct Pieces {
    peer: Arc<Peer>,
    named: BoxStream<'static, Piece>,
    reading: FuturesOrdered<BoxFuture<'static, Option<Outgoing>>>,
}

impl Pieces {
    fn read(&self, piece: Piece) -> BoxFuture<'static, Option<Outgoing>> {
        let peer = Arc::clone(&self.peer);
        Box::pin(async move {
            let rest = peer.memory.read(piece).await?;
            Some(Outgoing { head: Bytes::copy_from_slice(&encode_piece(&piece)), rest })
        })
    }
}

impl Stream for Pieces {
    type Item = Outgoing;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Outgoing>> {
        loop {
            match self.reading.poll_next_unpin(cx) {
                // HOST-10: reading its bytes may have taken long, or the machine was suspended meanwhile.
                Poll::Ready(Some(Some(_))) if self.peer.may_say_nothing() => return Poll::Ready(None),
                Poll::Ready(Some(Some(piece))) => return Poll::Ready(Some(piece)),
                // The piece's message was aborted.
                Poll::Ready(Some(None)) => continue,
                Poll::Ready(None) => {}
                Poll::Pending if self.reading.len() >= READ_AHEAD => return Poll::Pending,
                Poll::Pending => {}
            }
            let Some(piece) = ready!(self.named.poll_next_unpin(cx)) else { return Poll::Ready(None) };
            let read = self.read(piece);
            self.reading.push_back(read);
        }
    }
}

/// Takes the pieces of a lane until it ends.
async fn gather(peer: Arc<Peer>, link: Link, mut from: Incoming, address: SocketAddr) {
    loop {
        let next = tokio::select! {
            next = from.message() => next,
            () = peer.cut_of(link) => return,
        };
        let mut bytes = match next {
            Ok(Some(bytes)) => bytes,
            Err(lie) if lie.code() == Code::OutOfRange => {
                return peer.violated(link, Kind::Garbage, address, &lie.message());
            }
            Ok(None) | Err(_) => return peer.cut(link),
        };
        let piece = match decode_piece(&mut bytes) {
            Ok(piece) => piece,
            Err(error) => return peer.violated(link, Kind::Garbage, address, &error),
        };
        match peer.claim(link, &piece).await {
            Ok(true) => {
                peer.memory.write(piece, bytes).await;
                peer.with(|session| session.landed(&piece));
            }
            Ok(false) => {}
            Err(lie) => return peer.violated(link, Kind::Forged, address, &lie),
        }
    }
}
