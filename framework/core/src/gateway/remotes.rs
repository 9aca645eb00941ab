//! The other hosts of the node, and what this gateway knows of each.
//!
//! The gateway's task owns them, as it owns everything here (`run`). `logs`, `inbound` and `followers` add
//! what logs, replies and followers need.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use tensorpost_hosts::ids::{Correlation, Seq};
use tensorpost_hosts::join::{Member, Roster};
use tensorpost_hosts::net::{Happened, Peer};
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::time::{Instant, timeout};

use super::asks::{PendingAsk, Replying};
use super::command::Newcomer;
use super::note::{Note, encode_refusal, tainted};
use super::store::Store;
use super::to_node::tell;
use crate::ids::ActorId;
use crate::limits::MAX_WAITING_NOTES;
use crate::transport::Transport;
use crate::transport::gateway_messages::{FromGateway, Host};
use crate::transport::inbox::{Receipt, Refusal};

/// Events of sessions that wait to be handled by the gateway's task; further ones wait in their session.
const EVENTS: usize = 256;

/// How long a leaving gateway waits for the others to receive the word.
const LEAVE: Duration = Duration::from_secs(1);

/// The other hosts, by number.
pub(super) struct Remotes {
    by_number: BTreeMap<u16, Remote>,
    happened: Sender<(u16, Happened)>,
}

/// Another host.
pub(super) struct Remote {
    pub(super) member: Member,
    /// Counts the sessions with this host from 0. Words of an earlier session are not for this one.
    pub(super) session: u64,
    pub(super) peer: Arc<Peer>,
    pub(super) store: Arc<Store>,
    /// For each actor, the messages of earlier sessions that wait for room in its mailbox (`renewal`).
    pub(super) left_behind: HashMap<ActorId, i64>,
    /// Actors whose mailboxes will be offered to this host when they have taken those messages, or when fewer
    /// mailboxes are offered.
    pub(super) held_back: HashSet<ActorId>,
    /// Actors of this host that live there, and that it is still to be asked to report on; and whether a
    /// question is under way (`roaming`).
    pub(super) to_watch: BTreeSet<ActorId>,
    pub(super) is_asked_to_watch: bool,
    /// Actors of that host that the node is being asked about; that host waits for the word that it will get
    /// reports on them.
    pub(super) guests: Vec<ActorId>,
    /// When its gateway was replaced, of late.
    pub(super) renewals: VecDeque<Instant>,
    /// Messages that it is not done with, and their actors. The receipt of an ask is in `asks`.
    pub(super) open: HashMap<Seq, (ActorId, Option<Receipt>)>,
    /// Asks that it has not answered.
    pub(super) asks: HashMap<Correlation, PendingAsk>,
    /// Replies that wait for room in its window.
    pub(super) replies: VecDeque<Replying>,
    /// Notes that wait for earlier ones.
    notes: VecDeque<Bytes>,
    /// Questions of that host that this host has not answered yet.
    pub(super) questions: usize,
    /// Dropped records of its log that this host's node was not told of yet.
    pub(super) log_lost: u64,
    /// Whether `log_lost` will be reported soon, even if no more of the log comes.
    pub(super) owes_log: bool,
}

impl Remote {
    pub(super) fn new(Newcomer { member, peer, store }: Newcomer, session: u64) -> Self {
        Remote {
            member,
            session,
            peer,
            store,
            left_behind: HashMap::new(),
            held_back: HashSet::new(),
            to_watch: BTreeSet::new(),
            is_asked_to_watch: false,
            guests: Vec::new(),
            renewals: VecDeque::new(),
            open: HashMap::new(),
            asks: HashMap::new(),
            replies: VecDeque::new(),
            notes: VecDeque::new(),
            questions: 0,
            log_lost: 0,
            owes_log: false,
        }
    }

    /// Describes the host for people.
    pub(super) fn shown(&self) -> String {
        shown(&self.member)
    }

    /// Sends a note or queues it. Returns false if too many are queued.
    pub(super) fn note(&mut self, note: &Note) -> bool {
        let note = note.encode();
        let taken = self.notes.is_empty() && self.peer.with(|session| session.note(note.clone()));
        if !taken {
            self.notes.push_back(note);
        }
        self.notes.len() <= MAX_WAITING_NOTES
    }

