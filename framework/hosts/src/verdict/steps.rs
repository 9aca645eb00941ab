//! The steps that the model takes out, one at a time (`verdict/model.rs`).

/// A step of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The agent's time is counted from the sending of the last beat that was answered.
    CountFromSending,
    /// The head waits longer than the agent.
    Margin,
    /// An agent whose time is over sends no beats.
    StopBeating,
    /// A host on which the verdict was given gets no answer.
    Final,
    /// Time goes on while a machine is suspended. (Only in the model; in programs
    /// [`Moment::now`](super::Moment::now) does it.)
    #[cfg(test)]
    BootClock,
    /// A worker ends by itself when its time is over. (Only in the model.)
    #[cfg(test)]
    WorkersLook,
    /// Nothing leaves a host whose time is over. (Only in the model; in programs a [`Peer`](crate::net::Peer)
    /// does it.)
    #[cfg(test)]
    HoldBack,
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
