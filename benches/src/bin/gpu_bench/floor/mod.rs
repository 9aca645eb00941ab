//! The floor: two processes, a blocking Unix socket, and the driver's own calls; no framework. Then comes the
//! harder floor, `polled`, with a ring in shared memory instead of the socket. Last comes the driver's own
//! time for a stage of many small kernels (`graph`).
//!
//! A round trip is the one that the framework's replaces. It consists of this side's work and clock write, a
//! word over the socket, the other side's wait, work and clock write, a word back, and this side's wait until
//! the GPU has finished.

mod graph;
mod polled;
mod raw;
mod ring;

use std::io::{Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command};
use std::time::Instant;

use command_fds::{CommandFdExt, FdMapping};
use tensorpost_benches::memory::resident;

use crate::report::median;
use raw::Gpu;
use ring::Rings;

/// The descriptors at which the other side finds its socket and the clocks.
const SOCKET: i32 = 3;
const CLOCKS: i32 = 4;
const RINGS: i32 = 5;

/// The work of a side besides talking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Nothing: the socket alone.
    Socket,
    /// Clock writes and waits.
    Clocks,
    /// A small kernel besides.
    Kernels,
    /// [`BURST`] times a small kernel and a clock write, on both sides at once; neither waits for the other.
    Burst,
    /// No more messages over the socket: the rest goes over a ring that both sides poll.
    Polled,
}

/// The items of a burst, and the number of bursts.
const BURST: u64 = 30_000;
const BURSTS: usize = 5;

/// Prints the times of the floor's round trips on GPU `ordinal` (`None`: the socket only), as lines of a name
/// and microseconds, and the rate at which both sides can launch and write clocks, in items a second.
pub(crate) fn run(ordinal: Option<usize>, rounds: usize) -> anyhow::Result<()> {
    end_with_parent()?;
    let clocks = rustix::fs::memfd_create("tensorpost-floor", rustix::fs::MemfdFlags::CLOEXEC)?;
    rustix::fs::ftruncate(&clocks, raw::PAGE as u64)?;
    let memory = rustix::fs::memfd_create("tensorpost-rings", rustix::fs::MemfdFlags::CLOEXEC)?;
    rustix::fs::ftruncate(&memory, ring::BYTES as u64)?;
    let mut rings = Rings::map(&memory, true)?;
    let (mut socket, theirs) = UnixStream::pair()?;
    let before = resident(std::process::id())?;
    let gpu = ordinal.map(|ordinal| Gpu::open(ordinal, clocks.try_clone()?)).transpose()?;
    let free = gpu.as_ref().map(Gpu::free).transpose()?;
    let after = resident(std::process::id())?;
    let mut peer = Peer::start(ordinal, theirs, clocks, memory)?;
    socket.read_exact(&mut [0])?; // the other side is ready
    if let Some((gpu, free)) = gpu.as_ref().zip(free) {
        // The cost of one more process that has a context, a module of two kernels and a stream, and hardly
        // any memory of its own.
        println!("context.resident {}", after.saturating_sub(before));
        println!("context.memory {}", free.saturating_sub(gpu.free()?));
    }
    let works: &[Work] =
        if gpu.is_some() { &[Work::Socket, Work::Clocks, Work::Kernels] } else { &[Work::Socket] };
    let mut value = 0;
    for work in works {
        let mut times = Vec::with_capacity(rounds);
        for round in 0..rounds + rounds / 10 {
            value += 1;
            let start = Instant::now();
            serve(&mut socket, gpu.as_ref(), *work, value)?;
            if round >= rounds / 10 {
                times.push(start.elapsed().as_secs_f64() * 1e6);
            }
        }
        println!("{} {}", format!("{work:?}").to_lowercase(), median(&mut times));
    }
    if let Some(gpu) = &gpu {
        let mut rates = Vec::with_capacity(BURSTS);
        for _ in 0..BURSTS {
            let start = Instant::now();
            socket.write_all(&[Work::Burst as u8])?;
            burst(gpu, NEAR_BURST)?;
            socket.read_exact(&mut [0])?;
            rates.push(BURST as f64 / start.elapsed().as_secs_f64());
        }
        println!("stream.kernels {}", median(&mut rates));
    }
    socket.write_all(&[Work::Polled as u8])?;
    polled::run(&mut rings, gpu.as_ref(), rounds, value, BURST)?;
    if let Some((gpu, ordinal)) = gpu.as_ref().zip(ordinal) {
        graph::run(gpu, ordinal, CHAIN)?;
    }
    drop(socket); // the end for the other side
    peer.0.wait()?;
    Ok(())
}

