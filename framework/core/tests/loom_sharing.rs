//! Loom on the last drop against a hand-over, with the crate's own file. The thread that is told that it has
//! the last handle may write the memory, although other threads have just read it (ONE-WRITER).

mod loom_platform;

#[allow(dead_code, reason = "as the crate has it")]
#[path = "../src/lease/sharing.rs"]
mod sharing;

use loom::thread;
use loom_platform::sync::{self, Arc, Weaker, weaken};
use loom_platform::{LoomBytes, explore, failure_of};
use sharing::{Handles, is_last};
use tensorpost_core::ids::ProcessId;
use tensorpost_core::lease::table::{LeaseTable, Remaining};
use tensorpost_core::transport::ring::Bytes as _;

/// The number of switches has no limit: three threads need none.
const PREEMPTIONS: Option<usize> = None;

/// A tensor's lease, which several handles in a process share.
struct Lease {
    memory: LoomBytes,
    handles: Handles,
}

impl Lease {
    fn shared(handles: usize) -> Arc<Lease> {
        let lease = Lease { memory: LoomBytes::zeroed(8), handles: Handles::default() };
        (0..handles).for_each(|_| lease.handles.add());
        Arc::new(lease)
    }
}

/// Two threads each read and then drop a clone; the third is about to hand the tensor over.
fn hand_over(weaker: Weaker) {
    weaken(weaker);
    let lease = Lease::shared(0);
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let lease = Arc::clone(&lease);
            thread::spawn(move || {
                lease.memory.read_word(0);
            })
        })
        .collect();
    if is_last(&lease) {
        // If told that it has the last handle, the receiver may write.
        lease.memory.write_word(0, 1);
    }
    readers.into_iter().for_each(|reader| reader.join().expect("it ends"));
    assert!(is_last(&lease));
}

/// Does the same with handles on one lease.
fn writable_form(weaker: Weaker) {
    weaken(weaker);
    let lease = Lease::shared(2);
    let reader = {
        let lease = Arc::clone(&lease);
        thread::spawn(move || {
            lease.memory.read_word(0);
            lease.handles.remove();
        })
    };
    if lease.handles.count() == 1 {
        lease.memory.write_word(0, 1);
    }
    reader.join().expect("it ends");
}

/// The owner sends a tensor and drops its own lease on it, while another thread drops the last clone that was
/// not sent. The receiver is told whether it has the only lease, and gives it back. The entry is closed once,
/// and then reused. The model uses production's lease table under its lock.
fn last_drop_of_what_is_handed_over(looks: bool) {
    let to = ProcessId::new(2, 0).expect("a small slot");
    let table = Arc::new(sync::Mutex::new(LeaseTable::<u8>::default()));
    let (entry, generation) = table.lock().open(0, [].into_iter().collect());
    let lease = Lease::shared(0);
    let memory = lease.memory.clone();
    let other = {
        let lease = Arc::clone(&lease);
        thread::spawn(move || {
            lease.memory.read_word(0);
        })
    };
    table.lock().grant(entry, generation, to).expect("it is open");
    let sole = (!looks || is_last(&lease)) && table.lock().is_sole(entry, generation, Some(to));
    let receiver = {
        let table = Arc::clone(&table);
        thread::spawn(move || {
            if sole {
                memory.write_word(0, 7);
            }
            let mut table = table.lock();
            match table.release(entry, generation, to, &[]).expect("it was granted") {
                Remaining::Held => 0,
                Remaining::Empty(emptied) => usize::from(table.close(emptied).is_some()),
            }
        })
    };
    let closed_here = {
        drop(lease);
        let mut table = table.lock();
        match table.release_local(entry, generation, &[]).expect("it is its own") {
            Remaining::Held => 0,
            Remaining::Empty(emptied) => usize::from(table.close(emptied).is_some()),
        }
    };
    other.join().expect("it ends");
    assert_eq!(closed_here + receiver.join().expect("it ends"), 1, "memory is freed once");
}

fn assert_race(failure: &str) {
    assert!(failure.contains("Causality violation"), "another failure: {failure}");
}

#[test]
fn what_is_handed_over_was_read_before() {
    explore(PREEMPTIONS, || hand_over(Weaker::Nothing));
}

#[test]
fn a_hand_over_needs_its_fence() {
    assert_race(&failure_of(PREEMPTIONS, || hand_over(Weaker::Fences)));
}

#[test]
fn what_becomes_writable_was_read_before() {
    explore(PREEMPTIONS, || writable_form(Weaker::Nothing));
}

#[test]
fn handles_need_their_release_and_their_acquire() {
    for weaker in [Weaker::Release, Weaker::Acquire] {
        assert_race(&failure_of(PREEMPTIONS, move || writable_form(weaker)));
    }
}

#[test]
fn memory_that_is_handed_over_is_freed_once_and_written_by_one() {
    explore(Some(3), || last_drop_of_what_is_handed_over(true));
}

#[test]
fn a_hand_over_has_to_look_for_other_clones() {
    assert_race(&failure_of(Some(3), || last_drop_of_what_is_handed_over(false)));
}
