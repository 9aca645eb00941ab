//! The lives of one actor that roams, without I/O: from the events it decides whether another life may begin.
//!
//! Used by the supervisor of its home. In the model (`model.rs`) hosts are lost, leave, are given up although
//! they live, and answer late or not at all; it shows that each case is needed.

use std::time::{Duration, Instant};

use crate::node::hosts::starter::NextLife;
use crate::node::restart::{Budget, Restart, Verdict};
use crate::transport::gateway_messages::HostEnd;
use crate::transport::lifecycle::EndReason;

/// See the module.
pub(super) struct Life {
    /// Counts losses of hosts, and lives that could not begin.
    budget: Budget,
    /// The number of its present or last life.
    number: u32,
    at: At,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// It lives on this host, as far as its home knows.
    Host(u16),
    /// Its next life is due.
    Due(Instant),
    /// Its next life is being begun.
    Beginning,
}

/// The consequence of an event.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Follows {
    /// It lives on this host.
    Lives(u16),
    /// Its last life is over for this reason, and the next one begins after that time.
    Next(EndReason, Duration),
    /// It has ended for good.
    End(Option<EndReason>),
    /// The event does not concern it.
    Nothing,
}

impl Life {
    /// Makes the record of an actor whose first life is on this host.
    pub(super) fn first(policy: Restart, host: u16) -> Self {
        Life { budget: Budget::new(policy), number: 0, at: At::Host(host) }
    }

    pub(super) fn number(&self) -> u32 {
        self.number
    }

    pub(super) fn is_on(&self, host: u16) -> bool {
        self.at == At::Host(host)
    }

    /// Whether it lives nowhere, as far as its home knows.
    pub(super) fn is_away(&self) -> bool {
        !matches!(self.at, At::Host(_))
    }

    /// Whether the next life is being begun.
    pub(super) fn is_beginning(&self) -> bool {
        self.at == At::Beginning
    }

    /// Returns when the next life is due.
    pub(super) fn due(&self) -> Option<Instant> {
        match self.at {
            At::Due(at) => Some(at),
            At::Host(_) | At::Beginning => None,
        }
    }

    /// Notes that the next life is being begun, and returns its number.
    pub(super) fn begin(&mut self) -> u32 {
        self.at = At::Beginning;
        self.number += 1;
        self.number
    }

    /// Notes that its host has begun another life there.
    pub(super) fn came_back(&mut self, number: u32) {
        self.number = self.number.max(number);
    }

    /// Takes the loss or the leaving of a host.
    pub(super) fn host_gone(&mut self, host: u16, how: HostEnd, why: String, now: Instant) -> Follows {
        if !self.is_on(host) {
            return Follows::Nothing;
        }
        let reason = EndReason::OutOfReach(why);
        // HOST-10: the actor may still run there.
        if !how.is_certain() {
            return Follows::End(Some(reason));
        }
        self.over(reason, now)
    }

    /// Takes a host's report that the actor has ended there.
    pub(super) fn ended_on(&mut self, host: u16, why: Option<EndReason>) -> Follows {
        // If it ended because the host leaves, that is not the actor's end: the next life follows when the
        // host has left.
        match self.is_on(host) && why != Some(EndReason::NodeStopped) {
            true => Follows::End(why),
            false => Follows::Nothing,
        }
    }

    /// Takes the outcome of an attempt to begin a life.
    pub(super) fn begun(&mut self, next: NextLife, now: Instant) -> Follows {
        match next {
            NextLife::Failed(why) => self.over(EndReason::CreateFailed(why), now),
            // HOST-10: if nobody has answered, the life may run.
            NextLife::On(host) | NextLife::Unknown(host) => {
                self.at = At::Host(host);
                Follows::Lives(host)
            }
            NextLife::Here => Follows::Nothing,
        }
    }

    /// Decides what follows a life that is over for certain.
    fn over(&mut self, reason: EndReason, now: Instant) -> Follows {
        match self.budget.spend(&reason, now) {
            Verdict::Restart(delay) => {
                self.at = At::Due(now + delay);
                Follows::Next(reason, delay)
            }
            Verdict::UsedUp | Verdict::Final => Follows::End(Some(reason)),
        }
    }
}

#[cfg(test)]
mod model;
