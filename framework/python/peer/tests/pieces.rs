//! Tests memory in which a library allocates by itself: pieces of it are lent out, and each comes back when
//! it is no longer used.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tensorpost_core::bindings::{Handing, drop_on_collector, hand_out, piece_of, seen_as};
use tensorpost_core::clock::{ClockDomain, ClockPage};
use tensorpost_core::device::host::HostBackend;
use tensorpost_core::ids::ProcessId;
use tensorpost_core::lease::{Pool, PoolOptions};
use tensorpost_core::tensor::{DType, DeviceStream, Layout, Tensor};

/// Notes when it is dropped.
struct Kept(Arc<AtomicBool>);

impl Drop for Kept {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

fn stream() -> DeviceStream {
    let domain = ClockDomain::new(ProcessId::OUTSIDE, ClockPage::create().unwrap());
    let pool = Pool::new(HostBackend::new(), domain.clone(), PoolOptions::default(), 0);
    DeviceStream::new(pool, domain).unwrap()
}

fn eventually(is_so: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < until, "it is not let go of");
        std::thread::yield_now();
    }
}

fn piece(whole: &Tensor, layout: &Layout, stream: &DeviceStream) -> (Tensor, Arc<AtomicBool>) {
    let gone = Arc::new(AtomicBool::new(false));
    let kept = Box::new(Kept(Arc::clone(&gone)));
    (piece_of(whole, DType::I32, layout, stream, kept, drop_on_collector).unwrap().unwrap(), gone)
}

#[test]
fn a_piece_is_kept_until_nobody_has_it() {
    let stream = stream();
    let whole = stream.from_slice(&[1024], &(0..1024).collect::<Vec<i32>>()).unwrap().freeze();
    let layout = Layout::contiguous(&[2, 3]).unwrap().with_offset(200).unwrap();
    let (first, gone) = piece(&whole, &layout, &stream);
    assert_eq!(first.to_vec::<i32>().unwrap(), [200, 201, 202, 203, 204, 205]);
    // The same place twice: neither piece has a sole holder.
    let (second, also_gone) = piece(&whole, &layout, &stream);
    assert!(!first.is_sole() && !second.is_sole());
    let refused = first.into_mut(&stream).unwrap_err();
    let view = refused.tensor.slice(0, 1..2).unwrap();
    drop(refused);
    assert!(!gone.load(Ordering::Acquire));
    assert_eq!(view.to_vec::<i32>().unwrap(), [203, 204, 205]);
    drop(view);
    // A piece that came back is checked when the next one comes back.
    drop(second);
    drop(stream.empty(DType::U8, &[1]).unwrap());
    eventually(|| gone.load(Ordering::Acquire) && also_gone.load(Ordering::Acquire));
    assert_eq!(whole.to_vec::<i32>().unwrap()[200], 200, "the whole is still there");
}

#[test]
fn what_leaves_the_memory_is_none() {
    let stream = stream();
    let whole = stream.zeros(DType::I32, &[16]).unwrap().freeze();
    let outside = Layout::contiguous(&[4]).unwrap().with_offset(13).unwrap();
    assert!(
        piece_of(&whole, DType::I32, &outside, &stream, Box::new(()), drop_on_collector).unwrap().is_none()
    );
    assert!(seen_as(&whole, DType::I32, outside, None).is_none());
    let inside = outside.with_offset(12).unwrap();
    assert_eq!(seen_as(&whole, DType::I32, inside, None).unwrap().to_vec::<i32>().unwrap(), [0; 4]);
}

#[test]
fn what_is_written_by_a_library_is_seen() {
    let stream = stream();
    let made = stream.zeros(DType::I32, &[4]).unwrap().freeze();
    let mut from = None;
    let handed = hand_out(&made, Handing::ToWrite, None, |start| {
        from = Some(start);
        Box::new(made.clone())
    });
    assert!(!handed.unwrap().is_read_only() && from.is_some());
    let handed = hand_out(&made, Handing::ToRead, None, |_| Box::new(())).unwrap();
    assert!(handed.is_read_only());
}
