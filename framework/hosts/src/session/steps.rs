//! The steps of the protocol that its model takes out, one at a time, to show that each is needed
//! (`session/model.rs`).

/// A step of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A frame is kept until the other side has acknowledged it.
    KeepUntilAcked,
    /// A new connection begins with the first frame that the other side has not received.
    SendAgain,
    /// Frames that still come over an older connection are not taken.
    OldLinkIsOver,
    /// If two connections overtook each other, the later attempt is in force.
    LatestAttempt,
    /// Pieces that the other side does not have are sent again.
    PiecesAgain,
    /// Pieces that the other side has are not sent again.
    SkipLanded,
    /// A piece that comes twice is written once.
    ClaimOnce,
    /// A piece that overtook its message waits for it.
    WaitForPost,
    /// A message goes on when it is complete (HOST-8).
    WholeFirst,
    /// Messages to one mailbox go on in order (HOST-3).
    InOrder,
    /// The sender's lease is kept until the other side has the data (HOST-5).
    LeaseUntilLanded,
    /// A message needs a place in the mailbox (HOST-9).
    Credit,
    /// A message needs room in the window (HOST-9).
    Window,
    /// An aborted message lets those behind it go on.
    AbortDrops,
    /// A message that is done without a reply refuses its ask.
    RefuseAtDone,
    /// A greeting of a later gateway of the other side ends the session with the earlier one.
    NextGateway,
    /// A greeting of an earlier gateway of the other side is not accepted.
    LatestGateway,
    /// A greeting to an earlier gateway of this side is not accepted.
    ForThisGateway,
    /// Asks under way with a replaced gateway are answered, and their memory is given back (HOST-5). (Only in
    /// the model; in programs a gateway does it with the result of
    /// [`Session::renew`](super::Session::renew).)
    #[cfg(test)]
    AnswerAtRenewal,
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
