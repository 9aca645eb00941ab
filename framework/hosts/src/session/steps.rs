//! The steps of the protocol that its model takes out, one at a time, to show that each is needed
//! (`session/model.rs`).

/// A step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A frame is kept until the other side has said that it received it.
    KeepUntilAcked,
    /// A new connection begins with the first frame that the other side has not received.
    SendAgain,
    /// What still comes over an older connection is not taken.
    OldLinkIsOver,
    /// Of two connections that overtook each other, the later attempt is in force.
    LatestAttempt,
    /// Pieces that the other side has not got are sent again.
    PiecesAgain,
    /// Pieces that it has got are not.
    SkipLanded,
    /// A piece that comes twice is written once.
    ClaimOnce,
    /// A piece that overtook its message waits for it.
    WaitForPost,
    /// A message goes on when it is whole (HOST-8).
    WholeFirst,
    /// Messages to one mailbox go on in order (HOST-3).
    InOrder,
    /// The sender's lease is kept until the other side has the data (HOST-5).
    LeaseUntilLanded,
    /// A message needs a place in the mailbox (HOST-9).
    Credit,
    /// A message needs room in the window (HOST-9).
    Window,
    /// An aborted message makes place for those behind it.
    AbortDrops,
    /// A message that is done with without a reply refuses its ask.
    RefuseAtDone,
    /// A greeting of a later gateway of the other side ends the session with the one before.
    NextGateway,
    /// What an earlier gateway of the other side said is not taken up.
    LatestGateway,
    /// A greeting to an earlier gateway of this side takes nothing up.
    ForThisGateway,
    /// What was under way with a gateway that is no more is answered, and its memory given back (HOST-5). (Of
    /// the model: a gateway does it with what [`Session::renew`](super::Session::renew) returns.)
    #[cfg(test)]
    AnswerAtRenewal,
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
