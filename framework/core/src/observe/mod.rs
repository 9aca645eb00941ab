//! Records of a node: its log, the actions in a trace, live metrics. The crate that watches shows them.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let file = std::env::temp_dir().join(format!("tensorpost-observe-{}.json", std::process::id()));
//! let node = tensorpost::node::Node::builder().trace(&file).start()?;
//! let metrics = node.metrics()?; // counts of every process and actor; two looks give rates
//! assert!(metrics.silent.is_empty());
//! drop(node); // writes the trace: open it in https://ui.perfetto.dev
//! assert!(std::fs::read_to_string(&file)?.contains("traceEvents"));
//! # std::fs::remove_file(&file)?;
//! # Ok(())
//! # }
//! ```
//!
//! * [`log`] forwards events of workers to the node's subscriber.
//! * [`trace`] records the actions of every process, for one file.
//! * [`metrics`] is a snapshot of rates, queues and times.
//! * [`hang_probe`] is the snapshot for hang detection, and [`survey`] that of memory and links for the
//!   console.
//! * [`context`] travels with a message for OpenTelemetry.
//!
//! Nothing here makes an actor wait: logs and traces that find no room are dropped and counted, and metrics
//! are read when somebody asks. Everything but [`log`]s and control packets stays in the process that it is
//! about until somebody asks. This folder depends on `os` and `ids` alone, so all other folders can note
//! events in it.

mod callsites;
pub mod context;
pub mod hang_probe;
pub(crate) mod list;
pub mod log;
pub mod metrics;
pub(crate) mod pace;
pub mod survey;
pub mod telemetry;
pub mod text;
pub mod trace;