    pub(super) fn send_notes(&mut self) {
        while let Some(note) = self.notes.front() {
            if !self.peer.with(|session| session.note(note.clone())) {
                return;
            }
            self.notes.pop_front();
        }
    }
}

impl Remotes {
    /// Also returns the end at which the events of the hosts' sessions come out.
    pub(super) fn new() -> (Self, Receiver<(u16, Happened)>) {
        let (happened, told) = mpsc::channel(EVENTS);
        (Remotes { by_number: BTreeMap::new(), happened }, told)
    }

    /// Returns whether the host that is asked for an actor is of the node. `own` is the number of this host.
    pub(super) fn is_in_reach(&self, actor: ActorId, own: u16) -> bool {
        self.contains_key(&actor.host()) || actor.roams() && actor.host() == own
    }

    /// Forwards the events of a host's sessions to the gateway's task from now on.
    pub(super) fn listen_to(&self, host: u16, peer: &Arc<Peer>) {
        let (telling, happened) = (Arc::clone(peer), self.happened.clone());
        tokio::spawn(async move {
            while let Some(next) = telling.next().await {
                if happened.send((host, next)).await.is_err() {
                    return;
                }
            }
        });
    }

    pub(super) fn note_to_all(&mut self, note: &Note) {
        for remote in self.values_mut() {
            // A host whose queue is full is given up at the next note that is for it alone.
            let _ = remote.note(note);
        }
    }

    /// Tells the node which hosts it has; `own` is this one.
    pub(super) fn tell_members(&self, own: &Member, transport: &Transport) {
        let host = |member: &Member| {
            let (number, life) = (member.who.host.0, member.who.life.0);
            (Host { number, name: member.name.clone(), address: member.address.clone() }, life)
        };
        let all = std::iter::once(own).chain(self.values().map(|remote| &remote.member));
        let mut members: Vec<_> = all.map(host).collect();
        members.sort_by_key(|(host, _)| host.number);
        tell(transport, FromGateway::Members(members));
    }

    /// Finishes a message that its host is done with, and returns its actor. The sender's credit goes with
    /// the receipt.
    pub(super) fn done(&mut self, host: u16, post: Seq) -> Option<ActorId> {
        let (actor, _receipt) = self.get_mut(&host)?.open.remove(&post)?;
        Some(actor)
    }

    /// Aborts a message that is under way because one of its tensors is lost (HOST-6). `why` is the reason,
    /// `None` if the tensor is tainted.
    pub(super) fn spoilt(&self, own: &Member, host: u16, session: u64, post: Seq, why: Option<String>) {
        let own = shown(own);
        let why =
            why.map_or_else(|| tainted(&own), |why| format!("a tensor in it cannot be read on {own}: {why}"));
        let why = encode_refusal(Refusal::OutOfReach(why));
        if let Some(remote) = self.get(&host).filter(|remote| remote.session == session) {
            remote.peer.with(|session| session.abort(post, why));
        }
    }

    /// Tells all hosts that this one leaves, waits until they have received it, and ends their sessions. On
    /// the head, `roster` admits no host from then on.
    pub(super) async fn leave(&mut self, roster: Option<&Roster>) {
        self.note_to_all(&Note::Leaving);
        let heard = self.values().filter_map(|remote| {
            let (peer, link) = (Arc::clone(&remote.peer), remote.peer.link()?);
            // A host that has received the note ends the session, and with it the connection.
            Some(async move { timeout(LEAVE, peer.cut_of(link)).await })
        });
        join_all(heard.collect::<Vec<_>>()).await;
        if let Some(roster) = roster {
            roster.close();
        }
        self.values().for_each(|remote| remote.peer.end());
    }
}

impl Deref for Remotes {
    type Target = BTreeMap<u16, Remote>;

    fn deref(&self) -> &Self::Target {
        &self.by_number
    }
}

impl DerefMut for Remotes {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.by_number
    }
}

/// Describes a host for people.
pub(super) fn shown(member: &Member) -> String {
    let number = member.who.host;
    if member.name.is_empty() {
        format!("{number} ({})", member.address)
    } else {
        format!("{number} `{}` ({})", member.name, member.address)
    }
}
