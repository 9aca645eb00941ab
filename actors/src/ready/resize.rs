//! Resizing images.

use std::marker::PhantomData;

use tensorpost::prelude::*;

use super::Carrier;
use crate::image::ImageSize;
use crate::image::resize::Range;
use crate::ops::{self, Op, Resizer};

/// The settings of a [`Resize`].
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ResizeArgs {
    /// The size to make.
    pub size: ImageSize,
    /// The range of its values.
    pub range: Range,
}

impl ResizeArgs {
    /// Makes values as in the file, 0..=255.
    pub fn bytes(size: ImageSize) -> Self {
        ResizeArgs { size, range: Range::Bytes }
    }

    /// Makes values of 0..=1.
    pub fn unit(size: ImageSize) -> Self {
        ResizeArgs { size, range: Range::Unit }
    }
}

/// Resizes images of bytes, `[height, width, 3]`, to planes of floats, `[3, height, width]`, as
/// [`image::resize`](crate::image::resize) does.
///
/// ```
/// use tensorpost::prelude::*;
/// use tensorpost_actors::image::ImageSize;
/// use tensorpost_actors::ready::{Named, Resize, ResizeArgs};
///
/// # fn main() -> anyhow::Result<()> {
/// # let node = Node::builder().start()?;
/// # let stream = node.host_stream()?;
/// // In a pipeline: `.stage::<Resize<Named>>(ResizeArgs::unit(size))`. To try it out:
/// let mut stage = Resize::<Named>::new(ResizeArgs::unit(ImageSize::new(4, 2)?), &stream)?;
/// let white = Named::new(0, "white", stream.from_slice(&[8, 8, 3], &[255_u8; 192])?.freeze());
/// let mut out = Out::new();
/// stage.process(white, &mut out)?;
/// let resized = out.take().remove(0).tensor;
/// assert_eq!((resized.shape(), resized.to_vec::<f32>()?), (&[3, 2, 4][..], vec![1.0; 24]));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Resize<T> {
    stream: DeviceStream,
    resizer: Resizer,
    types: PhantomData<fn(T) -> T>,
}

impl<T> Resize<T> {
    /// Creates the stage on the stream of `stream`.
    ///
    /// # Errors
    /// The device has no kernels, or they cannot be compiled.
    pub fn new(args: ResizeArgs, stream: &DeviceStream) -> anyhow::Result<Self> {
        ops::prepare(stream, &[Op::Resize])?;
        Ok(Resize {
            stream: stream.clone(),
            resizer: Resizer::new(args.size, args.range),
            types: PhantomData,
        })
    }
}

impl<T: Carrier> Stage for Resize<T> {
    type Args = ResizeArgs;
    type In = T;
    type Out = T;

    fn create(args: ResizeArgs, env: &Env) -> anyhow::Result<Self> {
        Self::new(args, &env.stream())
    }

    fn process(&mut self, item: T, out: &mut Out<T>) -> anyhow::Result<()> {
        out.emit(item.with(|pixels| -> anyhow::Result<Tensor> {
            let mut planes = self.stream.empty(DType::F32, &self.resizer.shape())?;
            self.resizer.run(&self.stream, &pixels, &mut planes)?;
            Ok(planes.freeze())
        })?);
        Ok(())
    }
}
