//! Fault runs: a graph of workers passes tensors with known content on, while processes are killed, stopped
//! and continued at points drawn from a seed.
//!
//! ```text
//!            ┌─ first-0 ─┐   ┌─ second-0 ─┐
//!   source ──┤           ├─×─┤            ├── forwarder ── sink ── the node
//!            └─ first-1 ─┘   └─ second-1 ─┘
//! ```
//!
//! Every item carries two tensors. The source makes one, and every stage forwards it. Each stage makes the
//! other anew from the last one, or writes it in place where it got it alone. The item's number determines
//! the value of each element. The sink compares all of them and tells the node.
//!
//! A run shows that no element is ever wrong, whatever died, and that nothing arrives twice (MBX-1). After
//! each fault the graph serves again (DEATH-2). In the end every lease, descriptor, mapping and process is
//! accounted for (LEASE-1 to LEASE-4), in the node and in every worker. No stream waits for ever (DEATH-1),
//! because the run would wait with it.
//!
//! [`graph`] has the actors, [`plan`] draws the faults and their times, and [`run`](mod@run) plays them and
//! checks.

// As in `random`, the unit tests have no workers.
#[cfg(not(test))]
pub mod graph;
pub mod plan;
#[cfg(not(test))]
pub mod run;

pub use plan::{Event, Plan};
#[cfg(not(test))]
pub use run::{Failure, Options, Report, run};
