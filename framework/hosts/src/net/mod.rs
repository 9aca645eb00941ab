//! Sessions over gRPC: a control stream and lanes, each a connection of its own, with TLS where there is a
//! key.
//!
//! A [`Listener`] takes connections of the [`Peers`] that it is told of; [`Dial`] makes them, and makes them
//! anew. A [`Peer`] is what a gateway uses: its [session](crate::session), and what happens next. Whoever
//! waits in it is woken by its changes, and nothing is polled but the beats. Lanes have [threads of their
//! own](LaneThreads); all else runs where the listener and the dialling do.
//!
//! *When a connection breaks*, or is half open (nothing came for
//! [`LINK_SILENCE`](crate::limits::LINK_SILENCE)), control stream and lanes go down together, and the next
//! one takes the session up. *When the other side breaks the protocol*, the connection goes down and it is
//! counted; after [`MAX_VIOLATIONS`](crate::limits::MAX_VIOLATIONS) the session is over. *When the runtime is
//! dropped*, all connections are.

mod clock;
mod codec;
mod dial;
mod doors;
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

/// Bytes that gRPC has on their way in a stream and a connection without an answer: enough for a link of 10
/// Gbit/s and 3 ms.
const STREAM_WINDOW: u32 = 4 << 20;
const CONNECTION_WINDOW: u32 = 8 << 20;

/// The first byte of a connection that is a lane, before TLS: so it is known on which thread it belongs
/// before it has cost anything. TLS begins with 0x16, and HTTP/2 with `P`. Whoever says it wrongly is served
/// on another thread, and no more.
const LANE: u8 = b'L';

/// The first byte of a connection that is none, where a proof of the key follows it.
const MESSAGES: u8 = b'M';
