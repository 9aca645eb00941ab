//! What tests are made with (feature `testing`): those of programs that use the framework, and its own.
//!
//! For programs: [`fault`] has processes end, stop or panic at named points; `leaks` shows whether everything came
//! back.
//!
//! ```
//! # #[cfg(feature = "testing")] {
//! use tensorpost::prelude::*;
//! use tensorpost::testing::{fault, leaks};
//!
//! # fn main() -> anyhow::Result<()> {
//! let node = Node::builder().start()?;
//! let stream = node.host_stream()?;
//! stream.zeros(DType::F32, &[4])?; // the first allocation makes the pool's chunk
//! let before = leaks();
//! fault::arm("lease.release=delay:1".parse()?); // the next release is late
//! drop(stream.zeros(DType::F32, &[4])?);
//! assert!(before.growth(&leaks()).is_empty());
//! # fault::disarm();
//! # Ok(())
//! # }
//! # main().unwrap();
//! # }
//! ```
//!
//! For tests of devices, of the transport and of the framework itself: `cluster` runs the transports of several
//! processes in one process, so that a test sees every step of a lease's way and can stop between any two. `forge`
//! writes what no honest process would (WIRE-1), and `fuzz` has the oracles of the fuzz targets.

pub use crate::fault;

pub mod cluster;
/// The node's part in a death, as bookkeeping: for the model of the protocol (`tests/death_model.rs`).
pub mod deaths {
    pub use crate::node::taint::{Act, PATIENCE, Rounds};
}
pub mod forge;
pub mod fuzz;
mod hub;
pub mod inbox;
pub mod leaks;
pub mod sending;

pub use cluster::Cluster;
pub use inbox::{Received, Target, TestInbox};
pub use leaks::{Usage, leaks};
pub use sending::{Asked, Lack, Prepared, Unsent, Waiter};
