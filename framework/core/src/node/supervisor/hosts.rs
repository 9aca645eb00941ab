//! The supervisor's part with other hosts: the gateway's beginning and end, and matters of the node as a
//! whole. The supervisor knows it by the hooks of `supervisor/neighbours.rs` alone, and it does not know the
//! supervisor: it acts through the processes that it is lent, and returns the rest as effects.
//!
//! | file | holds |
//! |---|---|
//! | `hooks`, `steps` | what the supervisor asks and tells; what other threads have it do |
//! | `gateways` | the gateways, one after the other |
//! | `names` | names that are unique on all hosts |
//! | `roaming`, `guests` | actors that continue on another host: as their home sees them, and the host that they live on |
//! | `groups` | groups whose actors are on several hosts |
//! | `drain` | a shutdown of all hosts together |
//! | `traces` | the trace of the head's run |
//!
//! The gateway is a worker like others, and runs nothing but the transport to other hosts. The broker's
//! neighbours (`node/hosts/other_hosts.rs`) handle its messages about actors and names.
//!
//! **On the gateway's death** another follows. If none does, the other hosts are out of reach. The head goes
//! on without them; an agent ends at once, because nobody answers the head for it any more (HOST-10). **On a
//! shutdown of the head** all hosts drain together, and the head leaves when nothing is under way anywhere.
//! **On the end of the node elsewhere** this host's node ends too: at once if the head may give its actors
//! other lives (HOST-10), in order if the head has left.

mod drain;
mod gateways;
mod groups;
mod guests;
mod hooks;
mod names;
mod roaming;
mod steps;
mod traces;

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use crate::actor::NewActor;
use crate::ids::{ActorId, ProcessId};
use crate::node::broker::neighbours::NeighbourActors;
use crate::node::broker::{Broker, Delivery, expect};
use crate::node::control::Down;
use crate::node::fences::Opened;
use crate::node::group::Supervision;
use crate::node::hosts::head_log::{HeadLog, TELL_DROPPED};
use crate::node::hosts::other_hosts::{HostActors, OtherHosts};
use crate::node::journal::BesideLog;
use crate::node::limits::{DROP_DEADLINE, MAX_FAILURE_TEXT, MAX_NAME};
use crate::node::shutdown::Party;
use crate::observe::log::Severity;
use crate::observe::text::shown;
use crate::os::peer_fd;
use crate::transport::control_channel::Location;
use crate::transport::gateway_messages::{FromGateway, Host, HostEnd, HostRecord, Settings, ToGateway};
use crate::transport::lifecycle::Lifecycle;
use crate::transport::works_until::WorksUntil;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use self::gateways::Gateways;
use self::groups::HostGroups;
use self::names::Claims;
use self::roaming::Roaming;
use self::steps::{ask, run, run_for};
use self::traces::TracedHosts;
use super::neighbours::{Effect, Neighbours, Start};
use super::node_state::NodeState;
use super::reply::{Reply, Started};
use super::stopping::Stopping;
use super::{NodeClosed, Supervisor, WorkerId, deadline_after};

pub(in crate::node) use self::groups::rounds::RoundStep;
pub(in crate::node) use self::groups::{has_joined, hear_of_group, joins_group, started_on, starts_on};
pub(in crate::node) use self::roaming::{forget_roaming, note_roaming, reserve_roaming};
pub(in crate::node) use self::steps::ask_for_hosts;
pub(in crate::node) use super::guest::Guest;
pub(in crate::node) use super::reply::waited_for;

/// The condition that a caller waits for.
pub(super) enum Awaited {
    /// At least this many hosts.
    Count(usize),
    /// A list that differs from this one: a host has joined, left or was lost since.
    OtherThan(Vec<Host>),
}

