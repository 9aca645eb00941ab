//! A doorbell between the threads of one process: an eventfd that never blocks the ringer.
//!
//! It must not leave the process: a process that shares the open file can fill it and make it block. Between
//! processes use [`Bell`](super::Bell).

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use super::Private;

/// A nonblocking, close-on-exec eventfd. Rings add up until drained; a ring is never lost.
#[derive(Debug)]
pub struct EventFd {
    fd: Private,
}

impl EventFd {
    /// Creates a silent doorbell.
    pub fn create() -> io::Result<Self> {
        Ok(EventFd { fd: Private::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?) })
    }

    /// Makes it readable. Never blocks: a full counter counts as rung already.
    pub fn ring(&self) -> io::Result<()> {
        loop {
            match rustix::io::write(&self.fd, &1u64.to_ne_bytes()) {
                Ok(_) | Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Makes it silent, and returns whether it had been rung. Never blocks.
    pub fn drain(&self) -> io::Result<bool> {
        loop {
            match rustix::io::read(&self.fd, &mut [0; 8]) {
                Ok(_) => return Ok(true),
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_add_up_until_drained() {
        let bell = EventFd::create().unwrap();
        assert!(!bell.drain().unwrap());
        let other = &bell;
        other.ring().unwrap();
        other.ring().unwrap();
        assert!(bell.drain().unwrap());
        assert!(!bell.drain().unwrap());
    }

    #[test]
    fn a_full_counter_does_not_block() {
        let bell = EventFd::create().unwrap();
        rustix::io::write(&bell, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        bell.ring().unwrap();
        assert!(bell.drain().unwrap());
    }
}
