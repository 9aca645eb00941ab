//! The form of a type on the wire, as a tree and as its canonical text.
//!
//! The text is JSON without white space, with the keys in the order of the fields here. A text from another
//! process is read by the same definitions; serde_json bounds how deep it may be nested.

use std::any::TypeId;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::super::{TensorSpec, fnv1a};

/// The version of the text's form, which is in it.
const VERSION: u32 = 1;

/// The form of a value on the wire.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "scalars are named after Rust's, and PORTABLE.md lists them")]
pub enum Shape {
    /// MessagePack's nil.
    Nil,
    Bool,
    U8,
    U16,
    U32,
    U64,
    I8,
    I16,
    I32,
    I64,
    F32,
    F64,
    /// A text of one character.
    Char,
    Str,
    /// MessagePack's binary form.
    Bytes,
    Tensor(TensorShape),
    /// One part of a tensor with several writers.
    TensorPart(TensorShape),
    /// Nil, or the value.
    Option(Box<Shape>),
    List(Box<Shape>),
    /// A list without duplicates.
    Set(Box<Shape>),
    Map(Box<Shape>, Box<Shape>),
    /// A list with a type for each position.
    Tuple(Vec<Shape>),
    /// A list of that length.
    Array(Box<Shape>, u64),
    /// A map from names.
    Struct(Vec<Field>),
    Enum {
        repr: Repr,
        variants: Vec<Variant>,
    },
    /// The address of an actor that takes messages of a type.
    Address(Box<Interface>),
    /// A shape that may hold itself, as [`Outer`](Self::Outer).
    Recursive(Box<Shape>),
    /// The surrounding `recursive` itself, after this many between them were skipped.
    Outer(u64),
    /// A type that is being described; it becomes [`Outer`](Self::Outer) once it is described.
    #[serde(skip)]
    Open(TypeId),
}

/// A field with a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields say it")]
pub struct Field {
    pub name: String,
    #[serde(rename = "type")]
    pub shape: Shape,
    /// Whether the field may be absent.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub optional: bool,
}

/// How the variant of an enum is encoded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Repr {
    /// The variant's name is the value, or the only key of a map.
    External,
    /// The variant's name is the field of this name.
    Internal(String),
    /// The variant's name is the field of the first name, and its content the second.
    Adjacent(String, String),
    /// The first variant that fits.
    Untagged,
}

/// A variant of an enum.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields say it")]
pub struct Variant {
    pub name: String,
    pub body: Body,
}

/// The content of a variant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "named after how they are written in Rust")]
pub enum Body {
    Unit,
    Newtype(Shape),
    Tuple(Vec<Shape>),
    Struct(Vec<Field>),
}

/// The requirements of a field on its tensors. `None` allows anything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorShape {
    /// The type of the elements.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dtype: Option<String>,
    /// The extent of each axis, `None` for any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shape: Option<Vec<Option<u64>>>,
    /// The kind of device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
}

/// A message, as its sender and its receiver agree on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields say it")]
pub struct Interface {
    pub message: String,
    pub body: Shape,
    pub reply: Shape,
}

/// As [`Interface`], with the version of the text's form.
#[derive(Serialize)]
struct Text<'a> {
    schema: u32,
    message: &'a str,
    body: &'a Shape,
    reply: &'a Shape,
}

impl Interface {
    /// Returns the canonical text.
    pub fn text(&self) -> String {
        let Interface { message, body, reply } = self;
        written(&Text { schema: VERSION, message, body, reply })
    }

    /// Returns the message's key.
    pub fn key(&self) -> u64 {
        fnv1a([self.text().as_bytes()])
    }
}

fn written(value: &impl Serialize) -> String {
    // The value has only strings, numbers and lists, and is written into memory, so JSON can hold all of it.
    // No caller ever gets an open type.
    serde_json::to_string(value).unwrap_or_else(|error| unreachable!("a schema is not JSON: {error}"))
}

impl TensorShape {
    pub(super) fn of(spec: Option<&TensorSpec>) -> Self {
        let Some(TensorSpec { dtype, shape, device }) = spec else { return TensorShape::default() };
        let extents =
            |shape: &[Option<usize>]| shape.iter().map(|axis| axis.map(|size| size as u64)).collect();
        TensorShape {
            dtype: dtype.map(|dtype| dtype.name().to_owned()),
            shape: shape.map(extents),
            device: device.map(|device| device.to_string()),
        }
    }
}

/// For the derive, whose code then needs no macros and no paths of `alloc`.
impl Field {
    /// Makes a field of that name.
    pub fn new(name: &str, optional: bool, shape: Shape) -> Self {
        Field { name: name.to_owned(), shape, optional }
    }
}

impl Repr {
    /// The variant is named by a field.
    pub fn internal(tag: &str) -> Self {
        Repr::Internal(tag.to_owned())
    }

    /// The variant is named by a field beside another.
    pub fn adjacent(tag: &str, content: &str) -> Self {
        Repr::Adjacent(tag.to_owned(), content.to_owned())
    }
}

impl Body {
    /// Makes a body with these fields.
    pub fn structure<const N: usize>(fields: [Field; N]) -> Self {
        Body::Struct(fields.into())
    }

    /// Makes a body with these values, without names.
    pub fn tuple<const N: usize>(shapes: [Shape; N]) -> Self {
        Body::Tuple(shapes.into())
    }
}

impl Variant {
    /// Makes a variant of that name.
    pub fn new(name: &str, body: Body) -> Self {
        Variant { name: name.to_owned(), body }
    }
}

