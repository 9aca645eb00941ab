//! Tests that several threads which drain at once draw no wrong conclusion from half of each other's results
//! (LEASE-3, ONE-WRITER). The transport is a script: each drain takes its next step.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;

use super::*;
use crate::clock::ClockPage;
use crate::device::host::HostBackend;
use crate::lease::table::LOOKED_AT;

fn process(slot: u16) -> ProcessId {
    ProcessId::new(slot, 0).expect("a small slot")
}

type Step = Box<dyn FnOnce() + Send>;

/// The steps of the next drains; later drains find nothing.
#[derive(Default)]
pub(crate) struct Script(Mutex<VecDeque<Step>>);

impl Script {
    pub(crate) fn around(pool: &Pool) -> Arc<Self> {
        let script = Arc::new(Script::default());
        let surroundings: Weak<dyn Surroundings> =
            Arc::downgrade(&(Arc::clone(&script) as Arc<dyn Surroundings>));
        pool.surround(surroundings);
        script
    }

    pub(crate) fn is_over(&self) -> bool {
        self.0.lock().is_empty()
    }

    pub(crate) fn then(&self, step: impl FnOnce() + Send + 'static) {
        self.0.lock().push_back(Box::new(step));
    }
}

impl Surroundings for Script {
    fn drain_returns(&self) {
        let step = self.0.lock().pop_front();
        if let Some(step) = step {
            step();
        }
    }

    fn publish_chunk(
        &self,
        _: ChunkId,
        _: DeviceId,
        _: u64,
        _: OwnedFd,
        _: OwnedFd,
    ) -> Result<(), DeviceError> {
        Ok(())
    }

    fn withdraw_chunk(&self, _: ChunkId) {}

    fn wanted(&self) {}
}

fn pool() -> (Arc<Pool>, Arc<Script>) {
    let domain = ClockDomain::with_epoch_page(process(0), ClockPage::create().expect("memory"), None);
    let options = PoolOptions { budget: 1 << 20, first_chunk: 1 << 20 };
    let pool = Pool::new(HostBackend::new(), domain, options, 0);
    let script = Script::around(&pool);
    (pool, script)
}

/// F gave back memory that it had forwarded to H, and H forwarded it to G. The first thread's pass has
/// already passed G's ring when G posts its hold. Another thread had passed that ring too. It drains H's hold
/// and release, and takes the entry as its own candidate before the first thread is done.
#[test]
fn a_line_that_another_thread_emptied_anew_is_left_to_it() {
    let (pool, script) = pool();
    let (f, g, h) = (process(1), process(2), process(3));
    let lease = pool.allocate(64).expect("room").lease;
    let id = lease.id();
    pool.grant(id, f).expect("open");
    drop(lease);
    pool.release(id, f, &[]).expect("held");
    let theirs = Arc::clone(&pool);
    let other = Arc::clone(&script);
    script.then(move || {
        theirs.grant(id, h).expect("open");
        theirs.release(id, h, &[]).expect("held");
        // The other thread takes the candidate and is in the middle of its own pass; G's hold comes after
        // that.
        let behind = Arc::clone(&theirs);
        let (taken, done) = std::sync::mpsc::channel();
        let (go, wait) = std::sync::mpsc::channel();
        other.then(move || {
            taken.send(()).expect("the test waits");
            wait.recv().expect("the test goes on");
            behind.grant(id, g).expect("the entry is open: G holds it");
        });
        let closing = std::thread::spawn(move || theirs.close_emptied());
        done.recv().expect("it settles");
        SETTLING.lock().push((go, closing));
    });
    pool.close_emptied();
    let (go, closing) = SETTLING.lock().pop().expect("the other thread");
    assert_eq!(pool.shares(id), Some((0, vec![])), "the first leaves the entry alone");
    go.send(()).expect("it waits");
    closing.join().expect("no panic");
    assert_eq!(pool.shares(id), Some((0, vec![(g, 1)])), "memory was freed under G");
    pool.release(id, g, &[]).expect("held");
    pool.close_emptied();
    assert_eq!(pool.shares(id), None, "LEASE-2: whoever emptied it last closes it");
}

type Other = (std::sync::mpsc::Sender<()>, std::thread::JoinHandle<()>);

