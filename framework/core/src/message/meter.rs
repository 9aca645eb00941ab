//! Counts the memory that a decoded value takes, while serde makes it.
//!
//! A nil is one byte in a body and an `Option` of any size in a `Vec`. So the memory that a peer's bytes
//! become is bounded only if it is counted. A [`Metered`] deserialiser knows the type of all values that are
//! read through it. It counts the memory on the heap: the elements of lists and maps, and values that are
//! larger than their place (those are in a `Box`). Past [`allowance`] it refuses. It also counts how deep it
//! is called. Options and newtypes take no byte of the body, so a type that holds itself through them would
//! recurse for ever, which the check of the [nesting](super::nesting) cannot see.
//!
//! For an untagged enum, and behind `flatten`, serde holds a value before it is known what the value becomes.
//! The meter counts the held value, and counts a nil or an empty list in it as if it were to become something
//! [large](DECODED_NIL). When serde then makes the real value, only the errors of the variants that do not
//! fit pass through the meter. A type that holds itself there makes one such error at each step, so an error
//! ends the decoding if the stack has grown [too far](MAX_DECODE_STACK).

use std::cell::Cell;
use std::fmt;
use std::panic::resume_unwind;

use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error, MapAccess, SeqAccess, VariantAccess, Visitor,
};

use super::packed::{self, Packed};
use crate::limits::{DECODED_BASE, DECODED_NIL, DECODED_PER_BYTE, MAX_DECODE_CALLS, MAX_DECODE_STACK};

/// Returns the bytes that a value with a body of `bytes` may take.
pub(super) fn allowance(bytes: usize) -> usize {
    bytes.saturating_mul(DECODED_PER_BYTE).saturating_add(DECODED_BASE)
}

/// The reason why decoding ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spent {
    /// The value would take more bytes than it may.
    Bytes,
    /// The value needs more calls than [`MAX_DECODE_CALLS`].
    Calls,
}

thread_local! {
    /// The position of the stack when the decoding on this thread began; 0 outside of one.
    static BEGAN: Cell<usize> = const { Cell::new(0) };
}

/// The payload that unwinds out of a decoding whose type holds itself without an end.
pub(super) struct TooDeep;

/// While it exists, errors on this thread check how deep the stack is.
pub(super) struct OnStack {
    outer: usize,
}

impl OnStack {
    pub(super) fn begin() -> Self {
        let outer = BEGAN.get();
        if outer == 0 {
            BEGAN.set(here());
        }
        OnStack { outer }
    }
}

impl Drop for OnStack {
    fn drop(&mut self) {
        BEGAN.set(self.outer);
    }
}

/// Returns roughly where the stack ends.
#[inline(never)]
fn here() -> usize {
    let mark = 0_u8;
    std::hint::black_box(&raw const mark) as usize
}

/// An error of a [`Metered`] deserialiser.
#[derive(Debug)]
pub(super) struct Metering<E>(pub(super) E);

impl<E: fmt::Display> fmt::Display for Metering<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<E: std::error::Error> std::error::Error for Metering<E> {}

impl<E: Error> Error for Metering<E> {
    fn custom<T: fmt::Display>(message: T) -> Self {
        let began = BEGAN.get();
        if began != 0 && began.abs_diff(here()) > MAX_DECODE_STACK {
            // An error would only make serde try the next variant, one level deeper.
            resume_unwind(Box::new(TooDeep));
        }
        Metering(E::custom(message))
    }
}

/// The count of one decoding.
#[derive(Debug)]
pub(super) struct Meter {
    left: Cell<usize>,
    spent: Cell<Option<Spent>>,
}

impl Meter {
    /// Makes a meter that lets `bytes` through.
    pub(super) fn new(bytes: usize) -> Self {
        Meter { left: Cell::new(bytes), spent: Cell::new(None) }
    }

    /// Returns why the meter ended the decoding, if it did.
    pub(super) fn spent(&self) -> Option<Spent> {
        self.spent.get()
    }

    /// Wraps `from`, so that it is counted.
    pub(super) fn over<D>(&self, from: D) -> Metered<'_, D> {
        Metered { from, at: At { meter: self, place: 0, calls: 0 } }
    }

    #[cold]
    fn refuse<E: Error>(&self, why: Spent) -> E {
        self.spent.set(Some(why));
        E::custom(match why {
            Spent::Bytes => "it would take too much memory",
            Spent::Calls => "its type holds itself too deep",
        })
    }
}

/// The position of a deserialiser in the value.
#[derive(Clone, Copy)]
struct At<'m> {
    meter: &'m Meter,
    /// The bytes of the place that the value is in, which are counted already.
    place: usize,
    calls: u16,
}

