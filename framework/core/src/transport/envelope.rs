//! Messages between a gateway and the node's part behind it, opaque to all others.

use serde::{Deserialize, Serialize};

/// An encoded message that only its sender's and its receiver's part for neighbours read. The reader
/// checks it (WIRE-1).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Envelope(#[serde(with = "crate::message::codec::bytes")] pub(super) Vec<u8>);
