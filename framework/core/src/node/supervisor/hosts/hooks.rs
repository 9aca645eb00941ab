//! Other hosts as the supervisor's neighbours: what it asks and tells them (`supervisor/neighbours.rs`).

use std::collections::HashMap;
use std::io;
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
use super::super::actors::{Guest, Started};
use super::super::neighbours::{Neighbours, Start};
use super::super::node_state::NodeState;
use super::super::restarts::Supervised;
use super::super::run::SupervisorState;
use super::names::{self, Claimant, exists};

impl Neighbours for SupervisorState {
    fn before_restarts(&mut self) {
        self.hosts.advance_groups(&mut self.node);
    }

    fn after_restarts(&mut self) {
        self.next_gateway_due();
        self.hosts.begin_lives(&mut self.node);
    }

    fn before_wait(&mut self) {
        self.hosts.tell_head_of_log(&mut self.node);
        self.node.deliver_first();
    }

    fn check_neighbours(&mut self, now: Instant) {
        self.check_works_until();
        let gateway = self.node.broker.other_hosts.gateway();
        let effect = self.hosts.gateways.check(gateway, self.node.stopping.is_some(), now);
        self.carry_out(effect);
    }

    fn stalled_neighbours(&mut self, lost: Duration) {
        self.hosts.gateways.stalled(lost);
    }

    fn next_of_neighbours(&self) -> Option<Instant> {
        let times = [
            self.hosts.next_look_at_works_until(&self.node),
            self.hosts.next_tell_of_log(),
            self.hosts.gateways.next_event(),
            self.hosts.next_roaming(),
            self.hosts.groups.next_group(),
        ];
        times.into_iter().flatten().min()
    }

    fn take_message(
        &mut self,
        from: ProcessId,
        message: ToNode,
        descriptors: Vec<OwnedFd>,
    ) -> Option<(ToNode, Vec<OwnedFd>)> {
        match message {
            ToNode::Neighbours(envelope) => {
                let gateway = self.node.broker.other_hosts.gateway();
                match self.hosts.gateways.open(gateway, from, &envelope) {
                    Some(said) => {
                        self.take_from_gateway(from, said, descriptors);
                        None
                    }
                    // The broker complains.
                    None => Some((ToNode::Neighbours(envelope), descriptors)),
                }
            }
            // The broker complains of an unknown actor or a bad name.
            ToNode::Register { ticket, name, actor }
                if exists(&self.node.broker, actor) && has_to_claim(&self.node, &name) =>
            {
                self.claim(name, Claimant::Register { by: from, ticket, actor });
                None
            }
            message => Some((message, descriptors)),
        }
    }

    fn may_bring(&self, process: ProcessId, fd: BorrowedFd<'_>) -> bool {
        peer_fd::listens(fd) && self.hosts.gateways.serves_as_gateway(&self.node, process)
    }

    fn is_logged_here_alone(&self, process: ProcessId, severity: Severity) -> bool {
        // A gateway logs each frame that it sends. Passing that record on would cause another frame.
        severity > Severity::Info && self.node.broker.other_hosts.gateway() == Some(process)
    }

    fn is_gateway(&self, process: ProcessId) -> bool {
        self.hosts.gateways.serves_as_gateway(&self.node, process)
    }

    fn pages_of(&self, mut own: Vec<OwnedFd>) -> io::Result<Vec<OwnedFd>> {
        if let Some(works_until) = &self.hosts.works_until {
            own.push(works_until.export()?);
        }
        Ok(own)
    }

    fn worker_is_ready(&mut self, index: usize) {
        let Some(process) = self.node.workers.at(index).map(|worker| worker.process) else { return };
        let gone = self.hosts.roaming.hosts_gone();
        let effect = self.hosts.gateways.begin_next(process, gone);
        self.carry_out(effect);
    }

    fn has_ended(&mut self, process: ProcessId, why: &EndReason, told: &mut Vec<Delivery>) -> bool {
        if !self.hosts.gateways.serves_as_gateway(&self.node, process) {
            return false;
        }
        let is_followed = self.hosts.gateways.is_followed(&mut self.node, why, told);
        if !is_followed {
            self.no_gateway_follows(why, told);
        }
        is_followed
    }

    fn name_given(&mut self, name: String) {
        if self.node.broker.registry.find(&name).is_none() {
            self.node.tell_gateway(&ToGateway::Release { name });
        }
    }

    fn hold_start(&mut self, start: Start) -> Option<Start> {
        match start.actor.name.clone().filter(|name| has_to_claim(&self.node, name)) {
            Some(name) => {
                self.claim(name, Claimant::Start(Box::new(start)));
                None
            }
            None => Some(start),
        }
    }

    fn is_held(&self, worker: WorkerId) -> bool {
        self.hosts.groups.is_worker_held(&self.node, worker)
    }

    fn take_in(&mut self, process: ProcessId, guest: Guest, new: &NewActor) -> Started {
        self.node.take_in_guest(process, guest.actor, new)
    }

    fn is_to_start(&mut self, actor: ActorId, new: &NewActor) {
        self.node.broker.roster.works_on(actor, new.receive_on, new.device);
    }

    fn guest_has_started(&mut self, actor: ActorId, life: u32) {
        self.node.guest_started(actor, life);
    }

    fn guest_failed(&mut self, actor: ActorId) {
        self.node.guest_could_not_start(actor);
    }

    fn is_missed(&self, actor: ActorId) -> bool {
        self.hosts.groups.is_for_another_host(actor)
    }

    fn groups_fail(&mut self, groups: &[Group], given_up: &[Group], delay: Duration, why: &str) {
        self.hosts.groups_fail_but(&mut self.node, groups, given_up, delay, why, None);
    }

    fn restarts_end(&mut self, supervised: &HashMap<ActorId, Supervised>) {
        self.hosts.groups.shuts_down(supervised);
    }

    fn shutdown_begins(&mut self) {
        self.hosts.roaming.end_roaming(&mut self.node);
    }

    fn parties(&self) -> Vec<Party> {
        self.hosts.other_hosts(&self.node)
    }

    fn ask_parties(&mut self, round: u64, left: Duration) {
        self.hosts.ask_other_hosts(&mut self.node, round, left);
    }

    fn has_answered(&mut self) {
        self.hosts.answer_head(&mut self.node);
    }

    fn may_stop_actors(&mut self) -> bool {
        self.hosts.has_traces_of_hosts(&mut self.node)
    }

    fn traces_of_others(&mut self, path: &Path) -> Option<Vec<(String, HostTrace)>> {
        let head_has_run = self.node.shared.all_hosts.head_has_run.load(Relaxed);
        (!head_has_run).then(|| self.hosts.traced.traced_by_hosts(&mut self.node, path))
    }
}

impl SupervisorState {
    fn claim(&mut self, name: String, claimant: Claimant) {
        let effects = self.hosts.claims.claim(&self.node.broker, name, claimant);
        self.carry_out(effects);
    }
}

fn has_to_claim(node: &NodeState, name: &str) -> bool {
    names::has_to_claim(&node.broker, node.stopping.is_some(), name)
}
