//! One end of a control socket: whole messages in, whole messages out, and a bounded queue for packets that
//! do not fit yet.
//!
//! A message is cut into packets of at most [`MAX_PACKET`]; the first byte of each says whether more follow,
//! and the descriptors travel with the last. When the socket is full, packets wait in the queue, in order,
//! until [`Outgoing::flush`] finds room; so a peer that does not read never blocks anyone; it only fills the
//! queue.
//!
//! * Close: a socket whose other end is closed shows as [`Incoming::Closed`] after everything in it was read.
//! * Crash of the peer: the same, and sending fails with [`LineError::Closed`].

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use crate::limits::MAX_PACKET;
use crate::node::limits::{
    MAX_CONTROL_MESSAGE, MAX_DESCRIPTORS, MAX_QUEUED_BYTES, MAX_QUEUED_DESCRIPTORS, MAX_QUEUED_PACKETS,
};
use crate::os::Seqpacket;

const LAST: u8 = 0;
const MORE: u8 = 1;

/// Why a line cannot be used any more.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LineError {
    #[error("the other side has closed its control socket")]
    Closed,
    #[error(
        "the other side does not read its control socket: {packets} packets ({bytes} bytes, {descriptors} descriptors) wait; it is stopped, or its machine is overloaded"
    )]
    Full { packets: usize, bytes: usize, descriptors: usize },
    #[error("a packet on the control socket {0}")]
    Malformed(&'static str),
    #[error("the control socket failed: {0}")]
    Io(#[source] io::Error),
}

struct Packet {
    bytes: Vec<u8>,
    descriptors: Vec<OwnedFd>,
}

/// Whether everything was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flushed {
    /// Nothing waits.
    All,
    /// Call [`Outgoing::flush`] again when the socket is writable.
    WhenWritable,
    /// The kernel refuses descriptors for now: too many are under way in the whole system, and no event tells
    /// when that is over. Call [`Outgoing::flush`] again a little later.
    Later,
}

/// The sending half.
pub(crate) struct Outgoing {
    socket: Arc<Seqpacket>,
    queue: VecDeque<Packet>,
    bytes: usize,
    descriptors: usize,
    flushed: Flushed,
}

impl Outgoing {
    pub(crate) fn new(socket: Arc<Seqpacket>) -> Self {
        Outgoing { socket, queue: VecDeque::new(), bytes: 0, descriptors: 0, flushed: Flushed::All }
    }

    /// Returns the number of packets that wait.
    pub(crate) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Returns the number of bytes that wait.
    pub(crate) fn queued_bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the result of the last send or flush.
    pub(crate) fn flushed(&self) -> Flushed {
        self.flushed
    }

    /// Sends `message`, and queues the packets that find no room in the socket. Never waits.
    pub(crate) fn send(&mut self, message: &[u8], descriptors: Vec<OwnedFd>) -> Result<Flushed, LineError> {
        debug_assert!(message.len() <= MAX_CONTROL_MESSAGE && descriptors.len() <= MAX_DESCRIPTORS);
        if self.bytes + message.len() > MAX_QUEUED_BYTES
            || self.queue.len() >= MAX_QUEUED_PACKETS
            || self.descriptors + descriptors.len() > MAX_QUEUED_DESCRIPTORS
        {
            return Err(LineError::Full {
                packets: self.queue.len(),
                bytes: self.bytes,
                descriptors: self.descriptors,
            });
        }
        let mut parts = message.chunks(MAX_PACKET - 1).peekable();
        let mut descriptors = Some(descriptors);
        while let Some(part) = parts.next() {
            let last = parts.peek().is_none();
            let mut bytes = Vec::with_capacity(part.len() + 1);
            bytes.push(if last { LAST } else { MORE });
            bytes.extend_from_slice(part);
            let descriptors = if last { descriptors.take().unwrap_or_default() } else { Vec::new() };
            self.bytes += bytes.len();
            self.descriptors += descriptors.len();
            self.queue.push_back(Packet { bytes, descriptors });
        }
        // Packets that waited already wait for an event; do not try the socket again before it.
        if self.flushed == Flushed::All { self.flush() } else { Ok(self.flushed) }
    }

    /// Sends the packets that wait, as far as there is room.
    pub(crate) fn flush(&mut self) -> Result<Flushed, LineError> {
        self.flushed = Flushed::All;
        while let Some(packet) = self.queue.front() {
            let borrowed: Vec<_> = packet.descriptors.iter().map(AsFd::as_fd).collect();
            match self.socket.try_send(&packet.bytes, &borrowed) {
                Ok(()) => {
                    self.bytes -= packet.bytes.len();
                    self.descriptors -= packet.descriptors.len();
                    self.queue.pop_front();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.flushed = Flushed::WhenWritable;
                    break;
                }
                Err(error) => match rustix::io::Errno::from_io_error(&error) {
                    Some(rustix::io::Errno::TOOMANYREFS | rustix::io::Errno::NOBUFS) => {
                        self.flushed = Flushed::Later;
                        break;
                    }
                    Some(rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET) => {
                        return Err(LineError::Closed);
                    }
                    _ => return Err(LineError::Io(error)),
                },
            }
        }
        Ok(self.flushed)
    }
}

/// The result of [`Receiving::next`].
pub(crate) enum Incoming {
    /// A whole message. Its bytes are valid until the next call.
    Message(Vec<u8>, Vec<OwnedFd>),
    /// A message whose descriptors are lost, because this process may open no more files.
    Starved(Vec<u8>),
    /// A part of a message that is not complete. The caller counts it, so that other workers get their turn.
    Part,
    /// Nothing more for now.
    Empty,
    /// The other end is closed and everything was read.
    Closed,
}

