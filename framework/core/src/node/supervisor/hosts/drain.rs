//! A shutdown of all hosts together: the head asks the others in each of its rounds (`node/shutdown.rs`).

use std::time::Duration;

use crate::node::limits::DROP_DEADLINE;
use crate::node::process_runtime::Activity;
use crate::node::shutdown::Party;
use crate::observe::log::Severity;
use crate::transport::gateway_messages::ToGateway;

use super::super::deadline_after;
use super::super::node_state::NodeState;
use super::super::run::SupervisorState;
use super::super::stopping::Stopping;
use super::{Hosts, waited_for};

impl SupervisorState {
    /// Answers the head, which shuts all hosts down and asks whether anything is under way here. The first
    /// question begins the shutdown of this host; from then on the head decides when it goes on.
    pub(super) fn drain_for_head(&mut self, round: u64, within: u64) {
        if self.node.stopping.is_none() {
            self.node.journal.node(Severity::Info, None, "the head shuts the node down".to_owned());
            let (reply, _nobody_waits) = waited_for();
            // After the head's deadline this host gets the same time to end its actors as if the head had
            // left without asking.
            let within = Duration::from_millis(within).saturating_add(DROP_DEADLINE);
            self.begin_stopping(deadline_after(within), reply);
        }
        match self.node.stopping.as_mut().filter(|stopping| stopping.is_draining()) {
            Some(stopping) => {
                stopping.drain_with_others();
                self.hosts.round_of_head = Some(round);
                self.begin_round();
            }
            // This host is about to leave, and then nobody waits for it.
            None => {
                let activity = Activity { busy: true, ..Activity::default() };
                self.node.tell_gateway(&ToGateway::Drained { round, activity });
            }
        }
    }
}

impl Hosts {
    /// Returns the hosts that this host shuts down with itself, if it is the head: an agent asks nobody.
    pub(super) fn other_hosts(&self, node: &NodeState) -> Vec<Party> {
        if node.broker.roster.host != 0 {
            return Vec::new();
        }
        let numbers = self.members.iter().map(|host| host.number);
        numbers.filter(|number| *number != 0).map(Party::Host).collect()
    }

    /// Asks the other hosts what is under way there. `left` is the time until this shutdown's deadline.
    pub(super) fn ask_other_hosts(&mut self, node: &mut NodeState, round: u64, left: Duration) {
        if !self.other_hosts(node).is_empty() {
            let within = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
            node.tell_gateway(&ToGateway::Drain { round, within });
        }
    }

    /// Sends the head the sum of this host's answers, if the head waits for it and all processes have
    /// answered.
    pub(super) fn answer_head(&mut self, node: &mut NodeState) {
        let Some(total) = node.stopping.as_ref().and_then(Stopping::total) else { return };
        if let Some(round) = self.round_of_head.take() {
            node.tell_gateway(&ToGateway::Drained { round, activity: total });
        }
    }
}
