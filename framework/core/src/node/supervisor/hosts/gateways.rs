//! The gateways of this host, one after the other.
//!
//! Another gateway follows a gateway that ends, unless too many have ended in a short time. The node
//! keeps the state that outlives a gateway. That is its listening socket, so that hosts that connect
//! meanwhile wait and are not refused; its page; the last list of members, and how other hosts went; and
//! this host's number and life. The next gateway begins with these, and other hosts know it by its
//! number. The node's own business with other hosts waits for it (`node/hosts/other_hosts/next_gateway.rs`,
//! `names.rs`). It is also told where roaming actors of this host live (`roaming.rs`): the end of a
//! gateway is not the loss of a host.
//!
//! **Invariants.** HOST-10: an agent's workers end by the page of the last gateway until the next gateway has
//! a page with an answer of the head in it. The next gateway begins with no more time than the last had. A
//! host's number is used once: the head's page has the latest number before the host hears it. A gateway
//! begins only when the system has reported the end of the one before.
//!
//! **If the next gateway ends**, before it has begun or later, another one follows. Past [`RESTARTS`], in a
//! shutdown, and before the first has begun, none follows: then an agent ends, and a head goes on alone. **A
//! gateway that is stopped**, or stands still, is killed: a gateway that runs says so each second. Other
//! hosts' beats are answered again only when the next one has begun.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::ids::ProcessId;
use crate::node::broker::Delivery;
use crate::node::control::Down;
use crate::node::hosts::GATEWAY;
use crate::node::hosts::other_hosts::{HostActors, OtherHosts};
use crate::node::limits::MAX_FAILURE_TEXT;
use crate::node::restart::{Budget, Restart, Verdict};
use crate::observe::log::Severity;
use crate::observe::text::shown;
use crate::os::remedy_of_start;
use crate::transport::envelope::Envelope;
use crate::transport::gateway_messages::{
    Beginning, FromGateway, GatewayState, Host, HostEnd, Settings, ToGateway,
};
use crate::transport::lifecycle::EndReason;
use crate::transport::works_until::WorksUntil;

use super::super::neighbours::Effect;
use super::super::node_state::NodeState;
use super::super::record::{Asker, WorkerPhase};
use super::super::stopping::Stopping;
use super::super::{Making, WorkerId};
use super::{Hosts, gateway};

/// How often another gateway follows. The new one must answer beats before an agent's time is over: 10 s
/// after the last beat.
const RESTARTS: Restart = Restart::always(5)
    .within(Duration::from_secs(60))
    .backoff(Duration::from_millis(10), Duration::from_millis(500));

/// A gateway that says nothing for this long counts as stopped. Half of an agent's time is left then for the
/// next one to begin.
const SILENCE: Duration = Duration::from_secs(5);

/// How long a silent gateway gets before it is killed: its messages may lie unread because this thread was
/// held up, and are read first.
const READ_FIRST: Duration = Duration::from_millis(100);

/// The state that outlives a gateway.
pub(super) struct Gateways {
    settings: Option<Settings>,
    /// The gateway's worker, the same in all its lives, and its present or last slot.
    worker: Option<(WorkerId, usize)>,
    /// How many gateways there have been.
    count: u32,
    /// The number of this host, and its life, once the first gateway has begun.
    own: Option<(u16, u64)>,
    /// The hosts of the node, each with its life.
    members: Vec<(Host, u64)>,
    page: Option<Arc<WorksUntil>>,
    socket: Option<OwnedFd>,
    budget: Budget,
    /// When the next gateway is started.
    next: Option<Instant>,
    /// The process of the next gateway, which has not begun.
    starting: Option<ProcessId>,
    /// When the present gateway was heard last.
    alive: Option<Instant>,
    /// When this thread noticed that this is too long ago.
    missed: Option<Instant>,
}

impl Default for Gateways {
    fn default() -> Self {
        Gateways {
            settings: None,
            worker: None,
            count: 0,
            own: None,
            members: Vec::new(),
            page: None,
            socket: None,
            budget: Budget::new(RESTARTS),
            next: None,
            starting: None,
            alive: None,
            missed: None,
        }
    }
}

impl Gateways {
    /// Makes the message that begins the first gateway.
    pub(super) fn first(&mut self, worker: WorkerId, process: ProcessId, settings: Settings) -> ToGateway {
        self.settings = Some(settings.clone());
        (self.worker, self.count) = (Some((worker, process.slot())), 1);
        ToGateway::Begin(Box::new(Beginning { settings, gateway: 1, left: None }))
    }

