//! Items around one tensor, and the way to take them apart.

use std::fmt;

use serde::de::DeserializeOwned;
use tensorpost::pipeline::{Gather, gather_tensors};
use tensorpost::prelude::*;

/// An item around one tensor. The rest of it, its label, stays with it while stages replace the tensor.
///
/// ```
/// use tensorpost::prelude::*;
/// use tensorpost_actors::ready::{Carrier, carrier};
///
/// #[derive(Clone, Serialize, Deserialize, GpuMessage)]
/// struct Frame {
///     camera: String,
///     pixels: Tensor,
/// }
///
/// // `impl Carrier for Frame`, whose label is the camera:
/// carrier!(Frame { camera: String, pixels });
///
/// # fn camera_of(frame: Frame) -> String { frame.apart().0 }
/// ```
pub trait Carrier: Item {
    /// Everything but the tensor. `Display` makes the names of files, and the item's name in errors.
    type Label: Clone + fmt::Debug + fmt::Display + Serialize + DeserializeOwned + Send + 'static;

    /// Returns the label and the tensor. Nothing else may keep a handle on the tensor's memory, or no stage
    /// can write into it.
    fn apart(self) -> (Self::Label, Tensor);

    /// Makes an item of both.
    fn whole(label: Self::Label, tensor: Tensor) -> Self;

    /// Replaces the tensor by the result of `with`.
    ///
    /// # Errors
    /// The error of `with`.
    fn with<E>(self, with: impl FnOnce(Tensor) -> Result<Tensor, E>) -> Result<Self, E> {
        let (label, tensor) = self.apart();
        Ok(Self::whole(label, with(tensor)?))
    }
}

/// Writes the [`Carrier`](crate::ready::Carrier) of a struct with two named fields: the label with its type,
/// then the tensor. If an item has more fields, put those that are not the tensor into a struct of their own,
/// whose `Display` is the name of the item.
///
/// ```
/// use tensorpost::prelude::*;
/// use tensorpost_actors::ready::{Carrier, carrier}; // `Carrier` for its methods; `carrier!` needs it not
///
/// #[derive(Clone, Serialize, Deserialize, GpuMessage)]
/// struct Frame {
///     number: u64,
///     pixels: Tensor,
/// }
///
/// carrier!(Frame { number: u64, pixels });
/// # fn number_of(frame: Frame) -> u64 { frame.apart().0 }
/// ```
#[macro_export]
macro_rules! carrier {
    ($item:ident { $label:ident: $type:ty, $tensor:ident $(,)? }) => {
        impl $crate::ready::Carrier for $item {
            type Label = $type;

            fn apart(self) -> ($type, ::tensorpost::tensor::Tensor) {
                (self.$label, self.$tensor)
            }

            fn whole($label: $type, $tensor: ::tensorpost::tensor::Tensor) -> Self {
                $item { $label, $tensor }
            }
        }
    };
}

/// The number and name of an item. In text it is `00042-chelsea`, the name of the item's file.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Label {
    /// Its number, counted from 0.
    pub id: u64,
    /// Its name, such as that of its source file, without folder and ending.
    pub name: String,
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:05}-{}", self.id, self.name)
    }
}

/// A tensor with a number and a name.
#[derive(Clone, Debug, Serialize, Deserialize, GpuMessage)]
pub struct Named {
    /// Number and name.
    pub label: Label,
    /// The tensor.
    pub tensor: Tensor,
}

impl Named {
    /// Creates a tensor with this number and name.
    pub fn new(id: u64, name: impl Into<String>, tensor: Tensor) -> Self {
        Named { label: Label { id, name: name.into() }, tensor }
    }
}

carrier!(Named { label: Label, tensor });

impl Gather for Named {
    type Gathered = Stack<Label>;

    fn gather(items: Vec<Named>, stream: &DeviceStream) -> anyhow::Result<Stack<Label>> {
        let tensor = gather_tensors(stream, items.iter().map(|item| &item.tensor))?;
        Ok(Stack { labels: Labels(items.into_iter().map(|item| item.label).collect()), tensor })
    }
}

/// Several items in one: their tensors in one tensor, along a new first axis, and their labels. A
/// [`Batcher`](super::Batcher) makes it, and so does [`Flow::gather`](tensorpost::pipeline::Flow::gather) of
/// [`Named`] items.
#[derive(Clone, Debug, Serialize, Deserialize, GpuMessage)]
#[serde(bound(serialize = "L: Serialize", deserialize = "L: DeserializeOwned"))]
pub struct Stack<L> {
    /// The labels, in order.
    pub labels: Labels<L>,
    /// The tensors: `[labels, ..]`.
    pub tensor: Tensor,
}

/// The labels of a stack. In text they are the first and the last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(bound(serialize = "L: Serialize", deserialize = "L: DeserializeOwned"))]
pub struct Labels<L>(pub Vec<L>);

impl<L: fmt::Display> fmt::Display for Labels<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0[..] {
            [] => f.write_str("nothing"),
            [only] => write!(f, "{only}"),
            [first, .., last] => write!(f, "{first}-to-{last}"),
        }
    }
}

impl<L> Carrier for Stack<L>
where
    L: Clone + fmt::Debug + fmt::Display + Serialize + DeserializeOwned + Send + 'static,
{
    type Label = Labels<L>;

    fn apart(self) -> (Labels<L>, Tensor) {
        (self.labels, self.tensor)
    }

    fn whole(labels: Labels<L>, tensor: Tensor) -> Self {
        Stack { labels, tensor }
    }
}

/// Returns a tensor to write into: `tensor` itself where nobody else has it, a copy otherwise.
pub(super) fn own(stream: &DeviceStream, tensor: Tensor) -> Result<TensorMut, TensorError> {
    tensor.into_mut(stream).or_else(|shared| stream.copy(&shared.tensor))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Starts a node without workers, and returns it with its host device.
    pub(in crate::ready) fn host() -> (Node, DeviceStream) {
        let node = Node::builder().start().expect("a node");
        let stream = node.host_stream().expect("the host");
        (node, stream)
    }

    #[test]
    fn labels_are_texts() {
        let label = |id, name: &str| Label { id, name: name.to_owned() };
        assert_eq!(label(42, "chelsea").to_string(), "00042-chelsea");
        assert_eq!(
            Labels(vec![label(1, "a"), label(2, "b"), label(3, "c")]).to_string(),
            "00001-a-to-00003-c"
        );
        assert_eq!(Labels(vec![label(1, "a")]).to_string(), "00001-a");
    }

    #[test]
    fn a_tensor_is_written_in_place_unless_it_is_shared() {
        let (_node, stream) = host();
        let item = Named::new(0, "zeros", stream.zeros(DType::F32, &[4]).expect("room").freeze());
        let memory = item.tensor.lease().id();
        let item = item.with(|tensor| own(&stream, tensor).map(TensorMut::freeze)).expect("alone");
        assert_eq!(item.tensor.lease().id(), memory);
        let kept = item.tensor.clone();
        let item = item.with(|tensor| own(&stream, tensor).map(TensorMut::freeze)).expect("copied");
        assert_ne!(item.tensor.lease().id(), kept.lease().id());
    }
}
