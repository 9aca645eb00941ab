//! Tools for tests (feature `testing`), both of programs that use the framework and of the framework itself.
//!
//! Programs have the part that `api.rs` shows: [`fault`], `leaks`, and the beginning of a test under libtest.
//!
//! The rest is for tests of devices, of the transport and of the framework itself. `cluster` runs the
//! transports of several processes in one process, so that a test sees every step of a lease's way and can
//! stop between any two. `forge` writes frames that no honest process would write (WIRE-1), and `fuzz` has
//! the oracles of the fuzz targets.

pub use crate::fault;

pub mod cluster;
/// The node's part in a death, as bookkeeping: for the model of the protocol (`tests/death_model.rs`).
pub mod deaths {
    pub use crate::node::taint::{Act, Rounds, WAIT_FOR_MARKS};
}
pub mod forge;
pub mod fuzz;
mod hub;
pub mod inbox;
pub mod leaks;
pub mod recorder;
pub mod sending;
#[cfg(feature = "testing")]
pub(crate) mod under_libtest;

pub use cluster::Cluster;

pub use crate::os::thorough;
pub use inbox::{Received, Target, TestInbox};
pub use leaks::{Usage, leaks};
pub use sending::{Asked, Lack, Prepared, Unsent, Waiter};
