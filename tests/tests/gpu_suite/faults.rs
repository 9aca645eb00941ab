//! Faults of a device, and the processes that learn of them.

#![expect(unsafe_code, reason = "launches a kernel that faults")]

use std::time::Duration;

use cudarc::driver::{CudaFunction, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use tensorpost::actor::{AskFailure, EndReason};
use tensorpost::node::{WorkerId, WorkerState};
use tensorpost::prelude::*;
use tensorpost::tensor::PoolError;
use tensorpost_tests::harness::Builder;
use tensorpost_tests::wait::until;

use crate::{device, node_under_mps};

/// Writes to the address that is its second argument.
const PTX: &str = "\
.version 7.0
.target sm_70
.address_size 64
.visible .entry fault(.param .u64 out, .param .u64 at) {
    .reg .u64 %rd<2>;
    .reg .u32 %r<2>;
    ld.param.u64 %rd1, [at];
    mov.u32 %r1, 7;
    st.global.u32 [%rd1], %r1;
    ret;
}
";

/// "Launch a kernel that faults, and make no call after that." The actor never replies.
#[derive(Debug, Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = ())]
struct Fault;

/// Makes a kernel fault on request.
struct Faulty {
    stream: DeviceStream,
    kernel: CudaFunction,
    kept: Option<Tensor>,
}

impl Actor for Faulty {
    type Context = Context<Self>;
}

impl RemoteActor for Faulty {
    type Args = ();

    fn create((): (), env: &Env) -> anyhow::Result<Self> {
        let stream = env.stream();
        let kernel = stream.cuda_context()?.load_module(Ptx::from_src(PTX))?.load_function("fault")?;
        Ok(Faulty { stream, kernel, kept: None })
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Fault>();
    }
}

impl Handler<Fault> for Faulty {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, _: Fault, _: &mut Context<Self>) -> Self::Result {
        let mut out = self.stream.zeros(DType::F32, &[256]).expect("room for a tensor");
        let mut launch = self.stream.launch_builder(&self.kernel).expect("a GPU");
        launch.arg(&mut out).arg(&8_u64);
        let config = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: none; the test is about a write where the kernel must not write, and only this process is
        // harmed.
        unsafe { launch.launch(config) }.expect("a launch");
        self.kept = Some(out.freeze());
        // From here on the actor waits, as an idle actor does.
        Box::pin(std::future::pending())
    }
}

/// "What is twice this?"
#[derive(Debug, Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Tensor)]
pub(crate) struct Double(Tensor);

/// Sends its tensor back, copied on its device.
pub(crate) struct Doubler {
    stream: DeviceStream,
}

impl Actor for Doubler {
    type Context = Context<Self>;
}

impl RemoteActor for Doubler {
    type Args = ();

    fn create((): (), env: &Env) -> anyhow::Result<Self> {
        Ok(Doubler { stream: env.stream() })
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Double>();
    }
}

impl Handler<Double> for Doubler {
    type Result = MessageResult<Double>;

    fn handle(&mut self, message: Double, _: &mut Context<Self>) -> Self::Result {
        let values = self.stream.download::<f32>(&message.0).expect("values");
        let doubled: Vec<f32> = values.iter().map(|value| 2.0 * value).collect();
        MessageResult(self.stream.from_slice(message.0.shape(), &doubled).expect("room").freeze())
    }
}

pub(crate) fn doubles(node: &Node, stream: &DeviceStream, doubler: &Address<Double>) {
    doubles_at_last(node, stream, doubler, 0);
}

/// As [`doubles`], for an actor whose process may be about to die, at most `deaths` times: messages that it
/// has taken go with it, and its asker is told that it comes back.
pub(crate) fn doubles_at_last(node: &Node, stream: &DeviceStream, doubler: &Address<Double>, deaths: usize) {
    let one = stream.from_slice(&[3], &[1.0_f32, 2.0, 3.0]).expect("room").freeze();
    let mut left = deaths;
    let two = loop {
        match node.block_on(doubler.ask(Double(one.clone()))) {
            Ok(two) => break two,
            Err(error) => {
                assert!(error.is_retryable() && left > 0, "{error}");
                left -= 1;
            }
        }
    };
    assert_eq!(stream.download::<f32>(&two).expect("values"), [2.0, 4.0, 6.0]);
}

