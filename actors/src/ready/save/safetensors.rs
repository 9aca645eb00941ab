//! Items in safetensors files.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::path::PathBuf;

use ::safetensors::tensor::{Dtype, TensorView, serialize};
use anyhow::{Context as _, bail, ensure};
use tensorpost::prelude::*;

use super::super::{Carrier, Labels};
use super::{Folder, write};

/// The folder of a [`SaveSafetensors`], and the number of items in a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SaveSafetensorsArgs {
    /// The folder, which is made if it is missing.
    pub folder: PathBuf,
    /// Items in one file, at least 1. They are kept on the host until the file is written.
    pub per_file: usize,
}

/// Writes items in the safetensors format, several to a file. In a file each item has its label as its name;
/// the file is named after the first and the last.
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
    /// Creates the sink with the device of `stream`.
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

    /// Writes the kept items. On an error they stay kept.
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
        let (dtype, shape) = in_file(tensor.dtype(), tensor.shape())?;
        self.kept.push(Kept { label, dtype, shape, bytes: self.stream.download_bytes(&tensor)? });
        if self.kept.len() >= self.per_file
            && let Err(error) = self.flush()
        {
            // Another attempt brings the item again.
            self.kept.pop();
            return Err(error);
        }
        Ok(())
    }

    fn finish(&mut self) -> anyhow::Result<()> {
        self.flush()
    }
}

/// Returns the type that a file has for elements of `dtype`, and the shape that a tensor of them has there.
fn in_file(dtype: DType, shape: &[usize]) -> anyhow::Result<(Dtype, Vec<usize>)> {
    let mut shape = shape.to_vec();
    let dtype = match dtype {
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
        DType::F8E4M3 => Dtype::F8_E4M3,
        DType::F8E5M2 => Dtype::F8_E5M2,
        DType::F8E4M3Fnuz => Dtype::F8_E4M3FNUZ,
        DType::F8E5M2Fnuz => Dtype::F8_E5M2FNUZ,
        DType::F8E8M0 => Dtype::F8_E8M0,
        DType::F4E2M1X2 => {
            // A file counts the two halves of a byte as elements.
            let last = shape.last_mut().context("safetensors has no scalar of f4e2m1x2; give it an axis")?;
            *last *= 2;
            Dtype::F4
        }
        DType::Complex64 => Dtype::C64,
        DType::Complex128 => {
            bail!(
                "safetensors has no complex128; save its parts as f64, with an axis of two, or as complex64"
            )
        }
    };
    Ok((dtype, shape))
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
        let all: Vec<_> = DType::ALL.into_iter().filter(|dtype| *dtype != DType::Complex128).collect();
        let per_file = all.len();
        let args = SaveSafetensorsArgs { folder: folder.path().to_owned(), per_file };
        let mut sink = SaveSafetensors::<Named>::new(args, &stream).expect("a folder");
        for (id, dtype) in (0..).zip(all.iter().copied()) {
            let zeros = stream.zeros(dtype, &[2, 3]).expect("room").freeze();
            sink.consume(Named::new(id, dtype.name(), zeros)).expect("kept");
        }
        let path = folder.path().join("00000-bool-to-00019-complex64.safetensors");
        let bytes = std::fs::read(path).expect("written when full");
        let file = ::safetensors::SafeTensors::deserialize(&bytes).expect("a file");
        for (id, dtype) in (0..).zip(all) {
            let view = file.tensor(&format!("{id:05}-{dtype}")).expect("there");
            let (expected, shape) = in_file(dtype, &[2, 3]).expect("there is one");
            assert_eq!((view.shape(), view.dtype()), (&shape[..], expected));
            assert_eq!(shape, if dtype == DType::F4E2M1X2 { [2, 6] } else { [2, 3] });
        }
        let none = stream.zeros(DType::Complex128, &[1]).expect("room").freeze();
        let error = sink.consume(Named::new(1, "none", none)).expect_err("it has none").to_string();
        assert!(error.contains("safetensors has no complex128"), "{error}");
        let named = || Named::new(1, "twice", stream.zeros(DType::U8, &[1]).expect("room").freeze());
        sink.consume(named()).expect("kept");
        sink.consume(named()).expect("kept");
        let error = sink.finish().expect_err("two of a name").to_string();
        assert!(error.contains("00001-twice"), "{error}");
    }
}