    /// Keeps what the first gateway has given the node, when this host has joined.
    pub(super) fn began(&mut self, own: (u16, u64), page: Arc<WorksUntil>, socket: OwnedFd) {
        (self.own, self.page, self.socket) = (Some(own), Some(page), Some(socket));
        self.is_heard();
    }

    /// Whether a process is the gateway `present`, or is about to be.
    fn serves(&self, present: Option<ProcessId>, process: ProcessId) -> bool {
        present == Some(process) || self.starting == Some(process)
    }

    /// Opens an envelope of `from`. WIRE-1: returns `None`, and leaves it closed, if `from` is neither the
    /// gateway `present` nor the next one.
    pub(super) fn open(
        &self,
        present: Option<ProcessId>,
        from: ProcessId,
        envelope: &Envelope,
    ) -> Option<Result<FromGateway, String>> {
        self.serves(present, from).then(|| FromGateway::open(envelope))
    }

    pub(super) fn members_are(&mut self, members: Vec<(Host, u64)>) {
        self.members = members;
    }

    /// Notes a message of the present gateway.
    pub(super) fn is_heard(&mut self) {
        (self.alive, self.missed) = (Some(Instant::now()), None);
    }

    pub(super) fn next_event(&self) -> Option<Instant> {
        let silent = self.missed.map(|at| at + READ_FIRST).or(self.alive.map(|at| at + SILENCE));
        [self.next, silent].into_iter().flatten().min()
    }

    /// Extends the deadlines by `lost`: the node itself stood still for that long.
    pub(super) fn stalled(&mut self, lost: Duration) {
        self.alive = self.alive.map(|at| at + lost);
        self.missed = self.missed.map(|at| at + lost);
    }

    /// Gives up the gateway `present` if it stands still.
    pub(super) fn check(
        &mut self,
        present: Option<ProcessId>,
        is_stopping: bool,
        now: Instant,
    ) -> Option<Effect> {
        if is_stopping {
            // The shutdown's deadline ends a gateway that stands still.
            (self.alive, self.missed) = (None, None);
            return None;
        }
        if self.alive.is_none_or(|at| now < at + SILENCE) {
            return None;
        }
        if now < *self.missed.get_or_insert(now) + READ_FIRST {
            return None;
        }
        (self.alive, self.missed) = (None, None);
        let why = format!("it has said nothing for {} s: it is stopped, or stands still", SILENCE.as_secs());
        present.map(|process| Effect::GiveUp(process, why))
    }

    /// Tells a process that is ready to begin, if it is the next gateway. `gone` says how hosts have left.
    pub(super) fn begin_next(&mut self, process: ProcessId, gone: Vec<(u16, HostEnd)>) -> Option<Effect> {
        if self.starting != Some(process) {
            return None;
        }
        self.count += 1;
        let socket = self.socket.as_ref().and_then(|socket| socket.as_fd().try_clone_to_owned().ok());
        let (settings, left) = (self.settings.clone(), self.left(gone));
        let (Some(settings), Some(left), Some(socket)) = (settings, left, socket) else {
            let why = "what the gateway before has left cannot be given to it".to_owned();
            return Some(Effect::GiveUp(process, why));
        };
        let beginning = Beginning { settings, gateway: self.count, left: Some(left) };
        let message = ToGateway::Begin(Box::new(beginning)).sealed();
        Some(Effect::Deliver(vec![Delivery { to: process, message, descriptors: vec![socket] }]))
    }

    /// Notes that no gateway follows: hosts that connect are refused from now on.
    pub(super) fn are_over(&mut self) {
        (self.socket, self.next, self.starting) = (None, None, None);
        (self.alive, self.missed) = (None, None);
    }

    /// Returns the state that the last gateway left, and how hosts have left the node.
    fn left(&self, gone: Vec<(u16, HostEnd)>) -> Option<GatewayState> {
        let ((number, _), page) = (self.own?, self.page.as_ref()?);
        let works_until = u64::try_from(page.get().as_nanos()).unwrap_or(u64::MAX);
        Some(GatewayState { number, members: self.members.clone(), last: page.last(), works_until, gone })
    }
}

