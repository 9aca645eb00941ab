//! Memory of a GPU that nobody holds any more is free for others, in whatever process it was mapped.

use tensorpost::node::Console;
use tensorpost::prelude::*;
use tensorpost_core::device::cuda::CudaBackend;
use tensorpost_core::lease::PoolOptions;
use tensorpost_core::testing::Cluster;
use tensorpost_tests::harness::Builder;
use tensorpost_tests::wait::until;
use tensorpost_watch::console::{self, NodeSnapshot};

use super::device;
use super::streams::{Copied, spawn};

const BYTES: usize = 256 << 20;
/// The driver may keep a little more or less for itself than before.
const SLACK: usize = 16 << 20;

/// Two transports in this process, each with a pool: one makes tensors, the other holds them. They look for
/// idle memory at once, and not five seconds apart.
pub(crate) fn memory_that_nobody_holds_comes_back(_: Builder) {
    let (device, _) = device();
    let backend = CudaBackend::open(device.ordinal().unwrap_or(0)).unwrap();
    let free = || {
        let context = backend.context();
        context.bind_to_thread().unwrap();
        context.mem_get_info().unwrap().0
    };
    let options = PoolOptions { budget: 1 << 30, first_chunk: BYTES as u64 };
    let cluster = Cluster::with_device(2, options, || CudaBackend::open(backend.ordinal()).unwrap());
    let (to, inbox) = cluster.inbox::<Tensor>(1, 8);
    cluster.connect();
    // The driver does not give back the memory of a first use.
    drop(cluster.stream(0).from_slice(&[1], &[1_u32]).unwrap());
    cluster.stream(0).synchronize().unwrap();
    let with_first = free();
    until("the first chunk goes back", || {
        cluster.check_idle(0);
        // The driver has the memory when nobody keeps it for a copy any more, which may be later.
        cluster.stream(0).memory().chunk_bytes == 0 && free() + SLACK >= with_first + BYTES
    });
    let before = free();
    for round in 0..3_u8 {
        let mut made = cluster.stream(0).zeros(DType::U8, &[BYTES]).unwrap();
        if round > 0 {
            // Both streams have work on it, for whose end nobody waits.
            made = cluster.stream(0).copy(&made.freeze()).unwrap();
        }
        cluster.send(0, &to, made.freeze());
        cluster.run_until_idle();
        let held = inbox.take_one().message;
        let copy = cluster.stream(1).copy(&held).unwrap();
        let least = before - free();
        assert!(least + SLACK >= 2 * BYTES, "{least} bytes of two tensors");
        for _ in 0..3 {
            cluster.check_idle(0);
            cluster.run_until_idle();
        }
        let part = held.slice(0, 0..1 << 16).unwrap();
        assert!(cluster.stream(1).download::<u8>(&part).unwrap().iter().all(|byte| *byte == 0));
        drop((held, part, copy));
        until("all of it is free again", || {
            cluster.check_idle(0);
            cluster.check_idle(1);
            cluster.run_until_idle();
            free() + SLACK >= before
        });
        assert_eq!((cluster.chunks_kept(), cluster.chunks_mapped(1)), (0, 0));
        println!(
            "{} bytes were free before, {} while both had some, {} after",
            before,
            before - least,
            free()
        );
    }
    assert!(cluster.complaints().is_empty(), "{:?}", cluster.complaints());
}

/// The figures of a worker on a GPU have its memory there, its context and its allocations, and the share of
/// the time in which its kernels ran.
pub(crate) fn what_a_worker_uses_of_a_gpu_is_in_the_figures(builder: Builder) {
    let (device, is_gpu) = device();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("console");
    let node = builder.console(Console::At(path.clone())).start().unwrap();
    let maker = spawn(&node, &device, 1).unwrap();
    let mut console = console::Console::at(&path).unwrap();
    let of = |snapshot: NodeSnapshot, name: &str| {
        snapshot.processes.into_iter().find(|of| of.name == name).unwrap()
    };
    if !is_gpu {
        let mut shares = (0..3).map(|_| of(console.snapshot().unwrap(), "Maker").gpu);
        assert!(shares.all(|share| share.is_none()), "there is no GPU");
        return;
    }
    let bytes = node.stream(&device).unwrap().zeros(DType::U8, &[BYTES]).unwrap().freeze();
    let _held = node.block_on(maker.ask(Copied(bytes))).unwrap();
    until("the library has answered", || of(console.snapshot().unwrap(), "Maker").gpu.is_some());
    // The process was asked again since then, so the figures are of a time after the copy.
    until("it is what it holds now", || {
        of(console.snapshot().unwrap(), "Maker").gpu.is_some_and(|share| share.bytes >= Some(BYTES as u64))
    });
    let snapshot = console.snapshot().unwrap();
    let [of_maker, of_node] = ["Maker", "node"].map(|name| of(snapshot.clone(), name).gpu);
    println!("Maker: {of_maker:?}, node: {of_node:?}");
    assert!(of_node.is_some_and(|share| share.bytes >= Some(BYTES as u64)), "the node made what was copied");
}
