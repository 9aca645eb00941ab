//! Tests that need no GPU, and the conformance suite, which runs where there is one.
//!
//! With `REQUIRE_GPU=1` in the environment, a machine without a GPU fails the suite instead of skipping it.

use super::*;

/// Returns the first GPU. If there is none and none is required, says so and returns `None`.
fn gpu() -> Option<Arc<CudaBackend>> {
    match CudaBackend::open(0) {
        Ok(backend) => Some(backend),
        Err(error) if std::env::var_os("REQUIRE_GPU").is_some_and(|value| value == "1") => {
            panic!("REQUIRE_GPU=1, and {error}")
        }
        Err(error) => {
            println!("left out: {error}");
            None
        }
    }
}

#[test]
fn the_conformance_suite() {
    let Some(backend) = gpu() else { return };
    crate::device::conformance::run_all(&|| Arc::clone(&backend) as Arc<dyn Backend>);
}

#[test]
fn without_a_driver_the_error_says_what_to_do() {
    match devices() {
        Err(error @ DeviceError::NoDriver { .. }) => {
            let text = error.to_string();
            assert!(text.contains("libcuda.so.1") && text.contains("Device::host()"), "{text}");
            assert!(matches!(CudaBackend::open(0), Err(DeviceError::NoDriver { .. })));
            assert!(matches!(CudaBackend::by_id(DeviceId([7; 16])), Err(DeviceError::NoDriver { .. })));
        }
        Err(other) => println!("there is a driver that does not work: {other}"),
        Ok(found) => {
            let missing = CudaBackend::open(found.len());
            assert!(matches!(missing, Err(DeviceError::NoDevice { .. })), "{missing:?}");
            assert!(matches!(CudaBackend::by_id(DeviceId([7; 16])), Err(DeviceError::NoDevice { .. })));
        }
    }
}

/// The clock page of a dead process is unregistered, but not while a stream waits on it, because that would
/// be a deadlock.
#[test]
fn a_page_of_the_dead_is_let_go_when_no_stream_has_work() {
    use std::thread;
    use std::time::{Duration, Instant};

    use crate::clock::ClockPage;
    use crate::device::StreamOp;
    use crate::ids::ProcessId;

    let Some(backend) = gpu() else { return };
    let id = |slot| ProcessId::new(slot, 0).expect("a slot that there is");
    let dead = ClockDomain::new(id(1), ClockPage::create().expect("a page"));
    let here = ClockDomain::new(id(2), ClockPage::create().expect("a page"));
    let clock = dead.allocate_slot().expect("a slot");
    let page = ClockPage::open(dead.own_page().export_fd().expect("a descriptor")).expect("a page");
    let at = page.mapping().addr() as usize;
    here.add_peer(dead.own(), page);
    let stream =
        backend.create_stream(here.allocate_slot().expect("a slot"), Arc::clone(&here)).expect("a stream");
    stream.submit(&[StreamOp::Wait(clock.ticket(1))]).expect("submitted");
    assert!(pages::is_registered(at));

    here.remove_peer(dead.own());
    // The call neither blocks, nor takes the page from under the wait.
    assert!(!pages::let_go().expect("a device that works"));
    assert!(pages::is_registered(at));

    dead.advance(&clock, 1).expect("a clock of the host's");
    stream.synchronize().expect("the wait is over");
    // The other tests of this process have streams of their own, which may have work.
    let until = Instant::now() + Duration::from_secs(60);
    while pages::is_registered(at) {
        assert!(Instant::now() < until, "the page is still registered");
        pages::let_go().expect("a device that works");
        thread::sleep(Duration::from_millis(1));
    }
    // The stream still works.
    stream.submit(&[StreamOp::Advance(1)]).expect("submitted");
    stream.synchronize().expect("done");
}
