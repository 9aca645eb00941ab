//! Memory of tests: pieces from and into host memory.

use std::collections::HashMap;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::frame::Piece;
use crate::ids::Seq;
use crate::net::{Memory, Parts};

#[derive(Default)]
pub(super) struct Buffers {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    lent: HashMap<Seq, Vec<Bytes>>,
    coming: HashMap<Seq, Vec<Vec<u8>>>,
    /// The highest number of a message that was expected.
    seen: Seq,
}

impl State {
    /// Writes a piece. Returns whether it is in its place, or belongs nowhere any more.
    fn put(&mut self, piece: &Piece, bytes: &Parts) -> bool {
        let mut at = piece.offset as usize;
        match self.coming.get_mut(&piece.post) {
            Some(spans) => {
                for part in bytes.iter() {
                    spans[usize::from(piece.span)][at..at + part.len()].copy_from_slice(part);
                    at += part.len();
                }
                true
            }
            None => piece.post <= self.seen,
        }
    }
}

impl Buffers {
    pub(super) fn lend(&self, post: Seq, spans: Vec<Bytes>) {
        self.state.lock().lent.insert(post, spans);
    }

    pub(super) fn released(&self, post: Seq) {
        assert!(self.state.lock().lent.remove(&post).is_some(), "lease {post} ends twice");
    }

    pub(super) fn lent(&self) -> usize {
        self.state.lock().lent.len()
    }

    pub(super) fn expect(&self, post: Seq, spans: &[u64]) {
        let mut state = self.state.lock();
        state.coming.insert(post, spans.iter().map(|bytes| vec![0; *bytes as usize]).collect());
        state.seen = post;
        drop(state);
        self.changed.notify_waiters();
    }

    /// Waits until a message was expected.
    pub(super) async fn until_seen(&self, post: Seq) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if self.state.lock().seen >= post {
                return;
            }
            changed.await;
        }
    }

    pub(super) fn take(&self, post: Seq) -> Vec<Vec<u8>> {
        self.state.lock().coming.remove(&post).unwrap_or_default()
    }
}

impl Memory for Buffers {
    fn read(&self, piece: Piece) -> BoxFuture<'_, Option<Bytes>> {
        let state = self.state.lock();
        let span = state.lent.get(&piece.post).map(|spans| spans[usize::from(piece.span)].clone());
        let at = piece.offset as usize;
        async move { Some(span?.slice(at..at + piece.bytes as usize)) }.boxed()
    }

    fn write(&self, piece: Piece, bytes: Parts) -> BoxFuture<'_, ()> {
        async move {
            loop {
                let mut changed = std::pin::pin!(self.changed.notified());
                changed.as_mut().enable();
                if self.state.lock().put(&piece, &bytes) {
                    return;
                }
                changed.await;
            }
        }
        .boxed()
    }
}
