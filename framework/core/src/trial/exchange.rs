//! Two processes that share memory of a device, as workers do. The owner makes a chunk and writes it. The
//! reader maps it read-only; its stream waits for two clocks of the owner and copies the chunk, and the
//! reader compares the copy.
//!
//! A stream advances one of the two clocks. A thread advances the other when the copy already waits for it,
//! which shows that a store of one process wakes a stream of another. Both sides prepare first and go on when
//! the doctor says so.
//!
//! At last the reader tries to write into the chunk that it maps read-only. On a GPU that is a fault, which
//! costs the process its context, so it is the process's last action. The reader skips it where an MPS daemon
//! could be its server: the fault would end the other clients too.

#![expect(unsafe_code, reason = "streams copy between raw addresses")]

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::clock::{ClockDomain, ClockPage, OwnClock, Ticket, Waited};
use crate::device::{Access, Backend, ChunkMapping, Device, Keep, StreamBackend, StreamOp};
use crate::ids::{DeviceId, ProcessId};
use crate::os::{Seqpacket, remedy};

/// How long one step of a side may take.
const STEP: Duration = Duration::from_secs(20);
/// Bytes of the pattern that is repeated through a chunk: a prime, so that no two pages are the same.
const PATTERN: usize = 4_099;
/// Patterns in one upload or download.
const PIECE: usize = 512;
/// The message of a side that failed because the other side failed.
pub const OTHER_ENDED: &str = "the other process ended";
/// Bytes that the reader tries to overwrite.
const FORBIDDEN: u64 = 4096;

/// The task of one of the two processes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum ExchangeSide {
    /// Makes the chunk.
    Owner { device: DeviceId, bytes: u64 },
    /// Maps it, and copies it to a device with a stream of that device.
    Reader { of: DeviceId, device: DeviceId, faults: bool },
}

/// The messages of a side to the doctor.
#[derive(Debug, Serialize, Deserialize)]
pub enum SideMessage {
    Ready,
    Read(Read),
    Owned(Owned),
    Failed(String),
}

/// The results of the reader.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Read {
    /// Whether the copy waited for the clock of the other process's thread.
    pub waited: bool,
    /// Whether all bytes were right.
    pub right: bool,
    /// Whether streams of the reader's device reach the memory of the owner's.
    pub reaches: bool,
    /// Gigabytes a second of the copies.
    pub gigabytes: f64,
    pub bytes: u64,
}

/// The results of the owner.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Owned {
    /// Whether its memory is unchanged after the reader tried to write there.
    pub intact: bool,
    /// Whether the other had tried.
    pub tried: bool,
    /// The result of making memory that other machines can map; `None` where that was not tried.
    pub fabric: Option<Result<(), String>>,
}

/// The messages between the two sides, with the descriptor that goes with each.
#[derive(Debug, Serialize, Deserialize)]
enum Word {
    /// A clock page.
    Clocks,
    /// A chunk, and the two clock values that the reader waits for.
    Chunk { len: u64, bytes: u64, written: Ticket, gate: Ticket },
    /// The doctor lets the exchange go on.
    Go,
    /// The reader has tried to write, or would have.
    Done { tried: bool },
}

/// Runs one side over the socket that is this process's standard input, and ends the process. `say` tells the
/// doctor.
pub fn run(side: ExchangeSide, say: &dyn Fn(&SideMessage)) {
    let done = socket().map_err(|error| error.to_string()).and_then(|socket| match side {
        ExchangeSide::Owner { device, bytes } => own(&socket, device, bytes, say),
        ExchangeSide::Reader { of, device, faults } => read(&socket, of, device, faults, say),
    });
    if let Err(why) = done {
        say(&SideMessage::Failed(why));
    }
    // Exit without destructors: they cannot take down a context that was lost to a fault.
    std::process::exit(0);
}

