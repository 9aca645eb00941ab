//! The device and process in which a stage runs, and with the feature `hosts` the host.

use tensorpost_core::api::device::{Device, DeviceError};
#[cfg(feature = "hosts")]
use tensorpost_core::api::hosts::{Anywhere, Host};

/// The device of a stage: a [`Device`], or the name of one (`"host"`, `"cuda:0"`, `"best"`). Only the program
/// that starts the pipeline looks a name up, when the pipeline starts; a worker does not look for GPUs that
/// it does not use.
///
/// With the feature `hosts` it may be another host of the node: `.on(&host)` with one of `Node::hosts`,
/// `.on(Anywhere)`, or by its number or name if the pipeline is written down before the node starts, as one
/// with closures has to be. The stage works on that host's own memory, or, with `.on((&host, "cuda:0"))`, on
/// a device of that host. That host looks the name up when the pipeline starts. If it has no such device, the
/// start fails with its name. `best` is not a name for another host, and `Anywhere` looks for no device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StageLocation {
    /// This device.
    Device(Device),
    /// The device with this name.
    Named(String),
    /// On this host of the node.
    #[cfg(feature = "hosts")]
    Host(Host),
    /// On the host with this number, which may join until the pipeline has waited
    /// [`HOST_DEADLINE`](super::limits::HOST_DEADLINE) for it. The head is 0, and others count in the order
    /// in which they join.
    #[cfg(feature = "hosts")]
    HostNumber(u16),
    /// As [`HostNumber`](Self::HostNumber), on the host that has this name; if there are several, the one
    /// with the lowest number.
    #[cfg(feature = "hosts")]
    HostNamed(String),
    /// On the host with the fewest actors, this one included; each replica is placed by itself.
    #[cfg(feature = "hosts")]
    Anywhere,
    /// On the device with this name of such a host.
    #[cfg(feature = "hosts")]
    DeviceOf(Box<StageLocation>, String),
}

impl StageLocation {
    /// Whether the stage may be on another host.
    pub(super) fn is_host(&self) -> bool {
        !matches!(self, StageLocation::Device(_) | StageLocation::Named(_))
    }

    pub(super) fn find(&self) -> Result<Device, DeviceError> {
        match self {
            StageLocation::Device(device) => Ok(device.clone()),
            StageLocation::Named(name) if name == "best" => Ok(Device::best()),
            StageLocation::Named(name) => name.parse(),
            #[cfg(feature = "hosts")]
            StageLocation::Host(_)
            | StageLocation::HostNumber(_)
            | StageLocation::HostNamed(_)
            | StageLocation::Anywhere => Ok(Device::host()),
            // That host looks it up.
            #[cfg(feature = "hosts")]
            StageLocation::DeviceOf(..) => Ok(Device::host()),
        }
    }

    /// Returns the host alone, without the device on it.
    pub(super) fn host(&self) -> &StageLocation {
        match self {
            #[cfg(feature = "hosts")]
            StageLocation::DeviceOf(host, _) => host,
            on => on,
        }
    }
}

impl Default for StageLocation {
    fn default() -> Self {
        StageLocation::Device(Device::host())
    }
}

impl From<Device> for StageLocation {
    fn from(device: Device) -> Self {
        StageLocation::Device(device)
    }
}

impl From<&Device> for StageLocation {
    fn from(device: &Device) -> Self {
        StageLocation::Device(device.clone())
    }
}

impl From<&str> for StageLocation {
    fn from(name: &str) -> Self {
        StageLocation::Named(name.to_owned())
    }
}

impl From<String> for StageLocation {
    fn from(name: String) -> Self {
        StageLocation::Named(name)
    }
}

#[cfg(feature = "hosts")]
impl From<&Host> for StageLocation {
    fn from(host: &Host) -> Self {
        StageLocation::Host(host.clone())
    }
}

#[cfg(feature = "hosts")]
impl From<Anywhere> for StageLocation {
    fn from(_: Anywhere) -> Self {
        StageLocation::Anywhere
    }
}

/// Makes a device of another host: `(&host, "cuda:0")`, `(Anywhere, "cuda:0")`,
/// `(StageLocation::HostNumber(1), "cuda:0")`.
#[cfg(feature = "hosts")]
impl<H: Into<StageLocation>> From<(H, &str)> for StageLocation {
    fn from((host, device): (H, &str)) -> Self {
        StageLocation::DeviceOf(Box::new(host.into()), device.to_owned())
    }
}

impl std::fmt::Display for StageLocation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            StageLocation::Device(device) if *device == Device::host() => f.write_str("host"),
            StageLocation::Device(device) => device.fmt(f),
            StageLocation::Named(name) => f.write_str(name),
            #[cfg(feature = "hosts")]
            StageLocation::Host(host) => host.fmt(f),
            #[cfg(feature = "hosts")]
            StageLocation::HostNumber(number) => write!(f, "host {number}"),
            #[cfg(feature = "hosts")]
            StageLocation::HostNamed(name) => write!(f, "host `{name}`"),
            #[cfg(feature = "hosts")]
            StageLocation::Anywhere => f.write_str("any host"),
            #[cfg(feature = "hosts")]
            StageLocation::DeviceOf(host, device) => write!(f, "{device} of {host}"),
        }
    }
}
