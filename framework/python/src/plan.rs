//! The type of a message, as Python has read its annotations: a list of nodes that refer to each other by
//! index, so that a type may hold itself.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString, PyTuple, PyType};
use tensorpost_core::message::portable::{Repr, TensorShape};

use crate::failure::exception;
use crate::imports::Asked;
use crate::tensor::PyTensor;
use crate::{decode, encode};

/// A value without other values inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scalar {
    Nil,
    Bool,
    /// Whether it is signed, and how many bits it has.
    Int(bool, u32),
    F32,
    F64,
    Char,
    Str,
    Bytes,
}

/// One type.
#[derive(Debug)]
pub(crate) enum Node {
    Scalar(Scalar),
    /// The dtype and shape that it must have, and whether its receiver owns it.
    Tensor(Asked, bool),
    Option(usize),
    /// The address of an actor, with the messages that it takes: the name, the type, and the reply's type.
    Address(String, usize, usize),
    List(usize),
    Set(usize),
    Map(usize, usize),
    Tuple(Vec<usize>),
    Array(usize, u64),
    Struct(Class),
    Enum(Repr, Vec<Variant>),
    /// Members of an `enum.Enum`, with their names.
    Members(Vec<(String, Py<PyAny>)>),
}

/// How the fields of a class are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    Unit,
    /// The one field alone.
    Newtype,
    /// A list.
    Tuple,
    /// A map from the names.
    Struct,
}

#[derive(Debug)]
pub(crate) struct Class {
    pub(crate) class: Py<PyType>,
    pub(crate) name: String,
    pub(crate) style: Style,
    pub(crate) fields: Vec<Field>,
    /// Whether an object can be made by setting its fields.
    pub(crate) plain: bool,
}

#[derive(Debug)]
pub(crate) struct Field {
    /// The name on the wire.
    pub(crate) name: String,
    /// The name in Python.
    pub(crate) attribute: Py<PyString>,
    pub(crate) node: usize,
    pub(crate) optional: bool,
    /// A value that is not written.
    pub(crate) omitted: Option<Py<PyAny>>,
}

#[derive(Debug)]
pub(crate) struct Variant {
    pub(crate) name: String,
    pub(crate) class: Class,
}

/// The type of a message, of a value in one, or of a reply, ready to be described, written and read.
#[pyclass(frozen, module = "tensorpost._native")]
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) name: String,
    pub(crate) nodes: Vec<Node>,
    pub(crate) root: usize,
}

#[pymethods]
impl Plan {
    /// `nodes` are tuples as `tensorpost._compile` makes them.
    #[new]
    fn new(name: String, nodes: &Bound<'_, PyList>, root: usize) -> PyResult<Self> {
        let count = nodes.len();
        let nodes =
            nodes.iter().map(|node| Node::read(node.cast::<PyTuple>()?)).collect::<PyResult<Vec<_>>>()?;
        let plan = Plan { name, nodes, root };
        let mut all_there = root < count;
        plan.nodes.iter().for_each(|node| node.each(&mut |inner| all_there &= inner < count));
        if all_there {
            Ok(plan)
        } else {
            Err(PyValueError::new_err("a type refers to one that is not there"))
        }
    }

    /// Returns the canonical text of the type alone.
    fn schema(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.shape().map_err(|why| exception(py, "SchemaError", why))?.text())
    }

    /// Returns the canonical text of a message of this type, and its key.
    fn interface(&self, py: Python<'_>, message: String, reply: &Plan) -> PyResult<(String, u64)> {
        let interface = self.message(message, reply).map_err(|why| exception(py, "SchemaError", why))?;
        Ok((interface.text(), interface.key()))
    }

    /// Returns a value as bytes, and the tensors that are in it.
    fn encode<'py>(&self, value: &Bound<'py, PyAny>) -> PyResult<(Bound<'py, PyBytes>, Bound<'py, PyList>)> {
        let py = value.py();
        let (body, tensors) = encode::encode(self, value, None)
            .map_err(|failure| failure.raise(py, "EncodeError", &self.name))?;
        let tensors = tensors.into_iter().map(PyTensor::of);
        let tensors = tensors.map(|tensor| Bound::new(py, tensor)).collect::<PyResult<Vec<_>>>()?;
        Ok((PyBytes::new(py, &body), PyList::new(py, tensors)?))
    }

    /// Decodes these bytes.
    fn decode<'py>(
        &self,
        py: Python<'py>,
        body: &[u8],
        tensors: Vec<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        decode::decode(self, py, body, tensors)
            .map_err(|failure| failure.raise(py, "DecodeError", &self.name))
    }

    fn __repr__(&self) -> String {
        format!("Plan({}, {} types)", self.name, self.nodes.len())
    }
}

