//! The state that the streams of this process share: the stream of each clock, the waits that were put on
//! each, and the thread that makes late writes.
//!
//! Its users are [`Stream`] itself, threads that wait for a ticket of their own process, hang reports, and
//! the end of the process.
//!
//! **Invariant.** A wait inside the process first makes sure that the write that it waits for is enqueued.
//! Inside a turn writes are put off, and a thread that waited for a write of its own would wait for ever.
//!
//! **Locks.** The list of streams is locked to find a stream, and released before that stream's state is
//! locked.
//!
//! **On a crash** of this process the state goes with it. **On cancellation** nothing happens: streams are
//! held weakly here, and a dropped stream leaves only its waits, at which its work still stands.

use std::sync::Arc;

use parking_lot::RwLock;

use super::late_writes::LateWriter;
use super::queued::Queued;
use super::{Stream, WeakStream};
use crate::clock::ClockDomain;
use crate::ids::DeviceId;
use crate::limits::MAX_STREAMS;

/// One per process; its [`ClockDomain`] keeps it.
#[derive(Debug)]
pub(super) struct OwnStreams {
    /// The streams, by clock of the process.
    streams: RwLock<Vec<Option<WeakStream>>>,
    late_writer: Arc<LateWriter>,
    /// Per clock of the process: the waits of its stream. Empty where the node detects no hangs.
    queued: Box<[Queued]>,
}

impl OwnStreams {
    fn new(detects_hangs: bool) -> Self {
        let noted = if detects_hangs { MAX_STREAMS } else { 0 };
        OwnStreams {
            streams: RwLock::default(),
            late_writer: Arc::default(),
            queued: std::iter::repeat_with(Queued::default).take(noted).collect(),
        }
    }

    /// Returns the streams of the process that owns `domain`. A stream asks once, when it is made.
    pub(super) fn of(domain: &ClockDomain) -> &Arc<Self> {
        domain.of_streams(|| Arc::new(OwnStreams::new(domain.detects_hangs())))
    }

    pub(super) fn register(&self, slot: u16, stream: &Stream) {
        let mut streams = self.streams.write();
        let index = usize::from(slot);
        if streams.len() <= index {
            streams.resize_with(index + 1, || None);
        }
        streams[index] = Some(stream.downgrade());
    }

    /// Returns the stream on `device` that was shared least often.
    pub(super) fn to_share(&self, device: DeviceId) -> Option<Stream> {
        let streams = self.streams.read();
        let alive = streams.iter().flatten().filter_map(WeakStream::upgrade);
        alive.filter(|stream| stream.device() == device).min_by_key(Stream::sharers)
    }

    /// Enqueues the write of `value` on the stream of clock `slot`, if it is not enqueued yet.
    pub(super) fn flush(&self, slot: u16, value: u64) {
        let stream =
            self.streams.read().get(usize::from(slot)).and_then(Option::as_ref).and_then(WeakStream::upgrade);
        if let Some(stream) = stream {
            stream.flush_to(value);
        }
    }

    /// Returns the writer of clock writes that a device has no room for.
    pub(super) fn late_writer(&self) -> &Arc<LateWriter> {
        &self.late_writer
    }

    /// Returns the waits of the stream of this process's clock `slot`, where they are noted.
    pub(super) fn queued(&self, slot: u16) -> Option<&Queued> {
        self.queued.get(usize::from(slot))
    }

    /// Returns the waits of each stream, by clock.
    pub(super) fn all_queued(&self) -> impl Iterator<Item = (u16, &Queued)> {
        (0_u16..).zip(&self.queued)
    }
}

/// Waits until all work on the streams of this process is done, dropped streams included. A process that ends
/// in order calls it when nobody uses its streams any more.
pub(crate) fn finish_own_work(domain: &ClockDomain) {
    loop {
        domain.await_promised();
        // A late write was not promised yet, so wait for the writer first.
        if !OwnStreams::of(domain).late_writer().await_all() {
            return;
        }
    }
}
