//! A device that says when it has no room, and that has few streams: the host's, with both pretended.

#![expect(unsafe_code, reason = "a device that passes on the unsafe functions of another")]

use std::any::Any;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::*;
use crate::clock::{ClockDomain, ClockPage, OwnClock, Waited};
use crate::device::host::HostBackend;
use crate::device::{
    Access, Backend, ChunkMapping, DeviceError, DeviceKind, Keep, NewChunk, StreamBackend, StreamOp,
};
use crate::ids::{DeviceId, ProcessId};

const STUCK: Duration = Duration::from_secs(20);

#[derive(Debug)]
struct Fake {
    host: Arc<HostBackend>,
    crowded: Arc<AtomicBool>,
    limit: usize,
    streams: Arc<AtomicUsize>,
    ops: Arc<Mutex<Vec<StreamOp>>>,
}

#[derive(Debug)]
struct FakeStream {
    inner: Arc<dyn StreamBackend>,
    crowded: Arc<AtomicBool>,
    ops: Arc<Mutex<Vec<StreamOp>>>,
    streams: Arc<AtomicUsize>,
}

impl Drop for FakeStream {
    fn drop(&mut self) {
        self.streams.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Backend for Fake {
    fn id(&self) -> DeviceId {
        self.host.id()
    }
    fn kind(&self) -> DeviceKind {
        // As a GPU's, whose streams put clock writes off.
        DeviceKind::Cuda
    }
    fn name(&self) -> String {
        "fake".to_owned()
    }
    fn total_bytes(&self) -> u64 {
        self.host.total_bytes()
    }
    fn granularity(&self) -> u64 {
        self.host.granularity()
    }
    fn create_chunk(&self, bytes: u64) -> Result<NewChunk, DeviceError> {
        self.host.create_chunk(bytes)
    }
    fn import_chunk(
        &self,
        fd: BorrowedFd<'_>,
        bytes: u64,
        access: Access,
    ) -> Result<Arc<ChunkMapping>, DeviceError> {
        self.host.import_chunk(fd, bytes, access)
    }
    fn create_stream(
        &self,
        clock: OwnClock,
        domain: Arc<ClockDomain>,
    ) -> Result<Arc<dyn StreamBackend>, DeviceError> {
        if self.streams.load(Ordering::SeqCst) >= self.limit {
            return Err(DeviceError::NoStream { device: self.id(), limit: self.limit });
        }
        self.streams.fetch_add(1, Ordering::SeqCst);
        let inner = self.host.create_stream(clock, domain)?;
        let (crowded, ops, streams) =
            (Arc::clone(&self.crowded), Arc::clone(&self.ops), Arc::clone(&self.streams));
        Ok(Arc::new(FakeStream { inner, crowded, ops, streams }))
    }
    fn stream_limit(&self) -> usize {
        self.limit
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl StreamBackend for FakeStream {
    fn clock_slot(&self) -> u16 {
        self.inner.clock_slot()
    }
    fn submit(&self, ops: &[StreamOp]) -> Result<(), DeviceError> {
        self.ops.lock().extend_from_slice(ops);
        self.inner.submit(ops)
    }
    fn has_room(&self) -> bool {
        !self.crowded.load(Ordering::SeqCst)
    }
    unsafe fn copy(&self, dst: u64, src: u64, bytes: u64, keep: Keep) -> Result<(), DeviceError> {
        // SAFETY: passed on.
        unsafe { self.inner.copy(dst, src, bytes, keep) }
    }
    unsafe fn fill(&self, dst: u64, bytes: u64, value: u8, keep: Keep) -> Result<(), DeviceError> {
        // SAFETY: passed on.
        unsafe { self.inner.fill(dst, bytes, value, keep) }
    }
    unsafe fn upload(&self, dst: u64, src: &[u8], keep: Keep) -> Result<(), DeviceError> {
        // SAFETY: passed on.
        unsafe { self.inner.upload(dst, src, keep) }
    }
    unsafe fn download(&self, dst: &mut [u8], src: u64) -> Result<(), DeviceError> {
        // SAFETY: passed on.
        unsafe { self.inner.download(dst, src) }
    }
    fn synchronize(&self) -> Result<(), DeviceError> {
        self.inner.synchronize()
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

struct Scene {
    domain: Arc<ClockDomain>,
    fake: Arc<Fake>,
    /// A stream with work ahead of it that waits for the clock of a host thread.
    stream: Stream,
    gate: OwnClock,
}

fn scene() -> Scene {
    let id = ProcessId::new(1, 0).unwrap();
    let domain = ClockDomain::new(id, ClockPage::create().unwrap());
    let fake = Arc::new(Fake {
        host: HostBackend::new(),
        crowded: Arc::default(),
        limit: 2,
        streams: Arc::default(),
        ops: Arc::default(),
    });
    let gate = domain.allocate_slot().unwrap();
    let stream = Stream::new(&(Arc::clone(&fake) as Arc<dyn Backend>), &domain).unwrap();
    stream.wait([gate.ticket(1)]).unwrap();
    Scene { domain, fake, stream, gate }
}

impl Scene {
    fn crowded(&self, crowded: bool) {
        self.fake.crowded.store(crowded, Ordering::SeqCst);
    }

    fn writes(&self) -> usize {
        self.fake.ops.lock().iter().filter(|op| matches!(op, StreamOp::Advance(_))).count()
    }

    fn reaches(&self, ticket: Ticket) -> bool {
        self.domain.wait(&ticket, Some(Instant::now() + STUCK)).unwrap() == Waited::Passed
    }
}

/// LEASE-2: what is dropped makes no call that could block; one write stands for all tickets.
#[test]
fn late_writes_become_one() {
    let scene = scene();
    let first = scene.stream.ticket().unwrap();
    assert_eq!(scene.writes(), 1);
    scene.crowded(true);
    let tickets: Vec<Ticket> = (0..1_500).map(|_| scene.stream.ticket().unwrap()).collect();
    assert_eq!(scene.writes(), 1, "a write was made where it could block");
    let last = tickets[1_499];
    assert!(passed_all(last, &tickets) && !passed_all(first, &tickets));
    // The stream moves on, and has room; nobody calls it.
    scene.domain.advance(&scene.gate, 1).unwrap();
    assert!(scene.reaches(first));
    assert!(!scene.domain.passed(&last).unwrap());
    scene.crowded(false);
    assert!(scene.reaches(last));
    assert_eq!(scene.writes(), 2);
    // And again, after the thread has had a reason to end.
    for _ in 0..20 {
        scene.crowded(true);
        let again = scene.stream.ticket().unwrap();
        scene.crowded(false);
        assert!(scene.reaches(again));
    }
}

fn passed_all(now: Ticket, tickets: &[Ticket]) -> bool {
    tickets.iter().all(|ticket| crate::clock::passed(now.value, ticket.value))
}

/// A write stays in front of the waits that come after its ticket was given out.
#[test]
fn a_late_write_precedes_the_next_wait() {
    let scene = scene();
    let mut second = scene.domain.allocate_slot().unwrap();
    scene.crowded(true);
    let late = scene.stream.ticket().unwrap();
    scene.stream.wait([second.ticket(1)]).unwrap();
    let ops = scene.fake.ops.lock().clone();
    assert_eq!(
        ops,
        [
            StreamOp::Wait(scene.gate.ticket(1)),
            StreamOp::Advance(late.value),
            StreamOp::Wait(second.ticket(1))
        ]
    );
    scene.domain.advance(&scene.gate, 1).unwrap();
    assert!(scene.reaches(late), "it waits for what came after it");
    scene.domain.advance(&mut second, 1).unwrap();
}

#[test]
fn a_stream_that_is_dropped_still_writes() {
    let scene = scene();
    scene.crowded(true);
    let late = scene.stream.ticket().unwrap();
    let Scene { domain, fake, stream, gate } = scene;
    drop(stream);
    domain.advance(&gate, 1).unwrap();
    assert!(!domain.passed(&late).unwrap());
    fake.crowded.store(false, Ordering::SeqCst);
    assert_eq!(domain.wait(&late, Some(Instant::now() + STUCK)).unwrap(), Waited::Passed);
}

/// MBX-2: the device has two streams; a third user shares one, whichever was shared less.
#[test]
fn streams_are_shared_where_there_are_no_more() {
    let scene = scene();
    let device = Arc::clone(&scene.fake) as Arc<dyn Backend>;
    let second = Stream::new_or_shared(&device, &scene.domain).unwrap();
    assert!(second != scene.stream);
    let refused = Stream::new(&device, &scene.domain).unwrap_err();
    assert!(matches!(refused, DeviceError::NoStream { limit: 2, .. }));
    assert!(refused.to_string().contains("CUDA_DEVICE_MAX_CONNECTIONS"), "{refused}");
    let shared: Vec<Stream> =
        (0..4).map(|_| Stream::new_or_shared(&device, &scene.domain).unwrap()).collect();
    for one in [&scene.stream, &second] {
        assert_eq!(shared.iter().filter(|stream| *stream == one).count(), 2);
    }
    // A wait for what is on the same stream already is none.
    shared[0].wait(shared[0].ticket()).unwrap();
    drop(second);
    drop(shared);
    let own = Stream::new_or_shared(&device, &scene.domain).unwrap();
    assert!(own != scene.stream, "one was free");
}