/// The supervisor's part with other hosts: the node's hosts, and the gateway to them.
#[derive(Default)]
pub(super) struct Hosts {
    claims: Claims,
    roaming: Roaming,
    groups: HostGroups,
    traced: TracedHosts,
    /// On an agent in a shutdown: the head's round that waits for this host's answer.
    round_of_head: Option<u64>,
    /// The caller that waits until this host has joined its node.
    beginning: Option<Reply<Result<u16, String>>>,
    gateways: Gateways,
    /// On an agent: the records of its log for the head.
    head_log: Option<Arc<Mutex<HeadLog>>>,
    members: Vec<Host>,
    /// On an agent: until when its workers may work. Each worker checks it by itself. The node checks it too,
    /// because the gateway may be stopped.
    works_until: Option<Arc<WorksUntil>>,
    /// Hosts that have left or were lost. A host's number is never used twice.
    gone: HashSet<u16>,
    /// The workers that other hosts have asked for, each with that host. Some of them may have ended.
    started_for: HashMap<WorkerId, u16>,
    /// Callers that wait for a condition, each with its deadline.
    awaiting: Vec<(Awaited, Instant, Reply<Vec<Host>>)>,
}

impl Hosts {
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
            // A caller that has given up does not take it.
            reply.answer(members.clone());
        }
    }
}

impl Supervisor {
    /// Returns the hosts of the node, this one among them.
    #[doc(hidden)] // for the pipelines, which are another crate
    pub fn hosts(&self) -> Result<Vec<Host>, NodeClosed> {
        run_for(&self.shared, |hosts, _| hosts.members.clone())
    }

    /// Returns the hosts of the node as soon as they differ from `seen`, or as they are after `within`.
    #[doc(hidden)] // for the pipelines, which are another crate
    pub fn await_other_hosts(&self, seen: Vec<Host>, within: Duration) -> Result<Vec<Host>, NodeClosed> {
        await_members(self, Awaited::OtherThan(seen), within)
    }

