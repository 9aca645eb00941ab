//! The supervisor's part with other hosts: the gateway's beginning and end, and what concerns the node as a
//! whole.
//!
//! The gateway is a worker like others, and nothing runs in it but the way to other hosts. What it says of
//! actors and names is the broker's affair (`node/foreign.rs`).
//!
//! **On the gateway's death** another follows (`supervisor/gateways.rs`). Where none does, the other hosts
//! are out of reach. The head goes on without them; an agent ends at once, because nobody answers the head
//! for it any more (HOST-10). **On a shutdown of the head** all hosts drain together: the head asks them in
//! each of its rounds (`node/shutdown.rs`), and leaves when nothing is under way anywhere. **On the end of
//! the node elsewhere** this host's node ends too: at once where the head may give its actors other lives
//! (HOST-10), in order where the head has left.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use crate::actor::NewActor;
use crate::ids::{ActorId, ProcessId};
use crate::node::broker::Delivery;
use crate::node::control::Down;
use crate::node::fences::Opened;
use crate::node::group::Supervision;
use crate::node::head_log::TELL_DROPPED;
use crate::node::host::Activity;
use crate::node::limits::{DROP_DEADLINE, MAX_FAILURE_TEXT, MAX_NAME};
use crate::node::shutdown::Party;
use crate::observe::log::Severity;
use crate::observe::text::shown;
use crate::observe::trace::joined::HostTrace;
use crate::transport::control_channel::{FromNode, Location, ToNode};
use crate::transport::hosts::{FromGateway, Gone, Host, HostActivity, HostRecord, Settings, ToGateway};
use crate::transport::lifecycle::Lifecycle;
use crate::transport::works_until::WorksUntil;

use tokio::sync::oneshot;

use super::actors::{Guest, Started};
use super::gateways::Gateways;
use super::groups::elsewhere::GroupsCommand;
use super::roaming::RoamingCommand;
use super::run::State;
use super::stopping::Stopping;
use super::{Closed, Command, Reply, Shared, Supervisor, WorkerId, deadline_after};

/// What somebody waits for.
pub(super) enum Awaited {
    /// So many hosts.
    Count(usize),
    /// Others than these: one has joined, left or was lost since they were listed.
    OtherThan(Vec<Host>),
}

/// What the node knows of its hosts.
#[derive(Default)]
pub(super) struct Hosts {
    /// Whoever waits for this host to be one of its node.
    pub(super) beginning: Option<Reply<Result<u16, String>>>,
    pub(super) gateways: Gateways,
    pub(super) members: Vec<Host>,
    /// On an agent: until when its workers may work. Each looks at it by itself, and the node too, whose
    /// gateway may be stopped.
    pub(super) works_until: Option<Arc<WorksUntil>>,
    /// Those that were, and are not any more. No number is given twice.
    gone: HashSet<u16>,
    /// The workers that other hosts have asked for, with that host; but for some that have ended.
    started_for: HashMap<WorkerId, u16>,
    /// Whoever waits for them to be so, or until it is that late.
    awaiting: Vec<(Awaited, Instant, Reply<Vec<Host>>)>,
}

impl Hosts {
    /// With what a worker is welcomed, beside its other pages.
    pub(super) fn with_works_until(&self, mut descriptors: Vec<OwnedFd>) -> io::Result<Vec<OwnedFd>> {
        if let Some(works_until) = &self.works_until {
            descriptors.push(works_until.export()?);
        }
        Ok(descriptors)
    }

    fn tell_awaiting(&mut self) {
        let (members, now) = (&self.members, Instant::now());
        let is_over = |(awaited, until, _): &mut (Awaited, Instant, _)| {
            let is_so = match awaited {
                Awaited::Count(count) => members.len() >= *count,
                Awaited::OtherThan(seen) => members != seen,
            };
            is_so || now >= *until
        };
        for (_, _, reply) in self.awaiting.extract_if(.., is_over) {
            // Who has given up waiting does not take it.
            let _ = reply.try_send(members.clone());
        }
    }
}

impl From<Activity> for HostActivity {
    fn from(Activity { sent, received, busy, leaves_unread }: Activity) -> Self {
        HostActivity { sent, received, busy, leaves_unread }
    }
}

