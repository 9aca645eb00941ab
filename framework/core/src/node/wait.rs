//! Waiting for descriptors.

use std::io;
use std::time::Duration;

use rustix::event::{PollFd, Timespec};
use rustix::io::Errno;

use crate::node::line::Flushed;

/// Waits until one of `fds` is ready, for at most `timeout` (`None`: no limit); a signal ends the wait early.
///
/// # Errors
/// The system cannot wait for them.
pub fn poll(fds: &mut [PollFd<'_>], timeout: Option<Duration>) -> io::Result<()> {
    // A timeout too long for the kernel is as good as none.
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    match rustix::event::poll(fds, timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Returns when to flush again although no event asks for it.
pub(crate) fn retry_after(flushed: Flushed) -> Option<Duration> {
    (flushed == Flushed::Later).then_some(Duration::from_millis(5))
}
