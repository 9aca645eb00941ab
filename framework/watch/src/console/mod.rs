//! The client by which the command `tensorpost` asks a running node. The format of the messages belongs to
//! this version of the crate only; the command reports a node of another version.
//!
//! | file | holds |
//! |---|---|
//! | `client` | finding nodes, asking one |
//! | `traced` | a trace that came over the socket |
//! | `text` | texts of a process that nobody has checked |
//! | `figures`, `graph` | rates and times from two snapshots; the graph of senders and receivers |
//! | `tables` | the tables of these figures |

mod client;
mod figures;
mod graph;
pub mod tables;
mod text;
mod traced;

pub use tensorpost_core::api::observe::{ProcessState, TraceError, TraceSummary};
pub use tensorpost_core::api::watch::{
    ActorFacts, Answer, GpuShare, HangFacts, Hello, HolderReport, HostFacts, LinkFacts, LinkReport, LogLine,
    NodeFacts, NodeSnapshot, PoolFacts, PoolReport, ProcessFacts, Request, SentReport, Severity, TraceFacts,
    TracedProcess, VERSION, WayFacts,
};

pub use self::client::{Console, ConsoleError, FoundNode, nodes, nodes_of_all_users};
pub use self::figures::{
    ActorFigures, Figures, HolderFigures, LinkFigures, MemoryFigures, NodeFigures, ProcessFigures,
};
pub use self::graph::{Graph, GraphEdge, GraphNode};
pub use self::traced::Traced;

/// A sample snapshot, without a node.
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod sample {
    pub use tensorpost_core::api::watch::sample::snapshot;
}
