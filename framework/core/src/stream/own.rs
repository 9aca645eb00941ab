//! What the streams of this process share: who has which clock, what each was put to wait for, and the thread
//! that makes late writes.
//!
//! Used by [`Stream`] itself, by threads that wait for a ticket of their own process, by hang reports and at
//! the end of the process.
//!
//! **Invariant.** A wait inside the process first has the write that it waits for enqueued. Inside a turn
//! writes are put off, and a thread that waited for a write of its own would wait for ever.
//!
//! **Locks.** The list of streams is locked to find a stream, and released before that stream's state is
//! locked.
//!
//! **On a crash** of this process it goes with the process. **On cancellation** nothing happens: streams are
//! held weakly here, and one that is dropped leaves only its waits, which its work still stands in.

use std::sync::Arc;

use parking_lot::RwLock;

use super::late::LateWriter;
use super::queued::Queued;
use super::{Stream, WeakStream};
use crate::clock::ClockDomain;
use crate::ids::DeviceId;
use crate::limits::MAX_STREAMS;

/// One per process; its [`ClockDomain`] keeps it.
#[derive(Debug)]
pub(super) struct OwnStreams {
    /// By clock of the process.
    streams: RwLock<Vec<Option<WeakStream>>>,
    late_writer: Arc<LateWriter>,
    /// By clock of the process: what its stream waits for. Empty where the node detects no hangs.
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

    /// Those of the process whose clocks these are. A stream asks once, when it is made.
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

    /// Enqueues the write of `value` on the stream of clock `slot`, if it is still to be enqueued.
    pub(super) fn flush(&self, slot: u16, value: u64) {
        let stream =
            self.streams.read().get(usize::from(slot)).and_then(Option::as_ref).and_then(WeakStream::upgrade);
        if let Some(stream) = stream {
            stream.flush_to(value);
        }
    }

    /// For clock writes that a device has no room for.
    pub(super) fn late_writer(&self) -> &Arc<LateWriter> {
        &self.late_writer
    }

    /// What the stream of this process's clock `slot` waits for, where that is noted.
    pub(super) fn queued(&self, slot: u16) -> Option<&Queued> {
        self.queued.get(usize::from(slot))
    }

    /// What each stream waits for, by clock.
    pub(super) fn all_queued(&self) -> impl Iterator<Item = (u16, &Queued)> {
        (0_u16..).zip(&self.queued)
    }
}

/// Waits until everything is done that the streams of this process were told to do, those included that were
/// dropped. For a process that ends in order, when nobody uses its streams any more.
pub(crate) fn finish_own_work(domain: &ClockDomain) {
    loop {
        domain.await_promised();
        // A write that is late was not promised yet.
        if !OwnStreams::of(domain).late_writer().await_all() {
            return;
        }
    }
}
