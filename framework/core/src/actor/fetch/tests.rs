//! Fetches between three fake GPUs and the host.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;
use std::time::{Duration, Instant};

use super::*;
use crate::clock::{ClockDomain, ClockPage, OwnClock};
use crate::device::fake::Fake;
use crate::device::host::HostBackend;
use crate::ids::ProcessId;
use crate::lease::pool::tests::Script;
use crate::lease::{Pool, PoolOptions};
use crate::tensor::Tensor;

const STUCK: Duration = Duration::from_secs(20);

struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Device 1 reaches device 2, and neither reaches device 3. The host is there as well.
struct Scene {
    domain: Arc<ClockDomain>,
    fakes: [Arc<Fake>; 3],
    gpus: [DeviceStream; 3],
    host: DeviceStream,
    woken: Arc<Woken>,
}

fn scene(budget: u64) -> Scene {
    let process = ProcessId::new(1, 0).unwrap();
    let domain = ClockDomain::new(process, ClockPage::create().unwrap());
    let fakes = [Fake::new(1, 4, &[2]), Fake::new(2, 4, &[1]), Fake::new(3, 4, &[])];
    let stream = |device: Arc<dyn Backend>, base: u32| {
        let options = PoolOptions { budget, first_chunk: 1 << 20 };
        let pool = Pool::new(device, Arc::clone(&domain), options, base << 24);
        DeviceStream::new(pool, Arc::clone(&domain)).unwrap()
    };
    let gpus = [0, 1, 2].map(|index| stream(Arc::clone(&fakes[index]) as Arc<dyn Backend>, index as u32));
    let host = stream(HostBackend::new(), 3);
    Scene { domain, fakes, gpus, host, woken: Arc::new(Woken(AtomicUsize::new(0))) }
}

impl Scene {
    /// Fetches as an actor does that wants all tensors on `stream`.
    fn fetch(
        &self,
        stream: &DeviceStream,
        tensors: &[&Tensor],
    ) -> Poll<Result<(Vec<Tensor>, Moved), TensorError>> {
        let mut leases = Leases::new();
        let mut outlines = Vec::new();
        for tensor in tensors {
            let known = leases.iter().position(|(lease, _)| lease.same_as(tensor.lease()));
            let lease = known.unwrap_or_else(|| {
                leases.push((tensor.lease().clone(), tensor.ready()));
                leases.len() - 1
            });
            outlines.push(Outline { lease: lease as u16, dtype: tensor.dtype(), layout: *tensor.layout() });
        }
        let backend_of = |device| {
            let known = self.gpus.iter().chain([&self.host]).find(|stream| stream.device_id() == device);
            Ok(Arc::clone(known.unwrap().pool().backend()))
        };
        let here = stream.device_id();
        let waker = Waker::from(Arc::clone(&self.woken));
        let fetches = Fetches::default();
        fetches.fetch(stream, &mut leases, &mut outlines, |device| device != here, backend_of, &waker).map(
            |moved| {
                let tensors = crate::message::codec::tensors(&leases, &outlines).unwrap();
                moved.map(|moved| (tensors, moved))
            },
        )
    }

    fn fetched(&self, stream: &DeviceStream, tensors: &[&Tensor]) -> (Vec<Tensor>, Moved) {
        match self.fetch(stream, tensors) {
            Poll::Ready(result) => result.unwrap(),
            Poll::Pending => panic!("there is room"),
        }
    }

    /// Makes a tensor of `count` numbers from `first`, ready when `gate` has passed 1.
    fn behind(&self, stream: &DeviceStream, gate: &OwnClock, count: u32, first: u32) -> Tensor {
        stream.clocked().wait([gate.ticket(1)]).unwrap();
        let numbers: Vec<u32> = (first..first + count).collect();
        stream.from_slice(&[count as usize], &numbers).unwrap().freeze()
    }

    fn copies(&self) -> [usize; 3] {
        [0, 1, 2].map(|index| self.fakes[index].seen.copies.load(Ordering::SeqCst))
    }
}

/// Takes all memory of a pool but one unit.
fn all_but_one_unit(stream: &DeviceStream) -> Vec<TensorMut> {
    let unit = || stream.empty(DType::U8, &[ALLOCATION_UNIT as usize]).ok();
    let mut taken: Vec<_> = std::iter::from_fn(unit).collect();
    drop(taken.pop());
    taken
}

fn numbers(stream: &DeviceStream, tensor: &Tensor) -> Vec<u32> {
    stream.download(tensor).unwrap()
}

#[test]
fn what_is_here_stays_what_it_is() {
    let scene = scene(1 << 22);
    let here = scene.gpus[0].from_slice(&[2], &[1_u32, 2]).unwrap().freeze();
    let (same, moved) = scene.fetched(&scene.gpus[0], &[&here]);
    assert!(same[0].lease().same_as(here.lease()) && moved == Moved::default());
    assert_eq!(scene.copies(), [0; 3]);
}

