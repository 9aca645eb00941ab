//! What goes on in a node, for people: its log, a trace of a run, live figures, a line of progress.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let file = std::env::temp_dir().join(format!("tensorpost-observe-{}.json", std::process::id()));
//! let node = tensorpost::Node::builder().trace(&file).start()?;
//! let figures = node.figures()?; // counts of every process and actor; two looks give rates
//! assert!(figures.silent.is_empty());
//! drop(node); // writes the trace: open it in https://ui.perfetto.dev
//! assert!(std::fs::read_to_string(&file)?.contains("traceEvents"));
//! # std::fs::remove_file(&file)?;
//! # Ok(())
//! # }
//! ```
//!
//! [`log`] forwards events of workers to the node's subscriber. [`trace`] writes what every process did into one file.
//! [`figures`] is a snapshot of rates, queues and times. [`progress`] shows figures on a terminal. [`sight`] is the
//! snapshot for hang detection.
//!
//! Nothing here makes an actor wait: logs and traces that find no room are dropped and counted, figures are read when
//! somebody asks. Everything but [`log`]s and control packets stays in the process that it is about until then. This
//! folder stands on `os` and `ids` alone, so all others can note events in it.

pub mod figures;
pub mod log;
pub mod progress;
pub mod sight;
pub(crate) mod text;
pub mod trace;
