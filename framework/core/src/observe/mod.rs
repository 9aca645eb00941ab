//! What goes on in a node, for people: its log, a trace of a run, live figures, a line of progress.
//!
//! Nothing here makes an actor wait: logs and traces that find no room are dropped and counted, figures are read when
//! somebody asks. Everything but [`log`]s and control packets stays in the process it is about until then.
//!
//! [`log`] forwards events of workers; [`trace`] writes what every process did into one file; [`figures`] is a snapshot
//! of rates, queues and times; [`progress`] shows figures on a terminal;
//! [`sight`] is what a process shows of what stands still in it.

pub mod figures;
pub mod log;
pub mod progress;
pub mod sight;
pub(crate) mod text;
pub mod trace;