/// The thread that closes entries in the middle of another's pass.
static SETTLING: Mutex<Vec<Other>> = Mutex::new(Vec::new());

/// H forwarded to G and released its lease. Another thread reads H's release when this thread's drain has
/// already passed G's ring.
#[test]
fn who_is_sole_is_known_only_from_a_line_that_stood_still() {
    for to in [None, Some(process(1))] {
        let (pool, script) = pool();
        let (g, h) = (process(2), process(3));
        let lease = pool.allocate(64).expect("room").lease;
        let id = lease.id();
        pool.grant(id, h).expect("open");
        if let Some(to) = to {
            pool.grant(id, to).expect("open");
        }
        let [first, second] = [(); 2].map(|()| Arc::clone(&pool));
        script.then(move || {
            first.release(id, h, &[]).expect("held");
        });
        script.then(move || second.grant(id, g).map(drop).expect("open"));
        let sole = match to {
            None => pool.is_sole(id),
            Some(to) => pool.is_sole_of(id, to, true),
        };
        assert!(!sole, "G holds it too");
        pool.release(id, g, &[]).expect("held");
        let sole = match to {
            None => pool.is_sole(id),
            Some(to) => pool.is_sole_of(id, to, true),
        };
        assert!(sole, "nobody else is left");
    }
}

/// F passed the memory on to G, and G sent it back here as its only holder. G's frame was accepted because of
/// a lease from an earlier round, so no thread has read the rings for the holds of this round.
#[test]
fn what_was_held_before_memory_came_back_is_no_lie() {
    for in_parts in [false, true] {
        let (pool, script) = pool();
        let (f, g) = (process(1), process(2));
        let lease = pool.allocate(64).expect("room").lease;
        let id = lease.id();
        if in_parts {
            lease.set_in_parts();
        }
        pool.grant(id, f).expect("open");
        pool.grant(id, g).expect("open");
        drop(lease);
        let back = pool.adopt(id, g, !in_parts, in_parts).expect("G has a lease");
        let theirs = Arc::clone(&pool);
        let refused = Arc::new(Mutex::new(None));
        let noted = Arc::clone(&refused);
        script.then(move || *noted.lock() = theirs.hold(id, g, f).err());
        if in_parts {
            back.set_whole();
        }
        assert!(back.is_sole(), "its sender said so");
        pool.drain();
        assert_eq!(*refused.lock(), None, "G had it before it sent it");
        // From here on such a hold would be a lie.
        assert!(matches!(pool.hold(id, g, f), Err(LeaseTableError::NotShared { .. })));
    }
}

/// Counts its wakes.
#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// The drain of a send takes in the release that an allocation waits for, so the reader finds nothing any
/// more.
#[test]
fn a_send_that_drains_wakes_who_waits_for_memory() {
    let (pool, script) = pool();
    let (to, h) = (process(1), process(3));
    let all = pool.allocate(1 << 19).expect("room").lease;
    let sent = pool.allocate(1 << 18).expect("room").lease;
    let (id, given) = (all.id(), sent.id());
    pool.grant(id, h).expect("open");
    drop(all);
    pool.grant(given, h).expect("open");
    pool.release(given, h, &[]).expect("held");
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    assert!(matches!(pool.poll_allocate(1 << 19, &waker), Err(PoolError::Full { .. })));
    let theirs = Arc::clone(&pool);
    script.then(move || {
        theirs.release(id, h, &[]).expect("held");
    });
    let shared = pool.grant(given, to).expect("open");
    assert!(pool.is_sole_of(given, to, shared));
    assert_eq!(woken.0.load(Ordering::SeqCst), 1, "the waiter sleeps on");
    assert!(pool.poll_allocate(1 << 19, &waker).is_ok());
}

