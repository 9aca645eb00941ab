//! Fault runs: a graph of workers that pass tensors with known content on, while processes are killed,
//! stopped and continued at points drawn from a seed.
//!
//! ```text
//!            ┌─ first-0 ─┐   ┌─ second-0 ─┐
//!   source ──┤           ├─×─┤            ├── forwarder ── sink ── the node
//!            └─ first-1 ─┘   └─ second-1 ─┘
//! ```
//!
//! Every item carries two tensors: one that the source made and everybody forwards, and one that each stage
//! makes anew from the last, or writes in place where it got it alone. What each element has to be follows
//! from the item's number. The sink compares all of them and tells the node.
//!
//! What a run shows: no element is ever wrong, whatever died; nothing arrives twice (MBX-1); after each fault
//! the graph serves again (DEATH-2); in the end every lease, descriptor, mapping and process is accounted for
//! (LEASE-1 to LEASE-4), in the node and in every worker. No stream waits for ever (DEATH-1), because the run
//! would.
//!
//! [`graph`] are the actors, [`plan`] what goes wrong and when, [`run`](mod@run) does it and looks.

// As in `random`, the unit tests have no workers.
#[cfg(not(test))]
pub mod graph;
pub mod plan;
#[cfg(not(test))]
pub mod run;

pub use plan::{Event, Plan};
#[cfg(not(test))]
pub use run::{Failure, Options, Report, run};
