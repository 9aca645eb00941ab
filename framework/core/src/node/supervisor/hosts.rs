//! The supervisor's part with other hosts: the gateway's beginning and end, and what concerns the node as a whole.
//!
//! The gateway is a worker like others, and nothing runs in it but the way to other hosts. What it says of actors and names is the
//! broker's affair (`node/foreign.rs`).
//!
//! **On the gateway's death** the other hosts are out of reach. The head goes on without them; an agent ends at once, because nobody
//! answers the head for it any more (HOST-10). **On a shutdown of the head** all hosts drain together: the head asks them in each of
//! its rounds (`node/shutdown.rs`), and leaves when nothing is under way anywhere. **On the end of the node elsewhere**
//! this host's node ends too: at once where the head may give its actors other lives (HOST-10), in order where the head has left.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use crate::ids::ProcessId;
use crate::node::broker::Delivery;
use crate::node::host::Activity;
use crate::node::limits::{DROP_DEADLINE, MAX_FAILURE_TEXT};
use crate::node::shutdown::Party;
use crate::observe::log::Severity;
use crate::observe::text::shown;
use crate::transport::control_channel::{FromNode, ToNode};
use crate::transport::hosts::{FromGateway, Host, HostActivity, Settings, ToGateway};
use crate::transport::lifecycle::EndReason;
use crate::transport::works_until::WorksUntil;

use super::run::State;
use super::stopping::Stopping;
use super::{Closed, Command, Reply, Supervisor, WorkerId, deadline_after};

/// What the node knows of its hosts.
#[derive(Default)]
pub(super) struct Hosts {
    /// Whoever waits for this host to be one of its node.
    beginning: Option<Reply<Result<u16, String>>>,
    members: Vec<Host>,
    /// On an agent: until when its workers may work. Each looks at it by itself, and the node too, whose gateway may be stopped.
    works_until: Option<Arc<WorksUntil>>,
    /// Whoever waits until there are so many, or it is that late.
    awaiting: Vec<(usize, Instant, Reply<Vec<Host>>)>,
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
        let is_over = |(count, until, _): &mut (usize, Instant, _)| members.len() >= *count || now >= *until;
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
    /// As soon as there are so many; nobody waits after that time.
    Await(usize, Instant, Reply<Vec<Host>>),
    Gateway(Reply<Option<ProcessId>>),
    /// Other hosts may have actors started here.
    Serve,
    Load(Reply<usize>),
}

impl Supervisor {
    /// Makes a worker the gateway to the other hosts, and waits until this host is one of its node: its number.
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
        let (reply, answer) = sync_channel(1);
        self.shared.push(Command::Hosts(HostsCommand::Await(count, deadline_after(within), reply)))?;
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

    /// How many actors are in this host's workers.
    pub(crate) fn load(&self) -> Result<usize, Closed> {
        self.shared.ask(|reply| Command::Hosts(HostsCommand::Load(reply)))
    }
}

impl State {
    pub(super) fn hosts_command(&mut self, command: HostsCommand) {
        match command {
            HostsCommand::Begin(gateway, settings, reply) => self.begin_hosts(gateway, settings, reply),
            HostsCommand::Members(reply) => {
                let _ = reply.try_send(self.hosts.members.clone());
            }
            HostsCommand::Await(count, until, reply) => {
                // Those who have given up are found here at the latest (MBX-2).
                self.hosts.awaiting.push((count, until, reply));
                self.hosts.tell_awaiting();
            }
            HostsCommand::Gateway(reply) => {
                let _ = reply.try_send(self.broker.foreign.gateway());
            }
            HostsCommand::Serve => {
                let mut told = Vec::new();
                self.broker.serve_hosts(&mut told);
                self.deliver(told);
            }
            HostsCommand::Load(reply) => {
                let _ = reply.try_send(self.broker.roster.load());
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
        self.broker.roster.host_is_known = true;
        self.hosts.beginning = Some(reply);
        let message = FromNode::Hosts(ToGateway::Begin(settings));
        self.deliver(vec![Delivery { to, message, descriptors: Vec::new() }]);
    }

    fn tell_gateway(&mut self, said: ToGateway) {
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

    /// The head shuts all hosts down, and asks whether anything is under way here. The first time this begins the shutdown of this
    /// host; from then on the head says when it goes on.
    fn drain_for_head(&mut self, round: u64, within: u64) {
        if self.stopping.is_none() {
            self.journal.node(Severity::Info, None, "the head shuts the node down".to_owned());
            let (reply, _nobody_waits) = sync_channel(1);
            // Behind the head's deadline there is time for its actors' end, as when the head says nothing before it leaves.
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
    fn members_are(&mut self, members: Vec<Host>) {
        let before = std::mem::replace(&mut self.hosts.members, members);
        for host in before {
            if self.hosts.members.iter().all(|member| member.number != host.number) {
                self.answered(|rounds| rounds.left(Party::Host(host.number)));
            }
        }
        self.hosts.tell_awaiting();
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
    pub(super) fn hear_gateway(&mut self, from: ProcessId, message: &ToNode, descriptors: &mut Vec<OwnedFd>) {
        let ToNode::Hosts(said) = message else { return };
        if self.broker.foreign.gateway() != Some(from) {
            return; // the broker complains
        }
        match said {
            FromGateway::Began { result } => {
                let Some(reply) = self.hosts.beginning.take() else { return };
                let began = match result {
                    Ok(host) => self.began(*host, descriptors.pop()),
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
            FromGateway::HostGone { why, lost } => {
                let severity = if *lost { Severity::Error } else { Severity::Info };
                self.journal.node(severity, None, shown(why.clone(), MAX_FAILURE_TEXT));
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
    fn began(&mut self, host: u16, works_until: Option<OwnedFd>) -> Result<u16, String> {
        self.hosts.works_until = match works_until {
            Some(page) => Some(WorksUntil::open(page).map_err(|error| error.to_string())?),
            // HOST-10: its workers would not know when to end.
            None if host != 0 => {
                return Err("its gateway does not say until when workers may work".to_owned());
            }
            None => None,
        };
        self.broker.roster.host = host;
        Ok(host)
    }

    /// A worker's process has ended.
    pub(super) fn gateway_may_have_ended(&mut self, process: ProcessId, why: &EndReason) {
        if self.broker.foreign.gateway() != Some(process) {
            return;
        }
        self.members_are(Vec::new());
        if let Some(reply) = self.hosts.beginning.take() {
            let _ = reply.try_send(Err(format!("its gateway ended: {why}")));
        }
        if self.broker.roster.host != 0 && self.stopping.as_ref().is_none_or(Stopping::is_led) {
            // HOST-10: the head hears nothing of this host any more, and may give its actors other lives.
            let text =
                format!("this host ends, because its gateway has, and with it the way to the head: {why}");
            self.journal.node(Severity::Error, None, shown(text, MAX_FAILURE_TEXT));
            let (reply, _nobody_waits) = sync_channel(1);
            self.begin_stopping(Instant::now(), reply);
        }
    }
}
