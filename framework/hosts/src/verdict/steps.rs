//! The steps that the model takes out, one at a time (`verdict/model.rs`).

/// A step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The agent's time is counted from the sending of the last beat that was answered.
    CountFromSending,
    /// The head waits longer than the agent.
    Margin,
    /// An agent whose time is over sends no beats.
    StopBeating,
    /// A host on which the verdict was spoken gets no answer.
    Final,
    /// Time goes on while a machine is suspended. (Of the model: [`Moment::now`](super::Moment::now) has it.)
    #[cfg(test)]
    BootClock,
    /// A worker ends by itself when its time is over. (Of the model.)
    #[cfg(test)]
    WorkersLook,
    /// Nothing leaves a host whose time is over. (Of the model: a [`Peer`](crate::net::Peer) does it.)
    #[cfg(test)]
    HoldBack,
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
