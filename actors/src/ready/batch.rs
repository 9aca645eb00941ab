//! Gathering items into batches.

use std::marker::PhantomData;
use std::time::{Duration, Instant};

use anyhow::ensure;
use tensorpost::pipeline::{HeldItem, gather_tensors};
use tensorpost::prelude::*;

use super::{Carrier, Labels, Stack};

/// The settings by which a [`Batcher`] sends a batch on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatcherArgs {
    /// Number of items of a full batch, at least 1.
    pub items: usize,
    /// How long the first item of a batch waits for others; `None` means for ever.
    pub wait: Option<Duration>,
}

impl BatcherArgs {
    /// Sends full batches, and the rest at the end.
    pub fn of(items: usize) -> Self {
        BatcherArgs { items, wait: None }
    }
}

/// Gathers tensors of equal shape and dtype into one, along a new first axis, with one copy each on the
/// device. A batch is sent on when it is full, when its first item has waited long enough, when an item of
/// another shape comes, and at the end.
///
/// Where all items have one shape, [`Flow::gather`](tensorpost::pipeline::Flow::gather) does the same in the
/// worker of the stage before. Items of a batch that is not full count as being worked on: give the stage a
/// mailbox for at least a batch.
///
/// ```
/// use tensorpost::prelude::*;
/// use tensorpost_actors::ready::{Batcher, BatcherArgs, Named};
///
/// # fn main() -> anyhow::Result<()> {
/// # let node = Node::builder().start()?;
/// # let stream = node.host_stream()?;
/// // In a pipeline: `.stage::<Batcher<Named>>(BatcherArgs::of(2))`. To try it out:
/// let mut stage = Batcher::<Named>::new(BatcherArgs::of(2), &stream)?;
/// let mut out = Out::new();
/// for id in 0..3 {
///     stage.process(Named::new(id, "pair", stream.from_slice(&[2], &[id, id + 10])?.freeze()), &mut out)?;
/// }
/// stage.finish(&mut out)?;
/// let batches = out.take();
/// assert_eq!((batches[0].tensor.shape(), batches[0].tensor.to_vec::<u64>()?), (&[2, 2][..], vec![0, 10, 1, 11]));
/// assert_eq!((batches[1].labels.to_string(), batches[1].tensor.shape()), ("00002-pair".to_owned(), &[1, 2][..]));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Batcher<T: Carrier> {
    stream: DeviceStream,
    args: BatcherArgs,
    parts: Vec<Part<T::Label>>,
    /// When the first of them came.
    since: Option<Instant>,
    types: PhantomData<fn(T)>,
}

#[derive(Debug)]
struct Part<L> {
    label: L,
    tensor: Tensor,
    held: HeldItem,
}

impl<T: Carrier> Batcher<T> {
    /// Creates the stage on the stream of `stream`.
    ///
    /// # Errors
    /// A batch of no items.
    pub fn new(args: BatcherArgs, stream: &DeviceStream) -> anyhow::Result<Self> {
        ensure!(args.items > 0, "a batch of 0 items is never full; give at least 1");
        Ok(Batcher { stream: stream.clone(), args, parts: Vec::new(), since: None, types: PhantomData })
    }

    /// Sends on the items that it has. On an error nothing has changed.
    fn flush(&mut self, out: &mut Out<Stack<T::Label>>) -> anyhow::Result<()> {
        if self.parts.is_empty() {
            return Ok(());
        }
        let gathered = gather_tensors(&self.stream, self.parts.iter().map(|part| &part.tensor))?;
        let (labels, held): (Vec<_>, Vec<_>) =
            self.parts.drain(..).map(|part| (part.label, part.held)).unzip();
        self.since = None;
        out.emit_for(Stack { labels: Labels(labels), tensor: gathered }, held);
        Ok(())
    }
}

impl<T: Carrier> Stage for Batcher<T> {
    type Args = BatcherArgs;
    type In = T;
    type Out = Stack<T::Label>;

    fn create(args: BatcherArgs, env: &Env) -> anyhow::Result<Self> {
        Self::new(args, &env.stream())
    }

    fn process(&mut self, item: T, out: &mut Out<Self::Out>) -> anyhow::Result<()> {
        let (label, tensor) = item.apart();
        let fits = |first: &Part<_>| {
            first.tensor.shape() == tensor.shape() && first.tensor.dtype() == tensor.dtype()
        };
        if !self.parts.first().is_none_or(fits) {
            self.flush(out)?;
        }
        self.parts.push(Part { label, tensor, held: out.hold() });
        self.since.get_or_insert_with(Instant::now);
        if self.parts.len() >= self.args.items
            && let Err(error) = self.flush(out)
        {
            // Another attempt brings the item again.
            self.parts.pop();
            return Err(error);
        }
        Ok(())
    }

    fn wake_at(&self) -> Option<Instant> {
        self.since?.checked_add(self.args.wait?)
    }

    fn wake(&mut self, out: &mut Out<Self::Out>) -> anyhow::Result<()> {
        self.flush(out)
    }

    fn finish(&mut self, out: &mut Out<Self::Out>) -> anyhow::Result<()> {
        self.flush(out)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Named;
    use super::super::item::tests::host;
    use super::*;

    #[test]
    fn other_shapes_and_waiting_end_a_batch() {
        let (_node, stream) = host();
        let named = |id, len: usize| {
            Named::new(id, "n", stream.from_slice(&[len], &vec![id as u32; len]).expect("room").freeze())
        };
        let args = BatcherArgs { items: 8, wait: Some(Duration::from_secs(3600)) };
        let mut stage = Batcher::<Named>::new(args, &stream).expect("a batcher");
        let mut out = Out::new();
        assert_eq!(stage.wake_at(), None);
        for (id, len) in [(0, 2), (1, 2), (2, 3)] {
            stage.process(named(id, len), &mut out).expect("taken");
        }
        let shapes: Vec<_> = out.take().iter().map(|batch| batch.tensor.shape().to_vec()).collect();
        assert_eq!(shapes, [[2, 2]]);
        assert!(stage.wake_at().is_some_and(|at| at > Instant::now()));
        stage.wake(&mut out).expect("sent on");
        assert_eq!(stage.wake_at(), None);
        let batch = out.take().remove(0);
        assert_eq!(
            (batch.tensor.shape(), batch.tensor.to_vec::<u32>().expect("numbers")),
            (&[1, 3][..], vec![2; 3])
        );
        stage.finish(&mut out).expect("nothing is left");
        assert!(out.take().is_empty());
        assert!(Batcher::<Named>::new(BatcherArgs::of(0), &stream).is_err());
    }
}
