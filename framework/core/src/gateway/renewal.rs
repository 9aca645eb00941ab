//! The replacement of another host's gateway.
//!
//! The old gateway ended with all that was in its memory, so nobody knows which of this host's messages it
//! had, and which it had passed on. The actors of its host live on. So messages that were not acknowledged
//! are answered as if the host were lost, and everything else goes on in a new session:
//!
//! 1. Messages that came in the old session are handled first, because a session reports them before it
//!    reports its end. So later ones stay behind them (HOST-3).
//! 2. Asks without an answer are refused ([`Refusal::GatewayEnded`]). Lent tensors (HOST-5) and places in
//!    mailboxes go back. Messages that were not sent yet wait where they are.
//! 3. This gateway repeats everything that the old gateway knew of it: the mailboxes that it wants, the
//!    actors of this host that live there and are to be reported on, and the names that it looks up. The head
//!    also repeats the list of hosts, and how lost ones went.
//!
//! **Bounds** (HOST-9). A mailbox of this host is offered to the next gateway when it has taken all messages
//! of the last session; until then the new ones wait at the sender. WIRE-1: a host whose gateway is replaced
//! again and again is given up. Each replacement costs this host the messages under way there and one line of
//! the log.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tensorpost_hosts::ids::Gateway as Which;
use tensorpost_hosts::net::Memory;
use tensorpost_hosts::session::Ended;
use tokio::time::Instant;

use super::command::{Newcomer, store_for};
use super::mailboxes::{Mailbox, MailboxPlace};
use super::note::Note;
use super::remotes::Remote;
use super::run::Gateway;
use super::to_node::tell;
use crate::ids::ActorId;
use crate::limits::MAX_RENEWALS;
use crate::transport::gateway_messages::{FromGateway, HostEnd};
use crate::transport::inbox::Refusal;

/// The time in which a host may have at most [`MAX_RENEWALS`] gateways.
const WITHIN: Duration = Duration::from_secs(60);

impl Gateway {
    /// Begins a new session with a host whose gateway was replaced.
    pub(super) fn renewed(&mut self, host: u16, ended: Ended, next: Which) {
        let Some(remote) = self.hosts.get_mut(&host) else { return };
        let now = Instant::now();
        remote.renewals.retain(|at| now.duration_since(*at) < WITHIN);
        remote.renewals.push_back(now);
        if remote.renewals.len() > MAX_RENEWALS {
            return self.gone(host, "is given up: it begins anew again and again", HostEnd::GivenUp);
        }
        let Some(before) = self.hosts.remove(&host) else { return };
        let name = before.shown();
        tracing::warn!(
            target: "tensorpost::hosts",
            asks = ended.asks.len(), messages = before.open.len(),
            "{name} has another gateway; whether what was under way there was handled, nobody knows"
        );
        let session = before.session + 1;
        let store = store_for(host, session, self.to.clone());
        let memory = Arc::clone(&store) as Arc<dyn Memory>;
        let pulse = self.node.pulse(before.member.who.host);
        let (of, nixl) = (self.node.session(&before.member, next), self.node.nixl(&store));
        let peer = before.peer.followed_by(of, memory, pulse, nixl);
        let member = before.member.clone();
        self.hosts.listen_to(host, &peer);
        // As before, the peer waits for connections, or dials.
        self.node.connect(&member, session, &peer, &self.to);
        let mut remote = Remote::new(Newcomer { member, peer, store }, session);
        // The old session ends before the new one is entered, so that nothing of it counts there. Only then
        // can the notes of `say_again` go to the new session.
        self.end_session(before, &mut remote, &ended);
        self.hosts.insert(host, remote);
        tell(&self.transport, FromGateway::Renewed { host });
        self.say_again(host);
    }