pub(crate) fn a_device_that_is_not_there_is_named(builder: Builder) {
    // Also where the tests run on the host.
    let are_gpus = Device::all().iter().any(|device| device.kind() == DeviceKind::Cuda);
    let error = Device::cuda(4096).expect_err("nobody has as many GPUs").to_string();
    assert!(error.contains(if are_gpus { "cuda:4096" } else { "CUDA" }), "{error}");
    // A device that the node may see and the worker does not: it comes as an identity.
    #[derive(Serialize)]
    struct Forged {
        id: tensorpost::device::DeviceId,
        kind: DeviceKind,
        name: &'static str,
        ordinal: Option<usize>,
    }
    let id = tensorpost::device::DeviceId([7; 16]);
    let forged = Forged { id, kind: DeviceKind::Cuda, name: "none", ordinal: Some(0) };
    let forged: Device = rmp_serde::from_slice(&rmp_serde::to_vec_named(&forged).unwrap()).unwrap();
    let node = builder.start().unwrap();
    let error = node.spawn::<Doubler>(()).device(forged).start().unwrap_err().to_string();
    let expected = if are_gpus { "GPU-07070707" } else { "libcuda" };
    assert!(error.contains(expected), "{error}");
}

pub(crate) fn a_device_without_room_says_who_holds_it(builder: Builder) {
    let (device, is_gpu) = device();
    let node = builder.host_budget(1 << 60).gpu_budget(1 << 60).start().unwrap();
    let stream = node.stream(&device).unwrap();
    let held = stream.zeros(DType::U8, &[1 << 20]).unwrap();
    let says_so = |bytes: usize, at_least: u64| {
        let error = stream.empty(DType::U8, &[bytes]).map(drop).unwrap_err();
        let TensorError::Pool(PoolError::NoRoom { asked, in_use, .. }) = &error else {
            panic!("{error}");
        };
        assert!(*asked == bytes as u64 && *in_use >= at_least, "{error}");
        let text = error.to_string();
        assert!(text.contains("(this process)") && text.contains("tensors"), "{text}");
    };
    // More than an address space, and than any GPU.
    says_so(1 << 47, 64 << 20);
    if is_gpu {
        // Most of the memory is free, but not twice as much.
        let most = (stream.pool().backend().total_bytes() * 6 / 10) as usize;
        let large = stream.empty(DType::U8, &[most]).unwrap();
        says_so(most, most as u64);
        drop(large);
        assert!(stream.zeros(DType::U8, &[1 << 20]).is_ok(), "what is small still fits");
    }
    drop(held);
}

