//! Tests chunks of a device whose memory comes and goes in whole chunks: owners give them back, and peers
//! unmap them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::device::fake::Fake;
use crate::lease::PoolOptions;
use crate::tensor::{DType, Tensor};
use crate::testing::Cluster;

const BYTES: usize = 1 << 20;

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(10), "{what}");
        std::thread::yield_now();
    }
}

#[test]
fn memory_that_was_sent_and_dropped_is_free_everywhere() {
    let options = PoolOptions { budget: 4 << 20, first_chunk: BYTES as u64 };
    let cluster = Cluster::with_device(2, options, || Fake::new(3, 8, &[]));
    let (to, inbox) = cluster.inbox::<Tensor>(1, 8);
    cluster.connect();
    for round in 0..3_u32 {
        let made =
            cluster.stream(0).from_slice(&[BYTES], &vec![round as u8; BYTES]).expect("memory").freeze();
        let mapping = Arc::downgrade(made.lease().mapping());
        assert_eq!(made.lease().id().chunk.index, round, "no name is used twice");
        cluster.send(0, &to, made);
        cluster.run_until_idle();
        let held = inbox.take_one().message;
        assert_eq!((cluster.chunks_kept(), cluster.chunks_mapped(1)), (1, 1));
        // It stays while a process holds it, no matter how often the owner looks for idle memory.
        for _ in 0..3 {
            cluster.check_idle(0);
            cluster.run_until_idle();
        }
        assert_eq!((cluster.chunks_kept(), cluster.chunks_mapped(1)), (1, 1));
        assert_eq!(cluster.stream(1).download::<u8>(&held).expect("good data"), vec![round as u8; BYTES]);
        drop(held);
        cluster.run_until_idle();
        until("the owner, the node and the peer let go", || {
            cluster.check_idle(0);
            cluster.run_until_idle();
            (cluster.chunks_kept(), cluster.chunks_mapped(1), mapping.strong_count()) == (0, 0, 0)
        });
        assert_eq!(cluster.stream(0).memory().chunk_bytes, 0);
        assert!(cluster.complaints().is_empty(), "{:?}", cluster.complaints());
    }
}

/// WIRE-1: an owner that withdraws a chunk which others still hold does not take it from them.
#[test]
fn a_chunk_that_is_withdrawn_too_early_stays_with_its_holders() {
    let options = PoolOptions { budget: 4 << 20, first_chunk: BYTES as u64 };
    let cluster = Cluster::with_device(2, options, || Fake::new(3, 8, &[]));
    let (to, inbox) = cluster.inbox::<Tensor>(1, 8);
    cluster.connect();
    let made = cluster.stream(0).zeros(DType::U8, &[16]).expect("memory").freeze();
    let chunk = made.lease().id().chunk;
    cluster.send(0, &to, made);
    cluster.run_until_idle();
    let held = inbox.take_one().message;
    crate::lease::pool::Surroundings::withdraw_chunk(&**cluster.transport(0), chunk);
    cluster.run_until_idle();
    assert_eq!(cluster.stream(1).download::<u8>(&held).expect("good data"), [0; 16]);
    assert_eq!((cluster.chunks_kept(), cluster.chunks_mapped(1)), (1, 1));
    drop(held);
    cluster.run_until_idle();
    assert_eq!((cluster.chunks_kept(), cluster.chunks_mapped(1)), (0, 0));
    assert!(cluster.complaints().is_empty(), "{:?}", cluster.complaints());
}
