//! Messages: values with tensors anywhere inside.
//!
//! [`GpuMessage`] is what can be sent; its derive does the work. What a field promises of its tensors is
//! checked before a message leaves and again where it arrives.
//!
//! ```
//! use tensorpost::prelude::*;
//!
//! #[derive(Serialize, Deserialize, GpuMessage)]
//! #[gpu_message(reply = f32)]
//! struct Mean {
//!     #[tensor(dtype = f32, shape = [_])]
//!     values: Tensor,
//!     note: Option<String>,
//! }
//!
//! # fn main() -> anyhow::Result<()> {
//! # let node = Node::builder().start()?;
//! let integers = node.host_stream()?.from_slice(&[2], &[1_i32, 2])?.freeze();
//! let refused = Mean { values: integers, note: None }.check().unwrap_err();
//! assert_eq!((Mean::NAME, refused.field), ("Mean", "values"));
//! # Ok(())
//! # }
//! ```
//!
//! How a value becomes a frame and a value again: encoding runs inside a [`scope`]. A tensor that serde meets
//! there writes its index and puts its lease into the frame's table. Decoding first adopts all leases of the
//! frame and then lends them by index; whatever goes wrong afterwards, the leases are values and go back when
//! they drop (LEASE-2). [`wire`] is the form of a frame, and believes nothing (WIRE-1).

pub(crate) mod body;
pub(crate) mod buffers;
pub mod check;
pub mod codec;
pub(crate) mod holds;
mod meter;
pub mod nesting;
pub(crate) mod packed;
pub(crate) mod parts;
pub mod portable;
#[cfg(feature = "raw")]
#[cfg_attr(
    not(feature = "foreign"),
    allow(
        dead_code,
        unreachable_pub,
        reason = "what packages of other languages need, the gateway does not"
    )
)]
pub(crate) mod raw;
#[cfg(feature = "foreign")]
pub(crate) mod raw_item;
pub mod scope;
mod search;
pub mod wire;

use serde::Serialize;
use serde::de::DeserializeOwned;

pub use check::{CheckTensors, TensorCheckError, TensorMismatch, TensorSpec};
pub use codec::EncodeError;
pub use portable::Portable;

/// A message that can go to an actor in any process. Derive it.
///
/// ```
/// use std::collections::HashMap;
///
/// use tensorpost::prelude::*;
///
/// #[derive(Serialize, Deserialize, GpuMessage)]
/// #[gpu_message(reply = Result<Tensor, String>)]
/// struct Blend {
///     #[tensor(dtype = f32, shape = [3, _, _])]
///     layers: Vec<Tensor>,
///     weights: HashMap<String, f32>,
/// }
///
/// # fn main() -> anyhow::Result<()> {
/// # let node = Node::builder().start()?;
/// let gray = node.host_stream()?.zeros(DType::F32, &[1, 8, 8])?.freeze();
/// let refused = Blend { layers: vec![gray], weights: HashMap::new() }.check().unwrap_err();
/// assert_eq!(refused.field, "layers"); // a sender gets this error together with the message
/// # Ok(())
/// # }
/// ```
pub trait GpuMessage:
    Serialize + DeserializeOwned + Send + Sized + 'static + actix::Message<Result = <Self as GpuMessage>::Reply>
{
    /// What the actor answers, `()` unless `#[gpu_message(reply = …)]` says otherwise. It may hold tensors.
    type Reply: Serialize + DeserializeOwned + Send + 'static;
    /// The type's name, for errors and logs.
    const NAME: &'static str;
    /// Hash of the definition as it is written. With the type's path it tells messages of one program apart;
    /// a portable message is told by [`Portable::schema`] instead.
    const SCHEMA: u64;
    /// How a portable message describes itself.
    #[doc(hidden)]
    const PORTABLE: Option<portable::Describe> = None;
    /// False where the derive knows that no value holds a tensor: then nobody looks for one.
    #[doc(hidden)]
    const MAY_HOLD_TENSORS: bool = true;
    /// The same of the reply.
    #[doc(hidden)]
    const REPLY_MAY_HOLD_TENSORS: bool = true;

    /// Whether it asks for whatever is newer than a version that its sender has: its body begins with `than`
    /// and `life`, two numbers, and that of its reply with `life` and `number`, of the version that comes.
    /// Such asks of several processes of a host for an actor of another host may have one answer.
    #[doc(hidden)]
    const FOLLOWS: bool = false;

    /// The key, where only the value knows it.
    #[cfg(feature = "raw")]
    #[doc(hidden)]
    fn run_time_key(&self) -> Option<u64> {
        None
    }

    /// The value was read once more, and its key is this.
    #[cfg(feature = "raw")]
    #[doc(hidden)]
    fn set_run_time_key(&mut self, _key: u64) {}

    /// The reply of a handler, unless it says that there is none.
    ///
    /// # Errors
    /// Why there is none.
    #[cfg(feature = "raw")]
    #[doc(hidden)]
    fn answer(reply: Self::Reply) -> Result<Self::Reply, raw::Unanswered> {
        Ok(reply)
    }

    /// Whether its tensors are waited for where they are used, and not before its handler: that is called on
    /// another thread, later, and what came behind it is not to hold up its work.
    #[doc(hidden)]
    const WAITS_AT_USE: bool = false;

    /// Checks the tensors against the `#[tensor(…)]` attributes.
    ///
    /// # Errors
    /// Names the field, what it must be and what it is.
    fn check(&self) -> Result<(), TensorCheckError>;
}

/// What can be a reply. The derive asks it of each, so that the compiler says what a type lacks that cannot.
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a reply",
    label = "a reply is sent back to the process that asked",
    note = "add `#[derive(Serialize, Deserialize)]` to `{Self}`; a reply needs no `GpuMessage`",
    note = "its handler returns it as `MessageResult(reply)`, with `type Result = MessageResult<TheMessage>`, or from a \
            future, with `type Result = ResponseFuture<{Self}>`"
)]
pub trait SentBack {}

#[diagnostic::do_not_recommend]
impl<R: Serialize + DeserializeOwned + Send + 'static> SentBack for R {}

/// Bytes that a message keeps in use until it was handled: those of its tensors and those of its body. It is
/// encoded for that, and not sent.
///
/// # Errors
/// It cannot be encoded, as when it is sent.
pub fn bytes_of<M: GpuMessage>(message: &M) -> Result<u64, EncodeError> {
    let encoded = codec::encode_as(message, Vec::new(), packed::Lists::of::<M>())?;
    let bytes = |tensor: &scope::Outline| tensor.layout.len() as u64 * tensor.dtype.size() as u64;
    Ok(encoded.tensors.iter().map(bytes).sum::<u64>() + encoded.body.len() as u64)
}

/// Tells one message type from another on the wire: its name, its definition and its type arguments, or its
/// portable schema.
pub fn message_key<M: GpuMessage>() -> u64 {
    if let Some(describe) = M::PORTABLE {
        return portable::key(std::any::TypeId::of::<M>(), describe);
    }
    fnv1a([M::NAME.as_bytes(), &M::SCHEMA.to_le_bytes(), std::any::type_name::<M>().as_bytes()])
}

/// FNV-1a, 64 bit: <http://www.isthe.com/chongo/tech/comp/fnv/>.
pub(crate) fn fnv1a<const N: usize>(parts: [&[u8]; N]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in parts.into_iter().flatten() {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    hash
}
