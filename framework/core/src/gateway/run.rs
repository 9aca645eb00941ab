//! The gateway's one task. It owns all of the state and handles commands one after the other. Nothing that it
//! does blocks.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::join_all;
use tensorpost_hosts::ids::{Correlation, Gateway as Which, Seq};
use tensorpost_hosts::join::Member;
use tensorpost_hosts::limits::{AGENT_GRACE, BEAT, HEAD_GRACE};
use tensorpost_hosts::net::{Happened, Offset, Peer};
use tensorpost_hosts::session::Event;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use super::copiers::Copiers;
use super::followers::PendingAsk;
use super::inbound::Replying;
use super::late_messages::Late;
use super::names::{Local, Lookup};
use super::note::Note;
use super::outbound::Mailbox;
use super::prepare::Packing;
use super::roaming::Roaming;
use super::startup::{ByNumber, Node};
use super::store::Store;
use super::{Command, LEAVE, Newcomer, began, failed, shown, tell};
use crate::ids::{ActorId, DeviceId, ProcessId};
use crate::limits::MAX_WAITING_NOTES;
use crate::stream::turn::Turn;
use crate::tensor::DeviceStream;
use crate::transport::Transport;
use crate::transport::gateway_messages::{FromGateway, Host, HostEnd, ToGateway};
use crate::transport::inbox::Receipt;
use crate::transport::spin::{Spin, SpinStep};

/// Events of sessions that wait to be handled here; further ones wait in their session.
const EVENTS: usize = 256;

/// The most commands and events handled in one turn. The first message of a turn waits for the last one.
const AT_ONCE: usize = 16;

/// The state of the gateway's task; see the module.
pub(super) struct Gateway {
    pub(super) transport: Arc<Transport>,
    pub(super) stream: DeviceStream,
    pub(super) copiers: Arc<Copiers>,
    pub(super) node: Node,
    pub(super) to: UnboundedSender<Command>,
    pub(super) hosts: ByNumber<Remote>,
    /// Actors of other hosts that have a mailbox here.
    pub(super) mailboxes: HashMap<ActorId, Mailbox>,
    /// Actors that the node waits for, and whether it was told that they are offered.
    pub(super) reaching: HashMap<ActorId, bool>,
    /// Actors without a mailbox here whose hosts report what happens to them.
    pub(super) watched: HashSet<ActorId>,
    /// Actors whose hosts are asked because late messages came for them.
    pub(super) late: Late,
    /// Places that the node wants for other actors.
    pub(super) places_wanted: usize,
    /// Actors of this host that others know or ask for.
    pub(super) locals: HashMap<ActorId, Local>,
    /// The hosts on which roaming actors live.
    pub(super) roaming: Roaming,
    /// The GPUs of processes of this host that ask actors of other hosts, by process slot.
    pub(super) gpus: HashMap<usize, (ProcessId, DeviceId)>,
    /// Look-ups of names on the other hosts.
    pub(super) lookups: HashMap<u64, Lookup>,
    /// Whether this host shuts down.
    pub(super) is_stopping: bool,
    /// On the head during a shutdown: the last round of questions, and its time limit.
    pub(super) drains: Option<(u64, u64)>,
    /// Lets one message at a time take memory: two that have half of theirs would wait for each other.
    pub(super) memory: Arc<tokio::sync::Mutex<()>>,
    pub(super) packing: Packing,
    /// Numbers messages that go out.
    pub(super) last_item: u64,
    happened: mpsc::Sender<(u16, Happened)>,
    told: Option<mpsc::Receiver<(u16, Happened)>>,
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

    fn send_notes(&mut self) {
        while let Some(note) = self.notes.front() {
            if !self.peer.with(|session| session.note(note.clone())) {
                return;
            }
            self.notes.pop_front();
        }
    }
}

