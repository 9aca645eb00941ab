//! Actors that roam: their homes say on which host each lives, and messages go there.
//!
//! The id of such an actor has its home in it, the host whose program has started it (`node/supervisor/roaming.rs`). Whoever wants to
//! send to one asks the home ([`Note::Want`]), which answers with the host that it lives on ([`Note::LivesOn`]) as soon as there is one;
//! that host is then asked for the mailbox as for any actor of its own. So no message takes the way over the home, and none that was
//! sent to one life comes to the next by another way (HOST-3). Of what happens to the actor the host that it lives on tells its home
//! ([`Note::Watch`]), and the home tells all others.
//!
//! **Invariants.** HOST-10: whoever sends waits for a next life where the node has lost the host for certain
//! ([`Gone::is_certain`](crate::transport::hosts::Gone)); where this host alone has given it up, the actor is out of reach. WIRE-1: only the
//! home is believed where an actor lives, and only that host has its mailbox. MBX-2: what is remembered are actors that have a mailbox
//! here or are being reached, those that this host is the home of, and some more for a while.
//!
//! **On the loss** of the host that it lives on its mailbox here gives its place up, as one that rests does: senders ask the node
//! again, in the queue that they had, and the home is asked, which answers when the next life has begun. What was sent to the last life
//! and has not left is refused, also what comes late: nothing waits here for a life that may begin on this very host. **On the loss** of its home it is
//! out of reach: the host that it lives on ends it.

use std::collections::{HashMap, HashSet};

use super::names::Local;
use super::note::Note;
use super::outbound::Place;
use super::run::Gateway;
use super::tell;
use crate::ids::ActorId;
use crate::limits::{MAX_HOST_QUESTIONS, MAX_RESTING};
use crate::transport::hosts::FromGateway;
use crate::transport::inbox::Refusal;
use crate::transport::lifecycle::EndReason;

/// Where actors that roam live, as their homes have said.
#[derive(Default)]
pub(super) struct Roaming {
    lives: HashMap<ActorId, Life>,
    /// When those that nobody needs are forgotten.
    forget_at: usize,
    /// Hosts that are not of the node any more.
    gone: HashSet<u16>,
}

#[derive(Clone, Copy)]
struct Life {
    host: u16,
    is_over: bool,
}

impl Roaming {
    pub(super) fn host_gone(&mut self, host: u16) {
        self.gone.insert(host);
    }

    /// Whether an actor lives, or has lived last, on this host and is of another.
    pub(super) fn is_guest_on(&self, actor: ActorId, host: u16) -> bool {
        actor.host() != host && self.lives.get(&actor).is_some_and(|life| life.host == host)
    }

    pub(super) fn forget(&mut self, actor: ActorId) {
        self.lives.remove(&actor);
    }

    /// Whether the last life of an actor that this host has heard of is over.
    pub(super) fn is_over(&self, actor: ActorId) -> bool {
        let life = self.lives.get(&actor);
        life.is_some_and(|life| life.is_over || self.gone.contains(&life.host))
    }

    pub(super) fn is_over_now(&mut self, actor: ActorId) {
        if let Some(life) = self.lives.get_mut(&actor) {
            life.is_over = true;
        }
    }
}

/// Why a message goes no further that was sent to a life which is over.
pub(super) fn last_life_over() -> Refusal {
    let why = "the life of the actor that it was sent to is over, with its host; the message was not sent";
    Refusal::NotPassedOn(why.to_owned())
}

impl Gateway {
    /// The host that has the mailbox of an actor, where that is of the node and known.
    pub(super) fn host_of(&self, actor: ActorId) -> Option<u16> {
        if !actor.roams() {
            return self.hosts.contains_key(&actor.host()).then(|| actor.host());
        }
        let life = self.roaming.lives.get(&actor).filter(|life| !life.is_over)?;
        self.hosts.contains_key(&life.host).then_some(life.host)
    }

    /// Whether the host that is asked for an actor is of the node.
    pub(super) fn is_in_reach(&self, actor: ActorId) -> bool {
        self.hosts.contains_key(&actor.host()) || actor.roams() && actor.host() == self.own()
    }

    /// Has the mailbox of an actor offered, or its home say where it lives.
    pub(super) fn want(&mut self, actor: ActorId) {
        if let Some(host) = self.host_of(actor) {
            return self.note_to(host, &Note::Want { actor, not: None });
        }
        let life = self.roaming.lives.get(&actor).copied();
        if life.is_some() && !self.roaming.is_over(actor) {
            return; // its host joins in a moment
        }
        let not = life.map(|life| life.host);
        match actor.host() {
            home if home == self.own() => self.want_local(home, actor, not),
            home => self.note_to(home, &Note::Want { actor, not }),
        }
    }

    /// A host is of the node now, on which an actor may live that is waited for.
    pub(super) fn want_those_on(&mut self, host: u16) {
        let lives = self.roaming.lives.iter().filter(|(_, life)| life.host == host);
        let waits = |actor: &ActorId| {
            let has_no_offer = self.mailboxes.get(actor).is_some_and(|mailbox| mailbox.offered == 0);
            has_no_offer || self.reaching.contains_key(actor)
        };
        let wanted: Vec<_> = lives.map(|(actor, _)| *actor).filter(waits).collect();
        wanted.into_iter().for_each(|actor| self.want(actor));
    }