/// The clocks of the round trips, of the bursts and streams, and of the chains of kernels.
const NEAR: u64 = 0;
const FAR: u64 = 1;
const NEAR_BURST: u64 = 2;
const FAR_BURST: u64 = 3;
const CHAIN: u64 = 4;

fn burst(gpu: &Gpu, clock: u64) -> anyhow::Result<()> {
    for value in 1..=BURST {
        gpu.launch()?;
        gpu.write(clock, value)?;
    }
    gpu.synchronize()
}

fn serve(socket: &mut UnixStream, gpu: Option<&Gpu>, work: Work, value: u64) -> anyhow::Result<()> {
    let gpu = gpu.filter(|_| work != Work::Socket);
    if let Some(gpu) = gpu {
        if work == Work::Kernels {
            gpu.launch()?;
        }
        gpu.write(NEAR, value)?;
    }
    socket.write_all(&[work as u8])?;
    socket.read_exact(&mut [0])?;
    if let Some(gpu) = gpu {
        gpu.wait(FAR, value)?;
        gpu.synchronize()?;
    }
    Ok(())
}

/// Runs the other side, until the socket ends.
pub(crate) fn answer(ordinal: Option<usize>) -> anyhow::Result<()> {
    end_with_parent()?;
    let (socket, clocks, memory) = inherited();
    let mut rings = Rings::map(&memory, false)?;
    let mut socket = UnixStream::from(socket);
    let gpu = ordinal.map(|ordinal| Gpu::open(ordinal, clocks)).transpose()?;
    socket.write_all(&[0])?;
    let mut value = 0;
    let mut word = [0];
    while socket.read(&mut word)? == 1 {
        if let Some(gpu) = gpu.as_ref().filter(|_| word[0] == Work::Burst as u8) {
            burst(gpu, FAR_BURST)?;
            socket.write_all(&word)?;
            continue;
        }
        if word[0] == Work::Polled as u8 {
            polled::answer(&mut rings, gpu.as_ref())?;
            continue;
        }
        value += 1;
        let gpu = gpu.as_ref().filter(|_| word[0] != Work::Socket as u8);
        if let Some(gpu) = gpu {
            gpu.wait(NEAR, value)?;
            if word[0] == Work::Kernels as u8 {
                gpu.launch()?;
            }
            gpu.write(FAR, value)?;
        }
        socket.write_all(&word)?;
    }
    Ok(())
}

/// Measures the rate of copies of 1 GiB from GPU `ordinal` to the next one that can reach it, in gigabytes a
/// second.
pub(crate) fn peer_copy(ordinal: Option<usize>, rounds: usize) -> anyhow::Result<()> {
    end_with_parent()?;
    let from = ordinal.ok_or_else(|| anyhow::anyhow!("the host has no peers"))?;
    let mut rates = raw::peer_copies(from, usize::from(from == 0), rounds)?;
    println!("peer.copy {}", median(&mut rates));
    Ok(())
}

/// Makes a context and nothing else, and prints a line when it exists.
pub(crate) fn context(ordinal: Option<usize>) -> anyhow::Result<()> {
    end_with_parent()?;
    if let Some(ordinal) = ordinal {
        raw::context(ordinal)?;
    }
    println!("ready");
    Ok(())
}

/// Makes this process end with its measurement.
fn end_with_parent() -> anyhow::Result<()> {
    let kill = Some(rustix::process::Signal::KILL);
    Ok(rustix::process::set_parent_process_death_signal(kill)?)
}

struct Peer(Child);

impl Peer {
    fn start(
        ordinal: Option<usize>,
        socket: UnixStream,
        clocks: OwnedFd,
        rings: OwnedFd,
    ) -> anyhow::Result<Self> {
        let mut command = Command::new("/proc/self/exe");
        command.args(["--role", "floor-peer", "--device", &crate::options::name(ordinal)]);
        command.fd_mappings(vec![
            FdMapping { parent_fd: socket.into(), child_fd: SOCKET },
            FdMapping { parent_fd: clocks, child_fd: CLOCKS },
            FdMapping { parent_fd: rings, child_fd: RINGS },
        ])?;
        Ok(Peer(command.spawn()?))
    }
}

#[expect(unsafe_code, reason = "takes inherited descriptors by their numbers")]
fn inherited() -> (OwnedFd, OwnedFd, OwnedFd) {
    // SAFETY: this role is only started by `Peer::start`, which put these three descriptors there; nothing
    // else in this process, which has just begun, owns them.
    unsafe { (OwnedFd::from_raw_fd(SOCKET), OwnedFd::from_raw_fd(CLOCKS), OwnedFd::from_raw_fd(RINGS)) }
}
