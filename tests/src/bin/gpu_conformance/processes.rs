//! Two real processes on one GPU: buffers handed over and back, then the death of the sender.

#![expect(unsafe_code, reason = "streams copy between raw addresses")]

use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tensorpost_core::clock::{ClockPage, Ticket, Waited, is_released};
use tensorpost_core::device::cuda::CudaBackend;
use tensorpost_core::device::{Access, Backend, Keep, StreamOp};
use tensorpost_core::os::Seqpacket;

use super::Process;

/// The size of each of the two buffers, which are handed over this many times.
const BYTES: u64 = 256 << 10;
const ROUNDS: u64 = 2_000;
/// The last round whose clock value the dying sender reaches.
const LAST: u64 = 100;

const PARENT: u16 = 1;
const PEER: u16 = 2;

pub(super) fn run(backend: &Arc<CudaBackend>) -> Result<()> {
    hand_overs(backend)?;
    a_death(backend)
}

/// Starts this program again as a peer. Its standard input is one end of a socket. It gets a page of clocks
/// that this process made for it and can release, as a node does.
fn start(how: &str, page: &ClockPage) -> Result<(Child, Seqpacket)> {
    let (ours, theirs) = Seqpacket::pair()?;
    let theirs: OwnedFd = theirs.as_fd().try_clone_to_owned()?;
    let child =
        Command::new(std::env::current_exe()?).args(["peer", how]).stdin(Stdio::from(theirs)).spawn()?;
    ours.send(b"page", &[page.writable_fd()?])?;
    Ok((child, ours))
}

fn receive<const N: usize>(socket: &Seqpacket) -> Result<[OwnedFd; N]> {
    let mut bytes = Vec::new();
    let received = socket.recv(&mut bytes)?;
    received.fds.try_into().ok().context("the other process sent something else, or ended")
}

/// The receiving side: its stream waits for the peer's clock, copies what the peer wrote, and advances.
fn hand_overs(backend: &Arc<CudaBackend>) -> Result<()> {
    let prepared = ClockPage::prepare()?;
    let (mut child, socket) = start("lives", &prepared)?;
    let process = Process::new(backend, PARENT)?;
    let stream = process.stream()?;
    socket.send(b"clocks", &[process.page_fd()?.as_fd()])?;
    let [page, chunk] = receive(&socket)?;
    let peer = process.meet(PEER, page)?;
    let view = backend.import_chunk(chunk.as_fd(), chunk_bytes(backend), Access::ReadOnly)?;
    let log = backend.create_chunk(ROUNDS * 512)?.mapping;
    socket.send(b"go", &[])?;
    let start = Instant::now();
    for round in 1..=ROUNDS {
        let ready = Ticket { process: peer, slot: 0, value: round };
        stream.submit(&[StreamOp::Wait(ready)])?;
        let from = view.range((round % 2) * BYTES + BYTES - 512, 512).context("range")?;
        let to = log.range((round - 1) * 512, 512).context("range")?;
        let keep: Keep = [Arc::clone(&view), Arc::clone(&log)].into_iter().collect();
        // SAFETY: both ranges are in mappings that are kept; the clocks order the peer's use of the source
        // with this.
        unsafe { stream.copy(to, from, 512, keep)? };
        stream.submit(&[StreamOp::Advance(round)])?;
    }
    let mut seen = vec![0; (ROUNDS * 512) as usize];
    // SAFETY: the mapping lives, and this stream alone writes it.
    unsafe { stream.download(&mut seen, log.addr())? };
    let each = start.elapsed() / ROUNDS as u32;
    for (round, bytes) in (1..=ROUNDS).zip(seen.chunks(512)) {
        ensure!(bytes.iter().all(|&byte| byte == round as u8), "round {round} came wrong: {:?}", &bytes[..8]);
    }
    socket.send(b"done", &[])?;
    ensure!(child.wait()?.success(), "the peer failed");
    println!(
        "processes: {ROUNDS} hand-overs of {BYTES} bytes between two processes, all right, {each:?} each"
    );
    Ok(())
}

