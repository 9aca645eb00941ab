//! Items as PNG files, and tensors as the bytes of one.

use std::marker::PhantomData;
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use tensorpost::prelude::*;

use super::super::Carrier;
use super::Folder;
use crate::image::{ImageSize, png, quantise};
use crate::ops::{self, Op};

/// The folder of a [`SavePng`], and the brightness.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavePngArgs {
    /// The folder, which is made if it is missing.
    pub folder: PathBuf,
    /// The factor that turns floats into bytes: 1 for values of 0..=255, 255 for 0..=1, 0.25 for edges.
    pub gain: f32,
}

/// Writes each item as a PNG file: bytes `[height, width]` or `[height, width, 3]`, floats `[height, width]`
/// or `[3, height, width]`.
///
/// ```
/// use tensorpost::prelude::*;
/// use tensorpost_actors::image::decode;
/// use tensorpost_actors::ready::{Named, SavePng, SavePngArgs};
///
/// # fn main() -> anyhow::Result<()> {
/// # let node = Node::builder().start()?;
/// # let stream = node.host_stream()?;
/// # let folder = tempfile::tempdir()?;
/// # let folder = folder.path().to_owned();
/// // In a pipeline: `.sink::<SavePng<Named>>(args)`. To try it out:
/// let mut sink = SavePng::<Named>::new(SavePngArgs { folder: folder.clone(), gain: 255.0 }, &stream)?;
/// sink.consume(Named::new(7, "ramp", stream.from_slice(&[1, 3], &[0.0_f32, 0.2, 1.0])?.freeze()))?;
/// let image = decode::decode(folder.join("00007-ramp.png"))?;
/// assert_eq!(image.pixels, [0, 0, 0, 51, 51, 51, 255, 255, 255]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct SavePng<T> {
    stream: DeviceStream,
    folder: Folder,
    gain: f32,
    types: PhantomData<fn(T)>,
}

impl<T> SavePng<T> {
    /// Creates the sink with the device of `stream`.
    ///
    /// # Errors
    /// A folder that cannot be made; a device without kernels.
    pub fn new(args: SavePngArgs, stream: &DeviceStream) -> anyhow::Result<Self> {
        ops::prepare(stream, &[Op::ToGray8])?;
        let folder = Folder::open(args.folder)?;
        Ok(SavePng { stream: stream.clone(), folder, gain: args.gain, types: PhantomData })
    }
}

impl<T: Carrier> Sink for SavePng<T> {
    type Args = SavePngArgs;
    type In = T;

    fn create(args: SavePngArgs, env: &Env) -> anyhow::Result<Self> {
        Self::new(args, &env.stream())
    }

    fn consume(&mut self, item: T) -> anyhow::Result<()> {
        let (label, tensor) = item.apart();
        let path = self.folder.path(&label, "png");
        let picture = Picture::of(&self.stream, &tensor, self.gain).with_context(|| format!("`{label}`"))?;
        match picture {
            Picture::Gray(hw, size) => png::write_gray8(path, &hw, size)?,
            Picture::Rgb(hwc, size) => png::write_rgb8(path, &hwc, size)?,
        }
        Ok(())
    }
}

/// Returns the bytes of the PNG file that [`SavePng`] would write: for an answer over HTTP, for example.
/// Blocks until the tensor's data is there. `stream` is a stream of the tensor's device, and `gain` the
/// factor for floats ([`SavePngArgs::gain`]).
///
/// ```
/// use tensorpost::prelude::*;
/// use tensorpost_actors::image::decode;
/// use tensorpost_actors::ready::encode_png;
///
/// # fn main() -> anyhow::Result<()> {
/// # let node = Node::builder().start()?;
/// # let stream = node.host_stream()?;
/// let mask = stream.from_slice(&[1, 2], &[0.0_f32, 1.0])?.freeze();
/// let bytes = encode_png(&stream, &mask, 255.0)?;
/// assert_eq!(decode::decode_bytes("mask", &bytes)?.pixels, [0, 0, 0, 255, 255, 255]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// A tensor that is no picture or is on another device, data that will never be there, sides that are too
/// long.
pub fn encode_png(stream: &DeviceStream, tensor: &Tensor, gain: f32) -> anyhow::Result<Vec<u8>> {
    Ok(match Picture::of(stream, tensor, gain)? {
        Picture::Gray(hw, size) => png::encode_gray8(&hw, size)?,
        Picture::Rgb(hwc, size) => png::encode_rgb8(&hwc, size)?,
    })
}

