//! Actors that roam: their homes say on which host each lives, and messages go there.
//!
//! The id of such an actor names its home, the host whose program started it
//! (`node/supervisor/hosts/roaming.rs`). A gateway that wants to send to one asks the home
//! ([`Note::Want`]). The home answers with the host that the actor lives on ([`Note::LivesOn`]), as soon
//! as there is one. The gateway then asks that host for the mailbox, as for any actor of its own. So no
//! message travels by way of the home, and no message to one life reaches the next by another route
//! (HOST-3). The host that an actor lives on reports what happens to it to its home ([`Note::Watch`]),
//! and the home tells all others. An actor that lives at home is offered by its home like any other.
//!
//! **Invariants.** HOST-10: senders wait for a next life if the node has lost the host for certain
//! ([`HostEnd::is_certain`](crate::transport::gateway_messages::HostEnd)). If only this host has given it up,
//! the actor is out of reach. WIRE-1: only the home is believed about where an actor lives, and only that
//! host has its mailbox. MBX-2: the gateway remembers actors that have a mailbox here or are being reached,
//! actors that this host is the home of, and some more for a while. A home asks another host to watch a
//! bounded number at a time, which bounds the unknown actors that the other host has to remember.
//!
//! **On the loss** of the host that an actor lives on, its mailbox here gives its place up, as an idle one
//! does. Senders ask the node again and keep their place in its queue. The gateway asks the home, which
//! answers when the next life has begun. Messages to the last life that have not left are refused, and so are
//! late ones: nothing waits here for a life that may begin on this very host. **On the loss** of its home the
//! actor is out of reach: the host that it lives on ends it.
//!
//! **When a gateway is replaced** the actor lives on. A new gateway of its home hears from the node where the
//! actor lives, and asks that host again to watch it. The home does the same when the gateway of that host is
//! replaced. The answer names the actors that have ended meanwhile. All other hosts ask for the mailbox
//! again, and ask the home where the actor lives (`renewal`).

use std::collections::HashMap;

use super::dropped::dropped;
use super::locals::watch_local;
use super::mailboxes::{MailboxPlace, Mailboxes};
use super::note::Note;
use super::remotes::{Remote, Remotes};
use super::run::Gateway;
use super::to_node::tell;
use crate::ids::ActorId;
use crate::limits::{MAX_GONE_TOLD, MAX_RESTING, MAX_WATCHED_AT_ONCE};
use crate::transport::gateway_messages::{FromGateway, HostEnd};
use crate::transport::inbox::Refusal;
use crate::transport::lifecycle::EndReason;

/// The hosts that roaming actors live on, as their homes have said.
#[derive(Default)]
pub(super) struct Roaming {
    lives: HashMap<ActorId, Life>,
    /// The number of entries at which unneeded ones are forgotten.
    forget_at: usize,
    /// Hosts that are not of the node any more. No number is given out twice.
    gone: HashMap<u16, HostEnd>,
}

#[derive(Clone, Copy)]
struct Life {
    host: u16,
    is_over: bool,
}

impl Roaming {
    /// Starts with what the gateway before knew of lost hosts.
    pub(super) fn resuming(gone: &[(u16, HostEnd)]) -> Self {
        Roaming { gone: gone.iter().copied().collect(), ..Roaming::default() }
    }

    pub(super) fn host_gone(&mut self, host: u16, how: HostEnd) {
        self.gone.insert(host, how);
    }

    /// Returns how hosts went; if there are too many to tell, those that joined last.
    pub(super) fn hosts_gone(&self) -> Vec<(u16, HostEnd)> {
        let mut gone: Vec<_> = self.gone.iter().map(|(host, how)| (*host, *how)).collect();
        gone.sort_by_key(|(host, _)| std::cmp::Reverse(*host));
        gone.truncate(MAX_GONE_TOLD);
        gone
    }

    /// Returns the host that an actor last lived on, if its life there is over.
    pub(super) fn not_on(&self, actor: ActorId) -> Option<u16> {
        self.lives.get(&actor).filter(|_| self.is_over(actor)).map(|life| life.host)
    }

    /// Returns whether an actor of another host lives on `host`, or lived there last.
    pub(super) fn is_guest_on(&self, actor: ActorId, host: u16) -> bool {
        actor.host() != host && self.lives.get(&actor).is_some_and(|life| life.host == host)
    }