    /// Returns the numbers of the node's hosts as soon as none of `gone` is among them, or as they are after
    /// `within`.
    #[doc(hidden)] // for the pipelines, which are another crate
    pub fn hosts_but_for(&self, gone: &[u16], within: Duration) -> Result<Vec<u16>, NodeClosed> {
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
}

/// Makes a worker the gateway to the other hosts, and waits until this host has joined its node. Returns
/// the host's number.
///
/// # Errors
/// The outer error: the node has ended. The inner one: why this host could not join.
pub(in crate::node) fn begin_hosts(
    supervisor: &Supervisor,
    gateway: WorkerId,
    settings: Settings,
) -> Result<Result<u16, String>, NodeClosed> {
    ask(&supervisor.shared, move |hosts, node, reply| hosts.begin_hosts(node, gateway, settings, reply))
}

/// Returns the hosts of the node as soon as there are `count`, or as they are after `within`.
pub(in crate::node) fn await_hosts(
    supervisor: &Supervisor,
    count: usize,
    within: Duration,
) -> Result<Vec<Host>, NodeClosed> {
    await_members(supervisor, Awaited::Count(count), within)
}

fn await_members(
    supervisor: &Supervisor,
    awaited: Awaited,
    within: Duration,
) -> Result<Vec<Host>, NodeClosed> {
    let (reply, answer) = waited_for();
    let until = deadline_after(within);
    run(&supervisor.shared, move |hosts, _| {
        // This removes callers that have given up, so the list stays bounded (MBX-2).
        hosts.awaiting.push((awaited, until, reply));
        hosts.tell_awaiting();
    })?;
    match answer.recv_timeout(within) {
        Ok(hosts) => Ok(hosts),
        Err(RecvTimeoutError::Timeout) => supervisor.hosts(),
        Err(RecvTimeoutError::Disconnected) => Err(NodeClosed::Ended),
    }
}

/// Returns the process of the gateway, in a node of several hosts.
pub(in crate::node) fn gateway_of(supervisor: &Supervisor) -> Result<Option<ProcessId>, NodeClosed> {
    run_for(&supervisor.shared, |_, node| gateway(node))
}

/// Lets other hosts start actors here: this host's starter takes messages from now on.
pub(in crate::node) fn serve_hosts(supervisor: &Supervisor) {
    // After the node's end nobody asks.
    let _ = run(&supervisor.shared, |hosts, node| {
        node.with_broker(|broker, told| HostActors::of(broker).serve_hosts(told));
        hosts.trace_hosts(node);
    });
}

/// Ends this worker when the host with this number leaves the node or is lost.
pub(in crate::node) fn started_for(supervisor: &Supervisor, worker: WorkerId, host: u16) {
    // After the node's end the worker has ended.
    let _ = run(&supervisor.shared, move |hosts, node| hosts.started_for(node, worker, host));
}

/// Resolves to the location of an actor, once the process in which it is reached has taken all messages
/// sent to it so far. For an actor on another host that process is this host's gateway. `None` if the
/// actor is not known here; an error means that the node has ended.
pub(in crate::node) fn fence(supervisor: &Supervisor, actor: ActorId) -> oneshot::Receiver<Option<Location>> {
    let (reply, answer) = oneshot::channel();
    // After the node's end the dropped reply is the answer.
    let _ = run(&supervisor.shared, move |_, node| open_fence(node, actor, reply));
    answer
}

/// Starts a life of an actor that roams in a worker here, and waits until it can take messages.
pub(in crate::node) fn start_guest(
    supervisor: &Supervisor,
    worker: WorkerId,
    actor: NewActor,
    how: Supervision,
    guest: Guest,
) -> Started {
    let (reply, answer) = waited_for();
    let start = Box::new(Start { worker, actor, how, reply });
    supervisor.shared.run_neighbours(move |_, _| Some(Effect::StartGuest(start, guest)))?;
    answer.recv().map_err(|_| NodeClosed::Ended)?
}

/// Returns the location and the worker of an actor that roams, if it lives on this host.
pub(in crate::node) fn guest_of(
    supervisor: &Supervisor,
    actor: ActorId,
) -> Result<Option<(Location, WorkerId)>, NodeClosed> {
    run_for(&supervisor.shared, move |_, node| guests::find(node, actor))
}

/// Returns how many actors are in this host's workers.
pub(in crate::node) fn load_of(supervisor: &Supervisor) -> Result<usize, NodeClosed> {
    run_for(&supervisor.shared, |_, node| OtherHosts::of(&node.broker).load(&node.broker.roster))
}

/// Sends the gateway something, if there is one.
fn tell_gateway(node: &mut NodeState, said: &ToGateway) {
    if let Some(delivery) = to_gateway(&node.broker, said) {
        node.deliver(vec![delivery]);
    }
}

/// Makes the delivery of something to the gateway, if there is one.
fn to_gateway(broker: &Broker, said: &ToGateway) -> Option<Delivery> {
    let to = OtherHosts::of(broker).gateway();
    to.map(|to| Delivery::plain(to, said.sealed()))
}

/// Returns the process of the gateway, if there is one.
fn gateway(node: &NodeState) -> Option<ProcessId> {
    OtherHosts::of(&node.broker).gateway()
}

/// Returns the neighbours of a node that can have other hosts.
pub(super) fn neighbours() -> Box<dyn Neighbours> {
    Box::new(Hosts::default())
}

/// Returns these neighbours as the broker knows them.
pub(super) fn neighbour_actors() -> Box<dyn NeighbourActors> {
    Box::<OtherHosts>::default()
}

impl Hosts {
    /// HOST-10: ends this host if its workers had to end by now and the gateway has not said so, because it
    /// is stopped.
    fn check_works_until(&self, node: &mut NodeState) -> Option<Effect> {
        let is_over = self.works_until.as_ref().is_some_and(|until| until.left().is_zero());
        if !is_over || node.stopping.as_ref().is_some_and(Stopping::is_late) {
            return None;
        }
        let text = "this host ends: its gateway has heard no answer of the head for too long, or is stopped";
        node.journal.node(Severity::Error, None, text.to_owned());
        Some(Effect::Shutdown(Instant::now()))
    }

