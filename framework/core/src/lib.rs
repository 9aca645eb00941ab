//! What `tensorpost` is made of: memory, clocks, leases, messages, actors and nodes. A program
//! depends on `tensorpost`, which re-exports what is meant for it: [`api`].
//!
//! [`doctor`] is for the command `tensorpost`. All other modules are private. The features `inside` and
//! `testing` make them public for this framework's own tests and benches, and SAFE-1 does not hold then: what
//! they show trusts whoever calls it.

// A module's `pub` says what its neighbours and the tests may use. What leaves the crate is listed in `api`.
#![cfg_attr(not(feature = "inside"), allow(unreachable_pub))]

/// A method that is public only with the feature `inside`, on a type that [`api`] shows.
macro_rules! inside {
    ($(#[$attribute:meta])* pub $($item:tt)*) => {
        $(#[$attribute])*
        #[cfg(feature = "inside")]
        #[doc(hidden)]
        pub $($item)*

        $(#[$attribute])*
        #[cfg(not(feature = "inside"))]
        pub(crate) $($item)*
    };
}

pub mod api;
pub mod doctor;

// Each module twice, and not by a macro: rustfmt and rustdoc find a module only where it is written out.
#[cfg(feature = "inside")]
#[doc(hidden)]
pub mod actor;
#[cfg(not(feature = "inside"))]
mod actor;
#[cfg(feature = "inside")]
#[doc(hidden)]
pub mod clock;
#[cfg(not(feature = "inside"))]
mod clock;
#[cfg(feature = "inside")]
#[doc(hidden)]
pub mod device;
#[cfg(not(feature = "inside"))]
mod device;
#[cfg(feature = "inside")]
#[doc(hidden)]
pub mod fault;
#[cfg(not(feature = "inside"))]
mod fault;
#[cfg(feature = "hosts")]
mod gateway;
#[cfg(feature = "inside")]
#[doc(hidden)]
pub mod ids;
#[cfg(not(feature = "inside"))]
mod ids;
#[cfg(feature = "inside")]
#[doc(hidden)]
pub mod lease;
#[cfg(not(feature = "inside"))]
mod lease;
#[cfg(feature = "inside")]
#[doc(hidden)]
pub mod limits;
#[cfg(not(feature = "inside"))]
mod limits;
#[cfg(feature = "inside")]
#[doc(hidden)]
pub mod message;
#[cfg(not(feature = "inside"))]
mod message;
#[cfg(feature = "inside")]
#[doc(hidden)]
pub mod node;
#[cfg(not(feature = "inside"))]
mod node;
#[cfg(feature = "inside")]
#[doc(hidden)]
pub mod observe;
#[cfg(not(feature = "inside"))]
mod observe;
#[cfg(feature = "inside")]
#[doc(hidden)]
pub mod os;
#[cfg(not(feature = "inside"))]
mod os;
#[cfg(feature = "inside")]
#[doc(hidden)]
pub mod stream;
#[cfg(not(feature = "inside"))]
mod stream;
mod sync;
#[cfg(feature = "inside")]
#[doc(hidden)]
pub mod tensor;
#[cfg(not(feature = "inside"))]
mod tensor;
#[cfg(feature = "inside")]
#[doc(hidden)]
pub mod transport;
#[cfg(not(feature = "inside"))]
mod transport;

#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing;
#[cfg(all(test, not(feature = "testing")))]
mod testing;

/// What the command `tensorpost` asks of a running node, and how. The form of what is said is that of this
/// version of the crate and of no other; the command says so where a node has another one.
pub mod console {
    pub use crate::node::console::VARIABLE;
    pub use crate::node::console::client::{Console, ConsoleError, Found, nodes, nodes_of_all_users};
    pub use crate::node::console::figures::{
        ActorFigures, Figures, HolderFigures, LinkFigures, MemoryFigures, NodeFigures, ProcessFigures,
    };
    pub use crate::node::console::graph::{Graph, GraphEdge, GraphNode};
    pub use crate::node::console::protocol::{
        ActorFacts, Answer, GpuShare, HangFacts, Hello, HostFacts, LinkFacts, LogLine, Look, NodeFacts,
        PoolFacts, ProcessFacts, Request, TraceFacts, VERSION, WayFacts,
    };
    pub use crate::node::console::traced::Traced;
    pub use crate::observe::log::Severity;
    pub use crate::observe::metrics::ProcessState;
    pub use crate::observe::survey::{HolderReport, LinkReport, PoolReport, SentReport};
    pub use crate::observe::text::{bytes, is_odd, number, printable, time};
    pub use crate::observe::trace::{TraceError, TraceSummary, TracedProcess};

    /// A look at a node that there is not.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub mod sample {
        pub use crate::node::console::sample::look;
    }
}

/// What the packages of other languages need, which know the types of their messages only at run time.
/// Nothing of it is stable.
#[cfg(feature = "foreign")]
#[doc(hidden)]
pub mod foreign {
    pub use crate::actor::foreign::{
        RawAddress, RawAnswer, RawItem, RawMessage, RawReply, RawSink, TakesRaw, Together, Unanswered,
        can_leave_by,
    };
    pub use crate::tensor::dlpack::outside::{
        Handing, PutAway, closes_before, drop_elsewhere, hand_out, piece_of, seen_as,
    };
    pub use crate::transport::{Helper, Transport};
}

/// What the derive's code refers to. Not for anyone else.
#[doc(hidden)]
pub mod __private {
    pub use crate::actor::{DeadLetter, Env, Handles, RemoteActor};
    pub use crate::device::DeviceKind;
    pub use crate::message::holds::{Otherwise, Probe};
    pub use crate::message::portable::{
        Body, Describe, Describer, Field, Interface, Portable, Repr, Shape, Variant, schema_of,
    };
    pub use crate::message::{CheckTensors, GpuMessage, SentBack, TensorCheckError, TensorSpec};
    pub use crate::node::before_main::is_linked as before_main;
    pub use crate::tensor::DType;
    #[cfg(feature = "testing")]
    pub use crate::testing::under_libtest::begin as begin_test;
    pub use tensorpost_derive::GpuMessage;
    pub use {actix, anyhow, serde, tokio};
}
