//! Makes the canonical text of a type, by the definitions of `tensorpost-core`: this module builds their
//! tree.

use tensorpost_core::limits::MAX_SCHEMA_TYPES;
use tensorpost_core::message::portable::{
    Body, Field as WireField, Interface, Shape, Variant as WireVariant,
};

use crate::plan::{Class, Field, Node, Plan, Scalar, Style};

/// A walk through a type and the types inside it, as `Describer` of the core does it.
struct Walk<'a> {
    plan: &'a Plan,
    /// The classes and unions that are being described, from the outermost on.
    open: Vec<usize>,
    types: usize,
}

impl Plan {
    pub(crate) fn shape(&self) -> Result<Shape, String> {
        Walk { plan: self, open: Vec::new(), types: 0 }.of(self.root)
    }

    pub(crate) fn message(&self, message: String, reply: &Plan) -> Result<Interface, String> {
        Ok(Interface { message, body: self.shape()?, reply: reply.shape()? })
    }
}

/// Returns a placeholder for a type that is being described. No text nests as many types as its number says.
fn stand_in(at: usize) -> Shape {
    Shape::Outer(u64::MAX - at as u64)
}

impl Walk<'_> {
    fn of(&mut self, at: usize) -> Result<Shape, String> {
        self.types += 1;
        if self.types > MAX_SCHEMA_TYPES {
            return Err(format!(
                "the schema of {} holds more than {MAX_SCHEMA_TYPES} types; send parts of it as messages of their own",
                self.plan.name
            ));
        }
        let plan = self.plan;
        Ok(match &plan.nodes[at] {
            Node::Scalar(scalar) => scalar.shape(),
            Node::Tensor(asked, _) => Shape::Tensor(asked.shape.clone()),
            Node::Address(message, body, reply) => Shape::Address(Box::new(Interface {
                message: message.clone(),
                body: self.of(*body)?,
                reply: self.of(*reply)?,
            })),
            Node::Option(inner) => Shape::Option(Box::new(self.of(*inner)?)),
            Node::List(inner) => Shape::List(Box::new(self.of(*inner)?)),
            Node::Set(inner) => Shape::Set(Box::new(self.of(*inner)?)),
            Node::Map(key, value) => Shape::Map(Box::new(self.of(*key)?), Box::new(self.of(*value)?)),
            Node::Tuple(inner) => {
                Shape::Tuple(inner.iter().map(|inner| self.of(*inner)).collect::<Result<_, _>>()?)
            }
            Node::Array(inner, length) => Shape::Array(Box::new(self.of(*inner)?), *length),
            Node::Members(members) => Shape::Enum {
                repr: tensorpost_core::message::portable::Repr::External,
                variants: members.iter().map(|(name, _)| WireVariant::new(name, Body::Unit)).collect(),
            },
            Node::Struct(_) | Node::Enum(..) => return self.named(at),
        })
    }

    fn named(&mut self, at: usize) -> Result<Shape, String> {
        if self.open.contains(&at) {
            return Ok(stand_in(at));
        }
        self.open.push(at);
        let plan = self.plan;
        let shape = match &plan.nodes[at] {
            Node::Struct(class) => match self.body(class)? {
                Body::Unit => Shape::Tuple(Vec::new()),
                Body::Newtype(shape) => shape,
                Body::Tuple(shapes) => Shape::Tuple(shapes),
                Body::Struct(fields) => Shape::Struct(fields),
            },
            Node::Enum(repr, variants) => {
                let mut described = Vec::with_capacity(variants.len());
                for variant in variants {
                    described.push(WireVariant::new(&variant.name, self.body(&variant.class)?));
                }
                Shape::Enum { repr: repr.clone(), variants: described }
            }
            _ => unreachable!("only classes and unions hold themselves"),
        };
        self.open.pop();
        Ok(shape.closed(&stand_in(at)))
    }

    fn body(&mut self, class: &Class) -> Result<Body, String> {
        let mut shapes = Vec::with_capacity(class.fields.len());
        for field in &class.fields {
            shapes.push(self.of(field.node)?);
        }
        let named = |(field, shape): (&Field, Shape)| WireField::new(&field.name, field.optional, shape);
        Ok(match class.style {
            Style::Unit => Body::Unit,
            Style::Newtype => Body::Newtype(shapes.remove(0)),
            Style::Tuple => Body::Tuple(shapes),
            Style::Struct => Body::Struct(class.fields.iter().zip(shapes).map(named).collect()),
        })
    }
}

impl Scalar {
    fn shape(self) -> Shape {
        match self {
            Scalar::Nil => Shape::Nil,
            Scalar::Bool => Shape::Bool,
            Scalar::Int(false, 8) => Shape::U8,
            Scalar::Int(false, 16) => Shape::U16,
            Scalar::Int(false, 32) => Shape::U32,
            Scalar::Int(false, _) => Shape::U64,
            Scalar::Int(true, 8) => Shape::I8,
            Scalar::Int(true, 16) => Shape::I16,
            Scalar::Int(true, 32) => Shape::I32,
            Scalar::Int(true, _) => Shape::I64,
            Scalar::F32 => Shape::F32,
            Scalar::F64 => Shape::F64,
            Scalar::Char => Shape::Char,
            Scalar::Str => Shape::Str,
            Scalar::Bytes => Shape::Bytes,
        }
    }
}
