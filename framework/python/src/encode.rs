//! Encodes a Python value to bytes. rmp-serde writes them, as it does for the types of Rust, so the bytes are
//! the same.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use pyo3::exceptions::PyOverflowError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{
    PyBool, PyByteArray, PyBytes, PyDict, PyFloat, PyFrozenSet, PyInt, PyList, PySet, PyString, PyTuple,
};
use serde::ser::{Error, SerializeMap, SerializeSeq, SerializeTuple};
use serde::{Serialize, Serializer};
use smallvec::SmallVec;
use tensorpost_core::limits::MAX_TENSORS;
use tensorpost_core::message::codec::{self, EncodeError};
use tensorpost_core::message::portable::Repr;
use tensorpost_core::tensor::Tensor;

use crate::address::PyAddress;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::imports::taken;
use crate::plan::{Class, Field, Node, Plan, Scalar, Style, Variant};

/// The most types inside each other. Bytes are nested less deep; a value that holds itself, and so is nested
/// without end, fails here.
pub(crate) const MAX_DEPTH: usize = 192;

/// The key of a tensor in a body.
pub(crate) const TENSOR: &str = "$tensor";

/// Bytes of a body that need no second allocation.
const BODY: usize = 128;

/// The state of the walk through a value.
#[derive(Default)]
struct State<'a> {
    /// The context in which the value is sent.
    context: Option<&'a Arc<Context>>,
    /// The tensor whose place is wanted.
    sought: Option<usize>,
    /// The tensors of the value, in the order of their indices.
    tensors: RefCell<Vec<Tensor>>,
    failed: RefCell<Option<Failure>>,
    depth: Cell<usize>,
}

/// A value, and the type that it must have.
struct Typed<'a, 'py> {
    plan: &'a Plan,
    node: usize,
    value: &'a Bound<'py, PyAny>,
    state: &'a State<'a>,
}

/// The fields of a class, behind the tag that names the variant.
struct Fields<'a, 'py> {
    of: &'a Typed<'a, 'py>,
    class: &'a Class,
    tag: Option<(&'a str, &'a str)>,
}

/// Returns the bytes of a value, and its tensors.
pub(crate) fn encode(
    plan: &Plan,
    value: &Bound<'_, PyAny>,
    context: Option<&Arc<Context>>,
) -> Result<(Vec<u8>, Vec<Tensor>)> {
    with_state(plan, value, State { context, ..State::default() })
}

/// Returns the place of the tensor with this index in a value that was written, such as `Frame.pixels`.
pub(crate) fn place_of(
    plan: &Plan,
    value: &Bound<'_, PyAny>,
    index: usize,
    context: &Arc<Context>,
) -> String {
    let state = State { context: Some(context), sought: Some(index), ..State::default() };
    match with_state(plan, value, state) {
        Err(failure) => failure.place(&plan.name),
        Ok(_) => plan.name.clone(),
    }
}

fn with_state(plan: &Plan, value: &Bound<'_, PyAny>, state: State<'_>) -> Result<(Vec<u8>, Vec<Tensor>)> {
    let typed = Typed { plan, node: plan.root, value, state: &state };
    let encoded = match state.context {
        // The domain says to which node the addresses in it belong.
        Some(context) => codec::encode_in(&typed, Vec::with_capacity(BODY), context.transport.domain()),
        None => codec::encode(&typed, Vec::with_capacity(BODY)),
    };
    match encoded {
        Ok(encoded) => Ok((encoded.body, state.tensors.into_inner())),
        Err(error) => Err(state.failed.into_inner().unwrap_or_else(|| match error {
            EncodeError::Serialise(error) => Failure::new(error.to_string()),
            error => Failure::new(error.to_string()),
        })),
    }
}

/// Remembers the failure; serde's own error only ends the walk.
fn stopped<E: Error>(state: &State<'_>, failure: Failure) -> E {
    state.failed.borrow_mut().get_or_insert(failure);
    E::custom("")
}

impl Typed<'_, '_> {
    fn wrong<E: Error>(&self, wanted: &str) -> E {
        let found =
            self.value.get_type().fully_qualified_name().map(|name| name.to_string()).unwrap_or_default();
        stopped(self.state, Failure::new(format!("it must be {wanted} and is of type {found}")))
    }

