//! Devices of other hosts, by the names that they have there.
//!
//! Used by `Node::device_on` and by pipelines, before a worker starts. A host looks the name up as its node's
//! process counts GPUs, and answers with the identity of the device that all of its processes share. It only
//! looks the device up: no process opens it but the worker that will work on it.

use super::{Answer, Request, ask_starter, not_done};
use crate::device::{Device, DeviceError};
use crate::node::limits::MAX_NAME;
use crate::node::spawn::ActorError;
use crate::node::supervisor::Supervisor;
use crate::observe::text::shown;

/// Finds a device of this host by its name.
pub(super) fn look_for(name: &str) -> Result<Device, String> {
    let name = shown(name.to_owned(), MAX_NAME);
    name.parse().map_err(|error: DeviceError| format!("`{name}`, which is to be a device there: {error}"))
}

impl Supervisor {
    /// Returns the device with this name on the host with this number. The node there looks it up, and opens
    /// nothing.
    ///
    /// # Errors
    /// The host has no such device, or does not belong to this node.
    #[doc(hidden)] // for the pipelines, which are another crate
    pub fn device_on(&self, host: u16, name: &str) -> Result<Device, ActorError> {
        let host = self.host_of(host)?;
        let failed = |why: String| ActorError::Elsewhere { host: host.to_string(), why };
        let Some(transport) = self.transport_to_hosts() else {
            return Err(failed("this node has shut down".to_owned()));
        };
        if transport.directory.host() == host.number {
            return look_for(name).map_err(failed);
        }
        match ask_starter(&transport, &host, Request::Device(name.to_owned()))? {
            Answer::Device(device) => Ok(device.described(|name| shown(name, MAX_NAME))),
            other => Err(not_done(&host, other)),
        }
    }
}
