//! The device and process in which a stage runs.

use crate::device::{Device, DeviceError};

/// The device of a stage: a [`Device`], or the name of one (`"host"`, `"cuda:0"`, `"best"`). A name is looked up when the
/// pipeline starts, and in the program that starts it alone; a worker does not look for GPUs that it does not use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum On {
    /// This one.
    Device(Device),
    /// The one with this name.
    Named(String),
}

impl On {
    pub(super) fn find(&self) -> Result<Device, DeviceError> {
        match self {
            On::Device(device) => Ok(device.clone()),
            On::Named(name) if name == "best" => Ok(Device::best()),
            On::Named(name) => name.parse(),
        }
    }
}

impl Default for On {
    fn default() -> Self {
        On::Device(Device::host())
    }
}

impl From<Device> for On {
    fn from(device: Device) -> Self {
        On::Device(device)
    }
}

impl From<&Device> for On {
    fn from(device: &Device) -> Self {
        On::Device(device.clone())
    }
}

impl From<&str> for On {
    fn from(name: &str) -> Self {
        On::Named(name.to_owned())
    }
}

impl From<String> for On {
    fn from(name: String) -> Self {
        On::Named(name)
    }
}

impl std::fmt::Display for On {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            On::Device(device) if *device == Device::host() => f.write_str("host"),
            On::Device(device) => device.fmt(f),
            On::Named(name) => f.write_str(name),
        }
    }
}
