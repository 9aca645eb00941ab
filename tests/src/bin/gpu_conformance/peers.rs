//! Two GPUs of one machine: one writes to its memory, the other reads that memory, and their clocks order the
//! two.

#![expect(unsafe_code, reason = "streams copy between raw addresses")]

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use tensorpost_core::device::cuda::{CudaBackend, devices};
use tensorpost_core::device::{Access, Backend, Keep, StreamOp};

use super::Process;

const ROUNDS: u64 = 500;
const BYTES: u64 = 1 << 20;

pub(super) fn run(first: &Arc<CudaBackend>) -> Result<()> {
    let found = devices()?;
    let Some(second) = found.get(1) else {
        println!("peers: left out, there is one GPU");
        return Ok(());
    };
    ensure!(second.peers.contains(&first.id()), "the GPUs cannot reach each other's memory");
    let second = CudaBackend::by_id(second.id)?;
    let (sender, receiver) = (Process::new(first, 1)?, Process::new(&second, 2)?);
    let theirs_id = receiver.meet(1, sender.page_fd()?)?;
    let ours_id = sender.meet(2, receiver.page_fd()?)?;
    let (theirs, ours) = (sender.stream()?, receiver.stream()?);
    let chunk = first.create_chunk(2 * BYTES)?;
    let wrong = second.import_chunk(chunk.read_only.as_fd(), chunk.mapping.len(), Access::ReadOnly);
    ensure!(wrong.is_err(), "a chunk was taken for one of another GPU");
    // A receiver imports a chunk through the device that the chunk is on, whatever device its streams are on.
    let view = first.import_chunk(chunk.read_only.as_fd(), chunk.mapping.len(), Access::ReadOnly)?;
    let log = second.create_chunk(ROUNDS * 512)?.mapping;
    let start = Instant::now();
    for round in 1..=ROUNDS {
        if round > 2 {
            let reader = tensorpost_core::clock::Ticket {
                process: ours_id,
                slot: ours.clock_slot(),
                value: round - 2,
            };
            theirs.submit(&[StreamOp::Wait(reader)])?;
        }
        let at = (round % 2) * BYTES;
        let to = chunk.mapping.range(at, BYTES).context("range")?;
        // SAFETY: in a writable mapping that is kept; the clocks order the reader's use of it with this.
        unsafe { theirs.fill(to, BYTES, round as u8, [Arc::clone(&chunk.mapping)].into_iter().collect())? };
        theirs.submit(&[StreamOp::Advance(round)])?;
        let ready =
            tensorpost_core::clock::Ticket { process: theirs_id, slot: theirs.clock_slot(), value: round };
        ours.submit(&[StreamOp::Wait(ready)])?;
        let from = view.range(at + BYTES - 512, 512).context("range")?;
        let to = log.range((round - 1) * 512, 512).context("range")?;
        let keep: Keep = [Arc::clone(&view), Arc::clone(&log)].into_iter().collect();
        // SAFETY: as above, for the source; this stream alone writes the destination.
        unsafe { ours.copy(to, from, 512, keep)? };
        ours.submit(&[StreamOp::Advance(round)])?;
    }
    let mut seen = vec![0; (ROUNDS * 512) as usize];
    // SAFETY: the mapping lives, and this stream alone writes it.
    unsafe { ours.download(&mut seen, log.addr())? };
    let each = start.elapsed() / ROUNDS as u32;
    for (round, bytes) in (1..=ROUNDS).zip(seen.chunks(512)) {
        ensure!(bytes.iter().all(|&byte| byte == round as u8), "round {round} came wrong: {:?}", &bytes[..8]);
    }
    // One process with streams on both devices: both see its page.
    let both = Process::new(first, 3)?;
    let clock = both.domain.allocate_slot()?;
    let on_second = second.create_stream(clock, Arc::clone(&both.domain))?;
    let on_first = both.stream()?;
    on_first.submit(&[StreamOp::Wait(both.ticket(&on_second, 1)), StreamOp::Advance(1)])?;
    on_second.submit(&[StreamOp::Advance(1)])?;
    on_first.synchronize()?;
    println!("peers: {ROUNDS} hand-overs of {BYTES} bytes from one GPU to another, all right, {each:?} each");
    Ok(())
}
