//! Other hosts as the supervisor's neighbours: what it asks and tells them (`supervisor/neighbours.rs`).

use std::collections::HashMap;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use crate::actor::NewActor;
use crate::ids::{ActorId, ProcessId};
use crate::node::broker::Delivery;
use crate::node::group::Group;
use crate::node::shutdown::Party;
use crate::observe::log::Severity;
use crate::observe::trace::joined::HostTrace;
use crate::os::peer_fd;
use crate::transport::control_channel::ToNode;
use crate::transport::gateway_messages::ToGateway;
use crate::transport::lifecycle::EndReason;

use super::super::WorkerId;
use super::super::guest::Guest;
use super::super::neighbours::{Effect, Neighbours, Start};
use super::super::node_state::NodeState;
use super::super::reply::Started;
use super::super::restarts::Supervised;
use super::names::{self, Claimant, exists};
use super::{Hosts, gateway, guests, tell_gateway};

impl Neighbours for Hosts {
    fn before_restarts(&mut self, node: &mut NodeState) {
        self.advance_groups(node);
    }

    fn after_restarts(&mut self, node: &mut NodeState) -> Vec<Effect> {
        let effects = self.next_gateway_due(node);
        // If no gateway follows, no actor roams any more, and no life is due.
        self.begin_lives(node);
        effects
    }

    fn before_wait(&mut self, node: &mut NodeState) {
        self.tell_head_of_log(node);
        node.deliver_first();
    }

    fn check(&mut self, node: &mut NodeState, now: Instant) -> Vec<Effect> {
        let shutdown = self.check_works_until(node);
        let is_stopping = node.stopping.is_some() || shutdown.is_some();
        let given_up = self.gateways.check(gateway(node), is_stopping, now);
        shutdown.into_iter().chain(given_up).collect()
    }

    fn stalled(&mut self, lost: Duration) {
        self.gateways.stalled(lost);
    }

    fn next_event(&self, node: &NodeState) -> Option<Instant> {
        let times = [
            self.next_look_at_works_until(node),
            self.next_tell_of_log(),
            self.gateways.next_event(),
            self.next_roaming(),
            self.groups.next_group(),
        ];
        times.into_iter().flatten().min()
    }

    fn take_message(
        &mut self,
        node: &mut NodeState,
        from: ProcessId,
        message: ToNode,
        descriptors: Vec<OwnedFd>,
    ) -> ControlFlow<Vec<Effect>, (ToNode, Vec<OwnedFd>)> {
        match message {
            ToNode::Neighbours(envelope) => {
                match self.gateways.open(gateway(node), from, &envelope) {
                    Some(said) => ControlFlow::Break(self.take_from_gateway(node, from, said, descriptors)),
                    // The broker complains.
                    None => ControlFlow::Continue((ToNode::Neighbours(envelope), descriptors)),
                }
            }
            // The broker complains of an unknown actor or a bad name.
            ToNode::Register { ticket, name, actor }
                if exists(&node.broker, actor) && has_to_claim(node, &name) =>
            {
                let claimant = Claimant::Register { by: from, ticket, actor };
                ControlFlow::Break(self.claims.claim(&node.broker, name, claimant))
            }
            message => ControlFlow::Continue((message, descriptors)),
        }
    }

    fn may_bring(&self, node: &NodeState, process: ProcessId, fd: BorrowedFd<'_>) -> bool {
        peer_fd::listens(fd) && self.gateways.serves_as_gateway(node, process)
    }

    fn is_logged_here_alone(&self, node: &NodeState, process: ProcessId, severity: Severity) -> bool {
        // A gateway logs each frame that it sends. Passing that record on would cause another frame.
        severity > Severity::Info && gateway(node) == Some(process)
    }

    fn is_gateway(&self, node: &NodeState, process: ProcessId) -> bool {
        self.gateways.serves_as_gateway(node, process)
    }

    fn pages_of(&self, mut own: Vec<OwnedFd>) -> io::Result<Vec<OwnedFd>> {
        if let Some(works_until) = &self.works_until {
            own.push(works_until.export()?);
        }
        Ok(own)
    }

    fn worker_is_ready(&mut self, node: &NodeState, index: usize) -> Option<Effect> {
        let process = node.workers.at(index)?.process;
        self.gateways.begin_next(process, self.roaming.hosts_gone())
    }

    fn has_ended(
        &mut self,
        node: &mut NodeState,
        process: ProcessId,
        why: &EndReason,
        told: &mut Vec<Delivery>,
    ) -> (bool, Option<Effect>) {
        if !self.gateways.serves_as_gateway(node, process) {
            return (false, None);
        }
        self.gateway_ended(node, why, told)
    }

    fn name_given(&mut self, node: &mut NodeState, name: String) {
        if node.broker.registry.find(&name).is_none() {
            tell_gateway(node, &ToGateway::Release { name });
        }
    }

    fn hold_start(&mut self, node: &NodeState, start: Start) -> ControlFlow<Vec<Effect>, Start> {
        match start.actor.name.clone().filter(|name| has_to_claim(node, name)) {
            Some(name) => {
                let claimant = Claimant::Start(Box::new(start));
                ControlFlow::Break(self.claims.claim(&node.broker, name, claimant))
            }
            None => ControlFlow::Continue(start),
        }
    }

    fn is_held(&self, node: &NodeState, worker: WorkerId) -> bool {
        self.groups.is_worker_held(node, worker)
    }

    fn take_in(&mut self, node: &mut NodeState, process: ProcessId, guest: Guest, new: &NewActor) -> Started {
        guests::take_in(node, process, guest.actor, new)
    }

    fn is_to_start(&mut self, node: &mut NodeState, actor: ActorId, new: &NewActor) {
        node.broker.roster.works_on(actor, new.receive_on, new.device);
    }

    fn guest_has_started(&mut self, node: &mut NodeState, actor: ActorId, life: u32) {
        guests::has_started(node, actor, life);
    }

    fn guest_failed(&mut self, node: &mut NodeState, actor: ActorId) {
        guests::could_not_start(node, actor);
    }

    fn is_missed(&self, actor: ActorId) -> bool {
        self.groups.is_for_another_host(actor)
    }

    fn groups_fail(
        &mut self,
        node: &mut NodeState,
        groups: &[Group],
        given_up: &[Group],
        delay: Duration,
        why: &str,
    ) {
        self.groups_fail_but(node, groups, given_up, delay, why, None);
    }

    fn restarts_end(&mut self, supervised: &HashMap<ActorId, Supervised>) {
        self.groups.shuts_down(supervised);
    }

    fn shutdown_begins(&mut self, node: &mut NodeState) {
        self.roaming.end_roaming(node);
    }

    fn parties(&self, node: &NodeState) -> Vec<Party> {
        self.other_hosts(node)
    }

    fn ask_parties(&mut self, node: &mut NodeState, round: u64, left: Duration) {
        self.ask_other_hosts(node, round, left);
    }

    fn has_answered(&mut self, node: &mut NodeState) {
        self.answer_head(node);
    }

    fn may_stop_actors(&mut self, node: &mut NodeState) -> bool {
        self.has_traces_of_hosts(node)
    }

    fn traces_of_others(&mut self, node: &mut NodeState, path: &Path) -> Option<Vec<(String, HostTrace)>> {
        let head_has_run = node.shared.all_hosts.head_has_run.load(Relaxed);
        (!head_has_run).then(|| self.traced.traced_by_hosts(node, path))
    }
}

fn has_to_claim(node: &NodeState, name: &str) -> bool {
    names::has_to_claim(&node.broker, node.stopping.is_some(), name)
}