/// A program that tries, and falls back, finds the pool full a thousand times a second: the error must not
/// cost a walk through a million allocations.
#[test]
fn a_full_pool_says_who_has_it_without_a_look_at_each_tensor() {
    let (pool, _script) = pool();
    let mut live: Vec<Lease> =
        std::iter::from_fn(|| pool.allocate(512).ok()).map(|fresh| fresh.lease).collect();
    assert_eq!(live.len(), 2048, "tensors of one unit fill the pool");
    let (early, late) = (live[0].id(), live[2047].id());
    pool.grant(early, process(1)).expect("open");
    pool.grant(late, process(2)).expect("open");
    LOOKED_AT.set(0);
    let Err(PoolError::Full { in_use, holders, .. }) = pool.allocate(512) else { panic!("it is full") };
    assert!(LOOKED_AT.get() <= report::OLDEST, "{} entries were looked at", LOOKED_AT.get());
    assert_eq!(in_use, 1 << 20);
    let of = |process: ProcessId| {
        let rest = holders.split(&format!("{process}")).nth(1).expect("it is among the holders");
        rest.split(" s").next().unwrap_or_default().to_owned()
    };
    assert!(
        of(process(0)).contains("(this process): 1048576 bytes in 2048 tensors, the oldest for"),
        "{holders}"
    );
    assert!(of(process(1)).contains(": 512 bytes in 1 tensors, the oldest for"), "{holders}");
    assert!(of(process(2)).contains(": 512 bytes in 1 tensors, none for more than"), "{holders}");
    // The stats say the same, and look at none.
    LOOKED_AT.set(0);
    let stats = pool.stats();
    assert_eq!((stats.held_bytes, stats.allocations, stats.lent_bytes), (1 << 20, 2048, 1024));
    assert_eq!(LOOKED_AT.get(), 0);
    live.clear();
    pool.evict(process(1));
    pool.evict(process(2));
    let stats = pool.stats();
    assert_eq!((stats.held_bytes, stats.allocations, stats.lent_bytes), (0, 0, 0));
}

/// A transport that keeps descriptors of the chunks, as the node does, and the names of withdrawn chunks.
#[derive(Default)]
struct Files(Mutex<Vec<OwnedFd>>, Mutex<Vec<u32>>);

impl Files {
    /// Returns the bytes of memory that the chunks take.
    fn resident(&self) -> i64 {
        let blocks = |fd: &OwnedFd| rustix::fs::fstat(fd).expect("a file").st_blocks;
        // In units of 512 bytes, whatever the block size is.
        self.0.lock().iter().map(|fd| 512 * blocks(fd)).sum()
    }
}

impl Surroundings for Files {
    fn drain_returns(&self) {}

    fn publish_chunk(
        &self,
        _: ChunkId,
        _: DeviceId,
        _: u64,
        read_only: OwnedFd,
        _: OwnedFd,
    ) -> Result<(), DeviceError> {
        self.0.lock().push(read_only);
        Ok(())
    }

    fn withdraw_chunk(&self, chunk: ChunkId) {
        self.1.lock().push(chunk.index);
    }

    fn wanted(&self) {}
}

const MANY: u64 = 1 << 20;

/// Makes a pool of one chunk, and a stream to write it with.
fn seen_pool() -> (Arc<Pool>, Arc<Files>, crate::tensor::DeviceStream) {
    seen_pool_on(HostBackend::new())
}

fn seen_pool_on(backend: Arc<dyn Backend>) -> (Arc<Pool>, Arc<Files>, crate::tensor::DeviceStream) {
    let domain = ClockDomain::with_epoch_page(process(0), ClockPage::create().expect("memory"), None);
    let options = PoolOptions { budget: MANY, first_chunk: MANY };
    let pool = Pool::new(backend, Arc::clone(&domain), options, 0);
    let files = Arc::new(Files::default());
    let surroundings: Weak<dyn Surroundings> = Arc::downgrade(&(Arc::clone(&files) as Arc<dyn Surroundings>));
    pool.surround(surroundings);
    let stream = crate::tensor::DeviceStream::new(Arc::clone(&pool), domain).expect("a stream");
    (pool, files, stream)
}

fn written(stream: &crate::tensor::DeviceStream) -> crate::tensor::Tensor {
    let bytes = vec![7_u8; MANY as usize];
    stream.from_slice(&[bytes.len()], &bytes).expect("memory").freeze()
}

/// Returns the chunks that the second of two looks finds.
fn two_looks(pool: &Pool) -> Vec<crate::device::pool::IdleChunk> {
    pool.idle();
    pool.idle().chunks
}

