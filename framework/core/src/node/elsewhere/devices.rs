//! Devices of other hosts, by the names that they have there.
//!
//! Used by `Node::device_on` and by pipelines, before a worker starts: a host looks the name up as its node's
//! process counts GPUs, and says which device that is, by the identity that all of its processes share. It is
//! looked for only, and opened by no process but the worker that is to work on it.

use super::{Answer, Request, ask_starter, not_done};
use crate::device::{Device, DeviceError};
use crate::node::limits::MAX_NAME;
use crate::node::spawn::ActorError;
use crate::node::supervisor::Supervisor;
use crate::observe::text::shown;

/// A device of this host.
pub(super) fn look_for(name: &str) -> Result<Device, String> {
    let name = shown(name.to_owned(), MAX_NAME);
    name.parse().map_err(|error: DeviceError| format!("`{name}`, which is to be a device there: {error}"))
}

impl Supervisor {
    /// The device that has this name on the host with this number, by what that host says; the node there
    /// looks for it, and opens nothing.
    ///
    /// # Errors
    /// It has no such device, or is not of this node.
    #[doc(hidden)] // for the pipelines, which are another crate
    pub fn device_on(&self, host: u16, name: &str) -> Result<Device, ActorError> {
        let host = self.host_of(host)?;
        let failed = |why: String| ActorError::Elsewhere { host: host.to_string(), why };
        let Some(transport) = self.elsewhere() else {
            return Err(failed("this node has shut down".to_owned()));
        };
        if transport.host() == host.number {
            return look_for(name).map_err(failed);
        }
        match ask_starter(&transport, &host, Request::Device(name.to_owned()))? {
            Answer::Device(device) => Ok(device.described(|name| shown(name, MAX_NAME))),
            other => Err(not_done(&host, other)),
        }
    }
}
