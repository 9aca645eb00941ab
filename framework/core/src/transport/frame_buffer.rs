//! The memory that a reader keeps for the frames that it takes.

use crate::message::wire::Tables;

/// The buffer into which a reader copies frames, one after the other.
#[derive(Debug, Default)]
pub struct FrameBuffer {
    pub(super) bytes: Vec<u8>,
    pub(super) tables: Tables,
}
