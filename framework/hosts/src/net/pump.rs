//! What moves frames and pieces between a peer and a connection of it. Each of these ends with its connection, and any that ends
//! otherwise ends the connection: control stream and lanes are up together.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::{self, BoxStream, Stream, StreamExt};
use tonic::{Status, Streaming};

use super::codec::Outgoing;
use super::peer::Peer;
use crate::frame::{Piece, decode, decode_piece, encode, encode_piece};
use crate::limits::LINK_SILENCE;
use crate::refused::Kind;
use crate::session::Link;

/// What is sent on a control stream behind `first`.
pub(super) fn frames(peer: Arc<Peer>, link: Link) -> impl Stream<Item = Outgoing> + Send + use<> {
    stream::unfold(peer, move |peer| async move {
        let frame = peer.next_frame(link).await?;
        Some((Outgoing::from(encode(&frame)), peer))
    })
}

/// What is sent on a lane.
pub(super) fn pieces(peer: Arc<Peer>, link: Link) -> impl Stream<Item = Outgoing> + Send + use<> {
    stream::unfold(peer, move |peer| async move {
        loop {
            let piece = peer.next_piece(link).await?;
            let Some(rest) = peer.memory.read(piece).await else { continue };
            let head = Bytes::copy_from_slice(&encode_piece(&piece));
            return Some((Outgoing { head, rest }, peer));
        }
    })
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
pub(super) async fn gather(peer: Arc<Peer>, link: Link, mut from: Streaming<Bytes>, address: SocketAddr) {
    loop {
        let next = tokio::select! {
            next = from.message() => next,
            () = peer.cut_of(link) => return,
        };
        let Ok(Some(bytes)) = next else { return peer.cut(link) };
        let (piece, bytes): (Piece, Bytes) = match decode_piece(bytes) {
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
