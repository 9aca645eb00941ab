//! Anonymous shared memory with seals.
//!
//! Every memfd here is sealed against shrinking and growing from the start, so that no process that maps it
//! can get a `SIGBUS` when another process misbehaves. A page with one writer (ONE-WRITER) is also sealed
//! against future writable mappings once its writer has mapped it.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use thiserror::Error;

/// The reason why a descriptor that came from a peer is not the shared memory it was announced as (WIRE-1).
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the texts of the errors name their fields")]
pub enum BadMemfd {
    /// Not memory at all: a file, a socket, a pipe.
    #[error("the descriptor is not a memfd; the peer sent something else")]
    NotMemfd,
    /// It could shrink under its mappings, and a read would then kill this process.
    #[error("the memfd lacks the seals {missing}; a peer that made it with Memfd::create has them")]
    MissingSeals { missing: String },
    /// Too small for its announced contents.
    #[error("the memfd holds {actual} bytes where {expected} were announced")]
    WrongSize { actual: u64, expected: u64 },
    /// The kernel would not say.
    #[error("could not look at the descriptor")]
    Os(#[from] io::Error),
}

/// Shared memory of a fixed size, owned through a writable descriptor.
#[derive(Debug)]
pub struct Memfd {
    fd: OwnedFd,
}

impl Memfd {
    /// Makes zeroed shared memory of `bytes` bytes, close-on-exec, that can neither shrink nor grow.
    ///
    /// `name` shows in `/proc/<pid>/maps` and nowhere else.
    ///
    /// # Errors
    /// The kernel's error: out of descriptors or memory, or `bytes` out of range.
    pub fn create(name: &str, bytes: u64) -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        // Memory that never holds code should say so; kernels before 6.3 do not know the flag.
        let fd = match memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
            Err(rustix::io::Errno::INVAL) => memfd_create(name, flags)?,
            other => other?,
        };
        ftruncate(&fd, bytes)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW)?;
        Ok(Memfd { fd })
    }

    /// Forbids every writable mapping made from now on, and further seals; mappings that exist keep their
    /// access.
    ///
    /// The one writer calls it after it mapped the memory (ONE-WRITER). Calling it twice is fine.
    pub fn seal_future_write(&self) -> io::Result<()> {
        seal_future_write(self.fd.as_fd())
    }

    /// Returns a second descriptor that maps read-only.
    ///
    /// It guards against mistakes, not malice: a process of the same user can open `/proc/self/fd` again for
    /// writing. Only [`seal_future_write`](Self::seal_future_write) closes that door.
    ///
    /// # Errors
    /// Needs `/proc`; otherwise the errors of `open`.
    pub fn read_only_fd(&self) -> io::Result<OwnedFd> {
        read_only_fd(self.fd.as_fd())
    }

    /// Returns the writable descriptor itself.
    pub fn into_fd(self) -> OwnedFd {
        self.fd
    }
}

impl AsFd for Memfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Makes memory with these bytes, which nobody can change any more.
///
/// # Errors
/// As for [`Memfd::create`].
pub fn sealed(name: &str, bytes: &[u8]) -> io::Result<OwnedFd> {
    let mut memory = File::from(Memfd::create(name, bytes.len() as u64)?.into_fd());
    memory.write_all(bytes)?;
    fcntl_add_seals(&memory, SealFlags::WRITE | SealFlags::SEAL)?;
    Ok(memory.into())
}

/// Seals shared memory that came as a descriptor; see [`Memfd::seal_future_write`].
pub fn seal_future_write(fd: BorrowedFd<'_>) -> io::Result<()> {
    let wanted = SealFlags::FUTURE_WRITE | SealFlags::SEAL;
    if fcntl_get_seals(fd)?.contains(wanted) {
        return Ok(());
    }
    fcntl_add_seals(fd, SealFlags::FUTURE_WRITE)?;
    fcntl_add_seals(fd, SealFlags::SEAL)?;
    Ok(())
}

/// Opens shared memory again, read-only; see [`Memfd::read_only_fd`].
pub fn read_only_fd(fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let file = OpenOptions::new().read(true).open(format!("/proc/self/fd/{}", fd.as_raw_fd()))?;
    Ok(file.into())
}

/// A read-only descriptor for many receivers. It is opened once, through `/proc`, which costs ten times as
/// much as duplicating it.
#[derive(Debug, Default)]
pub struct ReadOnlyFd(OnceLock<OwnedFd>);

impl ReadOnlyFd {
    /// Returns another duplicate; `fd` is the memory's own descriptor, the same at each call.
    pub fn of(&self, fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        if let Some(known) = self.0.get() {
            return known.try_clone();
        }
        let opened = read_only_fd(fd)?;
        // Where two threads open one at the same time, either will do.
        self.0.get_or_init(|| opened).try_clone()
    }
}

