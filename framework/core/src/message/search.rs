//! A serialiser that writes nothing. It walks through a value to find its tensors, see
//! [`scope`](super::scope).
//!
//! After a death, each message that stays in its process is searched for lost data (DEATH-3), and so is its
//! reply. Any output would be thrown away, so nothing is written, and the search ends at its first find.

use std::fmt;

use serde::ser::{
    Error, Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
    SerializeTupleStruct, SerializeTupleVariant, Serializer,
};

/// See the module.
#[derive(Clone, Copy)]
pub(super) struct Search;

/// The error that ends the serialising before the value ends.
#[derive(Debug)]
pub(super) struct Ended;

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the value cannot be serialised, or a search in it is over")
    }
}

impl std::error::Error for Ended {}

impl Error for Ended {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Ended
    }
}

/// Values with no others in them.
macro_rules! plain {
    ($($method:ident($($type:ty),*);)*) => { $(
        #[inline]
        fn $method(self, $(_: $type),*) -> Result<(), Ended> {
            Ok(())
        }
    )* };
}

/// Values with one other in them.
macro_rules! around {
    ($($method:ident($($type:ty),*);)*) => { $(
        #[inline]
        fn $method<T: Serialize + ?Sized>(self, $(_: $type,)* value: &T) -> Result<(), Ended> {
            value.serialize(self)
        }
    )* };
}

/// Values with several others in them.
macro_rules! open {
    ($($method:ident($($type:ty),*);)*) => { $(
        #[inline]
        fn $method(self, $(_: $type),*) -> Result<Search, Ended> {
            Ok(self)
        }
    )* };
}

impl Serializer for Search {
    type Ok = ();
    type Error = Ended;
    type SerializeSeq = Search;
    type SerializeTuple = Search;
    type SerializeTupleStruct = Search;
    type SerializeTupleVariant = Search;
    type SerializeMap = Search;
    type SerializeStruct = Search;
    type SerializeStructVariant = Search;

    plain! {
        serialize_bool(bool); serialize_i8(i8); serialize_i16(i16); serialize_i32(i32); serialize_i64(i64);
        serialize_i128(i128); serialize_u8(u8); serialize_u16(u16); serialize_u32(u32); serialize_u64(u64);
        serialize_u128(u128); serialize_f32(f32); serialize_f64(f64); serialize_char(char); serialize_str(&str);
        serialize_bytes(&[u8]); serialize_none(); serialize_unit(); serialize_unit_struct(&'static str);
        serialize_unit_variant(&'static str, u32, &'static str);
    }

    around! {
        serialize_some(); serialize_newtype_struct(&'static str);
        serialize_newtype_variant(&'static str, u32, &'static str);
    }

    open! {
        serialize_seq(Option<usize>); serialize_tuple(usize); serialize_tuple_struct(&'static str, usize);
        serialize_tuple_variant(&'static str, u32, &'static str, usize); serialize_map(Option<usize>);
        serialize_struct(&'static str, usize); serialize_struct_variant(&'static str, u32, &'static str, usize);
    }

    #[inline]
    fn collect_str<T: fmt::Display + ?Sized>(self, _: &T) -> Result<(), Ended> {
        Ok(())
    }

    // As in a frame.
    #[inline]
    fn is_human_readable(&self) -> bool {
        false
    }
}

/// Values with others in them, which are searched.
macro_rules! compound {
    ($($trait:ident { $($method:ident($($key:ty)?);)+ })*) => { $(
        impl $trait for Search {
            type Ok = ();
            type Error = Ended;

            $(
                #[inline]
                fn $method<T: Serialize + ?Sized>(&mut self, $(_: $key,)? value: &T) -> Result<(), Ended> {
                    value.serialize(*self)
                }
            )+

            #[inline]
            fn end(self) -> Result<(), Ended> {
                Ok(())
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
    SerializeStruct { serialize_field(&'static str); }
    SerializeStructVariant { serialize_field(&'static str); }
}
