//! The contract of every [`Backend`], as one suite.
//!
//! ```
//! # #[cfg(feature = "testing")] {
//! # use std::sync::Arc;
//! use tensorpost_core::device::{Backend, conformance, host::HostBackend};
//! conformance::run_all(&|| HostBackend::new() as Arc<dyn Backend>);
//! # }
//! ```
//! [`CASES`] lists the cases by name, for a harness that shows them one by one.

#![expect(unsafe_code, reason = "streams copy between raw addresses")]

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Access, Backend, ChunkMapping, DeviceError, Keep, StreamBackend, StreamOp};
use crate::clock::{ClockDomain, ClockPage, OwnClock, RELEASED, Ticket, Waited};
use crate::ids::ProcessId;
use crate::limits::MAX_STREAMS;

/// Makes the device under test, once per case.
pub type Make<'a> = &'a dyn Fn() -> Arc<dyn Backend>;

/// A case and its name. It panics if the device fails it.
pub type Case = (&'static str, fn(Make<'_>));

/// All cases.
pub const CASES: &[Case] = &[
    ("a_device_describes_itself", a_device_describes_itself),
    ("chunks_are_whole_and_zeroed", chunks_are_whole_and_zeroed),
    ("an_import_sees_the_same_bytes", an_import_sees_the_same_bytes),
    ("a_mapping_outlives_its_creator", a_mapping_outlives_its_creator),
    ("forged_chunks_are_refused", forged_chunks_are_refused),
    ("bytes_go_up_across_and_down", bytes_go_up_across_and_down),
    ("nothing_is_a_valid_size", nothing_is_a_valid_size),
    ("a_stream_keeps_its_order", a_stream_keeps_its_order),
    ("a_passed_wait_costs_nothing", a_passed_wait_costs_nothing),
    ("a_wait_holds_back_what_follows", a_wait_holds_back_what_follows),
    ("a_wait_on_another_process_ends", a_wait_on_another_process_ends),
    ("a_release_ends_a_wait", a_release_ends_a_wait),
    ("waits_compare_cyclically", waits_compare_cyclically),
    ("a_batch_with_an_unknown_clock_does_nothing", a_batch_with_an_unknown_clock_does_nothing),
    ("every_stream_can_wait_at_once", every_stream_can_wait_at_once),
    ("one_stream_goes_on_while_all_others_wait", one_stream_goes_on_while_all_others_wait),
    ("streams_come_and_go_within_the_limit", streams_come_and_go_within_the_limit),
    ("a_dropped_stream_finishes", a_dropped_stream_finishes),
    ("hand_overs_lose_nothing", hand_overs_lose_nothing),
];

/// Runs every case on this thread, and names the first one that fails before it panics.
pub fn run_all(make: Make<'_>) {
    for (name, case) in CASES {
        println!("device conformance: {name}");
        case(make);
    }
}

/// How long anything here may take before it counts as hung.
const STUCK: Duration = Duration::from_secs(20);

/// A process with a device, as far as the clocks are concerned.
struct Process {
    device: Arc<dyn Backend>,
    domain: Arc<ClockDomain>,
}

impl Process {
    fn new(make: Make<'_>, slot: u16) -> Self {
        Self::with_page(make, slot, ClockPage::create().unwrap())
    }

    fn with_page(make: Make<'_>, slot: u16, page: Arc<ClockPage>) -> Self {
        Process { device: make(), domain: ClockDomain::new(ProcessId::new(slot, 0).unwrap(), page) }
    }

    /// Opens the other's page by descriptor, as between processes.
    fn meet(&self, other: &Process) {
        let page = ClockPage::open(other.domain.own_page().export_fd().unwrap()).unwrap();
        self.domain.add_peer(other.domain.own(), page);
    }

    fn stream(&self) -> Arc<dyn StreamBackend> {
        let clock = self.domain.allocate_slot().unwrap();
        self.device.create_stream(clock, Arc::clone(&self.domain)).unwrap()
    }

    fn chunk(&self) -> Arc<ChunkMapping> {
        self.device.create_chunk(self.device.granularity()).unwrap().mapping
    }

    /// Returns a clock that the test advances by hand, in place of a stream.
    fn clock(&self) -> OwnClock {
        self.domain.allocate_slot().unwrap()
    }

