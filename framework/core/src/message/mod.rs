//! Messages: values with tensors anywhere inside.
//!
//! [`GpuMessage`] is the trait of values that can be sent; its derive does the work. The tensors'
//! requirements that a field states are checked before a message leaves, and again when it arrives.
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
//! Encoding runs inside a [`scope`]: a tensor that serde meets there writes its index and puts its lease into
//! the frame's table. Decoding first adopts all leases of the frame and then lends them by index. Leases are
//! values, so they go back when they drop, whatever goes wrong afterwards (LEASE-2). [`wire`] is the form of
//! a frame, and trusts no byte of it (WIRE-1).

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
    not(feature = "bindings"),
    allow(
        dead_code,
        unreachable_pub,
        reason = "what packages of other languages need, the gateway does not"
    )
)]
pub(crate) mod raw;
#[cfg(feature = "bindings")]
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
    /// The type of the actor's answer, `()` unless `#[gpu_message(reply = …)]` says otherwise. It may hold
    /// tensors.
    type Reply: Serialize + DeserializeOwned + Send + 'static;
    /// The type's name, for errors and logs.
    const NAME: &'static str;
    /// Hash of the definition's tokens. With the type's path it tells messages of one program apart. For a
    /// portable message [`Portable::schema`] does that instead.
    const SCHEMA: u64;
    /// How a portable message describes itself.
    #[doc(hidden)]
    const PORTABLE: Option<portable::Describe> = None;
    /// False if the derive knows that no value holds a tensor: then no value is searched for one.
    #[doc(hidden)]
    const MAY_HOLD_TENSORS: bool = true;
    /// The same for the reply.
    #[doc(hidden)]
    const REPLY_MAY_HOLD_TENSORS: bool = true;

    /// Whether the message asks for anything newer than the version that its sender has. Then its body begins
    /// with the two numbers `than` and `life`, and that of its reply with `life` and `number`, of the version
    /// that comes. Such asks of several processes of a host for an actor of another host may have one answer.
    #[doc(hidden)]
    const FOLLOWS: bool = false;

    /// Returns the key, if only the value knows it.
    #[cfg(feature = "raw")]
    #[doc(hidden)]
    fn run_time_key(&self) -> Option<u64> {
        None
    }

    /// Tells the value its key, after it was read once more.
    #[cfg(feature = "raw")]
    #[doc(hidden)]
    fn set_run_time_key(&mut self, _key: u64) {}

    /// Returns the reply of a handler, unless the handler says that there is none.
    ///
    /// # Errors
    /// The reason why there is none.
    #[cfg(feature = "raw")]
    #[doc(hidden)]
    fn answer(reply: Self::Reply) -> Result<Self::Reply, raw::Unanswered> {
        Ok(reply)
    }

    /// Whether the message's tensors are waited for when they are used, and not before the handler. The
    /// handler is called on another thread, later, and must not be delayed by work that came after the
    /// message.
    #[doc(hidden)]
    const WAITS_AT_USE: bool = false;

    /// Checks the tensors against the `#[tensor(…)]` attributes.
    ///
    /// # Errors
    /// Names the field, the requirement and the tensor's actual property.
    fn check(&self) -> Result<(), TensorCheckError>;
}

/// A type that can be a reply. The derive requires it of each reply type, so that the compiler says what an
/// unfit type lacks.
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

/// Returns the bytes that a message keeps in use until it is handled: those of its tensors and of its body.
/// The message is encoded for this, and not sent.
///
/// # Errors
/// It cannot be encoded, for the same reasons as in a send.
pub fn bytes_of<M: GpuMessage>(message: &M) -> Result<u64, EncodeError> {
    let encoded = codec::encode_as(message, Vec::new(), packed::Lists::of::<M>())?;
    let bytes = |tensor: &scope::Outline| tensor.layout.len() as u64 * tensor.dtype.size() as u64;
    Ok(encoded.tensors.iter().map(bytes).sum::<u64>() + encoded.body.len() as u64)
}

/// Returns the key that tells one message type from another on the wire. It depends on the name, the
/// definition and the type arguments, or on the portable schema.
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
