//! A doorbell: an eventfd that never blocks whoever rings it.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

/// A nonblocking, close-on-exec eventfd. Rings add up until drained; a ring is never lost.
#[derive(Debug)]
pub struct EventFd {
    fd: OwnedFd,
}

impl EventFd {
    /// A silent one.
    pub fn create() -> io::Result<Self> {
        Ok(EventFd { fd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)? })
    }

    /// One that a peer sent.
    ///
    /// # Errors
    /// `InvalidData` where it is not an eventfd: ringing a pipe or a file would block or write to it (WIRE-1).
    pub fn from_fd(fd: OwnedFd) -> io::Result<Self> {
        let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))?;
        if !link.as_os_str().as_encoded_bytes().ends_with(b"[eventfd]") {
            let message = format!("the descriptor a peer sent as an eventfd is {}", link.display());
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        let flags = fcntl_getfl(&fd)?;
        if !flags.contains(OFlags::NONBLOCK) {
            fcntl_setfl(&fd, flags | OFlags::NONBLOCK)?;
        }
        Ok(EventFd { fd })
    }

    /// Makes it readable. Never blocks: a full counter is rung already.
    pub fn ring(&self) -> io::Result<()> {
        loop {
            match rustix::io::write(&self.fd, &1u64.to_ne_bytes()) {
                Ok(_) | Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Makes it silent; says whether it had been rung. Never blocks.
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

    /// Another descriptor of the same doorbell.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(EventFd { fd: self.fd.try_clone()? })
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for EventFd {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.fd.as_raw_fd()
    }
}

impl From<EventFd> for OwnedFd {
    fn from(event: EventFd) -> OwnedFd {
        event.fd
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_add_up_until_drained() {
        let bell = EventFd::create().unwrap();
        assert!(!bell.drain().unwrap());
        let other = EventFd::from_fd(bell.try_clone().unwrap().into()).unwrap();
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

    #[test]
    fn something_else_is_refused() {
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        assert_eq!(EventFd::from_fd(file.into()).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