impl From<HostActivity> for Activity {
    fn from(HostActivity { sent, received, busy, leaves_unread }: HostActivity) -> Self {
        Activity { sent, received, busy, leaves_unread }
    }
}

/// What is asked of the supervisor about other hosts.
pub(super) enum HostsCommand {
    Begin(WorkerId, Settings, Reply<Result<u16, String>>),
    Members(Reply<Vec<Host>>),
    /// As soon as they are so; nobody waits after that time.
    Await(Awaited, Instant, Reply<Vec<Host>>),
    Gateway(Reply<Option<ProcessId>>),
    /// Other hosts may have actors started here.
    Serve,
    Load(Reply<usize>),
    /// Where an actor is, when all was taken that was sent by now to the process that it is reached in;
    /// nothing where it is not known here.
    Fence(ActorId, oneshot::Sender<Option<Location>>),
    /// This worker was started because that host has asked for it.
    StartedFor(WorkerId, u16),
    /// What the other hosts have traced of the run, and what cannot be read of it.
    Traced(Vec<(String, HostTrace)>, Vec<String>),
    /// About actors that go on on another host.
    Roaming(RoamingCommand),
    /// About groups with actors on several.
    Groups(GroupsCommand),
    /// Start an actor that roams, and has its id from another host, in a worker here; as its life with this
    /// number.
    StartGuest(WorkerId, Box<NewActor>, Supervision, Guest, Reply<Started>),
    /// Where an actor lives that roams, and in which worker, if it is one of this host's.
    Guest(ActorId, Reply<Option<(Location, WorkerId)>>),
}

impl WorkerId {
    /// Its host, if that is another one.
    #[doc(hidden)] // for the pipelines, which are another crate
    pub fn host(self) -> Option<u16> {
        self.elsewhere().map(|(host, _)| host)
    }
}

impl Supervisor {
    /// Makes a worker the gateway to the other hosts, and waits until this host is one of its node: its
    /// number.
    ///
    /// # Errors
    /// The outer: the node has ended. The inner: why this host is of no node.
    pub(crate) fn begin_hosts(
        &self,
        gateway: WorkerId,
        settings: Settings,
    ) -> Result<Result<u16, String>, Closed> {
        self.shared.ask(|reply| Command::Hosts(HostsCommand::Begin(gateway, settings, reply)))
    }

    /// The hosts of the node, this one among them.
    pub(crate) fn hosts(&self) -> Result<Vec<Host>, Closed> {
        self.shared.ask(|reply| Command::Hosts(HostsCommand::Members(reply)))
    }

    /// The hosts of the node as soon as there are so many, or as they are after that time.
    pub(crate) fn await_hosts(&self, count: usize, within: Duration) -> Result<Vec<Host>, Closed> {
        self.await_members(Awaited::Count(count), within)
    }

    /// The hosts of the node as soon as they are others than these, or as they are after that time.
    pub(crate) fn await_other_hosts(&self, seen: Vec<Host>, within: Duration) -> Result<Vec<Host>, Closed> {
        self.await_members(Awaited::OtherThan(seen), within)
    }