/// LEASE-4, DEATH-1: the peer dies before its clock has reached what this process's stream waits for.
fn a_death(backend: &Arc<CudaBackend>) -> Result<()> {
    let prepared = ClockPage::prepare()?;
    let (mut child, socket) = start("dies", &prepared)?;
    let process = Process::new(backend, PARENT)?;
    let stream = process.stream()?;
    socket.send(b"clocks", &[process.page_fd()?.as_fd()])?;
    let [page, chunk] = receive(&socket)?;
    let peer = process.meet(PEER, page)?;
    let len = chunk_bytes(backend);
    let view = backend.import_chunk(chunk.as_fd(), len, Access::ReadOnly)?;
    // The first wait is for a value that comes, the second for a value that never comes.
    stream.submit(&[StreamOp::Wait(Ticket { process: peer, slot: 0, value: LAST }), StreamOp::Advance(1)])?;
    stream.submit(&[
        StreamOp::Wait(Ticket { process: peer, slot: 0, value: LAST + 1 }),
        StreamOp::Advance(2),
    ])?;
    socket.send(b"go", &[])?;
    let soon = || Some(Instant::now() + Duration::from_secs(20));
    ensure!(process.domain.wait(&process.ticket(&stream, 1), soon())? == Waited::Passed, "nothing came");
    child.kill()?;
    child.wait()?;
    let certificate = prepared.values()[0];
    ensure!(certificate == LAST, "the dead process's clock stands at {certificate}");
    ensure!(!process.domain.passed(&process.ticket(&stream, 2))?, "a wait ended by itself");
    let start = Instant::now();
    prepared.testing_release_all()?;
    ensure!(
        process.domain.wait(&process.ticket(&stream, 2), soon())? == Waited::Passed,
        "the wait did not end"
    );
    let released = start.elapsed();
    let mut seen = vec![0; len as usize];
    // SAFETY: the mapping lives, and its writer is dead.
    unsafe { stream.download(&mut seen, view.addr())? };
    let even = seen[..BYTES as usize].iter().all(|&byte| byte == LAST as u8);
    let odd = seen[BYTES as usize..2 * BYTES as usize].iter().all(|&byte| byte == (LAST - 1) as u8);
    ensure!(even && odd, "the dead process's memory changed");
    ensure!(is_released(prepared.values()[0]), "a release was undone");
    println!(
        "processes: a killed peer's memory stayed, and the wait for it ended {released:?} after the release"
    );
    Ok(())
}

fn chunk_bytes(backend: &CudaBackend) -> u64 {
    (2 * BYTES).next_multiple_of(backend.granularity())
}

/// The peer's `main`: the sending side.
pub(super) fn peer(dies: bool) -> Result<()> {
    let socket = Seqpacket::from_fd(std::io::stdin().as_fd().try_clone_to_owned()?)?;
    let [page] = receive(&socket)?;
    let [clocks] = receive(&socket)?;
    let backend = CudaBackend::open(0)?;
    let process = Process::with_page(&backend, PEER, ClockPage::adopt(page)?)?;
    let parent = process.meet(PARENT, clocks)?;
    let stream = process.stream()?;
    let chunk = backend.create_chunk(2 * BYTES)?;
    socket.send(b"chunk", &[process.page_fd()?.as_fd(), chunk.read_only.as_fd()])?;
    let mut word = Vec::new();
    ensure!(!socket.recv(&mut word)?.is_closed(), "the parent is gone");
    for round in 1..=if dies { LAST } else { ROUNDS } {
        if round > 2 && !dies {
            // CLOCK-2: the buffer is free when the reader's clock says so.
            stream.submit(&[StreamOp::Wait(Ticket { process: parent, slot: 0, value: round - 2 })])?;
        }
        let to = chunk.mapping.range((round % 2) * BYTES, BYTES).context("range")?;
        // SAFETY: in a writable mapping that is kept; the clocks order the parent's use of it with this.
        unsafe { stream.fill(to, BYTES, round as u8, [Arc::clone(&chunk.mapping)].into_iter().collect())? };
        stream.submit(&[StreamOp::Advance(round)])?;
    }
    stream.synchronize()?;
    // Ends at the parent's word or at the parent's death, or is killed.
    ensure!(!socket.recv(&mut word)?.is_closed() || dies, "the parent is gone");
    if dies {
        bail!("was not killed");
    }
    Ok(())
}