    /// Returns a bool, also of numpy, or of a boolean tensor without axes: numbers of such types are accepted
    /// too.
    fn truth(&self) -> Option<bool> {
        let value = self.value;
        if let Ok(truth) = value.cast::<PyBool>() {
            return Some(truth.is_true());
        }
        let axes = value.getattr(intern!(value.py(), "ndim")).and_then(|axes| axes.extract::<usize>());
        if axes.ok()? != 0 {
            return None;
        }
        let item = value.call_method0(intern!(value.py(), "item")).ok()?;
        item.cast::<PyBool>().ok().map(|truth| truth.is_true())
    }

    fn raised<E: Error>(&self, error: PyErr) -> E {
        stopped(self.state, Failure::raised(self.value.py(), error))
    }
}

/// Adds the step that `result` came from to its failure, if it failed.
fn step<T, E>(
    state: &State<'_>,
    result: std::result::Result<T, E>,
    add: impl FnOnce(Failure) -> Failure,
) -> std::result::Result<T, E> {
    if result.is_err() {
        let mut failed = state.failed.borrow_mut();
        *failed = failed.take().map(add);
    }
    result
}

impl Serialize for Typed<'_, '_> {
    fn serialize<S: Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
        let depth = self.state.depth.get() + 1;
        if depth > MAX_DEPTH {
            return Err(stopped(
                self.state,
                Failure::new("it is nested too deep, or holds itself; flatten the value"),
            ));
        }
        self.state.depth.set(depth);
        let done = self.write(to);
        self.state.depth.set(depth - 1);
        done
    }
}

