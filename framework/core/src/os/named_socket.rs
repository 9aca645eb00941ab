//! Packet sockets that other processes can find: by an abstract name, which vanishes when the process ends in
//! any way, or by a path with the mode 0600. Also the identity of the process at the other end.
//!
//! Only [`connect`] waits, for at most a second, where the listener's queue is full.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::Private;

/// Number of connections that the kernel keeps until they are taken.
const BACKLOG: i32 = 16;

/// The place where a socket is found.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SocketName {
    /// An abstract name, which belongs to the network namespace.
    Name(String),
    /// A path in the file system.
    Path(PathBuf),
}

impl fmt::Display for SocketName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SocketName::Name(name) => write!(f, "@{name}"),
            SocketName::Path(path) => write!(f, "{}", path.display()),
        }
    }
}

impl SocketName {
    fn address(&self) -> io::Result<SocketAddrUnix> {
        Ok(match self {
            SocketName::Name(name) => SocketAddrUnix::new_abstract_name(name.as_bytes())?,
            SocketName::Path(path) => SocketAddrUnix::new(path)?,
        })
    }
}

/// The process at the other end of a socket, as it was when it connected or began to listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its process number; `None` where it is in a process namespace that cannot be seen from here.
    pub pid: Option<u32>,
    /// Its effective user.
    pub uid: u32,
}

/// A socket that takes connections.
#[derive(Debug)]
pub struct Listener {
    fd: Private,
    /// The file to remove: where it is, its device and inode.
    file: Option<(PathBuf, u64, u64)>,
}

impl Listener {
    /// Listens at `place`. It takes over a path that an earlier process has left behind, but not one that a
    /// process listens at.
    ///
    /// # Errors
    /// `AddrInUse` where another process listens there, or the file is no socket.
    pub fn bind(place: &SocketName) -> io::Result<Self> {
        let fd = socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
        let address = place.address()?;
        let file = match place {
            SocketName::Name(_) => {
                rustix::net::bind(&fd, &address)?;
                None
            }
            SocketName::Path(path) => {
                // The file gets the mode of the socket. Setting it on the socket cannot hit a file that
                // another process put in its place.
                rustix::fs::fchmod(&fd, Mode::RUSR | Mode::WUSR)?;
                match rustix::net::bind(&fd, &address) {
                    Err(Errno::ADDRINUSE) if is_left_behind(path, rustix::process::geteuid().as_raw()) => {
                        std::fs::remove_file(path)?;
                        rustix::net::bind(&fd, &address)?;
                    }
                    other => other?,
                }
                let file = std::fs::symlink_metadata(path)?;
                Some((path.clone(), file.dev(), file.ino()))
            }
        };
        let listener = Listener { fd: Private::new(fd), file };
        rustix::net::listen(&listener.fd, BACKLOG)?;
        Ok(listener)
    }

    /// Takes a connection, if there is one.
    ///
    /// # Errors
    /// `WouldBlock` where there is none.
    pub fn accept(&self) -> io::Result<OwnedFd> {
        Ok(rustix::net::accept_with(&self.fd, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?)
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let Some((path, device, inode)) = &self.file else { return };
        // Another process may have put another file in its place.
        let is_it = |file: std::fs::Metadata| (file.dev(), file.ino()) == (*device, *inode);
        if std::fs::symlink_metadata(path).is_ok_and(is_it) {
            // If the file stays, the next listener there takes it over.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Returns whether there is a socket of the user `own` at `path` that nobody listens at.
fn is_left_behind(path: &Path, own: u32) -> bool {
    let is_ours =
        std::fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket() && file.uid() == own);
    is_ours
        && connect(&SocketName::Path(path.to_owned()))
            .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// Runs `work` as some user. Returns the result, that user, and one that has to distrust it. Root runs it as
/// `nobody`, and any other user as itself.
///
/// # Panics
/// The system refuses the other user.
#[cfg(any(test, feature = "testing"))]
pub fn by_stranger<T: Send>(work: impl FnOnce() -> T + Send) -> (T, u32, u32) {
    const NOBODY: u32 = 65534;
    let own = rustix::process::geteuid();
    if !own.is_root() {
        return (work(), own.as_raw(), own.as_raw() + 1);
    }
    // The identity of a thread is its own.
    let work = || {
        let nobody = rustix::process::Uid::from_raw(NOBODY);
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
        work()
    };
    (std::thread::scope(|scope| scope.spawn(work).join().unwrap()), NOBODY, 0)
}

/// Connects to the listener at `place`.
///
/// # Errors
/// `ConnectionRefused` or `NotFound` where nobody listens; `TimedOut` where nobody takes the connection.
pub fn connect(place: &SocketName) -> io::Result<OwnedFd> {
    let fd = socket(SocketFlags::CLOEXEC)?;
    set_socket_timeout(&fd, Timeout::Send, Some(Duration::from_secs(1)))?;
    match rustix::net::connect(&fd, &place.address()?) {
        Ok(()) => Ok(fd),
        Err(Errno::AGAIN) => Err(io::ErrorKind::TimedOut.into()),
        Err(error) => Err(error.into()),
    }
}

fn socket(flags: SocketFlags) -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// Returns the process at the other end.
///
/// # Errors
/// `fd` is no local socket.
#[expect(
    unsafe_code,
    reason = "rustix's form of it has no room for the process number 0, which other namespaces have"
)]
pub fn peer(fd: BorrowedFd<'_>) -> io::Result<Peer> {
    let mut credentials = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the descriptor is open while it is borrowed, and the kernel writes at most `length` bytes into
    // a structure of that size, which any bits are valid for.
    let result = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    if length as usize != size_of::<libc::ucred>() {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(Peer { pid: u32::try_from(credentials.pid).ok().filter(|pid| *pid != 0), uid: credentials.uid })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn name(of: &str) -> SocketName {
        SocketName::Name(format!("tensorpost-test/{}/{of}", std::process::id()))
    }

    #[test]
    fn each_end_knows_the_other_and_a_name_is_taken_once() {
        let place = name("ends");
        assert_eq!(connect(&place).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        let listener = Listener::bind(&place).unwrap();
        assert_eq!(Listener::bind(&place).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert_eq!(listener.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let there = connect(&place).unwrap();
        let here = listener.accept().unwrap();
        let me = Peer { pid: Some(std::process::id()), uid: rustix::process::geteuid().as_raw() };
        assert_eq!((peer(there.as_fd()).unwrap(), peer(here.as_fd()).unwrap()), (me, me));
        drop(listener);
        Listener::bind(&place).unwrap();
    }

    #[test]
    fn a_path_is_for_its_user_alone_and_goes_with_the_listener() {
        let folder = std::env::temp_dir().join(format!("tensorpost-named-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let place = SocketName::Path(folder.join("console"));
        let SocketName::Path(path) = &place else { unreachable!() };
        let listener = Listener::bind(&place).unwrap();
        assert_eq!(std::fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(Listener::bind(&place).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(listener);
        assert!(!path.exists());
        // A path that a killed process leaves behind.
        let mut killed = Listener::bind(&place).unwrap();
        killed.file = None;
        drop(killed);
        assert!(path.exists());
        let own = rustix::process::geteuid().as_raw();
        assert!(is_left_behind(path, own) && !is_left_behind(path, own + 1), "another user's");
        drop(Listener::bind(&place).unwrap());
        std::fs::write(path, "not a socket").unwrap();
        assert_eq!(Listener::bind(&place).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert_eq!(std::fs::read_to_string(path).unwrap(), "not a socket");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