/// The receiving half.
pub(crate) struct Receiving {
    socket: Arc<Seqpacket>,
    packet: Box<[u8]>,
    partial: Vec<u8>,
}

impl Receiving {
    pub(crate) fn new(socket: Arc<Seqpacket>) -> Self {
        Receiving { socket, packet: vec![0; MAX_PACKET].into(), partial: Vec::new() }
    }

    /// Reads the next packet, if there is one, and returns the whole message after its last packet. Never
    /// waits.
    pub(crate) fn next(&mut self) -> Result<Incoming, LineError> {
        loop {
            let received = match self.socket.try_recv_into(&mut self.packet) {
                Ok(received) => received,
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return Ok(Incoming::Empty),
                    // If a peer closed with unread data, the kernel reports that once, before the peer's own
                    // last packets.
                    io::ErrorKind::ConnectionReset => continue,
                    _ => return Err(LineError::Io(error)),
                },
            };
            // The framework sends no empty packets, so an empty one is the end.
            let Some((&kind, part)) = self.packet[..received.len].split_first() else {
                return Ok(Incoming::Closed);
            };
            if self.partial.len() + part.len() > MAX_CONTROL_MESSAGE {
                return Err(LineError::Malformed("belongs to a message over the limit"));
            }
            self.partial.extend_from_slice(part);
            match kind {
                LAST => {
                    let message = std::mem::take(&mut self.partial);
                    if received.starved {
                        return Ok(Incoming::Starved(message));
                    }
                    return Ok(Incoming::Message(message, received.fds));
                }
                MORE if received.fds.is_empty() && !received.starved && !part.is_empty() => {
                    return Ok(Incoming::Part);
                }
                MORE => {
                    return Err(LineError::Malformed(
                        "carries descriptors, or nothing, before its message's end",
                    ));
                }
                _ => return Err(LineError::Malformed("begins with an unknown byte")),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line() -> (Outgoing, Receiving) {
        let (a, b) = Seqpacket::pair().unwrap();
        (Outgoing::new(Arc::new(a)), Receiving::new(Arc::new(b)))
    }

    fn message(incoming: Incoming) -> (Vec<u8>, Vec<OwnedFd>) {
        match incoming {
            Incoming::Message(bytes, descriptors) => (bytes, descriptors),
            Incoming::Empty => panic!("empty"),
            Incoming::Closed => panic!("closed"),
            Incoming::Starved(_) => panic!("out of descriptors"),
            Incoming::Part => panic!("not whole"),
        }
    }

    #[test]
    fn a_large_message_arrives_whole_with_its_descriptors() {
        let (mut out, mut inn) = line();
        let sent: Vec<u8> = (0..1_000_000u32).map(|i| i as u8).collect();
        let (extra, _other) = Seqpacket::pair().unwrap();
        out.send(&sent, vec![extra.into()]).unwrap();
        out.send(b"after", Vec::new()).unwrap();
        let mut got = Vec::new();
        while got.len() < 2 {
            match inn.next().unwrap() {
                Incoming::Message(bytes, descriptors) => got.push((bytes, descriptors.len())),
                Incoming::Part => {}
                Incoming::Empty => {
                    out.flush().unwrap();
                }
                Incoming::Closed | Incoming::Starved(_) => panic!("closed"),
            }
        }
        assert!(got[0].0 == sent && got[0].1 == 1);
        assert_eq!((got[1].0.as_slice(), got[1].1), (b"after".as_slice(), 0));
        assert_eq!(out.queued(), 0);
    }

    // MBX-2.
    #[test]
    fn a_peer_that_does_not_read_fills_a_bounded_queue() {
        let (mut out, _inn) = line();
        let message = vec![0; 100_000];
        let error = loop {
            if let Err(error) = out.send(&message, Vec::new()) {
                break error;
            }
        };
        assert!(matches!(error, LineError::Full { .. }), "{error}");
        assert!(out.bytes <= MAX_QUEUED_BYTES + MAX_PACKET);
    }

    #[test]
    fn the_end_comes_after_everything_that_was_sent() {
        let (mut out, mut inn) = line();
        out.send(b"last words", Vec::new()).unwrap();
        drop(out);
        assert_eq!(message(inn.next().unwrap()).0, b"last words");
        assert!(matches!(inn.next().unwrap(), Incoming::Closed));
        let (mut out, inn) = line();
        drop(inn);
        assert!(matches!(out.send(b"x", Vec::new()), Err(LineError::Closed)));
    }

    #[test]
    fn what_was_sent_is_read_even_when_the_sender_left_something_unread() {
        let (a, b) = Seqpacket::pair().unwrap();
        let (a, b) = (Arc::new(a), Arc::new(b));
        Outgoing::new(b.clone()).send(b"never read", Vec::new()).unwrap();
        Outgoing::new(a.clone()).send(b"last words", Vec::new()).unwrap();
        drop(a);
        let mut inn = Receiving::new(b);
        assert_eq!(message(inn.next().unwrap()).0, b"last words");
        assert!(matches!(inn.next().unwrap(), Incoming::Closed));
    }

    // WIRE-1.
    #[test]
    fn malformed_packets_are_errors() {
        for bad in [&[9u8, 1][..], &[MORE][..]] {
            let (a, b) = Seqpacket::pair().unwrap();
            a.try_send(bad, &[]).unwrap();
            assert!(matches!(Receiving::new(Arc::new(b)).next(), Err(LineError::Malformed(_))));
        }
    }
}