impl Typed<'_, '_> {
    fn write<S: Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
        match &self.plan.nodes[self.node] {
            Node::Scalar(scalar) => self.scalar(*scalar, to),
            Node::Tensor(asked, _) => {
                if self.state.sought == Some(self.state.tensors.borrow().len()) {
                    return Err(stopped(self.state, Failure::new("")));
                }
                let tensor = taken(self.value, self.state.context).map_err(|error| self.raised(error))?;
                asked.check(&tensor).map_err(|why| stopped(self.state, Failure::new(why)))?;
                let index = {
                    let mut tensors = self.state.tensors.borrow_mut();
                    tensors.push(tensor);
                    tensors.len() - 1
                };
                if index >= MAX_TENSORS {
                    let why = format!(
                        "a message can hold {MAX_TENSORS} tensors; send several messages, or stack the tensors"
                    );
                    return Err(stopped(self.state, Failure::new(why)));
                }
                // As a `Tensor` writes itself; the leases that the message takes are determined when it is
                // sent.
                let mut form = to.serialize_map(Some(1))?;
                form.serialize_entry(TENSOR, &index)?;
                form.end()
            }
            Node::Address(..) => match self.value.cast::<PyAddress>() {
                Ok(address) => address.get().raw.serialize(to),
                Err(_) => Err(self.wrong("a tp.Address")),
            },
            Node::Option(_) if self.value.is_none() => to.serialize_none(),
            Node::Option(inner) => to.serialize_some(&self.inner(*inner, self.value)),
            Node::List(inner) => self.list(*inner, None, to),
            Node::Array(inner, length) => self.list(*inner, Some(*length), to),
            Node::Set(inner) => self.set(*inner, to),
            Node::Map(key, value) => self.map(*key, *value, to),
            Node::Tuple(inner) => self.tuple(inner, to),
            Node::Struct(class) => {
                self.is_a(class)?;
                self.body(class, None, to)
            }
            Node::Enum(repr, variants) => self.variant(repr, variants, to),
            Node::Members(members) => match members.iter().find(|(_, member)| self.value.is(member)) {
                Some((name, _)) => to.serialize_str(name),
                None => Err(self.wrong(&format!(
                    "a member of the enum ({})",
                    listed(members.iter().map(|(name, _)| name))
                ))),
            },
        }
    }

    fn scalar<S: Serializer>(&self, scalar: Scalar, to: S) -> std::result::Result<S::Ok, S::Error> {
        let value = self.value;
        match scalar {
            Scalar::Nil if value.is_none() => to.serialize_unit(),
            Scalar::Nil => Err(self.wrong("None")),
            Scalar::Bool => match self.truth() {
                Some(truth) => to.serialize_bool(truth),
                None => Err(self.wrong("a bool")),
            },
            Scalar::Int(signed, bits) => self.integer(signed, bits, to),
            Scalar::F32 | Scalar::F64 => {
                if !value.is_exact_instance_of::<PyFloat>() && self.truth().is_some() {
                    return Err(self.wrong("a float"));
                }
                let float = value.extract::<f64>().map_err(|error: PyErr| -> S::Error {
                    if error.is_instance_of::<PyOverflowError>(value.py()) {
                        return stopped(self.state, Failure::new("it is too large for a float".to_owned()));
                    }
                    self.wrong("a float")
                })?;
                if scalar == Scalar::F64 {
                    return to.serialize_f64(float);
                }
                let single = float as f32;
                if single.is_infinite() && float.is_finite() {
                    return Err(stopped(self.state, Failure::new(format!("{float} does not fit f32"))));
                }
                to.serialize_f32(single)
            }
            Scalar::Str | Scalar::Char => {
                let text = value.cast::<PyString>().map_err(|_| self.wrong("a str"))?;
                let text = text.to_cow().map_err(|error| self.raised(error))?;
                if scalar == Scalar::Char && text.chars().count() != 1 {
                    let why = format!("it must be a str of one character and has {}", text.chars().count());
                    return Err(stopped(self.state, Failure::new(why)));
                }
                to.serialize_str(&text)
            }
            Scalar::Bytes => {
                if let Ok(bytes) = value.cast::<PyBytes>() {
                    return to.serialize_bytes(bytes.as_bytes());
                }
                if value.is_instance_of::<PyByteArray>()
                    || value.get_type().name().is_ok_and(|name| name == "memoryview")
                {
                    let copied = value
                        .py()
                        .get_type::<PyBytes>()
                        .call1((value,))
                        .map_err(|error| self.raised(error))?;
                    let copied = copied.cast_into::<PyBytes>().map_err(|_| self.wrong("bytes"))?;
                    return to.serialize_bytes(copied.as_bytes());
                }
                Err(self.wrong("bytes"))
            }
        }
    }

    fn integer<S: Serializer>(&self, signed: bool, bits: u32, to: S) -> std::result::Result<S::Ok, S::Error> {
        let value = self.value;
        if !value.is_exact_instance_of::<PyInt>() && self.truth().is_some() {
            return Err(self.wrong("an int"));
        }
        let unsigned = || value.extract::<u64>().ok().filter(|value| bits == 64 || value >> bits == 0);
        let fits = |value: &i64| bits == 64 || (value >> (bits - 1) == 0 || value >> (bits - 1) == -1);
        if signed {
            if let Some(value) = value.extract::<i64>().ok().filter(fits) {
                return to.serialize_i64(value);
            }
        } else if let Some(value) = unsigned() {
            return to.serialize_u64(value);
        }
        // Numbers of other kinds are not accepted, not even those that could be rounded. An array has the
        // method too, and fails if it has axes.
        let Ok(whole) = value.call_method0(intern!(value.py(), "__index__")) else {
            return Err(self.wrong("an int"));
        };
        let name = if signed { 'i' } else { 'u' };
        // Python does not write numbers of thousands of digits.
        let shown = whole.str().map_or_else(|_| "so long a number".to_owned(), |text| text.to_string());
        Err(stopped(self.state, Failure::new(format!("{shown} does not fit {name}{bits}"))))
    }

    fn list<S: Serializer>(
        &self,
        inner: usize,
        length: Option<u64>,
        to: S,
    ) -> std::result::Result<S::Ok, S::Error> {
        let items: Vec<Bound<'_, PyAny>> = if let Ok(list) = self.value.cast::<PyList>() {
            list.iter().collect()
        } else if let Ok(tuple) = self.value.cast::<PyTuple>() {
            tuple.iter().collect()
        } else {
            return Err(self.wrong("a list"));
        };
        if let Some(length) = length {
            if length != items.len() as u64 {
                let why = format!("it must have {length} items and has {}", items.len());
                return Err(stopped(self.state, Failure::new(why)));
            }
            // Serde's arrays are tuples.
            let mut seq = to.serialize_tuple(items.len())?;
            for (index, item) in items.iter().enumerate() {
                step(self.state, seq.serialize_element(&self.inner(inner, item)), |failure| {
                    failure.at(index)
                })?;
            }
            return seq.end();
        }
        self.sequence(inner, &items, to)
    }

    fn sequence<S: Serializer>(
        &self,
        inner: usize,
        items: &[Bound<'_, PyAny>],
        to: S,
    ) -> std::result::Result<S::Ok, S::Error> {
        let mut seq = to.serialize_seq(Some(items.len()))?;
        for (index, item) in items.iter().enumerate() {
            step(self.state, seq.serialize_element(&self.inner(inner, item)), |failure| failure.at(index))?;
        }
        seq.end()
    }

    /// Writes a set in sorted order if its items have one, as a `BTreeSet` is written, so that the same set
    /// has the same bytes.
    fn set<S: Serializer>(&self, inner: usize, to: S) -> std::result::Result<S::Ok, S::Error> {
        if !self.value.is_instance_of::<PySet>() && !self.value.is_instance_of::<PyFrozenSet>() {
            return Err(self.wrong("a set"));
        }
        let items = self.value.try_iter().and_then(Iterator::collect::<PyResult<Vec<_>>>);
        let items = items.and_then(|items| PyList::new(self.value.py(), items));
        let items = items.map_err(|error| self.raised(error))?;
        // Items that cannot be compared have no order, and are written as they come.
        let _ = items.sort();
        self.sequence(inner, &items.iter().collect::<Vec<_>>(), to)
    }

    fn map<S: Serializer>(&self, key: usize, value: usize, to: S) -> std::result::Result<S::Ok, S::Error> {
        let dict = self.value.cast::<PyDict>().map_err(|_| self.wrong("a dict"))?;
        // A copy, because code of a value that runs while it is written may change the dict.
        let items: Vec<_> = dict.iter().collect();
        let mut map = to.serialize_map(Some(items.len()))?;
        for (its_key, its_value) in &items {
            let (key, value) = (self.inner(key, its_key), self.inner(value, its_value));
            step(self.state, map.serialize_key(&key), |failure| failure.of_key(its_key))?;
            step(self.state, map.serialize_value(&value), |failure| failure.of_key(its_key))?;
        }
        map.end()
    }

    fn tuple<S: Serializer>(&self, inner: &[usize], to: S) -> std::result::Result<S::Ok, S::Error> {
        let items = self.value.cast::<PyTuple>().map_err(|_| self.wrong("a tuple"))?;
        if items.len() != inner.len() {
            let why = format!("it must be a tuple of {} items and has {}", inner.len(), items.len());
            return Err(stopped(self.state, Failure::new(why)));
        }
        let mut tuple = to.serialize_tuple(inner.len())?;
        for (index, (node, item)) in inner.iter().zip(items.iter()).enumerate() {
            step(self.state, tuple.serialize_element(&self.inner(*node, &item)), |failure| {
                failure.at(index)
            })?;
        }
        tuple.end()
    }

    fn is_a<E: Error>(&self, class: &Class) -> std::result::Result<(), E> {
        match self.value.is_instance(class.class.bind(self.value.py())) {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.wrong(&format!("a {}", class.name))),
            Err(error) => Err(self.raised(error)),
        }
    }

    fn variant<S: Serializer>(
        &self,
        repr: &Repr,
        variants: &[Variant],
        to: S,
    ) -> std::result::Result<S::Ok, S::Error> {
        let py = self.value.py();
        let its = self.value.get_type();
        let Some(Variant { name, class }) =
            variants.iter().find(|variant| variant.class.class.bind(py).is(&its))
        else {
            return Err(
                self.wrong(&format!("one of {}", listed(variants.iter().map(|variant| &variant.name))))
            );
        };
        let written = match repr {
            Repr::External if class.style == Style::Unit => return to.serialize_str(name),
            Repr::Untagged if class.style == Style::Unit => return to.serialize_unit(),
            Repr::Untagged => self.body(class, None, to),
            Repr::Internal(tag) => self.body(class, Some((tag, name)), to),
            Repr::External => {
                let mut map = to.serialize_map(Some(1))?;
                map.serialize_key(name)?;
                let content = Fields { of: self, class, tag: None };
                step(self.state, map.serialize_value(&content), |failure| failure.in_field(name))?;
                return map.end();
            }
            Repr::Adjacent(tag, content) => {
                let has_content = class.style != Style::Unit;
                let mut map = to.serialize_map(Some(1 + usize::from(has_content)))?;
                map.serialize_entry(tag, name)?;
                if has_content {
                    map.serialize_key(content)?;
                    let content = Fields { of: self, class, tag: None };
                    step(self.state, map.serialize_value(&content), |failure| failure.in_field(name))?;
                }
                return map.end();
            }
        };
        step(self.state, written, |failure| failure.in_field(name))
    }

    /// Writes the fields of a class in its style.
    fn body<S: Serializer>(
        &self,
        class: &Class,
        tag: Option<(&str, &str)>,
        to: S,
    ) -> std::result::Result<S::Ok, S::Error> {
        match (class.style, tag) {
            (Style::Newtype, Some(tag)) => self.tagged_newtype(&class.fields[0], tag, to),
            (Style::Newtype, None) => {
                let field = &class.fields[0];
                let value = self.get(field)?;
                self.named(field, self.inner(field.node, &value).serialize(to))
            }
            (Style::Unit, None) => to.serialize_tuple(0)?.end(),
            (Style::Tuple, _) => {
                let mut tuple = to.serialize_tuple(class.fields.len())?;
                for field in &class.fields {
                    let value = self.get(field)?;
                    self.named(field, tuple.serialize_element(&self.inner(field.node, &value)))?;
                }
                tuple.end()
            }
            (Style::Struct | Style::Unit, tag) => self.fields(&class.fields, tag, to),
        }
    }

    fn fields<S: Serializer>(
        &self,
        fields: &[Field],
        tag: Option<(&str, &str)>,
        to: S,
    ) -> std::result::Result<S::Ok, S::Error> {
        let mut written: SmallVec<[_; 8]> = SmallVec::new();
        for field in fields {
            let value = self.get(field)?;
            let omitted = match &field.omitted {
                None => false,
                Some(omitted) => {
                    value.is(omitted) || value.eq(omitted).map_err(|error| self.raised(error))?
                }
            };
            if !omitted {
                written.push((field, value));
            }
        }
        let mut map = to.serialize_map(Some(written.len() + usize::from(tag.is_some())))?;
        if let Some((tag, name)) = tag {
            map.serialize_entry(tag, name)?;
        }
        for (field, value) in &written {
            map.serialize_key(&field.name)?;
            self.named(field, map.serialize_value(&self.inner(field.node, value)))?;
        }
        map.end()
    }

    /// Writes an internally tagged variant: its tag is one of the fields of the value that the variant holds.
    fn tagged_newtype<S: Serializer>(
        &self,
        field: &Field,
        (tag, name): (&str, &str),
        to: S,
    ) -> std::result::Result<S::Ok, S::Error> {
        let value = self.get(field)?;
        let held = self.inner(field.node, &value);
        match &self.plan.nodes[field.node] {
            Node::Struct(class) if class.style == Style::Struct => {
                self.named(field, held.is_a(class))?;
                self.named(field, held.fields(&class.fields, Some((tag, name)), to))
            }
            _ => Err(stopped(
                self.state,
                Failure::new(
                    "the variant of an enum with an internal tag must hold a class with named fields; tell it in another way",
                ),
            )),
        }
    }

    fn inner<'b, 'py>(&'b self, node: usize, value: &'b Bound<'py, PyAny>) -> Typed<'b, 'py> {
        Typed { plan: self.plan, node, value, state: self.state }
    }

    fn get<E: Error>(&self, field: &Field) -> std::result::Result<Bound<'_, PyAny>, E> {
        self.value.getattr(field.attribute.bind(self.value.py())).map_err(|error| self.raised(error))
    }

    fn named<T, E>(&self, field: &Field, result: std::result::Result<T, E>) -> std::result::Result<T, E> {
        step(self.state, result, |failure| failure.in_field(&field.attribute.to_string()))
    }
}

impl Serialize for Fields<'_, '_> {
    fn serialize<S: Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
        self.of.body(self.class, self.tag, to)
    }
}

pub(crate) fn listed<'a>(names: impl Iterator<Item = &'a String>) -> String {
    names.map(String::as_str).collect::<Vec<_>>().join(", ")
}
