//! The memory of messages between this host and another: where pieces come from and go to.
//!
//! Used by the gateway, which enters messages and takes them out, and by the lanes, which read and write pieces ([`Memory`]). What
//! is sent is lent as it lies: a piece keeps its tensor until it has gone. What comes is written into tensors of the gateway's own.
//!
//! **Locks.** One for each direction; that of what comes is held for as long as a piece is copied, so the lanes take turns there. Nothing
//! waits under them.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tensorpost_hosts::frame::Piece;
use tensorpost_hosts::ids::Seq;
use tensorpost_hosts::net::Memory;
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;

use super::Command;
use super::head::{Head, HeadBody};
use crate::tensor::{DeviceStream, Tensor, TensorError, TensorMut};

/// The bytes behind a span that is sent.
#[derive(Clone, Debug)]
pub(super) enum Source {
    Tensor(Tensor),
    Body(Bytes),
}

/// A message that comes.
enum Coming {
    /// There is no memory for it yet.
    Preparing,
    /// A target for each span.
    Here(Vec<Target>),
}

/// Where the pieces of a span go.
#[derive(Debug)]
pub(super) enum Target {
    Tensor(TensorMut),
    Body(Vec<u8>),
    /// Nobody can take it: there is no such memory here.
    Nowhere,
}

#[derive(Default)]
struct Arrivals {
    messages: HashMap<Seq, Coming>,
    /// Messages up to this one were seen.
    seen: Seq,
}

/// See the module.
pub(super) struct Store {
    /// Whose it is, and who is told of data that is lost on its way.
    host: u16,
    gateway: UnboundedSender<Command>,
    sending: Mutex<HashMap<Seq, Arc<[Source]>>>,
    arrivals: Mutex<Arrivals>,
    changed: Notify,
}

impl Store {
    /// Between this host and that one.
    pub(super) fn new(host: u16, gateway: UnboundedSender<Command>) -> Self {
        let (sending, arrivals) = (Mutex::default(), Mutex::default());
        Store { host, gateway, sending, arrivals, changed: Notify::new() }
    }

    /// A message is sent whose spans are these.
    pub(super) fn lend(&self, post: Seq, spans: Arc<[Source]>) {
        self.sending.lock().insert(post, spans);
    }

    /// What was lent is needed no more (HOST-5).
    pub(super) fn released(&self, post: Seq) {
        let lent = self.sending.lock().remove(&post);
        // Without the lock: with it may go the last handle on a tensor.
        drop(lent);
    }

    /// A message comes that has spans.
    pub(super) fn expect(&self, post: Seq) {
        let mut arrivals = self.arrivals.lock();
        arrivals.messages.insert(post, Coming::Preparing);
        arrivals.seen = arrivals.seen.max(post);
        drop(arrivals);
        self.changed.notify_waiters();
    }

    /// There is memory for it.
    pub(super) fn prepared(&self, post: Seq, targets: Vec<Target>) {
        if let Some(coming) = self.arrivals.lock().messages.get_mut(&post) {
            *coming = Coming::Here(targets);
        }
        self.changed.notify_waiters();
    }

    /// Takes a message out: it is whole, or never will be.
    pub(super) fn take(&self, post: Seq) -> Vec<Target> {
        let taken = self.arrivals.lock().messages.remove(&post);
        self.changed.notify_waiters();
        match taken {
            Some(Coming::Here(targets)) => targets,
            Some(Coming::Preparing) | None => Vec::new(),
        }
    }

    /// The other host is lost: nothing more comes or goes.
    pub(super) fn clear(&self) {
        let sending = std::mem::take(&mut *self.sending.lock());
        let mut arrivals = self.arrivals.lock();
        arrivals.seen = Seq::MAX;
        let messages = std::mem::take(&mut arrivals.messages);
        drop(arrivals);
        self.changed.notify_waiters();
        drop((sending, messages));
    }

    /// Whether a piece is where it belongs, or belongs nowhere any more.
    fn put(&self, piece: &Piece, bytes: &[u8]) -> bool {
        let mut arrivals = self.arrivals.lock();
        let seen = arrivals.seen;
        match arrivals.messages.get_mut(&piece.post) {
            Some(Coming::Preparing) => false,
            Some(Coming::Here(targets)) => {
                if let Some(target) = targets.get_mut(usize::from(piece.span)) {
                    target.write(piece.offset, bytes);
                }
                true
            }
            None => piece.post <= seen,
        }
    }
}

impl Target {
    fn write(&mut self, offset: u64, bytes: &[u8]) {
        let into = match self {
            // The session has looked at the piece's place; memory that its tensor does not have is not written all the same.
            Target::Tensor(tensor) => match tensor.packed_bytes_mut() {
                Ok(into) => into,
                Err(error) => {
                    tracing::error!(%error, "a tensor from another host cannot be written; its message is dropped");
                    *self = Target::Nowhere;
                    return;
                }
            },
            Target::Body(body) => body.as_mut_slice(),
            Target::Nowhere => return,
        };
        let at = usize::try_from(offset).ok().and_then(|at| into.get_mut(at..)?.get_mut(..bytes.len()));
        if let Some(at) = at {
            at.copy_from_slice(bytes);
        }
    }
}

