//! Taking batches apart.

use std::marker::PhantomData;

use anyhow::ensure;
use tensorpost::prelude::*;

use super::{Carrier, Stack};

/// Takes a batch apart: one item for each label, with a view of the batch's tensor. Nothing is copied, so the
/// items share their memory, and a stage that writes in place copies each.
///
/// ```
/// use tensorpost::prelude::*;
/// use tensorpost_actors::ready::{Stack, Label, Labels, Named, Unbatch};
///
/// # fn main() -> anyhow::Result<()> {
/// # let node = Node::builder().start()?;
/// # let stream = node.host_stream()?;
/// let labels = Labels(vec![Label { id: 3, name: "left".into() }, Label { id: 4, name: "right".into() }]);
/// let tensor = stream.from_slice(&[2, 3], &[1_u8, 2, 3, 4, 5, 6])?.freeze();
/// // In a pipeline: `.stage::<Unbatch<Named>>(())`. To try it out:
/// let mut out = Out::new();
/// Unbatch::<Named>::default().process(Stack { labels, tensor }, &mut out)?;
/// let items = out.take();
/// assert_eq!((items[1].label.to_string(), items[1].tensor.to_vec::<u8>()?), ("00004-right".into(), vec![4, 5, 6]));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Unbatch<T>(PhantomData<fn() -> T>);

impl<T> Default for Unbatch<T> {
    fn default() -> Self {
        Unbatch(PhantomData)
    }
}

impl<T: Carrier> Stage for Unbatch<T> {
    type Args = ();
    type In = Stack<T::Label>;
    type Out = T;

    fn create((): (), _: &Env) -> anyhow::Result<Self> {
        Ok(Self::default())
    }

    fn process(&mut self, batch: Self::In, out: &mut Out<T>) -> anyhow::Result<()> {
        let (labels, tensor) = batch.apart();
        let (shape, count) = (tensor.shape().to_vec(), labels.0.len());
        ensure!(shape.first() == Some(&count), "a batch of shape {shape:?} with {count} labels");
        let ids = out.ids();
        for (index, label) in labels.0.into_iter().enumerate() {
            let item = T::whole(label, tensor.index(0, index)?);
            match ids.get(index) {
                // The item gets back the id that it had before the batch.
                Some(&id) if ids.len() == count => out.emit_as(id, item),
                _ => out.emit(item),
            }
        }
        Ok(())
    }
}
