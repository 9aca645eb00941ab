//! The cost of single calls, for a first look; the benches measure properly.

#![expect(unsafe_code, reason = "streams copy between raw addresses")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use tensorpost::device::DeviceError;
use tensorpost_core::device::cuda::CudaBackend;
use tensorpost_core::device::{Backend, Keep, StreamOp};

use super::Process;

/// Median time of `count` calls.
fn median(count: usize, mut call: impl FnMut(usize) -> Result<(), DeviceError>) -> Result<Duration> {
    let mut times = Vec::with_capacity(count);
    for index in 0..count {
        let start = Instant::now();
        call(index)?;
        times.push(start.elapsed());
    }
    times.sort_unstable();
    Ok(times[count / 2])
}

pub(super) fn run(backend: &Arc<CudaBackend>) -> Result<()> {
    let process = Process::new(backend, 1)?;
    let (stream, peer) = (process.stream()?, process.stream()?);
    let gate = process.domain.allocate_slot()?;
    let chunk = backend.create_chunk(64 << 20)?.mapping;
    let keep = || -> Keep { [Arc::clone(&chunk)].into_iter().collect() };

    let mut value = 0;
    let advance = median(500, |_| {
        value += 1;
        stream.submit(&[StreamOp::Advance(value)])
    })?;
    stream.synchronize()?;
    println!("speed: a clock write is submitted in {advance:?}");
    let wait = median(500, |_| peer.submit(&[StreamOp::Wait(process.ticket(&stream, value))]))?;
    println!("speed: a wait that is over: {wait:?}");
    let mut opened = 0;
    let both = median(300, |_| {
        opened += 1;
        stream.submit(&[StreamOp::Wait(gate.ticket(opened)), StreamOp::Advance(value + opened)])
    })?;
    process.domain.advance(&gate, opened)?;
    stream.synchronize()?;
    value += opened;
    println!("speed: a wait that is not, and a clock write behind it: {both:?}");
    let seen = median(500, |_| {
        value += 1;
        stream.submit(&[StreamOp::Advance(value)])?;
        process.domain.wait(&process.ticket(&stream, value), None)?;
        Ok(())
    })?;
    println!("speed: a clock write until a host thread sees it: {seen:?}");
    let synchronize = median(500, |_| stream.synchronize())?;
    println!("speed: synchronize on an idle stream: {synchronize:?}");
    for bytes in [4 << 10, 1 << 20, 64 << 20] {
        let mut host = vec![1; bytes];
        let count = if bytes > 1 << 20 { 9 } else { 100 };
        // SAFETY: the chunk has 64 MiB, is kept, and this stream alone uses it.
        let up = median(count, |_| unsafe { stream.upload(chunk.addr(), &host, keep()) })?;
        stream.synchronize()?;
        // SAFETY: as above.
        let down = median(count, |_| unsafe { stream.download(&mut host, chunk.addr()) })?;
        // SAFETY: as above.
        let fill = median(count, |_| unsafe { stream.fill(chunk.addr(), bytes as u64, 1, keep()) })?;
        stream.synchronize()?;
        println!(
            "speed: {bytes} bytes: upload returns in {up:?}, download {down:?}, fill submitted in {fill:?}"
        );
    }
    let create = median(9, |_| backend.create_chunk(64 << 20).map(drop))?;
    println!("speed: a chunk of 64 MiB is made and dropped in {create:?}");
    Ok(())
}