    /// Ends a session and all that was under way in it.
    fn end_session(&mut self, mut before: Remote, next: &mut Remote, ended: &Ended) {
        let host = before.member.who.host.0;
        before.store.clear();
        // These counts are about the host, and outlive its gateway.
        (next.log_lost, next.owes_log) = (before.log_lost, before.owes_log);
        next.renewals = std::mem::take(&mut before.renewals);
        next.left_behind = std::mem::take(&mut before.left_behind);
        for actor in &ended.open {
            *next.left_behind.entry(ActorId(actor.0)).or_default() += 1;
        }
        // A mailbox may have taken its messages before this session was reported as ended: then the count is
        // 0 now.
        next.left_behind.retain(|_, count| *count != 0);
        let why = Refusal::GatewayEnded(format!(
            "{} has another gateway; whether the message was handled there, nobody knows",
            before.shown()
        ));
        // Before the asks are drained, because it counts them.
        for actor in self.roaming.moved_from(&before) {
            self.less_under_way(actor);
        }
        for (_, asked) in before.asks.drain() {
            if let Some(mailbox) = self.mailboxes.get_mut(&asked.actor) {
                mailbox.followed.refused(asked.question, &why);
            }
            asked.receipt.refuse(&why);
        }
        // The senders' credits go with the receipts.
        drop(before);
        self.locals.forget_host(host);
    }

    /// Repeats what the old gateway of the host knew of this one.
    fn say_again(&mut self, host: u16) {
        let is_there = |actor: &&ActorId| self.roaming.host_of(**actor, &self.hosts) == Some(host);
        let there: Vec<_> = self.mailboxes.keys().filter(is_there).copied().collect();
        for actor in there {
            if let Some(mailbox) = self.mailboxes.get_mut(&actor) {
                (mailbox.offered, mailbox.under_way) = (0, 0);
            }
        }
        let watched = self.watched.iter().copied().filter(|actor| actor.host() == host);
        for actor in watched {
            self.mailboxes.entry(actor).or_insert_with(|| Mailbox::new(MailboxPlace::Nowhere, 0));
        }
        // For an actor that roams, its home is asked: a new gateway there has forgotten who wants to hear of
        // it. So is the host on which it lives.
        let known = self.mailboxes.keys().chain(self.reaching.keys()).copied();
        let lives_on = |actor: &ActorId| self.roaming.host_of(*actor, &self.hosts);
        let is_asked = |actor: &ActorId| actor.host() == host || lives_on(actor) == Some(host);
        let wanted: HashSet<_> = known.filter(|actor| is_asked(actor) && !self.late.waits(*actor)).collect();
        for actor in wanted {
            let not = self.roaming.not_on(actor);
            self.note_to(host, &Note::Want { actor, not });
        }
        self.watch_those_on(host);
        for (ticket, name) in self.lookups.unanswered_by(host) {
            self.note_to(host, &Note::Find { ticket, name });
        }
        self.say_who_is_there(host);
        if let Some((round, within)) = self.drains {
            self.note_to(host, &Note::Drain { round, within });
        }
    }

    /// On the head, tells a host who is of the node, because it may not have heard of some.
    fn say_who_is_there(&mut self, host: u16) {
        if self.node.roster.is_none() {
            return;
        }
        let others = self.hosts.values().filter(|remote| remote.member.who.host.0 != host);
        let notes: Vec<_> = others.map(|remote| Note::Joined(remote.member.clone())).collect();
        notes.iter().for_each(|note| self.note_to(host, note));
        let (numbers, gone) = (self.hosts.keys().copied().collect(), self.roaming.hosts_gone());
        self.note_to(host, &Note::Hosts { numbers, gone });
    }

    /// Goes on where the gateway before this one stopped.
    pub(super) fn go_on(&mut self) {
        self.hosts.tell_members(&self.node.own, &self.transport);
        let hosts: Vec<_> = self.hosts.keys().copied().collect();
        hosts.into_iter().for_each(|host| self.say_who_is_there(host));
    }

    /// Watches an actor of another host again, as the gateway before this one did.
    pub(super) fn watch_again(&mut self, actor: ActorId) {
        if !self.hosts.contains_key(&actor.host()) {
            return self.reach(actor); // this answers that it is out of reach
        }
        if !self.mailboxes.contains_key(&actor) {
            self.watched.insert(actor);
            // Asks for it with a mailbox that gives its place up at once; then its host reports what happens
            // to it (`resting`).
            self.mailboxes.insert(actor, Mailbox::new(MailboxPlace::Nowhere, 0));
            self.note_to(actor.host(), &Note::Want { actor, not: None });
        }
    }
}

impl Remote {
    /// Takes one message off the count. This may happen before the end of its session is reported, so the
    /// count may go below 0.
    pub(super) fn is_done_with(&mut self, actor: ActorId) {
        let count = self.left_behind.entry(actor).or_default();
        *count -= 1;
        if *count == 0 {
            self.left_behind.remove(&actor);
        }
    }
}