/// CLOCK-1 and CLOCK-2: there is one copy, which waits for the data, and the source's reuse waits for the
/// copy.
#[test]
fn memory_in_reach_is_copied_once() {
    let scene = scene(1 << 22);
    let (from, to) = (&scene.gpus[0], &scene.gpus[1]);
    let gate = scene.domain.allocate_slot().unwrap();
    let source = scene.behind(from, &gate, 1000, 7);
    let (fetched, moved) = scene.fetched(to, &[&source]);
    assert_eq!((moved.bytes, moved.staged), (4000, 0));
    assert_eq!((scene.copies(), fetched[0].device()), ([0, 1, 0], to.device_id()));
    let ready = fetched[0].ready().expect("it cannot be there yet");
    assert!(!scene.domain.passed(&ready).unwrap());
    // The source is dropped; its memory is not free before the copy has passed.
    drop(source);
    let stats = from.pool().stats();
    assert_eq!(stats.allocations, 0);
    assert!(stats.quarantined_bytes > 0, "{stats:?}");
    scene.domain.advance(&gate, 1).unwrap();
    assert_eq!(numbers(to, &fetched[0]), (7..1007).collect::<Vec<u32>>());
    // Only the receiver has the copy.
    let mut fetched = fetched;
    assert!(fetched.remove(0).into_mut(to).is_ok());
}

#[test]
fn memory_out_of_reach_is_staged_in_pieces() {
    let scene = scene(1 << 27);
    let gate = scene.domain.allocate_slot().unwrap();
    let count = (6 * STAGING_BYTES / 4 + 100) as u32;
    for (from, to) in [(0, 2), (2, 1)] {
        let source = scene.behind(&scene.gpus[from], &gate, count, 5);
        let (fetched, moved) = scene.fetched(&scene.gpus[to], &[&source]);
        assert_eq!((moved.bytes, moved.staged), (u64::from(count) * 4, u64::from(count) * 4));
        // The blocks are reused.
        assert_eq!(scene.fakes[from].seen.staging.load(Ordering::SeqCst), PIECES);
        drop(source);
        scene.domain.advance(&gate, 1).unwrap();
        assert_eq!(numbers(&scene.gpus[to], &fetched[0]), (5..5 + count).collect::<Vec<u32>>());
    }
}

/// Between a GPU and the host there is always a copy through page-locked memory, which does not count as
/// staging.
#[test]
fn the_host_and_a_gpu_fetch_from_each_other() {
    let scene = scene(1 << 24);
    let gate = scene.domain.allocate_slot().unwrap();
    for (from, to) in [(&scene.host, &scene.gpus[0]), (&scene.gpus[0], &scene.host)] {
        let source = scene.behind(from, &gate, 1000, 3);
        let (fetched, moved) = scene.fetched(to, &[&source]);
        assert_eq!((moved.bytes, moved.staged), (4000, 0));
        scene.domain.advance(&gate, 1).unwrap();
        assert_eq!(numbers(to, &fetched[0]), (3..1003).collect::<Vec<u32>>());
        assert!(scene.fakes[0].seen.staging.load(Ordering::SeqCst) > 0);
    }
}

/// The part of a lease that several tensors of a message see is copied once; the rest is not copied.
#[test]
fn slices_of_one_tensor_stay_on_one_lease() {
    let scene = scene(1 << 24);
    let (from, to) = (&scene.gpus[0], &scene.gpus[1]);
    let all: Vec<u32> = (0..100_000).collect();
    let whole = from.from_slice(&[1000, 100], &all).unwrap().freeze();
    let (rows, column) = (whole.slice(0, 500..510).unwrap(), whole.slice(0, 505..600).unwrap());
    let column = column.index(1, 7).unwrap();
    let other = from.from_slice(&[3], &[7_u32, 8, 9]).unwrap().freeze();
    let (fetched, moved) = scene.fetched(to, &[&rows, &other, &column]);
    assert!(fetched[0].lease().same_as(fetched[2].lease()));
    assert!(!fetched[0].lease().same_as(fetched[1].lease()));
    assert_eq!(scene.copies(), [0, 2, 0]);
    assert!(moved.bytes < 100 * 101 * 4 + ALLOCATION_UNIT + 16, "{moved:?}");
    assert_eq!(numbers(to, &fetched[0]), all[50_000..51_000]);
    assert_eq!(numbers(to, &fetched[1]), [7, 8, 9]);
    let expected: Vec<u32> = (505..600).map(|row| row * 100 + 7).collect();
    assert_eq!(numbers(to, &fetched[2]), expected);
    let empty = whole.slice(0, 3..3).unwrap();
    let (fetched, _) = scene.fetched(to, &[&empty]);
    assert_eq!((fetched[0].len(), fetched[0].device()), (0, to.device_id()));
}

