//! The core of `tensorpost`: memory, clocks, leases, messages, actors and nodes. A program depends on
//! `tensorpost`, which re-exports the items meant for programs: [`api`].
//!
//! All other modules are private. The features `inside` and `testing` make them public for this framework's
//! own tests and benches. SAFE-1 does not hold then: those items trust their callers.

// A module's `pub` marks the items that its neighbours and the tests may use. `api` lists the items that
// leave the crate.
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

// Each module stands here twice, and not by a macro: rustfmt and rustdoc find a module only where it is
// written out.
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
#[doc(hidden)] // for `tensorpost-watch`
mod trial;

#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing;
#[cfg(all(test, not(feature = "testing")))]
mod testing;

/// The interface for the bindings of other languages, which know the types of their messages only at run
/// time. Nothing of it is stable.
#[cfg(feature = "bindings")]
#[doc(hidden)]
pub mod bindings {
    pub use crate::actor::raw::{
        RawAddress, RawAnswer, RawItem, RawMessage, RawReply, RawSink, TakesRaw, Together, Unanswered,
        can_leave_by,
    };
    pub use crate::tensor::dlpack::outside::{
        Handing, PutAway, closes_before, drop_on_collector, hand_out, piece_of, seen_as,
    };
    pub use crate::transport::{Helper, Transport};
}

/// The items that the derive's generated code refers to. Not for other use.
#[doc(hidden)]
pub mod __private {
    pub use crate::actor::{DeadLetter, Env, Handles, RemoteActor};
    pub use crate::device::DeviceKind;
    pub use crate::message::holds::{Otherwise, Probe};
    pub use crate::message::portable::{
        Body, Describe, Describer, Field, Interface, Portable, Repr, Shape, Variant, schema_of,
    };
    pub use crate::message::{CheckTensors, GpuMessage, SentBack, TensorCheckError, TensorSpec};
    pub use crate::node::before_main::at_the_latest as before_main;
    pub use crate::tensor::DType;
    #[cfg(feature = "testing")]
    pub use crate::testing::under_libtest::begin as begin_test;
    pub use tensorpost_derive::GpuMessage;
    pub use {actix, anyhow, serde, tokio};
}
