//! The state for reading, which passes from thread to thread with the [role](super::role). `reader` polls
//! with it.

use super::actors::KeptInboxes;
use super::attention::Attention;
use super::frame_buffer::FrameBuffer;

/// The state for reading; the thread that holds it reads ([`Role`](super::role::Role)).
#[derive(Debug, Default)]
pub(super) struct ReaderState {
    pub(super) buffer: FrameBuffer,
    pub(super) kept: ReaderCache,
    /// Whether a thread that borrowed it has found something.
    pub(super) found: bool,
}

impl ReaderState {
    /// Prepares it for another thread, which may read from here on.
    pub(super) fn leave_thread(&mut self) {
        self.kept.attention.let_go();
    }
}

/// State that a reader keeps from one poll to the next, so that a poll takes no lock if nothing has changed.
#[derive(Debug, Default)]
pub(super) struct ReaderCache {
    pub(super) attention: Attention,
    pub(super) inboxes: KeptInboxes,
}

impl ReaderCache {
    /// Drops the kept references while the reader sleeps, so that they keep no link or inbox alive past its
    /// end.
    pub(super) fn let_go(&mut self) {
        self.attention.let_go();
        self.inboxes.let_go();
    }
}
