//! Several items as one.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tensorpost_core::api::tensor::{DeviceStream, Tensor, TensorError};

use super::item::Item;

/// How items become a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    pub(super) count: u32,
    pub(super) within: Option<Duration>,
}

impl Batch {
    /// A batch of `count` items.
    pub fn of(count: u32) -> Self {
        Batch { count, within: None }
    }

    /// Sends a batch on after this time since its first item, even if it is not full.
    pub fn within(mut self, time: Duration) -> Self {
        self.within = Some(time);
        self
    }
}

/// Several items in one: a batch, or a window.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct Many<T: Item> {
    /// The items, in the order in which they came.
    pub items: Vec<T>,
}

super::item::message!(Many<T>, |many| many.items.iter().try_for_each(T::check));

/// The item of a stage with two inputs: an item of one of them.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(bound = "")]
pub enum Either<A: Item, B: Item> {
    /// From the first flow.
    Left(A),
    /// From the second.
    Right(B),
}

super::item::message!(Either<A, B>, |either| match either {
    Either::Left(item) => item.check(),
    Either::Right(item) => item.check(),
});

/// Two items that belong together.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct Pair<A: Item, B: Item> {
    /// From the first flow.
    pub left: A,
    /// From the second.
    pub right: B,
}

super::item::message!(Pair<A, B>, |pair| pair.left.check().and_then(|()| pair.right.check()));

/// Items whose tensors can be gathered into one: `n` tensors of a shape into one of `[n, shape…]`.
///
/// ```
/// use tensorpost::pipeline::{Gather, gather_tensors};
/// use tensorpost::prelude::*;
///
/// #[derive(Clone, Serialize, Deserialize, GpuMessage)]
/// struct Frame {
///     id: u64,
///     pixels: Tensor,
/// }
///
/// #[derive(Clone, Serialize, Deserialize, GpuMessage)]
/// struct Frames {
///     ids: Vec<u64>,
///     pixels: Tensor, // one more axis, in front
/// }
///
/// impl Gather for Frame {
///     type Gathered = Frames;
///
///     fn gather(frames: Vec<Frame>, stream: &DeviceStream) -> anyhow::Result<Frames> {
///         let pixels = gather_tensors(stream, frames.iter().map(|frame| &frame.pixels))?;
///         Ok(Frames { ids: frames.iter().map(|frame| frame.id).collect(), pixels })
///     }
/// }
/// ```
pub trait Gather: Item {
    /// The gathered item.
    type Gathered: Item;

    /// Gathers at least one item, on the device of `stream`.
    ///
    /// # Errors
    /// The tensors do not fit together, or there is no memory. All items of the batch have failed then.
    fn gather(items: Vec<Self>, stream: &DeviceStream) -> anyhow::Result<Self::Gathered>;
}

/// Gathers tensors of one dtype and shape into one tensor with one more axis in front: one copy for each, on
/// `stream`.
///
/// # Errors
/// [`GatherError`]: there is no tensor, the tensors differ, or there is no memory.
pub fn gather_tensors<'t>(
    stream: &DeviceStream,
    tensors: impl IntoIterator<Item = &'t Tensor>,
) -> Result<Tensor, GatherError> {
    let tensors: Vec<_> = tensors.into_iter().collect();
    let first = *tensors.first().ok_or(GatherError::Empty)?;
    if let Some((index, other)) = (tensors.iter().enumerate())
        .find(|(_, other)| (other.dtype(), other.shape()) != (first.dtype(), first.shape()))
    {
        return Err(GatherError::Differ { index, first: format!("{first:?}"), other: format!("{other:?}") });
    }
    Ok(stream.stack(&tensors)?.freeze())
}

/// Why tensors could not be gathered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GatherError {
    /// There are no tensors.
    #[error("there is no tensor to gather")]
    Empty,
    /// They differ in dtype or shape.
    #[error(
        "tensors of one dtype and shape can be gathered; number {index} is {other}, and the first {first}"
    )]
    Differ {
        /// The index of the tensor that differs.
        index: usize,
        /// The first.
        first: String,
        /// The one that differs.
        other: String,
    },
    /// The device refused.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}
