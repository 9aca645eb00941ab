//! Names a device without touching it.

use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};

use super::host::HostBackend;
use super::{Backend, DeviceError, DeviceKind};
use crate::ids::DeviceId;

/// A device by name, which tells a worker what to use. Making one costs no context and no device memory, and
/// [`host`](Self::host) does not even look for a driver. The device is opened when it is used.
///
/// It means the same device in every process of the machine. Its text is `host`, `cuda:0`, `cuda` (the first)
/// or the UUID that `nvidia-smi -L` prints.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Device {
    id: DeviceId,
    kind: DeviceKind,
    name: String,
    /// The ordinal in the process that made this value. It does not travel: another process may count
    /// differently, and there it would name another device.
    #[serde(skip)]
    ordinal: Option<usize>,
}

impl Device {
    /// Returns host memory, which every machine has.
    pub fn host() -> Self {
        Device { id: DeviceId::HOST, kind: DeviceKind::Host, name: "host memory".to_owned(), ordinal: None }
    }

    /// Returns the GPU with this ordinal, as `CUDA_VISIBLE_DEVICES` of this process counts them.
    ///
    /// # Errors
    /// There is no such GPU, there is no driver, or the feature `cuda` is off.
    pub fn cuda(ordinal: usize) -> Result<Self, DeviceError> {
        let mut all = cuda_devices()?;
        let found = all.len();
        if ordinal >= found {
            return Err(DeviceError::NoDevice { wanted: format!("cuda:{ordinal}"), found });
        }
        Ok(all.swap_remove(ordinal))
    }

    /// Returns the device with this id.
    ///
    /// # Errors
    /// As for [`cuda`](Self::cuda).
    pub fn by_id(id: DeviceId) -> Result<Self, DeviceError> {
        if id == DeviceId::HOST {
            return Ok(Self::host());
        }
        let all = cuda_devices()?;
        let found = all.len();
        let device = all.into_iter().find(|device| device.id == id);
        device.ok_or_else(|| DeviceError::NoDevice { wanted: id.to_string(), found })
    }

    /// Returns the first GPU if there is one, and the host otherwise.
    pub fn best() -> Self {
        Self::cuda(0).unwrap_or_else(|error| {
            tracing::debug!(%error, "the best device is the host");
            Self::host()
        })
    }

    /// Returns all devices: the GPUs by ordinal, then the host.
    pub fn all() -> Vec<Self> {
        let mut all = cuda_devices().unwrap_or_else(|error| {
            tracing::debug!(%error, "no GPU is listed");
            Vec::new()
        });
        all.push(Self::host());
        all
    }

    /// Returns the device's id, which is the same in every process.
    pub fn id(&self) -> DeviceId {
        self.id
    }

    /// Returns the kind of the device.
    pub fn kind(&self) -> DeviceKind {
        self.kind
    }

    /// Returns the name for people: the model of a GPU.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns a GPU's ordinal, as this process counts. `None` if the value came from another process, which
    /// may count differently. Ask [`by_id`](Self::by_id) then.
    pub fn ordinal(&self) -> Option<usize> {
        self.ordinal
    }

    /// Makes a device from another host's description, with a name that can be shown (WIRE-1).
    #[cfg(feature = "hosts")]
    pub(crate) fn described(mut self, name: impl FnOnce(String) -> String) -> Self {
        self.name = name(self.name);
        self
    }

    inside! {
        /// Opens the device, once per process. For a GPU the first call makes its context (300 ms).
        ///
        /// # Errors
        /// The device is not visible to this process, or does not start.
        pub fn backend(&self) -> Result<Arc<dyn Backend>, DeviceError> {
            match self.kind {
                DeviceKind::Host => {
                    static HOST: OnceLock<Arc<HostBackend>> = OnceLock::new();
                    Ok(Arc::clone(HOST.get_or_init(HostBackend::new)) as Arc<dyn Backend>)
                }
                DeviceKind::Cuda => cuda_backend(self.id),
            }
        }
    }
}

#[cfg(feature = "cuda")]
fn cuda_devices() -> Result<Vec<Device>, DeviceError> {
    let describe = |info: super::cuda::CudaDeviceInfo| Device {
        id: info.id,
        kind: DeviceKind::Cuda,
        name: info.name,
        ordinal: Some(info.ordinal),
    };
    Ok(super::cuda::devices()?.into_iter().map(describe).collect())
}