impl Gateway {
    pub(super) fn new(
        transport: &Arc<Transport>,
        stream: DeviceStream,
        node: Node,
        to: UnboundedSender<Command>,
    ) -> Self {
        let (happened, told) = mpsc::channel(EVENTS);
        Gateway {
            transport: Arc::clone(transport),
            stream,
            copiers: Arc::clone(&node.copiers),
            node,
            to,
            hosts: ByNumber::new(),
            mailboxes: HashMap::new(),
            reaching: HashMap::new(),
            watched: HashSet::new(),
            late: Late::default(),
            places_wanted: 0,
            locals: HashMap::new(),
            roaming: Roaming::default(),
            gpus: HashMap::new(),
            lookups: HashMap::new(),
            is_stopping: false,
            drains: None,
            memory: Arc::default(),
            packing: Packing::default(),
            last_item: 0,
            happened,
            told: Some(told),
        }
    }

    /// Returns the number of this host.
    pub(super) fn own(&self) -> u16 {
        self.node.own.who.host.0
    }

    /// Runs until the gateway has left the node.
    pub(super) async fn run(mut self, mut commands: UnboundedReceiver<Command>) {
        let Some(mut told) = self.told.take() else { return };
        let (page, socket) = match self.what_outlives_it() {
            Ok(both) => both,
            Err(error) => {
                let why = format!("what the next gateway needs cannot be given to the node: {error}");
                return failed(&self.transport, why);
            }
        };
        // Set before this process passes any address on.
        self.transport.directory.set_host(self.own());
        let is_first = self.node.gateway == Which::FIRST;
        if is_first {
            // Sent before `Began`, so that a program that waits for this host to join finds the other hosts.
            self.tell_members();
        }
        began(&self.transport, self.node.own.who, page, socket);
        if !is_first {
            self.go_on();
        }
        let (stopping, to) = (self.transport.until_stopping(), self.to.clone());
        tokio::spawn(async move {
            stopping.await;
            let _ = to.send(Command::Stopping);
        });
        let to = self.to.clone();
        tokio::spawn(async move {
            // The beat goes through the one task that does everything else. If that task is stuck, the node
            // hears no beat.
            while to.send(Command::Beat).is_ok() {
                tokio::time::sleep(BEAT).await;
            }
        });
        let (mut asked, mut events) = (Vec::with_capacity(AT_ONCE), Vec::with_capacity(AT_ONCE));
        let mut spin: Spin = Spin::new();
        spin.set_patient(true);
        loop {
            // Sleeping and waking cost a message some microseconds in each gateway. If there are spare cores,
            // this thread polls for as long as the process's reader would. The runtime looks at all its
            // sockets between two polls.
            let looks = self.transport.has_spare_cores() && spin.idle() != SpinStep::Park;
            let count = tokio::select! {
                count = commands.recv_many(&mut asked, AT_ONCE) => count,
                count = told.recv_many(&mut events, AT_ONCE) => count,
                () = tokio::task::yield_now(), if looks => continue,
            };
            if count == 0 {
                return;
            }
            spin.found();
            if let Some(left) = self.take_all(&mut asked, &mut events) {
                self.leave().await;
                let _ = left.send(());
                return;
            }
        }
    }

    fn what_outlives_it(&self) -> std::io::Result<(OwnedFd, OwnedFd)> {
        let listener = self.node.listener.as_ref().ok_or(std::io::ErrorKind::NotConnected)?;
        Ok((self.node.page.export()?, listener.socket().try_clone_to_owned()?))
    }

    /// Handles everything that has come in one turn, so that a process to which several messages go is rung
    /// once. Returns the sender that waits for this host to leave, if it is to; later commands are not
    /// handled any more.
    pub(super) fn take_all(
        &mut self,
        asked: &mut Vec<Command>,
        events: &mut Vec<(u16, Happened)>,
    ) -> Option<oneshot::Sender<()>> {
        let _turn = Turn::begin();
        events.drain(..).for_each(|(host, happened)| self.happened(host, happened));
        for command in asked.drain(..) {
            match command {
                Command::Leave(left) => return Some(left),
                command => self.take(command),
            }
        }
        self.ask_for_late();
        None
    }

