//! Memory that a dead process had for writing, when its owner uses it again.

#![expect(unsafe_code, reason = "launches kernels")]

use std::time::{Duration, Instant};

use cudarc::driver::{CudaFunction, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use rustix::process::{Pid, Signal, kill_process};
use tensorpost::node::Sharing;
use tensorpost::prelude::*;
use tensorpost_tests::gate::{Door, Gate};
use tensorpost_tests::harness::Builder;
use tensorpost_tests::wait::until;

use crate::device;

const BLOCK: u32 = 256;
const ELEMENTS: u32 = 256 * BLOCK;
/// Kernels for about a second; they end by themselves.
const LAUNCHES: u32 = 50_000;
/// This many of them are under way or queued when the process is killed.
const BEFORE: u32 = 400;
/// Cycles of the GPU's clock for each kernel: some 20 us.
const CYCLES: u64 = 40_000;

/// A kernel that writes its second argument into each element over and over, for as many cycles as its third
/// says.
const PTX: &str = "\
.version 7.0
.target sm_70
.address_size 64
.visible .entry overwrite(.param .u64 out, .param .u32 value, .param .u64 cycles) {
    .reg .u64 %rd<7>;
    .reg .u32 %r<6>;
    .reg .pred %p<2>;
    ld.param.u64 %rd1, [out];
    ld.param.u32 %r1, [value];
    ld.param.u64 %rd2, [cycles];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.u32 %r5, %r2, %r3, %r4;
    mul.wide.u32 %rd3, %r5, 4;
    add.u64 %rd4, %rd1, %rd3;
    mov.u64 %rd5, %clock64;
again:
    st.volatile.global.u32 [%rd4], %r1;
    mov.u64 %rd6, %clock64;
    sub.u64 %rd6, %rd6, %rd5;
    setp.lt.u64 %p1, %rd6, %rd2;
    @%p1 bra again;
    ret;
}
";

/// "This is yours: write it, and go on until you are killed."
#[derive(Serialize, Deserialize, GpuMessage)]
struct Overwrite {
    tensor: Tensor,
    door: Door,
}

struct Writer {
    stream: DeviceStream,
    kernel: CudaFunction,
}

#[actor]
impl Writer {
    fn create((): (), env: &Env) -> anyhow::Result<Self> {
        let stream = env.stream();
        let kernel = stream.cuda_context()?.load_module(Ptx::from_src(PTX))?.load_function("overwrite")?;
        Ok(Writer { stream, kernel })
    }

    #[handler]
    fn overwrite(&mut self, order: Overwrite) {
        self.write(order).expect("a GPU that works");
    }

    fn write(&mut self, Overwrite { tensor, door }: Overwrite) -> anyhow::Result<()> {
        let mut tensor = tensor.into_mut(&self.stream)?;
        let mut launch_one = || -> anyhow::Result<()> {
            let mut launch = self.stream.launch_builder(&self.kernel)?;
            launch.arg(&mut tensor).arg(&7_u32).arg(&CYCLES);
            let config = LaunchConfig {
                grid_dim: (ELEMENTS / BLOCK, 1, 1),
                block_dim: (BLOCK, 1, 1),
                shared_mem_bytes: 0,
            };
            // SAFETY: the kernel has these parameters, and a thread for each element.
            unsafe { launch.launch(config) }?;
            Ok(())
        };
        launch_one()?;
        self.stream.synchronize()?;
        for number in 0..LAUNCHES {
            if number == BEFORE {
                door.pass()?;
            }
            launch_one()?;
        }
        anyhow::bail!("nobody has killed it")
    }
}

/// LEASE-4, for a stream for which nobody waits: kernels that the dead process has queued do not write after
/// the owner writes again.
fn stays_its_owners(builder: Builder, sharing: Sharing) {
    let (device, _) = device();
    let node = builder.sharing(sharing).start().unwrap();
    let stream = node.stream(&device).unwrap();
    let mut compared = 0;
    for round in 0..5_u32 {
        let mut started = None;
        until("a writer starts", || {
            match (node.spawn::<Writer>(()).device(device.clone()).start(), sharing) {
                (Ok(writer), _) => started = Some(writer),
                // The server of MPS ends all its clients after one that was killed at work, also one that has
                // just come.
                (Err(error), Sharing::Mps) => println!("{error}"),
                (Err(error), _) => panic!("{error}"),
            }
            started.is_some()
        });
        let writer = started.expect("it was seen");
        let gate = Gate::new();
        let tensor =
            stream.from_slice(&[ELEMENTS as usize], &vec![1_u32; ELEMENTS as usize]).unwrap().freeze();
        let place = tensor.lease().address();
        node.block_on(writer.address().send(Overwrite { tensor, door: gate.door() })).unwrap();
        let arrival = gate.arrival();
        let pid = node.supervisor().worker(writer.worker()).expect("it was started").pid;
        // The worker goes on with its launches meanwhile.
        arrival.open();
        kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::KILL).unwrap();
        let value = 100 + round;
        let mut others = Vec::new();
        let mut again = None;
        until("the owner has its memory again", || {
            let made = stream.from_slice(&[ELEMENTS as usize], &vec![value; ELEMENTS as usize]).unwrap();
            if made.lease().address() == place {
                again = Some(made);
            } else {
                if others.len() == 64 {
                    others.clear();
                }
                others.push(made);
            }
            again.is_some()
        });
        let again = again.expect("it was seen").freeze();
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(300) {
            let found = stream.download::<u32>(&again).unwrap();
            let wrong = found.iter().filter(|found| **found != value).count();
            assert_eq!(wrong, 0, "{sharing:?}, round {round}: the dead writes after {:?}", start.elapsed());
            compared += 1;
        }
    }
    println!("{sharing:?}: compared {compared} times, always the owner's");
}

pub(crate) fn memory_that_a_dead_process_wrote_stays_its_owners(builder: Builder) {
    stays_its_owners(builder, Sharing::Isolated);
}

pub(crate) fn memory_that_a_dead_client_of_mps_wrote_stays_its_owners(builder: Builder) {
    stays_its_owners(builder, Sharing::Mps);
}