impl Hosts {
    /// Handles the end of the gateway, or of the next one before it began. Returns whether another one
    /// follows. If not, gives up the other hosts; an agent ends.
    pub(super) fn gateway_ended(
        &mut self,
        node: &mut NodeState,
        why: &EndReason,
        told: &mut Vec<Delivery>,
    ) -> (bool, Option<Effect>) {
        if self.gateways.is_followed(node, why, told) {
            return (true, None);
        }
        if OtherHosts::of(&node.broker).gateway_is_to_follow() {
            // The end of a gateway that had begun is told with its process.
            HostActors::of(&mut node.broker).no_gateway(told);
        }
        self.gateways.are_over();
        self.members_are(node, Vec::new());
        self.roaming.forget_roamers();
        if let Some(reply) = self.beginning.take() {
            reply.answer(Err(format!("its gateway ended: {why}")));
        }
        if node.broker.roster.host == 0 || !node.stopping.as_ref().is_none_or(Stopping::is_led) {
            return (false, None);
        }
        // HOST-10: the head hears nothing of this host any more, and may give its actors other lives.
        let text = format!("this host ends, because its gateway has, and with it the way to the head: {why}");
        node.journal.node(Severity::Error, None, shown(text, MAX_FAILURE_TEXT));
        (false, Some(Effect::Shutdown(Instant::now())))
    }

    /// Starts the next gateway, if it is due.
    pub(super) fn next_gateway_due(&mut self, node: &mut NodeState) -> Vec<Effect> {
        if node.stopping.is_some() && OtherHosts::of(&node.broker).gateway_is_to_follow() {
            // A shutdown starts nothing, and does not wait for hosts that are out of reach.
            self.end_without_gateway(node);
            return Vec::new();
        }
        let now = Instant::now();
        if self.gateways.next.take_if(|at| *at <= now).is_none() {
            return Vec::new();
        }
        let Err(why) = self.gateways.launch_next_gateway(node) else { return Vec::new() };
        let mut told = Vec::new();
        let (_, shutdown) = self.gateway_ended(node, &EndReason::CreateFailed(why), &mut told);
        // The shutdown first, as when the process of a gateway ends.
        shutdown.into_iter().chain([Effect::Deliver(told)]).collect()
    }

    /// Takes the next gateway's report that it has begun, or cannot.
    pub(super) fn next_gateway_began(
        &mut self,
        node: &mut NodeState,
        process: ProcessId,
        result: Result<(u16, u64), String>,
        descriptors: Vec<OwnedFd>,
    ) -> Option<Effect> {
        let mut descriptors = descriptors.into_iter();
        let page = descriptors.next().ok_or("it has no page").map(WorksUntil::open);
        // It must begin as this host, and bring the page and the socket, or the gateway after it could not
        // begin.
        let began = match (result, page, descriptors.next()) {
            (Ok(own), Ok(Ok(page)), Some(_)) if Some(own) == self.gateways.own => Ok(page),
            (Err(why), ..) => Err(why),
            _ => Err("it begins as another host, or without its page and its socket".to_owned()),
        };
        let page = match began {
            Ok(page) => page,
            Err(why) => return Some(Effect::GiveUp(process, why)),
        };
        (self.gateways.starting, self.gateways.page) = (None, Some(Arc::clone(&page)));
        self.gateways.is_heard();
        let count = self.gateways.count;
        node.journal.node(Severity::Info, None, format!("the gateway is back, as {process}: number {count}"));
        if node.broker.roster.host != 0 {
            // The workers' page first (HOST-10): the new gateway renews only its own page.
            self.works_until = Some(Arc::clone(&page));
            give_page_to_all(node, &page);
        }
        *node.shared.all_hosts.gateway.lock() = Some(process);
        node.with_broker(|broker, told| HostActors::of(broker).gateway_goes_on(process, told));
        let names = self.claims.say_again(&mut node.broker);
        node.deliver(names);
        None
    }

    /// Gives up the other hosts, because a shutdown has begun between two gateways.
    fn end_without_gateway(&mut self, node: &mut NodeState) {
        let mut told = Vec::new();
        HostActors::of(&mut node.broker).no_gateway(&mut told);
        self.gateways.are_over();
        self.members_are(node, Vec::new());
        self.roaming.forget_roamers();
        node.deliver(told);
    }
}

impl Gateways {
    /// Whether a process is the gateway, or is about to be.
    pub(super) fn serves_as_gateway(&self, node: &NodeState, process: ProcessId) -> bool {
        self.serves(gateway(node), process)
    }

