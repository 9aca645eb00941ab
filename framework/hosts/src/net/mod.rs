//! Sessions over gRPC: a control stream and lanes, each a connection of its own, with TLS if there is a key.
//!
//! A [`Listener`] accepts connections of the [`Peers`] that it knows; [`Dial`] makes and remakes them. A
//! [`Peer`] is what a gateway uses: its [session](crate::session), and the events that follow. Tasks that
//! wait in a peer are woken by its changes, and only the beats are polled. Lanes have [threads of their
//! own](LaneThreads); everything else runs where the listener and the dialling do.
//!
//! *When a connection breaks*, or is half open (nothing came for
//! [`LINK_SILENCE`](crate::limits::LINK_SILENCE)), control stream and lanes go down together, and the next
//! connection continues the session. *When the other side violates the protocol*, the connection goes down
//! and the violation is counted; after [`MAX_VIOLATIONS`](crate::limits::MAX_VIOLATIONS) the session is over.
//! *When the runtime is dropped*, all connections are.

mod acceptor;
mod clock;
mod codec;
mod dial;
mod io;
mod lanes;
mod listener;
mod logs;
mod peer;
mod pump;
mod service;
mod strangers;
#[cfg(test)]
mod tests;
mod threads;

pub use self::clock::Offset;
pub use self::dial::{Dial, DialError};
pub use self::lanes::wire::Parts;
pub use self::listener::Listener;
pub use self::logs::Allowance;
pub use self::peer::{Happened, LinkPulse, Memory, Peer, Pulse};
pub use self::service::{Admission, Peers};
pub use self::threads::LaneThreads;

/// Unacknowledged bytes that gRPC may have under way in a stream and in a connection: enough for a link of 10
/// Gbit/s and 3 ms.
const STREAM_WINDOW: u32 = 4 << 20;
const CONNECTION_WINDOW: u32 = 8 << 20;

/// The first byte of a connection that is a lane, before TLS, so that its thread is known before the
/// connection has cost anything. TLS begins with 0x16, and HTTP/2 with `P`. A connection that sends it
/// wrongly is served on another thread, and no more.
const LANE: u8 = b'L';

/// The first byte of a connection that is not a lane, if a proof of the key follows it.
const MESSAGES: u8 = b'M';
