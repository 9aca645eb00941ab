//! The memory of messages between this host and another: where pieces come from and go to.
//!
//! Used by the gateway, which enters messages and takes them out, and by the lanes, which read and write
//! pieces ([`Memory`]). What is sent from host memory is lent as it lies: a piece keeps its tensor until it
//! has gone. What comes is written into tensors of the gateway's own. Tensors in GPU memory go through the
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
use tokio::sync::mpsc::UnboundedSender;

use super::Command;
use super::copier::{Copier, Landing};
use super::copiers::{Copiers, Way};
use super::head::{Head, HeadBody};
use super::in_place::InPlace;
use crate::ids::DeviceId;
use crate::tensor::{Tensor, TensorError};

/// The bytes behind a span that is sent.
#[derive(Clone, Debug)]
pub(super) enum Source {
    Tensor(Tensor),
    /// By slots.
    Staged(Tensor, Arc<Copier>),
    Body(Bytes),
    /// It cannot be read.
    Nowhere,
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
    InPlace(Arc<InPlace>),
    /// By slots.
    Staged(Arc<Landing>),
    /// Nobody can take it, for this reason.
    Nowhere(String),
}

/// Where a piece that came belongs.
enum Put {
    /// Nowhere any more.
    Nowhere,
    /// There is no memory for it yet.
    NotYet,
    InPlace(Arc<InPlace>),
    Staged(Arc<Landing>),
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
    session: u64,
    gateway: UnboundedSender<Command>,
    sending: Mutex<HashMap<Seq, Arc<[Source]>>>,
    arrivals: Mutex<Arrivals>,
    changed: Notify,
}

impl Store {
    /// Between this host and that one, in this session with it.
    pub(super) fn new(host: u16, session: u64, gateway: UnboundedSender<Command>) -> Self {
        let (sending, arrivals) = (Mutex::default(), Mutex::default());
        Store { host, session, gateway, sending, arrivals, changed: Notify::new() }
    }

    /// What is sent of a span.
    pub(super) fn source(&self, post: Seq, span: u16) -> Option<Source> {
        self.sending.lock().get(&post)?.get(usize::from(span)).cloned()
    }

    /// The device where a span lands of a message that comes, or will, by slots; nothing where it does not.
    /// Waits until that is known. Who asks does not keep the tensor.
    pub(super) async fn lands(&self, post: Seq, span: u16) -> Option<DeviceId> {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // Before the look, so that no change falls between.
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

    /// A tensor of a message that comes, by slots; whoever has it lets it go before it says that the last of
    /// it has landed.
    pub(super) fn landing(&self, post: Seq, span: u16) -> Option<Arc<Landing>> {
        match self.place_of(&Piece { post, span, offset: 0, bytes: 0 }) {
            Put::Staged(landing) => Some(landing),
            Put::Nowhere | Put::InPlace(_) | Put::NotYet => None,
        }
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

    /// Where a piece belongs.
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

    /// A piece could not be put there.
    pub(super) fn lose(&self, piece: &Piece, error: &TensorError) {
        let mut arrivals = self.arrivals.lock();
        let Some(Coming::Here(targets)) = arrivals.messages.get_mut(&piece.post) else { return };
        let lost = targets.get_mut(usize::from(piece.span)).map(|target| {
            let nowhere = Target::Nowhere(format!("a tensor in it cannot be written: {error}"));
            std::mem::replace(target, nowhere)
        });
        drop(arrivals);
        // Without the lock, as above.
        drop(lost);
    }

    /// The bytes of a piece that is sent by slots, or nothing, and why.
    async fn staged(tensor: Tensor, copier: Arc<Copier>, piece: Piece) -> Result<Bytes, Option<String>> {
        let read = copier.read(&tensor, piece.offset, piece.bytes as usize).await;
        read.map_err(|error| match error {
            TensorError::Tainted { .. } => None,
            other => Some(other.to_string()),
        })
    }

    /// A piece that is sent cannot be: the gateway ends its message. With the gateway, all is ended.
    pub(super) fn spoilt(&self, piece: &Piece, why: Option<String>) {
        let (host, session) = (self.host, self.session);
        let _ = self.gateway.send(Command::Spoilt { host, session, post: piece.post, why });
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
        // These go another way.
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
                // Before the look, so that no change falls between.
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

/// The sources of a message's spans: its tensors, then a large body.
pub(super) fn sources(head: &Head, tensors: &[Tensor], body: &Bytes, copiers: &Copiers) -> Arc<[Source]> {
    let source = |tensor: &Tensor, has_bytes| {
        let device = tensor.device();
        match (has_bytes, copiers.stages(device)) {
            // Its one byte is nobody's.
            (false, _) => Source::Body(Bytes::from_static(&[0])),
            (true, false) => Source::Tensor(tensor.clone()),
            (true, true) => {
                let copier = copiers.known(device, Way::Out);
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