    fn take(&mut self, command: Command) {
        match command {
            Command::Node(said) => self.node_says(said),
            Command::Out(out) => self.take_out(out),
            Command::Prepared(prepared) => self.prepared(*prepared),
            Command::Spoilt { host, session, post, why } => self.spoilt(host, session, post, why),
            Command::Answered(answered) => self.answered(*answered),
            Command::LogLost(host) => self.log_lost(host),
            Command::Event(event) => self.local_event(&event),
            Command::Found { host, session, ticket, found } => self.found_here(host, session, ticket, found),
            Command::LeftBehind { host, actor } => self.less_left_behind(host, actor),
            Command::Beat => {
                // If there is no room the beat is dropped: a node that reads nothing needs to know nothing.
                let _ = self.transport.control.send_if_room(FromGateway::Alive.sealed());
                self.offer_held_back();
            }
            Command::Joined(newcomer) => self.joined(*newcomer),
            Command::Verdict(host) => {
                let why = format!("is lost: it was not heard for {} s", HEAD_GRACE.as_secs());
                self.gone(host, &why, HostEnd::Lost);
            }
            Command::Refused { host, session, why } => {
                if self.hosts.get(&host).is_some_and(|remote| remote.session == session) {
                    self.gone(host, &format!("has given this host up: {why}"), HostEnd::GivenUp);
                }
            }
            Command::CutOff => {
                self.gone(0, &format!("has not answered for {} s", AGENT_GRACE.as_secs()), HostEnd::Lost);
            }
            Command::Unfollow(actor) => self.unfollow(actor),
            Command::Hungry => self.forget_versions(),
            Command::Stopping => self.end_questions(),
            // `take_all` handles it.
            Command::Leave(_) => {}
        }
    }

    fn node_says(&mut self, said: ToGateway) {
        match said {
            ToGateway::Begin(_) => tracing::error!("the node makes this process the gateway a second time"),
            ToGateway::Reach { actors } => actors.into_iter().for_each(|actor| self.reach(actor)),
            ToGateway::Serve { actor, location } => self.serve(actor, location),
            ToGateway::Withdraw { actor } => self.withdraw(actor),
            ToGateway::Watch { actors } => actors.into_iter().for_each(|actor| self.watch_again(actor)),
            ToGateway::MakeRoom => self.make_room(),
            ToGateway::Rested { actor, told } => self.rested(actor, told),
            ToGateway::Find { ticket, name } => self.find(ticket, name),
            ToGateway::Local { actor, at, device } => self.local_is(actor, at, device),
            ToGateway::LivesOn { actor, host } => self.lives_on(actor, host),
            ToGateway::Lives(lives) => lives.into_iter().for_each(|(actor, host)| self.lives_on(actor, host)),
            ToGateway::Guests { host, session } => self.guests_are(host, session),
            // Bounded: one entry for each process slot.
            ToGateway::Uses { process, device } => drop(self.gpus.insert(process.slot(), (process, device))),
            ToGateway::Drain { round, within } => {
                self.drains = Some((round, within));
                let hosts: Vec<_> = self.hosts.keys().copied().collect();
                hosts.into_iter().for_each(|host| self.note_to(host, &Note::Drain { round, within }));
            }
            ToGateway::Log { first, records } => self.tell_log(first, &records),
            ToGateway::Claim { ticket, name } => self.note_to(0, &Note::Claim { ticket, name }),
            ToGateway::Release { name } => self.note_to(0, &Note::Release { name }),
            ToGateway::Names { names, is_last } => self.note_to(0, &Note::Names { names, is_last }),
            ToGateway::Claimed { host, ticket, name, result } => {
                self.note_to(host, &Note::Claimed { ticket, name, result });
            }
            ToGateway::Drained { round, activity } => self.note_to(0, &Note::Drained { round, activity }),
        }
    }