/// DEATH-2: its sender and the node are told the worker and the reason; nobody else notices.
pub(crate) fn a_kernel_that_faults_ends_its_worker_alone(builder: Builder) {
    let (device, _) = device();
    let node = builder.start().unwrap();
    let stream = node.stream(&device).unwrap();
    let other = node.spawn::<Doubler>(()).device(device.clone()).start().unwrap().address::<Double>();
    doubles(&node, &stream, &other);
    let faulty = node.spawn::<Faulty>(()).name("the faulty one").device(device.clone()).start().unwrap();
    let start = std::time::Instant::now();
    let asked = faulty.address::<Fault>().ask(Fault).timeout(Duration::from_secs(20));
    let error = node.block_on(asked).unwrap_err();
    println!("after {:?}: {error}", start.elapsed());
    assert!(matches!(error, AskError::NoReply(AskFailure::ProcessExited(_))), "{error}");
    let names_it =
        |text: &str| text.contains("the faulty one") && text.contains("CUDA_ERROR_ILLEGAL_ADDRESS");
    assert!(names_it(&error.to_string()), "{error}");
    let ended = node.supervisor().await_end(faulty.worker());
    let Some(WorkerState::Exited { why: Some(why), .. }) = ended else { panic!("{ended:?}") };
    assert!(why.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{why}");
    until(
        "later senders are told as well",
        || matches!(faulty.address::<Fault>().try_send(Fault), Err(error) if names_it(&error.to_string())),
    );
    // The others go on, on the same GPU, and so do new ones.
    doubles(&node, &stream, &other);
    let new = node.spawn::<Doubler>(()).device(device).start().unwrap().address::<Double>();
    doubles(&node, &stream, &new);
}

/// DEATH-2 under MPS: all workers on the GPU restart with the one whose kernel faults, and no other does.
/// They are back together, and the report says why each ended.
pub(crate) fn a_kernel_that_faults_restarts_its_mps_group(builder: Builder) {
    let (device, node) = node_under_mps(builder);
    let stream = node.stream(&device).unwrap();
    let soon = Restart::on_failure(5).backoff(Duration::from_millis(1), Duration::from_millis(5));
    let faulty = node.spawn::<Faulty>(()).name("the faulty one").device(device.clone()).restart(soon);
    let faulty = faulty.start().unwrap();
    let companion = node.spawn::<Doubler>(()).name("companion").device(device.clone()).restart(soon);
    let companion = companion.start().unwrap();
    let mortal = node.spawn::<Doubler>(()).name("mortal").device(device.clone()).start().unwrap();
    let elsewhere = node.spawn::<Doubler>(()).name("elsewhere").restart(soon).start().unwrap();
    let status = |worker: WorkerId| node.supervisor().worker(worker).expect("it was started");
    let far = status(elsewhere.worker()).pid;
    for round in 1..=2_usize {
        doubles(&node, &stream, &companion.address());
        let before = [faulty.worker(), companion.worker()].map(|worker| status(worker).pid);
        let start = std::time::Instant::now();
        let asked = faulty.address::<Fault>().ask(Fault).timeout(Duration::from_secs(20));
        let error = node.block_on(asked).unwrap_err();
        println!("round {round}, after {:?}: {error}", start.elapsed());
        assert!(matches!(error, AskError::NoReply(AskFailure::ProcessExited(_))), "{error}");
        // Messages that are sent meanwhile wait for the next life, which works on the GPU again, or the last
        // life took them.
        doubles_at_last(&node, &stream, &companion.address(), 1);
        println!("it serves again after {:?}", start.elapsed());
        until("both are back", || {
            let running = |worker| matches!(status(worker).state, WorkerState::Running);
            running(faulty.worker()) && running(companion.worker())
        });
        let after = [faulty.worker(), companion.worker()].map(|worker| status(worker).pid);
        assert!(before.iter().all(|pid| !after.contains(pid)), "{before:?}, {after:?}");
        let report = node.report().unwrap().restarts;
        let ends = |worker: WorkerId| {
            let past = report.iter().find(|past| past.worker == worker).expect("it was restarted");
            assert_eq!((past.restarts as usize, past.ends.len()), (round, round), "{past:?}");
            past.ends.last().expect("as many as rounds").clone()
        };
        let ends = [ends(faulty.worker()), ends(companion.worker())];
        println!("{ends:?}");
        // Under MPS each client has the fault, and the client that reports it first is the one that failed;
        // the others' ends name it.
        for end in &ends {
            let (EndReason::GpuFault(why) | EndReason::Group(why)) = end else { panic!("{ends:?}") };
            assert!(why.contains("CUDA_ERROR"), "{ends:?}");
            let names = ["the faulty one", "companion", "mortal"];
            let is_named = names.iter().any(|name| why.contains(&format!("worker `{name}` failed")));
            assert_eq!(is_named, matches!(end, EndReason::Group(_)), "{ends:?}");
        }
    }
    // Without a policy it ends with the others all the same, and does not come back.
    assert!(matches!(status(mortal.worker()).state, WorkerState::Exited { .. }));
    let error = mortal.address::<Double>().try_send(Double(stream.zeros(DType::F32, &[3]).unwrap().freeze()));
    assert!(!error.expect_err("it is gone").is_retryable());
    assert_eq!(status(elsewhere.worker()).pid, far, "who is not on the GPU is not touched");
}

/// MBX-2: more actors in one worker than a GPU has streams for.
pub(crate) fn more_actors_than_streams_share_them(builder: Builder) {
    let (device, is_gpu) = device();
    let node = builder.start().unwrap();
    let stream = node.stream(&device).unwrap();
    let limit = stream.pool().backend().stream_limit();
    println!("{limit} streams on {device}");
    // On the host there is no sharing: its streams are as many as a process has clocks.
    let count = if is_gpu { 2 * limit } else { 8 };
    let worker = node.worker("many").unwrap();
    let spawn = || node.spawn::<Doubler>(()).device(device.clone()).worker(worker).start();
    let doublers: Vec<_> = (0..count).map(|_| spawn().unwrap().address::<Double>()).collect();
    let ones: Vec<_> =
        (0..10 * count).map(|value| stream.from_slice(&[1], &[value as f32]).unwrap().freeze()).collect();
    let asks = ones.into_iter().zip(doublers.iter().cycle()).map(|(one, doubler)| doubler.ask(Double(one)));
    let twos = node.block_on(futures_util::future::join_all(asks));
    for (value, two) in twos.into_iter().enumerate() {
        assert_eq!(stream.download::<f32>(&two.unwrap()).unwrap(), [2.0 * value as f32]);
    }
    let mut own = Vec::new();
    let refused = loop {
        match stream.with_new_stream() {
            Ok(stream) => own.push(stream),
            Err(error) => break error.to_string(),
        }
        assert!(own.len() < 64, "there is no end to streams");
    };
    assert!(!is_gpu || refused.contains("CUDA_DEVICE_MAX_CONNECTIONS"), "{refused}");
}
