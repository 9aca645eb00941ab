//! Decodes bytes to a Python value. It accepts the same bytes as serde's derive does for the types in Rust:
//! fields in any order, unknown fields, and lists of fields in place of a map.
//!
//! The bytes come from another process (WIRE-1). They were checked to be one value that is not nested too
//! deep, and each type is checked. The cost of trying the variants of an untagged enum is bounded, and so is
//! the memory that the value takes. Other threads get the interpreter every few thousand values.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyFloat, PyList, PySet, PyString, PyTuple};
use tensorpost_core::bindings::RawAddress;
use tensorpost_core::ids::DeviceId;
use tensorpost_core::message::portable::Repr;
use tensorpost_core::tensor::{Tensor, TensorError};

use crate::address::PyAddress;
use crate::address_space::stream as own_stream;
use crate::construct::Values;
use crate::context::Context;
use crate::encode::{MAX_DEPTH, TENSOR, listed};
use crate::failure::{Failure, Result};
use crate::imports::{Asked, taken};
use crate::meter::Meter;
use crate::plan::{Class, Node, Plan, Scalar, Style, Variant};
use crate::reader::{Item, Reader};
use crate::tensor::PyTensor;
use crate::torch::Ledger;

/// The most values that are read: an honest body has a few for each byte, and a short body some more.
const STEPS_PER_BYTE: usize = 1024;
const STEPS: usize = 1 << 16;

/// After so many values another thread may take the interpreter.
const TURN: usize = 1 << 12;

struct Decoder<'a, 'py> {
    py: Python<'py>,
    plan: &'a Plan,
    /// The tensors that came with the body. The first use of one makes a Python tensor of it.
    tensors: Vec<Given<'py>>,
    /// The context of the addresses in the value, in a message that came from an actor.
    context: Option<&'a Arc<Context>>,
    /// Notes the tensors that the handler was shown.
    ledger: Option<&'a Arc<Ledger>>,
    /// The tensor whose place is wanted; the others are not read.
    sought: Option<usize>,
    steps: usize,
    meter: Meter,
    depth: usize,
}

/// A tensor that came with a body.
enum Given<'py> {
    Raw(Tensor),
    Object(Bound<'py, PyAny>),
    Made(Bound<'py, PyTensor>),
    /// A Python tensor is being made of it.
    Gone,
}

/// Decodes a body.
pub(crate) fn decode<'py>(
    plan: &Plan,
    py: Python<'py>,
    body: &[u8],
    tensors: Vec<Bound<'py, PyAny>>,
) -> Result<Bound<'py, PyAny>> {
    decode_with(plan, py, body, tensors.into_iter().map(Given::Object).collect(), None, None, None)
}

/// Decodes a body that came to a mailbox, or as a reply.
pub(crate) fn arrived<'py>(
    plan: &Plan,
    py: Python<'py>,
    body: &[u8],
    tensors: Vec<Tensor>,
    context: &Arc<Context>,
    ledger: Option<&Arc<Ledger>>,
) -> Result<Bound<'py, PyAny>> {
    let tensors = tensors.into_iter().map(Given::Raw).collect();
    decode_with(plan, py, body, tensors, Some(context), ledger, None)
}

/// Returns the place of the tensor with this index in the value of a body that was read before, such as
/// `Frame.pixels`.
pub(crate) fn place_of(plan: &Plan, py: Python<'_>, body: &[u8], index: usize) -> String {
    match decode_with(plan, py, body, Vec::new(), None, None, Some(index)) {
        Err(failure) => failure.place(&plan.name),
        Ok(_) => plan.name.clone(),
    }
}

fn decode_with<'py>(
    plan: &Plan,
    py: Python<'py>,
    body: &[u8],
    tensors: Vec<Given<'py>>,
    context: Option<&Arc<Context>>,
    ledger: Option<&Arc<Ledger>>,
    sought: Option<usize>,
) -> Result<Bound<'py, PyAny>> {
    let mut reader = Reader::new(body)?;
    let steps = STEPS + body.len().saturating_mul(STEPS_PER_BYTE);
    let meter = Meter::new(body.len());
    let mut decoder = Decoder { py, plan, tensors, context, ledger, sought, steps, meter, depth: 0 };
    let value = decoder.value(plan.root, &mut reader)?;
    if reader.has_ended() { Ok(value) } else { Err(Failure::new("bytes follow the value")) }
}

