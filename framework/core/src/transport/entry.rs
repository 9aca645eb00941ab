//! The entries of a return ring, by which a holder notifies an owner. An entry has 64 bytes: kind and counts,
//! the lease, tickets, checksum.
//!
//! Used by `returns`, on both sides. **Invariants.** WIRE-1: an entry is accepted only if its checksum is
//! right and each of its fields is in range. The lease table checks its claims about leases. **Locks.** None.
//! **On a crash** between the write of an entry and the move of the tail, no reader sees the entry. **On
//! cancellation** nothing happens.

use crate::clock::Ticket;
use crate::ids::{ChunkId, ProcessId};
use crate::lease::LeaseId;
use crate::limits::{MAX_RELEASE_TICKETS, MAX_STREAMS};
use crate::transport::ring::entries::Entry;
use smallvec::SmallVec;

/// The content of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// The writer gives a lease on the reader's memory back. These uses have to pass before the memory is
    /// reused.
    Release { chunk: u32, entry: u32, generation: u32, uses: SmallVec<[Ticket; 2]> },
    /// The writer holds the reader's memory now: `by`, a third process, forwarded it (LEASE-3).
    Hold { chunk: u32, entry: u32, generation: u32, by: ProcessId },
    /// The writer is about to pass the reader's memory on to this process, which will post a hold.
    Forward { chunk: u32, entry: u32, generation: u32, to: ProcessId },
    /// The writer could not read the frame that ends at this position of its inbound ring, and took none of
    /// its leases.
    Rejected { end: u64 },
    /// After this entry the ring continues in the memory that the writer has offered last
    /// (`link/renewal.rs`).
    Moved,
}

/// Why an entry was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadEntry {
    #[error("an entry of the return ring was damaged: its checksum is wrong")]
    Checksum,
    #[error("an entry of the return ring has {field} {value}, which it cannot have")]
    Field { field: &'static str, value: u64 },
}

const RELEASE: u64 = 1;
const HOLD: u64 = 2;
const REJECTED: u64 = 3;
const FORWARD: u64 = 4;
const MOVED: u64 = 5;

pub(crate) fn checksum(words: &Entry) -> u64 {
    let mut bytes = [0; 56];
    bytes.as_chunks_mut().0.iter_mut().zip(words).for_each(|(bytes, word)| *bytes = word.to_le_bytes());
    // Not zero for an entry of zeros: memory that was never written is no entry.
    u64::from(crc32c::crc32c(&bytes)) | 1 << 32
}

fn lease(kind: u64, id: LeaseId) -> Entry {
    let mut words = [0; 8];
    words[0] = kind | u64::from(id.generation) << 32;
    words[1] = u64::from(id.chunk.index) | u64::from(id.entry) << 32;
    words
}

/// Makes a release, with at most [`MAX_RELEASE_TICKETS`] of the writer's own tickets.
pub(crate) fn release(id: LeaseId, uses: &[Ticket]) -> Entry {
    let mut words = lease(RELEASE, id);
    let uses = &uses[..uses.len().min(MAX_RELEASE_TICKETS)];
    words[0] |= (uses.len() as u64) << 8;
    for (index, ticket) in uses.iter().enumerate() {
        words[2] |= u64::from(ticket.slot) << (16 * index);
        words[3 + index] = ticket.value;
    }
    words[7] = checksum(&words);
    words
}

/// Makes a hold on memory that `by` has passed on to the writer.
pub(crate) fn hold(id: LeaseId, by: ProcessId) -> Entry {
    let mut words = lease(HOLD, id);
    words[2] = by.to_bits();
    words[7] = checksum(&words);
    words
}

/// Makes the notice that a lease is passed on to `to`.
pub(crate) fn forward(id: LeaseId, to: ProcessId) -> Entry {
    let mut words = lease(FORWARD, id);
    words[2] = to.to_bits();
    words[7] = checksum(&words);
    words
}

/// Makes the notice that the frame ending at `end` was rejected.
pub(crate) fn rejected(end: u64) -> Entry {
    let mut words = [REJECTED, end, 0, 0, 0, 0, 0, 0];
    words[7] = checksum(&words);
    words
}

