//! How this process has used the memory of a lease: on which streams, and what is known of the end.
//!
//! Most work is put on a stream without a word to the framework, at any time while the lease is there. So
//! only a ticket that is asked for when the lease goes stands for it. Where all uses were launches that write
//! the clock by themselves, or work that was over before the lease was made, the last of those writes does,
//! and no further one is made.
//!
//! Used by the handles of leases, under their lock.

use smallvec::SmallVec;

use crate::clock::{ClockDomain, Ticket};
use crate::stream::Stream;

#[derive(Default)]
pub(super) struct Users {
    /// Streams that used it.
    pub(super) streams: SmallVec<[Stream; 1]>,
    /// The stream that wrote it last, and the clock value that stands for that at the earliest. It shows
    /// whether memory that never left its stream, an accumulator for example, depends on what a dead process
    /// had not done (DEATH-3): where it does, every further use is refused, so this stays what it is.
    pub(super) written: Option<Ticket>,
    #[cfg(any(feature = "graphs", feature = "foreign"))]
    ends: Ends,
}

/// Until when the memory is in use, as far as the uses say so themselves.
#[cfg(any(feature = "graphs", feature = "foreign"))]
#[derive(Clone, Copy, Default)]
enum Ends {
    /// There was none yet.
    #[default]
    Unused,
    /// All of one stream, which writes this by itself behind the last.
    At(Ticket),
    /// There may be work that nobody has told of.
    Open,
}

impl Users {
    /// The stream is in order with the memory: tickets of it count.
    pub(super) fn add(&mut self, stream: &Stream) {
        if !self.streams.contains(stream) {
            self.streams.push(stream.clone());
        }
    }

    /// As [`add`](Self::add), for work that may come as long as the lease is there.
    pub(super) fn add_open(&mut self, stream: &Stream) {
        self.add(stream);
        #[cfg(any(feature = "graphs", feature = "foreign"))]
        {
            self.ends = Ends::Open;
        }
    }

    /// As [`add`](Self::add), for work that was enqueued and is over at `end`, which the stream writes in any
    /// case.
    #[cfg(any(feature = "graphs", feature = "foreign"))]
    pub(super) fn add_until(&mut self, stream: &Stream, end: Ticket) {
        self.add(stream);
        self.ends = match self.ends {
            Ends::Unused | Ends::At(_) if self.streams.len() == 1 => Ends::At(end),
            _ => Ends::Open,
        };
    }

    /// Nothing more is done with it: where all was done on this stream, it is over at `end`, a ticket that
    /// the stream gave out behind it.
    #[cfg(feature = "foreign")]
    pub(super) fn close_at(&mut self, stream: &Stream, end: Ticket) {
        if self.streams.len() == 1 && self.streams.contains(stream) {
            self.ends = Ends::At(end);
        }
    }

    /// The ticket that stands for all uses, where no further one has to be asked for.
    pub(super) fn end(&self) -> Option<Ticket> {
        #[cfg(any(feature = "graphs", feature = "foreign"))]
        if let (Ends::At(ticket), 1) = (self.ends, self.streams.len()) {
            return Some(ticket);
        }
        None
    }

    /// Whether what was written last depends on the death of a process.
    pub(super) fn is_lost(&self, domain: &ClockDomain) -> bool {
        self.written.is_some_and(|ticket| domain.tainted_by(&ticket).is_some())
    }
}

#[cfg(all(test, feature = "graphs", feature = "foreign"))]
mod tests;
