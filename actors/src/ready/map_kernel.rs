//! A user's CUDA kernel as a stage.

#![expect(unsafe_code, reason = "a kernel launch is a call into code that Rust cannot check")]

use std::marker::PhantomData;

use anyhow::{Context as _, bail};
use cudarc::driver::{CudaFunction, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use tensorpost::prelude::*;

use super::Carrier;
use crate::ops::{OpError, cuda};

/// The source of a kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Code {
    /// CUDA C++, compiled by NVRTC when the stage is made, without contraction into fused multiply-adds.
    Cuda(String),
    /// PTX, which the driver compiles.
    Ptx(String),
}

/// The number of threads of a kernel's launch, and the arguments for the tensor's shape behind the two
/// addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Grid {
    /// A thread for each element, in blocks of 256. The kernel gets `unsigned long long n`.
    Elements,
    /// A thread for each element of the last two axes, with columns along x and rows along y, in blocks of 32
    /// x 8. Each plane of the axes before is a layer of blocks along z. The kernel gets
    /// `unsigned width, unsigned height`.
    Planes,
}

/// The kernel that a [`MapKernel`] launches. The kernel is trusted: nothing checks that it stays within the
/// tensors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MapKernelArgs {
    /// Its source.
    pub code: Code,
    /// The name of the kernel, an `extern "C"` function.
    pub kernel: String,
    /// How it is launched.
    pub grid: Grid,
    /// The result's dtype.
    pub dtype: DType,
    /// Numbers that the kernel gets last, each a `float`.
    pub numbers: Vec<f32>,
}

/// Launches a CUDA kernel on the tensor of each item. The kernel reads the packed tensor and writes another
/// of the same shape: `kernel(const A *in, B *out, <shape by the grid>, <numbers>)`.
///
/// ```
/// use tensorpost::prelude::*;
/// use tensorpost_actors::ready::{Code, Grid, MapKernel, MapKernelArgs, Named};
///
/// const SOURCE: &str = r#"
///     extern "C" __global__ void scale(const float *in, float *out, unsigned long long n, float factor) {
///         unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
///         if (i < n) out[i] = factor * in[i];
///     }"#;
///
/// # fn main() -> anyhow::Result<()> {
/// let args = MapKernelArgs {
///     code: Code::Cuda(SOURCE.to_owned()),
///     kernel: "scale".to_owned(),
///     grid: Grid::Elements,
///     dtype: DType::F32,
///     numbers: vec![3.0],
/// };
/// let node = Node::builder().start()?;
/// // In a pipeline: `.stage::<MapKernel<Named>>(args).on(Device::cuda(0)?)`. To try it out:
/// let stream = node.stream(&Device::best())?;
/// match MapKernel::<Named>::new(args, &stream) {
///     Ok(mut stage) => {
///         let mut out = Out::new();
///         let numbers = stream.from_slice(&[3], &[1.0_f32, 2.0, 3.0])?.freeze();
///         stage.process(Named::new(0, "numbers", numbers), &mut out)?;
///         assert_eq!(stream.download::<f32>(&out.take()[0].tensor)?, [3.0, 6.0, 9.0]);
///     }
///     // The host runs no kernels, and a GPU none without a compiler.
///     Err(error) => println!("{error:#}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct MapKernel<T> {
    stream: DeviceStream,
    kernel: CudaFunction,
    args: MapKernelArgs,
    types: PhantomData<fn(T) -> T>,
}

impl<T> MapKernel<T> {
    /// Creates the stage on the stream of `stream`, and compiles and loads the kernel.
    ///
    /// # Errors
    /// The device is no GPU; a source that does not compile, or has no such kernel; no NVRTC.
    pub fn new(args: MapKernelArgs, stream: &DeviceStream) -> anyhow::Result<Self> {
        if stream.kind() != DeviceKind::Cuda {
            bail!(
                "the kernel `{}` needs a GPU, and {} is none; put the stage on one with `.on(Device::cuda(0)?)`",
                args.kernel,
                stream.name()
            );
        }
        if args.kernel.contains('\0') {
            bail!("the name {:?} of a kernel has a zero byte in it", args.kernel);
        }
        let ptx = match &args.code {
            Code::Cuda(source) => cuda::compile(&args.kernel, source)?,
            Code::Ptx(source) if source.contains('\0') => {
                bail!("there is a zero byte in the PTX of `{}`", args.kernel)
            }
            Code::Ptx(source) => Ptx::from_src(source.clone()),
        };
        let kernel = cuda::find(&cuda::load(stream, &args.kernel, ptx)?, &args.kernel)?;
        Ok(MapKernel { stream: stream.clone(), kernel, args, types: PhantomData })
    }