fn wrong(wanted: &str, found: Item<'_>) -> Failure {
    Failure::new(format!("it must be {wanted} and is {}", found.what()))
}

impl<'py> Decoder<'_, 'py> {
    fn raised(&self, error: PyErr) -> Failure {
        Failure::raised(self.py, error)
    }

    fn value(&mut self, at: usize, reader: &mut Reader<'_>) -> Result<Bound<'py, PyAny>> {
        self.steps = self.steps.checked_sub(1).ok_or_else(|| {
            Failure::new("reading it takes more steps than a body of its length may; tell the variants of its enums by a tag")
        })?;
        if self.steps.is_multiple_of(TURN) {
            self.py.detach(|| ());
        }
        if self.depth == MAX_DEPTH {
            return Err(Failure::new("it is nested too deep"));
        }
        self.depth += 1;
        let read = self.typed(at, reader);
        self.depth -= 1;
        read
    }

    fn typed(&mut self, at: usize, reader: &mut Reader<'_>) -> Result<Bound<'py, PyAny>> {
        let plan = self.plan;
        match &plan.nodes[at] {
            Node::Scalar(scalar) => self.scalar(*scalar, reader.next()?),
            Node::Tensor(asked, owned) => self.tensor(asked, *owned, reader),
            Node::Address(..) => self.address(reader),
            Node::Option(inner) => {
                if reader.peek()? == Item::Nil {
                    reader.next()?;
                    return Ok(self.py.None().into_bound(self.py));
                }
                self.value(*inner, reader)
            }
            Node::List(inner) => Ok(self.list(*inner, None, reader)?.into_any()),
            Node::Array(inner, length) => Ok(self.list(*inner, Some(*length), reader)?.into_any()),
            Node::Set(inner) => {
                let items = self.list(*inner, None, reader)?;
                self.meter.set(items.len())?;
                PySet::new(self.py, items.iter()).map(Bound::into_any).map_err(|error| self.raised(error))
            }
            Node::Map(key, value) => self.map(*key, *value, reader),
            Node::Tuple(inner) => {
                let length = list_of(reader)?;
                if length != inner.len() {
                    return Err(Failure::new(format!("it must have {} items and has {length}", inner.len())));
                }
                self.meter.tuple(length)?;
                let mut items = Vec::with_capacity(length);
                for (index, inner) in inner.iter().enumerate() {
                    items.push(self.value(*inner, reader).map_err(|failure| failure.at(index))?);
                }
                PyTuple::new(self.py, items).map(Bound::into_any).map_err(|error| self.raised(error))
            }
            Node::Struct(class) => self.body(class, None, reader),
            Node::Enum(repr, variants) => self.variant(repr, variants, reader),
            Node::Members(members) => {
                let name = match reader.next()? {
                    Item::Str(name) => name,
                    // Serde also takes this as a variant without content.
                    Item::Map(1) => {
                        let name = string(reader)?;
                        nil(reader)?;
                        name
                    }
                    other => return Err(wrong("the name of a member", other)),
                };
                let member = members.iter().find(|(known, _)| known == name);
                let known = || listed(members.iter().map(|(name, _)| name));
                let (_, member) =
                    member.ok_or_else(|| Failure::new(format!("`{name}` is none of {}", known())))?;
                Ok(member.bind(self.py).clone())
            }
        }
    }

    fn scalar(&mut self, scalar: Scalar, item: Item<'_>) -> Result<Bound<'py, PyAny>> {
        let py = self.py;
        match (scalar, item) {
            (Scalar::F32 | Scalar::F64, _) => self.meter.float()?,
            (_, Item::Int(value)) => self.meter.int(value)?,
            (_, Item::Str(text)) => self.meter.text(text)?,
            (_, Item::Bytes(bytes)) => self.meter.bytes(bytes)?,
            _ => {}
        }
        let object = match (scalar, item) {
            (Scalar::Nil, Item::Nil) => py.None().into_bound(py),
            (Scalar::Bool, Item::Bool(truth)) => pyo3::types::PyBool::new(py, truth).to_owned().into_any(),
            (Scalar::Int(signed, bits), Item::Int(value)) => {
                let (least, most) = if signed {
                    (-1_i128 << (bits - 1), (1 << (bits - 1)) - 1)
                } else {
                    (0, (1 << bits) - 1)
                };
                if value < least || value > most {
                    let name = if signed { 'i' } else { 'u' };
                    return Err(Failure::new(format!("{value} does not fit {name}{bits}")));
                }
                // Lossless: one of the two holds all 64 bits.
                let object = if value < 0 {
                    (value as i64).into_pyobject(py)
                } else {
                    (value as u64).into_pyobject(py)
                };
                match object {
                    Ok(object) => object.into_any(),
                    Err(never) => match never {},
                }
            }
            (Scalar::F32, Item::F32(value)) => PyFloat::new(py, value.into()).into_any(),
            // Lossless for f32; a number that was written as f64 is rounded, as serde does it.
            (Scalar::F32, Item::F64(value)) => PyFloat::new(py, (value as f32).into()).into_any(),
            (Scalar::F32, Item::Int(value)) => PyFloat::new(py, (value as f32).into()).into_any(),
            (Scalar::F64, Item::F32(value)) => PyFloat::new(py, value.into()).into_any(),
            (Scalar::F64, Item::F64(value)) => PyFloat::new(py, value).into_any(),
            (Scalar::F64, Item::Int(value)) => PyFloat::new(py, value as f64).into_any(),
            (Scalar::Str, Item::Str(text)) => PyString::new(py, text).into_any(),
            (Scalar::Char, Item::Str(text)) => {
                if text.chars().count() != 1 {
                    let count = text.chars().count();
                    return Err(Failure::new(format!("it must be a str of one character and has {count}")));
                }
                PyString::new(py, text).into_any()
            }
            (Scalar::Bytes, Item::Bytes(bytes)) => PyBytes::new(py, bytes).into_any(),
            (_, found) => {
                let wanted = match scalar {
                    Scalar::Nil => "nil",
                    Scalar::Bool => "a bool",
                    Scalar::Int(..) => "an integer",
                    Scalar::F32 | Scalar::F64 => "a float",
                    Scalar::Char | Scalar::Str => "a str",
                    Scalar::Bytes => "bytes",
                };
                return Err(wrong(wanted, found));
            }
        };
        Ok(object)
    }

    fn tensor(&mut self, asked: &Asked, owned: bool, reader: &mut Reader<'_>) -> Result<Bound<'py, PyAny>> {
        let found = reader.next()?;
        if found != Item::Map(1) || string(reader)? != TENSOR {
            return Err(wrong("a tensor of the message", found));
        }
        let index = match reader.next()? {
            Item::Int(index) => usize::try_from(index).unwrap_or(usize::MAX),
            other => return Err(wrong("the index of a tensor", other)),
        };
        if let Some(sought) = self.sought {
            let none = || self.py.None().into_bound(self.py);
            return if sought == index { Err(Failure::new("")) } else { Ok(none()) };
        }
        let came_with = self.tensors.len();
        let given = self.tensors.get_mut(index).ok_or_else(|| {
            Failure::new(format!("the message names tensor {index} but came with {came_with}"))
        })?;
        let tensor = match std::mem::replace(given, Given::Gone) {
            Given::Made(object) => {
                let fits = asked.check(&object.get().tensor);
                let made = object.clone().into_any();
                *given = Given::Made(object);
                fits.map_err(Failure::new)?;
                return Ok(made);
            }
            Given::Raw(tensor) => tensor,
            Given::Object(object) => {
                let tensor = taken(&object, None);
                let plain = object.cast_into::<PyTensor>();
                match plain {
                    // It is a Python tensor already.
                    Ok(object) if !owned => {
                        *given = Given::Made(object.clone());
                        asked.check(&object.get().tensor).map_err(Failure::new)?;
                        return Ok(object.into_any());
                    }
                    _ => tensor.map_err(|error| Failure::raised(self.py, error))?,
                }
            }
            Given::Gone => return Err(Failure::new(format!("tensor {index} could not be taken before"))),
        };
        if let Err(why) = asked.check(&tensor) {
            self.tensors[index] = Given::Raw(tensor);
            return Err(Failure::new(why));
        }
        self.meter.handle()?;
        let made = match (owned, self.context) {
            (false, Some(context)) => {
                let came_to = self.ledger.map(|ledger| (Arc::clone(ledger), index));
                PyTensor::arrived(tensor, context, came_to)
            }
            (false, None) => PyTensor::of(tensor),
            (true, context) => self.for_good(tensor, context)?,
        };
        let object = Bound::new(self.py, made).map_err(|error| self.raised(error))?;
        self.tensors[index] = Given::Made(object.clone());
        Ok(object.into_any())
    }

    /// Makes a tensor that its receiver may write: the one that came, if nothing else holds it, and otherwise
    /// a copy.
    fn for_good(&self, tensor: Tensor, context: Option<&Arc<Context>>) -> Result<PyTensor> {
        let stream = match context {
            Some(context) => match context.stream_for(tensor.device()) {
                Some(stream) => stream.into_owned(),
                None => context.host_stream().map_err(|error| Failure::new(error.to_string()))?,
            },
            None => own_stream(self.py).map_err(|error| self.raised(error))?.clone(),
        };
        let owned = self.py.detach(|| {
            let owned = tensor.into_mut(&stream).or_else(|shared| stream.copy(&shared.tensor))?;
            // On the host, libraries do not work on our stream, so this waits.
            if owned.device() == DeviceId::HOST {
                owned.wait(None)?;
            }
            Ok(owned.freeze())
        });
        let owned =
            owned.map_err(|error: TensorError| Failure::new(format!("it cannot be handed over: {error}")))?;
        Ok(PyTensor::owned(owned, context.map(Arc::clone)))
    }

    fn address(&mut self, reader: &mut Reader<'_>) -> Result<Bound<'py, PyAny>> {
        let context = self.context.ok_or_else(|| {
            Failure::new("an address can only be read from a message, a reply or an actor's arguments")
        })?;
        self.meter.handle()?;
        let raw = RawAddress::read(reader.skipped()?, &context.transport);
        let raw = raw.map_err(|error| Failure::new(format!("it must be an address: {error}")))?;
        let address = Bound::new(self.py, PyAddress::new(raw, Arc::clone(context)));
        address.map(Bound::into_any).map_err(|error| self.raised(error))
    }

    fn list(
        &mut self,
        inner: usize,
        wanted: Option<u64>,
        reader: &mut Reader<'_>,
    ) -> Result<Bound<'py, PyList>> {
        let length = list_of(reader)?;
        if let Some(wanted) = wanted
            && wanted != length as u64
        {
            return Err(Failure::new(format!("it must have {wanted} items and has {length}")));
        }
        self.meter.list()?;
        let list = PyList::empty(self.py);
        for index in 0..length {
            self.meter.item(index)?;
            let item = self.value(inner, reader).map_err(|failure| failure.at(index))?;
            list.append(item).map_err(|error| self.raised(error))?;
        }
        Ok(list)
    }

    fn map(&mut self, key: usize, value: usize, reader: &mut Reader<'_>) -> Result<Bound<'py, PyAny>> {
        let length = match reader.next()? {
            Item::Map(length) => length,
            other => return Err(wrong("a map", other)),
        };
        self.meter.dict(length)?;
        let dict = PyDict::new(self.py);
        for index in 0..length {
            let its_key = self.value(key, reader).map_err(|failure| failure.at(index))?;
            let its_value = self.value(value, reader).map_err(|failure| failure.of_key(&its_key))?;
            dict.set_item(its_key, its_value).map_err(|error| self.raised(error))?;
        }
        Ok(dict.into_any())
    }

    /// Reads the fields of a class in its style; `tag` is a field that belongs to the enum around it.
    fn body(
        &mut self,
        class: &Class,
        tag: Option<&str>,
        reader: &mut Reader<'_>,
    ) -> Result<Bound<'py, PyAny>> {
        let mut values = Values::of(class);
        match class.style {
            Style::Newtype => {
                let field = &class.fields[0];
                let value = match (&self.plan.nodes[field.node], tag) {
                    // The tag is among the fields of the inner class.
                    (Node::Struct(inner), Some(_)) => self.body(inner, tag, reader),
                    _ => self.value(field.node, reader),
                };
                self.set(&mut values, 0, value)?;
            }
            Style::Unit if tag.is_some() => reader.skip()?,
            Style::Unit => match reader.next()? {
                Item::Nil | Item::List(0) => {}
                other => return Err(wrong("nothing", other)),
            },
            Style::Tuple => self.places(class, reader, &mut values)?,
            Style::Struct => match reader.peek()? {
                Item::List(_) if tag.is_none() => self.places(class, reader, &mut values)?,
                _ => self.fields(class, tag, reader, &mut values)?,
            },
        }
        let defaults = values.of_fields.iter().filter(|value| value.is_none()).count();
        // Counted before the object is made, so that its memory is bounded.
        self.meter.object(values.of_fields.len(), defaults)?;
        values.make(self.py).map_err(|error| self.raised(error))
    }

    fn set(
        &self,
        values: &mut Values<'_, 'py>,
        index: usize,
        value: Result<Bound<'py, PyAny>>,
    ) -> Result<()> {
        let attribute = &values.class.fields[index].attribute;
        let value = value.map_err(|failure| failure.in_field(&attribute.bind(self.py).to_string()))?;
        values.of_fields[index] = Some(value);
        Ok(())
    }

    /// Reads the fields in their order.
    fn places(&mut self, class: &Class, reader: &mut Reader<'_>, values: &mut Values<'_, 'py>) -> Result<()> {
        let length = list_of(reader)?;
        let wanted = class.fields.len();
        if length > wanted || length < wanted && !class.fields[length..].iter().all(|field| field.optional) {
            return Err(Failure::new(format!("it must have {wanted} items and has {length}")));
        }
        for (index, field) in class.fields[..length].iter().enumerate() {
            let value = self.value(field.node, reader);
            self.set(values, index, value)?;
        }
        Ok(())
    }

    /// Reads the fields by their names.
    fn fields(
        &mut self,
        class: &Class,
        tag: Option<&str>,
        reader: &mut Reader<'_>,
        values: &mut Values<'_, 'py>,
    ) -> Result<()> {
        let length = match reader.next()? {
            Item::Map(length) => length,
            other => return Err(wrong(&format!("the fields of {}", class.name), other)),
        };
        for place in 0..length {
            let name = string(reader)?;
            // They nearly always come in this order.
            let known = class.fields.get(place).filter(|field| field.name == name).map(|_| place);
            let known = known.or_else(|| class.fields.iter().position(|field| field.name == name));
            let Some(index) = known.filter(|_| tag != Some(name)) else {
                reader.skip()?;
                continue;
            };
            if values.of_fields[index].is_some() {
                return Err(Failure::new(format!("the field `{name}` is there twice")));
            }
            let value = self.value(class.fields[index].node, reader);
            self.set(values, index, value)?;
        }
        for (index, field) in class.fields.iter().enumerate() {
            if field.optional || values.of_fields[index].is_some() {
                continue;
            }
            if !matches!(self.plan.nodes[field.node], Node::Option(_)) {
                return Err(Failure::new(format!("the field `{}` is missing", field.name)));
            }
            self.set(values, index, Ok(self.py.None().into_bound(self.py)))?;
        }
        Ok(())
    }

    fn variant(
        &mut self,
        repr: &Repr,
        variants: &[Variant],
        reader: &mut Reader<'_>,
    ) -> Result<Bound<'py, PyAny>> {
        match repr {
            Repr::External => {
                let (name, has_content) = match reader.next()? {
                    Item::Str(name) => (name, false),
                    Item::Map(1) => (string(reader)?, true),
                    other => return Err(wrong("the name of a variant, or a map from it", other)),
                };
                let variant = named(variants, name)?;
                if variant.class.style != Style::Unit && !has_content {
                    return Err(Failure::new(format!("the variant `{name}` has content, and it is missing")));
                }
                self.content(variant, has_content.then_some(reader))
            }
            Repr::Untagged => {
                let meter = self.meter;
                for variant in variants {
                    let mut again = *reader;
                    // The objects of the variant before are gone.
                    self.meter = meter;
                    // The first variant that fits is the right one. An error that a class's own code raises
                    // counts as one that does not fit.
                    if let Ok(value) = self.body(&variant.class, None, &mut again) {
                        *reader = again;
                        return Ok(value);
                    }
                }
                let names = listed(variants.iter().map(|variant| &variant.name));
                Err(Failure::new(format!("it fits none of {names}")))
            }
            Repr::Internal(tag) => {
                let name = find(*reader, tag)?
                    .ok_or_else(|| Failure::new(format!("the field `{tag}` is missing")))?;
                let variant = named(variants, tagged(name)?)?;
                self.body(&variant.class, Some(tag), reader)
                    .map_err(|failure| failure.in_field(&variant.name))
            }
            Repr::Adjacent(tag, content) => {
                let name = find(*reader, tag)?
                    .ok_or_else(|| Failure::new(format!("the field `{tag}` is missing")))?;
                let variant = named(variants, tagged(name)?)?;
                let mut held = find(*reader, content)?;
                if held.is_none() && variant.class.style != Style::Unit {
                    return Err(Failure::new(format!("the field `{content}` is missing")));
                }
                reader.skip()?;
                self.content(variant, held.as_mut())
            }
        }
    }

    /// Reads the content of a variant whose name was read.
    fn content(&mut self, variant: &Variant, reader: Option<&mut Reader<'_>>) -> Result<Bound<'py, PyAny>> {
        let read = match reader {
            Some(reader) => self.body(&variant.class, None, reader),
            None => {
                self.meter.object(0, 0)?;
                variant.class.class.bind(self.py).call0().map_err(|error| self.raised(error))
            }
        };
        read.map_err(|failure| failure.in_field(&variant.name))
    }
}

fn list_of(reader: &mut Reader<'_>) -> Result<usize> {
    match reader.next()? {
        Item::List(length) => Ok(length),
        other => Err(wrong("a list", other)),
    }
}

fn string<'a>(reader: &mut Reader<'a>) -> Result<&'a str> {
    match reader.next()? {
        Item::Str(text) => Ok(text),
        other => Err(wrong("a name", other)),
    }
}

fn nil(reader: &mut Reader<'_>) -> Result<()> {
    match reader.next()? {
        Item::Nil => Ok(()),
        other => Err(wrong("nil", other)),
    }
}

fn tagged(mut reader: Reader<'_>) -> Result<&str> {
    string(&mut reader)
}

/// Finds the value of this key in the map that comes next.
fn find<'a>(mut reader: Reader<'a>, key: &str) -> Result<Option<Reader<'a>>> {
    let length = match reader.next()? {
        Item::Map(length) => length,
        other => return Err(wrong("a map", other)),
    };
    for _ in 0..length {
        let its = reader.next()?;
        if its == Item::Str(key) {
            return Ok(Some(reader));
        }
        if matches!(its, Item::List(_) | Item::Map(_)) {
            return Err(wrong("a name", its));
        }
        reader.skip()?;
    }
    Ok(None)
}

fn named<'a>(variants: &'a [Variant], name: &str) -> Result<&'a Variant> {
    variants.iter().find(|variant| variant.name == name).ok_or_else(|| {
        let known = listed(variants.iter().map(|variant| &variant.name));
        Failure::new(format!("`{name}` is none of the variants {known}"))
    })
}
