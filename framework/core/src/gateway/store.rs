//! The memory of messages between this host and another: the source and destination of pieces.
//!
//! Used by the gateway, which enters messages and takes them out, and by the lanes, which read and write
//! pieces ([`Memory`]). Host tensors are sent from where they are: a piece keeps its tensor until it has
//! gone. Arriving pieces are written into tensors of the gateway's own. Tensors in GPU memory go through the
//! slots of a [`Copier`].
//!
//! **Locks.** One for each direction. Nothing waits under them, and no piece is copied.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tensorpost_hosts::frame::Piece;
use tensorpost_hosts::ids::Seq;
use tensorpost_hosts::net::{Memory, Parts};
use tokio::sync::Notify;

use super::copier::{Copier, Landing};
use super::copiers::{Copiers, Direction};
use super::head::{Head, HeadBody};
use super::in_place::InPlace;
use crate::ids::DeviceId;
use crate::tensor::{Tensor, TensorError};

/// The source of a span that is sent.
#[derive(Clone, Debug)]
pub(super) enum Source {
    Tensor(Tensor),
    /// A tensor that goes through slots.
    Staged(Tensor, Arc<Copier>),
    Body(Bytes),
    /// The span cannot be read.
    Nowhere,
}

/// The state of an arriving message.
enum Coming {
    /// There is no memory for it yet.
    Preparing,
    /// A target for each span.
    Here(Vec<Target>),
}

/// The destination of a span's pieces.
#[derive(Debug)]
pub(super) enum Target {
    InPlace(Arc<InPlace>),
    /// A tensor that lands through slots.
    Staged(Arc<Landing>),
    /// The span cannot be stored, for this reason.
    Nowhere(String),
}

/// The destination of one arriving piece.
enum Put {
    /// Its message is not expected any more.
    Nowhere,
    /// There is no memory for it yet.
    NotYet,
    InPlace(Arc<InPlace>),
    Staged(Arc<Landing>),
}

#[derive(Default)]
struct Arrivals {
    messages: HashMap<Seq, Coming>,
    /// The highest number of a message that was expected.
    seen: Seq,
}

/// The memory of messages between two hosts; see the module.
pub(super) struct Store {
    /// Has the gateway abort a message, for this reason; `None` if a tensor of it is tainted.
    abort: Box<dyn Fn(Seq, Option<String>) + Send + Sync>,
    sending: Mutex<HashMap<Seq, Arc<[Source]>>>,
    arrivals: Mutex<Arrivals>,
    changed: Notify,
}

impl Store {
    /// Makes the memory for one session with another host. `abort` is called for messages whose data is lost.
    pub(super) fn new(abort: impl Fn(Seq, Option<String>) + Send + Sync + 'static) -> Self {
        let (sending, arrivals) = (Mutex::default(), Mutex::default());
        Store { abort: Box::new(abort), sending, arrivals, changed: Notify::new() }
    }

    /// Returns the source of a span that is sent.
    pub(super) fn source(&self, post: Seq, span: u16) -> Option<Source> {
        self.sending.lock().get(&post)?.get(usize::from(span)).cloned()
    }

