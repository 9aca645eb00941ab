//! Spare workers on a device: they have opened it, and under MPS they share the fate of its clients.

#![expect(unsafe_code, reason = "launches a kernel")]

use std::time::{Duration, Instant};

use cudarc::driver::{CudaFunction, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use rustix::process::{Pid, Signal, kill_process};
use tensorpost::actor::EndReason;
use tensorpost::node::{Spawned, WorkerId, WorkerState, WorkerStatus};
use tensorpost::prelude::*;
use tensorpost_tests::harness::Builder;
use tensorpost_tests::wait::until;

use crate::faults::{Doubler, doubles, doubles_at_last};
use crate::{device, node_under_mps};

const SOON: Restart = Restart::on_failure(5).backoff(Duration::from_millis(1), Duration::from_millis(5));

fn status(node: &Node, worker: WorkerId) -> WorkerStatus {
    node.supervisor().worker(worker).expect("it was started")
}

/// Returns the process that waits for it, when it is ready.
fn until_spare(node: &Node, doubler: &Spawned<Doubler>) -> u32 {
    let is_ready = WorkerState::Spare { of: doubler.worker(), ready: true };
    let mut pid = None;
    until("there is a spare", || {
        pid = node.workers().into_iter().find(|worker| worker.state == is_ready).map(|spare| spare.pid);
        pid.is_some()
    });
    pid.expect("it was found")
}

fn kill(pid: u32) {
    kill_process(Pid::from_raw(pid.cast_signed()).expect("a process"), Signal::KILL).expect("it runs");
}

/// Kills its process while a spare waits, and prints how long it took to serve again. Returns the new
/// process, and that of the new spare.
fn killed_and_back(node: &Node, stream: &DeviceStream, doubler: &Spawned<Doubler>) -> (u32, u32) {
    doubles(node, stream, &doubler.address());
    let (before, spare) = (status(node, doubler.worker()).pid, until_spare(node, doubler));
    let start = Instant::now();
    kill(before);
    doubles_at_last(node, stream, &doubler.address(), 1);
    println!("it serves again after {:?}", start.elapsed());
    (before, spare)
}

pub(crate) fn a_worker_goes_on_in_a_spare_that_has_opened_the_device(builder: Builder) {
    let (device, _) = device();
    let node = builder.start().unwrap();
    let stream = node.stream(&device).unwrap();
    let doubler = node.spawn::<Doubler>(()).device(device).restart(SOON).spares(1).start().unwrap();
    for _ in 0..2 {
        let (_, spare) = killed_and_back(&node, &stream, &doubler);
        assert_eq!(status(&node, doubler.worker()).pid, spare);
    }
}

/// DEATH-2: a client that is killed while none of its kernels runs takes nothing from the others, and goes on
/// in its spare.
pub(crate) fn a_client_of_mps_that_is_killed_at_rest_costs_nobody_else(builder: Builder) {
    let (device, node) = node_under_mps(builder);
    let stream = node.stream(&device).unwrap();
    let doubler = node.spawn::<Doubler>(()).device(device.clone()).restart(SOON).spares(1).start().unwrap();
    let companion = node.spawn::<Doubler>(()).device(device).restart(SOON).start().unwrap();
    doubles(&node, &stream, &companion.address());
    let companions = status(&node, companion.worker()).pid;
    for _ in 0..3 {
        let (_, spare) = killed_and_back(&node, &stream, &doubler);
        assert_eq!(status(&node, doubler.worker()).pid, spare);
        doubles(&node, &stream, &companion.address());
        let now = status(&node, companion.worker());
        assert!(now.pid == companions && now.restarts == 0, "{now:?}");
    }
}

/// A kernel that works for this many nanoseconds, by the clock of the device.
const PTX: &str = "\
.version 7.0
.target sm_70
.address_size 64
.visible .entry work(.param .u64 out, .param .u64 time) {
    .reg .pred %p<2>;
    .reg .u64 %rd<6>;
    ld.param.u64 %rd1, [out];
    ld.param.u64 %rd2, [time];
    mov.u64 %rd3, %globaltimer;
again:
    mov.u64 %rd4, %globaltimer;
    sub.u64 %rd5, %rd4, %rd3;
    setp.lt.u64 %p1, %rd5, %rd2;
    @%p1 bra again;
    st.global.u32 [%rd1], 1;
    ret;
}
";

/// Longer than a process takes to end.
const WORK: u64 = 2_000_000_000;

/// "Begin a kernel that takes long." The answer arrives when the kernel has begun.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = ())]
struct Toil;

/// Works on the device, and doubles nothing.
pub(crate) struct Toiler {
    stream: DeviceStream,
    kernel: CudaFunction,
    out: Option<TensorMut>,
}

#[actor]
impl Toiler {
    fn create((): (), env: &Env) -> anyhow::Result<Self> {
        let stream = env.stream();
        let kernel = stream.cuda_context()?.load_module(Ptx::from_src(PTX))?.load_function("work")?;
        Ok(Toiler { stream, kernel, out: None })
    }

    #[handler]
    fn toil(&mut self, _: Toil) {
        let mut out = self.stream.zeros(DType::U32, &[1]).expect("room for a word");
        self.stream.synchronize().expect("a GPU that works");
        let mut launch = self.stream.launch_builder(&self.kernel).expect("a GPU");
        launch.arg(&mut out).arg(&WORK);
        let config = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: the kernel has these parameters, and writes the one element.
        unsafe { launch.launch(config) }.expect("a launch");
        self.out = Some(out);
    }
}

/// DEATH-2: a client that is killed in the middle of a kernel takes the others along, and its spare: all of
/// them come back.
pub(crate) fn spares_end_with_their_mps_group_and_are_replaced(builder: Builder) {
    let (device, node) = node_under_mps(builder);
    let stream = node.stream(&device).unwrap();
    let toiler = node.spawn::<Toiler>(()).device(device.clone()).restart(SOON).start().unwrap();
    let doubler = node.spawn::<Doubler>(()).device(device).restart(SOON).spares(1).start().unwrap();
    for restarts in 1..=2 {
        doubles(&node, &stream, &doubler.address());
        let (before, spare) = (status(&node, doubler.worker()).pid, until_spare(&node, &doubler));
        node.block_on(toiler.ask(Toil)).expect("it begins");
        let start = Instant::now();
        kill(status(&node, toiler.worker()).pid);
        let now = || status(&node, doubler.worker());
        until("the other has ended with it", || now().restarts == restarts);
        doubles_at_last(&node, &stream, &doubler.address(), 1);
        println!("the other serves again after {:?}", start.elapsed());
        let (now, ended) = (now(), node.report().unwrap().restarts);
        assert!(now.pid != before && now.pid != spare && now.restarts == restarts, "{now:?}");
        let ended = ended.iter().find(|past| past.worker == doubler.worker()).expect("it was restarted");
        // A client may see the loss, and report it, before anybody sees the end of the one that was killed.
        assert!(matches!(ended.ends.last(), Some(EndReason::Group(_) | EndReason::GpuFault(_))), "{ended:?}");
        assert_ne!(until_spare(&node, &doubler), spare);
        until("the first is back", || status(&node, toiler.worker()).state == WorkerState::Running);
    }
}
