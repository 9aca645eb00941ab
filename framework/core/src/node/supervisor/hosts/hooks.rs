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
use super::super::restarts::Supervised;
use super::super::run::SupervisorState;
use super::names::{self, Claimant, exists, release_names};

impl Neighbours for SupervisorState {
    fn before_restarts(&mut self) {
        self.advance_groups();
    }

    fn after_restarts(&mut self) {
        self.next_gateway_due();
        self.begin_lives();
    }

    fn before_wait(&mut self) {
        self.tell_head_of_log();
        self.before_deliveries();
    }

    fn before_deliveries(&mut self) {
        let effects = release_names(&mut self.broker);
        self.carry_out(effects);
    }

    fn check_neighbours(&mut self, now: Instant) {
        self.check_works_until();
        let gateway = self.broker.other_hosts.gateway();
        let effect = self.hosts.gateways.check(gateway, self.stopping.is_some(), now);
        self.carry_out(effect);
    }

    fn stalled_neighbours(&mut self, lost: Duration) {
        self.hosts.gateways.stalled(lost);
    }

    fn next_of_neighbours(&self) -> Option<Instant> {
        let times = [
            self.next_look_at_works_until(),
            self.next_tell_of_log(),
            self.hosts.gateways.next_event(),
            self.next_roaming(),
            self.next_group(),
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
                let gateway = self.broker.other_hosts.gateway();
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
                if exists(&self.broker, actor) && self.has_to_claim(&name) =>
            {
                self.claim(name, Claimant::Register { by: from, ticket, actor });
                None
            }
            message => Some((message, descriptors)),
        }
    }

    fn may_bring(&self, process: ProcessId, fd: BorrowedFd<'_>) -> bool {
        peer_fd::listens(fd) && self.serves_as_gateway(process)
    }

    fn is_logged_here_alone(&self, process: ProcessId, severity: Severity) -> bool {
        // A gateway logs each frame that it sends. Passing that record on would cause another frame.
        severity > Severity::Info && self.broker.other_hosts.gateway() == Some(process)
    }

    fn is_gateway(&self, process: ProcessId) -> bool {
        self.serves_as_gateway(process)
    }

    fn pages_of(&self, mut own: Vec<OwnedFd>) -> io::Result<Vec<OwnedFd>> {
        if let Some(works_until) = &self.hosts.works_until {
            own.push(works_until.export()?);
        }
        Ok(own)
    }

    fn worker_is_ready(&mut self, index: usize) {
        let Some(process) = self.workers.at(index).map(|worker| worker.process) else { return };
        let gone = self.hosts_gone();
        let effect = self.hosts.gateways.begin_next(process, gone);
        self.carry_out(effect);
    }

    fn has_ended(&mut self, process: ProcessId, why: &EndReason, told: &mut Vec<Delivery>) -> bool {
        if !self.serves_as_gateway(process) {
            return false;
        }
        let is_followed = self.is_followed(why, told);
        if !is_followed {
            self.no_gateway_follows(why, told);
        }
        is_followed
    }

    fn name_given(&mut self, name: String) {
        if self.broker.registry.find(&name).is_none() {
            self.tell_gateway(ToGateway::Release { name });
        }
    }

    fn hold_start(&mut self, start: Start) -> Option<Start> {
        match start.actor.name.clone().filter(|name| self.has_to_claim(name)) {
            Some(name) => {
                self.claim(name, Claimant::Start(Box::new(start)));
                None
            }
            None => Some(start),
        }
    }

    fn is_held(&self, worker: WorkerId) -> bool {
        self.is_worker_held(worker)
    }

    fn take_in(&mut self, process: ProcessId, guest: Guest, new: &NewActor) -> Started {
        self.take_in_guest(process, guest.actor, new)
    }

    fn is_to_start(&mut self, actor: ActorId, new: &NewActor) {
        self.broker.roster.works_on(actor, new.receive_on, new.device);
    }

    fn guest_has_started(&mut self, actor: ActorId, life: u32) {
        self.guest_started(actor, life);
    }

    fn guest_failed(&mut self, actor: ActorId) {
        self.guest_could_not_start(actor);
    }

    fn is_missed(&self, actor: ActorId) -> bool {
        self.is_for_another_host(actor)
    }

    fn groups_fail(&mut self, groups: &[Group], given_up: &[Group], delay: Duration, why: &str) {
        self.groups_fail_but(groups, given_up, delay, why, None);
    }

    fn restarts_end(&mut self, supervised: &HashMap<ActorId, Supervised>) {
        self.hosts.groups.shuts_down(supervised);
    }

    fn shutdown_begins(&mut self) {
        self.end_roaming();
    }

    fn parties(&self) -> Vec<Party> {
        self.other_hosts()
    }

    fn ask_parties(&mut self, round: u64, left: Duration) {
        self.ask_other_hosts(round, left);
    }

    fn has_answered(&mut self) {
        self.answer_head();
    }

    fn may_stop_actors(&mut self) -> bool {
        self.has_traces_of_hosts()
    }

    fn traces_of_others(&mut self, path: &Path) -> Option<Vec<(String, HostTrace)>> {
        let head_has_run = self.shared.all_hosts.head_has_run.load(Relaxed);
        (!head_has_run).then(|| self.traced_by_hosts(path))
    }
}

impl SupervisorState {
    fn has_to_claim(&self, name: &str) -> bool {
        names::has_to_claim(&self.broker, self.stopping.is_some(), name)
    }

    fn claim(&mut self, name: String, claimant: Claimant) {
        let effects = self.hosts.claims.claim(&self.broker, name, claimant);
        self.carry_out(effects);
    }
}
