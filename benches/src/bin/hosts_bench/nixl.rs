//! NIXL by itself, as the baseline of tensors that go by it: two processes, each with an arena on its GPU, and 32 MiB written again and again.

#![expect(unsafe_code, reason = "allocates memory of a GPU by the driver")]

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context as _;
use bytes::Bytes;
use cudarc::driver::{CudaContext, result};
use tensorpost_hosts::limits::{NIXL_SLOT, NIXL_SLOTS};
use tensorpost_hosts::nixl::{Agent, Library, Nixl, Place, Region};

/// Says on which GPU a process of this program is the other end.
const RAW: &str = "HOSTS_BENCH_RAW_NIXL";
const OTHER: &str = "other";

/// An agent with an arena.
struct End {
    // Before the context: with it the memory is deregistered.
    agent: Box<dyn Agent>,
    memory: Region,
    _context: Arc<CudaContext>,
}

impl End {
    fn on(gpu: u32, name: &str) -> anyhow::Result<Self> {
        let context = CudaContext::new(gpu as usize)?;
        context.bind_to_thread()?;
        let bytes = NIXL_SLOT * u64::from(NIXL_SLOTS);
        // SAFETY: it is never freed, and nothing refers to it.
        let address = unsafe { result::malloc_sync(bytes as usize) }?;
        let memory = Region { place: Place::Gpu(gpu), address, bytes };
        let mut agent = Library::load()?.agent(name)?;
        agent.register(memory)?;
        Ok(End { agent, memory, _context: context })
    }
}

/// Is the other end, where this process was started for that.
pub(crate) fn serve_if_raw() -> anyhow::Result<bool> {
    let Ok(gpu) = std::env::var(RAW) else { return Ok(false) };
    let mut end = End::on(gpu.parse()?, OTHER)?;
    let metadata: String = end.agent.metadata()?.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut out = std::io::stdout();
    writeln!(out, "{} {metadata}", end.memory.address)?;
    out.flush()?;
    // Until whoever writes is done.
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(true)
}

/// Writes from one GPU to another process's memory on another.
pub(crate) struct Raw {
    end: End,
    to: Region,
    other: Child,
}

impl Raw {
    pub(crate) fn start(from: u32, to: u32) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.env(RAW, to.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut other = command.spawn().context("the other end of NIXL does not start")?;
        let said = other.stdout.take().context("it has no output")?;
        let mut line = String::new();
        BufReader::new(said).read_line(&mut line)?;
        let (address, metadata) = line.trim().split_once(' ').with_context(|| format!("it said {line:?}"))?;
        let byte = |at: usize| u8::from_str_radix(metadata.get(at..at + 2).unwrap_or("?"), 16);
        let metadata = (0..metadata.len()).step_by(2).map(byte).collect::<Result<Bytes, _>>()?;
        let mut end = End::on(from, "one")?;
        let to = Region { place: Place::Gpu(to), address: address.parse()?, bytes: end.memory.bytes };
        end.agent.connect(OTHER, &metadata, to)?;
        Ok(Raw { end, to, other })
    }

    /// GB (10^9 bytes) a second of so many slots, of which `ahead` are on their way at a time.
    pub(crate) fn write(&mut self, count: u64, ahead: u64) -> anyhow::Result<f64> {
        let ahead = ahead.clamp(1, NIXL_SLOTS.into());
        let (since, mut begun, mut done) = (Instant::now(), 0, 0);
        let mut under_way = std::collections::VecDeque::new();
        while done < count {
            while begun < count && begun - done < ahead {
                let at = begun % u64::from(NIXL_SLOTS) * NIXL_SLOT;
                let (from, to) = (self.end.memory.part(at, NIXL_SLOT), self.to.part(at, NIXL_SLOT));
                under_way.push_back(self.end.agent.begin(from, to)?);
                begun += 1;
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
