//! The conformance suite on the host, and tests that only the host can pass.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;

use super::*;
use crate::clock::ClockPage;
use crate::device::{Keep, StreamOp, conformance};
use crate::ids::ProcessId;
use crate::limits::MAX_STREAM_STEPS;

macro_rules! conformance_cases {
    ($($name:ident),* $(,)?) => {
        mod suite {
            $(#[test] fn $name() { super::case(stringify!($name)) })*
        }
        /// Checks that no case of the suite is left out here.
        #[test]
        fn every_case_is_run() {
            let names: Vec<_> = conformance::CASES.iter().map(|(name, _)| *name).collect();
            assert_eq!(names, [$(stringify!($name)),*]);
        }
    };
}

conformance_cases!(
    a_device_describes_itself,
    chunks_are_whole_and_zeroed,
    an_import_sees_the_same_bytes,
    a_mapping_outlives_its_creator,
    forged_chunks_are_refused,
    bytes_go_up_across_and_down,
    nothing_is_a_valid_size,
    a_stream_keeps_its_order,
    a_passed_wait_costs_nothing,
    a_wait_holds_back_what_follows,
    a_wait_on_another_process_ends,
    a_release_ends_a_wait,
    waits_compare_cyclically,
    a_batch_with_an_unknown_clock_does_nothing,
    every_stream_can_wait_at_once,
    one_stream_goes_on_while_all_others_wait,
    streams_come_and_go_within_the_limit,
    a_dropped_stream_finishes,
    hand_overs_lose_nothing,
);

fn case(name: &str) {
    let case = conformance::CASES.iter().find(|(case, _)| *case == name).unwrap().1;
    case(&|| HostBackend::new());
}

fn process() -> (Arc<ClockDomain>, Arc<HostStream>) {
    let domain = ClockDomain::new(ProcessId::OUTSIDE, ClockPage::create().unwrap());
    let clock = domain.allocate_slot().unwrap();
    (Arc::clone(&domain), HostStream::new(clock, domain))
}

#[test]
fn closures_run_in_order_on_the_streams_thread() {
    let (_domain, stream) = process();
    let (send, seen) = mpsc::channel();
    for step in 0..200 {
        let send = send.clone();
        stream.run(move || send.send((step, std::thread::current().id())).unwrap(), Keep::new()).unwrap();
    }
    stream.synchronize().unwrap();
    let seen: Vec<_> = seen.try_iter().collect();
    assert!(seen.iter().map(|(step, _)| *step).eq(0..200));
    assert!(seen.iter().all(|(_, thread)| *thread == seen[0].1 && *thread != std::thread::current().id()));
}

#[test]
fn a_panic_is_reported_once_and_the_stream_goes_on() {
    let (domain, stream) = process();
    let keep = HostBackend::new().create_chunk(1).unwrap().mapping;
    stream.run(|| panic!("on purpose"), Keep::from_iter([Arc::clone(&keep)])).unwrap();
    while !stream.is_idle() {
        std::thread::yield_now();
    }
    // An operation that only orders work takes its place all the same, and leaves the failure to the next
    // caller that submits work.
    stream.submit(&[StreamOp::Advance(1)]).unwrap();
    assert_eq!(domain.own_page().load(0), Some(1));
    let error = stream.synchronize().unwrap_err();
    assert!(error.to_string().contains("on purpose"), "{error}");
    assert_eq!(Arc::strong_count(&keep), 1);
    stream.submit(&[StreamOp::Advance(2)]).unwrap();
    stream.synchronize().unwrap();
    assert_eq!(domain.own_page().load(0), Some(2));
}

#[test]
fn an_idle_stream_needs_no_thread() {
    let (domain, stream) = process();
    let chunk = HostBackend::new().create_chunk(1).unwrap().mapping;
    // SAFETY: the mapping is writable, outlives the calls and is used by this thread alone.
    unsafe { stream.upload(chunk.addr(), b"at once", Keep::new()) }.unwrap();
    // SAFETY: as above.
    unsafe { stream.copy(chunk.addr() + 64, chunk.addr(), 7, Keep::new()) }.unwrap();
    stream.submit(&[StreamOp::Advance(1)]).unwrap();
    // The value is there right away, and no other thread wrote it.
    assert_eq!(domain.own_page().load(0), Some(1));
    assert!(stream.is_idle() && !stream.has_thread());
    let mut seen = [0; 7];
    // SAFETY: as above.
    unsafe { stream.download(&mut seen, chunk.addr() + 64) }.unwrap();
    assert_eq!(&seen, b"at once");
}

#[test]
fn work_may_submit_to_its_own_stream_and_not_wait_for_it() {
    let (domain, stream) = process();
    let weak = Arc::downgrade(&stream);
    let (send, seen) = mpsc::channel();
    stream
        .run(
            move || {
                let stream = weak.upgrade().unwrap();
                send.send(stream.synchronize().is_err()).unwrap();
                // These are more than fit: the stream's own thread must not wait for room.
                for _ in 0..2 * MAX_STREAM_STEPS {
                    stream.run(|| (), Keep::new()).unwrap();
                }
                stream.submit(&[StreamOp::Advance(1)]).unwrap();
            },
            Keep::new(),
        )
        .unwrap();
    assert!(seen.recv().unwrap());
    domain.wait(&crate::clock::Ticket { process: ProcessId::OUTSIDE, slot: 0, value: 1 }, None).unwrap();
    stream.synchronize().unwrap();
}

/// MBX-2: a submitter of work waits for room, and clock operations do not.
#[test]
fn a_full_stream_makes_its_submitter_wait() {
    let (domain, stream) = process();
    let gate = domain.allocate_slot().unwrap();
    let ran = Arc::new(AtomicU32::new(0));
    stream.submit(&[StreamOp::Wait(gate.ticket(1))]).unwrap();
    let total = 3 * MAX_STREAM_STEPS as u32;
    std::thread::scope(|scope| {
        let submitter = scope.spawn(|| {
            for _ in 0..total {
                let ran = Arc::clone(&ran);
                let count = move || _ = ran.fetch_add(1, Ordering::Relaxed);
                stream.run(count, Keep::new()).unwrap();
            }
        });
        while !stream.has_waiters() {
            std::thread::yield_now();
        }
        assert!(!submitter.is_finished());
        stream.submit(&[StreamOp::Advance(1)]).unwrap();
        domain.advance(&gate, 1).unwrap();
    });
    stream.synchronize().unwrap();
    assert_eq!(ran.load(Ordering::Relaxed), total);
}

#[test]
fn the_last_handle_may_be_dropped_by_the_streams_own_work() {
    let (domain, stream) = process();
    let (send, go) = mpsc::channel::<()>();
    let last = Arc::clone(&stream);
    stream.run(move || drop((go.recv(), last)), Keep::new()).unwrap();
    stream.submit(&[StreamOp::Advance(1)]).unwrap();
    drop(stream);
    send.send(()).unwrap();
    domain.wait(&crate::clock::Ticket { process: ProcessId::OUTSIDE, slot: 0, value: 1 }, None).unwrap();
}

#[test]
fn a_read_only_descriptor_cannot_be_imported_for_writing() {
    let host = HostBackend::new();
    let chunk = host.create_chunk(1).unwrap();
    assert!(host.import_chunk(chunk.read_only.as_fd(), PAGE, Access::ReadWrite).is_err());
    // The chunk is smaller than announced, so it is not trusted.
    let larger = host.create_chunk(2 * PAGE).unwrap();
    assert!(matches!(
        host.import_chunk(larger.read_only.as_fd(), PAGE, Access::ReadOnly),
        Err(DeviceError::Refused { .. })
    ));
}
