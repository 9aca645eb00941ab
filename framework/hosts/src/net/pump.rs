//! The loops that move frames between a peer and one of its connections. Each ends with its connection, and
//! one that ends otherwise ends the connection: the control stream and the lanes that it needs are up
//! together.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::{self, BoxStream, Stream, StreamExt};
use tonic::{Status, Streaming};

use super::codec::Outgoing;
use super::peer::Peer;
use crate::frame::{decode, encode};
use crate::limits::LINK_SILENCE;
use crate::refused::Kind;
use crate::session::Link;

/// Returns the frames to send on a control stream after the greeting.
pub(super) fn frames(peer: Arc<Peer>, link: Link) -> impl Stream<Item = Outgoing> + Send + use<> {
    stream::unfold(peer, move |peer| async move {
        let frame = peer.next_frame(link).await?;
        Some((Outgoing::from(encode(&frame)), peer))
    })
}

/// Wraps messages as a server's answer.
pub(super) fn answers(
    all: impl Stream<Item = Outgoing> + Send + 'static,
) -> BoxStream<'static, Result<Outgoing, Status>> {
    all.map(Ok).boxed()
}

/// Takes the frames of a control stream until it ends.
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
            // Beats come each second, so silence means that the connection is half open.
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