    /// Returns as many streams as there can be.
    fn all_streams(&self) -> Vec<Arc<dyn StreamBackend>> {
        (0..self.device.stream_limit()).map(|_| self.stream()).collect()
    }

    /// Returns one more stream, once a dropped stream has given its clock back.
    fn stream_soon(&self) -> Arc<dyn StreamBackend> {
        let deadline = Instant::now() + STUCK;
        loop {
            match self.domain.allocate_slot() {
                Ok(clock) => return self.device.create_stream(clock, Arc::clone(&self.domain)).unwrap(),
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
            std::thread::yield_now();
        }
    }

    fn ticket(&self, stream: &Arc<dyn StreamBackend>, value: u64) -> Ticket {
        Ticket { process: self.domain.own(), slot: stream.clock_slot(), value }
    }

    fn reaches(&self, ticket: Ticket) -> bool {
        self.domain.wait(&ticket, Some(Instant::now() + STUCK)).unwrap() == Waited::Passed
    }
}

fn keep(mappings: &[&Arc<ChunkMapping>]) -> Keep {
    mappings.iter().map(|mapping| Arc::clone(mapping)).collect()
}

fn upload(stream: &Arc<dyn StreamBackend>, to: &Arc<ChunkMapping>, offset: u64, bytes: &[u8]) {
    let dst = to.range(offset, bytes.len() as u64).unwrap();
    // SAFETY: the range is in a writable mapping that is kept, and these tests order their uses of it by
    // stream.
    unsafe { stream.upload(dst, bytes, keep(&[to])) }.unwrap();
}

fn download(stream: &Arc<dyn StreamBackend>, from: &Arc<ChunkMapping>, offset: u64, bytes: usize) -> Vec<u8> {
    let mut seen = vec![0xab; bytes];
    // SAFETY: the range is in a mapping that outlives the call, and these tests order their uses of it by
    // stream.
    unsafe { stream.download(&mut seen, from.range(offset, bytes as u64).unwrap()) }.unwrap();
    seen
}

fn fill(stream: &Arc<dyn StreamBackend>, to: &Arc<ChunkMapping>, offset: u64, bytes: u64, value: u8) {
    // SAFETY: as in `upload`.
    unsafe { stream.fill(to.range(offset, bytes).unwrap(), bytes, value, keep(&[to])) }.unwrap();
}

fn copy(
    stream: &Arc<dyn StreamBackend>,
    to: (&Arc<ChunkMapping>, u64),
    from: (&Arc<ChunkMapping>, u64),
    bytes: u64,
) {
    let (dst, src) = (to.0.range(to.1, bytes).unwrap(), from.0.range(from.1, bytes).unwrap());
    // SAFETY: as in `upload`; the callers pass ranges that do not overlap.
    unsafe { stream.copy(dst, src, bytes, keep(&[to.0, from.0])) }.unwrap();
}

fn a_device_describes_itself(make: Make<'_>) {
    let (one, two) = (make(), make());
    assert_eq!((one.id(), one.kind()), (two.id(), two.kind()));
    assert!(!one.name().is_empty() && one.granularity().is_power_of_two());
}

fn chunks_are_whole_and_zeroed(make: Make<'_>) {
    let process = Process::new(make, 1);
    let granularity = process.device.granularity();
    let chunk = process.device.create_chunk(granularity + 1).unwrap().mapping;
    assert_eq!((chunk.len(), chunk.access()), (2 * granularity, Access::ReadWrite));
    assert_eq!(chunk.device(), process.device.id());
    assert!(chunk.range(0, chunk.len()).is_some() && chunk.range(1, chunk.len()).is_none());
    assert!(chunk.range(u64::MAX, 2).is_none());
    let stream = process.stream();
    assert!(download(&stream, &chunk, 0, chunk.len() as usize).iter().all(|&byte| byte == 0));
    assert!(process.device.create_chunk(0).is_err());
    assert!(process.device.create_chunk(u64::MAX).is_err());
}

fn an_import_sees_the_same_bytes(make: Make<'_>) {
    let (owner, peer) = (Process::new(make, 1), Process::new(make, 2));
    let chunk = owner.device.create_chunk(1).unwrap();
    let len = chunk.mapping.len();
    let reader = peer.device.import_chunk(chunk.read_only.as_fd(), len, Access::ReadOnly).unwrap();
    let writer = peer.device.import_chunk(chunk.read_write.as_fd(), len, Access::ReadWrite).unwrap();
    assert_eq!((reader.access(), writer.access()), (Access::ReadOnly, Access::ReadWrite));
    assert_eq!((reader.len(), reader.device()), (len, owner.device.id()));
    let (ours, theirs) = (owner.stream(), peer.stream());
    upload(&ours, &chunk.mapping, 100, b"from the owner");
    ours.synchronize().unwrap();
    assert_eq!(download(&theirs, &reader, 100, 14), b"from the owner");
    upload(&theirs, &writer, 200, b"from the peer");
    theirs.synchronize().unwrap();
    assert_eq!(download(&ours, &chunk.mapping, 200, 13), b"from the peer");
    assert_eq!(download(&theirs, &reader, 200, 13), b"from the peer");
}

/// LEASE-4: memory stays valid for its holders when its owner has ended.
fn a_mapping_outlives_its_creator(make: Make<'_>) {
    let peer = Process::new(make, 2);
    let reader = {
        let owner = Process::new(make, 1);
        let chunk = owner.device.create_chunk(1).unwrap();
        let stream = owner.stream();
        upload(&stream, &chunk.mapping, 0, b"still here");
        stream.synchronize().unwrap();
        peer.device.import_chunk(chunk.read_only.as_fd(), chunk.mapping.len(), Access::ReadOnly).unwrap()
    };
    assert_eq!(download(&peer.stream(), &reader, 0, 10), b"still here");
}

/// WIRE-1.
fn forged_chunks_are_refused(make: Make<'_>) {
    let device = make();
    let chunk = device.create_chunk(1).unwrap();
    let len = chunk.mapping.len();
    let refused = |fd: BorrowedFd<'_>, bytes| device.import_chunk(fd, bytes, Access::ReadOnly).is_err();
    assert!(refused(chunk.read_only.as_fd(), 2 * len), "larger than it is");
    assert!(refused(chunk.read_only.as_fd(), 0), "empty");
    assert!(refused(chunk.read_only.as_fd(), u64::MAX), "larger than can be");
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    assert!(refused(file.as_fd(), len), "a file");
    let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    assert!(refused(socket.as_fd(), len), "a socket");
    device.import_chunk(chunk.read_only.as_fd(), len, Access::ReadOnly).unwrap();
}

fn bytes_go_up_across_and_down(make: Make<'_>) {
    let process = Process::new(make, 1);
    let (stream, chunk) = (process.stream(), process.device.create_chunk(4 << 20).unwrap().mapping);
    // Some are small, and some too large for any short cut.
    for bytes in [1_u64, 7, 4096, 2 << 20] {
        let pattern: Vec<u8> = (0..bytes).map(|i| (i * 7 + bytes) as u8).collect();
        let half = chunk.len() / 2;
        upload(&stream, &chunk, 0, &pattern);
        copy(&stream, (&chunk, half), (&chunk, 0), bytes);
        fill(&stream, &chunk, 0, bytes, 0x5a);
        assert_eq!(download(&stream, &chunk, half, bytes as usize), pattern, "{bytes} bytes");
        assert!(download(&stream, &chunk, 0, bytes as usize).iter().all(|&byte| byte == 0x5a));
    }
}

fn nothing_is_a_valid_size(make: Make<'_>) {
    let process = Process::new(make, 1);
    let (stream, chunk) = (process.stream(), process.chunk());
    upload(&stream, &chunk, 0, &[]);
    fill(&stream, &chunk, chunk.len(), 0, 1);
    copy(&stream, (&chunk, 0), (&chunk, 0), 0);
    assert!(download(&stream, &chunk, 0, 0).is_empty());
    stream.submit(&[]).unwrap();
    stream.synchronize().unwrap();
}

fn a_stream_keeps_its_order(make: Make<'_>) {
    let process = Process::new(make, 1);
    let (stream, chunk, gate) = (process.stream(), process.chunk(), process.clock());
    // Runs once at the stream's own pace and once held back, so that both the short cuts and the queue are
    // used.
    for held in [false, true] {
        let value = gate.value() + 1;
        if held {
            stream.submit(&[StreamOp::Wait(gate.ticket(value))]).unwrap();
        }
        for step in 0..100_u8 {
            fill(&stream, &chunk, 0, 64, step);
            copy(&stream, (&chunk, 64 + 8 * u64::from(step)), (&chunk, 0), 8);
        }
        upload(&stream, &chunk, 0, b"the last");
        process.domain.advance(&gate, value).unwrap();
        assert_eq!(download(&stream, &chunk, 0, 8), b"the last");
        let seen = download(&stream, &chunk, 64, 800);
        let expected: Vec<u8> = (0..100_u8).flat_map(|step| [step; 8]).collect();
        assert_eq!(seen, expected, "held: {held}");
    }
}

fn a_passed_wait_costs_nothing(make: Make<'_>) {
    let process = Process::new(make, 1);
    let (stream, gate) = (process.stream(), process.clock());
    process.domain.advance(&gate, 3).unwrap();
    stream
        .submit(&[StreamOp::Wait(gate.ticket(3)), StreamOp::Wait(gate.ticket(1)), StreamOp::Advance(1)])
        .unwrap();
    assert!(process.reaches(process.ticket(&stream, 1)));
}

/// CLOCK-1: work behind a wait is not done before the clock has passed, and the submitter does not wait.
fn a_wait_holds_back_what_follows(make: Make<'_>) {
    let process = Process::new(make, 1);
    let (first, second, chunk) = (process.stream(), process.stream(), process.chunk());
    let gate = process.clock();
    second.submit(&[StreamOp::Wait(process.ticket(&first, 2))]).unwrap();
    copy(&second, (&chunk, 64), (&chunk, 0), 5);
    second.submit(&[StreamOp::Advance(1)]).unwrap();
    first.submit(&[StreamOp::Advance(1), StreamOp::Wait(gate.ticket(1))]).unwrap();
    upload(&first, &chunk, 0, b"ready");
    first.submit(&[StreamOp::Advance(2)]).unwrap();
    assert!(process.reaches(process.ticket(&first, 1)));
    assert!(!process.domain.passed(&process.ticket(&second, 1)).unwrap());
    process.domain.advance(&gate, 1).unwrap();
    assert!(process.reaches(process.ticket(&second, 1)));
    assert_eq!(download(&second, &chunk, 64, 5), b"ready");
}

fn a_wait_on_another_process_ends(make: Make<'_>) {
    let (sender, receiver) = (Process::new(make, 1), Process::new(make, 2));
    receiver.meet(&sender);
    sender.meet(&receiver);
    let chunk = sender.device.create_chunk(1).unwrap();
    let (len, access) = (chunk.mapping.len(), Access::ReadOnly);
    let view = receiver.device.import_chunk(chunk.read_only.as_fd(), len, access).unwrap();
    let (theirs, ours, copied) = (sender.stream(), receiver.stream(), receiver.chunk());
    for round in 1..=50_u64 {
        ours.submit(&[StreamOp::Wait(sender.ticket(&theirs, round))]).unwrap();
        copy(&ours, (&copied, 0), (&view, 0), 256);
        ours.submit(&[StreamOp::Advance(round)]).unwrap();
        fill(&theirs, &chunk.mapping, 0, 256, round as u8);
        theirs.submit(&[StreamOp::Advance(round)]).unwrap();
        assert_eq!(download(&ours, &copied, 0, 256), [round as u8; 256]);
        assert!(receiver.domain.passed(&receiver.ticket(&ours, round)).unwrap());
    }
}

/// DEATH-1.
fn a_release_ends_a_wait(make: Make<'_>) {
    let node = ClockPage::prepare().unwrap();
    let page = ClockPage::adopt(node.writable_fd().unwrap().try_clone_to_owned().unwrap()).unwrap();
    let (dead, receiver) = (Process::with_page(make, 1, page), Process::new(make, 2));
    receiver.meet(&dead);
    let stream = receiver.stream();
    let ticket = dead.clock().ticket(1_000_000);
    stream.submit(&[StreamOp::Wait(ticket), StreamOp::Advance(1)]).unwrap();
    assert!(!receiver.domain.passed(&receiver.ticket(&stream, 1)).unwrap());
    node.release_all().unwrap();
    assert!(receiver.reaches(receiver.ticket(&stream, 1)));
    stream.synchronize().unwrap();
}

fn waits_compare_cyclically(make: Make<'_>) {
    let process = Process::new(make, 1);
    let (stream, gate) = (process.stream(), process.clock());
    // These values lie behind the clock on the circle, though they are larger numbers.
    let behind = [0, u64::MAX, u64::MAX - 5, RELEASED.wrapping_neg()];
    let mut ops: Vec<_> = behind.iter().map(|&value| StreamOp::Wait(gate.ticket(value))).collect();
    ops.push(StreamOp::Advance(1));
    stream.submit(&ops).unwrap();
    assert!(process.reaches(process.ticket(&stream, 1)));
    // This value lies ahead, though only the sign bit of the difference says so.
    stream.submit(&[StreamOp::Wait(gate.ticket(1 << 61)), StreamOp::Advance(2)]).unwrap();
    assert!(!process.domain.passed(&process.ticket(&stream, 2)).unwrap());
    process.domain.advance(&gate, RELEASED).unwrap();
    assert!(process.reaches(process.ticket(&stream, 2)));
}

fn a_batch_with_an_unknown_clock_does_nothing(make: Make<'_>) {
    let process = Process::new(make, 1);
    let stream = process.stream();
    let own = process.domain.own();
    for (process_id, slot) in [(ProcessId::new(7, 0).unwrap(), 0), (own, MAX_STREAMS as u16), (own, u16::MAX)]
    {
        let stranger = Ticket { process: process_id, slot, value: 0 };
        let batch = stream.submit(&[StreamOp::Advance(9), StreamOp::Wait(stranger)]);
        assert!(matches!(batch, Err(DeviceError::Clock(_))), "{batch:?}");
    }
    stream.synchronize().unwrap();
    assert!(!process.domain.passed(&process.ticket(&stream, 9)).unwrap());
    let foreign = Process::new(make, 2).clock();
    assert!(process.device.create_stream(foreign, Arc::clone(&process.domain)).is_err());
}

/// MBX-2: all streams wait at once, each for the next one, and are released from the far end.
fn every_stream_can_wait_at_once(make: Make<'_>) {
    let process = Process::new(make, 1);
    let streams = process.all_streams();
    for (stream, next) in streams.iter().zip(&streams[1..]) {
        stream.submit(&[StreamOp::Wait(process.ticket(next, 1)), StreamOp::Advance(1)]).unwrap();
    }
    assert!(!process.domain.passed(&process.ticket(&streams[0], 1)).unwrap());
    streams[streams.len() - 1].submit(&[StreamOp::Advance(1)]).unwrap();
    assert!(process.reaches(process.ticket(&streams[0], 1)));
}

/// Any one stream goes on: waiting streams stall no other.
fn one_stream_goes_on_while_all_others_wait(make: Make<'_>) {
    let process = Process::new(make, 1);
    // A GPU may have only one stream.
    if process.device.stream_limit() < 2 {
        return;
    }
    let streams = process.all_streams();
    let others = Process::new(make, 2);
    process.meet(&others);
    let gate = others.clock();
    for (round, free) in (1..).zip(&streams) {
        for stream in streams.iter().filter(|stream| !Arc::ptr_eq(stream, free)) {
            stream.submit(&[StreamOp::Wait(gate.ticket(round)), StreamOp::Advance(round)]).unwrap();
        }
        let chunk = process.chunk();
        fill(free, &chunk, 0, 256, round as u8);
        free.submit(&[StreamOp::Advance(round)]).unwrap();
        assert!(process.reaches(process.ticket(free, round)), "stream {round} was stalled");
        assert_eq!(download(free, &chunk, 0, 256), [round as u8; 256]);
        // The device's own work goes on as well: it zeroes a new chunk.
        assert!(process.device.create_chunk(1).is_ok());
        others.domain.advance(&gate, round).unwrap();
        assert!(streams.iter().all(|stream| process.reaches(process.ticket(stream, round))));
    }
}

/// The limit counts existing streams. Dropped streams do not count, even if their work is not done.
fn streams_come_and_go_within_the_limit(make: Make<'_>) {
    let process = Process::new(make, 1);
    let limit = process.device.stream_limit();
    assert!((1..=MAX_STREAMS).contains(&limit));
    let mut streams = process.all_streams();
    if limit < MAX_STREAMS {
        let clock = process.domain.allocate_slot().unwrap();
        let one_more = process.device.create_stream(clock, Arc::clone(&process.domain));
        assert!(matches!(one_more, Err(DeviceError::NoStream { limit: said, .. }) if said == limit));
    } else {
        assert!(process.domain.allocate_slot().is_err());
    }
    let others = Process::new(make, 2);
    process.meet(&others);
    let gate = others.clock();
    for round in 1..=3 {
        // One stream is done when it is dropped, and one is not.
        for busy in [true, false] {
            let stream = streams.remove(0);
            let value = process.domain.own_page().load(stream.clock_slot()).unwrap() + 1;
            let done = process.ticket(&stream, value);
            let wait = busy.then_some(StreamOp::Wait(gate.ticket(round)));
            let ops: Vec<_> = wait.into_iter().chain([StreamOp::Advance(value)]).collect();
            stream.submit(&ops).unwrap();
            assert!(busy || process.reaches(done));
            drop(stream);
            if limit < MAX_STREAMS {
                streams.push(process.stream());
            }
            if busy {
                others.domain.advance(&gate, round).unwrap();
                assert!(process.reaches(done));
            }
            if limit == MAX_STREAMS {
                streams.push(process.stream_soon());
            }
        }
    }
    for stream in &streams {
        stream.synchronize().unwrap();
    }
}

/// LEASE-2: dropping a stream does not block, and submitted work is still done.
fn a_dropped_stream_finishes(make: Make<'_>) {
    let process = Process::new(make, 1);
    let (stream, gate) = (process.stream(), process.clock());
    let done = process.ticket(&stream, 1);
    stream.submit(&[StreamOp::Wait(gate.ticket(1)), StreamOp::Advance(1)]).unwrap();
    drop(stream);
    assert!(!process.domain.passed(&done).unwrap());
    process.domain.advance(&gate, 1).unwrap();
    assert!(process.reaches(done));
}

/// CLOCK-1 and CLOCK-2 together: two buffers alternate, and each is overwritten only when its reader's clock
/// has passed.
fn hand_overs_lose_nothing(make: Make<'_>) {
    const ROUNDS: u64 = 300;
    const BYTES: u64 = 1024;
    let (sender, receiver) = (Process::new(make, 1), Process::new(make, 2));
    receiver.meet(&sender);
    sender.meet(&receiver);
    let chunk = sender.device.create_chunk(2 * BYTES).unwrap();
    let (len, access) = (chunk.mapping.len(), Access::ReadOnly);
    let view = receiver.device.import_chunk(chunk.read_only.as_fd(), len, access).unwrap();
    let log = receiver.device.create_chunk(ROUNDS * BYTES).unwrap().mapping;
    let (theirs, ours) = (sender.stream(), receiver.stream());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=ROUNDS {
                if round > 2 {
                    theirs.submit(&[StreamOp::Wait(receiver.ticket(&ours, round - 2))]).unwrap();
                }
                fill(&theirs, &chunk.mapping, (round % 2) * BYTES, BYTES, round as u8);
                theirs.submit(&[StreamOp::Advance(round)]).unwrap();
            }
        });
        for round in 1..=ROUNDS {
            ours.submit(&[StreamOp::Wait(sender.ticket(&theirs, round))]).unwrap();
            copy(&ours, (&log, (round - 1) * BYTES), (&view, (round % 2) * BYTES), BYTES);
            ours.submit(&[StreamOp::Advance(round)]).unwrap();
        }
    });
    let seen = download(&ours, &log, 0, (ROUNDS * BYTES) as usize);
    for (round, bytes) in (1..=ROUNDS).zip(seen.chunks(BYTES as usize)) {
        assert!(bytes.iter().all(|&byte| byte == round as u8), "round {round} was overwritten");
    }
}
