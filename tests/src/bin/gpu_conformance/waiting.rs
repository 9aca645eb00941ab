//! The calls that a process can still make while one of its streams waits, and their times. A call that
//! blocks is released after [`RELEASED_AFTER`], so that nothing stays stuck.

#![expect(unsafe_code, reason = "streams copy between raw addresses")]

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use tensorpost_core::clock::OwnClock;
use tensorpost_core::device::cuda::CudaBackend;
use tensorpost_core::device::{Access, Backend, ChunkMapping, Keep, StreamBackend, StreamOp};
use tensorpost_core::stream::Stream;

use super::Process;

const RELEASED_AFTER: Duration = Duration::from_secs(3);

struct Scene {
    process: Process,
    /// Waits for the gate.
    held: Arc<dyn StreamBackend>,
    /// Does not wait.
    other: Arc<dyn StreamBackend>,
    gate: OwnClock,
    chunk: Arc<ChunkMapping>,
}

type Work = fn(&Scene) -> Result<()>;

/// The calls that must not block.
const FREE: &[(&str, Work)] = &[
    ("a chunk is made and dropped", |scene| {
        scene.process.device.create_chunk(64 << 20)?;
        Ok(())
    }),
    ("a chunk is imported and dropped", |scene| {
        let chunk = scene.process.device.create_chunk(1)?;
        let len = chunk.mapping.len();
        scene.process.device.import_chunk(chunk.read_only.as_fd(), len, Access::ReadOnly)?;
        Ok(())
    }),
    ("4 KiB go up on the stream that waits", |scene| upload(scene, &scene.held, 4 << 10)),
    ("40 MiB go up on the stream that waits", |scene| upload(scene, &scene.held, 40 << 20)),
    ("40 MiB go up on another stream", |scene| upload(scene, &scene.other, 40 << 20)),
    ("80 MiB go up on another stream, more than is kept", |scene| {
        upload(scene, &scene.other, 40 << 20)?;
        upload(scene, &scene.other, 40 << 20)?;
        scene.other.synchronize()?;
        Ok(())
    }),
    ("40 MiB come down on another stream", |scene| {
        let mut bytes = vec![0; 40 << 20];
        // SAFETY: the chunk has 64 MiB and lives.
        unsafe { scene.other.download(&mut bytes, scene.chunk.addr())? };
        Ok(())
    }),
    ("a fill and a synchronisation on another stream", |scene| {
        // SAFETY: as above; nobody else uses these bytes.
        unsafe { scene.other.fill(scene.chunk.addr(), 1 << 20, 7, keep(scene))? };
        scene.other.synchronize()?;
        Ok(())
    }),
    ("80 MiB pass through a stream that waited, more than is kept", |scene| {
        let (stream, gate) = (scene.process.stream()?, scene.process.domain.allocate_slot()?);
        stream.submit(&[StreamOp::Wait(gate.ticket(1))])?;
        upload(scene, &stream, 40 << 20)?;
        upload(scene, &stream, 40 << 20)?;
        scene.process.domain.advance(&gate, 1)?;
        stream.synchronize()?;
        Ok(())
    }),
    ("1,500 tickets of a stream that waits", |scene| {
        let device = Arc::clone(&scene.process.device) as Arc<dyn Backend>;
        let stream = Stream::new(&device, &scene.process.domain)?;
        stream.wait([scene.gate.ticket(scene.gate.value() + 1)])?;
        for _ in 0..1_500 {
            ensure!(stream.ticket().is_some(), "a stream that waits has passed everything");
        }
        Ok(())
    }),
    ("20 peers' pages come", |scene| pages_come(scene, false)),
    ("20 peers' pages come and go", |scene| pages_come(scene, true)),
    ("20 streams come and go", |scene| {
        for _ in 0..20 {
            let stream = scene.process.stream()?;
            stream.submit(&[StreamOp::Advance(
                scene.process.domain.own_page().load(stream.clock_slot()).unwrap_or(0) + 1,
            )])?;
        }
        Ok(())
    }),
    ("a stream that waits, too, is dropped", |scene| {
        let stream = scene.process.stream()?;
        stream.submit(&[StreamOp::Wait(scene.gate.ticket(scene.gate.value() + 1))])?;
        Ok(())
    }),
];