/// Checks a descriptor from a peer: memory, sealed against shrinking and growing, of at least `bytes` bytes
/// (WIRE-1). Returns the true size in bytes.
pub fn check(fd: BorrowedFd<'_>, bytes: u64) -> Result<u64, BadMemfd> {
    check_seals(fd, bytes, SealFlags::SHRINK | SealFlags::GROW)
}

/// Checks as [`check`] does, and that only processes that mapped it before can write to it (ONE-WRITER).
pub fn check_one_writer(fd: BorrowedFd<'_>, bytes: u64) -> Result<u64, BadMemfd> {
    check_seals(fd, bytes, SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE)
}

fn check_seals(fd: BorrowedFd<'_>, bytes: u64, wanted: SealFlags) -> Result<u64, BadMemfd> {
    // Only memory has seals: for anything else the kernel answers EINVAL.
    let seals = match fcntl_get_seals(fd) {
        Err(rustix::io::Errno::INVAL) => return Err(BadMemfd::NotMemfd),
        other => other.map_err(io::Error::from)?,
    };
    if !seals.contains(wanted) {
        let missing = (wanted - seals).iter_names().map(|(name, _)| name).collect::<Vec<_>>().join(" and ");
        return Err(BadMemfd::MissingSeals { missing });
    }
    let actual = u64::try_from(fstat(fd).map_err(io::Error::from)?.st_size).unwrap_or(0);
    if actual < bytes {
        return Err(BadMemfd::WrongSize { actual, expected: bytes });
    }
    Ok(actual)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::{Access, Mapping};

    #[test]
    fn it_can_neither_shrink_nor_grow() {
        let memfd = Memfd::create("test", 4096).unwrap();
        assert!(ftruncate(&memfd, 0).is_err());
        assert!(ftruncate(&memfd, 8192).is_err());
        assert_eq!(check(memfd.as_fd(), 4096).unwrap(), 4096);
    }

    #[test]
    fn after_the_seal_only_the_first_writer_writes() {
        let memfd = Memfd::create("test", 4096).unwrap();
        let writer = Mapping::map(memfd.as_fd(), 4096, Access::ReadWrite).unwrap();
        assert!(matches!(check_one_writer(memfd.as_fd(), 4096), Err(BadMemfd::MissingSeals { .. })));
        memfd.seal_future_write().unwrap();
        memfd.seal_future_write().unwrap();
        check_one_writer(memfd.as_fd(), 4096).unwrap();
        assert!(Mapping::map(memfd.as_fd(), 4096, Access::ReadWrite).is_err());
        let reader = Mapping::map(memfd.as_fd(), 4096, Access::ReadOnly).unwrap();
        writer.copy_in(3, b"one writer").unwrap();
        let mut seen = [0; 10];
        reader.copy_out(3, &mut seen).unwrap();
        assert_eq!(&seen, b"one writer");
    }

    #[test]
    fn a_read_only_descriptor_maps_read_only() {
        let memfd = Memfd::create("test", 4096).unwrap();
        let fd = memfd.read_only_fd().unwrap();
        assert!(Mapping::map(fd.as_fd(), 4096, Access::ReadWrite).is_err());
        Mapping::map(fd.as_fd(), 4096, Access::ReadOnly).unwrap();
        check(fd.as_fd(), 4096).unwrap();
    }

    #[test]
    fn sealed_memory_has_its_bytes_and_takes_no_others() {
        let memory = sealed("test", b"as it was").unwrap();
        assert_eq!(rustix::io::pwrite(&memory, b"x", 0), Err(rustix::io::Errno::PERM));
        let mut read = [0; 16];
        assert_eq!(rustix::io::pread(&memory, &mut read[..], 0), Ok(9));
        assert_eq!(&read[..9], b"as it was");
    }

    #[test]
    fn what_is_no_sealed_memory_is_refused() {
        let file = tempfile();
        assert!(matches!(check(file.as_fd(), 0), Err(BadMemfd::NotMemfd | BadMemfd::MissingSeals { .. })));
        let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(matches!(check(socket.as_fd(), 0), Err(BadMemfd::NotMemfd)));
        let bare = memfd_create("bare", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&bare, 4096).unwrap();
        assert!(matches!(check(bare.as_fd(), 4096), Err(BadMemfd::MissingSeals { .. })));
        let small = Memfd::create("small", 4096).unwrap();
        assert!(matches!(check(small.as_fd(), 4097), Err(BadMemfd::WrongSize { actual: 4096, .. })));
    }

    fn tempfile() -> OwnedFd {
        std::fs::File::open("/proc/self/exe").unwrap().into()
    }
}