    /// Handles the content of an envelope of the gateway, or of the next one.
    fn take_from_gateway(
        &mut self,
        node: &mut NodeState,
        from: ProcessId,
        said: Result<FromGateway, String>,
        mut descriptors: Vec<OwnedFd>,
    ) -> Vec<Effect> {
        let mut said = match said {
            Ok(said) => said,
            Err(error) => {
                peer_fd::close(descriptors);
                node.complain(from.slot(), format!("a message about other hosts: {error}"));
                return Vec::new();
            }
        };
        let mut effects = self.hear_gateway(node, from, &mut said, &mut descriptors);
        // A message that has led to effects says nothing to the broker.
        let mut told = Vec::new();
        let result = HostActors::of(&mut node.broker).gateway_says(from, said, &mut told);
        node.deliver(told);
        let result = result.and_then(|()| expect(&descriptors, "what is about other hosts", 0));
        effects.extend(result.err().map(|complaint| Effect::Complain(from, complaint)));
        effects
    }

    /// Takes the gateway's messages about the node as a whole; the broker takes the rest.
    fn hear_gateway(
        &mut self,
        node: &mut NodeState,
        from: ProcessId,
        said: &mut FromGateway,
        descriptors: &mut Vec<OwnedFd>,
    ) -> Vec<Effect> {
        let is_present = gateway(node) == Some(from);
        if let FromGateway::Began { result } = said
            && !is_present
            && self.gateways.serves_as_gateway(node, from)
        {
            let result = result.clone().map_err(|why| shown(why, MAX_FAILURE_TEXT));
            let given_up = self.next_gateway_began(node, from, result, std::mem::take(descriptors));
            return given_up.into_iter().collect();
        }
        if !is_present {
            return Vec::new(); // the broker complains
        }
        match said {
            FromGateway::Alive => self.gateways.is_heard(),
            FromGateway::Renewed { host } => match node.broker.roster.host {
                0 => self.claims.forget_names_of(*host),
                _ if *host == 0 => {
                    let names = self.claims.say_again(&mut node.broker);
                    node.deliver(names);
                }
                _ => {}
            },
            FromGateway::Names { host, names, is_last } => {
                let given = HostActors::of(&mut node.broker).names();
                self.claims.names_of_host(given, *host, std::mem::take(names), *is_last);
            }
            FromGateway::Began { result } => {
                let Some(reply) = self.beginning.take() else { return Vec::new() };
                let began = match result {
                    Ok(own) => self.began(node, *own, std::mem::take(descriptors)),
                    Err(why) => Err(shown(why.clone(), MAX_FAILURE_TEXT)),
                };
                reply.answer(began);
            }
            FromGateway::Members(members) => self.members_are(node, members.clone()),
            FromGateway::Drain { round, within } => return self.drain_for_head(node, *round, *within),
            FromGateway::Drained { host, round, activity } => {
                node.take_answer(|rounds| rounds.answer(Party::Host(*host), *round, *activity));
                self.answer_head(node);
            }
            // HOST-10: a host that has left the node gets no names.
            FromGateway::Claim { host, ticket, name }
                if self.members.iter().any(|member| member.number == *host) =>
            {
                let (host, ticket, name) = (*host, *ticket, std::mem::take(name));
                let result = HostActors::of(&mut node.broker).claim(host, &name);
                tell_gateway(node, &ToGateway::Claimed { host, ticket, name, result });
            }
            FromGateway::Release { host, name } => {
                HostActors::of(&mut node.broker).names().release(*host, name);
            }
            FromGateway::Claimed { ticket, name, result } => {
                return self.claims.claimed(&node.broker, std::mem::take(name), *ticket, *result);
            }
            FromGateway::Clock { nanos, within } => {
                *node.shared.all_hosts.clock.lock() = Some((*nanos, *within));
            }
            FromGateway::Log { host, lost, records } => {
                self.log_of_host(node, *host, *lost, std::mem::take(records));
            }
            FromGateway::HostGone { host, why, how } => {
                let severity = if *how == HostEnd::Left { Severity::Info } else { Severity::Error };
                let why = shown(why.clone(), MAX_FAILURE_TEXT);
                node.journal.node(severity, None, why.clone());
                // Before its actors that roam continue: their groups no longer wait for that host.
                self.groups_lost(node, *host, &why);
                self.roamers_lost(node, *host, *how, why);
            }
            FromGateway::LifeOver { actor, host, why } => {
                let why = why.clone().map(|why| why.with_text(|text| shown(text, MAX_FAILURE_TEXT)));
                self.roamer_ended(node, *actor, *host, why);
            }
            FromGateway::Lifecycle(Lifecycle::Up { actor, incarnation }) => {
                self.roaming.roamer_is_up(*actor, *incarnation);
            }
            FromGateway::NodeGone { why, cut_off } => {
                let severity = if *cut_off { Severity::Error } else { Severity::Info };
                node.journal.node(severity, None, shown(why.clone(), MAX_FAILURE_TEXT));
                let now = Instant::now();
                self.round_of_head = None;
                if let Some(stopping) = &mut node.stopping {
                    stopping.drain_alone();
                }
                return vec![Effect::Shutdown(if *cut_off { now } else { now + DROP_DEADLINE })];
            }
            _ => {}
        }
        Vec::new()
    }
}

impl Hosts {
    /// Ends `worker` when that host leaves the node or is lost.
    fn started_for(&mut self, node: &mut NodeState, worker: WorkerId, host: u16) {
        // MBX-2: keep only workers that still exist.
        let workers = &mut node.workers;
        self.started_for.retain(|worker, _| workers.by_id(*worker).is_some());
        self.started_for.insert(worker, host);
        self.retire_for_hosts_gone(node);
    }

