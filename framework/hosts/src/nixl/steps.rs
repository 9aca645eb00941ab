//! The steps of the protocol that its model takes out, one at a time, to show that each is needed.

/// A step of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A write has a deadline of this side.
    Deadline,
    /// An arena is not used again before its agent has ended, so that it is deregistered (HOST-11).
    CloseFirst,
    /// An arena is not used again before the writer has ended its agent (HOST-11).
    WaitForWriter,
    /// A new connection begins with the list of arenas that may still be written.
    SayOpen,
    /// Runs under way over a route that broke go as pieces.
    Unsend,
    /// A slot is free again when the copy out of it has completed.
    FreeWhenCopied,
    /// Frames that still come over an older connection are not taken.
    OldLinkIsOver,
}

/// The steps that are taken: all of them outside tests.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Steps {
    #[cfg(test)]
    pub(crate) left_out: Option<Step>,
}

impl Steps {
    #[cfg(test)]
    pub(crate) fn does(self, step: Step) -> bool {
        self.left_out != Some(step)
    }

    #[cfg(not(test))]
    pub(crate) fn does(self, _: Step) -> bool {
        true
    }
}
