//! Lists the GPUs. Makes no context, and so costs no device memory.

use serde::{Deserialize, Serialize};

use super::super::DeviceError;
use super::driver::{self, Driver};
use crate::ids::DeviceId;

/// A GPU of this machine, as this process sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CudaDeviceInfo {
    /// The device's id, the same in every process.
    pub id: DeviceId,
    /// Its number in this process, on which `CUDA_VISIBLE_DEVICES` has an effect.
    pub ordinal: usize,
    /// The model.
    pub name: String,
    /// The size of its memory in bytes.
    pub total_bytes: u64,
    /// The GPUs whose memory its kernels can use directly.
    pub peers: Vec<DeviceId>,
}

/// Returns the GPUs that this process can use, by ordinal; none if there is a driver but no GPU.
///
/// # Errors
/// [`DeviceError::NoDriver`], or the driver's error.
pub fn devices() -> Result<Vec<CudaDeviceInfo>, DeviceError> {
    let driver = match driver::get() {
        Err(error) if driver::is_no_device(&error) => return Ok(Vec::new()),
        other => other?,
    };
    let handles = handles(driver)?;
    let ids = handles
        .iter()
        .map(|&device| driver.device_uuid(device).map(DeviceId))
        .collect::<Result<Vec<_>, _>>()?;
    let describe = |ordinal: usize| -> Result<_, DeviceError> {
        let device = handles[ordinal];
        let mut peers = Vec::new();
        for (&peer, &id) in handles.iter().zip(&ids) {
            if peer != device && driver.can_access_peer(device, peer)? {
                peers.push(id);
            }
        }
        Ok(CudaDeviceInfo {
            id: ids[ordinal],
            ordinal,
            name: driver.device_name(device)?,
            total_bytes: driver.device_bytes(device)?,
            peers,
        })
    };
    (0..handles.len()).map(describe).collect()
}

/// Returns the ordinal of a GPU.
pub(super) fn ordinal_of(id: DeviceId) -> Result<usize, DeviceError> {
    let found = devices()?;
    let ordinal = found.iter().position(|device| device.id == id);
    ordinal.ok_or_else(|| DeviceError::NoDevice { wanted: id.to_string(), found: found.len() })
}

/// Returns the driver's handles of the GPUs, by ordinal.
pub(super) fn handles(driver: &Driver) -> Result<Vec<i32>, DeviceError> {
    (0..driver.device_count()?).map(|ordinal| driver.device(ordinal)).collect()
}
