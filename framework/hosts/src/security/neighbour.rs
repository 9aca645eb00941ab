//! Finds the user of the process of this machine at the other end of a connection.
//!
//! Without a key, only the user tells a node's own hosts from others (HOST-12). The kernel is asked for the
//! [one socket](sock_diag), as by `ss`; if it does not know, its whole table is read. A socket that no
//! process has any more has no user there, and is not believed.

use std::io;
use std::net::{IpAddr, SocketAddr};

use super::{SecurityError, sock_diag};

/// States of a socket, as the kernel numbers them.
const ESTABLISHED: u8 = 1;
const LISTEN: u8 = 10;

/// Returns the user of the process that has connected from `from` to `to`, if a process of the user `own` may
/// serve it.
pub(super) fn connected(from: SocketAddr, to: SocketAddr, own: u32) -> Result<u32, SecurityError> {
    let is_it = |socket: &Socket| socket.is(from) && socket.other == canonical(to);
    allowed(from, user(from, to, ESTABLISHED, is_it), own)
}

/// Returns the user of the process that listens at `at`, if a process of the user `own` may believe it.
pub(super) fn listening(at: SocketAddr, own: u32) -> Result<u32, SecurityError> {
    // While one process listens at a port, the kernel lets no other listen at this address.
    let is_it = |socket: &Socket| socket.is(at) || socket.own.0.is_unspecified() && socket.own.1 == at.port();
    let nobody = match at {
        SocketAddr::V4(_) => SocketAddr::from(([0; 4], 0)),
        SocketAddr::V6(_) => SocketAddr::from(([0_u16; 8], 0)),
    };
    allowed(at, user(at, nobody, LISTEN, is_it), own)
}

fn allowed(other: SocketAddr, user: io::Result<Option<u32>>, own: u32) -> Result<u32, SecurityError> {
    match user {
        // Root can do to any user's process whatever its node can.
        Ok(Some(user)) if user == own || user == 0 => Ok(user),
        Ok(Some(user)) => Err(SecurityError::OtherUser { address: other, user, own }),
        Ok(None) => Err(SecurityError::NoUser { address: other, why: "it has no process".to_owned() }),
        Err(error) => Err(SecurityError::NoUser { address: other, why: error.to_string() }),
    }
}

/// Returns the user of the socket at `own` in this state whose other end is `other`; `is_it` finds it in the
/// table.
fn user(
    own: SocketAddr,
    other: SocketAddr,
    state: u8,
    is_it: impl Fn(&Socket) -> bool,
) -> io::Result<Option<u32>> {
    match sock_diag::find(own, other) {
        Ok(Some(found)) => Ok((found.state == state && found.inode != 0).then_some(found.user)),
        // A kernel without this facility, and a filter of system calls, say the same.
        Ok(None) | Err(_) => in_table(|socket| socket.state == state && is_it(socket)),
    }
}

/// Returns the user of the first matching socket in the table.
fn in_table(is_it: impl Fn(&Socket) -> bool) -> io::Result<Option<u32>> {
    for path in ["/proc/net/tcp", "/proc/net/tcp6"] {
        let table = match std::fs::read_to_string(path) {
            // The system has no IPv6.
            Err(error) if error.kind() == io::ErrorKind::NotFound && path.ends_with('6') => continue,
            table => table.map_err(|error| io::Error::new(error.kind(), format!("{path}: {error}")))?,
        };
        if let Some(socket) = table.lines().filter_map(Socket::parse).find(&is_it) {
            return Ok(Some(socket.user));
        }
    }
    Ok(None)
}

/// A line of the kernel's table.
struct Socket {
    own: (IpAddr, u16),
    other: (IpAddr, u16),
    state: u8,
    user: u32,
}

impl Socket {
    /// Parses `sl local_address rem_address st tx_queue:rx_queue tr:tm->when retrnsmt uid timeout inode ..`.
    /// `None` for a socket without a process, which the table shows as root's.
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace().skip(1);
        let (own, other, state) = (address(words.next()?)?, address(words.next()?)?, words.next()?);
        let state = u8::from_str_radix(state, 16).ok()?;
        let (user, inode) = (words.nth(3)?.parse().ok()?, words.nth(1)?);
        (inode != "0").then_some(Socket { own, other, state, user })
    }

    fn is(&self, own: SocketAddr) -> bool {
        self.own == canonical(own)
    }
}

fn canonical(address: SocketAddr) -> (IpAddr, u16) {
    (address.ip().to_canonical(), address.port())
}