    pub(super) fn forget(&mut self, actor: ActorId) {
        self.lives.remove(&actor);
    }

    /// Returns whether the last life of an actor that this host has heard of is over.
    pub(super) fn is_over(&self, actor: ActorId) -> bool {
        let life = self.lives.get(&actor);
        life.is_some_and(|life| life.is_over || self.gone.contains_key(&life.host))
    }

    pub(super) fn is_over_now(&mut self, actor: ActorId) {
        if let Some(life) = self.lives.get_mut(&actor) {
            life.is_over = true;
        }
    }

    /// Returns the host that has the mailbox of an actor, if that is known and of the node.
    pub(super) fn host_of(&self, actor: ActorId, hosts: &Remotes) -> Option<u16> {
        if !actor.roams() {
            return hosts.contains_key(&actor.host()).then(|| actor.host());
        }
        let life = self.lives.get(&actor).filter(|life| !life.is_over)?;
        hosts.contains_key(&life.host).then_some(life.host)
    }

    /// Returns the actor of each unfinished message of a session whose actor has moved to another host since:
    /// nobody will report those messages as done.
    pub(super) fn moved_from(&self, before: &Remote) -> Vec<ActorId> {
        let open = before.open.values().map(|(actor, _)| *actor);
        let all = open.chain(before.asks.values().map(|asked| asked.actor));
        let host = before.member.who.host.0;
        let has_moved = |actor: &ActorId| self.lives.get(actor).is_some_and(|life| life.host != host);
        all.filter(has_moved).collect()
    }

    /// Records a life. If there are many, those of other hosts' actors that nobody here wants are forgotten.
    fn note(
        &mut self,
        own: u16,
        actor: ActorId,
        life: Life,
        mailboxes: &Mailboxes,
        reaching: &HashMap<ActorId, bool>,
    ) {
        self.lives.insert(actor, life);
        if self.lives.len() >= self.forget_at.max(MAX_RESTING) {
            self.lives.retain(|actor, life| {
                let is_own = actor.host() == own && !life.is_over;
                is_own || mailboxes.contains_key(actor) || reaching.contains_key(actor)
            });
            self.forget_at = 2 * self.lives.len();
        }
    }
}

/// The refusal of a message that was sent to a life which is over.
pub(super) fn last_life_over() -> Refusal {
    let why = "the life of the actor that it was sent to is over, with its host; the message was not sent";
    Refusal::NotPassedOn(why.to_owned())
}

impl Gateway {
    /// Asks for the mailbox of an actor, or asks its home where it lives.
    pub(super) fn want(&mut self, actor: ActorId) {
        if self.late.waits(actor) {
            return; // it is not its turn
        }
        if let Some(host) = self.roaming.host_of(actor, &self.hosts) {
            return self.note_to(host, &Note::Want { actor, not: None });
        }
        if self.roaming.lives.contains_key(&actor) && !self.roaming.is_over(actor) {
            return; // its host joins in a moment
        }
        let not = self.roaming.not_on(actor);
        match actor.host() {
            home if home == self.node.number() => self.want_local(home, actor, not),
            home => self.note_to(home, &Note::Want { actor, not }),
        }
    }

    /// Asks a host that has just joined for the wanted actors that live there.
    pub(super) fn want_those_on(&mut self, host: u16) {
        let lives = self.roaming.lives.iter().filter(|(_, life)| life.host == host);
        let waits = |actor: &ActorId| {
            let has_no_offer = self.mailboxes.get(actor).is_some_and(|mailbox| mailbox.offered == 0);
            has_no_offer || self.reaching.contains_key(actor)
        };
        let wanted: Vec<_> = lives.map(|(actor, _)| *actor).filter(waits).collect();
        wanted.into_iter().for_each(|actor| self.want(actor));
    }

    /// Handles another host's word on where an actor lives.
    pub(super) fn lives_there(&mut self, home: u16, actor: ActorId, host: u16) {
        if !actor.roams() || actor.host() != home {
            return dropped(home, &"it says where an actor of another host lives");
        }
        let is_wanted = self.reaching.contains_key(&actor) || self.mailboxes.contains_key(&actor);
        if !is_wanted {
            return;
        }
        if host == self.node.number() {
            // The node has it, and its senders have asked the node again. Late messages were for an earlier
            // life.
            return self.close(actor, &last_life_over());
        }
        let is_over = self.roaming.gone.contains_key(&host);
        let before = self.roaming.lives.get(&actor);
        if before.is_some_and(|life| life.host == host && (life.is_over || is_over)) {
            return; // the home knows that it is not there any more, and will answer again
        }
        self.moves(actor, Life { host, is_over });
        self.want(actor);
    }