#[test]
fn memory_that_nothing_is_in_goes_and_comes_again() {
    let (pool, files, stream) = seen_pool();
    let tensor = written(&stream);
    tensor.as_slice::<u8>().expect("written");
    assert_eq!(files.resident(), MANY as i64);
    drop(tensor);
    stream.synchronize().expect("it runs");
    assert!(pool.idle().lately, "it may be wanted again at once");
    let found = pool.idle().chunks;
    pool.give_back(&found);
    assert_eq!(files.resident(), 0);
    assert_eq!(pool.check_idle(), NextIdleCheck::Never, "there is nothing more to give back");
    let again = written(&stream);
    assert!(again.as_slice::<u8>().expect("written").iter().all(|byte| *byte == 7));
    assert_eq!(files.resident(), MANY as i64);
}

// LEASE-1: memory that a process holds, or that a use has not left, is not given back.
#[test]
fn memory_that_somebody_holds_or_still_uses_stays() {
    let (pool, files, stream) = seen_pool();
    let tensor = written(&stream);
    tensor.as_slice::<u8>().expect("written");
    let id = tensor.lease().id();
    pool.grant(id, process(1)).expect("it is open");
    drop(tensor);
    stream.synchronize().expect("it runs");
    assert!(two_looks(&pool).is_empty() && pool.check_idle() == NextIdleCheck::Late);
    // Given back, with a last use that has not passed.
    let unfinished = Ticket { process: process(0), slot: 0, value: 1 << 40 };
    pool.release(id, process(1), &[unfinished]).expect("it held that");
    pool.close_emptied();
    assert!(two_looks(&pool).is_empty() && pool.check_idle() == NextIdleCheck::Late);
    // Taken out of quarantine early, for a user whose stream would wait.
    let found = {
        let mut state = pool.state.lock();
        state.open_quarantine();
        state.allocator.idle();
        state.allocator.idle().chunks
    };
    assert_eq!(found.len(), 1, "the allocator has it");
    pool.give_back(&found);
    assert_eq!(files.resident(), MANY as i64);
}

#[test]
fn what_is_allocated_meanwhile_keeps_its_memory() {
    let (pool, _files, stream) = seen_pool();
    drop(written(&stream));
    stream.synchronize().expect("it runs");
    let found = two_looks(&pool);
    assert_eq!(found.len(), 1);
    let tensor = written(&stream);
    tensor.as_slice::<u8>().expect("written");
    pool.give_back(&found);
    assert!(tensor.as_slice::<u8>().expect("written").iter().all(|byte| *byte == 7));
    drop(tensor);
    stream.synchronize().expect("it runs");
    pool.give_back(&found);
    assert_eq!(two_looks(&pool).len(), 1, "that was not idle when it was found");
}

// LEASE-1, on a device whose memory comes and goes with whole chunks.
#[test]
fn a_gpus_chunk_that_nothing_is_in_goes_as_a_whole() {
    let (pool, files, stream) = seen_pool_on(crate::device::fake::Fake::new(1, 8, &[]));
    let tensor = written(&stream);
    assert_eq!(pool.stats().chunk_bytes, MANY);
    assert!(two_looks(&pool).is_empty(), "somebody has it");
    drop(tensor);
    stream.synchronize().expect("it runs");
    pool.close_emptied();
    let found = two_looks(&pool);
    assert_eq!(found.len(), 1);
    // The chunk is taken again in the meantime, so it stays.
    let tensor = written(&stream);
    pool.withdraw(&found);
    assert_eq!((pool.stats().chunk_bytes, files.1.lock().len()), (MANY, 0));
    drop(tensor);
    stream.synchronize().expect("it runs");
    pool.close_emptied();
    let found = two_looks(&pool);
    let mapping = pool.state.lock().chunks.get(&0).map(Arc::downgrade).expect("it is there");
    pool.withdraw(&found);
    assert_eq!((pool.stats().chunk_bytes, files.1.lock().clone()), (0, vec![0]));
    assert!(mapping.upgrade().is_none(), "it is unmapped");
    assert_eq!(pool.check_idle(), NextIdleCheck::Never);
    // The next one has another name.
    let tensor = written(&stream);
    assert_eq!((tensor.lease().id().chunk.index, pool.stats().chunk_bytes), (1, MANY));
    assert!(pool.has_chunk(tensor.lease().id().chunk));
    assert!(!pool.has_chunk(ChunkId { owner: process(0), index: 0 }));
}
