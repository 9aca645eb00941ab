//! Asks the kernel for one TCP socket of this machine, by its addresses: `sock_diag(7)`, as `ss` does.
//!
//! The answer takes microseconds. The table in `/proc/net/tcp` takes 10 ms and more to read, since the kernel
//! walks all of its hash buckets for it.

use std::io;
use std::net::{IpAddr, SocketAddr};

use rustix::io::Errno;
use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with};

/// `SOCK_DIAG_BY_FAMILY` of `linux/sock_diag.h`.
const BY_FAMILY: u16 = 20;
/// The request's flag, and the type of an answer that is an error: `linux/netlink.h`.
const REQUEST: u16 = 1;
const ERROR: u16 = 2;
/// Bytes of `nlmsghdr`, `inet_diag_sockid` and `inet_diag_msg`: `linux/inet_diag.h`.
const HEADER: usize = 16;
const SOCKET_ID: usize = 48;
const ANSWER: usize = HEADER + 4 + SOCKET_ID + 20;

/// A socket as the kernel describes it.
pub(super) struct Found {
    pub(super) state: u8,
    pub(super) user: u32,
    /// 0 where no process has the socket.
    pub(super) inode: u32,
}

/// Returns the socket at `own` that is connected to `other`, or where `other` has the port 0 the one that
/// listens at `own`. Returns none where there is no such socket; a kernel without this facility says the
/// same.
///
/// # Errors
/// The system has no such sockets, forbids them, or its answer makes no sense.
pub(super) fn find(own: SocketAddr, other: SocketAddr) -> io::Result<Option<Found>> {
    let (family, kind) = (AddressFamily::NETLINK, SocketType::DGRAM);
    let kernel = socket_with(family, kind, SocketFlags::CLOEXEC, Some(SOCK_DIAG))?;
    sendto(&kernel, &request(own, other), SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    let mut answer = [0; 256];
    // The kernel has answered when `sendto` returns.
    let (_, length) = recv(&kernel, &mut answer[..], RecvFlags::DONTWAIT)?;
    read(&answer[..length.min(answer.len())])
}

fn request(own: SocketAddr, other: SocketAddr) -> Vec<u8> {
    let ip = own.ip().to_canonical();
    let family = if ip.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let mut request = Vec::with_capacity(HEADER + 8 + SOCKET_ID);
    // nlmsghdr: length, type, flags, sequence, port of the sender.
    request.extend(((HEADER + 8 + SOCKET_ID) as u32).to_ne_bytes());
    request.extend(BY_FAMILY.to_ne_bytes());
    request.extend(REQUEST.to_ne_bytes());
    request.extend([0; 8]);
    // inet_diag_req_v2: family, protocol, extensions, padding, states (which an exact request does not look
    // at).
    request.extend([family.as_raw() as u8, libc::IPPROTO_TCP as u8, 0, 0]);
    request.extend(u32::MAX.to_ne_bytes());
    // inet_diag_sockid: ports and addresses in the order of the network, any interface, no cookie.
    request.extend(own.port().to_be_bytes());
    request.extend(other.port().to_be_bytes());
    request.extend(octets(ip));
    request.extend(octets(other.ip().to_canonical()));
    request.extend(0_u32.to_ne_bytes());
    request.extend([0xff; 8]);
    request
}

fn octets(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => {
            let mut octets = [0; 16];
            octets[..4].copy_from_slice(&ip.octets());
            octets
        }
        IpAddr::V6(ip) => ip.octets(),
    }
}

fn read(answer: &[u8]) -> io::Result<Option<Found>> {
    let word = |at: usize| answer.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes);
    let strange = || io::Error::other("the kernel's answer about a socket makes no sense");
    let kind = answer.get(4..6).ok_or_else(strange)?;
    match u16::from_ne_bytes([kind[0], kind[1]]) {
        ERROR => match word(HEADER).ok_or_else(strange)?.cast_signed() {
            error if error == -Errno::NOENT.raw_os_error() => Ok(None),
            error => Err(io::Error::from_raw_os_error(-error)),
        },
        BY_FAMILY if answer.len() >= ANSWER => {
            let (user, inode) = (word(ANSWER - 8), word(ANSWER - 4));
            let (user, inode) = user.zip(inode).ok_or_else(strange)?;
            Ok(Some(Found { state: answer[HEADER + 1], user, inode }))
        }
        _ => Err(strange()),
    }
}
