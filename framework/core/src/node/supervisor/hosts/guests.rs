//! Lives of actors that roam and whose home is another host: *guests* of this one.

use crate::actor::NewActor;
use crate::ids::{ActorId, ProcessId};
use crate::node::hosts::other_hosts::{HostActors, OtherHosts};
use crate::transport::control_channel::Location;
use crate::transport::lifecycle::Lifecycle;

use super::super::node_state::NodeState;
use super::super::reply::Started;
use super::super::{StartError, WorkerId};

fn is_guest(node: &NodeState, actor: ActorId) -> bool {
    OtherHosts::of(&node.broker).is_guest(&node.broker.roster, actor)
}

/// Makes a location in `process` for a guest's life.
pub(super) fn take_in(node: &mut NodeState, process: ProcessId, actor: ActorId, new: &NewActor) -> Started {
    // HOST-10: its home asks for one life after the other.
    if is_guest(node, actor) {
        let (worker, type_name) = (process.to_string(), new.type_name.clone());
        let why = format!("{actor} lives on this host already");
        return Err(StartError::Create { worker, type_name, why });
    }
    let location =
        node.with_broker(|broker, told| HostActors::of(broker).take_in(actor, process, new.capacity, told))?;
    Ok((actor, location))
}

/// Returns where a guest is, unless it does not live on this host, or has ended.
pub(super) fn find(node: &NodeState, actor: ActorId) -> Option<(Location, WorkerId)> {
    let entry = node.broker.roster.actor(actor).filter(|_| is_guest(node, actor))?;
    Some((entry.location, node.restarts.supervised.get(&actor)?.worker))
}

/// Tells everybody that a guest takes messages on this host.
pub(super) fn has_started(node: &mut NodeState, actor: ActorId, life: u32) {
    if !is_guest(node, actor) {
        return;
    }
    node.with_broker(|broker, told| {
        HostActors::of(broker).guest_started(actor, told);
        if life > 0 {
            // This host does not hear its home's news of this life.
            broker.tell(&Lifecycle::Up { actor, incarnation: life }, told);
        }
    });
}

/// Handles a guest whose first life on this host could not begin.
pub(super) fn could_not_start(node: &mut NodeState, actor: ActorId) {
    if is_guest(node, actor) {
        node.with_broker(|broker, told| HostActors::of(broker).guest_failed(actor, told));
    }
}
