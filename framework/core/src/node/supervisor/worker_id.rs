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

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 >> 63 {
            // Without the range of its node.
            0 => write!(f, "worker#{}", self.0 & u64::from(u32::MAX)),
            _ => write!(f, "worker#{} of host {}", self.0 & ((1 << 47) - 1), (self.0 >> 47) as u16),
        }
    }
}
