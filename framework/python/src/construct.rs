//! Makes objects of message classes from the values of their fields.
//!
//! The `__init__` that `dataclasses` has written is not called: the fields are set directly. A class with
//! code of its own for that, or with a field that is left to its default, is called with the fields as
//! keyword arguments.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyType};
use smallvec::{SmallVec, smallvec};

use crate::plan::Class;

/// The values of an object's fields.
pub(crate) struct Values<'a, 'py> {
    pub(crate) class: &'a Class,
    pub(crate) of_fields: SmallVec<[Option<Bound<'py, PyAny>>; 8]>,
}

impl<'a, 'py> Values<'a, 'py> {
    pub(crate) fn of(class: &'a Class) -> Self {
        Values { class, of_fields: smallvec![None; class.fields.len()] }
    }

    pub(crate) fn make(self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let class = self.class.class.bind(py);
        let fields = self.class.fields.iter().zip(&self.of_fields);
        if self.class.plain && self.of_fields.iter().all(Option::is_some) {
            let object = bare(class)?;
            for (field, value) in fields {
                object.setattr(field.attribute.bind(py), value)?;
            }
            return Ok(object);
        }
        let named = PyDict::new(py);
        for (field, value) in fields.filter(|(_, value)| value.is_some()) {
            named.set_item(field.attribute.bind(py), value)?;
        }
        class.call((), Some(&named))
    }
}

/// Makes an object of a class that is written in Python, without its fields, as `object.__new__` does.
#[expect(unsafe_code, reason = "there is no other way that costs as little")]
fn bare<'py>(class: &Bound<'py, PyType>) -> PyResult<Bound<'py, PyAny>> {
    let none = std::ptr::null_mut();
    // SAFETY: the class is a type, whose `__new__` is that of `object` and takes no arguments; a null is an
    // error that Python has noted.
    unsafe {
        let object = pyo3::ffi::PyType_GenericNew(class.as_type_ptr(), none, none);
        Bound::from_owned_ptr_or_err(class.py(), object)
    }
}
