//! The forms of the standard library's types and of the tensors on the wire.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::marker::PhantomData;
use std::time::Duration;

use super::{Body, Describer, Field, Portable, Repr, Shape, Variant};
use crate::tensor::{Tensor, TensorPart};

macro_rules! scalars {
    ($($type:ty => $shape:ident),+ $(,)?) => {$(
        impl Portable for $type {
            fn describe(_: &mut Describer) -> Shape {
                Shape::$shape
            }
        }
    )+};
}

// Serde writes the two sizes with 64 bits.
scalars! {
    () => Nil, bool => Bool, char => Char, String => Str, str => Str,
    u8 => U8, u16 => U16, u32 => U32, u64 => U64, usize => U64,
    i8 => I8, i16 => I16, i32 => I32, i64 => I64, isize => I64,
    f32 => F32, f64 => F64,
}

impl Portable for Tensor {
    fn describe(describer: &mut Describer) -> Shape {
        Shape::Tensor(describer.tensor())
    }
}

impl Portable for TensorPart {
    fn describe(describer: &mut Describer) -> Shape {
        Shape::TensorPart(describer.tensor())
    }
}

macro_rules! containers {
    ($([$($generics:tt)*] $type:ty => $shape:ident;)+) => {$(
        impl<$($generics)*> Portable for $type {
            fn describe(describer: &mut Describer) -> Shape {
                Shape::$shape(Box::new(describer.of::<T>()))
            }
        }
    )+};
}

containers! {
    [T: Portable] Option<T> => Option;
    [T: Portable] Vec<T> => List;
    [T: Portable] VecDeque<T> => List;
    [T: Portable] [T] => List;
    [T: Portable] BTreeSet<T> => Set;
    [T: Portable, S: 'static] HashSet<T, S> => Set;
}

impl<T: Portable + ?Sized> Portable for Box<T> {
    fn describe(describer: &mut Describer) -> Shape {
        describer.of::<T>()
    }
}

impl<T: Portable, const N: usize> Portable for [T; N] {
    fn describe(describer: &mut Describer) -> Shape {
        Shape::Array(Box::new(describer.of::<T>()), N as u64)
    }
}

impl<K: Portable, V: Portable> Portable for BTreeMap<K, V> {
    fn describe(describer: &mut Describer) -> Shape {
        Shape::Map(Box::new(describer.of::<K>()), Box::new(describer.of::<V>()))
    }
}

impl<K: Portable, V: Portable, S: 'static> Portable for HashMap<K, V, S> {
    fn describe(describer: &mut Describer) -> Shape {
        Shape::Map(Box::new(describer.of::<K>()), Box::new(describer.of::<V>()))
    }
}

/// Serde writes it as an enum.
impl<T: Portable, E: Portable> Portable for Result<T, E> {
    fn describe(describer: &mut Describer) -> Shape {
        let ok = Variant::new("Ok", Body::Newtype(describer.of::<T>()));
        let err = Variant::new("Err", Body::Newtype(describer.of::<E>()));
        Shape::Enum { repr: Repr::External, variants: vec![ok, err] }
    }
}

/// Serde writes it as a struct of its two parts.
impl Portable for Duration {
    fn describe(_: &mut Describer) -> Shape {
        Shape::Struct(vec![Field::new("secs", false, Shape::U64), Field::new("nanos", false, Shape::U32)])
    }
}

/// Serde writes it as a struct with nothing in it.
impl<T: ?Sized + 'static> Portable for PhantomData<T> {
    fn describe(_: &mut Describer) -> Shape {
        Shape::Tuple(Vec::new())
    }
}

macro_rules! tuples {
    ($(($($type:ident),+))+) => {$(
        impl<$($type: Portable),+> Portable for ($($type,)+) {
            fn describe(describer: &mut Describer) -> Shape {
                Shape::Tuple(vec![$(describer.of::<$type>()),+])
            }
        }
    )+};
}

tuples! {
    (A)
    (A, B)
    (A, B, C)
    (A, B, C, D)
    (A, B, C, D, E)
    (A, B, C, D, E, F)
    (A, B, C, D, E, F, G)
    (A, B, C, D, E, F, G, H)
}

/// Types that `#[serde(with = "serde_bytes")]` writes as bytes.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not written as bytes",
    label = "`serde_bytes` makes bytes of Vec<u8>, Box<[u8]>, [u8; N] and options of them"
)]
pub trait PortableBytes {
    /// Returns the shape: bytes, or an option of bytes.
    fn as_bytes() -> Shape {
        Shape::Bytes
    }
}

impl PortableBytes for Vec<u8> {}
impl PortableBytes for Box<[u8]> {}
impl<const N: usize> PortableBytes for [u8; N] {}

impl<T: PortableBytes> PortableBytes for Option<T> {
    fn as_bytes() -> Shape {
        Shape::Option(Box::new(T::as_bytes()))
    }
}
