//! The plan of a type of which only the canonical form is known. A topic, which loads no classes, reads by it
//! the values that it keeps, to check them. The objects that are read have no class, and are dropped at once.
//!
//! The plan takes the values that the plan of the classes takes, and the tensors are not copied for fields
//! that their receiver owns.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use tensorpost_core::message::portable::{Body, Field as WireField, Repr, Shape, Variant as WireVariant};

use crate::imports::Asked;
use crate::plan::{Class, Field, Node, Plan, Scalar, Style, Variant};

/// The object that is made of any struct.
#[pyclass(frozen, module = "tensorpost._native")]
struct Neutral;

#[pymethods]
impl Neutral {
    #[new]
    #[pyo3(signature = (**_fields))]
    fn new(_fields: Option<&Bound<'_, PyDict>>) -> Self {
        Neutral
    }
}

/// A field of a struct or of a variant: its name, its shape, and whether it may be absent.
type Part<'s> = (String, &'s Shape, bool);

struct Builder<'py> {
    py: Python<'py>,
    nodes: Vec<Node>,
    /// The places of the surrounding types that hold themselves, from the outermost on.
    open: Vec<usize>,
}

impl Plan {
    /// Makes the plan of a type of this form.
    ///
    /// # Errors
    /// There is something in it that Python does not read.
    pub(crate) fn of_shape(py: Python<'_>, name: String, shape: &Shape) -> Result<Self, String> {
        let mut builder = Builder { py, nodes: Vec::new(), open: Vec::new() };
        let root = builder.add(shape)?;
        Ok(Plan { name, nodes: builder.nodes, root })
    }
}

impl Builder<'_> {
    /// Adds a type with the types inside it. Returns its place.
    fn add(&mut self, shape: &Shape) -> Result<usize, String> {
        if let Shape::Outer(skipped) = shape {
            let skipped = usize::try_from(*skipped).unwrap_or(usize::MAX);
            let known = self.open.iter().rev().nth(skipped).copied();
            return known.ok_or_else(|| "its form refers to a type that is not around it".to_owned());
        }
        let (at, around) = (self.nodes.len(), self.open.len());
        // Replaced below: the types inside it may refer to its place.
        self.nodes.push(Node::Scalar(Scalar::Nil));
        let mut shape = shape;
        while let Shape::Recursive(inner) = shape {
            self.open.push(at);
            shape = inner;
        }
        let node = self.node(shape)?;
        self.open.truncate(around);
        self.nodes[at] = node;
        Ok(at)
    }

    fn node(&mut self, shape: &Shape) -> Result<Node, String> {
        Ok(match shape {
            Shape::Tensor(asked) => Node::Tensor(Asked::new(asked.clone()), false),
            Shape::Option(inner) => Node::Option(self.add(inner)?),
            Shape::List(inner) => Node::List(self.add(inner)?),
            Shape::Set(inner) => Node::Set(self.add(inner)?),
            Shape::Map(key, value) => Node::Map(self.add(key)?, self.add(value)?),
            Shape::Tuple(inner) => {
                Node::Tuple(inner.iter().map(|inner| self.add(inner)).collect::<Result<_, _>>()?)
            }
            Shape::Array(inner, length) => Node::Array(self.add(inner)?, *length),
            Shape::Struct(fields) => Node::Struct(self.class("a struct", Style::Struct, parts(fields))?),
            Shape::Enum { repr: Repr::External, variants } if variants.iter().all(is_unit) => {
                // Members of an `enum.Enum`, which take no memory.
                let member = |variant: &WireVariant| (variant.name.clone(), self.py.None());
                Node::Members(variants.iter().map(member).collect())
            }
            Shape::Enum { repr, variants } => {
                let mut classes = Vec::with_capacity(variants.len());
                for WireVariant { name, body } in variants {
                    classes.push(Variant { name: name.clone(), class: self.variant(name, body)? });
                }
                Node::Enum(repr.clone(), classes)
            }
            Shape::Address(to) => {
                Node::Address(to.message.clone(), self.add(&to.body)?, self.add(&to.reply)?)
            }
            // It is shown by its name, and what is no scalar is none of Python's.
            scalar => Node::Scalar(Scalar::read(&scalar.to_string()).map_err(|error| error.to_string())?),
        })
    }

    fn variant(&mut self, name: &str, body: &Body) -> Result<Class, String> {
        let place = |(index, shape)| (usize::to_string(&index), shape, false);
        match body {
            Body::Unit => self.class(name, Style::Unit, std::iter::empty()),
            Body::Newtype(shape) => self.class(name, Style::Newtype, std::iter::once((0, shape)).map(place)),
            Body::Tuple(shapes) => self.class(name, Style::Tuple, shapes.iter().enumerate().map(place)),
            Body::Struct(fields) => self.class(name, Style::Struct, parts(fields)),
        }
    }

    fn class<'s>(
        &mut self,
        name: &str,
        style: Style,
        parts: impl Iterator<Item = Part<'s>>,
    ) -> Result<Class, String> {
        let py = self.py;
        let mut fields = Vec::new();
        for (name, shape, optional) in parts {
            let (attribute, node) = (PyString::new(py, &name).unbind(), self.add(shape)?);
            fields.push(Field { name, attribute, node, optional, omitted: None });
        }
        let class = py.get_type::<Neutral>().unbind();
        Ok(Class { class, name: name.to_owned(), style, fields, plain: false })
    }
}

fn is_unit(variant: &WireVariant) -> bool {
    variant.body == Body::Unit
}

fn parts(fields: &[WireField]) -> impl Iterator<Item = Part<'_>> {
    fields.iter().map(|field| (field.name.clone(), &field.shape, field.optional))
}
