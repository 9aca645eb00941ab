//! The orders about a worker, which also go to other hosts.

use serde::{Deserialize, Serialize};

use crate::ids::DeviceId;

/// An order about a worker. Each does the same as the [`Supervisor`](super::Supervisor)'s method with that
/// name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::node) enum WorkerOrder {
    Kill,
    Retire,
    AskToStop,
    LetGo,
    KeepSpares(u32, DeviceId),
}
