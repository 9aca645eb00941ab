//! The gateway's one task. It owns all of the state and handles commands one after the other. Nothing that it
//! does blocks.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use tensorpost_hosts::ids::Gateway as Which;
use tensorpost_hosts::limits::{AGENT_GRACE, BEAT, HEAD_GRACE};
use tensorpost_hosts::net::{Happened, Offset};
use tensorpost_hosts::session::Event;
use tokio::sync::mpsc::{Receiver, UnboundedReceiver, UnboundedSender};
use tokio::sync::oneshot;

use super::command::{Command, Newcomer};
use super::late_messages::Late;
use super::locals::Locals;
use super::lookups::Lookups;
use super::mailboxes::Mailboxes;
use super::note::Note;
use super::preparer::Preparer;
use super::remotes::{Remote, Remotes};
use super::roaming::Roaming;
use super::startup::Node;
use super::to_node::{began, failed, tell};
use crate::ids::{ActorId, DeviceId, ProcessId};
use crate::stream::turn::Turn;
use crate::tensor::DeviceStream;
use crate::transport::Transport;
use crate::transport::gateway_messages::{FromGateway, HostEnd, ToGateway};
use crate::transport::spin::{Spin, SpinStep};

/// The most commands and events handled in one turn. The first message of a turn waits for the last one.
const AT_ONCE: usize = 16;

/// The state of the gateway's task; see the module.
pub(super) struct Gateway {
    pub(super) transport: Arc<Transport>,
    pub(super) node: Node,
    pub(super) to: UnboundedSender<Command>,
    pub(super) hosts: Remotes,
    /// Actors of other hosts that have a mailbox here.
    pub(super) mailboxes: Mailboxes,
    /// Actors that the node waits for, and whether it was told that they are offered.
    pub(super) reaching: HashMap<ActorId, bool>,
    /// Actors without a mailbox here whose hosts report what happens to them.
    pub(super) watched: HashSet<ActorId>,
    /// Actors whose hosts are asked because late messages came for them.
    pub(super) late: Late,
    /// Actors of this host that others know or ask for.
    pub(super) locals: Locals,
    /// The hosts on which roaming actors live.
    pub(super) roaming: Roaming,
    /// The GPUs of processes of this host that ask actors of other hosts, by process slot.
    pub(super) gpus: HashMap<usize, (ProcessId, DeviceId)>,
    /// Look-ups of names on the other hosts.
    pub(super) lookups: Lookups,
    /// Whether this host shuts down.
    pub(super) is_stopping: bool,
    /// On the head during a shutdown: the last round of questions, and its time limit.
    pub(super) drains: Option<(u64, u64)>,
    pub(super) preparer: Preparer,
    told: Option<Receiver<(u16, Happened)>>,
}

impl Gateway {
    pub(super) fn new(
        transport: &Arc<Transport>,
        stream: DeviceStream,
        node: Node,
        to: UnboundedSender<Command>,
    ) -> Self {
        let (hosts, told) = Remotes::new();
        Gateway {
            transport: Arc::clone(transport),
            preparer: Preparer::new(stream, Arc::clone(&node.copiers), to.clone()),
            node,
            to,
            hosts,
            mailboxes: Mailboxes::default(),
            reaching: HashMap::new(),
            watched: HashSet::new(),
            late: Late::default(),
            locals: Locals::default(),
            roaming: Roaming::default(),
            gpus: HashMap::new(),
            lookups: Lookups::default(),
            is_stopping: false,
            drains: None,
            told: Some(told),
        }
    }

    /// Runs until the gateway has left the node.
    pub(super) async fn run(mut self, mut commands: UnboundedReceiver<Command>) {
        let Some(mut told) = self.told.take() else { return };
        let (page, socket) = match self.node.outlives_gateway() {
            Ok(both) => both,
            Err(error) => {
                let why = format!("what the next gateway needs cannot be given to the node: {error}");
                return failed(&self.transport, why);
            }
        };
        // Set before this process passes any address on.
        self.transport.directory.set_host(self.node.number());
        let is_first = self.node.gateway == Which::FIRST;
        if is_first {
            // Sent before `Began`, so that a program that waits for this host to join finds the other hosts.
            self.hosts.tell_members(&self.node.own, &self.transport);
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
                self.hosts.leave(self.node.roster.as_deref()).await;
                drop(self.node.listener.take());
                let _ = left.send(());
                return;
            }
        }
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
            Command::Spoilt { host, session, post, why } => {
                self.hosts.spoilt(&self.node.own, host, session, post, why);
            }
            Command::Answered(answered) => self.answered(*answered),
            Command::LogLost(host) => self.hosts.log_lost(host, &self.transport, &self.to),
            Command::Event(event) => {
                let told = self.locals.event(&event, self.node.number(), &self.hosts);
                if let Some((note, told)) = told {
                    told.into_iter().for_each(|host| self.note_to(host, &note));
                }
            }
            Command::Found { host, session, ticket, found } => self.found_here(host, session, ticket, found),
            Command::LeftBehind { host, actor } => {
                self.locals.less_left_behind(host, actor, &mut self.hosts);
            }
            Command::Beat => {
                // If there is no room the beat is dropped: a node that reads nothing needs to know nothing.
                let _ = self.transport.control.send_if_room(FromGateway::Alive.sealed());
                self.locals.offer_held_back(&mut self.hosts);
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
            Command::Unfollow(actor) => self.mailboxes.unfollow(actor),
            Command::Hungry => self.mailboxes.forget_versions(),
            Command::Stopping => {
                self.is_stopping = true;
                self.mailboxes.end_questions();
                self.hosts.end_questions();
            }
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
            ToGateway::MakeRoom => self.mailboxes.make_room(&self.transport),
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
            ToGateway::Log { first, records } => self.hosts.tell_log(first, &records),
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
            Happened::Log { lost, log } => {
                return self.hosts.log_of(host, lost, &log, &self.transport, &self.to);
            }
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
            Event::Done { post } => {
                if let Some(actor) = self.hosts.done(host, post) {
                    self.less_under_way(actor);
                }
            }
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
            self.hosts.note_to_all(&Note::Joined(newcomer.member.clone()));
        }
        self.add(newcomer);
        self.hosts.tell_members(&self.node.own, &self.transport);
    }

    /// Adds a host of the node.
    pub(super) fn add(&mut self, newcomer: Newcomer) {
        let host = newcomer.member.who.host.0;
        self.hosts.listen_to(host, &newcomer.peer);
        self.hosts.insert(host, Remote::new(newcomer, 0));
        self.want_those_on(host);
        self.watch_those_on(host);
    }

    /// Sends a note to one host, and gives the host up if its queue is full.
    pub(super) fn note_to(&mut self, host: u16, note: &Note) {
        if self.hosts.get_mut(&host).is_some_and(|remote| !remote.note(note)) {
            self.gone(host, "is given up: it does not take what it is told", HostEnd::GivenUp);
        }
    }
}