    fn happened(&mut self, host: u16, happened: Happened) {
        let event = match happened {
            Happened::Event(event) => event,
            Happened::Clock(Offset { nanos, within }) => {
                return tell(&self.transport, FromGateway::Clock { nanos, within });
            }
            Happened::Log { lost, log } => return self.log_of(host, lost, &log),
            Happened::Renewed(ended, gateway) => return self.renewed(host, ended, gateway),
            Happened::Ended(_) => {
                return self.gone(
                    host,
                    "is given up: it broke the protocol again and again",
                    HostEnd::GivenUp,
                );
            }
        };
        let Some(remote) = self.hosts.get_mut(&host) else { return };
        match event {
            Event::Arriving { post, message } => self.arriving(host, post, &message),
            Event::Message { post, message } => self.arrived(host, post, message),
            Event::Aborted { post, why: _ } => drop(remote.store.take(post)),
            Event::Released { post, whole: _ } => remote.store.released(post),
            Event::Done { post } => self.done(host, post),
            Event::Refused { correlation, why } => self.refused(host, correlation, &why),
            Event::Served { actor, capacity } => self.served(host, ActorId(actor.0), capacity),
            Event::Room { actor } => self.send_on(ActorId(actor.0)),
            Event::Window => self.send_all(host),
            Event::Note(note) => self.note(host, &note),
            Event::NoteRoom => remote.send_notes(),
        }
    }

    /// Adds a host that has just joined.
    fn joined(&mut self, newcomer: Newcomer) {
        if self.node.roster.is_some() {
            // The newcomer dials the other hosts, which have to know it before that.
            self.note_to_all(&Note::Joined(newcomer.member.clone()));
        }
        self.add(newcomer);
        self.tell_members();
    }

    /// Adds a host of the node.
    pub(super) fn add(&mut self, newcomer: Newcomer) {
        let host = newcomer.member.who.host.0;
        self.listen_to(host, &newcomer.peer);
        self.hosts.insert(host, Remote::new(newcomer, 0));
        self.want_those_on(host);
        self.watch_those_on(host);
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
        for remote in self.hosts.values_mut() {
            // A host whose queue is full is given up at the next note that is for it alone.
            let _ = remote.note(note);
        }
    }

    /// Sends a note to one host, and gives the host up if its queue is full.
    pub(super) fn note_to(&mut self, host: u16, note: &Note) {
        if self.hosts.get_mut(&host).is_some_and(|remote| !remote.note(note)) {
            self.gone(host, "is given up: it does not take what it is told", HostEnd::GivenUp);
        }
    }

    pub(super) fn tell_members(&self) {
        let host = |member: &Member| {
            let (number, life) = (member.who.host.0, member.who.life.0);
            (Host { number, name: member.name.clone(), address: member.address.clone() }, life)
        };
        let all = std::iter::once(&self.node.own).chain(self.hosts.values().map(|remote| &remote.member));
        let mut members: Vec<_> = all.map(host).collect();
        members.sort_by_key(|(host, _)| host.number);
        tell(&self.transport, FromGateway::Members(members));
    }

    /// Tells all hosts that this one leaves, and waits until they have received it.
    async fn leave(&mut self) {
        self.note_to_all(&Note::Leaving);
        let heard = self.hosts.values().filter_map(|remote| {
            let (peer, link) = (Arc::clone(&remote.peer), remote.peer.link()?);
            // A host that has received the note ends the session, and with it the connection.
            Some(async move { timeout(LEAVE, peer.cut_of(link)).await })
        });
        join_all(heard.collect::<Vec<_>>()).await;
        if let Some(roster) = &self.node.roster {
            roster.close();
        }
        self.hosts.values().for_each(|remote| remote.peer.end());
        drop(self.node.listener.take());
    }
}