    /// The numbers of the hosts of the node, as soon as none of these is among them, or after that time.
    #[doc(hidden)] // for the pipelines, which are another crate
    pub fn hosts_but_for(&self, gone: &[u16], within: Duration) -> Result<Vec<u16>, Closed> {
        let until = deadline_after(within);
        let mut hosts = self.hosts()?;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || !hosts.iter().any(|host| gone.contains(&host.number)) {
                return Ok(hosts.iter().map(|host| host.number).collect());
            }
            hosts = self.await_other_hosts(hosts, left)?;
        }
    }

    fn await_members(&self, awaited: Awaited, within: Duration) -> Result<Vec<Host>, Closed> {
        let (reply, answer) = sync_channel(1);
        self.shared.push(Command::Hosts(HostsCommand::Await(awaited, deadline_after(within), reply)))?;
        match answer.recv_timeout(within) {
            Ok(hosts) => Ok(hosts),
            Err(RecvTimeoutError::Timeout) => self.hosts(),
            Err(RecvTimeoutError::Disconnected) => Err(Closed::Ended),
        }
    }

    /// The process of the gateway, in a node of several hosts.
    pub(crate) fn gateway(&self) -> Result<Option<ProcessId>, Closed> {
        self.shared.ask(|reply| Command::Hosts(HostsCommand::Gateway(reply)))
    }

    /// Has this host answer what others ask of its starter, which takes messages now.
    pub(crate) fn serve_hosts(&self) {
        // After the node's end nobody asks.
        let _ = self.shared.push(Command::Hosts(HostsCommand::Serve));
    }

    /// Has this worker end when the host with this number is not of the node any more.
    pub(crate) fn started_for(&self, worker: WorkerId, host: u16) {
        // After the node's end it has ended.
        let _ = self.shared.push(Command::Hosts(HostsCommand::StartedFor(worker, host)));
    }

    /// Where an actor is, as soon as all was taken that was sent by now to the process in which it is
    /// reached: this host's gateway, where it is on another one. `None` where it is not known here; an error
    /// is the node's end.
    pub(crate) fn fence(&self, actor: ActorId) -> oneshot::Receiver<Option<Location>> {
        let (reply, answer) = oneshot::channel();
        // After the node's end the answer is that.
        let _ = self.shared.push(Command::Hosts(HostsCommand::Fence(actor, reply)));
        answer
    }

    /// Starts a life of an actor that roams in a worker, and waits until it can take messages.
    pub(in crate::node) fn start_guest(
        &self,
        worker: WorkerId,
        actor: NewActor,
        how: Supervision,
        guest: Guest,
    ) -> Started {
        let actor = Box::new(actor);
        let start = |reply| Command::Hosts(HostsCommand::StartGuest(worker, actor, how, guest, reply));
        self.shared.ask(start)?
    }

    /// Where an actor lives that roams, and in which worker, if it is one of this host's.
    pub(in crate::node) fn guest(&self, actor: ActorId) -> Result<Option<(Location, WorkerId)>, Closed> {
        self.shared.ask(|reply| Command::Hosts(HostsCommand::Guest(actor, reply)))
    }

    /// How many actors are in this host's workers.
    pub(crate) fn load(&self) -> Result<usize, Closed> {
        self.shared.ask(|reply| Command::Hosts(HostsCommand::Load(reply)))
    }
}

impl Shared {
    /// Has the supervisor list the hosts of the node; does not wait.
    pub(in crate::node) fn ask_for_hosts(&self, reply: Reply<Vec<Host>>) -> Result<(), Closed> {
        self.push(Command::Hosts(HostsCommand::Members(reply)))
    }
}

impl State {
    pub(super) fn hosts_command(&mut self, command: HostsCommand) {
        match command {
            HostsCommand::Begin(gateway, settings, reply) => self.begin_hosts(gateway, settings, reply),
            HostsCommand::Members(reply) => {
                let _ = reply.try_send(self.hosts.members.clone());
            }
            HostsCommand::Await(awaited, until, reply) => {
                // Those who have given up are found here at the latest (MBX-2).
                self.hosts.awaiting.push((awaited, until, reply));
                self.hosts.tell_awaiting();
            }
            HostsCommand::Gateway(reply) => {
                let _ = reply.try_send(self.broker.foreign.gateway());
            }
            HostsCommand::Serve => {
                let mut told = Vec::new();
                self.broker.serve_hosts(&mut told);
                self.deliver(told);
                self.trace_hosts();
            }
            HostsCommand::Load(reply) => {
                let _ = reply.try_send(self.broker.roster.load(self.broker.foreign.gateway()));
            }
            HostsCommand::Fence(actor, reply) => self.fence(actor, reply),
            HostsCommand::Traced(read, bad) => self.hosts_traced(read, bad),
            HostsCommand::Roaming(command) => self.roaming_command(command),
            HostsCommand::StartGuest(worker, new, how, guest, reply) => {
                self.start_guest(worker, *new, how, guest, reply);
            }
            HostsCommand::Groups(command) => self.groups_command(command),
            HostsCommand::Guest(actor, reply) => {
                let _ = reply.try_send(self.guest(actor));
            }
            HostsCommand::StartedFor(worker, host) => {
                // MBX-2: no more than there are.
                let workers = &mut self.workers;
                self.hosts.started_for.retain(|worker, _| workers.by_id(*worker).is_some());
                self.hosts.started_for.insert(worker, host);
                self.retire_for_hosts_gone();
            }
        }
    }

