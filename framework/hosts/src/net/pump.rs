//! What moves frames and pieces between a peer and a connection of it. Each of these ends with its connection, and any that ends
//! otherwise ends the connection: control stream and lanes are up together.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream, FuturesOrdered, Stream, StreamExt};
use tonic::{Code, Status, Streaming};

use super::codec::Outgoing;
use super::lane::Incoming;
use super::peer::Peer;
use crate::frame::{Piece, decode, decode_piece, encode, encode_piece};
use crate::limits::{LINK_SILENCE, READ_AHEAD};
use crate::refused::Kind;
use crate::session::Link;

/// What is sent on a control stream behind `first`.
pub(super) fn frames(peer: Arc<Peer>, link: Link) -> impl Stream<Item = Outgoing> + Send + use<> {
    stream::unfold(peer, move |peer| async move {
        let frame = peer.next_frame(link).await?;
        Some((Outgoing::from(encode(&frame)), peer))
    })
}

/// What is sent on a lane: pieces in the order in which the session names them.
pub(super) fn pieces(peer: Arc<Peer>, link: Link) -> impl Stream<Item = Outgoing> + Send + use<> {
    let asking = Arc::clone(&peer);
    let named = stream::unfold(asking, move |peer| async move { Some((peer.next_piece(link).await?, peer)) });
    Pieces { peer, named: named.boxed(), reading: FuturesOrdered::new() }
}

/// See [`pieces`]. While the bytes of one are still to come, the next is asked for; of memory that can be read at once a lane takes no
/// piece that another lane could send.
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
                // HOST-10: its bytes may have taken long, or the machine was suspended meanwhile.
                Poll::Ready(Some(Some(_))) if self.peer.may_say_nothing() => return Poll::Ready(None),
                Poll::Ready(Some(Some(piece))) => return Poll::Ready(Some(piece)),
                // Its message was aborted.
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

/// As a server answers.
pub(super) fn answers(
    all: impl Stream<Item = Outgoing> + Send + 'static,
) -> BoxStream<'static, Result<Outgoing, Status>> {
    all.map(Ok).boxed()
}

/// Takes what comes on a control stream, until it ends.
pub(super) async fn hear(peer: Arc<Peer>, link: Link, mut from: Streaming<Bytes>, address: SocketAddr) {
    loop {
        tokio::select! {
            () = peer.until_told() => {}
            () = peer.cut_of(link) => return,
        }
        let next = tokio::select! {
            next = tokio::time::timeout(LINK_SILENCE, from.message()) => next,
            () = peer.cut_of(link) => return,
        };
        let bytes = match next {
            Ok(Ok(Some(bytes))) => bytes,
            // Beats come each second, so silence is a connection that is half open.
            Ok(Ok(None) | Err(_)) | Err(_) => return peer.cut(link),
        };
        let frame = match decode(bytes) {
            Ok(frame) => frame,
            Err(error) => return peer.violated(link, Kind::Garbage, address, &error),
        };
        if let Err(lie) = peer.take(link, frame) {
            return peer.violated(link, Kind::Forged, address, &lie);
        }
    }
}

/// Takes what comes on a lane, until it ends.
pub(super) async fn gather(peer: Arc<Peer>, link: Link, mut from: Incoming, address: SocketAddr) {
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
