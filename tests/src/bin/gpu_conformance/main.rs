//! A program for a machine with a GPU. It runs the device conformance suite, hand-overs between two real
//! processes, the death of one of them, and a check of which calls block while a stream waits. It ends with
//! an error at the first step that fails or is stuck.
//!
//! ```sh
//! CUDA_MODULE_LOADING=EAGER CUDA_DEVICE_MAX_CONNECTIONS=8 gpu_conformance [conformance|processes|peers|waiting|speed]…
//! ```

mod peers;
mod processes;
mod speed;
mod waiting;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use tensorpost::device::Device;
use tensorpost::node::ProcessId;
use tensorpost_core::clock::{ClockDomain, ClockPage, Ticket};
use tensorpost_core::device::cuda::{CudaBackend, devices};
use tensorpost_core::device::{Backend, StreamBackend, conformance};

/// After this long a step counts as stuck, and the program exits with its streams.
const STUCK: Duration = Duration::from_secs(60);

fn main() -> Result<()> {
    let mut parts: Vec<String> = std::env::args().skip(1).collect();
    if parts.first().is_some_and(|part| part == "peer") {
        return processes::peer(parts.get(1).is_some_and(|part| part == "dies"));
    }
    if parts.is_empty() {
        parts = ["conformance", "processes", "peers", "waiting", "speed"].map(str::to_owned).to_vec();
    }
    let start = Instant::now();
    for device in devices()? {
        println!("{device:?}");
    }
    println!(
        "listed after {:?}: {:?}",
        start.elapsed(),
        Device::all().iter().map(Device::to_string).collect::<Vec<_>>()
    );
    let backend = CudaBackend::open(0)?;
    println!("opened after {:?}: {backend:?}, granularity {}", start.elapsed(), backend.granularity());
    ensure!(Device::cuda(0)?.backend()?.id() == backend.id(), "the device and its backend are two");
    for part in &parts {
        match part.as_str() {
            "conformance" => conformance(&backend)?,
            "processes" => processes::run(&backend)?,
            "peers" => peers::run(&backend)?,
            "waiting" => waiting::run(&backend)?,
            "speed" => speed::run(&backend)?,
            other => bail!("there is no part `{other}`"),
        }
    }
    println!("all done after {:?}", start.elapsed());
    Ok(())
}

fn conformance(backend: &Arc<CudaBackend>) -> Result<()> {
    for (name, case) in conformance::CASES {
        let backend = Arc::clone(backend);
        let took = step(name, move || {
            case(&|| Arc::clone(&backend) as Arc<dyn Backend>);
            Ok(())
        })?;
        println!("conformance: {name} ok, {took:?}");
    }
    println!("conformance: {} cases passed on {}", conformance::CASES.len(), backend.name());
    Ok(())
}

/// Runs `work` on a thread of its own, for at most [`STUCK`].
fn step(name: &str, work: impl FnOnce() -> Result<()> + Send + 'static) -> Result<Duration> {
    let start = Instant::now();
    let (done, outcome) = mpsc::channel();
    let _detached = thread::spawn(move || {
        let _ = done.send(work());
    });
    match outcome.recv_timeout(STUCK) {
        Ok(result) => result.map(|()| start.elapsed()),
        Err(mpsc::RecvTimeoutError::Timeout) => bail!("{name} is stuck"),
        Err(mpsc::RecvTimeoutError::Disconnected) => bail!("{name} failed"),
    }
}

/// One process's clocks with a device, as in the conformance suite.
struct Process {
    device: Arc<CudaBackend>,
    domain: Arc<ClockDomain>,
}

impl Process {
    fn new(device: &Arc<CudaBackend>, slot: u16) -> Result<Self> {
        Self::with_page(device, slot, ClockPage::create()?)
    }

    fn with_page(device: &Arc<CudaBackend>, slot: u16, page: Arc<ClockPage>) -> Result<Self> {
        let Some(id) = ProcessId::new(slot, 0) else { bail!("no process {slot}") };
        Ok(Process { device: Arc::clone(device), domain: ClockDomain::new(id, page) })
    }

    fn stream(&self) -> Result<Arc<dyn StreamBackend>> {
        Ok(self.device.create_stream(self.domain.allocate_slot()?, Arc::clone(&self.domain))?)
    }

    fn ticket(&self, stream: &Arc<dyn StreamBackend>, value: u64) -> Ticket {
        Ticket { process: self.domain.own(), slot: stream.clock_slot(), value }
    }

    /// Adds a clock page that a peer in roster slot `slot` sent.
    fn meet(&self, slot: u16, page: OwnedFd) -> Result<ProcessId> {
        let Some(id) = ProcessId::new(slot, 0) else { bail!("no process {slot}") };
        self.domain.testing_add_peer(id, ClockPage::open(page)?);
        Ok(id)
    }

    fn page_fd(&self) -> Result<OwnedFd> {
        Ok(self.domain.own_page().export_fd()?)
    }
}
