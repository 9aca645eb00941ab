//! Rings in shared memory, each between one producing and one consuming process.
//!
//! [`data`] carries messages, [`entries`] carries the releases of leases back. Neither waits, allocates in
//! shared memory or takes a lock; a process can be killed at any instruction and leaves the other's view
//! intact (ONE-WRITER). The [doorbell](super::doorbell) wakes the other side.
//!
//! Read in this order: [`platform`] (the protocol's requirements on memory), [`native`] (the memory that
//! meets them), `cursor` (how a side publishes its position and checks the peer's), [`ends`] (the parts that
//! both rings share), [`data`], [`entries`].

mod copy;
mod cursor;
pub mod data;
pub mod ends;
pub mod entries;
mod error;
pub mod native;
pub mod platform;
#[cfg(test)]
mod tests;

pub use data::{Consumer, Producer};
pub use entries::{Entry, EntryConsumer, EntryProducer};
pub use error::{BadCapacity, RingCorrupt};
#[cfg(any(test, feature = "inside"))]
pub use error::{Cursor, RingError};
#[cfg(any(test, feature = "inside"))]
pub use native::KeepMapped;
pub use native::{Native, NativeBytes, NativeWord, NativeWords};
#[cfg(any(test, feature = "inside"))]
pub use platform::Bytes;
pub use platform::{Orders, Platform, Sound, Word};