    fn begin_hosts(
        &mut self,
        node: &mut NodeState,
        gateway: WorkerId,
        settings: Settings,
        reply: Reply<Result<u16, String>>,
    ) {
        let Some(worker) = node.workers.by_id(gateway).filter(|worker| worker.is_running()) else {
            reply.answer(Err("its gateway has ended".to_owned()));
            return;
        };
        let to = worker.process;
        HostActors::of(&mut node.broker).begin(to);
        node.broker.deaths.say_gateway(to);
        self.beginning = Some(reply);
        *node.shared.all_hosts.gateway.lock() = Some(to);
        let message = self.gateways.first(gateway, to, settings).sealed();
        node.deliver(vec![Delivery::plain(to, message)]);
    }

    /// Takes the present list of the node's hosts.
    pub(super) fn members_are(&mut self, node: &mut NodeState, members: Vec<(Host, u64)>) {
        let hosts = members.iter().map(|(host, _)| host.clone()).collect();
        self.gateways.members_are(members);
        let before = std::mem::replace(&mut self.members, hosts);
        for host in before {
            if self.members.iter().all(|member| member.number != host.number) {
                self.gone.insert(host.number);
                node.take_answer(|rounds| rounds.left(Party::Host(host.number)));
                self.answer_head(node);
                HostActors::of(&mut node.broker).names().release_all(host.number);
                self.claims.forget_names_of(host.number);
            }
        }
        self.retire_for_hosts_gone(node);
        self.trace_hosts(node);
        self.tell_awaiting();
    }

    /// Ends the workers that were started for hosts that have left the node: nobody else knows of them. A
    /// worker that was being started when its host went is found here too.
    fn retire_for_hosts_gone(&mut self, node: &mut NodeState) {
        let Hosts { started_for, gone, .. } = self;
        let left: Vec<_> = started_for.extract_if(|_, host| gone.contains(host)).collect();
        for (worker, host) in left {
            let text = format!(
                "{worker} ends, because it was started for host {host}, which is not of the node any more"
            );
            node.journal.node(Severity::Info, None, text);
            node.retire(worker);
        }
    }

