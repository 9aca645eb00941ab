//! The checks behind `#[tensor(dtype = …, shape = …, device = …)]`.

use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::device::DeviceKind;
use crate::ids::DeviceId;
use crate::tensor::{DType, Tensor, TensorPart};

/// The requirements on a field's tensors; `None` allows anything.
#[derive(Clone, Copy, Debug, Default)]
pub struct TensorSpec {
    /// The type of the elements.
    pub dtype: Option<DType>,
    /// The extent of each axis, `None` for any extent.
    pub shape: Option<&'static [Option<usize>]>,
    /// The kind of device.
    pub device: Option<DeviceKind>,
}

/// The difference between a tensor and its specification.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TensorMismatch {
    /// The element type is another one.
    #[error("its dtype must be {wanted} and is {found}")]
    DType {
        /// The required type.
        wanted: DType,
        /// The tensor's type.
        found: DType,
    },
    /// The shape is another one.
    #[error("its shape must be {wanted} and is {found:?}")]
    Shape {
        /// The required shape; `_` for any extent.
        wanted: String,
        /// The tensor's shape.
        found: Vec<usize>,
    },
    /// The kind of device is another one.
    #[error("it must be on a {wanted} device and is on {found}")]
    Device {
        /// The required kind.
        wanted: DeviceKind,
        /// The tensor's device.
        found: DeviceId,
    },
}

/// A field of a message whose tensor does not fit its attribute.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the tensor in field `{field}` of {message} does not fit: {mismatch}")]
#[non_exhaustive]
pub struct TensorCheckError {
    /// The type of the message.
    pub message: &'static str,
    /// The name of the field.
    pub field: &'static str,
    /// The difference.
    pub mismatch: TensorMismatch,
}

impl TensorMismatch {
    /// Adds the message and the field in which the mismatch was found.
    pub fn in_field(self, message: &'static str, field: &'static str) -> TensorCheckError {
        TensorCheckError { message, field, mismatch: self }
    }
}

/// A field type whose tensors `#[tensor(…)]` can check: a tensor, or something that holds some.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no tensors to check",
    label = "#[tensor(..)] is on a field of this type",
    note = "put it on a Tensor, or an Option, Box, Vec, array, map or tuple of them"
)]
pub trait CheckTensors {
    /// Checks every tensor inside the value.
    ///
    /// # Errors
    /// The first mismatch.
    fn check_tensors(&self, spec: &TensorSpec) -> Result<(), TensorMismatch>;
}

impl CheckTensors for Tensor {
    fn check_tensors(&self, spec: &TensorSpec) -> Result<(), TensorMismatch> {
        spec.check(self.dtype(), self.shape(), self.device())
    }
}

/// A part is checked by its own shape, not that of the whole.
impl CheckTensors for TensorPart {
    fn check_tensors(&self, spec: &TensorSpec) -> Result<(), TensorMismatch> {
        spec.check(self.dtype(), self.shape(), self.device())
    }
}

impl TensorSpec {
    fn check(&self, dtype: DType, found: &[usize], device: DeviceId) -> Result<(), TensorMismatch> {
        if let Some(wanted) = self.dtype
            && wanted != dtype
        {
            return Err(TensorMismatch::DType { wanted, found: dtype });
        }
        if let Some(shape) = self.shape {
            let fits = shape.len() == found.len()
                && shape
                    .iter()
                    .zip(found)
                    .all(|(wanted, found)| wanted.is_none_or(|wanted| wanted == *found));
            if !fits {
                let axes: Vec<String> = shape
                    .iter()
                    .map(|axis| axis.map_or_else(|| "_".into(), |axis| axis.to_string()))
                    .collect();
                let wanted = format!("[{}]", axes.join(", "));
                return Err(TensorMismatch::Shape { wanted, found: found.to_vec() });
            }
        }
        if let Some(wanted) = self.device {
            let kind = if device == DeviceId::HOST { DeviceKind::Host } else { DeviceKind::Cuda };
            if kind != wanted {
                return Err(TensorMismatch::Device { wanted, found: device });
            }
        }
        Ok(())
    }
}

macro_rules! each {
    ($([$($generics:tt)*] $type:ty;)+) => {$(
        impl<$($generics)*> CheckTensors for $type {
            fn check_tensors(&self, spec: &TensorSpec) -> Result<(), TensorMismatch> {
                self.iter().try_for_each(|inner| inner.check_tensors(spec))
            }
        }
    )+};
}

each! {
    [T: CheckTensors] Option<T>;
    [T: CheckTensors] Vec<T>;
    [T: CheckTensors] VecDeque<T>;
    [T: CheckTensors] [T];
    [T: CheckTensors, const N: usize] [T; N];
}

impl<T: CheckTensors + ?Sized> CheckTensors for Box<T> {
    fn check_tensors(&self, spec: &TensorSpec) -> Result<(), TensorMismatch> {
        (**self).check_tensors(spec)
    }
}

impl<K, T: CheckTensors, S> CheckTensors for HashMap<K, T, S> {
    fn check_tensors(&self, spec: &TensorSpec) -> Result<(), TensorMismatch> {
        self.values().try_for_each(|inner| inner.check_tensors(spec))
    }
}

impl<K, T: CheckTensors> CheckTensors for BTreeMap<K, T> {
    fn check_tensors(&self, spec: &TensorSpec) -> Result<(), TensorMismatch> {
        self.values().try_for_each(|inner| inner.check_tensors(spec))
    }
}

macro_rules! tuples {
    ($(($($type:ident $index:tt),+))+) => {$(
        impl<$($type: CheckTensors),+> CheckTensors for ($($type,)+) {
            fn check_tensors(&self, spec: &TensorSpec) -> Result<(), TensorMismatch> {
                $(self.$index.check_tensors(spec)?;)+
                Ok(())
            }
        }
    )+};
}

tuples! {
    (A 0)
    (A 0, B 1)
    (A 0, B 1, C 2)
    (A 0, B 1, C 2, D 3)
}