/// The input of a PNG file: pixels on the host.
enum Picture {
    /// HW.
    Gray(Vec<u8>, ImageSize),
    /// HWC.
    Rgb(Vec<u8>, ImageSize),
}

impl Picture {
    fn of(stream: &DeviceStream, tensor: &Tensor, gain: f32) -> anyhow::Result<Self> {
        let size = |width: usize, height: usize| {
            let side = |side| u32::try_from(side).unwrap_or(u32::MAX);
            ImageSize::new(side(width), side(height))
        };
        Ok(match (tensor.dtype(), tensor.shape()) {
            (DType::U8, &[height, width]) => {
                Picture::Gray(stream.download::<u8>(tensor)?, size(width, height)?)
            }
            (DType::U8, &[height, width, 3]) => {
                Picture::Rgb(stream.download::<u8>(tensor)?, size(width, height)?)
            }
            (DType::F32, &[height, width]) => {
                // Make bytes on the device: that leaves a quarter to copy here.
                ops::prepare(stream, &[Op::ToGray8])?;
                let gray = ops::to_gray8(stream, &stream.contiguous(tensor)?, gain)?.freeze();
                Picture::Gray(stream.download::<u8>(&gray)?, size(width, height)?)
            }
            (DType::F32, &[3, height, width]) => {
                let size = size(width, height)?;
                let mut hwc = vec![0; size.rgb_len()];
                quantise::to_rgb8(&stream.download::<f32>(tensor)?, size, gain, &mut hwc)?;
                Picture::Rgb(hwc, size)
            }
            (dtype, shape) => bail!(
                "{dtype} {shape:?} is no picture; give bytes [height, width] or [height, width, 3], or floats \
                 [height, width] or [3, height, width]"
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::Named;
    use super::super::super::item::tests::host;
    use super::*;
    use crate::image::decode;

    #[test]
    fn every_kind_of_picture_and_nothing_else() {
        let (_node, stream) = host();
        let folder = tempfile::tempdir().expect("a folder");
        let args = SavePngArgs { folder: folder.path().join("made"), gain: 1.0 };
        let mut sink = SavePng::<Named>::new(args, &stream).expect("a folder");
        let bytes: Vec<u8> = (0..12).map(|at| at * 20).collect();
        let floats: Vec<f32> = bytes.iter().map(|&byte| f32::from(byte)).collect();
        let of = |shape: &[usize], bytes: &[u8]| stream.from_slice(shape, bytes).expect("room").freeze();
        let back =
            |id: u64| decode::decode(folder.path().join(format!("made/{id:05}-x.png"))).expect("a picture");
        sink.consume(Named::new(0, "x", of(&[2, 2, 3], &bytes))).expect("rgb");
        assert_eq!(back(0).pixels, bytes);
        sink.consume(Named::new(1, "x", of(&[4, 3], &bytes))).expect("gray");
        assert_eq!(back(1).pixels, bytes.iter().flat_map(|&byte| [byte; 3]).collect::<Vec<_>>());
        let planes = stream.from_slice(&[3, 1, 4], &floats).expect("room").freeze();
        sink.consume(Named::new(2, "x", planes)).expect("planes");
        assert_eq!(back(2).pixels, [0, 80, 160, 20, 100, 180, 40, 120, 200, 60, 140, 220]);
        let error = sink.consume(Named::new(3, "x", of(&[12], &bytes))).expect_err("a row");
        let error = format!("{error:#}");
        assert!(error.contains("00003-x") && error.contains("u8 [12]"), "{error}");

        let turned = of(&[3, 4], &bytes).permute(&[1, 0]).expect("two axes");
        let bytes_of = |tensor: &Tensor| encode_png(&stream, tensor, 1.0);
        let encoded = bytes_of(&turned).expect("gray");
        sink.consume(Named::new(4, "x", turned)).expect("gray");
        let file = folder.path().join("made/00004-x.png");
        assert_eq!(encoded, std::fs::read(file).expect("written"));
        assert!(bytes_of(&of(&[0, 4], &[])).is_err(), "a picture without rows");
        assert!(bytes_of(&of(&[12], &bytes)).is_err(), "a row");
    }
}
