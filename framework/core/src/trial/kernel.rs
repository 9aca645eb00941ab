//! The features of Linux that a node needs, each used once as a node uses it. A seccomp filter may end the
//! process. Each function returns the error of the system, or says which result is not as it has to be.

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::os::{Access, Ears, Mapping, Memfd, PidFd, Seqpacket, Woken, memfd};

/// How long a thread may take to be woken.
const WOKEN: Duration = Duration::from_secs(10);

/// Writes to shared memory, and reads it by another mapping.
pub fn shared_memory() -> io::Result<()> {
    let memory = Memfd::create("tensorpost-doctor", 4096)?;
    let mapping = Mapping::map(memory.as_fd(), 4096, Access::ReadWrite)?;
    mapping.copy_in(0, b"written")?;
    let mut seen = [0; 7];
    Mapping::map(memory.as_fd(), 4096, Access::ReadOnly)?.copy_out(0, &mut seen)?;
    agrees(&seen == b"written", "what was written to shared memory is not in it")
}

/// Seals memory, and tries to map it for writing.
pub fn seals() -> io::Result<()> {
    let memory = Memfd::create("tensorpost-doctor", 4096)?;
    memory.seal_future_write()?;
    memfd::check_one_writer(memory.as_fd(), 4096).map_err(io::Error::other)?;
    let writes = Mapping::map(memory.as_fd(), 4096, Access::ReadWrite).is_ok();
    agrees(!writes, "a seal against writing holds nobody back")
}

/// Sends a packet.
pub fn packets() -> io::Result<()> {
    let (one, other) = Seqpacket::pair()?;
    one.send(b"packet", &[])?;
    let mut packet = Vec::new();
    other.recv(&mut packet)?;
    agrees(packet == b"packet", "a packet arrived as another one")
}

/// Sends a descriptor.
pub fn descriptors() -> io::Result<()> {
    let (one, other) = Seqpacket::pair()?;
    // Shared memory has a step of its own; here any file will do.
    let file = std::io::pipe()?.0;
    one.send(b"file", &[file.as_fd()])?;
    let packet = other.recv(&mut Vec::new())?;
    agrees(packet.fds.len() == 1, "a descriptor that was sent did not arrive")
}

/// Looks at this process by its pidfd.
pub fn pidfds() -> io::Result<()> {
    let this = PidFd::open(std::process::id())?;
    let running = poll(&mut [PollFd::new(&this, PollFlags::IN)], Some(&Timespec::default()))? == 0;
    agrees(running, "a pidfd says that a process that runs has ended")
}

/// Wakes a thread that sleeps on shared memory.
pub fn futexes() -> io::Result<()> {
    let memory = Memfd::create("tensorpost-doctor", 4096)?;
    // Make two mappings, as two processes have them.
    let (sleeper, waker) = (
        Mapping::map(memory.as_fd(), 4096, Access::ReadOnly)?,
        Mapping::map(memory.as_fd(), 4096, Access::ReadWrite)?,
    );
    let (Some(seen), Some(word)) = (sleeper.watch32(0), waker.watch32(0)) else {
        return agrees(false, "a mapping has no room for a word");
    };
    std::thread::scope(|scope| {
        let sleeps = scope.spawn(|| seen.wait(0, Some(WOKEN)));
        let began = Instant::now();
        // Retry: until the thread sleeps, there is nobody to wake.
        while !sleeps.is_finished() && word.wake_all()? == 0 && began.elapsed() < WOKEN {
            std::thread::yield_now();
        }
        let woken = sleeps.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))?;
        agrees(woken == Woken::Woken, "nobody wakes who sleeps on shared memory")
    })
}

/// Rings a doorbell.
pub fn doorbells() -> io::Result<()> {
    let ears = Ears::create()?;
    let (_ear, bell) = ears.doorbell()?;
    bell.ring()?;
    ears.wake()?;
    let timeout = Timespec::try_from(WOKEN).ok();
    let rung = poll(&mut [PollFd::new(&ears, PollFlags::IN)], timeout.as_ref())? == 1;
    agrees(rung, "a doorbell was rung and wakes nobody")
}

fn agrees(holds: bool, otherwise: &'static str) -> io::Result<()> {
    if holds { Ok(()) } else { Err(io::Error::other(otherwise)) }
}
