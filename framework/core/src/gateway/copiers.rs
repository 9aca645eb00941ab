//! The copiers of a gateway: for each GPU one outbound and one inbound, made when a tensor first needs it.
//!
//! A gateway that never sees such a tensor never loads the driver. A copier stays once it is made, as a
//! worker's streams do.
//!
//! **Locks.** `making` is held while the driver makes a context (0.3 s), so only threads that may block take
//! it. `all` is a leaf, held for one look-up or insertion.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::copier::Copier;
use crate::device::Device;
use crate::ids::DeviceId;
use crate::tensor::{DeviceStream, Tensor, TensorError};
use crate::transport::Transport;

/// Makes host tensors go through slots too. Only with the feature `testing`, for tests without a GPU.
#[cfg(feature = "testing")]
const STAGE_HOST: &str = "TENSORPOST_TESTING_STAGE_HOST";

/// The direction of copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Direction {
    /// To other hosts.
    Out,
    /// From them.
    In,
}

/// The copiers of a gateway, by device and direction; see the module.
pub(super) struct Copiers {
    transport: Arc<Transport>,
    all: Mutex<HashMap<(DeviceId, Direction), Arc<Copier>>>,
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

    /// Creates an empty set. `stages_host` makes host tensors go through slots too.
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

    /// Returns whether memory of this device goes through slots.
    pub(super) fn stages(&self, device: DeviceId) -> bool {
        device != DeviceId::HOST || self.stages_host
    }

    /// Returns the copier, if it has been made.
    pub(super) fn known(&self, device: DeviceId, way: Direction) -> Option<Arc<Copier>> {
        self.all.lock().get(&(device, way)).cloned()
    }

    /// Returns the copier, and makes it if there is none. May block on the driver.
    ///
    /// # Errors
    /// This process cannot use the device.
    pub(super) fn get(&self, device: DeviceId, way: Direction) -> Result<Arc<Copier>, TensorError> {
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

    /// Returns the number by which bulk lanes know a device, or `None` beyond 256 devices.
    pub(super) fn number(&self, device: DeviceId) -> Option<u8> {
        let mut numbers = self.numbers.lock();
        let known = numbers.iter().position(|known| *known == device);
        let index = known.unwrap_or_else(|| {
            numbers.push(device);
            numbers.len() - 1
        });
        u8::try_from(index).ok()
    }

    /// Returns the device with this number.
    pub(super) fn numbered(&self, number: u8) -> Option<DeviceId> {
        self.numbers.lock().get(usize::from(number)).copied()
    }

    /// Returns whether these tensors can be sent as they are, without waiting or packing.
    pub(super) fn are_ready(&self, tensors: &[Tensor]) -> bool {
        let can_be_read = |device| !self.stages(device) || self.known(device, Direction::Out).is_some();
        tensors.iter().all(|tensor| tensor.is_packed_and_ready() && can_be_read(tensor.device()))
    }

    /// Returns the device on which a tensor lands that was in GPU memory on another host. That is the GPU
    /// that its receiver works on, else this host's first GPU, else host memory. May block on the driver.
    pub(super) fn landing_of_gpu(&self, receiver: Option<DeviceId>) -> DeviceId {
        let first = || {
            let found = Device::best().id();
            (found != DeviceId::HOST).then_some(found)
        };
        receiver.or_else(|| *self.first_gpu.get_or_init(first)).unwrap_or(DeviceId::HOST)
    }
}