    /// Returns when to check whether the workers may go on.
    pub(super) fn next_look_at_works_until(&self, node: &NodeState) -> Option<Instant> {
        if node.stopping.as_ref().is_some_and(Stopping::is_late) {
            return None; // everything was killed
        }
        let left = self.works_until.as_ref()?.left();
        // A time too far off for the clock needs no check.
        Instant::now().checked_add(left)
    }

    /// Notes that this host has joined its node. No actor has an id yet, and no worker but the gateway a
    /// process.
    fn began(
        &mut self,
        node: &mut NodeState,
        own: (u16, u64),
        descriptors: Vec<OwnedFd>,
    ) -> Result<u16, String> {
        let host = own.0;
        let [page, socket]: [OwnedFd; 2] = descriptors
            .try_into()
            .map_err(|_| "its gateway does not give what the next one would need".to_owned())?;
        let page = WorksUntil::open(page).map_err(|error| error.to_string())?;
        self.gateways.began(own, Arc::clone(&page), socket);
        node.broker.roster.host = host;
        if host != 0 {
            // HOST-10: the page tells its workers when to end.
            self.works_until = Some(page);
            node.broker.registry.note_freed();
            let head_log = Arc::<Mutex<HeadLog>>::default();
            node.journal.beside = Some(Arc::clone(&head_log) as Arc<dyn BesideLog>);
            self.head_log = Some(head_log);
        }
        Ok(host)
    }

    /// Logs records of another host, which may have written anything into them (WIRE-1).
    fn log_of_host(&mut self, node: &mut NodeState, host: u16, lost: u64, records: Vec<HostRecord>) {
        let Some(host) = self.members.iter().find(|member| member.number == host) else { return };
        let name: Arc<str> = host.short().into();
        if lost > 0 {
            let text =
                format!("{lost} records of the log of {host} were dropped: they were too many, or lost");
            node.journal.node(Severity::Warn, None, text);
        }
        for HostRecord { worker, record } in records {
            node.journal.of_host(&name, &shown(worker, MAX_NAME), record.bounded());
        }
    }

    /// Gives this host's gateway log records for the head while its queue is empty, so that messages go
    /// first.
    pub(super) fn tell_head_of_log(&mut self, node: &mut NodeState) {
        let Some(head_log) = &self.head_log else { return };
        let gateway = gateway(node).and_then(|process| node.workers.of_mut(process));
        let Some(gateway) = gateway.filter(|gateway| gateway.is_running()) else { return };
        while gateway.line.outgoing.queued() == 0 {
            let Some(batch) = head_log.lock().batch() else { return };
            gateway.send(&Down::Node(batch.sealed()), Vec::new());
        }
    }

    /// Returns when to tell the head how much of the log was dropped.
    pub(super) fn next_tell_of_log(&self) -> Option<Instant> {
        let owes = self.head_log.as_ref().is_some_and(|log| log.lock().owes());
        owes.then(|| Instant::now() + TELL_DROPPED)
    }
}

/// See [`fence`].
fn open_fence(node: &mut NodeState, actor: ActorId, reply: oneshot::Sender<Option<Location>>) {
    let location = node.broker.roster.actor(actor).map(|entry| entry.location);
    let is_there = OtherHosts::of(&node.broker).have(&node.broker.roster, actor);
    let gateway = gateway(node).filter(|_| is_there);
    // A caller that has given up does not take it.
    let opened: Opened = Box::new(move || {
        let _ = reply.send(location);
    });
    match location.map(|location| location.process).or(gateway) {
        Some(process) => node.with_broker(|broker, told| broker.fence(process, opened, told)),
        None => opened(),
    }
}
