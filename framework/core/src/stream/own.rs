//! The streams of this process, by clock. A wait inside the process first has the write that it waits for enqueued:
//! inside a turn writes are put off, and a thread that waited for a write of its own would wait for ever.

use parking_lot::RwLock;

use super::{Stream, WeakStream};
use crate::ids::DeviceId;

/// One entry per clock of the process; part of its [`ClockDomain`](crate::clock::ClockDomain).
#[derive(Debug, Default)]
pub(crate) struct OwnStreams(RwLock<Vec<Option<WeakStream>>>);

impl OwnStreams {
    pub(crate) fn register(&self, slot: u16, stream: &Stream) {
        let mut streams = self.0.write();
        let index = usize::from(slot);
        if streams.len() <= index {
            streams.resize_with(index + 1, || None);
        }
        streams[index] = Some(stream.downgrade());
    }

    /// The stream on `device` that was shared least often.
    pub(crate) fn to_share(&self, device: DeviceId) -> Option<Stream> {
        let streams = self.0.read();
        let alive = streams.iter().flatten().filter_map(WeakStream::upgrade);
        alive.filter(|stream| stream.device() == device).min_by_key(Stream::sharers)
    }

    /// Enqueues the write of `value` on the stream of clock `slot`, if it is still to be enqueued.
    pub(crate) fn flush(&self, slot: u16, value: u64) {
        let stream =
            self.0.read().get(usize::from(slot)).and_then(Option::as_ref).and_then(WeakStream::upgrade);
        if let Some(stream) = stream {
            stream.flush_to(value);
        }
    }
}
