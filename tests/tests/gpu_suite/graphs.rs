//! Kernels that are launched as one graph, again and again with other tensors: the results are the same bits
//! as by single launches.

#![expect(unsafe_code, reason = "launches kernels")]

use cudarc::driver::{CudaFunction, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use tensorpost::node::Sharing;
use tensorpost::prelude::*;
use tensorpost::tensor::{GraphPass, LaunchGraph};
use tensorpost_tests::harness::Builder;

use super::device;

const BLOCK: u32 = 128;
/// Kernels in a chain.
const STEPS: u32 = 20;
/// Cycles of the GPU's clock for a kernel that has to be under way still: some 20 us.
pub(crate) const SLOW: u64 = 40_000;

/// `step(from, to, add, n, cycles)`: `to[i] = 3 * from[i] + add`, after this many cycles.
const PTX: &str = "\
.version 7.0
.target sm_70
.address_size 64
.visible .entry step(.param .u64 from, .param .u64 to, .param .u32 add, .param .u32 n, .param .u64 cycles) {
    .reg .u64 %rd<8>;
    .reg .u32 %r<8>;
    .reg .pred %p<3>;
    ld.param.u64 %rd1, [from];
    ld.param.u64 %rd2, [to];
    ld.param.u32 %r1, [add];
    ld.param.u32 %r2, [n];
    ld.param.u64 %rd3, [cycles];
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ntid.x;
    mov.u32 %r5, %tid.x;
    mad.lo.u32 %r6, %r3, %r4, %r5;
    setp.ge.u32 %p1, %r6, %r2;
    @%p1 bra done;
    mov.u64 %rd4, %clock64;
busy:
    mov.u64 %rd5, %clock64;
    sub.u64 %rd5, %rd5, %rd4;
    setp.lt.u64 %p2, %rd5, %rd3;
    @%p2 bra busy;
    mul.wide.u32 %rd6, %r6, 4;
    add.u64 %rd1, %rd1, %rd6;
    add.u64 %rd2, %rd2, %rd6;
    ld.global.u32 %r7, [%rd1];
    mad.lo.u32 %r7, %r7, 3, %r1;
    st.global.u32 [%rd2], %r7;
done:
    ret;
}
";

/// Returns an element as a chain of this many steps changes it.
pub(crate) fn expected(element: u32, steps: u32) -> u32 {
    (0..steps).fold(element, |value, step| value.wrapping_mul(3).wrapping_add(step))
}

/// The kernel, and a graph of it.
pub(crate) struct Steps {
    stream: DeviceStream,
    /// `None` on the host.
    kernel: Option<CudaFunction>,
    graph: LaunchGraph,
}

fn config(elements: usize) -> LaunchConfig {
    let blocks = (elements as u32).div_ceil(BLOCK);
    LaunchConfig { grid_dim: (blocks, 1, 1), block_dim: (BLOCK, 1, 1), shared_mem_bytes: 0 }
}

impl Steps {
    pub(crate) fn new(stream: &DeviceStream) -> anyhow::Result<Self> {
        let kernel = match stream.kind() {
            DeviceKind::Host => None,
            DeviceKind::Cuda => {
                Some(stream.cuda_context()?.load_module(Ptx::from_src(PTX))?.load_function("step")?)
            }
        };
        Ok(Steps { stream: stream.clone(), kernel, graph: stream.launch_graph() })
    }

    /// Runs `steps` kernels from `input` to a fresh tensor, to and fro between two others, in one launch.
    pub(crate) fn chain(&mut self, input: &Tensor, steps: u32, cycles: u64) -> anyhow::Result<Tensor> {
        let empty = || self.stream.empty(DType::U32, input.shape());
        let (mut even, mut odd, mut output) = (empty()?, empty()?, empty()?);
        let mut pass = self.graph.begin();
        match &self.kernel {
            Some(kernel) => {
                let (elements, n) = (input.len(), input.len() as u32);
                let (mut from, even, odd) =
                    (pass.reads(input)?, pass.writes(&mut even)?, pass.writes(&mut odd)?);
                let output = pass.writes(&mut output)?;
                for step in 0..steps {
                    let to = match step {
                        step if step + 1 == steps => output,
                        step if step % 2 == 0 => even,
                        _ => odd,
                    };
                    let mut launch = pass.kernel(kernel)?;
                    launch.arg(from).arg(to).arg(&step).arg(&n).arg(&cycles);
                    // SAFETY: the kernel has these parameters; all tensors have `n` elements.
                    unsafe { launch.launch(config(elements))? };
                    from = to;
                }
            }
            None => on_host(&mut pass, input, &mut even, &mut output, steps)?,
        }
        pass.finish()?;
        Ok(output.freeze())
    }

    /// Does the same by single launches.
    fn one_by_one(&self, input: &Tensor, steps: u32) -> anyhow::Result<Tensor> {
        let Some(kernel) = &self.kernel else { anyhow::bail!("the host has closures") };
        let n = input.len() as u32;
        let mut from: Option<Tensor> = None;
        for step in 0..steps {
            let mut to = self.stream.empty(DType::U32, input.shape())?;
            let mut launch = self.stream.launch_builder(kernel)?;
            launch.arg(from.as_ref().unwrap_or(input)).arg(&mut to).arg(&step).arg(&n).arg(&0_u64);
            // SAFETY: as above.
            unsafe { launch.launch(config(input.len())) }?;
            from = Some(to.freeze());
        }
        from.ok_or_else(|| anyhow::anyhow!("no step"))
    }

    pub(crate) fn counted(&self, elements: usize, first: u32) -> anyhow::Result<Tensor> {
        Ok(self.stream.from_slice(&[elements], &elements_from(elements, first))?.freeze())
    }
}

pub(crate) fn elements_from(elements: usize, first: u32) -> Vec<u32> {
    (0..elements as u32).map(|index| first.wrapping_add(index)).collect()
}

fn on_host(
    pass: &mut GraphPass<'_>,
    input: &Tensor,
    between: &mut TensorMut,
    output: &mut TensorMut,
    steps: u32,
) -> anyhow::Result<()> {
    pass.run((input.of::<u32>(), between.of_mut::<u32>()), |(input, between)| {
        between.copy_from_slice(input);
    })?;
    for step in 0..steps {
        pass.run((between.of_mut::<u32>(),), move |(between,)| {
            between.iter_mut().for_each(|value| *value = value.wrapping_mul(3).wrapping_add(step));
        })?;
    }
    pass.run((between.of_mut::<u32>(), output.of_mut::<u32>()), |(between, output)| {
        output.copy_from_slice(between);
    })?;
    Ok(())
}

fn all_expected(stream: &DeviceStream, tensor: &Tensor, first: u32, steps: u32) {
    let found = stream.download::<u32>(tensor).unwrap();
    let wanted: Vec<u32> =
        elements_from(tensor.len(), first).into_iter().map(|element| expected(element, steps)).collect();
    assert!(found == wanted, "{:?} instead of {:?}", &found[..4], &wanted[..4]);
}

/// Other tensors, other sizes and other arguments are set in the existing graph; other kernels make another.
pub(crate) fn a_graph_with_other_tensors_makes_the_same_bits(builder: Builder) {
    let (device, is_gpu) = device();
    let node = builder.start().unwrap();
    let stream = node.stream(&device).unwrap();
    let mut steps = Steps::new(&stream).unwrap();
    for round in 0..30_u32 {
        let elements = 1000 + 77 * (round as usize % 5);
        let input = steps.counted(elements, round * 1000).unwrap();
        let output = steps.chain(&input, STEPS, 0).unwrap();
        all_expected(&stream, &output, round * 1000, STEPS);
        if is_gpu {
            let single = steps.one_by_one(&input, STEPS).unwrap();
            assert_eq!(
                stream.download::<u32>(&output).unwrap(),
                stream.download::<u32>(&single).unwrap(),
                "round {round}"
            );
        }
    }
    assert_eq!(steps.graph.times_made(), u64::from(is_gpu));
    // Fewer kernels, and one.
    for count in [7, 1] {
        let input = steps.counted(500, count).unwrap();
        all_expected(&stream, &steps.chain(&input, count, 0).unwrap(), count, count);
    }
    assert_eq!(steps.graph.times_made(), if is_gpu { 3 } else { 0 });
}

/// CLOCK-2: a launch is a use of all its tensors until it is through. That also holds when the same graph is
/// launched again meanwhile, and the tensors are gone.
pub(crate) fn a_graph_is_launched_again_while_it_runs(builder: Builder) {
    let (device, _) = device();
    let node = builder.start().unwrap();
    let stream = node.stream(&device).unwrap();
    let mut steps = Steps::new(&stream).unwrap();
    let mut outputs = Vec::new();
    for round in 0..60_u32 {
        // The host side writes this where the last one was, which was let go of before its kernels had begun.
        let input = steps.counted(4096, round << 16).unwrap();
        outputs.push(steps.chain(&input, STEPS, SLOW / 4).unwrap());
    }
    for (round, output) in (0_u32..).zip(&outputs) {
        all_expected(&stream, output, round << 16, STEPS);
    }
    // A graph that is dropped while it runs.
    let input = steps.counted(4096, 5).unwrap();
    let output = steps.chain(&input, STEPS, SLOW).unwrap();
    drop(steps);
    all_expected(&stream, &output, 5, STEPS);
}

/// A pass that fails, or is given up, launches none of its kernels, and the next one is whole.
pub(crate) fn a_pass_that_fails_launches_nothing(builder: Builder) {
    let (device, _) = device();
    let node = builder.start().unwrap();
    let stream = node.stream(&device).unwrap();
    let mut steps = Steps::new(&stream).unwrap();
    let input = steps.counted(256, 1).unwrap();
    let mut output = stream.zeros(DType::U32, &[256]).unwrap();
    let kernel = steps.kernel.clone().expect("a GPU has kernels");
    let (n, step, cycles) = (256_u32, 0_u32, 0_u64);
    let mut given_up = |threads: Option<u32>, foreign: bool| {
        let mut other = stream.launch_graph();
        let mut other = other.begin();
        let stray = other.reads(&input).unwrap();
        let mut pass = steps.graph.begin();
        let (from, to) = (pass.reads(&input).unwrap(), pass.writes(&mut output).unwrap());
        for place in 0..3 {
            let is_last = place == 2;
            let mut launch = pass.kernel(&kernel).unwrap();
            launch.arg(if is_last && foreign { stray } else { from }).arg(to).arg(&step).arg(&n).arg(&cycles);
            let mut config = config(256);
            if let (true, Some(threads)) = (is_last, threads) {
                config.block_dim.0 = threads;
            }
            // SAFETY: the kernel has these parameters; both tensors have 256 elements.
            if let Err(error) = unsafe { launch.launch(config) } {
                return error.to_string();
            }
        }
        if threads.is_none() {
            drop(pass);
            return String::new();
        }
        pass.finish().unwrap_err().to_string()
    };
    let foreign = given_up(None, true);
    assert!(foreign.contains("tensor of another pass"), "{foreign}");
    assert_eq!(given_up(None, false), "");
    // No GPU has blocks of that many threads: the launch is refused while the graph is made,
    let too_many = given_up(Some(100_000), false);
    println!("{too_many}");
    assert!(too_many.contains("cuGraph"), "{too_many}");
    assert_eq!(stream.download::<u32>(&output.freeze()).unwrap(), [0; 256]);
    // and while it is set, behind kernels that were accepted.
    all_expected(&stream, &steps.chain(&input, 3, 0).unwrap(), 1, 3);
    let mut output = stream.zeros(DType::U32, &[256]).unwrap();
    let mut pass = steps.graph.begin();
    let (from, to) = (pass.reads(&input).unwrap(), pass.writes(&mut output).unwrap());
    for place in 0..3 {
        let mut launch = pass.kernel(&kernel).unwrap();
        launch.arg(from).arg(to).arg(&step).arg(&n).arg(&cycles);
        let mut config = config(256);
        if place == 2 {
            config.block_dim.0 = 100_000;
        }
        // SAFETY: as above.
        unsafe { launch.launch(config) }.unwrap();
    }
    let refused = pass.finish();
    println!("{refused:?}");
    assert!(refused.is_err());
    assert_eq!(stream.download::<u32>(&output.freeze()).unwrap(), [0; 256]);
    all_expected(&stream, &steps.chain(&input, 3, 0).unwrap(), 1, 3);
}

/// "Run your steps on this."
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Tensor)]
struct Step(Tensor);