/// MBX-2: a full pool makes the message wait, with nothing taken. A pool that can never hold it gives an
/// error.
#[test]
fn a_full_pool_is_waited_for() {
    let scene = scene(1 << 20);
    let (from, to) = (&scene.gpus[0], &scene.gpus[1]);
    let sources = [300 << 10, 300 << 10].map(|bytes| from.zeros(DType::U8, &[bytes]).unwrap().freeze());
    let both = [&sources[0], &sources[1]];
    let held = to.zeros(DType::U8, &[600 << 10]).unwrap();
    to.synchronize().unwrap();
    assert!(scene.fetch(to, &both).is_pending());
    assert_eq!(scene.woken.0.load(Ordering::SeqCst), 0, "it would look again and again");
    assert_eq!((to.pool().stats().allocations, scene.copies()), (1, [0; 3]));
    drop(held);
    let deadline = Instant::now() + STUCK;
    while scene.woken.0.load(Ordering::SeqCst) == 0 {
        assert!(Instant::now() < deadline, "nobody was woken");
        std::thread::yield_now();
    }
    let (fetched, moved) = scene.fetched(to, &both);
    assert_eq!((fetched.len(), moved.bytes), (2, 600 << 10));
    drop(fetched);
    let large = scene.host.empty(DType::U8, &[900 << 10]).unwrap().freeze();
    let Poll::Ready(Err(error)) = scene.fetch(to, &[&large, &sources[0], &sources[1]]) else {
        panic!("there can never be room");
    };
    assert!(matches!(error, TensorError::Pool(PoolError::TooLarge { .. })), "{error}");
}

/// Two tensors of half a unit each need a unit each. With one unit free there is no room, and the task must
/// not be polled again and again.
#[test]
fn who_waits_for_room_is_woken_when_some_comes_back_and_not_before() {
    let scene = scene(1 << 20);
    let stream = &scene.gpus[1];
    let there = [0_u32, 1].map(|n| scene.gpus[0].from_slice(&[1], &[n]).unwrap().freeze());
    let mut taken = all_but_one_unit(stream);
    // Polls as a runtime does: once more for each wake-up, and now and then for another reason.
    let woken = || scene.woken.0.load(Ordering::SeqCst);
    let mut polls = 0;
    for _something_else in 0..3 {
        let mut before = usize::MAX;
        while woken() != before {
            before = woken();
            assert!(scene.fetch(stream, &[&there[0], &there[1]]).is_pending());
            polls += 1;
            assert!(polls < 20, "it spins");
        }
    }
    let before = woken();
    drop(taken.pop());
    assert_eq!(woken(), before + 1, "once, however often it has looked");
    let (tensors, _) = scene.fetched(stream, &[&there[0], &there[1]]);
    assert_eq!([0, 1].map(|n| numbers(stream, &tensors[n])[0]), [0, 1]);
}

/// An actor's task has one waker for all its futures. A wait of another future is not forgotten when a fetch
/// finds room.
#[test]
fn who_waits_by_the_same_waker_is_polled_again() {
    let scene = scene(1 << 20);
    let (stream, waker) = (&scene.gpus[1], Waker::from(Arc::clone(&scene.woken)));
    let there = scene.gpus[0].from_slice(&[1], &[7_u32]).unwrap().freeze();
    let held = stream.empty(DType::U8, &[600 << 10]).unwrap();
    assert!(stream.pool().poll_allocate(600 << 10, &waker).is_err());
    drop(scene.fetched(stream, &[&there]));
    assert_eq!(scene.woken.0.load(Ordering::SeqCst), 1);
    drop(held);
}

/// Another thread gives memory back while an attempt gives back its own. That wakes nobody, so the attempt
/// has to notice it.
#[test]
fn memory_that_comes_back_during_a_look_is_not_missed() {
    let mut missed = 0;
    for at in 1..=3 {
        let scene = scene(1 << 20);
        let stream = &scene.gpus[1];
        let there = [0_u32, 1].map(|n| scene.gpus[0].from_slice(&[1], &[n]).unwrap().freeze());
        let mut taken = all_but_one_unit(stream);
        let (script, held) = (Script::around(stream.pool()), taken.pop());
        (1..at).for_each(|_| script.then(|| {}));
        script.then(move || drop(held));
        let look = scene.fetch(stream, &[&there[0], &there[1]]);
        if look.is_pending() && script.is_over() {
            missed += 1;
            assert!(scene.woken.0.load(Ordering::SeqCst) > 0, "drain {at}: nobody looks again");
            scene.fetched(stream, &[&there[0], &there[1]]);
        }
    }
    assert!(missed > 0, "memory came back too early or too late each time");
}
