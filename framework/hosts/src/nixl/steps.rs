//! The steps of the protocol that its model takes out, one at a time, to show that each is needed.

/// A step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A write has a deadline of ours.
    Deadline,
    /// An arena is not used again before its agent has ended: it was deregistered (HOST-11).
    CloseFirst,
    /// Nor before the writer has ended its own (HOST-11).
    WaitForWriter,
    /// A new connection begins with what may still be written.
    SayOpen,
    /// What was under way over a route that broke goes by pieces.
    Unsend,
    /// A slot is free again when the copy out of it has passed.
    FreeWhenCopied,
    /// What still comes over an older connection is not taken.
    OldLinkIsOver,
}

/// Which steps are taken: all of them, where programs run.
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