/// Parses 32-bit words, each in this machine's byte order and together in network order, and the port:
/// `0100007F:1BCD`.
fn address(text: &str) -> Option<(IpAddr, u16)> {
    let (words, port) = text.split_once(':')?;
    let word = |at: usize| u32::from_str_radix(words.get(at * 8..at * 8 + 8)?, 16).ok().map(u32::to_ne_bytes);
    let ip = match words.len() {
        8 => IpAddr::from(word(0)?),
        32 => {
            let bytes: [[u8; 4]; 4] = [word(0)?, word(1)?, word(2)?, word(3)?];
            IpAddr::from(<[u8; 16]>::try_from(bytes.as_flattened()).ok()?)
        }
        _ => return None,
    };
    Some((ip.to_canonical(), u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use rustix::process::geteuid;

    use super::*;

    #[test]
    fn lines_of_the_table_are_read() {
        let line = |text: &str| Socket::parse(text).map(|socket| (socket.own, socket.other, socket.user));
        let at = |text: &str| canonical(text.parse().expect("an address"));
        let rest =
            "00000000:00000000 00:00000000 00000000  1000        0 21742 1 0000000088652bf5 100 0 0 10 0";
        if cfg!(target_endian = "little") {
            let four = line(&format!("   0: 0100007F:1BCD 0200007F:0050 01 {rest}"));
            assert_eq!(four, Some((at("127.0.0.1:7117"), at("127.0.0.2:80"), 1000)));
            let six = "00000000000000000000000001000000:1BCD 0000000000000000FFFF00000100007F:0050";
            assert_eq!(
                line(&format!("   0: {six} 01 {rest}")),
                Some((at("[::1]:7117"), at("127.0.0.1:80"), 1000))
            );
        }
        // Its process has closed it: the user that is shown is not the socket's own.
        let orphan =
            "00000000:00000000 00:00000000 00000000     0        0 0 1 0000000088652bf5 100 0 0 10 0";
        assert_eq!(line(&format!("   0: 0100007F:1BCD 0200007F:0050 01 {orphan}")), None);
        for garbage in [
            "",
            "  sl  local_address rem_address   st",
            "0: 1:2 3:4 01",
            "0: zz00007F:1BCD 0200007F:0050 01 x",
        ] {
            assert_eq!(line(garbage), None, "{garbage}");
        }
    }

    #[test]
    fn own_sockets_are_of_this_user_and_others_are_nobodys() {
        let own = geteuid().as_raw();
        for at in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(at) else { continue };
            let at = listener.local_addr().expect("an address");
            assert_eq!(listening(at, own).expect("it listens"), own);
            let client = TcpStream::connect(at).expect("it listens");
            let from = client.local_addr().expect("an address");
            assert_eq!(connected(from, at, own).expect("it has connected"), own);
            // The connection is not accepted yet, so no process has that end.
            assert!(matches!(connected(at, from, own), Err(SecurityError::NoUser { .. })));
            let (server, _) = listener.accept().expect("a connection");
            assert_eq!(connected(at, from, own).expect("it was taken"), own);
            drop(client);
            assert!(matches!(connected(from, at, own), Err(SecurityError::NoUser { .. })), "it was closed");
            drop((server, listener));
            assert!(matches!(listening(at, own), Err(SecurityError::NoUser { .. })));
        }
        // Either way to ask says the same.
        let listener =
            TcpListener::bind("[::]:0").or_else(|_| TcpListener::bind("0.0.0.0:0")).expect("a port");
        let at = SocketAddr::from(([127, 0, 0, 1], listener.local_addr().expect("an address").port()));
        let client = TcpStream::connect(at).expect("it listens");
        let from = client.local_addr().expect("an address");
        for (mine, other, state) in [(from, at, ESTABLISHED), (at, SocketAddr::from(([0; 4], 0)), LISTEN)] {
            let found = sock_diag::find(mine, other).expect("this kernel says it").expect("it is there");
            assert_eq!((found.state, found.user), (state, own));
            assert_ne!(found.inode, 0);
        }
        assert_eq!(
            in_table(|socket| socket.is(from) && socket.state == ESTABLISHED).expect("a table"),
            Some(own)
        );
        let everywhere = TcpListener::bind("0.0.0.0:0").expect("a port");
        let port = everywhere.local_addr().expect("an address").port();
        assert_eq!(listening(SocketAddr::from(([127, 0, 0, 1], port)), own).expect("it listens"), own);
    }

    #[test]
    fn another_user_is_named_and_root_is_believed() {
        let other: SocketAddr = "127.0.0.1:7117".parse().expect("an address");
        let refused = allowed(other, Ok(Some(1007)), 1000).expect_err("another user").to_string();
        assert!(refused.contains("user 1007") && refused.contains("TENSORPOST_KEY_FILE"), "{refused}");
        assert_eq!(allowed(other, Ok(Some(0)), 1000).expect("root"), 0);
        assert!(allowed(other, Ok(Some(1000)), 0).is_err(), "root believes nobody else");
    }
}
