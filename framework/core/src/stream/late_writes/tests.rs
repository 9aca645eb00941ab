//! Tests on a device that reports when it has no room, and that has few streams.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::*;
use crate::clock::{ClockDomain, ClockPage, OwnClock, Waited};
use crate::device::fake::Fake;
use crate::device::{Backend, DeviceError, StreamOp};
use crate::ids::ProcessId;
use crate::stream::finish_own_work;

const STUCK: Duration = Duration::from_secs(20);

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
    let fake = Fake::new(1, 2, &[]);
    let gate = domain.allocate_slot().unwrap();
    let stream = Stream::new(&(Arc::clone(&fake) as Arc<dyn Backend>), &domain).unwrap();
    stream.wait([gate.ticket(1)]).unwrap();
    Scene { domain, fake, stream, gate }
}

impl Scene {
    fn crowded(&self, crowded: bool) {
        self.fake.seen.crowded.store(crowded, Ordering::SeqCst);
    }

    fn writes(&self) -> usize {
        self.fake.seen.ops.lock().iter().filter(|op| matches!(op, StreamOp::Advance(_))).count()
    }

    fn reaches(&self, ticket: Ticket) -> bool {
        self.domain.wait(&ticket, Some(Instant::now() + STUCK)).unwrap() == Waited::Passed
    }
}

/// LEASE-2: a drop makes no call that could block; one write stands for all tickets.
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
    // And again, after the thread had a reason to end.
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
    let second = scene.domain.allocate_slot().unwrap();
    scene.crowded(true);
    let late = scene.stream.ticket().unwrap();
    scene.stream.wait([second.ticket(1)]).unwrap();
    let ops = scene.fake.seen.ops.lock().clone();
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
    scene.domain.advance(&second, 1).unwrap();
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
    fake.seen.crowded.store(false, Ordering::SeqCst);
    assert_eq!(domain.wait(&late, Some(Instant::now() + STUCK)).unwrap(), Waited::Passed);
}

/// MBX-2: the device has two streams; a third user shares the one that was shared least.
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
    // A wait for work on the same stream is no wait.
    shared[0].wait(shared[0].ticket()).unwrap();
    drop(second);
    drop(shared);
    let own = Stream::new_or_shared(&device, &scene.domain).unwrap();
    assert!(own != scene.stream, "one was free");
}

/// A process that ends in order also waits for the writes that it owes.
#[test]
fn the_end_waits_for_late_writes() {
    let scene = scene();
    scene.crowded(true);
    let owed = scene.stream.ticket().unwrap();
    assert_eq!(scene.writes(), 0);
    // All promised work is done.
    scene.domain.advance(&scene.gate, 1).unwrap();
    let (tell, ended) = std::sync::mpsc::channel();
    std::thread::scope(|threads| {
        threads.spawn(|| {
            finish_own_work(&scene.domain);
            tell.send(scene.domain.passed(&owed).unwrap()).unwrap();
        });
        // Far longer than the end would take without the wait.
        assert!(ended.recv_timeout(Duration::from_millis(100)).is_err(), "the write is owed still");
        scene.crowded(false);
        assert!(ended.recv_timeout(STUCK).unwrap());
    });
}
