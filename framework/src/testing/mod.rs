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
//! writes what no honest process would (WIRE-1).

pub use crate::fault;

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
pub mod leaks;
#[cfg(any(test, feature = "testing"))]
pub mod sending;

#[cfg(any(test, feature = "testing"))]
pub use cluster::Cluster;
#[cfg(any(test, feature = "testing"))]
pub use inbox::{Received, Target, TestInbox};
#[cfg(any(test, feature = "testing"))]
pub use leaks::{Usage, leaks};
#[cfg(any(test, feature = "testing"))]
pub use sending::{Asked, Lack, Prepared, Unsent, Waiter};
