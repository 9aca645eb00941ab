//! Writes a `Vec<u8>` in one piece.
//!
//! Serde knows no lists of one type: it writes and reads a `Vec<u8>` number by number, tens of times slower
//! than a copy. So [`Packing`] writes a MessagePack extension of type [`TAG`] with the bytes in it, wherever
//! serde says that it has all of a `&Vec<u8>` or a `&[u8]` to write as a list. The reader
//! ([`meter`](super::meter)) hands the bytes as they are to serde's own visitor of a `Vec<u8>`. To any other
//! visitor it shows the list of numbers that would be there otherwise. So no type can tell the difference:
//! neither an untagged enum, which inspects the value, nor a user's `Deserialize`.
//!
//! Portable messages are written without it, because their form on the wire is promised to other languages.
//!
//! Both sides recognise a type by its id, which for types with no lifetimes in them is exact (`typeid`).

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

/// The form in which a message's lists of bytes are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lists {
    /// In one piece.
    Packed,
    /// As numbers, which programs in other languages expect.
    Numbers,
}

impl Lists {
    /// Returns the form for a message and its reply.
    pub(crate) const fn of<M: GpuMessage>() -> Self {
        if M::PORTABLE.is_some() { Lists::Numbers } else { Lists::Packed }
    }
}

/// The type of the extension; types below zero are MessagePack's own.
pub(super) const TAG: i8 = 0x75;

/// Shorter lists are written as numbers, which takes hardly more bytes.
const LEAST: usize = 16;

/// Returns the bytes of `list`, if it is a `&Vec<u8>` or a `&[u8]`, and long enough.
#[inline]
fn bytes_of<I>(list: &I) -> Option<&[u8]> {
    let id = typeid::of::<I>();
    let bytes: &[u8] = if id == TypeId::of::<&'static Vec<u8>>() {
        // SAFETY: by its id, `I` is a reference to a `Vec<u8>`, up to the lifetime. That lifetime is longer
        // than the borrow of `list`, which the result has.
        unsafe { transmute_copy::<I, &Vec<u8>>(list) }
    } else if id == TypeId::of::<&'static [u8]>() {
        // SAFETY: as above, for a reference to a slice.
        unsafe { transmute_copy::<I, &[u8]>(list) }
    } else {
        return None;
    };
    (bytes.len() >= LEAST).then_some(bytes)
}

/// Returns whether `V` is serde's own visitor for a `Vec<u8>`, whose value is the list that it is given.
#[inline]
fn takes_bytes<'de, V: Visitor<'de>>() -> bool {
    typeid::of::<V::Value>() == TypeId::of::<Vec<u8>>() && Some(typeid::of::<V>()) == visitor_of_bytes()
}

/// Returns the id of that visitor. Serde does not name it, so this asks serde for one. `None` if serde has no
/// such visitor for lists.
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
        // `Ask` reads nothing; it only records the visitor.
        let _ = Vec::<u8>::deserialize(Ask(&mut found));
        found
    })
}

/// Returns the value of a visitor that [takes bytes](takes_bytes), made from the bytes.
///
/// # Panics
/// The visitor's value is no `Vec<u8>`.
pub(super) fn value<'de, V: Visitor<'de>>(bytes: Vec<u8>) -> V::Value {
    assert_eq!(typeid::of::<V::Value>(), TypeId::of::<Vec<u8>>(), "it takes bytes");
    let bytes = ManuallyDrop::new(bytes);
    // SAFETY: by the line above `V::Value` is `Vec<u8>`, which has no lifetimes. The bytes are moved, and
    // `ManuallyDrop` keeps them from being dropped here.
    unsafe { transmute_copy::<ManuallyDrop<Vec<u8>>, V::Value>(&bytes) }
}

/// The bytes of an extension.
pub(super) struct Packed<'de>(&'de [u8]);

impl<'de> Packed<'de> {
    /// Reads an extension, which serde shows as a list of its type and its bytes.
    ///
    /// # Errors
    /// The extension is of another type.
    pub(super) fn read<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        match <(i8, &'de [u8])>::deserialize(from)? {
            (TAG, bytes) => Ok(Packed(bytes)),
            (tag, _) => Err(D::Error::custom(format_args!("extension {tag} has no meaning here"))),
        }
    }

    /// Returns the bytes, if `V` is serde's own visitor for a `Vec<u8>`: then [`value`] makes its value of
    /// them.
    #[inline]
    pub(super) fn whole<V: Visitor<'de>>(&self) -> Option<&'de [u8]> {
        takes_bytes::<V>().then_some(self.0)
    }

    /// Returns the numbers, one by one.
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