    /// Returns whether a wanted roaming actor is offered by its home: then it lives there.
    pub(super) fn lives_at_home(&mut self, host: u16, actor: ActorId) -> bool {
        let is_wanted = self.reaching.contains_key(&actor) || self.mailboxes.contains_key(&actor);
        let lives_there = actor.roams() && actor.host() == host && is_wanted;
        if lives_there {
            self.moves(actor, Life { host, is_over: false });
        }
        lives_there
    }

    /// Records another life of an actor. The word that the last one was over may have been lost with a
    /// gateway.
    fn moves(&mut self, actor: ActorId, life: Life) {
        let before = self.roaming.lives.get(&actor);
        if before.is_some_and(|before| before.host != life.host && !before.is_over) {
            self.life_over(actor, &last_life_over());
        }
        self.roaming.note(self.node.number(), actor, life, &self.mailboxes, &self.reaching);
    }

    /// Handles the word of this host's node, which is an actor's home: the actor lives on `host` from now on,
    /// or somebody has asked where it lives.
    pub(super) fn lives_on(&mut self, actor: ActorId, host: u16) {
        let before = self.roaming.lives.get(&actor);
        if before.is_some_and(|life| life.host == host && life.is_over) {
            return; // that host is leaving: the next life is elsewhere
        }
        let is_new = before.is_none_or(|life| life.host != host);
        let life = Life { host, is_over: false };
        self.roaming.note(self.node.number(), actor, life, &self.mailboxes, &self.reaching);
        let mut waiting = Vec::new();
        if let Some(local) = self.locals.get_mut(&actor) {
            // An asker that knows that the actor has left `host` waits for the next place.
            waiting.extend(local.waiting.extract_if(|_, not| *not != Some(host)).map(|(asker, _)| asker));
        }
        let own = self.node.number();
        if is_new && let Some(remote) = self.hosts.get_mut(&host) {
            // From now on that host tells this one what happens to the actor.
            remote.to_watch.insert(actor);
            self.ask_to_watch(host);
        }
        if waiting.contains(&own) {
            self.want(actor);
        }
        waiting.retain(|asker| *asker != own);
        if waiting.is_empty() {
            return self.locals.forget_unknown(actor);
        }
        watch_local(&self.transport, &self.to, actor);
        for asker in waiting {
            if let Some(local) = self.locals.get_mut(&actor) {
                local.told.insert(asker);
            }
            self.note_to(asker, &Note::LivesOn { actor, host });
        }
    }

    /// Asks a host to report, from now on, what happens to the actors of this host that live there.
    pub(super) fn watch_those_on(&mut self, host: u16) {
        let own = self.node.number();
        let lives = self.roaming.lives.iter();
        let there = lives.filter(|(actor, life)| actor.host() == own && life.host == host && !life.is_over);
        let there: Vec<_> = there.map(|(actor, _)| *actor).collect();
        if let Some(remote) = self.hosts.get_mut(&host) {
            remote.to_watch.extend(there);
            self.ask_to_watch(host);
        }
    }

    /// Asks a host to report on the next actors, unless its last answer is outstanding.
    fn ask_to_watch(&mut self, host: u16) {
        let Some(remote) = self.hosts.get_mut(&host).filter(|remote| !remote.is_asked_to_watch) else {
            return;
        };
        let mut actors = Vec::new();
        while actors.len() < MAX_WATCHED_AT_ONCE
            && let Some(actor) = remote.to_watch.pop_first()
        {
            let life = self.roaming.lives.get(&actor);
            actors.extend(life.filter(|life| life.host == host && !life.is_over).map(|_| actor));
        }
        if !actors.is_empty() {
            remote.is_asked_to_watch = true;
            self.note_to(host, &Note::Watch { actors });
        }
    }

    /// Handles a host's word that it reports on the actors that it was asked for.
    pub(super) fn watched_there(&mut self, host: u16) {
        if let Some(remote) = self.hosts.get_mut(&host) {
            remote.is_asked_to_watch = false;
            self.ask_to_watch(host);
        }
    }

