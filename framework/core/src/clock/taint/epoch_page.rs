//! The epoch page. On it the node says up to which round every process must know the taints, how many
//! processes there are, and which of them is the gateway to other hosts. The node writes it, and all others
//! map it read-only (ONE-WRITER).

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::ids::ProcessId;
use crate::os::{Access, BadMemfd, InForks, Mapping, Memfd, memfd};

const MAGIC: u64 = u64::from_le_bytes(*b"TPEPOCH1");
const ROUND_AT: usize = 64;
const PROCESSES_AT: usize = 128;
/// Holds one more than the bits of a process's id.
const GATEWAY_AT: usize = 136;
const BYTES: usize = 4096;

/// See the module.
#[derive(Debug)]
pub struct EpochPage {
    mapping: Mapping,
    fd: OwnedFd,
}

/// The reason why a descriptor is no epoch page (WIRE-1).
#[derive(Debug, thiserror::Error)]
pub enum BadEpochPage {
    /// Not the sealed memory that it has to be.
    #[error("the descriptor is no epoch page")]
    Memory(#[from] BadMemfd),
    /// The header has another value.
    #[error("the memory is no epoch page of this build: it begins with {0:#x}")]
    Header(u64),
    /// It could not be mapped.
    #[error("could not map an epoch page")]
    Os(#[from] io::Error),
}

impl EpochPage {
    /// Creates the node's own page, which nobody else can map writable.
    ///
    /// # Errors
    /// No memory or descriptor is left.
    pub fn create() -> io::Result<Arc<Self>> {
        let memfd = Memfd::create("tensorpost-epoch", BYTES as u64)?;
        let mapping = Mapping::map_own(memfd.as_fd(), BYTES, InForks::ReadOnly)?;
        if let Some(word) = mapping.word64(0) {
            word.store(MAGIC, Ordering::Release);
        }
        memfd.seal_future_write()?;
        Ok(Arc::new(EpochPage { mapping, fd: memfd.into_fd() }))
    }

    /// Maps the node's page, read-only, after checking it (WIRE-1).
    ///
    /// # Errors
    /// It is no epoch page.
    pub fn open(fd: OwnedFd) -> Result<Arc<Self>, BadEpochPage> {
        memfd::check_one_writer(fd.as_fd(), BYTES as u64)?;
        let mapping = Mapping::map(fd.as_fd(), BYTES, Access::ReadOnly)?;
        match mapping.watch64(0).map_or(0, |word| word.load()) {
            MAGIC => Ok(Arc::new(EpochPage { mapping, fd })),
            other => Err(BadEpochPage::Header(other)),
        }
    }

    /// Returns a read-only descriptor of it.
    ///
    /// # Errors
    /// The errors of `open`.
    pub fn export(&self) -> io::Result<OwnedFd> {
        memfd::read_only_fd(self.fd.as_fd())
    }

    /// Returns the round that a process must know before it believes a clock.
    #[inline]
    pub fn round(&self) -> u64 {
        // EPOCH-ACQUIRE: pairs with the release in `raise`.
        self.mapping.watch64(ROUND_AT).map_or(0, |word| word.load())
    }

    /// Returns how many processes the node has, itself included; 0 where it has not said. It only serves to
    /// guess how many processes share the cores.
    pub fn processes(&self) -> usize {
        self.mapping.watch64(PROCESSES_AT).map_or(0, |word| word.load() as usize)
    }

    /// Sets the number of processes; on an epoch page that this process does not write, nothing happens.
    pub fn set_processes(&self, count: usize) {
        if let Some(word) = self.mapping.word64(PROCESSES_AT) {
            word.store(count as u64, Ordering::Relaxed);
        }
    }

    /// Returns the process that passes on the messages from other hosts, if there is one.
    pub fn gateway(&self) -> Option<ProcessId> {
        let word = self.mapping.watch64(GATEWAY_AT).map_or(0, |word| word.load());
        word.checked_sub(1).and_then(ProcessId::from_bits)
    }

    /// Sets the gateway; on an epoch page that this process does not write, nothing happens.
    #[cfg_attr(not(feature = "hosts"), allow(dead_code, reason = "without other hosts there is none"))]
    pub fn set_gateway(&self, gateway: ProcessId) {
        if let Some(word) = self.mapping.word64(GATEWAY_AT) {
            word.store(gateway.to_bits() + 1, Ordering::Relaxed);
        }
    }

    /// Raises the round; on an epoch page that this process does not write, nothing happens. The node does
    /// this before it releases anything.
    pub fn raise(&self, round: u64) {
        if let Some(word) = self.mapping.word64(ROUND_AT) {
            word.store(round, Ordering::Release); // EPOCH-RELEASE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_read_it_and_cannot_write_it() {
        let node = EpochPage::create().unwrap();
        let worker = EpochPage::open(node.export().unwrap()).unwrap();
        node.raise(3);
        worker.raise(9);
        assert_eq!((node.round(), worker.round()), (3, 3));
        node.set_processes(5);
        worker.set_processes(9);
        assert_eq!((node.processes(), worker.processes()), (5, 5));
        let [gateway, other] = [1, 2].map(|slot| ProcessId::new(slot, 7).unwrap());
        assert_eq!((node.gateway(), worker.gateway()), (None, None));
        node.set_gateway(gateway);
        worker.set_gateway(other);
        assert_eq!((node.gateway(), worker.gateway()), (Some(gateway), Some(gateway)));
        let blank = Memfd::create("blank", BYTES as u64).unwrap();
        blank.seal_future_write().unwrap();
        assert!(matches!(EpochPage::open(blank.into_fd()), Err(BadEpochPage::Header(0))));
    }
}
