//! One tensor that several workers write, on the device.

#![expect(unsafe_code, reason = "launches a kernel")]

use std::sync::Arc;

use cudarc::driver::{CudaFunction, LaunchConfig, PushKernelArg};
use tensorpost::node::Sharing;
use tensorpost::prelude::*;
use tensorpost_tests::harness::Builder;
use tensorpost_tests::wait::until_free;

use crate::device;

const SOURCE: &str = r#"
extern "C" __global__ void add(unsigned *part, unsigned rows, unsigned columns, unsigned stride, unsigned what) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < rows * columns) part[i / columns * stride + i % columns] += what;
}"#;

/// "Add this to your part, this many times." The part comes back before the additions are done.
#[derive(Debug, Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = TensorPart)]
struct Add {
    #[tensor(dtype = u32, shape = [_, _])]
    part: TensorPart,
    what: u32,
    times: u32,
}

/// "Set your part to zero." The part has to be packed.
#[derive(Debug, Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = TensorPart)]
struct Clear(TensorPart);

struct Adder {
    stream: DeviceStream,
    kernel: Option<CudaFunction>,
}

impl Actor for Adder {
    type Context = Context<Self>;
}

impl RemoteActor for Adder {
    type Args = ();

    fn create((): (), env: &Env) -> anyhow::Result<Self> {
        let stream = env.stream();
        let kernel = match stream.kind() {
            DeviceKind::Host => None,
            DeviceKind::Cuda => {
                let ptx = cudarc::nvrtc::compile_ptx(SOURCE)?;
                Some(Arc::clone(stream.cuda_context()?).load_module(ptx)?.load_function("add")?)
            }
        };
        Ok(Adder { stream, kernel })
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Add>().message::<Clear>();
    }
}

impl Handler<Add> for Adder {
    type Result = MessageResult<Add>;

    fn handle(&mut self, Add { mut part, what, times }: Add, _: &mut Context<Self>) -> Self::Result {
        let (rows, columns) = (part.shape()[0] as u32, part.shape()[1] as u32);
        let stride = part.strides()[0] as u32;
        for _ in 0..times {
            match &self.kernel {
                None => self
                    .stream
                    .run((part.of_mut::<u32>(),), move |(mut part,)| {
                        part.runs_mut().flatten().for_each(|element| *element += what);
                    })
                    .expect("a host stream"),
                Some(kernel) => {
                    let mut launch = self.stream.launch_builder(kernel).expect("a GPU");
                    launch.arg(&mut part).arg(&rows).arg(&columns).arg(&stride).arg(&what);
                    // SAFETY: the kernel has these parameters and writes the elements of the part.
                    let launched = unsafe { launch.launch(LaunchConfig::for_num_elems(rows * columns)) };
                    launched.expect("a launch");
                }
            }
        }
        MessageResult(part)
    }
}

impl Handler<Clear> for Adder {
    type Result = MessageResult<Clear>;

    fn handle(&mut self, Clear(mut part): Clear, _: &mut Context<Self>) -> Self::Result {
        if self.kernel.is_some() {
            let mut view = self.stream.view_part::<u32>(&mut part).expect("packed");
            self.stream.cuda_stream().expect("a GPU").memset_zeros(&mut view).expect("set");
        } else {
            self.stream.run((part.of_mut::<u32>(),), |(mut part,)| part.fill(0)).expect("a host stream");
        }
        MessageResult(part)
    }
}

const ROWS: usize = 509;
const COLUMNS: usize = 203;
const ROUNDS: u32 = 60;

/// ONE-WRITER, CLOCK-1, CLOCK-2: the columns of neighbours share cache lines, and every round hands the same
/// memory to other writers while the kernels of the last ones may still run.
fn scatter_and_gather(builder: Builder) {
    let (device, _) = device();
    let node = builder.start().expect("a node");
    let worker =
        |_| node.spawn::<Adder>(()).device(device.clone()).start().expect("an adder").address::<Add>();
    let workers: Vec<Address<Add>> = (0..3).map(worker).collect();
    let stream = node.stream(&device).expect("the device");
    let start: Vec<u32> = (0..(ROWS * COLUMNS) as u32).collect();
    let mut whole = stream.from_slice(&[ROWS, COLUMNS], &start).expect("memory");
    let id = whole.lease().id();
    for round in 0..ROUNDS {
        let parts = whole.split_evenly(1, 3).expect("columns");
        let asks: Vec<_> = (0..)
            .zip(parts)
            .map(|(index, part)| {
                // Another worker writes each part in each round.
                let to = &workers[(index + round as usize) % 3];
                to.ask(Add { part, what: 1 + index as u32, times: 5 })
            })
            .collect();
        let parts: Vec<TensorPart> =
            asks.into_iter().map(|ask| node.block_on(ask).expect("a part")).collect();
        whole = TensorMut::join(parts, &stream).expect("all three");
    }
    assert_eq!(whole.lease().id(), id, "the same memory");
    let whole = whole.freeze();
    let part_of = |column: usize| if column < 68 { 0 } else { 1 + (column - 68) / 68 };
    for (at, element) in stream.download::<u32>(&whole).expect("data").into_iter().enumerate() {
        let added = 5 * ROUNDS * (1 + part_of(at % COLUMNS) as u32);
        assert_eq!(element, at as u32 + added, "element {at}");
    }
    drop(whole);
    until_free(&node);
}

pub(crate) fn several_workers_write_columns_of_one_tensor(builder: Builder) {
    scatter_and_gather(builder);
}

pub(crate) fn several_workers_write_columns_of_one_tensor_under_mps(builder: Builder) {
    scatter_and_gather(builder.sharing(Sharing::Mps));
}

/// A part that consists of rows is packed, and goes to cudarc's own functions as a view.
pub(crate) fn a_packed_part_is_a_view(builder: Builder) {
    let (device, _) = device();
    let node = builder.start().expect("a node");
    let adder = node.spawn::<Adder>(()).device(device.clone()).start().expect("an adder").address::<Clear>();
    let stream = node.stream(&device).expect("the device");
    let whole = stream.from_slice(&[4, 3], &[7_u32; 12]).expect("memory");
    let [first, second, third] =
        <[TensorPart; 3]>::try_from(whole.split(0, &[1, 2, 1]).expect("rows")).expect("three");
    let second = node.block_on(adder.ask(Clear(second))).expect("a part");
    let whole = TensorMut::join([third, second, first], &stream).expect("all").freeze();
    assert_eq!(stream.download::<u32>(&whole).expect("data"), [7, 7, 7, 0, 0, 0, 0, 0, 0, 7, 7, 7]);
}