/// Makes the notice that the ring continues in other memory.
pub(crate) fn moved() -> Entry {
    let mut words = [MOVED, 0, 0, 0, 0, 0, 0, 0];
    words[7] = checksum(&words);
    words
}

/// Reads an entry that `writer` wrote.
pub(crate) fn parse(words: &Entry, writer: ProcessId) -> Result<Notice, BadEntry> {
    if words[7] != checksum(words) {
        return Err(BadEntry::Checksum);
    }
    let (chunk, entry) = (words[1] as u32, (words[1] >> 32) as u32);
    let generation = (words[0] >> 32) as u32;
    match words[0] & 0xff {
        RELEASE => {
            let count = (words[0] >> 8 & 0xff) as usize;
            if count > MAX_RELEASE_TICKETS {
                return Err(BadEntry::Field { field: "ticket count", value: count as u64 });
            }
            let mut uses = SmallVec::new();
            for index in 0..count {
                let slot = (words[2] >> (16 * index)) as u16;
                if usize::from(slot) >= MAX_STREAMS {
                    return Err(BadEntry::Field { field: "clock", value: u64::from(slot) });
                }
                uses.push(Ticket { process: writer, slot, value: words[3 + index] });
            }
            Ok(Notice::Release { chunk, entry, generation, uses })
        }
        HOLD => {
            let by = ProcessId::from_bits(words[2]).filter(|by| *by != writer);
            let by = by.ok_or(BadEntry::Field { field: "forwarder", value: words[2] })?;
            Ok(Notice::Hold { chunk, entry, generation, by })
        }
        FORWARD => {
            let to = ProcessId::from_bits(words[2]).filter(|to| *to != writer);
            let to = to.ok_or(BadEntry::Field { field: "receiver", value: words[2] })?;
            Ok(Notice::Forward { chunk, entry, generation, to })
        }
        REJECTED => Ok(Notice::Rejected { end: words[1] }),
        MOVED => Ok(Notice::Moved),
        other => Err(BadEntry::Field { field: "kind", value: other }),
    }
}

/// Returns the id of the lease that a notice about `owner`'s memory names.
pub(crate) fn lease_id(owner: ProcessId, chunk: u32, entry: u32, generation: u32) -> LeaseId {
    LeaseId { chunk: ChunkId { owner, index: chunk }, entry, generation }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id() -> LeaseId {
        lease_id(ProcessId::NODE, 7, 9, 11)
    }

    #[test]
    fn notices_survive_the_ring() {
        let writer = ProcessId::new(3, 1).expect("in range");
        let uses: SmallVec<[Ticket; 2]> =
            (0..4).map(|slot| Ticket { process: writer, slot, value: u64::from(slot) * 1000 }).collect();
        let parsed = parse(&release(id(), &uses), writer);
        assert_eq!(parsed, Ok(Notice::Release { chunk: 7, entry: 9, generation: 11, uses }));
        let by = ProcessId::new(5, 2).expect("in range");
        let notice = Notice::Hold { chunk: 7, entry: 9, generation: 11, by };
        assert_eq!(parse(&hold(id(), by), writer), Ok(notice));
        assert!(parse(&hold(id(), writer), writer).is_err(), "by itself");
        let to = ProcessId::new(200, 70_000).expect("in range");
        let notice = Notice::Forward { chunk: 7, entry: 9, generation: 11, to };
        assert_eq!(parse(&forward(id(), to), writer), Ok(notice));
        assert!(parse(&forward(id(), writer), writer).is_err(), "to itself");
        assert_eq!(parse(&rejected(640), writer), Ok(Notice::Rejected { end: 640 }));
        assert_eq!(parse(&moved(), writer), Ok(Notice::Moved));
    }

    #[test]
    fn every_flipped_bit_is_found() {
        for words in [
            release(id(), &[]),
            hold(id(), ProcessId::NODE),
            forward(id(), ProcessId::NODE),
            rejected(8),
            moved(),
        ] {
            for bit in 0..512 {
                let mut damaged = words;
                damaged[bit / 64] ^= 1 << (bit % 64);
                assert_eq!(parse(&damaged, ProcessId::NODE), Err(BadEntry::Checksum), "bit {bit}");
            }
        }
        assert_eq!(parse(&[0; 8], ProcessId::NODE), Err(BadEntry::Checksum));
    }
}