    fn begin_hosts(&mut self, gateway: WorkerId, settings: Settings, reply: Reply<Result<u16, String>>) {
        let Some(worker) = self.workers.by_id(gateway).filter(|worker| worker.is_running()) else {
            let _ = reply.try_send(Err("its gateway has ended".to_owned()));
            return;
        };
        let to = worker.process;
        self.broker.foreign.set_gateway(to);
        self.broker.deaths.say_gateway(to);
        self.broker.roster.host_is_known = true;
        self.hosts.beginning = Some(reply);
        *self.shared.all_hosts.gateway.lock() = Some(to);
        let message = FromNode::Hosts(self.hosts.gateways.first(gateway, to, settings));
        self.deliver(vec![Delivery { to, message, descriptors: Vec::new() }]);
    }

    fn fence(&mut self, actor: ActorId, reply: oneshot::Sender<Option<Location>>) {
        let location = self.broker.roster.actor(actor).map(|entry| entry.location);
        let gateway = self.broker.foreign.gateway().filter(|_| self.broker.is_foreign(actor));
        let mut told = Vec::new();
        // Who has given up waiting does not take it.
        let opened: Opened = Box::new(move || {
            let _ = reply.send(location);
        });
        match location.map(|location| location.process).or(gateway) {
            Some(process) => self.broker.fence(process, opened, &mut told),
            None => opened(),
        }
        self.deliver(told);
    }

    pub(super) fn tell_gateway(&mut self, said: ToGateway) {
        if let Some(to) = self.broker.foreign.gateway() {
            let message = FromNode::Hosts(said);
            self.deliver(vec![Delivery { to, message, descriptors: Vec::new() }]);
        }
    }

    /// The hosts that this one, as their head, shuts down with itself: an agent asks nobody.
    pub(super) fn other_hosts(&self) -> Vec<Party> {
        if self.broker.roster.host != 0 {
            return Vec::new();
        }
        let numbers = self.hosts.members.iter().map(|host| host.number);
        numbers.filter(|number| *number != 0).map(Party::Host).collect()
    }

    /// Asks them what is under way there. `left`: until this shutdown's deadline.
    pub(super) fn ask_other_hosts(&mut self, round: u64, left: Duration) {
        if !self.other_hosts().is_empty() {
            let within = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
            self.tell_gateway(ToGateway::Drain { round, within });
        }
    }

    /// The head shuts all hosts down, and asks whether anything is under way here. The first time this begins
    /// the shutdown of this host; from then on the head says when it goes on.
    fn drain_for_head(&mut self, round: u64, within: u64) {
        if self.stopping.is_none() {
            self.journal.node(Severity::Info, None, "the head shuts the node down".to_owned());
            let (reply, _nobody_waits) = sync_channel(1);
            // Behind the head's deadline there is time for its actors' end, as when the head says nothing
            // before it leaves.
            let within = Duration::from_millis(within).saturating_add(DROP_DEADLINE);
            self.begin_stopping(deadline_after(within), reply);
        }
        match self.stopping.as_mut().filter(|stopping| stopping.is_draining()) {
            Some(stopping) => {
                stopping.drain_with_others(round);
                self.begin_round();
            }
            // It is about to leave, and then nobody waits for it.
            None => {
                let activity = HostActivity { busy: true, ..HostActivity::default() };
                self.tell_gateway(ToGateway::Drained { round, activity });
            }
        }
    }

    /// Tells the head what all processes of this host have said, if it waits for that and they have.
    pub(super) fn answer_head(&mut self) {
        let Some(stopping) = &mut self.stopping else { return };
        let Some(total) = stopping.total() else { return };
        if let Some(round) = stopping.drains_with_others.as_mut().and_then(|drains| drains.asked.take()) {
            self.tell_gateway(ToGateway::Drained { round, activity: total.into() });
        }
    }

