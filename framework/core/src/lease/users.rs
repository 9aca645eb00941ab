//! How this process has used the memory of a lease: on which streams, and which ticket marks the end, if one
//! is known.
//!
//! A program puts most work on a stream without telling the framework, at any time while the lease exists.
//! Only a ticket that is requested when the lease is released covers such work. If all uses were launches
//! that write the clock by themselves, or work that was over before the lease was made, the last of those
//! writes covers them all, and no further ticket is made.
//!
//! The handles of leases use this, under their lock.

use smallvec::SmallVec;

use crate::clock::{ClockDomain, Ticket};
use crate::stream::Stream;

#[derive(Default)]
pub(super) struct Users {
    /// Streams that used it.
    pub(super) streams: SmallVec<[Stream; 1]>,
    /// The stream that wrote the memory last, and the earliest clock value that covers this write. It shows
    /// whether memory that never left its stream, an accumulator for example, depends on work that a dead
    /// process did not finish (DEATH-3). If so, every further use is refused, so this value no longer
    /// changes.
    pub(super) written: Option<Ticket>,
    #[cfg(any(feature = "graphs", feature = "bindings"))]
    ends: Ends,
}

/// Until when the memory is in use, as far as the uses themselves tell.
#[cfg(any(feature = "graphs", feature = "bindings"))]
#[derive(Clone, Copy, Default)]
enum Ends {
    /// There was no use yet.
    #[default]
    Unused,
    /// All uses were on one stream, which writes this ticket by itself after the last of them.
    At(Ticket),
    /// There may be work that the framework was not told of.
    Open,
}

impl Users {
    /// Records that the stream is in order with the memory, so its tickets count.
    pub(super) fn add(&mut self, stream: &Stream) {
        if !self.streams.contains(stream) {
            self.streams.push(stream.clone());
        }
    }

    /// Does the same as [`add`](Self::add), for work that may be enqueued as long as the lease exists.
    pub(super) fn add_open(&mut self, stream: &Stream) {
        self.add(stream);
        #[cfg(any(feature = "graphs", feature = "bindings"))]
        {
            self.ends = Ends::Open;
        }
    }

    /// Does the same as [`add`](Self::add), for work that is already enqueued and is over at `end`, which the
    /// stream writes in any case.
    #[cfg(any(feature = "graphs", feature = "bindings"))]
    pub(super) fn add_until(&mut self, stream: &Stream, end: Ticket) {
        self.add(stream);
        self.ends = match self.ends {
            Ends::Unused | Ends::At(_) if self.streams.len() == 1 => Ends::At(end),
            _ => Ends::Open,
        };
    }

    /// Records that no further use follows. If all uses were on this stream, they are over at `end`, a ticket
    /// that the stream issued after them.
    #[cfg(feature = "bindings")]
    pub(super) fn close_at(&mut self, stream: &Stream, end: Ticket) {
        if self.streams.len() == 1 && self.streams.contains(stream) {
            self.ends = Ends::At(end);
        }
    }

    /// Returns the ticket that covers all uses, or `None` if a new one has to be requested.
    pub(super) fn end(&self) -> Option<Ticket> {
        #[cfg(any(feature = "graphs", feature = "bindings"))]
        if let (Ends::At(ticket), 1) = (self.ends, self.streams.len()) {
            return Some(ticket);
        }
        None
    }

    /// Returns whether the data written last is lost to the death of a process.
    pub(super) fn is_lost(&self, domain: &ClockDomain) -> bool {
        self.written.is_some_and(|ticket| domain.tainted_by(&ticket).is_some())
    }
}

#[cfg(all(test, feature = "graphs", feature = "bindings"))]
mod tests;