/// The calls that block, by design, until the stream goes on.
const HELD: &[(&str, Work)] = &[
    ("2,000 fills on the stream that waits", |scene| {
        for _ in 0..2_000 {
            // SAFETY: as above.
            unsafe { scene.held.fill(scene.chunk.addr(), 64, 1, keep(scene))? };
        }
        Ok(())
    }),
    ("1,500 clock writes on the stream that waits", |scene| {
        let first = 1 + scene.process.domain.own_page().load(scene.held.clock_slot()).unwrap_or(0);
        for value in first..first + 1_500 {
            scene.held.submit(&[StreamOp::Advance(value)])?;
        }
        Ok(())
    }),
];

pub(super) fn run(backend: &Arc<CudaBackend>) -> Result<()> {
    let mut blocked = 0;
    for (name, work) in FREE {
        let (took, was_released) = play(backend, *work)?;
        println!("waiting: {name}: {took:?}{}", if was_released { ", BLOCKED" } else { "" });
        blocked += usize::from(was_released);
    }
    ensure!(blocked == 0, "{blocked} things blocked while a stream waited");
    for (name, work) in HELD {
        let (took, was_released) = play(backend, *work)?;
        println!("waiting: {name}: {took:?}{}", if was_released { ", blocked as it should" } else { "" });
    }
    Ok(())
}

/// Does `work` while a stream waits; says how long it took and whether it ended only after the release.
fn play(backend: &Arc<CudaBackend>, work: Work) -> Result<(Duration, bool)> {
    let process = Process::new(backend, 1)?;
    let (held, other, gate) = (process.stream()?, process.stream()?, process.domain.allocate_slot()?);
    let chunk = backend.create_chunk(64 << 20)?.mapping;
    let scene = Arc::new(Scene { process, held, other, gate, chunk });
    scene.held.submit(&[StreamOp::Wait(scene.gate.ticket(1))])?;
    let (done, outcome) = mpsc::channel();
    let theirs = Arc::clone(&scene);
    let start = Instant::now();
    let thread = thread::spawn(move || {
        let result = work(&theirs);
        let _ = done.send(start.elapsed());
        result
    });
    let first = outcome.recv_timeout(RELEASED_AFTER);
    scene.process.domain.advance(&scene.gate, 1)?;
    let took = match first {
        Ok(took) => took,
        Err(_) => outcome.recv_timeout(super::STUCK)?,
    };
    match thread.join() {
        Ok(result) => result?,
        Err(_) => anyhow::bail!("panicked"),
    }
    scene.held.synchronize()?;
    Ok((took, first.is_err()))
}

fn pages_come(scene: &Scene, and_go: bool) -> Result<()> {
    for slot in 10..30 {
        let peer = Process::new(&scene.process.device, slot)?;
        let id = scene.process.meet(slot, peer.page_fd()?)?;
        let clock = peer.domain.allocate_slot()?;
        scene.other.submit(&[StreamOp::Wait(clock.ticket(1))])?;
        peer.domain.advance(&clock, 1)?;
        scene.other.synchronize()?;
        if and_go {
            scene.process.domain.testing_remove_peer(id);
        }
    }
    Ok(())
}

fn keep(scene: &Scene) -> Keep {
    [Arc::clone(&scene.chunk)].into_iter().collect()
}

fn upload(scene: &Scene, stream: &Arc<dyn StreamBackend>, bytes: usize) -> Result<()> {
    // SAFETY: the chunk has 64 MiB, is kept, and nobody else uses it.
    unsafe { stream.upload(scene.chunk.addr(), &vec![3; bytes], keep(scene))? };
    Ok(())
}
