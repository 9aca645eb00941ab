//! The facts that the driver and its GPUs report, for the doctor. Makes no context.

use serde::{Deserialize, Serialize};

use super::super::DeviceError;
use super::{abi, devices, driver};
use crate::ids::DeviceId;

/// The driver as this process has loaded it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DriverFacts {
    /// The version of CUDA that the driver is made for, as 1000 times the major and 10 times the minor one.
    pub version: i32,
    /// The file that was loaded.
    pub library: Option<String>,
    /// The GPUs, or the reason why there are none.
    pub gpus: Result<Vec<GpuFacts>, Refusal>,
}

impl Default for DriverFacts {
    fn default() -> Self {
        DriverFacts { version: 0, library: None, gpus: Ok(Vec::new()) }
    }
}

/// The driver's refusal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The driver's number for it, if it has one.
    pub code: Option<i32>,
    pub text: String,
}

/// A GPU that this process sees.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuFacts {
    pub id: DeviceId,
    pub name: String,
    pub bytes: u64,
    /// The GPU's place on the PCI bus, as the kernel writes it.
    pub bus: String,
    /// The abilities that the framework needs and the GPU lacks.
    pub lacks: Vec<String>,
    /// The ordinals of the GPUs whose memory it reaches.
    pub reaches: Vec<usize>,
    /// 0 for the default, 2 for prohibited, 3 for one process alone.
    pub compute_mode: i32,
}

impl From<DeviceError> for Refusal {
    fn from(error: DeviceError) -> Self {
        let code = if let DeviceError::Driver { code, .. } = error { Some(code) } else { None };
        Refusal { code, text: error.to_string() }
    }
}

/// Loads the driver and asks it.
pub fn facts() -> DriverFacts {
    match driver::version() {
        Ok(version) => DriverFacts { version, gpus: gpus().map_err(Refusal::from), library: library() },
        Err(error) => DriverFacts { version: 0, library: None, gpus: Err(error.into()) },
    }
}

fn gpus() -> Result<Vec<GpuFacts>, DeviceError> {
    let driver = driver::get()?;
    let handles = devices::handles(driver)?;
    let one = |&device: &i32| -> Result<GpuFacts, DeviceError> {
        let number = |attribute| driver.device_attribute(device, attribute);
        let mut lacks = Vec::new();
        for (attribute, what) in abi::NEEDED {
            if number(attribute)? == 0 {
                lacks.push(what.to_owned());
            }
        }
        let mut reaches = Vec::new();
        for (ordinal, &peer) in handles.iter().enumerate() {
            if peer != device && driver.can_access_peer(device, peer)? {
                reaches.push(ordinal);
            }
        }
        let (domain, bus, place) =
            (number(abi::PCI_DOMAIN)?, number(abi::PCI_BUS)?, number(abi::PCI_DEVICE)?);
        Ok(GpuFacts {
            id: DeviceId(driver.device_uuid(device)?),
            name: driver.device_name(device)?,
            bytes: driver.device_bytes(device)?,
            bus: format!("{domain:04x}:{bus:02x}:{place:02x}.0"),
            lacks,
            reaches,
            compute_mode: number(abi::COMPUTE_MODE)?,
        })
    };
    handles.iter().map(one).collect()
}

/// Returns the file of the loaded driver: its name ends with the version of the driver's user part.
fn library() -> Option<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let path = maps
        .lines()
        .find_map(|line| Some(&line[line.find("/")?..]).filter(|path| path.contains("/libcuda.so")))?;
    Some(path.to_owned())
}
