//! A shutdown of all hosts together: the head asks the others in each of its rounds (`node/shutdown.rs`).

use std::time::Duration;

use crate::node::limits::DROP_DEADLINE;
use crate::node::process_runtime::Activity;
use crate::node::shutdown::Party;
use crate::observe::log::Severity;
use crate::transport::gateway_messages::ToGateway;

use super::super::deadline_after;
use super::super::neighbours::Effect;
use super::super::node_state::NodeState;
use super::super::stopping::Stopping;
use super::{Hosts, tell_gateway};

impl Hosts {
    /// Answers the head, which shuts all hosts down and asks whether anything is under way here. The first
    /// question begins the shutdown of this host; from then on the head decides when it goes on.
    pub(super) fn drain_for_head(&mut self, node: &mut NodeState, round: u64, within: u64) -> Vec<Effect> {
        let mut effects = Vec::new();
        match &node.stopping {
            None => {
                node.journal.node(Severity::Info, None, "the head shuts the node down".to_owned());
                // After the head's deadline this host gets the same time to end its actors as if the head had
                // left without asking.
                let within = Duration::from_millis(within).saturating_add(DROP_DEADLINE);
                effects.push(Effect::Shutdown(deadline_after(within)));
            }
            Some(stopping) if stopping.is_draining() => {}
            // This host is about to leave, and then nobody waits for it.
            Some(_) => {
                let activity = Activity { busy: true, ..Activity::default() };
                tell_gateway(node, &ToGateway::Drained { round, activity });
                return effects;
            }
        }
        // A shutdown that only begins drains too. This host's answer waits for all of its processes, and no
        // process answers before the effect asks it.
        self.round_of_head = Some(round);
        effects.push(Effect::AskForLeader);
        effects
    }

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
            tell_gateway(node, &ToGateway::Drain { round, within });
        }
    }

    /// Sends the head the sum of this host's answers, if the head waits for it and all processes have
    /// answered.
    pub(super) fn answer_head(&mut self, node: &mut NodeState) {
        let Some(total) = node.stopping.as_ref().and_then(Stopping::total) else { return };
        if let Some(round) = self.round_of_head.take() {
            tell_gateway(node, &ToGateway::Drained { round, activity: total });
        }
    }
}