impl At<'_> {
    /// Enters a value of type `T`.
    #[inline]
    fn enter<T, E: Error>(self) -> Result<Self, E> {
        if self.calls == MAX_DECODE_CALLS {
            return Err(self.meter.refuse(Spent::Calls));
        }
        let bytes = size_of::<T>();
        // A value larger than its place is on the heap.
        if bytes > self.place {
            self.count(bytes - self.place)?;
        }
        Ok(At { place: self.place.max(bytes), calls: self.calls + 1, ..self })
    }

    /// Enters an element of type `T`.
    #[inline]
    fn element<T, E: Error>(self, elements: Elements) -> Result<Self, E> {
        let bytes = size_of::<T>();
        if elements != Elements::Inside {
            self.count(bytes)?;
        }
        Ok(At { place: bytes, ..self })
    }

    #[inline]
    fn count<E: Error>(self, bytes: usize) -> Result<(), E> {
        match self.meter.left.get().checked_sub(bytes) {
            Some(left) => self.meter.left.set(left),
            None => return Err(self.meter.refuse(Spent::Bytes)),
        }
        Ok(())
    }
}

/// The place of a value's elements.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Elements {
    /// In the value, as a struct's fields.
    Inside,
    /// In memory of its own.
    Heap,
    /// In memory of their own, and it is not known yet what they become.
    Held,
}

/// A deserialiser that counts.
pub(super) struct Metered<'m, D> {
    from: D,
    at: At<'m>,
}

/// A visitor that counts the values that it is given.
struct Visit<'m, V> {
    visitor: V,
    at: At<'m>,
    elements: Elements,
    newtype: Newtype,
}

/// The meaning of a newtype that a visitor is shown.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Newtype {
    /// A newtype, because one was asked for.
    Itself,
    /// An extension of MessagePack.
    Extension,
}

/// A list, a map or an enum's variant, whose elements are counted.
struct Inner<'m, A> {
    access: A,
    at: At<'m>,
    elements: Elements,
}

/// An element that is still to be made.
struct Seed<'m, S> {
    seed: S,
    at: At<'m>,
    elements: Elements,
}

/// Methods of a deserialiser whose value may have others in it.
macro_rules! counted {
    ($($method:ident($($argument:ident: $type:ty),*) $elements:ident $newtype:ident;)*) => { $(
        #[inline]
        fn $method<V: Visitor<'de>>(self, $($argument: $type,)* visitor: V) -> Result<V::Value, Self::Error> {
            let at = self.at.enter::<V::Value, Self::Error>()?;
            let (elements, newtype) = (Elements::$elements, Newtype::$newtype);
            self.from.$method($($argument,)* Visit { visitor, at, elements, newtype }).map_err(Metering)
        }
    )* };
}