impl Node {
    /// Calls `each` for the types directly in this.
    fn each(&self, each: &mut dyn FnMut(usize)) {
        match self {
            Node::Scalar(_) | Node::Tensor(..) | Node::Members(_) => {}
            Node::Option(inner) | Node::List(inner) | Node::Set(inner) | Node::Array(inner, _) => {
                each(*inner)
            }
            Node::Address(_, message, reply) => {
                each(*message);
                each(*reply);
            }
            Node::Map(key, value) => {
                each(*key);
                each(*value);
            }
            Node::Tuple(inner) => inner.iter().for_each(|inner| each(*inner)),
            Node::Struct(class) => class.fields.iter().for_each(|field| each(field.node)),
            Node::Enum(_, variants) => {
                variants.iter().flat_map(|variant| &variant.class.fields).for_each(|field| each(field.node));
            }
        }
    }

    fn read(node: &Bound<'_, PyTuple>) -> PyResult<Self> {
        let get = |index: usize| node.get_item(index);
        let inner = |index: usize| get(index)?.extract::<usize>();
        let kind: String = get(0)?.extract()?;
        Ok(match kind.as_str() {
            "tensor" => {
                let asked = TensorShape {
                    dtype: get(1)?.extract()?,
                    shape: get(2)?.extract()?,
                    device: get(3)?.extract()?,
                };
                Node::Tensor(Asked::new(asked), get(4)?.extract()?)
            }
            "address" => Node::Address(get(1)?.extract()?, inner(2)?, inner(3)?),
            "option" => Node::Option(inner(1)?),
            "list" => Node::List(inner(1)?),
            "set" => Node::Set(inner(1)?),
            "map" => Node::Map(inner(1)?, inner(2)?),
            "tuple" => Node::Tuple(get(1)?.extract()?),
            "array" => Node::Array(inner(1)?, get(2)?.extract()?),
            "struct" => Node::Struct(Class::read(&get(1)?)?),
            "enum" => {
                let repr = repr(&get(1)?.extract::<Vec<Option<String>>>()?)?;
                let variants = get(2)?.try_iter()?.map(|variant| {
                    let class = Class::read(&variant?)?;
                    Ok(Variant { name: class.name.clone(), class })
                });
                Node::Enum(repr, variants.collect::<PyResult<_>>()?)
            }
            "members" => Node::Members(get(1)?.extract()?),
            scalar => Node::Scalar(Scalar::read(scalar)?),
        })
    }
}

fn repr(parts: &[Option<String>]) -> PyResult<Repr> {
    Ok(match parts {
        [] => Repr::External,
        [None] => Repr::Untagged,
        [Some(tag)] => Repr::internal(tag),
        [Some(tag), Some(content)] => Repr::adjacent(tag, content),
        _ => return Err(PyValueError::new_err("no such way to tell a variant")),
    })
}

impl Scalar {
    pub(crate) fn read(name: &str) -> PyResult<Self> {
        Ok(match name {
            "nil" => Scalar::Nil,
            "bool" => Scalar::Bool,
            "u8" => Scalar::Int(false, 8),
            "u16" => Scalar::Int(false, 16),
            "u32" => Scalar::Int(false, 32),
            "u64" => Scalar::Int(false, 64),
            "i8" => Scalar::Int(true, 8),
            "i16" => Scalar::Int(true, 16),
            "i32" => Scalar::Int(true, 32),
            "i64" => Scalar::Int(true, 64),
            "f32" => Scalar::F32,
            "f64" => Scalar::F64,
            "char" => Scalar::Char,
            "str" => Scalar::Str,
            "bytes" => Scalar::Bytes,
            other => return Err(PyValueError::new_err(format!("no such type: {other}"))),
        })
    }
}

impl Class {
    /// Reads `(class, name, style, [(name, attribute, node, optional, (omitted,) or None)], plain)`.
    fn read(class: &Bound<'_, PyAny>) -> PyResult<Self> {
        type Read<'py> = (String, Bound<'py, PyString>, usize, bool, Option<(Py<PyAny>,)>);
        let (class, name, style, fields, plain): (Bound<'_, PyType>, String, String, Vec<Read<'_>>, bool) =
            class.extract()?;
        let style = match style.as_str() {
            "unit" => Style::Unit,
            "newtype" => Style::Newtype,
            "tuple" => Style::Tuple,
            "struct" => Style::Struct,
            other => return Err(PyValueError::new_err(format!("no such style: {other}"))),
        };
        if style == Style::Newtype && fields.len() != 1 || style == Style::Unit && !fields.is_empty() {
            return Err(PyValueError::new_err(format!(
                "{name} has {} fields, which its style cannot have",
                fields.len()
            )));
        }
        let field = |(name, attribute, node, optional, omitted): Read<'_>| Field {
            name,
            attribute: attribute.unbind(),
            node,
            optional,
            omitted: omitted.map(|(omitted,)| omitted),
        };
        let fields = fields.into_iter().map(field).collect();
        Ok(Class { class: class.unbind(), name, style, fields, plain })
    }
}
