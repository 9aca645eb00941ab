//! Sockets that keep packets whole and carry descriptors.
//!
//! When the other end is closed or its process dies, `recv` first gives the packets that were already sent
//! and then a packet of length 0; `send` fails with `BrokenPipe` and raises no signal. A packet or a set of
//! descriptors that does not fit is an error, and every descriptor that arrived with it is closed: nothing is
//! ever truncated silently.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::io::Errno;
use rustix::net::sockopt::{set_socket_send_buffer_size, socket_send_buffer_size, socket_type};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

use super::Private;
use crate::limits::{MAX_PACKET, MAX_PACKET_FDS};

/// Room for the descriptors of one packet.
const CONTROL_BYTES: usize = rustix::cmsg_space!(ScmRights(MAX_PACKET_FDS));

/// One end of a connected pair. Close-on-exec.
#[derive(Debug)]
pub struct Seqpacket {
    fd: Private,
}

/// A packet that arrived; its bytes are in the caller's buffer.
#[derive(Debug)]
pub struct ReceivedPacket {
    /// Length of the packet in bytes; 0 says that the other end is closed.
    pub len: usize,
    /// The descriptors that came with it, in the order they were sent, close-on-exec.
    pub fds: Vec<OwnedFd>,
    /// Whether descriptors were lost, because this process has no room for more open files: `fds` is empty
    /// although some were sent.
    pub starved: bool,
}

impl ReceivedPacket {
    /// Returns whether nothing will come any more.
    pub fn is_closed(&self) -> bool {
        self.len == 0
    }
}

impl Seqpacket {
    /// Creates two ends, connected to each other and to nothing in the file system.
    pub fn pair() -> io::Result<(Self, Self)> {
        let (a, b) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok((Self::with_room(a)?, Self::with_room(b)?))
    }

    /// Takes over an end that was inherited or received.
    ///
    /// # Errors
    /// `InvalidData` where it is not a socket of this kind.
    pub fn from_fd(fd: OwnedFd) -> io::Result<Self> {
        let kind = socket_type(&fd).map_err(io::Error::from);
        if !matches!(kind, Ok(SocketType::SEQPACKET)) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the descriptor is not a seqpacket socket",
            ));
        }
        Self::with_room(fd)
    }

    /// Enlarges the send buffer to hold a few packets, where the system's default is smaller. A packet that
    /// does not fit into the buffer can never be sent.
    fn with_room(fd: OwnedFd) -> io::Result<Self> {
        let wanted = 4 * MAX_PACKET;
        if socket_send_buffer_size(&fd)? < wanted {
            set_socket_send_buffer_size(&fd, wanted)?;
        }
        Ok(Seqpacket { fd: Private::new(fd) })
    }

    /// Sends one packet with its descriptors, which stay open here; waits for room.
    ///
    /// # Errors
    /// `InvalidInput` for an empty packet (it would read as the end) or one over `MAX_PACKET` bytes or
    /// `MAX_PACKET_FDS` descriptors, `BrokenPipe` where the other end is gone.
    pub fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.send_with(bytes, fds, SendFlags::NOSIGNAL)
    }

    /// As [`send`](Self::send), but `WouldBlock` where there is no room; nothing was sent then.
    pub fn try_send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.send_with(bytes, fds, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
    }

    /// Waits for one packet and puts its bytes into `buffer`, which then holds them and nothing else.
    ///
    /// # Errors
    /// `InvalidData` for a packet or descriptors over the limits; the packet is lost and its descriptors are
    /// closed. `ConnectionReset` where the other end died with packets of ours unread.
    pub fn recv(&self, buffer: &mut Vec<u8>) -> io::Result<ReceivedPacket> {
        self.recv_with(buffer, RecvFlags::CMSG_CLOEXEC)
    }

    /// As [`recv`](Self::recv), but `WouldBlock` where nothing is there.
    pub fn try_recv(&self, buffer: &mut Vec<u8>) -> io::Result<ReceivedPacket> {
        self.recv_with(buffer, RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT)
    }

    /// Receives like [`try_recv`](Self::try_recv), into the beginning of `buffer`, and does not touch the
    /// bytes behind the packet: for callers that receive many packets. A packet that is longer than `buffer`
    /// is over the limits.
    pub(crate) fn try_recv_into(&self, buffer: &mut [u8]) -> io::Result<ReceivedPacket> {
        self.recv_into(buffer, RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT)
    }

    /// Returns another descriptor of the same end.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Seqpacket { fd: Private::new(self.fd.try_clone()?) })
    }

    fn send_with(&self, bytes: &[u8], fds: &[BorrowedFd<'_>], flags: SendFlags) -> io::Result<()> {
        if bytes.is_empty() || bytes.len() > MAX_PACKET || fds.len() > MAX_PACKET_FDS {
            let message = format!(
                "a packet carries 1 to {MAX_PACKET} bytes and at most {MAX_PACKET_FDS} descriptors, not {} and {}",
                bytes.len(),
                fds.len()
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "no room for the descriptors of a packet",
            ));
        }
        loop {
            match sendmsg(&self.fd, &[IoSlice::new(bytes)], &mut control, flags) {
                Ok(_) => return Ok(()), // a packet goes whole or not at all
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn recv_with(&self, buffer: &mut Vec<u8>, flags: RecvFlags) -> io::Result<ReceivedPacket> {
        buffer.resize(MAX_PACKET, 0);
        let received = self.recv_into(buffer, flags);
        buffer.truncate(received.as_ref().map_or(0, |packet| packet.len));
        received
    }

    fn recv_into(&self, buffer: &mut [u8], flags: RecvFlags) -> io::Result<ReceivedPacket> {
        let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = loop {
            match recvmsg(&self.fd, &mut [IoSliceMut::new(buffer)], &mut control, flags) {
                Err(Errno::INTR) => {}
                other => break other?,
            }
        };
        let mut fds = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights);
            }
        }
        let cut = received.flags.contains(ReturnFlags::CTRUNC);
        if cut && !received.flags.contains(ReturnFlags::TRUNC) && fds.len() < MAX_PACKET_FDS {
            // The control buffer had room for more descriptors, so this process may not open any more files;
            // the sender is not at fault.
            super::peer_fd::close(fds);
            return Ok(ReceivedPacket { len: received.bytes, fds: Vec::new(), starved: true });
        }
        if cut || received.flags.contains(ReturnFlags::TRUNC) {
            super::peer_fd::close(fds);
            let message = format!("a packet of over {MAX_PACKET} bytes or {MAX_PACKET_FDS} descriptors came");
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        Ok(ReceivedPacket { len: received.bytes, fds, starved: false })
    }
}