struct Stage(Steps);

impl Actor for Stage {
    type Context = Context<Self>;
}

impl RemoteActor for Stage {
    type Args = ();

    fn create((): (), env: &Env) -> anyhow::Result<Self> {
        Ok(Stage(Steps::new(&env.stream())?))
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Step>();
    }
}

impl Handler<Step> for Stage {
    type Result = MessageResult<Step>;

    fn handle(&mut self, Step(tensor): Step, _: &mut Context<Self>) -> Self::Result {
        MessageResult(self.0.chain(&tensor, STEPS, 0).expect("a device that works"))
    }
}

/// CLOCK-1, both ways: a stage's graph waits for a tensor that is still being written, and the holder of the
/// result waits for the graph.
fn between_processes(builder: Builder) {
    let (device, _) = device();
    let node = builder.start().unwrap();
    let stream = node.stream(&device).unwrap();
    let stage = node.spawn::<Stage>(()).device(device).start().unwrap();
    let mut steps = Steps::new(&stream).unwrap();
    for round in 0..40_u32 {
        let asks: Vec<_> = (0..8_u32)
            .map(|at| {
                let input = steps.counted(2048, (round * 8 + at) << 12).unwrap();
                // The tensor is not ready yet when it is sent.
                stage.ask(Step(steps.chain(&input, 3, SLOW).unwrap()))
            })
            .collect();
        for (at, made) in (0_u32..).zip(node.block_on(futures_util::future::join_all(asks))) {
            let elements = elements_from(2048, (round * 8 + at) << 12);
            let wanted: Vec<u32> =
                elements.into_iter().map(|element| expected(expected(element, 3), STEPS)).collect();
            assert!(stream.download::<u32>(&made.unwrap()).unwrap() == wanted, "round {round}, {at}");
        }
    }
}

pub(crate) fn a_graph_takes_part_in_the_order_of_messages(builder: Builder) {
    between_processes(builder);
}

/// The same where both compute at once.
pub(crate) fn a_graph_takes_part_in_the_order_of_messages_under_mps(builder: Builder) {
    between_processes(builder.sharing(Sharing::Mps));
}
