//! A `Vec<u8>` in one piece.
//!
//! Serde knows no lists of one type: it writes and reads a `Vec<u8>` number by number, tens of times slower
//! than a copy. So what is written here is a MessagePack extension of type [`TAG`] with the bytes in it,
//! wherever serde says that it has all of a `&Vec<u8>` or a `&[u8]` to write as a list ([`Packing`]). Whoever
//! reads it ([`meter`](super::meter)) hands the bytes over as they are to serde's own reader of a `Vec<u8>`,
//! and to any other as the list of numbers that it would be otherwise. So no type can tell: neither an
//! untagged enum, which looks at what is there, nor a `Deserialize` of the user's.
//!
//! Portable messages are written without it: their form on the wire is promised to other languages.
//!
//! Both sides know a type by its id, which for types with no lifetimes in them is exact (`typeid`).

#![expect(unsafe_code, reason = "one type is known to be another by its id, which the compiler cannot see")]

mod packing;

use std::any::TypeId;
use std::fmt;
use std::mem::{ManuallyDrop, transmute_copy};
use std::sync::OnceLock;

use serde::de::value::Error as Nothing;
use serde::de::{DeserializeSeed, Deserializer, Error, IntoDeserializer, SeqAccess, Visitor};
use serde::{Deserialize, forward_to_deserialize_any};

pub(super) use packing::Packing;

use super::GpuMessage;

/// How a message's lists of bytes are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lists {
    /// In one piece.
    Packed,
    /// As numbers, which programs in other languages expect.
    Numbers,
}

impl Lists {
    /// Of a message, and of its reply.
    pub(crate) const fn of<M: GpuMessage>() -> Self {
        if M::PORTABLE.is_some() { Lists::Numbers } else { Lists::Packed }
    }
}

/// The type of the extension; those below zero are MessagePack's own.
pub(super) const TAG: i8 = 0x75;

/// Shorter lists are written as numbers, which takes hardly more.
const LEAST: usize = 16;

/// The bytes of `list`, where it is a `&Vec<u8>` or a `&[u8]`, and long enough.
#[inline]
fn bytes_of<I>(list: &I) -> Option<&[u8]> {
    let id = typeid::of::<I>();
    let bytes: &[u8] = if id == TypeId::of::<&'static Vec<u8>>() {
        // SAFETY: `I` is a reference to a `Vec<u8>`: the id says so up to the lifetime. That is longer than
        // `list`, which the result borrows.
        unsafe { transmute_copy::<I, &Vec<u8>>(list) }
    } else if id == TypeId::of::<&'static [u8]>() {
        // SAFETY: as above, for a reference to a slice.
        unsafe { transmute_copy::<I, &[u8]>(list) }
    } else {
        return None;
    };
    (bytes.len() >= LEAST).then_some(bytes)
}

/// Whether `V` is serde's own visitor for a `Vec<u8>`, whose value is the list that it is given.
#[inline]
fn takes_bytes<'de, V: Visitor<'de>>() -> bool {
    typeid::of::<V::Value>() == TypeId::of::<Vec<u8>>() && Some(typeid::of::<V>()) == visitor_of_bytes()
}

/// The id of that visitor, which serde does not name: it is asked for one. `None` where it has none for
/// lists.
fn visitor_of_bytes() -> Option<TypeId> {
    struct Ask<'a>(&'a mut Option<TypeId>);

    impl<'de> Deserializer<'de> for Ask<'_> {
        type Error = Nothing;

        fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Nothing> {
            Err(Nothing::custom("nothing is read"))
        }

        fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Nothing> {
            *self.0 = Some(typeid::of::<V>());
            self.deserialize_any(visitor)
        }

        forward_to_deserialize_any! {
            bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
            newtype_struct tuple tuple_struct map struct enum identifier ignored_any
        }
    }

    static KNOWN: OnceLock<Option<TypeId>> = OnceLock::new();
    *KNOWN.get_or_init(|| {
        let mut found = None;
        // It reads nothing, and says whom it would have had read it.
        let _ = Vec::<u8>::deserialize(Ask(&mut found));
        found
    })
}

/// The value of a visitor that [takes bytes](takes_bytes), from the bytes.
///
/// # Panics
/// Its value is no `Vec<u8>`.
pub(super) fn value<'de, V: Visitor<'de>>(bytes: Vec<u8>) -> V::Value {
    assert_eq!(typeid::of::<V::Value>(), TypeId::of::<Vec<u8>>(), "it takes bytes");
    let bytes = ManuallyDrop::new(bytes);
    // SAFETY: `V::Value` is `Vec<u8>`, which has no lifetimes, by the line above. The bytes are moved: here
    // nobody drops them.
    unsafe { transmute_copy::<ManuallyDrop<Vec<u8>>, V::Value>(&bytes) }
}

/// What the extension holds.
pub(super) struct Packed<'de>(&'de [u8]);

impl<'de> Packed<'de> {
    /// Reads it from what an extension is shown as: a list of its type and its bytes.
    ///
    /// # Errors
    /// It is another extension.
    pub(super) fn read<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        match <(i8, &'de [u8])>::deserialize(from)? {
            (TAG, bytes) => Ok(Packed(bytes)),
            (tag, _) => Err(D::Error::custom(format_args!("extension {tag} has no meaning here"))),
        }
    }

    /// The bytes, if `V` is serde's own visitor for a `Vec<u8>`: then [`value`] makes its value of them.
    #[inline]
    pub(super) fn whole<V: Visitor<'de>>(&self) -> Option<&'de [u8]> {
        takes_bytes::<V>().then_some(self.0)
    }

    /// Its numbers, one by one.
    pub(super) fn numbers<E: Error>(self) -> Numbers<'de, E> {
        #[cfg(test)]
        tests::LISTS_OF_NUMBERS.set(tests::LISTS_OF_NUMBERS.get() + 1);
        Numbers { left: self.0, error: std::marker::PhantomData }
    }
}

/// A list of numbers.
pub(super) struct Numbers<'de, E> {
    left: &'de [u8],
    error: std::marker::PhantomData<fn() -> E>,
}

impl<E> fmt::Debug for Numbers<'_, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Numbers({} left)", self.left.len())
    }
}

impl<'de, E: Error> SeqAccess<'de> for Numbers<'de, E> {
    type Error = E;

    #[inline]
    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, E> {
        let Some((first, rest)) = self.left.split_first() else { return Ok(None) };
        self.left = rest;
        seed.deserialize((*first).into_deserializer()).map(Some)
    }

    #[inline]
    fn size_hint(&self) -> Option<usize> {
        Some(self.left.len())
    }
}

#[cfg(test)]
mod tests;
