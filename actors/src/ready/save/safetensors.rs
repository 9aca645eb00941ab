//! Items in safetensors files.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::path::PathBuf;

use ::safetensors::tensor::{Dtype, TensorView, serialize};
use anyhow::{Context as _, bail, ensure};
use tensorpost::prelude::*;

use super::super::{Carrier, Labels};
use super::{Folder, write};

/// Where a [`SaveSafetensors`] writes, and how much into a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SaveSafetensorsArgs {
    /// The folder; made if it is not there.
    pub folder: PathBuf,
    /// Items in one file, at least 1. They are kept on the host until the file is written.
    pub per_file: usize,
}

/// Writes items in the safetensors format, several to a file. In a file each is known by its label; the file is called after
/// the first and the last.
///
/// ```
/// use tensorpost::prelude::*;
/// use tensorpost_actors::ready::{Named, SaveSafetensors, SaveSafetensorsArgs};
///
/// # fn main() -> anyhow::Result<()> {
/// # let node = Node::builder().start()?;
/// # let stream = node.host_stream()?;
/// # let folder = tempfile::tempdir()?;
/// # let folder = folder.path().to_owned();
/// // In a pipeline: `.sink::<SaveSafetensors<Named>>(args)`. To try it out:
/// let args = SaveSafetensorsArgs { folder: folder.clone(), per_file: 2 };
/// let mut sink = SaveSafetensors::<Named>::new(args, &stream)?;
/// for id in 0..3 {
///     sink.consume(Named::new(id, "pair", stream.from_slice(&[2], &[id as f32, 0.5])?.freeze()))?;
/// }
/// sink.finish()?;
/// let bytes = std::fs::read(folder.join("00000-pair-to-00001-pair.safetensors"))?;
/// let file = safetensors::SafeTensors::deserialize(&bytes)?;
/// assert_eq!(file.tensor("00001-pair")?.data(), [0, 0, 128, 63, 0, 0, 0, 63]); // 1.0 and 0.5
/// assert!(folder.join("00002-pair.safetensors").exists());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct SaveSafetensors<T: Carrier> {
    stream: DeviceStream,
    folder: Folder,
    per_file: usize,
    kept: Vec<Kept<T::Label>>,
    types: PhantomData<fn(T)>,
}

#[derive(Debug)]
struct Kept<L> {
    label: L,
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl<T: Carrier> SaveSafetensors<T> {
    /// The sink with the device of `stream`.
    ///
    /// # Errors
    /// Files of no items; a folder that cannot be made.
    pub fn new(args: SaveSafetensorsArgs, stream: &DeviceStream) -> anyhow::Result<Self> {
        ensure!(args.per_file > 0, "a file of 0 items is never full; give at least 1");
        let folder = Folder::open(args.folder)?;
        Ok(SaveSafetensors {
            stream: stream.clone(),
            folder,
            per_file: args.per_file,
            kept: Vec::new(),
            types: PhantomData,
        })
    }

    /// Writes what was kept. On an error it stays kept.
    fn flush(&mut self) -> anyhow::Result<()> {
        let mut views = BTreeMap::new();
        for Kept { label, dtype, shape, bytes } in &self.kept {
            let view = TensorView::new(*dtype, shape.clone(), bytes)?;
            if views.insert(label.to_string(), view).is_some() {
                bail!("two items are called `{label}`: a file can hold one of each name");
            }
        }
        if views.is_empty() {
            return Ok(());
        }
        let labels = Labels(self.kept.iter().map(|kept| &kept.label).collect());
        let path = self.folder.path(&labels, "safetensors");
        let bytes = serialize(views, None).with_context(|| format!("cannot make {}", path.display()))?;
        write(&path, &[&bytes])?;
        self.kept.clear();
        Ok(())
    }
}

impl<T: Carrier> Sink for SaveSafetensors<T> {
    type Args = SaveSafetensorsArgs;
    type In = T;

    fn create(args: SaveSafetensorsArgs, env: &Env) -> anyhow::Result<Self> {
        Self::new(args, &env.stream())
    }

    fn consume(&mut self, item: T) -> anyhow::Result<()> {
        let (label, tensor) = item.apart();
        let (dtype, shape) = (dtype(tensor.dtype()), tensor.shape().to_vec());
        self.kept.push(Kept { label, dtype, shape, bytes: self.stream.download_bytes(&tensor)? });
        if self.kept.len() >= self.per_file
            && let Err(error) = self.flush()
        {
            // Another attempt brings it again.
            self.kept.pop();
            return Err(error);
        }
        Ok(())
    }

    fn finish(&mut self) -> anyhow::Result<()> {
        self.flush()
    }
}

fn dtype(dtype: DType) -> Dtype {
    match dtype {
        DType::Bool => Dtype::BOOL,
        DType::U8 => Dtype::U8,
        DType::U16 => Dtype::U16,
        DType::U32 => Dtype::U32,
        DType::U64 => Dtype::U64,
        DType::I8 => Dtype::I8,
        DType::I16 => Dtype::I16,
        DType::I32 => Dtype::I32,
        DType::I64 => Dtype::I64,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::F32 => Dtype::F32,
        DType::F64 => Dtype::F64,
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::Named;
    use super::super::super::item::tests::host;
    use super::*;

    #[test]
    fn every_dtype_comes_back_and_names_are_single() {
        let (_node, stream) = host();
        let folder = tempfile::tempdir().expect("a folder");
        let per_file = DType::ALL.len();
        let args = SaveSafetensorsArgs { folder: folder.path().to_owned(), per_file };
        let mut sink = SaveSafetensors::<Named>::new(args, &stream).expect("a folder");
        for (id, dtype) in (0..).zip(DType::ALL) {
            let zeros = stream.zeros(dtype, &[2, 3]).expect("room").freeze();
            sink.consume(Named::new(id, dtype.name(), zeros)).expect("kept");
        }
        let path = folder.path().join("00000-bool-to-00012-f64.safetensors");
        let bytes = std::fs::read(path).expect("written when full");
        let file = ::safetensors::SafeTensors::deserialize(&bytes).expect("a file");
        for (id, dtype) in (0..).zip(DType::ALL) {
            let view = file.tensor(&format!("{id:05}-{dtype}")).expect("there");
            assert_eq!((view.shape(), view.dtype()), (&[2, 3][..], super::dtype(dtype)));
        }
        let named = || Named::new(1, "twice", stream.zeros(DType::U8, &[1]).expect("room").freeze());
        sink.consume(named()).expect("kept");
        sink.consume(named()).expect("kept");
        let error = sink.finish().expect_err("two of a name").to_string();
        assert!(error.contains("00001-twice"), "{error}");
    }
}
