//! Steps of other threads, which the supervisor's thread runs with its part for other hosts.

use std::any::Any;

use crate::transport::gateway_messages::Host;

use super::super::node_state::NodeState;
use super::super::reply::{Reply, waited_for};
use super::super::{NodeClosed, Shared};
use super::Hosts;

/// Has the supervisor's thread run `step`, behind all earlier commands.
pub(super) fn run(
    shared: &Shared,
    step: impl FnOnce(&mut Hosts, &mut NodeState) + Send + 'static,
) -> Result<(), NodeClosed> {
    shared.run_neighbours(move |neighbours, node| {
        let neighbours: &mut dyn Any = neighbours;
        // A node with this feature has these neighbours and no others.
        if let Some(hosts) = neighbours.downcast_mut::<Hosts>() {
            step(hosts, node);
        }
        None
    })
}

/// As [`run`]; waits for the answer.
pub(super) fn ask<T: Send + 'static>(
    shared: &Shared,
    step: impl FnOnce(&mut Hosts, &mut NodeState, Reply<T>) + Send + 'static,
) -> Result<T, NodeClosed> {
    let (reply, answer) = waited_for();
    run(shared, move |hosts, node| step(hosts, node, reply))?;
    answer.recv().map_err(|_| NodeClosed::Ended)
}

/// As [`run`]; waits for the result.
pub(super) fn run_for<T: Send + 'static>(
    shared: &Shared,
    step: impl FnOnce(&mut Hosts, &mut NodeState) -> T + Send + 'static,
) -> Result<T, NodeClosed> {
    ask(shared, move |hosts, node, reply| reply.answer(step(hosts, node)))
}

/// Asks the supervisor for the hosts of the node, without waiting.
pub(in crate::node) fn ask_for_hosts(shared: &Shared, reply: Reply<Vec<Host>>) -> Result<(), NodeClosed> {
    run(shared, move |hosts, _| reply.answer(hosts.members.clone()))
}