    fn launch(&self, tensor: &Tensor) -> anyhow::Result<Tensor> {
        let stream = &self.stream;
        let tensor = stream.contiguous(tensor)?;
        let mut result = stream.empty(self.args.dtype, tensor.shape())?;
        let n = tensor.len() as u64;
        let Some((config, sides)) = config(self.args.grid, tensor.shape())? else {
            return Ok(result.freeze());
        };
        // Use this stream, even if the tensor was delivered to another.
        stream.begin_read(&tensor)?;
        stream.begin_write(&mut result)?;
        let mut args = stream.launch_builder(&self.kernel)?;
        args.arg(&tensor).arg(&mut result);
        match &sides {
            None => _ = args.arg(&n),
            Some([width, height]) => _ = args.arg(width).arg(height),
        }
        for number in &self.args.numbers {
            args.arg(number);
        }
        // SAFETY: the user who gave the kernel promises that it has these parameters and stays within two
        // packed tensors of this shape, as `MapKernelArgs` asks; both are ordered on this stream.
        unsafe { args.launch(config) }.map_err(cuda::refused(&self.args.kernel, "launched"))?;
        Ok(result.freeze())
    }
}

/// A launch, with width and height where the kernel gets them.
type Launch = (LaunchConfig, Option<[u32; 2]>);

/// Returns the launch for a shape; `None` where there is no element.
fn config(grid: Grid, shape: &[usize]) -> Result<Option<Launch>, OpError> {
    let too_large = || OpError::Driver {
        kernel: format!("for a tensor of shape {shape:?}"),
        done: "launched",
        why: "there are more elements than a grid can have threads".to_owned(),
    };
    let small = |side: usize| u32::try_from(side).map_err(|_| too_large());
    let elements: usize = shape.iter().product();
    if elements == 0 {
        return Ok(None);
    }
    match (grid, shape) {
        (Grid::Planes, [planes @ .., height, width]) => {
            let (width, height) = (small(*width)?, small(*height)?);
            let grid_dim = (width.div_ceil(32), height.div_ceil(8), small(planes.iter().product())?);
            // CUDA bounds the second and third dimension of a grid.
            if grid_dim.1 > 65_535 || grid_dim.2 > 65_535 {
                return Err(too_large());
            }
            let config = LaunchConfig { grid_dim, block_dim: (32, 8, 1), shared_mem_bytes: 0 };
            Ok(Some((config, Some([width, height]))))
        }
        (Grid::Planes, _) => Err(OpError::Shape {
            what: "the tensor for a kernel over planes",
            found: shape.to_vec(),
            wanted: "[.., height, width]".to_owned(),
        }),
        (Grid::Elements, _) => {
            let blocks = i32::try_from(elements.div_ceil(256)).map_err(|_| too_large())?;
            let grid_dim = (blocks.unsigned_abs(), 1, 1);
            Ok(Some((LaunchConfig { grid_dim, block_dim: (256, 1, 1), shared_mem_bytes: 0 }, None)))
        }
    }
}

impl<T: Carrier> Stage for MapKernel<T> {
    type Args = MapKernelArgs;
    type In = T;
    type Out = T;

    fn create(args: MapKernelArgs, env: &Env) -> anyhow::Result<Self> {
        let kernel = args.kernel.clone();
        Self::new(args, &env.stream()).with_context(|| format!("a stage around the kernel `{kernel}`"))
    }

    fn process(&mut self, item: T, out: &mut Out<T>) -> anyhow::Result<()> {
        out.emit(item.with(|tensor| self.launch(&tensor))?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grids_cover_every_shape() {
        let of = |grid, shape: &[usize]| {
            config(grid, shape).expect("fits").map(|(config, sides)| (config.grid_dim, sides))
        };
        assert_eq!(of(Grid::Elements, &[]), Some(((1, 1, 1), None)));
        assert_eq!(of(Grid::Elements, &[3, 0]), None);
        assert_eq!(of(Grid::Elements, &[257]), Some(((2, 1, 1), None)));
        assert_eq!(of(Grid::Planes, &[2, 3, 9, 33]), Some(((2, 2, 6), Some([33, 9]))));
        assert_eq!(of(Grid::Planes, &[8, 32]), Some(((1, 1, 1), Some([32, 8]))));
        assert!(matches!(config(Grid::Planes, &[7]), Err(OpError::Shape { .. })));
        assert!(config(Grid::Planes, &[70_000, 1, 1]).is_err());
        assert!(config(Grid::Elements, &[usize::MAX / 2]).is_err());
    }
}