    /// These are the hosts of the node now.
    pub(super) fn members_are(&mut self, members: Vec<(Host, u64)>) {
        let hosts = members.iter().map(|(host, _)| host.clone()).collect();
        self.hosts.gateways.members_are(members);
        let before = std::mem::replace(&mut self.hosts.members, hosts);
        for host in before {
            if self.hosts.members.iter().all(|member| member.number != host.number) {
                self.hosts.gone.insert(host.number);
                self.answered(|rounds| rounds.left(Party::Host(host.number)));
                self.broker.registry.release_all(host.number);
                self.forget_names_of(host.number);
            }
        }
        self.retire_for_hosts_gone();
        self.trace_hosts();
        self.hosts.tell_awaiting();
    }

    /// Ends the workers that were started for hosts that are not of the node any more: nobody else knows of
    /// them. One that was being started as its host went comes here too.
    fn retire_for_hosts_gone(&mut self) {
        let Hosts { started_for, gone, .. } = &mut self.hosts;
        let left: Vec<_> = started_for.extract_if(|_, host| gone.contains(host)).collect();
        for (worker, host) in left {
            let text = format!(
                "{worker} ends, because it was started for host {host}, which is not of the node any more"
            );
            self.journal.node(Severity::Info, None, text);
            self.retire(worker);
        }
    }

    /// When to look whether the workers may work on.
    pub(super) fn next_look_at_works_until(&self) -> Option<Instant> {
        if self.stopping.as_ref().is_some_and(Stopping::is_late) {
            return None; // everything was killed
        }
        let left = self.hosts.works_until.as_ref()?.left();
        // What is never does not need to be waited for.
        Instant::now().checked_add(left)
    }

    /// HOST-10: the workers have to end by now, and nobody has said so, because the gateway is stopped.
    pub(super) fn check_works_until(&mut self) {
        let is_over = self.hosts.works_until.as_ref().is_some_and(|until| until.left().is_zero());
        if is_over && !self.stopping.as_ref().is_some_and(Stopping::is_late) {
            let text =
                "this host ends: its gateway has heard no answer of the head for too long, or is stopped";
            self.journal.node(Severity::Error, None, text.to_owned());
            let (reply, _nobody_waits) = sync_channel(1);
            self.begin_stopping(Instant::now(), reply);
        }
    }

    /// Takes what concerns the node as a whole, before the broker takes the rest.
    pub(super) fn hear_gateway(
        &mut self,
        from: ProcessId,
        message: &mut ToNode,
        descriptors: &mut Vec<OwnedFd>,
    ) {
        let ToNode::Hosts(said) = message else { return };
        let is_next = self.broker.foreign.gateway() != Some(from) && self.is_gateway(from);
        if let FromGateway::Began { result } = said
            && is_next
        {
            let result = result.clone().map_err(|why| shown(why, MAX_FAILURE_TEXT));
            return self.next_gateway_began(from, result, std::mem::take(descriptors));
        }
        if self.broker.foreign.gateway() != Some(from) {
            return; // the broker complains
        }
        match said {
            FromGateway::Alive => self.hosts.gateways.is_heard(),
            FromGateway::Renewed { host } => match self.broker.roster.host {
                0 => self.forget_names_of(*host),
                _ if *host == 0 => self.say_names(),
                _ => {}
            },
            FromGateway::Names { host, names, is_last } => {
                self.names_of_host(*host, std::mem::take(names), *is_last);
            }
            FromGateway::Began { result } => {
                let Some(reply) = self.hosts.beginning.take() else { return };
                let began = match result {
                    Ok(own) => self.began(*own, std::mem::take(descriptors)),
                    Err(why) => Err(shown(why.clone(), MAX_FAILURE_TEXT)),
                };
                let _ = reply.try_send(began);
            }
            FromGateway::Members(members) => {
                self.members_are(members.clone());
            }
            FromGateway::Drain { round, within } => self.drain_for_head(*round, *within),
            FromGateway::Drained { host, round, activity } => {
                self.activity(Party::Host(*host), *round, (*activity).into());
            }
            // HOST-10: a host that is none any more has no names.
            FromGateway::Claim { host, ticket, name }
                if self.hosts.members.iter().any(|member| member.number == *host) =>
            {
                self.claim_of_host(*host, *ticket, std::mem::take(name));
            }
            FromGateway::Release { host, name } => self.broker.registry.release(*host, name),
            FromGateway::Claimed { ticket, name, result } => {
                self.claimed(std::mem::take(name), *ticket, *result);
            }
            FromGateway::Clock { nanos, within } => {
                *self.shared.all_hosts.clock.lock() = Some((*nanos, *within));
            }
            FromGateway::Log { host, lost, records } => {
                self.log_of_host(*host, *lost, std::mem::take(records));
            }
            FromGateway::HostGone { host, why, how } => {
                let severity = if *how == Gone::Left { Severity::Info } else { Severity::Error };
                let why = shown(why.clone(), MAX_FAILURE_TEXT);
                self.journal.node(severity, None, why.clone());
                // Before its actors that roam go on: they are not waited for there.
                self.groups_lost(*host, &why);
                self.roamers_lost(*host, *how, why);
            }
            FromGateway::LifeOver { actor, host, why } => {
                let why = why.clone().map(|why| why.with_text(|text| shown(text, MAX_FAILURE_TEXT)));
                self.roamer_ended(*actor, *host, why);
            }
            FromGateway::Lifecycle(Lifecycle::Up { actor, incarnation }) => {
                self.roamer_is_up(*actor, *incarnation);
            }
            FromGateway::NodeGone { why, cut_off } => {
                let severity = if *cut_off { Severity::Error } else { Severity::Info };
                self.journal.node(severity, None, shown(why.clone(), MAX_FAILURE_TEXT));
                let now = Instant::now();
                let deadline = if *cut_off { now } else { now + DROP_DEADLINE };
                let (reply, _nobody_waits) = sync_channel(1);
                if let Some(stopping) = &mut self.stopping {
                    stopping.drain_alone();
                }
                self.begin_stopping(deadline, reply);
            }
            _ => {}
        }
    }

