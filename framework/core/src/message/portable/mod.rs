//! Schemas that a program in another language can write too: of a message, and of everything inside it.
//!
//! The key of a message is usually made of its definition's tokens and its path
//! ([`message_key`](super::message_key)), which no other language has. The key of a portable message is the
//! hash of a text that describes its form on the wire, and nothing else. Each type describes itself
//! ([`Portable`]), so a change inside a nested type changes the text of every message that it is in (WIRE-1).
//! `tensorpost-derive/PORTABLE.md` has the text's form.
//!
//! A type that holds itself is described once. The second time it is a number that says how many of the
//! surrounding `recursive`s to skip. `shape` writes the text, `difference` compares two texts, and
//! `interfaces` is the list that a worker and its node show each other.

mod difference;
mod implementations;
pub(crate) mod interfaces;
mod shape;
#[cfg(test)]
mod tests;

use std::any::TypeId;
use std::cell::RefCell;
use std::collections::HashMap;

use super::{GpuMessage, TensorSpec};
use crate::limits::MAX_SCHEMA_TYPES;
pub use implementations::PortableBytes;
#[cfg(feature = "inside")]
use interfaces::Interfaces;
pub use shape::{Body, Field, Interface, Repr, Shape, TensorShape, Variant};

/// A type whose form on the wire other languages know by name. Fields of a
/// [portable](derive@crate::api::message::Portable) message must have such types. Derive it for structs and
/// enums inside such messages; a message itself has it by `#[gpu_message(portable)]`.
///
/// ```
/// use tensorpost::message::Portable;
/// use tensorpost::prelude::*;
///
/// #[derive(Serialize, Deserialize, Portable)]
/// struct Region {
///     label: String,
///     #[serde(default)]
///     crop: Option<Tensor>,
/// }
///
/// let crop = r#"{"name":"crop","type":{"option":{"tensor":{}}},"optional":true}"#;
/// assert_eq!(Region::schema(), format!(r#"{{"struct":[{{"name":"label","type":"str"}},{crop}]}}"#));
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no portable schema",
    label = "other languages do not know what this is on the wire",
    note = "for a struct or an enum of this program, add `#[derive(Portable)]` (`tensorpost::message::Portable`)",
    note = "for another type, put `#[portable(as = Type)]` on the field, with a type that serde writes in the same way"
)]
pub trait Portable: 'static {
    /// Returns the canonical text. For a message it includes the name and the reply, and the message's key is
    /// the text's FNV-1a hash (64 bits). `PORTABLE.md` of the crate `tensorpost-derive` describes it, and so
    /// does the [derive](derive@crate::api::message::Portable).
    ///
    /// # Panics
    /// If there are more than 16,384 types in it.
    fn schema() -> String
    where
        Self: Sized,
    {
        Describer::default().of::<Self>().text()
    }

    /// Returns the type's form on the wire.
    #[doc(hidden)]
    fn describe(describer: &mut Describer) -> Shape;
}

/// Describes a message; [`GpuMessage::PORTABLE`].
pub type Describe = fn(&mut Describer) -> Interface;

/// Returns the canonical text of a portable message.
pub fn schema_of<M: GpuMessage + Portable>() -> String {
    Describer::default().message::<M>().text()
}

/// Describes the differences between two definitions of a message, as a handshake shows them: a heading, and
/// a line for each difference. `None` if the texts are the same, or the names are not. For the Python
/// package.
#[cfg(feature = "inside")]
pub fn differences(text: &str, other: &str, this: &str, that: &str) -> Vec<String> {
    Interfaces::shown(text).differences(&Interfaces::shown(other), this, that)
}

/// A walk through a type and those inside it.
#[derive(Debug, Default)]
pub struct Describer {
    /// The structs and enums that are being described, from the outermost on.
    open: Vec<TypeId>,
    /// The requirements on the tensors of the field that is being described.
    spec: Option<&'static TensorSpec>,
    types: usize,
}

impl Describer {
    /// Describes `T`.
    ///
    /// # Panics
    /// If there are too many types. Without a bound, types that each hold two of the next would take all
    /// memory.
    pub fn of<T: Portable + ?Sized>(&mut self) -> Shape {
        self.types += 1;
        assert!(
            self.types <= MAX_SCHEMA_TYPES,
            "the portable schema of a message holds more than {MAX_SCHEMA_TYPES} types, `{}` among them; send parts of it as \
             messages of their own",
            std::any::type_name::<T>()
        );
        T::describe(self)
    }

    /// Describes the type of a field whose tensors are checked.
    pub fn checked<T: Portable + ?Sized>(&mut self, spec: &'static TensorSpec) -> Shape {
        let outer = self.spec.replace(spec);
        let shape = self.of::<T>();
        self.spec = outer;
        shape
    }

    /// Describes a field that is written as bytes.
    pub fn bytes<T: PortableBytes + ?Sized>(&mut self) -> Shape {
        T::as_bytes()
    }

    /// Describes `T` by the result of `body`, unless `T` is being described already.
    pub fn named<T: 'static + ?Sized>(&mut self, body: impl FnOnce(&mut Self) -> Shape) -> Shape {
        let id = TypeId::of::<T>();
        if self.open.contains(&id) {
            return Shape::Open(id);
        }
        self.open.push(id);
        let shape = body(self);
        self.open.pop();
        shape.closed(&Shape::Open(id))
    }

    /// Describes a message, with its name and its reply.
    pub fn message<M: GpuMessage>(&mut self) -> Interface {
        const {
            assert!(
                M::PORTABLE.is_some(),
                "a portable message can only hold addresses for portable messages: add `portable` to the \
                 `#[gpu_message(..)]` of the message that this address is for"
            );
        }
        match M::PORTABLE {
            Some(describe) => describe(self),
            None => unreachable!("the constant above says that it is one"),
        }
    }

    /// Describes the parts of a message, as its derive knows them.
    pub fn parts<M: GpuMessage + Portable>(&mut self) -> Interface
    where
        M::Reply: Portable,
    {
        // The requirements on the field that holds an address do not apply to the messages that are sent
        // there.
        let spec = self.spec.take();
        let (body, reply) = (self.of::<M>(), self.of::<M::Reply>());
        self.spec = spec;
        Interface { message: M::NAME.to_owned(), body, reply }
    }

    fn tensor(&self) -> TensorShape {
        TensorShape::of(self.spec)
    }
}

/// Returns the key of a message type that describes itself. It is the same in every process and language.
pub(super) fn key(message: TypeId, describe: Describe) -> u64 {
    thread_local! {
        /// The text is written only once: every address that comes in a message asks for a key.
        static KEYS: RefCell<HashMap<TypeId, u64>> = RefCell::new(HashMap::new());
    }
    if let Some(known) = KEYS.with_borrow(|keys| keys.get(&message).copied()) {
        return known;
    }
    let key = describe(&mut Describer::default()).key();
    KEYS.with_borrow_mut(|keys| keys.insert(message, key));
    key
}