/// Methods of a deserialiser whose value has no others in it: the value takes as much memory as its bytes in
/// the body.
macro_rules! plain {
    ($($method:ident)*) => { $(
        #[inline]
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
            self.from.$method(visitor).map_err(Metering)
        }
    )* };
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Metered<'_, D> {
    type Error = Metering<D::Error>;

    plain! {
        deserialize_bool deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_i128 deserialize_u8
        deserialize_u16 deserialize_u32 deserialize_u64 deserialize_u128 deserialize_f32 deserialize_f64 deserialize_char
        deserialize_str deserialize_string deserialize_unit deserialize_identifier deserialize_ignored_any
    }

    counted! {
        deserialize_bytes() Heap Extension;
        deserialize_byte_buf() Heap Extension;
        deserialize_any() Held Extension;
        deserialize_option() Inside Extension;
        deserialize_unit_struct(name: &'static str) Inside Extension;
        deserialize_newtype_struct(name: &'static str) Inside Itself;
        deserialize_seq() Heap Extension;
        deserialize_map() Heap Extension;
        deserialize_tuple(len: usize) Inside Extension;
        deserialize_tuple_struct(name: &'static str, len: usize) Inside Extension;
        deserialize_struct(name: &'static str, fields: &'static [&'static str]) Inside Extension;
        deserialize_enum(name: &'static str, variants: &'static [&'static str]) Inside Extension;
    }

    #[inline]
    fn is_human_readable(&self) -> bool {
        self.from.is_human_readable()
    }
}

/// Methods of a visitor that receive a value.
macro_rules! values {
    ($($method:ident($type:ty);)*) => { $(
        #[inline]
        fn $method<E: Error>(self, value: $type) -> Result<V::Value, E> {
            self.visitor.$method(value)
        }
    )* };
}

impl<'m, V> Visit<'m, V> {
    #[inline]
    fn split<A>(self, access: A) -> (V, Inner<'m, A>) {
        (self.visitor, Inner { access, at: self.at, elements: self.elements })
    }

    /// Counts a nil or an empty list, if it is not known yet what it becomes.
    #[inline]
    fn nothing<E: Error>(&self) -> Result<(), E> {
        if self.elements == Elements::Held { self.at.count(DECODED_NIL) } else { Ok(()) }
    }
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Visit<'_, V> {
    type Value = V::Value;

    values! {
        visit_bool(bool); visit_i8(i8); visit_i16(i16); visit_i32(i32); visit_i64(i64); visit_i128(i128); visit_u8(u8);
        visit_u16(u16); visit_u32(u32); visit_u64(u64); visit_u128(u128); visit_f32(f32); visit_f64(f64); visit_char(char);
        visit_str(&str); visit_borrowed_str(&'de str); visit_string(String); visit_bytes(&[u8]);
        visit_borrowed_bytes(&'de [u8]); visit_byte_buf(Vec<u8>);
    }

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.visitor.expecting(f)
    }

    #[inline]
    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.nothing()?;
        self.visitor.visit_none()
    }

    #[inline]
    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        self.nothing()?;
        self.visitor.visit_unit()
    }

    #[inline]
    fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<V::Value, D::Error> {
        self.visitor.visit_some(Metered { from, at: self.at }).map_err(|error| error.0)
    }

    #[inline]
    fn visit_newtype_struct<D: Deserializer<'de>>(self, from: D) -> Result<V::Value, D::Error> {
        if self.newtype == Newtype::Itself {
            return self.visitor.visit_newtype_struct(Metered { from, at: self.at }).map_err(|error| error.0);
        }
        let packed = Packed::read(from)?;
        if let Some(bytes) = packed.whole::<V>() {
            self.at.count(bytes.len())?;
            return Ok(packed::value::<V>(bytes.to_vec()));
        }
        let (visitor, numbers) = self.split(packed.numbers());
        visitor.visit_seq(numbers).map_err(|error| error.0)
    }

    #[inline]
    fn visit_seq<A: SeqAccess<'de>>(self, access: A) -> Result<V::Value, A::Error> {
        if access.size_hint() == Some(0) {
            self.nothing()?;
        }
        let (visitor, access) = self.split(access);
        visitor.visit_seq(access).map_err(|error| error.0)
    }

    #[inline]
    fn visit_map<A: MapAccess<'de>>(self, access: A) -> Result<V::Value, A::Error> {
        if access.size_hint() == Some(0) {
            self.nothing()?;
        }
        let (visitor, access) = self.split(access);
        visitor.visit_map(access).map_err(|error| error.0)
    }

    #[inline]
    fn visit_enum<A: EnumAccess<'de>>(self, access: A) -> Result<V::Value, A::Error> {
        let (visitor, access) = self.split(access);
        visitor.visit_enum(access).map_err(|error| error.0)
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Seed<'_, S> {
    type Value = S::Value;

    #[inline]
    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<S::Value, D::Error> {
        let at = self.at.element::<S::Value, D::Error>(self.elements)?;
        self.seed.deserialize(Metered { from, at }).map_err(|error| error.0)
    }
}

impl<'m, A> Inner<'m, A> {
    #[inline]
    fn seed<S>(&self, seed: S) -> Seed<'m, S> {
        Seed { seed, at: self.at, elements: self.elements }
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Inner<'_, A> {
    type Error = Metering<A::Error>;

    #[inline]
    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Self::Error> {
        let seed = self.seed(seed);
        self.access.next_element_seed(seed).map_err(Metering)
    }

    #[inline]
    fn size_hint(&self) -> Option<usize> {
        self.access.size_hint()
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Inner<'_, A> {
    type Error = Metering<A::Error>;

    #[inline]
    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Self::Error> {
        let seed = self.seed(seed);
        self.access.next_key_seed(seed).map_err(Metering)
    }

    #[inline]
    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Self::Error> {
        let seed = self.seed(seed);
        self.access.next_value_seed(seed).map_err(Metering)
    }

    #[inline]
    fn size_hint(&self) -> Option<usize> {
        self.access.size_hint()
    }
}

impl<'de, 'm, A: EnumAccess<'de>> EnumAccess<'de> for Inner<'m, A> {
    type Error = Metering<A::Error>;
    type Variant = Inner<'m, A::Variant>;

    #[inline]
    fn variant_seed<S: DeserializeSeed<'de>>(
        self,
        seed: S,
    ) -> Result<(S::Value, Self::Variant), Self::Error> {
        let seed = self.seed(seed);
        let (variant, access) = self.access.variant_seed(seed).map_err(Metering)?;
        Ok((variant, Inner { access, at: self.at, elements: Elements::Inside }))
    }
}

impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for Inner<'_, A> {
    type Error = Metering<A::Error>;

    #[inline]
    fn unit_variant(self) -> Result<(), Self::Error> {
        self.access.unit_variant().map_err(Metering)
    }

    #[inline]
    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, Self::Error> {
        let seed = self.seed(seed);
        self.access.newtype_variant_seed(seed).map_err(Metering)
    }

    #[inline]
    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, Self::Error> {
        let (elements, newtype) = (Elements::Inside, Newtype::Extension);
        let visitor = Visit { visitor, at: self.at, elements, newtype };
        self.access.tuple_variant(len, visitor).map_err(Metering)
    }

    #[inline]
    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        let (elements, newtype) = (Elements::Inside, Newtype::Extension);
        let visitor = Visit { visitor, at: self.at, elements, newtype };
        self.access.struct_variant(fields, visitor).map_err(Metering)
    }
}

#[cfg(test)]
mod tests;
