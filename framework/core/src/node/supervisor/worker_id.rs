//! The id of a worker.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The id of a worker, the same in all its lives. No other worker ever gets it, nor does one of another node
/// of this program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct WorkerId(pub(crate) u64);

impl WorkerId {
    /// Whether it is a worker of another host. Its processes have no numbers here.
    #[doc(hidden)] // for the pipelines, which are another crate
    pub fn is_of_another_host(self) -> bool {
        self.0 >> 63 == 1
    }
}

#[cfg(feature = "hosts")]
impl WorkerId {
    /// Makes the id of a worker of another host, which this host's supervisor does not supervise.
    pub(crate) fn of_host(host: u16, number: u64) -> Self {
        // No supervisor counts so far. The top bit marks workers of the head, host 0, too: an id of another
        // host begins with a one.
        WorkerId(1 << 63 | u64::from(host) << 47 | number & ((1 << 47) - 1))
    }

    /// Returns its host and its number there, if it is a worker of another host.
    pub(crate) fn host_and_number(self) -> Option<(u16, u64)> {
        self.is_of_another_host().then_some(((self.0 >> 47) as u16, self.0 & ((1 << 47) - 1)))
    }

    /// Returns its host, if that is another one.
    #[doc(hidden)] // for the pipelines, which are another crate
    pub fn host(self) -> Option<u16> {
        self.host_and_number().map(|(host, _)| host)
    }
}

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 >> 63 {
            // Without the range of its node.
            0 => write!(f, "worker#{}", self.0 & u64::from(u32::MAX)),
            _ => write!(f, "worker#{} of host {}", self.0 & ((1 << 47) - 1), (self.0 >> 47) as u16),
        }
    }
}