    /// This host is one of its node: before any actor has an id, and any worker but the gateway a process.
    fn began(&mut self, own: (u16, u64), descriptors: Vec<OwnedFd>) -> Result<u16, String> {
        let host = own.0;
        let [page, socket]: [OwnedFd; 2] = descriptors
            .try_into()
            .map_err(|_| "its gateway does not give what the next one would need".to_owned())?;
        let page = WorksUntil::open(page).map_err(|error| error.to_string())?;
        self.hosts.gateways.began(own, Arc::clone(&page), socket);
        self.broker.roster.host = host;
        if host != 0 {
            // HOST-10: by it its workers know when to end.
            self.hosts.works_until = Some(page);
            self.broker.registry.note_freed();
            self.journal.head_log = Some(Default::default());
        }
        Ok(host)
    }

    /// Some of the log of another host, which wrote all of it (WIRE-1).
    fn log_of_host(&mut self, host: u16, lost: u64, records: Vec<HostRecord>) {
        let Some(host) = self.hosts.members.iter().find(|member| member.number == host) else { return };
        let name: Arc<str> = host.short().into();
        if lost > 0 {
            let text =
                format!("{lost} records of the log of {host} were dropped: they were too many, or lost");
            self.journal.node(Severity::Warn, None, text);
        }
        for HostRecord { worker, record } in records {
            self.journal.of_host(&name, &shown(worker, MAX_NAME), record.bounded());
        }
    }

    /// Gives this host's gateway what its head is to know of the log, as far as there is room: what concerns
    /// messages goes first.
    pub(super) fn tell_head_of_log(&mut self) {
        let Some(head_log) = &self.journal.head_log else { return };
        let gateway = self.broker.foreign.gateway().and_then(|process| self.workers.of_mut(process));
        let Some(gateway) = gateway.filter(|gateway| gateway.is_running()) else { return };
        while gateway.outgoing.queued() == 0 {
            let Some(batch) = head_log.lock().batch() else { return };
            gateway.send(&Down::Node(FromNode::Hosts(batch)), Vec::new());
        }
    }

    /// When to tell the head how much of the log was dropped.
    pub(super) fn next_tell_of_log(&self) -> Option<Instant> {
        let owes = self.journal.head_log.as_ref().is_some_and(|log| log.lock().owes());
        owes.then(|| Instant::now() + TELL_DROPPED)
    }
}