impl AsFd for Seqpacket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for Seqpacket {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl From<Seqpacket> for OwnedFd {
    fn from(socket: Seqpacket) -> OwnedFd {
        socket.fd.into_inner()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::{EventFd, Memfd};

    #[test]
    fn packets_stay_whole_and_carry_descriptors() {
        let (a, b) = Seqpacket::pair().unwrap();
        let bell = EventFd::create().unwrap();
        let memfd = Memfd::create("test", 4096).unwrap();
        a.send(b"first", &[bell.as_fd(), memfd.as_fd()]).unwrap();
        a.send(b"second, longer", &[]).unwrap();
        let mut buffer = Vec::new();
        let first = b.recv(&mut buffer).unwrap();
        assert_eq!((&buffer[..], first.len, first.fds.len()), (&b"first"[..], 5, 2));
        for fd in &first.fds {
            let flags = rustix::io::fcntl_getfd(fd).unwrap();
            assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        }
        let mut fds = first.fds.into_iter();
        rustix::io::write(fds.next().unwrap(), &1_u64.to_ne_bytes()).unwrap();
        assert!(bell.drain().unwrap());
        crate::os::memfd::check(fds.next().unwrap().as_fd(), 4096).unwrap();
        assert!(b.recv(&mut buffer).unwrap().fds.is_empty());
        assert_eq!(buffer, b"second, longer");
        assert_eq!(b.try_recv(&mut buffer).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn the_largest_packet_passes_and_a_larger_one_is_refused() {
        let (a, b) = Seqpacket::pair().unwrap();
        let bell = EventFd::create().unwrap();
        let bytes: Vec<u8> = (0..MAX_PACKET).map(|i| i as u8).collect();
        a.send(&bytes, &[bell.as_fd(); MAX_PACKET_FDS]).unwrap();
        let mut buffer = Vec::new();
        assert_eq!(b.recv(&mut buffer).unwrap().fds.len(), MAX_PACKET_FDS);
        assert_eq!(buffer, bytes);
        assert!(a.send(&vec![0; MAX_PACKET + 1], &[]).is_err());
        assert!(a.send(b"x", &[bell.as_fd(); MAX_PACKET_FDS + 1]).is_err());
        assert!(a.send(b"", &[]).is_err());
    }

    #[test]
    fn a_peer_that_breaks_the_limits_is_an_error_and_not_a_cut_packet() {
        let (a, b) = Seqpacket::pair().unwrap();
        let mut buffer = Vec::new();
        rustix::net::send(&a, &vec![1; MAX_PACKET + 1], SendFlags::empty()).unwrap();
        assert_eq!(b.recv(&mut buffer).unwrap_err().kind(), io::ErrorKind::InvalidData);
        let bell = EventFd::create().unwrap();
        let many = [bell.as_fd(); MAX_PACKET_FDS + 8];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_PACKET_FDS + 8))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&many)));
        sendmsg(&a, &[IoSlice::new(b"x")], &mut control, SendFlags::empty()).unwrap();
        assert_eq!(b.recv(&mut buffer).unwrap_err().kind(), io::ErrorKind::InvalidData);
        a.send(b"and on", &[]).unwrap();
        b.recv(&mut buffer).unwrap();
        assert_eq!(buffer, b"and on");
    }

    #[test]
    fn a_closed_end_gives_what_was_sent_and_then_the_end() {
        let (a, b) = Seqpacket::pair().unwrap();
        a.send(b"last words", &[]).unwrap();
        drop(a);
        let mut buffer = Vec::new();
        assert_eq!(b.recv(&mut buffer).unwrap().len, 10);
        assert!(b.recv(&mut buffer).unwrap().is_closed());
        assert_eq!(b.send(b"x", &[]).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn a_full_socket_gives_the_packet_back() {
        let (a, b) = Seqpacket::pair().unwrap();
        let packet = vec![0; MAX_PACKET];
        let refused = (0..100_000).find_map(|_| a.try_send(&packet, &[]).err()).unwrap();
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        let mut buffer = Vec::new();
        while b.try_recv(&mut buffer).is_ok() {}
        a.try_send(&packet, &[]).unwrap();
        let other = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(Seqpacket::from_fd(other.into()).is_err());
        Seqpacket::from_fd(b.into()).unwrap();
    }
}
