//! The harder floor: the same exchange over a ring in shared memory that both sides poll, with the fewest
//! calls to the driver. A stream does not wait for a clock that the host has seen pass, and the host reads
//! the end of a round in the clock itself.

use std::time::Instant;

use super::raw::Gpu;
use super::ring::{Rings, spin};
use super::{BURSTS, FAR, FAR_BURST, NEAR, NEAR_BURST};
use crate::report::median;

/// Items of a stream.
const STREAM: u64 = 30_000;

/// The order for the other side, in the lowest byte of a word. The rest of the word is the value of the
/// clock.
const WORD: u64 = 0;
const CLOCKS: u64 = 1;
const KERNELS: u64 = 2;
const ITEM: u64 = 3;
const ITEM_KERNEL: u64 = 4;
const END: u64 = 5;

const fn word(value: u64, what: u64) -> u64 {
    value << 8 | what
}

/// Round trips and streams, as lines of a name and microseconds or items a second. `value` is the last value
/// of the round trips' clocks, and `burst` that of the bursts'.
pub(super) fn run(
    rings: &mut Rings,
    gpu: Option<&Gpu>,
    rounds: usize,
    mut value: u64,
    mut burst: u64,
) -> anyhow::Result<()> {
    let trips: &[(&str, u64)] = match gpu {
        Some(_) => &[("polled", WORD), ("polled.clocks", CLOCKS), ("polled.kernels", KERNELS)],
        None => &[("polled", WORD)],
    };
    for (name, what) in trips {
        let mut times = Vec::with_capacity(rounds);
        for round in 0..rounds + rounds / 10 {
            value += 1;
            let start = Instant::now();
            trip(rings, gpu.filter(|_| *what != WORD), *what, value)?;
            if round >= rounds / 10 {
                times.push(start.elapsed().as_secs_f64() * 1e6);
            }
        }
        println!("{name} {}", median(&mut times));
    }
    let streams: &[(&str, u64)] = match gpu {
        Some(_) => &[("polled.stream", ITEM), ("polled.stream.kernels", ITEM_KERNEL)],
        None => &[("polled.stream", ITEM)],
    };
    for (name, what) in streams {
        let mut rates = Vec::with_capacity(BURSTS);
        for _ in 0..BURSTS {
            let start = Instant::now();
            stream(rings, gpu.filter(|_| *what == ITEM_KERNEL), *what, burst)?;
            rates.push(STREAM as f64 / start.elapsed().as_secs_f64());
            burst += STREAM;
        }
        println!("{name} {}", median(&mut rates));
    }
    rings.send(END)
}

/// Plays one round trip: work and a clock write here, then there, and the end is read here.
fn trip(rings: &mut Rings, gpu: Option<&Gpu>, what: u64, value: u64) -> anyhow::Result<()> {
    if let Some(gpu) = gpu {
        if what == KERNELS {
            gpu.launch()?;
        }
        gpu.write(NEAR, value)?;
    }
    rings.send(word(value, what))?;
    rings.take()?;
    if let Some(gpu) = gpu {
        spin(|| (gpu.clock(FAR) >= value).then_some(()))?;
    }
    Ok(())
}

/// Sends items behind `before` others. Where there are kernels, each item has one here and one there that
/// waits for it, until the GPU has finished.
fn stream(rings: &mut Rings, gpu: Option<&Gpu>, what: u64, before: u64) -> anyhow::Result<()> {
    for value in before + 1..=before + STREAM {
        if let Some(gpu) = gpu {
            gpu.launch()?;
            gpu.write(NEAR_BURST, value)?;
        }
        rings.send(word(value, what))?;
    }
    if let Some(gpu) = gpu {
        spin(|| (gpu.clock(FAR_BURST) >= before + STREAM).then_some(()))?;
    }
    // The other side takes words in order, so it has taken all of them when this one comes back.
    rings.send(word(0, WORD))?;
    rings.take().map(drop)
}

/// Runs the other side, until the first side says that it was the last word.
pub(super) fn answer(rings: &mut Rings, gpu: Option<&Gpu>) -> anyhow::Result<()> {
    loop {
        let taken = rings.take()?;
        let (value, what) = (taken >> 8, taken & 0xff);
        match (what, gpu) {
            (END, _) => return Ok(()),
            (ITEM, _) => continue,
            (CLOCKS | KERNELS, Some(gpu)) => {
                wait(gpu, NEAR, value)?;
                if what == KERNELS {
                    gpu.launch()?;
                }
                gpu.write(FAR, value)?;
            }
            (ITEM_KERNEL, Some(gpu)) => {
                wait(gpu, NEAR_BURST, value)?;
                gpu.launch()?;
                gpu.write(FAR_BURST, value)?;
                continue;
            }
            _ => {}
        }
        rings.send(taken)?;
    }
}

/// Makes the stream wait, where the clock has not passed.
fn wait(gpu: &Gpu, clock: u64, value: u64) -> anyhow::Result<()> {
    if gpu.clock(clock) >= value { Ok(()) } else { gpu.wait(clock, value) }
}