/// Lets the owner go on, by another descriptor of the reader's end.
///
/// # Errors
/// The owner has ended.
pub fn let_go_on(door: &Seqpacket) -> Result<(), String> {
    speak(door, &Word::Go, None)
}

fn socket() -> io::Result<Seqpacket> {
    Seqpacket::from_fd(rustix::stdio::stdin().try_clone_to_owned()?)
}

fn speak(socket: &Seqpacket, word: &Word, fd: Option<&OwnedFd>) -> Result<(), String> {
    let bytes = serde_json::to_vec(word).map_err(|error| error.to_string())?;
    let fds: Vec<_> = fd.into_iter().map(AsFd::as_fd).collect();
    socket
        .send(&bytes, &fds)
        .map_err(|error| format!("the other process cannot be told: {error}{}", remedy(&error)))
}

fn listen(socket: &Seqpacket) -> Result<(Word, Option<OwnedFd>), String> {
    let mut bytes = Vec::new();
    let mut packet =
        socket.recv(&mut bytes).map_err(|error| format!("the other process cannot be heard: {error}"))?;
    if packet.is_closed() {
        return Err(OTHER_ENDED.to_owned());
    }
    let word = serde_json::from_slice(&bytes).map_err(|error| error.to_string())?;
    Ok((word, packet.fds.pop()))
}

/// One process of an exchange: its device and all clocks.
struct Process {
    domain: Arc<ClockDomain>,
}

impl Process {
    /// Sends the other side its clocks, and receives those of the other side.
    fn meet(socket: &Seqpacket, slot: u16, other: u16) -> Result<Self, String> {
        let page = ClockPage::create().map_err(|error| format!("clocks: {error}{}", remedy(&error)))?;
        let fd = page.export_fd().map_err(|error| format!("clocks: {error}; is /proc mounted?"))?;
        speak(socket, &Word::Clocks, Some(&fd))?;
        let (Word::Clocks, Some(fd)) = listen(socket)? else { return Err("no clocks came".to_owned()) };
        let theirs = ClockPage::open(fd).map_err(|error| error.to_string())?;
        let domain = ClockDomain::with_epoch_page(process(slot)?, page, None);
        domain.add_peer(process(other)?, theirs);
        Ok(Process { domain })
    }

    fn clock(&self) -> Result<OwnClock, String> {
        self.domain.allocate_slot().map_err(|error| error.to_string())
    }

    fn stream(&self, device: &Arc<dyn Backend>) -> Result<Arc<dyn StreamBackend>, String> {
        device.create_stream(self.clock()?, Arc::clone(&self.domain)).map_err(|error| error.to_string())
    }

    fn ticket(&self, slot: u16, value: u64) -> Ticket {
        Ticket { process: self.domain.own(), slot, value }
    }

