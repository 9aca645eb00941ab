//! What tests of devices, transports and of the framework itself are made with (feature `testing`).
//!
//! [`cluster`] runs several processes' post offices in one process, so that a test sees every step of a lease's way and
//! can stop between any two. [`forge`] writes what no honest process would (WIRE-1).

#[cfg(any(test, feature = "testing"))]
pub mod cluster;
/// The node's part in a death, as bookkeeping: for the model of the protocol (`tests/death_model.rs`).
#[cfg(any(test, feature = "testing"))]
pub mod deaths {
    pub use crate::node::taint::{Act, PATIENCE, Rounds};
}
#[cfg(any(test, feature = "testing"))]
pub mod forge;
#[cfg(any(test, feature = "testing"))]
mod hub;
#[cfg(any(test, feature = "testing"))]
pub mod inbox;
#[cfg(any(test, feature = "testing"))]
pub mod sending;

#[cfg(any(test, feature = "testing"))]
pub use cluster::Cluster;
#[cfg(any(test, feature = "testing"))]
pub use inbox::{Received, Target, TestInbox};
#[cfg(any(test, feature = "testing"))]
pub use sending::{Asked, Lack, Prepared, Unsent, Waiter};