#[cfg(feature = "cuda")]
fn cuda_backend(id: DeviceId) -> Result<Arc<dyn Backend>, DeviceError> {
    Ok(super::cuda::CudaBackend::by_id(id)?)
}

#[cfg(not(feature = "cuda"))]
fn cuda_devices() -> Result<Vec<Device>, DeviceError> {
    Err(without_cuda())
}

#[cfg(not(feature = "cuda"))]
fn cuda_backend(_: DeviceId) -> Result<Arc<dyn Backend>, DeviceError> {
    Err(without_cuda())
}

#[cfg(not(feature = "cuda"))]
fn without_cuda() -> DeviceError {
    DeviceError::NoDriver { reason: "this program was built without tensorpost's feature `cuda`".to_owned() }
}

impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for Device {}

impl std::hash::Hash for Device {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.id.hash(state);
    }
}

/// Writes the text that [`FromStr`] reads.
impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ordinal {
            Some(ordinal) => write!(f, "cuda:{ordinal}"),
            None => write!(f, "{}", self.id),
        }
    }
}

impl FromStr for Device {
    type Err = DeviceError;

    fn from_str(text: &str) -> Result<Self, DeviceError> {
        match text {
            "host" => return Ok(Self::host()),
            "cuda" => return Self::cuda(0),
            _ => {}
        }
        if let Some(ordinal) = text.strip_prefix("cuda:").and_then(|ordinal| ordinal.parse().ok()) {
            return Self::cuda(ordinal);
        }
        match uuid(text) {
            Some(id) => Self::by_id(id),
            None => Err(DeviceError::Refused {
                what: format!("`{text}` as a device; write `host`, `cuda:0` or `GPU-` and a UUID"),
            }),
        }
    }
}

/// Parses `GPU-` and 32 hexadecimal digits, with dashes anywhere.
fn uuid(text: &str) -> Option<DeviceId> {
    let digits: Vec<u8> = text.strip_prefix("GPU-")?.bytes().filter(|&byte| byte != b'-').collect();
    let mut id = [0; 16];
    if digits.len() != 32 {
        return None;
    }
    for (byte, pair) in id.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(DeviceId(id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_is_always_there() {
        let host: Device = "host".parse().unwrap();
        assert_eq!(
            (host.clone(), host.kind(), host.id()),
            (Device::host(), DeviceKind::Host, DeviceId::HOST)
        );
        assert_eq!(host.to_string(), "host");
        assert_eq!(host.backend().unwrap().id(), DeviceId::HOST);
        assert!(Arc::ptr_eq(&host.backend().unwrap(), &Device::host().backend().unwrap()));
        assert_eq!(Device::all().last(), Some(&host));
        assert_eq!(Device::best(), Device::all()[0]);
    }

    #[test]
    fn nonsense_names_no_device() {
        for text in [
            "",
            "Host",
            "cuda:",
            "cuda:x",
            "cuda:-1",
            "gpu:0",
            "GPU-",
            "GPU-12",
            &format!("GPU-{}", "é".repeat(16)),
        ] {
            let error = text.parse::<Device>().unwrap_err();
            assert!(matches!(error, DeviceError::Refused { .. }), "{text}: {error}");
        }
        assert!("cuda:4096".parse::<Device>().is_err());
    }

    /// "Device 0 here is device 1 there": an ordinal that another process gave does not travel.
    #[test]
    fn a_device_travels_as_its_identity() {
        let id = DeviceId([7; 16]);
        let here = Device { id, kind: DeviceKind::Cuda, name: "a GPU".to_owned(), ordinal: Some(3) };
        assert_eq!(here.to_string(), "cuda:3");
        let there: Device = rmp_serde::from_slice(&rmp_serde::to_vec_named(&here).unwrap()).unwrap();
        assert_eq!((&there, there.ordinal(), there.to_string()), (&here, None, id.to_string()));
    }

    #[test]
    fn identities_are_read_as_they_are_written() {
        let id = DeviceId(*b"0123456789abcdef");
        assert_eq!(uuid(&id.to_string()), Some(id));
        for device in Device::all() {
            assert_eq!(device.to_string().parse::<Device>().unwrap(), device);
            assert_eq!(device.id().to_string().parse::<Device>().unwrap(), device);
        }
    }
}