    fn await_clock(&self, ticket: &Ticket) -> Result<(), String> {
        match self.domain.wait(ticket, Some(Instant::now() + STEP)) {
            Ok(Waited::Passed) => Ok(()),
            Ok(Waited::TimedOut) if ticket.process == self.domain.own() => {
                Err("a stream that waits for a clock of another process was not woken".to_owned())
            }
            Ok(Waited::TimedOut) => Err("a stream of the other process did not advance its clock".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Waits until the stream has advanced its clock to `value`.
    fn await_stream(&self, stream: &Arc<dyn StreamBackend>, value: u64) -> Result<(), String> {
        self.await_clock(&self.ticket(stream.clock_slot(), value))
    }
}

fn process(slot: u16) -> Result<ProcessId, String> {
    ProcessId::new(slot, 1).ok_or_else(|| "no such process".to_owned())
}

fn open(device: DeviceId) -> Result<Arc<dyn Backend>, String> {
    let opened = Device::by_id(device).and_then(|device| device.backend());
    opened.map_err(|error| format!("{device} cannot be opened: {error}"))
}

fn keep(chunks: &[&Arc<ChunkMapping>]) -> Keep {
    chunks.iter().map(|chunk| Arc::clone(chunk)).collect()
}

/// Returns bytes that look like no others, and are the same in both processes.
fn pattern() -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut byte = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    let once: Vec<u8> = std::iter::repeat_with(&mut byte).take(PATTERN).collect();
    once.repeat(PIECE)
}

/// Runs the owner's side.
fn own(socket: &Seqpacket, device: DeviceId, bytes: u64, say: &dyn Fn(&SideMessage)) -> Result<(), String> {
    let text = |error: crate::device::DeviceError| error.to_string();
    let backend = open(device)?;
    let this = Process::meet(socket, 1, 2)?;
    let stream = this.stream(&backend)?;
    let gate = this.clock()?;
    let chunk = backend.create_chunk(bytes).map_err(text)?;
    let pattern = pattern();
    let mut at = 0;
    while at < bytes {
        let piece = (bytes - at).min(pattern.len() as u64);
        let to = chunk.mapping.addr() + at;
        // SAFETY: the range is inside the chunk, which is writable and kept; nobody else writes there, and
        // the reader reads behind the clock that this stream advances at the end.
        unsafe { stream.upload(to, &pattern[..piece as usize], keep(&[&chunk.mapping])) }.map_err(text)?;
        at += piece;
    }
    stream.submit(&[StreamOp::Advance(1)]).map_err(text)?;
    let (written, gate_at) = (this.ticket(stream.clock_slot(), 1), this.ticket(gate.slot(), 1));
    let word = Word::Chunk { len: chunk.mapping.len(), bytes, written, gate: gate_at };
    speak(socket, &word, Some(&chunk.read_only))?;
    say(&SideMessage::Ready);
    let (Word::Go, _) = listen(socket)? else { return Err("the reader spoke out of turn".to_owned()) };
    this.domain.advance(&gate, 1).map_err(|error| error.to_string())?;
    let (Word::Done { tried }, _) = listen(socket)? else { return Err("the reader is not done".to_owned()) };
    let mut seen = vec![0; FORBIDDEN as usize];
    // SAFETY: these are the first bytes of the chunk, which outlives the call; the reader has ended its
    // attempt to write there.
    unsafe { stream.download(&mut seen, chunk.mapping.addr()) }.map_err(text)?;
    let intact = seen == pattern[..FORBIDDEN as usize];
    say(&SideMessage::Owned(Owned { intact, tried, fabric: fabric(&backend) }));
    Ok(())
}

/// Makes memory that other machines could map, where the device says that it can.
fn fabric(backend: &Arc<dyn Backend>) -> Option<Result<(), String>> {
    #[cfg(feature = "cuda")]
    if let Some(gpu) = backend.as_any().downcast_ref::<crate::device::cuda::CudaBackend>() {
        return gpu.try_fabric().map(|made| made.map_err(|error| error.to_string()));
    }
    let _ = backend;
    None
}

/// Runs the reader's side.
fn read(
    socket: &Seqpacket,
    of: DeviceId,
    device: DeviceId,
    faults: bool,
    say: &dyn Fn(&SideMessage),
) -> Result<(), String> {
    let text = |error: crate::device::DeviceError| error.to_string();
    let theirs = open(of)?;
    let own = open(device)?;
    let this = Process::meet(socket, 2, 1)?;
    let stream = this.stream(&own)?;
    let (Word::Chunk { len, bytes, written, gate }, Some(fd)) = listen(socket)? else {
        return Err("no chunk came".to_owned());
    };
    let source = theirs.import_chunk(fd.as_fd(), len, Access::ReadOnly).map_err(text)?;
    let reaches = own.can_reach(of);
    if !reaches {
        say(&SideMessage::Ready);
        this.await_clock(&gate)?;
        speak(socket, &Word::Done { tried: false }, None)?;
        say(&SideMessage::Read(Read { waited: true, right: true, reaches, gigabytes: 0.0, bytes }));
        return Ok(());
    }
    let copy = own.create_chunk(bytes).map_err(text)?.mapping;
    let (Some(from), Some(to)) = (source.range(0, bytes), copy.range(0, bytes)) else {
        return Err("the chunk is smaller than what is in it".to_owned());
    };
    let submit_copy = || {
        // SAFETY: both ranges are inside of chunks that are kept, of different memory; this stream has waited
        // for the owner's writes, and nobody else writes to the copy.
        unsafe { stream.copy(to, from, bytes, keep(&[&source, &copy])) }.map_err(text)
    };
    stream.submit(&[StreamOp::Wait(written), StreamOp::Wait(gate)]).map_err(text)?;
    submit_copy()?;
    stream.submit(&[StreamOp::Advance(1)]).map_err(text)?;
    // The owner's stream advances this clock by itself; the gate stays shut until the doctor lets the owner
    // open it.
    this.await_clock(&written)?;
    let waited = this.domain.value_of(this.domain.own(), stream.clock_slot()) == Some(0);
    say(&SideMessage::Ready);
    this.await_stream(&stream, 1)?;
    let repeats: u32 = if device == DeviceId::HOST { 2 } else { 16 };
    let began = Instant::now();
    for _ in 0..repeats {
        submit_copy()?;
    }
    stream.submit(&[StreamOp::Advance(2)]).map_err(text)?;
    this.await_stream(&stream, 2)?;
    let gigabytes = f64::from(repeats) * bytes as f64 / began.elapsed().as_secs_f64() / 1e9;
    let right = is_right(&stream, &copy, bytes).map_err(text)?;
    let tried = faults && try_to_write(&theirs, &this, &source, fd, len)?;
    speak(socket, &Word::Done { tried }, None)?;
    say(&SideMessage::Read(Read { waited, right, reaches, gigabytes, bytes }));
    Ok(())
}

fn is_right(
    stream: &Arc<dyn StreamBackend>,
    copy: &Arc<ChunkMapping>,
    bytes: u64,
) -> Result<bool, crate::device::DeviceError> {
    let pattern = pattern();
    let mut seen = vec![0; pattern.len()];
    let mut at = 0;
    while at < bytes {
        let piece = (bytes - at).min(pattern.len() as u64);
        let seen = &mut seen[..piece as usize];
        // SAFETY: the range is inside the copy, which outlives the call, and only this stream writes there.
        unsafe { stream.download(seen, copy.addr() + at) }?;
        if seen != &pattern[..piece as usize] {
            return Ok(false);
        }
        at += piece;
    }
    Ok(true)
}

/// Tries to write into the owner's memory, which is mapped read-only here. The owner sees the result.
fn try_to_write(
    device: &Arc<dyn Backend>,
    this: &Process,
    source: &Arc<ChunkMapping>,
    fd: OwnedFd,
    len: u64,
) -> Result<bool, String> {
    if device.id() == DeviceId::HOST {
        // A store would end the process, so ask the kernel for a writable mapping instead, and write through
        // that.
        if let Ok(writable) = device.import_chunk(fd.as_fd(), len, Access::ReadWrite) {
            let stream = this.stream(device)?;
            // SAFETY: the range is inside a mapping that is writable, and kept; the copies from there are
            // done.
            let written = unsafe { stream.fill(writable.addr(), FORBIDDEN, 0, keep(&[&writable])) };
            let _ = written.and_then(|()| stream.synchronize());
        }
        return Ok(true);
    }
    let stream = this.stream(device)?;
    // SAFETY: this is what the contract forbids, and the device has to refuse: the range is mapped read-only,
    // stays mapped, and is device memory, so no memory of a process is at stake. It is in the exchange's own
    // chunk, all copies from there are done, and the owner only compares it. This process makes no other use
    // of the device.
    let written = unsafe { stream.fill(source.addr(), FORBIDDEN, 0, keep(&[source])) };
    let _ = written.and_then(|()| stream.synchronize());
    Ok(true)
}