/// A part of a tensor, for as long as somebody sends it.
struct Part {
    tensor: Tensor,
    range: Range<usize>,
}

impl AsRef<[u8]> for Part {
    fn as_ref(&self) -> &[u8] {
        self.tensor.packed_bytes().ok().and_then(|bytes| bytes.get(self.range.clone())).unwrap_or(&[])
    }
}

fn part(source: &Source, piece: &Piece) -> Option<Bytes> {
    let start = usize::try_from(piece.offset).ok()?;
    let range = start..start.checked_add(piece.bytes as usize)?;
    match source {
        Source::Body(body) => (range.end <= body.len()).then(|| body.slice(range)),
        Source::Tensor(tensor) => {
            // HOST-6: what was lost since it was found to be there is not sent.
            let there = tensor.packed_bytes().is_ok_and(|bytes| range.end <= bytes.len());
            there.then(|| Bytes::from_owner(Part { tensor: tensor.clone(), range }))
        }
    }
}

impl Memory for Store {
    fn read(&self, piece: Piece) -> BoxFuture<'_, Option<Bytes>> {
        let lent = self.sending.lock().get(&piece.post).cloned();
        let bytes = lent.and_then(|spans| {
            let bytes = spans.get(usize::from(piece.span)).and_then(|source| part(source, &piece));
            if bytes.is_none() {
                // The gateway ends it. With the gateway, all is ended.
                let _ = self.gateway.send(Command::Spoilt { host: self.host, post: piece.post });
            }
            bytes
        });
        std::future::ready(bytes).boxed()
    }

    fn write(&self, piece: Piece, bytes: Bytes) -> BoxFuture<'_, ()> {
        async move {
            loop {
                let mut changed = std::pin::pin!(self.changed.notified());
                // Before the look, so that no change falls between.
                changed.as_mut().enable();
                if self.put(&piece, &bytes) {
                    return;
                }
                changed.await;
            }
        }
        .boxed()
    }
}

/// The sources of a message's spans: its tensors that have bytes, then a large body.
pub(super) fn sources(head: &Head, tensors: &[Tensor], body: &Bytes) -> Arc<[Source]> {
    let with_bytes = tensors.iter().zip(&head.tensors).filter(|(_, outline)| outline.has_bytes());
    let mut sources: Vec<_> = with_bytes.map(|(tensor, _)| Source::Tensor(tensor.clone())).collect();
    if matches!(head.body, HeadBody::Span(_)) {
        sources.push(Source::Body(body.clone()));
    }
    sources.into()
}

/// Waits until all tensors are there, and packs those that are not. On a thread that may wait.
///
/// # Errors
/// A tensor whose data will never be there, or that there is no memory to pack for.
pub(super) fn make_ready(tensors: &[Tensor], stream: &DeviceStream) -> Result<Vec<Tensor>, TensorError> {
    let packed = |tensor: &Tensor| {
        // HOST-7: the stream is given only what has passed.
        tensor.wait(None)?;
        tensor.check_repeats()?;
        let packed = stream.contiguous(tensor)?;
        packed.wait(None)?;
        Ok(packed)
    };
    tensors.iter().map(packed).collect()
}

/// Memory for the spans of a message that comes. Waits while the pool is full.
pub(super) async fn targets(head: &Head, stream: &DeviceStream) -> Vec<Target> {
    let mut targets = Vec::new();
    for outline in head.tensors.iter().filter(|outline| outline.has_bytes()) {
        let target = match target(stream, outline.dtype, &outline.shape).await {
            Ok(tensor) => Target::Tensor(tensor),
            Err(error) => {
                tracing::error!(%error, "there is no memory here for a tensor from another host; its message is dropped");
                Target::Nowhere
            }
        };
        targets.push(target);
    }
    if let HeadBody::Span(bytes) = head.body {
        targets.push(Target::Body(vec![0; bytes]));
    }
    targets
}

async fn target(
    stream: &DeviceStream,
    dtype: crate::tensor::DType,
    shape: &[usize],
) -> Result<TensorMut, TensorError> {
    let tensor = stream.empty_when_free(dtype, shape).await?;
    if tensor.lease().users().is_empty() {
        return Ok(tensor);
    }
    // Somebody may still use the memory that it was before (CLOCK-2). No lane waits for that.
    let waited = tokio::task::spawn_blocking(move || tensor.wait(None).map(|()| tensor)).await;
    waited.unwrap_or_else(|_| Err(TensorError::TimedOut))
}
