//! The lives of one actor that roams, without I/O: told what came, it says whether another one may begin.
//!
//! Used by the supervisor of its home. The model (`model.rs`) has hosts that are lost, leave, are given up
//! though they live, and answer late or not at all, and shows what each case is for.

use std::time::{Duration, Instant};

use crate::node::elsewhere::NextLife;
use crate::node::restart::{Budget, Restart, Verdict};
use crate::transport::hosts::Gone;
use crate::transport::lifecycle::EndReason;

/// See the module.
pub(super) struct Life {
    /// For losses of hosts, and for lives that could not begin.
    budget: Budget,
    /// Of its present or last life.
    number: u32,
    at: At,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// It lives on this host, as far as anybody knows.
    Host(u16),
    /// Its next life is due.
    Due(Instant),
    /// It is being begun.
    Beginning,
}

/// What follows.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Follows {
    /// It lives on this host.
    Lives(u16),
    /// Its last life is over, for this reason, and the next begins after that time.
    Next(EndReason, Duration),
    /// There is none.
    End(Option<EndReason>),
    /// It is none of this one's.
    Nothing,
}

impl Life {
    /// Its first one, on this host.
    pub(super) fn first(policy: Restart, host: u16) -> Self {
        Life { budget: Budget::new(policy), number: 0, at: At::Host(host) }
    }

    pub(super) fn number(&self) -> u32 {
        self.number
    }

    pub(super) fn is_on(&self, host: u16) -> bool {
        self.at == At::Host(host)
    }

    /// Whether it lives nowhere, as far as this host has heard.
    pub(super) fn is_away(&self) -> bool {
        !matches!(self.at, At::Host(_))
    }

    /// Whether the next one is being begun.
    pub(super) fn is_beginning(&self) -> bool {
        self.at == At::Beginning
    }

    /// When the next one is due.
    pub(super) fn due(&self) -> Option<Instant> {
        match self.at {
            At::Due(at) => Some(at),
            At::Host(_) | At::Beginning => None,
        }
    }

    /// The next one is begun now: its number.
    pub(super) fn begin(&mut self) -> u32 {
        self.at = At::Beginning;
        self.number += 1;
        self.number
    }

    /// Its host has begun another life there.
    pub(super) fn came_back(&mut self, number: u32) {
        self.number = self.number.max(number);
    }

    /// A host is not of the node any more.
    pub(super) fn host_gone(&mut self, host: u16, how: Gone, why: String, now: Instant) -> Follows {
        if !self.is_on(host) {
            return Follows::Nothing;
        }
        let reason = EndReason::OutOfReach(why);
        // HOST-10: it may go on there.
        if !how.is_certain() {
            return Follows::End(Some(reason));
        }
        self.over(reason, now)
    }

    /// A host says that it has ended there.
    pub(super) fn ended_on(&mut self, host: u16, why: Option<EndReason>) -> Follows {
        // Where the host leaves, it is none of the actor's ends: the next life follows when it has left.
        match self.is_on(host) && why != Some(EndReason::NodeStopped) {
            true => Follows::End(why),
            false => Follows::Nothing,
        }
    }

    /// What became of the attempt to begin one.
    pub(super) fn begun(&mut self, next: NextLife, now: Instant) -> Follows {
        match next {
            NextLife::Failed(why) => self.over(EndReason::CreateFailed(why), now),
            // HOST-10: where nobody has answered it may run.
            NextLife::On(host) | NextLife::Unknown(host) => {
                self.at = At::Host(host);
                Follows::Lives(host)
            }
            NextLife::Here => Follows::Nothing,
        }
    }

    /// The last one is over for certain.
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
