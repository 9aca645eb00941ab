//! Types that no program defines: makes a shape from a seed, and a value of it, which serde writes as it
//! writes values of derived types.

use serde::Serialize;
use serde::ser::{
    SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
    SerializeTupleVariant, Serializer,
};
use tensorpost_core::message::portable::{Body, Field, Repr, Shape, Variant};

use crate::random::{Make, Random};

/// A value that knows how a derive would write it.
pub(crate) enum Value {
    Nil,
    Bool(bool),
    Unsigned(u64),
    Signed(i64),
    F32(f32),
    F64(f64),
    Text(String),
    Bytes(Vec<u8>),
    Option(Option<Box<Value>>),
    List(Vec<Value>),
    Tuple(Vec<Value>),
    Map(Vec<(Value, Value)>),
    Struct(Vec<(&'static str, Value)>),
    Unit(u32, &'static str),
    Newtype(u32, &'static str, Box<Value>),
    TupleVariant(u32, &'static str, Vec<Value>),
    StructVariant(u32, &'static str, Vec<(&'static str, Value)>),
}

/// A shape with a struct on the outside, as messages have it.
pub(crate) fn message(random: &mut Random<'_>) -> Shape {
    Shape::Struct(fields(random, 4))
}

fn shape(random: &mut Random<'_>, depth: u32) -> Shape {
    let boxed = |random: &mut Random<'_>| Box::new(shape(random, depth - 1));
    match random.below(if depth == 0 { 15 } else { 23 }) {
        0 => Shape::Nil,
        1 => Shape::Bool,
        2 => Shape::U8,
        3 => Shape::U16,
        4 => Shape::U32,
        5 => Shape::U64,
        6 => Shape::I8,
        7 => Shape::I16,
        8 => Shape::I32,
        9 => Shape::I64,
        10 => Shape::F32,
        11 => Shape::F64,
        12 => Shape::Char,
        13 => Shape::Str,
        14 => Shape::Bytes,
        15 => Shape::Option(boxed(random)),
        16 => Shape::List(boxed(random)),
        17 => Shape::Map(Box::new(key(random)), boxed(random)),
        18 => Shape::Tuple((0..random.below(4)).map(|_| shape(random, depth - 1)).collect()),
        19 => Shape::Array(boxed(random), random.below(4)),
        20 => Shape::Struct(fields(random, depth - 1)),
        21 => Shape::Set(Box::new(key(random))),
        _ => {
            let variants = (0..1 + random.below(4)).map(|index| {
                let body = match random.below(4) {
                    0 => Body::Unit,
                    1 => Body::Newtype(shape(random, depth - 1)),
                    // A single one would be a newtype.
                    2 => Body::Tuple(vec![shape(random, depth - 1), shape(random, depth - 1)]),
                    _ => Body::Struct(fields(random, depth - 1)),
                };
                Variant::new(&format!("V{index}"), body)
            });
            let variants = variants.collect();
            let repr = if random.below(2) == 0 { Repr::External } else { Repr::adjacent("tag", "content") };
            Shape::Enum { repr, variants }
        }
    }
}

fn key(random: &mut Random<'_>) -> Shape {
    [Shape::Str, Shape::U8, Shape::I64, Shape::Bool, Shape::U32][random.below(5) as usize].clone()
}

fn fields(random: &mut Random<'_>, depth: u32) -> Vec<Field> {
    let few = random.below(4);
    (0..few).map(|index| Field::new(&format!("f{index}"), false, shape(random, depth))).collect()
}

fn name(name: &str) -> &'static str {
    // Serde needs static names; this program makes some hundred in its life.
    Box::leak(name.to_owned().into_boxed_str())
}

pub(crate) fn value(shape: &Shape, random: &mut Random<'_>) -> Value {
    let all =
        |shapes: &[Shape], random: &mut Random<'_>| shapes.iter().map(|one| value(one, random)).collect();
    let named = |fields: &[Field], random: &mut Random<'_>| {
        fields.iter().map(|field| (name(&field.name), value(&field.shape, random))).collect()
    };
    match shape {
        Shape::Nil => Value::Nil,
        Shape::Bool => Value::Bool(bool::make(random)),
        Shape::U8 => Value::Unsigned(u8::make(random).into()),
        Shape::U16 => Value::Unsigned(u16::make(random).into()),
        Shape::U32 => Value::Unsigned(u32::make(random).into()),
        Shape::U64 => Value::Unsigned(u64::make(random)),
        Shape::I8 => Value::Signed(i8::make(random).into()),
        Shape::I16 => Value::Signed(i16::make(random).into()),
        Shape::I32 => Value::Signed(i32::make(random).into()),
        Shape::I64 => Value::Signed(i64::make(random)),
        Shape::F32 => Value::F32(f32::make(random)),
        Shape::F64 => Value::F64(f64::make(random)),
        Shape::Char => Value::Text("€".to_owned()),
        Shape::Str => Value::Text(random.text()),
        Shape::Bytes => Value::Bytes(random.text().into_bytes()),
        Shape::Option(inner) => {
            // Some(nil) is written as nil too.
            let some = random.below(3) > 0 && !matches!(**inner, Shape::Nil | Shape::Option(_));
            Value::Option(some.then(|| Box::new(value(inner, random))))
        }
        Shape::List(inner) => Value::List((0..random.count()).map(|_| value(inner, random)).collect()),
        // At most one item, so that both halves need not agree on an order.
        Shape::Set(inner) => Value::List((0..random.below(2)).map(|_| value(inner, random)).collect()),
        Shape::Map(key, inner) => {
            Value::Map((0..random.below(2)).map(|_| (value(key, random), value(inner, random))).collect())
        }
        Shape::Tuple(shapes) => Value::Tuple(all(shapes, random)),
        Shape::Array(inner, length) => Value::Tuple((0..*length).map(|_| value(inner, random)).collect()),
        Shape::Struct(fields) => Value::Struct(named(fields, random)),
        Shape::Enum { repr, variants } => {
            let index = random.below(variants.len() as u64) as u32;
            let Variant { name: its, body } = &variants[index as usize];
            let its = name(its);
            if let Repr::Adjacent(tag, content) = repr {
                let mut told = vec![(name(tag), Value::Unit(index, its))];
                let content = name(content);
                match body {
                    Body::Unit => {}
                    Body::Newtype(inner) => told.push((content, value(inner, random))),
                    Body::Tuple(shapes) => told.push((content, Value::Tuple(all(shapes, random)))),
                    Body::Struct(fields) => told.push((content, Value::Struct(named(fields, random)))),
                }
                return Value::Struct(told);
            }
            match body {
                Body::Unit => Value::Unit(index, its),
                Body::Newtype(inner) => Value::Newtype(index, its, Box::new(value(inner, random))),
                Body::Tuple(shapes) => Value::TupleVariant(index, its, all(shapes, random)),
                Body::Struct(fields) => Value::StructVariant(index, its, named(fields, random)),
            }
        }
        other => unreachable!("no seed makes {other}"),
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Value::Nil => to.serialize_unit(),
            Value::Bool(value) => to.serialize_bool(*value),
            Value::Unsigned(value) => to.serialize_u64(*value),
            Value::Signed(value) => to.serialize_i64(*value),
            Value::F32(value) => to.serialize_f32(*value),
            Value::F64(value) => to.serialize_f64(*value),
            Value::Text(value) => to.serialize_str(value),
            Value::Bytes(value) => to.serialize_bytes(value),
            Value::Option(None) => to.serialize_none(),
            Value::Option(Some(value)) => to.serialize_some(value),
            Value::List(values) => {
                let mut seq = to.serialize_seq(Some(values.len()))?;
                values.iter().try_for_each(|value| seq.serialize_element(value))?;
                seq.end()
            }
            Value::Tuple(values) => {
                let mut tuple = to.serialize_tuple(values.len())?;
                values.iter().try_for_each(|value| tuple.serialize_element(value))?;
                tuple.end()
            }
            Value::Map(values) => {
                let mut map = to.serialize_map(Some(values.len()))?;
                values.iter().try_for_each(|(key, value)| map.serialize_entry(key, value))?;
                map.end()
            }
            Value::Struct(fields) => {
                let mut form = to.serialize_struct("", fields.len())?;
                fields.iter().try_for_each(|(name, value)| form.serialize_field(name, value))?;
                form.end()
            }
            Value::Unit(index, name) => to.serialize_unit_variant("", *index, name),
            Value::Newtype(index, name, value) => to.serialize_newtype_variant("", *index, name, value),
            Value::TupleVariant(index, name, values) => {
                let mut form = to.serialize_tuple_variant("", *index, name, values.len())?;
                values.iter().try_for_each(|value| form.serialize_field(value))?;
                form.end()
            }
            Value::StructVariant(index, name, fields) => {
                let mut form = to.serialize_struct_variant("", *index, name, fields.len())?;
                fields.iter().try_for_each(|(name, value)| form.serialize_field(name, value))?;
                form.end()
            }
        }
    }
}