    /// Another host says where an actor lives.
    pub(super) fn lives_there(&mut self, home: u16, actor: ActorId, host: u16) {
        if !actor.roams() || actor.host() != home {
            return tracing::warn!(host = home, "it says where an actor of another host lives; dropped");
        }
        let is_wanted = self.reaching.contains_key(&actor) || self.mailboxes.contains_key(&actor);
        if !is_wanted {
            return;
        }
        if host == self.own() {
            // The node has it, and whoever sends has asked it. What has come late was for an earlier life.
            return self.close(actor, &last_life_over());
        }
        let is_over = self.roaming.gone.contains(&host);
        let before = self.roaming.lives.get(&actor);
        if before.is_some_and(|life| life.host == host && (life.is_over || is_over)) {
            return; // it was told that it is not there any more, and says it again when it is elsewhere
        }
        self.note_life(actor, Life { host, is_over });
        self.want(actor);
    }

    /// The node, which is the home of an actor: it lives there from now on, or somebody has asked where it does.
    pub(super) fn lives_on(&mut self, actor: ActorId, host: u16) {
        let before = self.roaming.lives.get(&actor);
        let is_new = before.is_none_or(|life| life.host != host || life.is_over);
        self.note_life(actor, Life { host, is_over: false });
        let mut waiting = Vec::new();
        if let Some(local) = self.locals.get_mut(&actor) {
            // Who knows that it is not there any more hears of the next place.
            waiting.extend(local.waiting.extract_if(|_, not| *not != Some(host)).map(|(asker, _)| asker));
        }
        let own = self.own();
        if is_new {
            // From now on it tells this host what happens to the actor.
            self.note_to(host, &Note::Watch { actor });
        }
        if waiting.contains(&own) {
            self.want(actor);
        }
        waiting.retain(|asker| *asker != own);
        if waiting.is_empty() {
            return self.forget_local(actor);
        }
        self.watch_local(actor);
        for asker in waiting {
            if let Some(local) = self.locals.get_mut(&actor) {
                local.told.insert(asker);
            }
            self.note_to(asker, &Note::LivesOn { actor, host });
        }
    }

    /// The home of an actor that lives here wants to hear what happens to it.
    pub(super) fn watch_guest(&mut self, home: u16, actor: ActorId) {
        if !actor.roams() || actor.host() != home {
            return tracing::warn!(host = home, "it wants to hear of an actor of another host; dropped");
        }
        let asked = |local: &&Local| local.address.is_none() && local.told.contains(&home);
        if self.locals.values().filter(asked).count() >= MAX_HOST_QUESTIONS {
            let why = "too many actors are asked for at a time".to_owned();
            return self.note_to(home, &Note::Ended { actor, why: Some(EndReason::OutOfReach(why)) });
        }
        let local = self.locals.entry(actor).or_default();
        let is_known = local.address.is_some() || !local.waiting.is_empty();
        if !local.offered.contains(&home) {
            local.told.insert(home);
        }
        if !is_known {
            tell(&self.transport, FromGateway::WantLocal { actor });
        }
    }

    fn note_life(&mut self, actor: ActorId, life: Life) {
        let own = self.own();
        self.roaming.lives.insert(actor, life);
        if self.roaming.lives.len() >= self.roaming.forget_at.max(MAX_RESTING) {
            let (mailboxes, reaching) = (&self.mailboxes, &self.reaching);
            self.roaming.lives.retain(|actor, life| {
                let is_own = actor.host() == own && !life.is_over;
                is_own || mailboxes.contains_key(actor) || reaching.contains_key(actor)
            });
            self.roaming.forget_at = 2 * self.roaming.lives.len();
        }
    }

    /// The host that an actor lives on says that it has ended there. Whether another life follows, its home knows.
    pub(super) fn ended_there(&mut self, host: u16, actor: ActorId, why: Option<EndReason>) {
        if !self.roaming.is_guest_on(actor, host) {
            return tracing::warn!(host, "it speaks of an actor that does not live there; dropped");
        }
        if actor.host() == self.own() {
            tell(&self.transport, FromGateway::LifeOver { actor, host, why });
        } else if let Some(why @ EndReason::OutOfReach(_)) = why {
            return self.ended(actor, Some(why)); // it has too much to do
        }
        self.life_over(actor, &Refusal::NoSuchActor);
    }

    /// The life of an actor that this host has sent to is over: what waits for it is refused, and who comes waits for the next.
    pub(super) fn life_over(&mut self, actor: ActorId, why: &Refusal) {
        let Some(life) = self.roaming.lives.get_mut(&actor) else { return };
        life.is_over = true;
        let host = life.host;
        self.refuse_waiting(actor, why);
        let is_gone = !self.hosts.contains_key(&host);
        if let Some(mailbox) = self.mailboxes.get_mut(&actor) {
            mailbox.offered = 0;
            if is_gone {
                mailbox.under_way = 0; // nobody says that it is done with
            }
            match mailbox.place {
                Place::At(_) => {
                    mailbox.place = Place::GivenUp;
                    tell(&self.transport, FromGateway::Rests { actor });
                }
                Place::GivenUp => {}
                Place::Nowhere => self.settle(actor),
            }
        }
        // One that the node gives a place just now is asked for then.
        if self.reaching.get(&actor) == Some(&false) {
            self.want(actor);
        }
    }
}