    /// Returns the device on which a span of an arriving message lands through slots; `None` if it does not.
    /// Waits until that is known. Does not keep the tensor.
    pub(super) async fn lands(&self, post: Seq, span: u16) -> Option<DeviceId> {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // Registered before the look, so that no change is missed.
            changed.as_mut().enable();
            {
                let arrivals = self.arrivals.lock();
                match arrivals.messages.get(&post) {
                    Some(Coming::Here(targets)) => match targets.get(usize::from(span)) {
                        Some(Target::Staged(landing)) => return Some(landing.device()),
                        _ => return None,
                    },
                    None if post <= arrivals.seen => return None,
                    Some(Coming::Preparing) | None => {}
                }
            }
            changed.await;
        }
    }

    /// Returns a tensor of an arriving message that lands through slots. The caller drops it before it
    /// reports the last piece as landed.
    pub(super) fn landing(&self, post: Seq, span: u16) -> Option<Arc<Landing>> {
        match self.place_of(&Piece { post, span, offset: 0, bytes: 0 }) {
            Put::Staged(landing) => Some(landing),
            Put::Nowhere | Put::InPlace(_) | Put::NotYet => None,
        }
    }

    /// Lends the spans of a message that is sent.
    pub(super) fn lend(&self, post: Seq, spans: Arc<[Source]>) {
        self.sending.lock().insert(post, spans);
    }

    /// Ends the loan of a message's spans (HOST-5).
    pub(super) fn released(&self, post: Seq) {
        let lent = self.sending.lock().remove(&post);
        // Dropped outside the lock: this may be the last handle on a tensor.
        drop(lent);
    }

    /// Expects a message that has spans.
    pub(super) fn expect(&self, post: Seq) {
        let mut arrivals = self.arrivals.lock();
        arrivals.messages.insert(post, Coming::Preparing);
        arrivals.seen = arrivals.seen.max(post);
        drop(arrivals);
        self.changed.notify_waiters();
    }

    /// Sets the destinations of an expected message.
    pub(super) fn prepared(&self, post: Seq, targets: Vec<Target>) {
        if let Some(coming) = self.arrivals.lock().messages.get_mut(&post) {
            *coming = Coming::Here(targets);
        }
        self.changed.notify_waiters();
    }

    /// Takes a message out that is complete, or never will be.
    pub(super) fn take(&self, post: Seq) -> Vec<Target> {
        let taken = self.arrivals.lock().messages.remove(&post);
        self.changed.notify_waiters();
        match taken {
            Some(Coming::Here(targets)) => targets,
            Some(Coming::Preparing) | None => Vec::new(),
        }
    }

    /// Forgets all messages, because the session is over.
    pub(super) fn clear(&self) {
        let sending = std::mem::take(&mut *self.sending.lock());
        let mut arrivals = self.arrivals.lock();
        arrivals.seen = Seq::MAX;
        let messages = std::mem::take(&mut arrivals.messages);
        drop(arrivals);
        self.changed.notify_waiters();
        drop((sending, messages));
    }

    /// Returns the destination of a piece.
    fn place_of(&self, piece: &Piece) -> Put {
        let arrivals = self.arrivals.lock();
        let seen = arrivals.seen;
        match arrivals.messages.get(&piece.post) {
            Some(Coming::Preparing) => Put::NotYet,
            Some(Coming::Here(targets)) => match targets.get(usize::from(piece.span)) {
                Some(Target::InPlace(memory)) => Put::InPlace(Arc::clone(memory)),
                Some(Target::Staged(landing)) => Put::Staged(Arc::clone(landing)),
                Some(Target::Nowhere(_)) | None => Put::Nowhere,
            },
            None if piece.post <= seen => Put::Nowhere,
            None => Put::NotYet,
        }
    }

    /// Marks the span of a piece as lost, because the piece could not be written.
    pub(super) fn lose(&self, piece: &Piece, error: &TensorError) {
        let mut arrivals = self.arrivals.lock();
        let Some(Coming::Here(targets)) = arrivals.messages.get_mut(&piece.post) else { return };
        let lost = targets.get_mut(usize::from(piece.span)).map(|target| {
            let nowhere = Target::Nowhere(format!("a tensor in it cannot be written: {error}"));
            std::mem::replace(target, nowhere)
        });
        drop(arrivals);
        // Dropped outside the lock, as above.
        drop(lost);
    }

    /// Reads a piece that goes through slots. The error says why not, `None` if the tensor is tainted.
    async fn staged(tensor: Tensor, copier: Arc<Copier>, piece: Piece) -> Result<Bytes, Option<String>> {
        let read = copier.read(&tensor, piece.offset, piece.bytes as usize).await;
        read.map_err(|error| match error {
            TensorError::Tainted { .. } => None,
            other => Some(other.to_string()),
        })
    }

    /// Has the gateway abort the message of a piece that cannot be read.
    pub(super) fn spoilt(&self, piece: &Piece, why: Option<String>) {
        (self.abort)(piece.post, why);
    }
}

/// A part of a tensor, kept while it is being sent.
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
            // HOST-6: data that was lost since it was found ready is not sent.
            let there = tensor.packed_bytes().is_ok_and(|bytes| range.end <= bytes.len());
            there.then(|| Bytes::from_owner(Part { tensor: tensor.clone(), range }))
        }
        // Neither has bytes that could be read here.
        Source::Staged(..) | Source::Nowhere => None,
    }
}

impl Memory for Store {
    fn read(&self, piece: Piece) -> BoxFuture<'_, Option<Bytes>> {
        let lent = self.sending.lock().get(&piece.post).cloned();
        let Some(spans) = lent else { return std::future::ready(None).boxed() };
        match spans.get(usize::from(piece.span)) {
            Some(Source::Staged(tensor, copier)) => {
                let staged = Self::staged(tensor.clone(), Arc::clone(copier), piece);
                async move { staged.await.map_err(|why| self.spoilt(&piece, why)).ok() }.boxed()
            }
            source => {
                let bytes = source.and_then(|source| part(source, &piece));
                if bytes.is_none() {
                    self.spoilt(&piece, None);
                }
                std::future::ready(bytes).boxed()
            }
        }
    }

    fn write(&self, piece: Piece, bytes: Parts) -> BoxFuture<'_, ()> {
        async move {
            loop {
                let mut changed = std::pin::pin!(self.changed.notified());
                // Registered before the look, so that no change is missed.
                changed.as_mut().enable();
                match self.place_of(&piece) {
                    Put::Nowhere => return,
                    Put::InPlace(memory) => return memory.write(piece.offset, &bytes),
                    Put::NotYet => changed.await,
                    Put::Staged(landing) => {
                        if let Err(error) = landing.write(piece.offset, &bytes).await {
                            self.lose(&piece, &error);
                        }
                        return;
                    }
                }
            }
        }
        .boxed()
    }
}

/// Returns the sources of a message's spans: its tensors, then a large body.
pub(super) fn sources(head: &Head, tensors: &[Tensor], body: &Bytes, copiers: &Copiers) -> Arc<[Source]> {
    let source = |tensor: &Tensor, has_bytes| {
        let device = tensor.device();
        match (has_bytes, copiers.stages(device)) {
            // The one byte of a tensor without elements belongs nowhere.
            (false, _) => Source::Body(Bytes::from_static(&[0])),
            (true, false) => Source::Tensor(tensor.clone()),
            (true, true) => {
                let copier = copiers.known(device, Direction::Out);
                copier.map_or(Source::Nowhere, |copier| Source::Staged(tensor.clone(), copier))
            }
        }
    };
    let tensors = tensors.iter().zip(&head.tensors);
    let mut sources: Vec<_> = tensors.map(|(tensor, outline)| source(tensor, outline.has_bytes())).collect();
    if matches!(head.body, HeadBody::Span(_)) {
        sources.push(Source::Body(body.clone()));
    }
    sources.into()
}
