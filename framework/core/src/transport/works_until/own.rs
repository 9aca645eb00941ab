//! The page as the gateway writes it and its node passes it on.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{BYTES, MAGIC, MOMENT_AT, WorksUntil};
use crate::os::{InForks, Mapping, Memfd, memfd};

impl WorksUntil {
    /// Makes the gateway's own page, which no other process can map writable. Its moment counts as passed
    /// until it is [moved](Self::set).
    pub(crate) fn create() -> io::Result<Arc<Self>> {
        let memfd = Memfd::create("tensorpost-works-until", BYTES as u64)?;
        let mapping = Mapping::map_own(memfd.as_fd(), BYTES, InForks::ReadOnly)?;
        if let Some(word) = mapping.word64(0) {
            word.store(MAGIC, Ordering::Release);
        }
        memfd.seal_future_write()?;
        Ok(Arc::new(WorksUntil { mapping, fd: memfd.into_fd() }))
    }

    /// Returns a read-only descriptor of it.
    ///
    /// # Errors
    /// The error of `open`.
    pub(crate) fn export(&self) -> io::Result<OwnedFd> {
        memfd::read_only_fd(self.fd.as_fd())
    }

    /// Moves the moment to this time after the machine's start. Does nothing on a page that this process does
    /// not write.
    pub(crate) fn set(&self, until: Duration) {
        let nanoseconds = u64::try_from(until.as_nanos()).unwrap_or(u64::MAX);
        if let Some(word) = self.mapping.word64(MOMENT_AT) {
            word.store(nanoseconds, Ordering::Release);
        }
    }
}

#[cfg(feature = "hosts")]
const LAST_AT: usize = 128;

/// The last number that was given to a host.
#[cfg(feature = "hosts")]
impl WorksUntil {
    /// Notes the last number that was given to a host, before that host hears it.
    pub(crate) fn set_last(&self, number: u16) {
        if let Some(word) = self.mapping.word64(LAST_AT) {
            word.store(number.into(), Ordering::Release);
        }
    }

    /// Returns the last number that was given to a host.
    pub(crate) fn last(&self) -> u16 {
        self.mapping.watch64(LAST_AT).and_then(|word| u16::try_from(word.load()).ok()).unwrap_or(u16::MAX)
    }
}
