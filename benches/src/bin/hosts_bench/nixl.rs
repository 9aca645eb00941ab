//! NIXL by itself, as the baseline of tensors that go by it: two processes, each with an arena on its GPU,
//! and 32 MiB written again and again.

#![expect(unsafe_code, reason = "allocates memory of a GPU by the driver")]

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use bytes::Bytes;
use cudarc::driver::{CudaContext, CudaEvent, CudaStream, result};
use tensorpost_hosts::limits::{NIXL_SLOT, NIXL_SLOTS};
use tensorpost_hosts::nixl::{Agent, Library, MemoryPlace, Nixl, Part, Region};

/// Marks a process of this program as the other end, and names its GPU.
const RAW: &str = "HOSTS_BENCH_RAW_NIXL";
const OTHER: &str = "other";
/// How long the other end rests between two copies: about as long as writing a slot takes.
const REST: Duration = Duration::from_micros(100);

/// An agent with an arena, and as much memory beside it.
struct End {
    // It is before the context, because dropping it deregisters the memory.
    agent: Box<dyn Agent>,
    memory: Region,
    copies: Copies,
}

/// Copies between an arena and the memory beside it, as gateways make them.
struct Copies {
    stream: Arc<CudaStream>,
    arena: u64,
    beside: u64,
}

impl Copies {
    fn copy(&self, to: u64, from: u64) -> anyhow::Result<CudaEvent> {
        self.stream.context().bind_to_thread()?;
        // SAFETY: both are a slot of memory that is never freed.
        unsafe { result::memcpy_dtod_async(to, from, NIXL_SLOT as usize, self.stream.cu_stream()) }?;
        Ok(self.stream.record_event(None)?)
    }

    /// Copies into a slot that will be written to the other end.
    fn put_in(&self, at: u64) -> anyhow::Result<CudaEvent> {
        self.copy(self.arena + at, self.beside + at)
    }

    /// Copies out of one slot after the other, for as long as the process runs.
    fn take_out(self) -> anyhow::Result<()> {
        for slot in (0..NIXL_SLOTS).cycle() {
            let at = u64::from(slot) * NIXL_SLOT;
            self.copy(self.beside + at, self.arena + at)?.synchronize()?;
            std::thread::sleep(REST);
        }
        Ok(())
    }
}

impl End {
    fn on(gpu: u32, name: &str, part: Part) -> anyhow::Result<Self> {
        let context = CudaContext::new(gpu as usize)?;
        context.bind_to_thread()?;
        let bytes = NIXL_SLOT * u64::from(NIXL_SLOTS);
        let allocate = || {
            // SAFETY: it is never freed, and nothing refers to it.
            unsafe { result::malloc_sync(bytes as usize) }
        };
        let address = allocate()?;
        let copies = Copies { stream: context.new_stream()?, arena: address, beside: allocate()? };
        let memory = Region { place: MemoryPlace::Gpu(gpu), address, bytes };
        let mut agent = Library::load()?.agent(name, part)?;
        agent.register(memory)?;
        Ok(End { agent, memory, copies })
    }
}

/// Becomes the other end, where this process was started for that.
pub(crate) fn serve_if_raw() -> anyhow::Result<bool> {
    let Ok(said) = std::env::var(RAW) else { return Ok(false) };
    let (gpu, copies) = said.split_once(' ').context("it does not say whether this end copies")?;
    let End { mut agent, memory, copies: out_of } = End::on(gpu.parse()?, OTHER, Part::Written)?;
    let metadata: String = agent.metadata()?.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut out = std::io::stdout();
    writeln!(out, "{} {metadata}", memory.address)?;
    out.flush()?;
    if copies.parse()? {
        std::thread::spawn(move || out_of.take_out());
    }
    // It runs until the writing process is done.
    std::io::stdin().read_to_end(&mut Vec::new())?;
    drop(agent);
    Ok(true)
}

/// Writes from one GPU to another process's memory on another.
pub(crate) struct Raw {
    end: End,
    to: Region,
    other: Child,
}

impl Raw {
    /// With `copies`, the other end copies out of its slots meanwhile.
    pub(crate) fn start(from: u32, to: u32, copies: bool) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.env(RAW, format!("{to} {copies}")).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut other = command.spawn().context("the other end of NIXL does not start")?;
        let said = other.stdout.take().context("it has no output")?;
        let mut line = String::new();
        BufReader::new(said).read_line(&mut line)?;
        let (address, metadata) = line.trim().split_once(' ').with_context(|| format!("it said {line:?}"))?;
        let byte = |at: usize| u8::from_str_radix(metadata.get(at..at + 2).unwrap_or("?"), 16);
        let metadata = (0..metadata.len()).step_by(2).map(byte).collect::<Result<Bytes, _>>()?;
        let mut end = End::on(from, "one", Part::Writer)?;
        let to = Region { place: MemoryPlace::Gpu(to), address: address.parse()?, bytes: end.memory.bytes };
        end.agent.connect(OTHER, &metadata, to)?;
        Ok(Raw { end, to, other })
    }

    /// Returns the GB (10^9 bytes) a second of this many slots, of which `ahead` are on their way at a time.
    /// With `copied`, data is copied into each slot first.
    pub(crate) fn write(&mut self, count: u64, ahead: u64, copied: bool) -> anyhow::Result<f64> {
        let ahead = ahead.clamp(1, NIXL_SLOTS.into());
        let (since, mut taken, mut done) = (Instant::now(), 0, 0);
        let (mut filled, mut under_way) = (VecDeque::new(), VecDeque::new());
        while done < count {
            while taken < count && taken - done < ahead {
                let at = taken % u64::from(NIXL_SLOTS) * NIXL_SLOT;
                filled.push_back((at, copied.then(|| self.end.copies.put_in(at)).transpose()?));
                taken += 1;
            }
            while let Some((at, copy)) = filled.front()
                && copy.as_ref().is_none_or(CudaEvent::is_complete)
            {
                let (from, to) = (self.end.memory.part(*at, NIXL_SLOT), self.to.part(*at, NIXL_SLOT));
                under_way.push_back(self.end.agent.begin(from, to)?);
                filled.pop_front();
            }
            if let Some(first) = under_way.front()
                && self.end.agent.is_done(*first)?
            {
                under_way.pop_front();
                done += 1;
            }
        }
        Ok((count * NIXL_SLOT) as f64 / 1e9 / since.elapsed().as_secs_f64())
    }

    pub(crate) fn end(mut self) -> anyhow::Result<()> {
        drop(self.end);
        // It ends with its input.
        drop(self.other.stdin.take());
        let status = self.other.wait()?;
        anyhow::ensure!(status.success(), "the other end of NIXL ended with {status}");
        Ok(())
    }
}