    /// Handles a home's request to report on its actors that live here. The node says which of those nobody
    /// has asked for yet live here.
    pub(super) fn watch_guests(&mut self, home: u16, actors: Vec<ActorId>) {
        let Some(remote) = self.hosts.get_mut(&home) else { return };
        let is_its_own = |actor: &ActorId| actor.roams() && actor.host() == home;
        let is_too_much = actors.len() > MAX_WATCHED_AT_ONCE || !remote.guests.is_empty();
        // WIRE-1.
        if is_too_much || !actors.iter().all(is_its_own) {
            return dropped(home, &"it wants to hear of too much, or of actors of another host");
        }
        let session = remote.session;
        let mut unknown = Vec::new();
        for actor in actors {
            let local = self.locals.entry(actor).or_default();
            if local.address.is_none() && local.waiting.is_empty() {
                unknown.push(actor);
            }
            if !local.offered.contains(&home) {
                local.told.insert(home);
            }
        }
        if unknown.is_empty() {
            return self.note_to(home, &Note::Watched);
        }
        remote.guests.clone_from(&unknown);
        tell(&self.transport, FromGateway::WantGuests { host: home, session, actors: unknown });
    }

    /// Handles the node's word on which of the actors do not live here.
    pub(super) fn guests_are(&mut self, home: u16, session: u64) {
        // Only in the same session: the host's next gateway has asked again.
        let Some(remote) = self.hosts.get_mut(&home).filter(|remote| remote.session == session) else {
            return;
        };
        let guests = std::mem::take(&mut remote.guests);
        guests
            .iter()
            .filter(|actor| self.locals.contains_key(actor))
            .for_each(|actor| watch_local(&self.transport, &self.to, *actor));
        self.note_to(home, &Note::Watched);
    }

    /// Handles the word of the host that an actor lives on that it has ended there. Its home knows whether
    /// another life follows.
    pub(super) fn ended_there(&mut self, host: u16, actor: ActorId, why: Option<EndReason>) {
        if !self.roaming.is_guest_on(actor, host) {
            return dropped(host, &"it speaks of an actor that does not live there");
        }
        match why {
            // That host has too much to do to offer the actor now.
            Some(EndReason::OutOfReach(why)) if actor.host() == self.node.number() => {
                return self.not_now(actor, why);
            }
            Some(why @ EndReason::OutOfReach(_)) => return self.ended(actor, Some(why)),
            why if actor.host() == self.node.number() => {
                tell(&self.transport, FromGateway::LifeOver { actor, host, why });
            }
            _ => {}
        }
        self.life_over(actor, &Refusal::NoSuchActor);
    }

    /// Refuses the waiting messages of an actor of this host, because the host that it lives on does not
    /// offer it now. Later senders ask again.
    fn not_now(&mut self, actor: ActorId, why: String) {
        self.mailboxes.refuse_waiting(actor, &Refusal::NotPassedOn(why), &self.transport);
        self.give_place_up(actor);
        if self.reaching.get(&actor) == Some(&false) {
            self.want(actor);
        }
    }

    fn give_place_up(&mut self, actor: ActorId) {
        let Some(mailbox) = self.mailboxes.get_mut(&actor) else { return };
        match mailbox.place {
            MailboxPlace::At(_) => {
                mailbox.place = MailboxPlace::GivenUp;
                tell(&self.transport, FromGateway::Rests { actor });
            }
            MailboxPlace::GivenUp => {}
            MailboxPlace::Nowhere => self.settle(actor),
        }
    }

    /// Ends the life of an actor that this host has sent to. Waiting messages are refused, and later senders
    /// wait for the next life.
    pub(super) fn life_over(&mut self, actor: ActorId, why: &Refusal) {
        let Some(life) = self.roaming.lives.get_mut(&actor) else { return };
        life.is_over = true;
        let host = life.host;
        self.mailboxes.refuse_waiting(actor, why, &self.transport);
        let is_gone = !self.hosts.contains_key(&host);
        if let Some(mailbox) = self.mailboxes.get_mut(&actor) {
            mailbox.offered = 0;
            if is_gone {
                mailbox.under_way = 0; // nobody will report them as done
            }
            self.give_place_up(actor);
        }
        // `true` means that the node is giving the actor a place now; `serve` deals with that case.
        if self.reaching.get(&actor) == Some(&false) {
            self.want(actor);
        }
    }
}
