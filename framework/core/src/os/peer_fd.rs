//! Descriptors that another process sent, and ways to close them without waiting for that process.
//!
//! Closing the last descriptor of a file can block: a TCP socket with a linger time waits until the other end
//! has read, a file of a FUSE mount until its daemon has answered. A malicious process of the node could send
//! such a descriptor where a page or a chunk is expected. So a descriptor that came from a peer is closed on
//! the spot only where its kind is known to close at once, and otherwise by a thread of its own.
//!
//! The node accepts only memory and local sockets, which close at once. Only the driver can tell whether a
//! file is a GPU's chunk, so a thread of its own closes such files.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::fcntl_get_seals;
use rustix::net::AddressFamily;
use rustix::net::sockopt::socket_domain;

/// A descriptor from a peer. Dropping it never waits.
#[derive(Debug)]
pub struct PeerFd(Option<OwnedFd>);

impl From<OwnedFd> for PeerFd {
    fn from(fd: OwnedFd) -> Self {
        PeerFd(Some(fd))
    }
}

impl PeerFd {
    /// Returns another descriptor of the same file.
    pub fn try_clone(&self) -> std::io::Result<OwnedFd> {
        self.0.as_ref().ok_or(std::io::ErrorKind::NotFound)?.try_clone()
    }

    /// Returns the descriptor, which exists until this is dropped.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.as_ref().map(AsFd::as_fd)
    }
}

impl Drop for PeerFd {
    fn drop(&mut self) {
        close(self.0.take());
    }
}

/// Returns whether closing it never waits: it is memory, or a local socket. The kernel alone answers both
/// questions, whereas asking for the attributes of a file would ask its file system.
pub fn closes_at_once(fd: BorrowedFd<'_>) -> bool {
    fcntl_get_seals(fd).is_ok() || matches!(socket_domain(fd), Ok(AddressFamily::UNIX))
}

/// Returns whether it is a socket that listens, which closes at once too.
#[cfg(feature = "hosts")]
pub fn listens(fd: BorrowedFd<'_>) -> bool {
    matches!(rustix::net::sockopt::socket_acceptconn(fd), Ok(true))
}

/// Closes descriptors from a peer. Never waits.
pub fn close(fds: impl IntoIterator<Item = OwnedFd>) {
    let slow: Vec<_> = fds.into_iter().filter(|fd| !closes_at_once(fd.as_fd())).collect();
    if !slow.is_empty() {
        drop_on_own_thread(slow);
    }
}

/// Drops `held` on a thread of its own, because the drop may wait for another process: `held` is a
/// descriptor, or a socket in which descriptors may lie unread. Where the system has no thread to give,
/// `held` is leaked: a leak costs less than a node that hangs.
pub fn drop_on_own_thread<T: Send + 'static>(held: T) {
    // If no thread starts, the closure is dropped; so keep `held` out of the closure until the thread runs.
    let (give, take) = std::sync::mpsc::sync_channel(1);
    let thread = std::thread::Builder::new().name("tp-close".to_owned()).spawn(move || drop(take.recv()));
    match thread {
        Ok(_) => {
            if let Err(back) = give.send(held) {
                std::mem::forget(back);
            }
        }
        Err(error) => {
            tracing::error!(%error, "no thread to close a descriptor of another process with; it stays open");
            std::mem::forget(held);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::time::{Duration, Instant};

    use rustix::net::sockopt::set_socket_linger;

    use super::*;
    use crate::os::Memfd;

    /// Returns a socket whose close waits, because nobody reads the sent bytes, and the end that does not
    /// read.
    fn lingering() -> (OwnedFd, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut writer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let reader = listener.accept().unwrap().0;
        set_socket_linger(&writer, Some(Duration::from_secs(60))).unwrap();
        writer.set_nonblocking(true).unwrap();
        while writer.write(&[0; 1 << 16]).is_ok() {}
        writer.set_nonblocking(false).unwrap();
        (writer.into(), reader)
    }

    #[test]
    fn a_descriptor_that_closes_slowly_keeps_nobody() {
        let (first, _reads_nothing) = lingering();
        let (second, _nor_does_this) = lingering();
        let began = Instant::now();
        close([first]);
        drop(PeerFd::from(second));
        assert!(began.elapsed() < Duration::from_secs(10), "it waited for {:?}", began.elapsed());
    }

    #[test]
    fn what_closes_at_once_is_closed_at_once() {
        let memory = Memfd::create("test", 4096).unwrap().into_fd();
        let (one, other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(closes_at_once(memory.as_fd()) && closes_at_once(one.as_fd()));
        close([one.into()]);
        assert_eq!(std::io::Read::read(&mut &other, &mut [0]).unwrap(), 0, "it is closed already");
        assert!(!closes_at_once(std::fs::File::open("/proc/self/exe").unwrap().as_fd()));
        assert!(!closes_at_once(std::net::UdpSocket::bind("127.0.0.1:0").unwrap().as_fd()));
    }
}
