//! A serialiser that writes lists of bytes in one piece, and passes everything else to the serialiser that it
//! wraps.

use std::fmt;

use rmp_serde::MSGPACK_EXT_STRUCT_NAME;
use serde::ser::{
    Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
    SerializeTupleStruct, SerializeTupleVariant, Serializer,
};

use super::{TAG, bytes_of};

/// See the module. It must wrap a serialiser of `rmp_serde`, which knows extensions.
pub(crate) struct Packing<S>(pub(crate) S);

/// A value inside another one that is packed.
struct Inner<'a, T: ?Sized>(&'a T);

impl<T: Serialize + ?Sized> Serialize for Inner<'_, T> {
    #[inline]
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(Packing(serializer))
    }
}

/// Bytes, in the place where serde would write a list.
struct Bytes<'a>(&'a [u8]);

impl Serialize for Bytes<'_> {
    #[inline]
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.0)
    }
}

/// Values with no others in them.
macro_rules! plain {
    ($($method:ident($($name:ident: $type:ty),*);)*) => { $(
        #[inline]
        fn $method(self, $($name: $type),*) -> Result<S::Ok, S::Error> {
            self.0.$method($($name),*)
        }
    )* };
}

/// Values with one other in them.
macro_rules! around {
    ($($method:ident($($name:ident: $type:ty),*);)*) => { $(
        #[inline]
        fn $method<T: Serialize + ?Sized>(self, $($name: $type,)* value: &T) -> Result<S::Ok, S::Error> {
            self.0.$method($($name,)* &Inner(value))
        }
    )* };
}

/// Values with several others in them.
macro_rules! open {
    ($($method:ident($($name:ident: $type:ty),*) $compound:ident;)*) => { $(
        #[inline]
        fn $method(self, $($name: $type),*) -> Result<Packing<S::$compound>, S::Error> {
            self.0.$method($($name),*).map(Packing)
        }
    )* };
}

impl<S: Serializer> Serializer for Packing<S> {
    type Ok = S::Ok;
    type Error = S::Error;
    type SerializeSeq = Packing<S::SerializeSeq>;
    type SerializeTuple = Packing<S::SerializeTuple>;
    type SerializeTupleStruct = Packing<S::SerializeTupleStruct>;
    type SerializeTupleVariant = Packing<S::SerializeTupleVariant>;
    type SerializeMap = Packing<S::SerializeMap>;
    type SerializeStruct = Packing<S::SerializeStruct>;
    type SerializeStructVariant = Packing<S::SerializeStructVariant>;

    plain! {
        serialize_bool(value: bool); serialize_i8(value: i8); serialize_i16(value: i16); serialize_i32(value: i32);
        serialize_i64(value: i64); serialize_i128(value: i128); serialize_u8(value: u8); serialize_u16(value: u16);
        serialize_u32(value: u32); serialize_u64(value: u64); serialize_u128(value: u128); serialize_f32(value: f32);
        serialize_f64(value: f64); serialize_char(value: char); serialize_str(value: &str); serialize_bytes(value: &[u8]);
        serialize_none(); serialize_unit(); serialize_unit_struct(name: &'static str);
        serialize_unit_variant(name: &'static str, index: u32, variant: &'static str);
    }

    around! {
        serialize_some();
        serialize_newtype_struct(name: &'static str);
        serialize_newtype_variant(name: &'static str, index: u32, variant: &'static str);
    }

    open! {
        serialize_seq(len: Option<usize>) SerializeSeq;
        serialize_tuple(len: usize) SerializeTuple;
        serialize_tuple_struct(name: &'static str, len: usize) SerializeTupleStruct;
        serialize_tuple_variant(name: &'static str, index: u32, variant: &'static str, len: usize) SerializeTupleVariant;
        serialize_map(len: Option<usize>) SerializeMap;
        serialize_struct(name: &'static str, len: usize) SerializeStruct;
        serialize_struct_variant(name: &'static str, index: u32, variant: &'static str, len: usize)
            SerializeStructVariant;
    }

    #[inline]
    fn collect_seq<I>(self, list: I) -> Result<S::Ok, S::Error>
    where
        I: IntoIterator,
        I::Item: Serialize,
    {
        if let Some(bytes) = bytes_of(&list) {
            return self.0.serialize_newtype_struct(MSGPACK_EXT_STRUCT_NAME, &(TAG, Bytes(bytes)));
        }
        let list = list.into_iter();
        // As serde's own implementation does.
        let len = match list.size_hint() {
            (least, Some(most)) if least == most => Some(least),
            _ => None,
        };
        let mut open = self.serialize_seq(len)?;
        for element in list {
            open.serialize_element(&element)?;
        }
        SerializeSeq::end(open)
    }

    #[inline]
    fn collect_str<T: fmt::Display + ?Sized>(self, value: &T) -> Result<S::Ok, S::Error> {
        self.0.collect_str(value)
    }

    #[inline]
    fn is_human_readable(&self) -> bool {
        self.0.is_human_readable()
    }
}

macro_rules! compound {
    ($($trait:ident { $($method:ident($($key:ident: $type:ty)?);)+ })*) => { $(
        impl<C: $trait> $trait for Packing<C> {
            type Ok = C::Ok;
            type Error = C::Error;

            $(
                #[inline]
                fn $method<T: Serialize + ?Sized>(&mut self, $($key: $type,)? value: &T) -> Result<(), C::Error> {
                    self.0.$method($($key,)? &Inner(value))
                }
            )+

            #[inline]
            fn end(self) -> Result<C::Ok, C::Error> {
                self.0.end()
            }
        }
    )* };
}

compound! {
    SerializeSeq { serialize_element(); }
    SerializeTuple { serialize_element(); }
    SerializeTupleStruct { serialize_field(); }
    SerializeTupleVariant { serialize_field(); }
    SerializeMap { serialize_key(); serialize_value(); }
    SerializeStruct { serialize_field(name: &'static str); }
    SerializeStructVariant { serialize_field(name: &'static str); }
}
