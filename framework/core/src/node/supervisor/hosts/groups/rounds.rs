//! The rounds of a group whose actors are on several hosts, without I/O.
//!
//! The host whose program made the group is its *home*, which keeps a [`Spread`]; each other host with
//! members keeps a [`Joined`]. A *round* is one common restart. The home begins it, after a failure of its
//! own member or one that a host reports, and tells each host to end its members ([`RoundStep::End`]). When
//! all hosts have answered that their members have ended, and the home's own have ended too, it tells each
//! host to begin the next lives ([`RoundStep::Begin`]). A host whose own member fails ends its other members
//! at once, holds the next lives back, and reports to the home, which answers with a round.
//!
//! Used by the supervisor (`hosts/groups.rs`). A message that was lost with a gateway is sent again,
//! so each step may come twice. The model (`model.rs`) loses, repeats and delays messages, and shows that
//! each rule is needed.
//!
//! **Invariants.** No next life begins on any host before the last of the old ones has ended on all. A
//! failure of one life ends each other life once: a host names the round that its lives belong to, so a
//! message that comes late, or twice, begins no further round. **On the loss** of a host the home waits for
//! it no longer; the supervisor decides what the loss means for the group.

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::ids::ActorId;

/// A step of a round that a host must take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::node) enum RoundStep {
    /// End the members on the host.
    End(u64),
    /// Begin their next lives.
    Begin(u64),
}

impl RoundStep {
    /// Returns the place of a step in the order of steps: a round's end comes before its begin.
    fn place(self) -> (u64, bool) {
        match self {
            RoundStep::End(round) => (round, false),
            RoundStep::Begin(round) => (round, true),
        }
    }
}

/// A host with members.
#[derive(Debug)]
struct Told {
    /// The last step that it has taken.
    done: RoundStep,
    /// Whether it was asked for a step and has not answered.
    is_asked: bool,
}

/// At its home: a group with members elsewhere.
#[derive(Debug)]
pub(super) struct Spread {
    round: u64,
    /// Whether the members still end for this round.
    is_ending: bool,
    /// When the next lives begin, if all have ended by then.
    at: Instant,
    /// The reason of the present round.
    why: String,
    /// Whether no member comes back after it.
    gives_up: bool,
    hosts: BTreeMap<u16, Told>,
    /// The members on other hosts that come back after a failure, and do not roam; with their hosts.
    pub(super) members: HashMap<ActorId, u16>,
    /// Members that are being started on other hosts.
    pub(super) starting: usize,
}

impl Spread {
    /// Makes a spread group that begins in `round`. The number must be no smaller than any round of an
    /// earlier group, because hosts remember those.
    pub(super) fn new(round: u64, now: Instant) -> Self {
        let (hosts, members) = Default::default();
        Spread {
            round,
            is_ending: false,
            at: now,
            why: String::new(),
            gives_up: false,
            hosts,
            members,
            starting: 0,
        }
    }

    /// Adds a host that gets a member. Returns the round that the member's life belongs to.
    pub(super) fn add(&mut self, host: u16) -> u64 {
        self.hosts.entry(host).or_insert(Told { done: RoundStep::Begin(self.round), is_asked: false });
        self.round
    }

    pub(super) fn has(&self, host: u16) -> bool {
        self.hosts.contains_key(&host)
    }

    /// Whether next lives of members must wait here.
    pub(super) fn is_held(&self) -> bool {
        self.is_ending
    }

    /// Returns when the next lives begin at the earliest, while they are held.
    pub(super) fn at(&self) -> Option<Instant> {
        self.is_ending.then_some(self.at)
    }

    pub(super) fn why(&self) -> &str {
        &self.why
    }

    pub(super) fn gives_up(&self) -> bool {
        self.gives_up
    }

    /// Begins `round`, because a member has failed.
    pub(super) fn fails(&mut self, round: u64, at: Instant, why: String, gives_up: bool) {
        let before = std::mem::replace(&mut self.is_ending, true);
        self.at = if before { self.at.max(at) } else { at };
        // A later failure does not bring back a group that was given up.
        self.gives_up = gives_up || before && self.gives_up;
        (self.round, self.why) = (round, why);
    }

    /// Takes a host's report that one of its members has failed, whose life belonged to the round `begun`.
    /// Returns whether another round follows: otherwise the present round covers the failure.
    pub(super) fn is_news(&mut self, begun: u64, at: Instant) -> bool {
        if begun < self.round && self.is_ending {
            self.at = self.at.max(at);
        }
        begun >= self.round
    }

    /// Returns the next host to ask, and the step to ask for.
    pub(super) fn next_ask(&mut self) -> Option<(u16, RoundStep)> {
        let step = if self.is_ending { RoundStep::End(self.round) } else { RoundStep::Begin(self.round) };
        let is_due = |told: &Told| !told.is_asked && told.done.place() < step.place();
        let (host, told) = self.hosts.iter_mut().find(|(_, told)| is_due(told))?;
        told.is_asked = true;
        Some((*host, step))
    }

    /// Notes that a host has taken a step.
    pub(super) fn did(&mut self, host: u16, step: RoundStep) {
        if let Some(told) = self.hosts.get_mut(&host) {
            told.is_asked = false;
            if told.done.place() < step.place() {
                told.done = step;
            }
        }
    }

    /// Stops waiting for a host.
    pub(super) fn without(&mut self, host: u16) {
        self.hosts.remove(&host);
    }

    /// Whether the members on all other hosts have ended.
    pub(super) fn has_ended(&self) -> bool {
        let end = RoundStep::End(self.round).place();
        self.is_ending && self.hosts.values().all(|told| told.done.place() >= end)
    }

    /// Begins the next lives, because all members have ended, here too.
    pub(super) fn begin(&mut self) {
        (self.is_ending, self.gives_up) = (false, false);
    }
}

/// On another host than its home: a group with members here.
#[derive(Clone, Copy, Debug)]
pub(super) struct Joined {
    /// The round that the members' lives here belong to.
    begun: u64,
    /// The last round for which the home has ended them.
    ended: u64,
    /// Whether a member of this round has failed here.
    has_failed: bool,
}

impl Joined {
    pub(super) fn new(round: u64) -> Self {
        Joined { begun: round, ended: round, has_failed: false }
    }

    /// Whether next lives of members must wait here.
    pub(super) fn is_held(&self) -> bool {
        self.has_failed || self.ended > self.begun
    }

    /// Notes that a member has failed here. Returns the round of its life, if the home must be told.
    pub(super) fn fails(&mut self) -> Option<u64> {
        let is_news = !self.is_held();
        // If the home is ending the round already, this end is part of it.
        self.has_failed |= is_news;
        is_news.then_some(self.begun)
    }

    /// Releases the members here, because the home has not accepted the failure and will not answer it.
    pub(super) fn is_alone(&mut self) {
        self.has_failed = false;
    }

    /// Notes that the home ends the members. Returns whether this is the first such message for the round.
    pub(super) fn end(&mut self, round: u64) -> bool {
        let is_news = round > self.ended;
        self.ended = self.ended.max(round);
        is_news
    }

    /// Lets the members begin their next lives, as the home says.
    pub(super) fn begin(&mut self, round: u64) {
        if round >= self.ended && round > self.begun {
            *self = Joined::new(round);
        }
    }
}

#[cfg(test)]
mod model;
