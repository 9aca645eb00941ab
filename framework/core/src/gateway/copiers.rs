//! The copiers of a gateway: for each GPU one out and one in, made when a tensor first needs it.
//!
//! A gateway to which no such tensor ever comes looks for no driver. One that is made stays, as a worker's
//! streams do.
//!
//! **Locks.** `making`, while the driver makes a context (0.3 s): only threads that may wait take it. `all`,
//! under which nothing is done.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::copier::Copier;
use crate::device::Device;
use crate::ids::DeviceId;
use crate::tensor::{DeviceStream, Tensor, TensorError};
use crate::transport::Transport;

/// Has host tensors go through slots too. Only with the feature `testing`, for tests without a GPU.
#[cfg(feature = "testing")]
const STAGE_HOST: &str = "TENSORPOST_TESTING_STAGE_HOST";

/// Where copies go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Way {
    /// To other hosts.
    Out,
    /// From them.
    In,
}

/// See the module.
pub(super) struct Copiers {
    transport: Arc<Transport>,
    all: Mutex<HashMap<(DeviceId, Way), Arc<Copier>>>,
    making: Mutex<()>,
    first_gpu: OnceLock<Option<DeviceId>>,
    stages_host: bool,
    numbers: Mutex<Vec<DeviceId>>,
}

impl Copiers {
    pub(super) fn new(transport: &Arc<Transport>) -> Arc<Self> {
        #[cfg(feature = "testing")]
        let stages_host = std::env::var_os(STAGE_HOST).is_some();
        #[cfg(not(feature = "testing"))]
        let stages_host = false;
        Self::staging(transport, stages_host)
    }

    /// Whether host tensors go through slots too.
    pub(super) fn staging(transport: &Arc<Transport>, stages_host: bool) -> Arc<Self> {
        Arc::new(Copiers {
            transport: Arc::clone(transport),
            all: Mutex::default(),
            making: Mutex::default(),
            first_gpu: OnceLock::new(),
            stages_host,
            numbers: Mutex::default(),
        })
    }

    /// Whether memory of this device goes through slots.
    pub(super) fn stages(&self, device: DeviceId) -> bool {
        device != DeviceId::HOST || self.stages_host
    }

    /// The copier, if there is one.
    pub(super) fn known(&self, device: DeviceId, way: Way) -> Option<Arc<Copier>> {
        self.all.lock().get(&(device, way)).cloned()
    }

    /// The copier, made where there is none. May wait for the driver.
    ///
    /// # Errors
    /// This process cannot use the device.
    pub(super) fn get(&self, device: DeviceId, way: Way) -> Result<Arc<Copier>, TensorError> {
        if let Some(copier) = self.known(device, way) {
            return Ok(copier);
        }
        let _making = self.making.lock();
        if let Some(copier) = self.known(device, way) {
            return Ok(copier);
        }
        let pool = self.transport.pool_for(device)?;
        let copier = Copier::start(DeviceStream::new(pool, Arc::clone(self.transport.domain()))?)?;
        self.all.lock().insert((device, way), Arc::clone(&copier));
        Ok(copier)
    }

    /// The number by which lanes for bulk know a device. There are fewer than 256.
    pub(super) fn number(&self, device: DeviceId) -> Option<u8> {
        let mut numbers = self.numbers.lock();
        let known = numbers.iter().position(|known| *known == device);
        let index = known.unwrap_or_else(|| {
            numbers.push(device);
            numbers.len() - 1
        });
        u8::try_from(index).ok()
    }

    /// The device with this number.
    pub(super) fn numbered(&self, number: u8) -> Option<DeviceId> {
        self.numbers.lock().get(usize::from(number)).copied()
    }

    /// Whether these go out as they lie.
    pub(super) fn are_ready(&self, tensors: &[Tensor]) -> bool {
        let can_be_read = |device| !self.stages(device) || self.known(device, Way::Out).is_some();
        tensors.iter().all(|tensor| tensor.is_packed_and_ready() && can_be_read(tensor.device()))
    }

    /// Where a tensor lands that was in GPU memory on another host: on the GPU that its receiver works on,
    /// else on this host's first, and where there is none in host memory. May wait for the driver.
    pub(super) fn landing_of_gpu(&self, receiver: Option<DeviceId>) -> DeviceId {
        let first = || {
            let found = Device::best().id();
            (found != DeviceId::HOST).then_some(found)
        };
        receiver.or_else(|| *self.first_gpu.get_or_init(first)).unwrap_or(DeviceId::HOST)
    }
}
