//! Items as plain bytes.

use std::marker::PhantomData;
use std::path::PathBuf;

use tensorpost::prelude::*;

use super::super::Carrier;
use super::{Folder, write};

/// Writes the elements of each item, in row-major order and the machine's byte order (little-endian on
/// everything that runs CUDA), to a file of its own. The name of the file has dtype and shape:
/// `00042-chelsea.f32-3x384x512.raw`.
///
/// ```
/// use tensorpost::prelude::*;
/// use tensorpost_actors::ready::{Named, SaveRaw};
///
/// # fn main() -> anyhow::Result<()> {
/// # let node = Node::builder().start()?;
/// # let stream = node.host_stream()?;
/// # let folder = tempfile::tempdir()?;
/// # let folder = folder.path().to_owned();
/// // In a pipeline: `.sink::<SaveRaw<Named>>(folder)`. To try it out:
/// let mut sink = SaveRaw::<Named>::new(folder.clone(), &stream)?;
/// sink.consume(Named::new(1, "pair", stream.from_slice(&[1, 2], &[0x0102_u16, 0x0304])?.freeze()))?;
/// assert_eq!(std::fs::read(folder.join("00001-pair.u16-1x2.raw"))?, [2, 1, 4, 3]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct SaveRaw<T> {
    stream: DeviceStream,
    folder: Folder,
    types: PhantomData<fn(T)>,
}

impl<T> SaveRaw<T> {
    /// Creates the sink with the device of `stream`; the folder is made if it is missing.
    ///
    /// # Errors
    /// A folder that cannot be made.
    pub fn new(folder: PathBuf, stream: &DeviceStream) -> anyhow::Result<Self> {
        Ok(SaveRaw { stream: stream.clone(), folder: Folder::open(folder)?, types: PhantomData })
    }
}

impl<T: Carrier> Sink for SaveRaw<T> {
    type Args = PathBuf;
    type In = T;

    fn create(folder: PathBuf, env: &Env) -> anyhow::Result<Self> {
        Self::new(folder, &env.stream())
    }

    fn consume(&mut self, item: T) -> anyhow::Result<()> {
        let (label, tensor) = item.apart();
        let sides: Vec<String> = tensor.shape().iter().map(usize::to_string).collect();
        let ending = match &sides[..] {
            [] => format!("{}.raw", tensor.dtype()),
            sides => format!("{}-{}.raw", tensor.dtype(), sides.join("x")),
        };
        write(&self.folder.path(&label, &ending), &[&self.stream.download_bytes(&tensor)?])
    }
}