impl Shape {
    /// Makes a struct with these fields.
    pub fn structure<const N: usize>(fields: [Field; N]) -> Self {
        Shape::Struct(fields.into())
    }

    /// Makes a struct with these values, without names.
    pub fn tuple<const N: usize>(shapes: [Shape; N]) -> Self {
        Shape::Tuple(shapes.into())
    }

    /// Makes an enum.
    pub fn variants<const N: usize>(repr: Repr, variants: [Variant; N]) -> Self {
        Shape::Enum { repr, variants: variants.into() }
    }

    /// Returns the canonical text.
    pub fn text(&self) -> String {
        written(self)
    }

    /// Returns the shape of a type with this body. Wherever `open`, which stands for the type itself, is in
    /// it, it becomes [`Outer`](Self::Outer). A type that holds itself becomes
    /// [`Recursive`](Self::Recursive).
    pub fn closed(mut self, open: &Shape) -> Shape {
        if self.close(open, 0) { Shape::Recursive(Box::new(self)) } else { self }
    }

    /// Replaces `open` by [`Outer`](Self::Outer), below `inside` other shapes that hold themselves. Returns
    /// whether there was any.
    fn close(&mut self, open: &Shape, inside: u64) -> bool {
        if self == open {
            *self = Shape::Outer(inside);
            return true;
        }
        let inside = inside + u64::from(matches!(self, Shape::Recursive(_)));
        let mut any = false;
        self.each(&mut |shape| any |= shape.close(open, inside));
        any
    }

    /// Calls `each` for the shapes directly in this one.
    fn each(&mut self, each: &mut dyn FnMut(&mut Shape)) {
        match self {
            Shape::Option(inner)
            | Shape::List(inner)
            | Shape::Set(inner)
            | Shape::Array(inner, _)
            | Shape::Recursive(inner) => each(inner),
            Shape::Map(key, value) => {
                each(key);
                each(value);
            }
            Shape::Tuple(shapes) => shapes.iter_mut().for_each(each),
            Shape::Struct(fields) => fields.iter_mut().for_each(|field| each(&mut field.shape)),
            Shape::Enum { variants, .. } => {
                for variant in variants {
                    match &mut variant.body {
                        Body::Unit => {}
                        Body::Newtype(shape) => each(shape),
                        Body::Tuple(shapes) => shapes.iter_mut().for_each(&mut *each),
                        Body::Struct(fields) => {
                            fields.iter_mut().for_each(|field| each(&mut field.shape));
                        }
                    }
                }
            }
            Shape::Address(interface) => {
                each(&mut interface.body);
                each(&mut interface.reply);
            }
            _ => {}
        }
    }
}

/// Writes for people: short, and as one would write it.
impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Shape::Option(inner) => write!(f, "option<{inner}>"),
            Shape::List(inner) => write!(f, "list<{inner}>"),
            Shape::Set(inner) => write!(f, "set<{inner}>"),
            Shape::Map(key, value) => write!(f, "map<{key}, {value}>"),
            Shape::Tuple(shapes) => {
                f.write_str("(")?;
                separated(f, shapes)?;
                f.write_str(")")
            }
            Shape::Array(inner, length) => write!(f, "[{inner}; {length}]"),
            Shape::Struct(fields) => {
                f.write_str("{ ")?;
                separated(f, fields)?;
                f.write_str(" }")
            }
            Shape::Enum { variants, .. } => {
                f.write_str("one of ")?;
                separated(f, variants)
            }
            Shape::Tensor(tensor) => write!(f, "tensor{tensor}"),
            Shape::TensorPart(tensor) => write!(f, "tensor part{tensor}"),
            Shape::Address(interface) => write!(f, "address<{}>", interface.message),
            Shape::Recursive(inner) => inner.fmt(f),
            Shape::Outer(_) | Shape::Open(_) => f.write_str("itself"),
            scalar => f.write_str(scalar.text().trim_matches('"')),
        }
    }
}

fn separated<T: fmt::Display>(f: &mut fmt::Formatter<'_>, all: &[T]) -> fmt::Result {
    for (index, one) in all.iter().enumerate() {
        write!(f, "{}{one}", if index == 0 { "" } else { ", " })?;
    }
    Ok(())
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}: {}", self.name, if self.optional { "?" } else { "" }, self.shape)
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        match &self.body {
            Body::Unit => Ok(()),
            Body::Newtype(shape) => write!(f, "({shape})"),
            Body::Tuple(shapes) => {
                f.write_str("(")?;
                separated(f, shapes)?;
                f.write_str(")")
            }
            Body::Struct(fields) => {
                f.write_str(" { ")?;
                separated(f, fields)?;
                f.write_str(" }")
            }
        }
    }
}

impl fmt::Display for TensorShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let axis = |axis: &Option<u64>| axis.map_or_else(|| "_".to_owned(), |size| size.to_string());
        let shape = |shape: &Vec<Option<u64>>| {
            format!("shape [{}]", shape.iter().map(axis).collect::<Vec<_>>().join(", "))
        };
        let asked = [self.dtype.clone(), self.shape.as_ref().map(shape), self.device.clone()];
        let asked: Vec<String> = asked.into_iter().flatten().collect();
        if asked.is_empty() { Ok(()) } else { write!(f, " of {}", asked.join(", ")) }
    }
}

impl fmt::Display for Repr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Repr::External => f.write_str("the name of the variant"),
            Repr::Internal(tag) => write!(f, "the field `{tag}`"),
            Repr::Adjacent(tag, content) => write!(f, "the field `{tag}` beside `{content}`"),
            Repr::Untagged => f.write_str("nothing (untagged)"),
        }
    }
}