    /// Has another gateway follow the one that has ended, or the next one that could not begin. Returns
    /// whether one follows.
    fn is_followed(&mut self, node: &mut NodeState, why: &EndReason, told: &mut Vec<Delivery>) -> bool {
        let present = gateway(node);
        (self.starting, self.alive, self.missed) = (None, None, None);
        *node.shared.all_hosts.gateway.lock() = None;
        if node.stopping.is_some() || self.own.is_none() {
            return false;
        }
        let Verdict::Restart(delay) = self.budget.spend(why, Instant::now()) else { return false };
        self.next = Some(Instant::now() + delay);
        if let Some(ended) = present {
            HostActors::of(&mut node.broker).gateway_follows(ended, told);
        }
        if let Some((worker, _)) = self.worker {
            node.restarts.note_end(worker, GATEWAY, why, true);
        }
        let text = format!(
            "the gateway has ended, and another begins in {delay:?}; whether what was under way to other hosts was handled, \
             nobody knows: {why}"
        );
        node.journal.node(Severity::Warn, None, text);
        true
    }

    fn launch_next_gateway(&mut self, node: &mut NodeState) -> Result<(), String> {
        let slot = node.new_slot(GATEWAY).map_err(|error| error.to_string())?;
        let Some((id, before)) = self.worker else { return Err("there was none".to_owned()) };
        node.note_making(id, Making::of(None, 1));
        let deadline = Instant::now() + node.settings.start_deadline;
        let phase = WorkerPhase::Greeting { deadline, asker: Asker::Nobody };
        let failed = |error: std::io::Error| {
            format!("its process could not be started: {error}{}", remedy_of_start(&error))
        };
        node.launch(slot, id, GATEWAY, phase, None).map_err(failed)?;
        // List the worker only once: the old slot still has the status of its last life.
        if let Some(last) = node.workers.slot_mut(before).filter(|_| before != slot) {
            last.last = None;
        }
        self.worker = Some((id, slot));
        self.starting = node.workers.at(slot).map(|worker| worker.process);
        Ok(())
    }
}

/// HOST-10: gives all workers the new page, because nobody writes the last gateway's page any more.
fn give_page_to_all(node: &mut NodeState, page: &WorksUntil) {
    for worker in node.workers.iter_mut() {
        // A worker that was not welcomed yet gets it with its welcome.
        if !matches!(worker.phase, WorkerPhase::Opening { .. } | WorkerPhase::Running) {
            continue;
        }
        // A worker without the new page ends by the last one, in time.
        if let Ok(page) = page.export() {
            worker.send(&Down::WorksUntil, vec![page]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::control_channel::ToNode;

    fn is_given_up(effect: Option<Effect>) -> bool {
        matches!(effect, Some(Effect::GiveUp(ProcessId::NODE, why)) if why.contains("said nothing for 5 s"))
    }

    #[test]
    fn a_gateway_that_stands_still_is_given_up_when_its_last_messages_were_read() {
        let (mut gateways, start) = (Gateways::default(), Instant::now());
        let gateway = Some(ProcessId::NODE);
        let check = |gateways: &mut Gateways, after: Duration| {
            is_given_up(gateways.check(gateway, false, start + after))
        };
        assert!(!check(&mut gateways, SILENCE * 2), "none has begun");
        gateways.alive = Some(start);
        assert!(!check(&mut gateways, SILENCE - READ_FIRST));
        assert!(!check(&mut gateways, SILENCE) && !check(&mut gateways, SILENCE + READ_FIRST / 2));
        // A message of it lay unread.
        let heard = gateways.missed.take();
        assert!(heard.is_some() && !check(&mut gateways, SILENCE + READ_FIRST));
        assert!(check(&mut gateways, SILENCE + READ_FIRST * 2));
        assert!(!check(&mut gateways, SILENCE * 3), "once");
        // The deadline of a shutdown ends it then.
        gateways.alive = Some(start);
        assert!(gateways.check(gateway, true, start + SILENCE * 2).is_none() && gateways.alive.is_none());
    }

    // WIRE-1.
    #[test]
    fn envelopes_go_to_and_come_from_the_gateway_and_the_next_one_alone() {
        let [present, next, other] = [1, 2, 3].map(|slot| ProcessId::new(slot, 0).unwrap());
        let mut gateways = Gateways { starting: Some(next), ..Gateways::default() };
        let ToNode::Neighbours(envelope) = FromGateway::Alive.sealed() else { panic!("it is sealed") };
        let opens =
            |from| matches!(gateways.open(Some(present), from, &envelope), Some(Ok(FromGateway::Alive)));
        assert!(opens(present) && opens(next));
        assert!(gateways.open(Some(present), other, &envelope).is_none());
        assert!(gateways.open(None, present, &envelope).is_none(), "it has ended");

        assert!(gateways.begin_next(other, Vec::new()).is_none());
        assert!(gateways.begin_next(present, Vec::new()).is_none(), "it has begun");
        assert!(gateways.begin_next(next, Vec::new()).is_some());
    }
}
