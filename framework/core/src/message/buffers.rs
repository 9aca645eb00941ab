//! Buffers for bodies and lists for outgoing tensors, which a thread keeps for its next message.
//!
//! A new buffer of a megabyte comes from the system page by page, and goes back to it. That takes several
//! times as long as the copy. So a thread keeps large buffers too, for as long as its bodies need them.
//!
//! Encoders use them, and so does the reader for bodies that come in a lease. **On a panic** in between the
//! buffer is lost, and the next message has a new one. Lists are also lost if the message cannot be encoded,
//! or finds no room.

use std::cell::Cell;

use super::scope::{Leases, Outline};
use crate::limits::MAX_INLINE_BODY;

/// The largest buffer that is kept, in bytes.
const MOST: usize = 4 << 20;
/// A buffer up to this size is always kept. A body that goes inline fits into it, because a buffer grows by
/// doubling.
const SMALL: usize = 2 * MAX_INLINE_BODY;
/// A larger buffer is dropped after this many messages in a row that did not need it.
const IN_VAIN: u32 = 64;

/// The largest number of tensors of a message whose lists are kept, for as long as the thread lives: 26 KB.
const MOST_TENSORS: usize = 128;

/// A buffer between two messages.
#[derive(Debug, Default)]
struct KeptBuffer {
    buffer: Vec<u8>,
    /// The number of messages in a row that the buffer was too large for.
    in_vain: u32,
}

thread_local! {
    static ENCODED: Cell<KeptBuffer> = Cell::default();
    static COPIED: Cell<KeptBuffer> = Cell::default();
    static LISTS: Cell<Gathered> = Cell::default();
}

/// The lists that gather a message's tensors. They are empty between two messages.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    pub(crate) leases: Leases,
    pub(crate) tensors: Vec<Outline>,
}

impl Gathered {
    /// Returns the lists that this thread [gave back](Self::give_back) last, empty.
    pub(crate) fn take() -> Self {
        LISTS.take()
    }

    /// Drops the leases, and keeps the lists for the thread's next message with tensors.
    pub(crate) fn give_back(mut self) {
        // The lists of a message without tensors are not worth keeping.
        if self.tensors.capacity() == 0 {
            return;
        }
        // Cleared before anything is kept: the end of a lease may send messages.
        self.leases.clear();
        self.tensors.clear();
        if self.leases.capacity().max(self.tensors.capacity()) <= MOST_TENSORS {
            LISTS.set(self);
        }
    }
}

/// The use of a buffer. Each of the two is in use at the same time as the other.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Use {
    /// An outgoing body.
    Encoded,
    /// An incoming body that is not in the frame.
    Copied,
}

impl Use {
    fn with<R>(self, f: impl FnOnce(&mut KeptBuffer) -> R) -> R {
        let of = |cell: &Cell<KeptBuffer>| {
            let mut kept = cell.take();
            let result = f(&mut kept);
            cell.set(kept);
            result
        };
        match self {
            Use::Encoded => ENCODED.with(of),
            Use::Copied => COPIED.with(of),
        }
    }

    /// Returns an empty buffer: the one that this thread [gave back](Self::give_back) last.
    pub(crate) fn take(self) -> Vec<u8> {
        self.with(|kept| std::mem::take(&mut kept.buffer))
    }

    /// Keeps the buffer of a finished body for the thread's next message.
    pub(crate) fn give_back(self, mut body: Vec<u8>) {
        let dropped = self.with(|kept| {
            let is_large = body.capacity() > SMALL;
            kept.in_vain = if is_large && body.len() <= SMALL { kept.in_vain + 1 } else { 0 };
            if body.capacity() > MOST || kept.in_vain > IN_VAIN {
                kept.in_vain = 0;
                return body;
            }
            body.clear();
            std::mem::replace(&mut kept.buffer, body)
        });
        drop(dropped);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the capacity that the thread keeps after a body of `bytes` in a buffer of `capacity`.
    fn kept_after(capacity: usize, bytes: usize) -> usize {
        let mut body = Use::Copied.take();
        body.reserve_exact(capacity.max(bytes));
        body.resize(bytes, 1);
        Use::Copied.give_back(body);
        let kept = Use::Copied.take();
        assert!(kept.is_empty());
        let capacity = kept.capacity();
        Use::Copied.with(|of| of.buffer = kept);
        capacity
    }

    #[test]
    fn a_large_buffer_is_kept_for_as_long_as_it_is_needed() {
        std::thread::spawn(|| {
            assert_eq!(kept_after(0, 100_000), 100_000);
            // The first message takes pages from the system; the later ones do not.
            for _ in 0..100 {
                assert_eq!(kept_after(0, 1 << 20), 1 << 20);
            }
            for _ in 0..IN_VAIN {
                assert_eq!(kept_after(0, 10), 1 << 20, "the next may need it again");
            }
            assert_eq!(kept_after(0, SMALL + 1), 1 << 20, "it did");
            for _ in 0..IN_VAIN {
                assert_eq!(kept_after(0, 10), 1 << 20);
            }
            assert_eq!(kept_after(0, 10), 0, "memory that is not needed goes back");
            assert_eq!(kept_after(0, 10), 10);
        })
        .join()
        .expect("no panic");
    }

    #[cfg(feature = "testing")]
    #[test]
    fn the_next_message_finds_nothing_of_the_last_in_its_lists() {
        let cluster = crate::testing::Cluster::new(1);
        let stream = cluster.stream(0);
        let tensor = stream.from_slice(&[4], &[1_u32; 4]).expect("room").freeze();
        let encoded = crate::message::codec::encode(&tensor, Vec::new()).expect("encodes");
        assert_eq!((encoded.leases.len(), encoded.tensors.len()), (1, 1));
        drop(tensor);
        assert_eq!(stream.pool().stats().allocations, 1);
        Gathered { leases: encoded.leases, tensors: encoded.tensors }.give_back();
        assert_eq!(stream.pool().stats().allocations, 0, "a list that is kept keeps no memory");
        let kept = Gathered::take();
        assert!(kept.leases.is_empty() && kept.tensors.is_empty() && kept.tensors.capacity() > 0);
    }

    #[test]
    fn lists_are_kept_empty_and_those_of_many_tensors_are_not() {
        let capacity_after = |tensors: usize| {
            let leases = Vec::with_capacity(tensors);
            Gathered { leases, tensors: Vec::with_capacity(tensors) }.give_back();
            let kept = Gathered::take();
            assert!(kept.leases.is_empty() && kept.tensors.is_empty());
            (kept.leases.capacity(), kept.tensors.capacity())
        };
        std::thread::spawn(move || {
            assert_eq!(capacity_after(MOST_TENSORS), (MOST_TENSORS, MOST_TENSORS));
            assert_eq!(capacity_after(MOST_TENSORS + 1), (0, 0));
            Gathered { leases: Vec::new(), tensors: Vec::with_capacity(3) }.give_back();
            Gathered::default().give_back();
            assert_eq!(Gathered::take().tensors.capacity(), 3, "a message without tensors takes none away");
        })
        .join()
        .expect("no panic");
    }

    #[test]
    fn the_largest_bodies_keep_nothing() {
        std::thread::spawn(|| {
            assert_eq!(kept_after(0, MOST), MOST);
            assert_eq!(kept_after(MOST + 1, MOST + 1), 0);
            assert_eq!(Use::Encoded.take().capacity(), 0, "each use has its own");
        })
        .join()
        .expect("no panic");
    }
}
