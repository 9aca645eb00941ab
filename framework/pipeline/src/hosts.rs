//! On which hosts the workers of a pipeline start.
//!
//! Used by `launch`, once for each pipeline, before anything of it has started. A node that is alone, or a program without the feature
//! `hosts`, has one host, and nothing is looked up.
//!
//! **On the loss** of a host meanwhile the start fails with an error that names it.

#[cfg(feature = "hosts")]
use std::collections::HashMap;
#[cfg(feature = "hosts")]
use std::time::{Duration, Instant};

use tensorpost_core::api::actor::Python;
#[cfg(feature = "hosts")]
use tensorpost_core::api::node::ActorError;
use tensorpost_core::api::node::{Node, Supervisor, WorkerId};

use super::error::{Mistake, PipelineError};
#[cfg(feature = "hosts")]
use super::limits::HOST_DEADLINE;
#[cfg(feature = "hosts")]
use super::location::On;
use super::plan::Plan;

/// The hosts of workers, by stage and replica; of those that are not here.
pub(super) struct Hosts {
    #[cfg(feature = "hosts")]
    of: HashMap<(usize, u16), u16>,
}

impl Hosts {
    /// Starts a worker where it is to be.
    pub(super) fn start_worker(
        &self,
        supervisor: &Supervisor,
        plan: &Plan,
        at: (usize, u16),
        (name, streams, python): (&str, usize, Option<&Python>),
    ) -> Result<WorkerId, PipelineError> {
        let stage = || plan.stages[at.0].name.clone();
        #[cfg(feature = "hosts")]
        if let Some(host) = self.of.get(&at) {
            let started = supervisor.spawn_worker_on(*host, name, streams);
            return started.map_err(|source| PipelineError::Start { stage: stage(), source });
        }
        let started = supervisor.spawn_worker_for(name, streams, python);
        started.map_err(|source| PipelineError::Worker { stage: stage(), source })
    }

    #[cfg(not(feature = "hosts"))]
    pub(super) fn find(_: &Node, _: &Plan) -> Result<Self, PipelineError> {
        Ok(Hosts {})
    }

    /// Finds them all; those that have not joined yet are waited for.
    #[cfg(feature = "hosts")]
    pub(super) fn find(node: &Node, plan: &Plan) -> Result<Self, PipelineError> {
        let until = Instant::now() + HOST_DEADLINE;
        let mut of = HashMap::new();
        let mut loads = None;
        for (index, stage) in plan.stages.iter().enumerate().filter(|(_, stage)| stage.on.is_host()) {
            // One in the worker of another stage is where that one is.
            if plan.home(index) != index {
                continue;
            }
            let failed = |source| PipelineError::Start { stage: stage.name.clone(), source };
            let closed = |closed| failed(ActorError::Start(closed));
            for replica in 0..stage.replicas as u16 {
                let number = match &stage.on {
                    On::Anywhere => {
                        let loads = match &mut loads {
                            Some(loads) => loads,
                            none => none.insert(node.host_loads().map_err(|error| closed(error.into()))?),
                        };
                        // Those that start now count too.
                        let Some(least) = loads.iter_mut().min() else { continue };
                        least.0 += 1;
                        least.1
                    }
                    on => find(node, on, until).map_err(failed)?,
                };
                of.insert((index, replica), number);
            }
        }
        Ok(Hosts { of })
    }
}

/// The number of a host that is named, as soon as it is of the node.
#[cfg(feature = "hosts")]
fn find(node: &Node, on: &On, until: Instant) -> Result<u16, ActorError> {
    let closed = |closed: tensorpost_core::api::node::Closed| ActorError::Start(closed.into());
    let mut hosts = node.hosts().map_err(closed)?;
    loop {
        let found = hosts.iter().find(|host| match on {
            // It was of the node, and numbers are not given twice.
            On::Host(wanted) => host.number == wanted.number,
            On::HostNumber(number) => host.number == *number,
            On::HostNamed(name) => host.name == *name,
            _ => false,
        });
        if let Some(found) = found {
            return Ok(found.number);
        }
        let why = match on {
            _ if hosts.is_empty() => "this node has one host; start it with `Node::builder().hosts(..)`",
            On::Host(_) => "it is not of this node (any more)",
            On::HostNumber(number) if hosts.iter().any(|host| host.number > *number) => {
                "it is not of this node any more"
            }
            _ if Instant::now() >= until => {
                "it has not joined this node; are its program and its key the same?"
            }
            _ => {
                // Not for longer: one may be lost meanwhile, and then their number does not grow when the wanted one joins.
                let left = until.saturating_duration_since(Instant::now()).min(Duration::from_millis(500));
                hosts = node.await_hosts(hosts.len() + 1, left).map_err(closed)?;
                continue;
            }
        };
        return Err(ActorError::Elsewhere { host: on.to_string(), why: why.to_owned() });
    }
}

impl Plan {
    /// Whether items that go to the stage, or what the pipeline says to it, may come from other hosts: then one process, the
    /// gateway of its host, sends for several.
    pub(super) fn hears_other_hosts(&self, stage: usize) -> bool {
        let on = |stage: usize| Some(&self.stages[self.home(stage)].on).filter(|on| on.is_host());
        on(stage).is_some() || self.edges_to(stage).any(|(_, edge)| on(edge.from.stage).is_some())
    }

    /// What is wrong with a stage that may be on another host.
    pub(super) fn host_mistakes(&self, index: usize) -> Vec<Mistake> {
        let (stage, home) = (&self.stages[index], &self.stages[self.home(index)]);
        if !(stage.on.is_host() || home.on.is_host()) {
            return Vec::new();
        }
        let device = !stage.on.is_host() && stage.on.to_string() != "host";
        let conflicts = [
            (
                stage.on.is_host() && stage.beside.is_some() && stage.on != home.on,
                "it is in the worker of another stage, and so on that one's host; leave `on` or `beside` out",
            ),
            (
                device,
                "it is in a worker of another host, whose GPUs cannot be named here; leave its device out, or leave `beside` out",
            ),
            (
                stage.scale.is_some(),
                "the number of replicas of a stage on another host cannot change; say it with `replicas(..)`",
            ),
            (stage.spares > 0, "spare workers wait on this host alone; leave `spares` out, or `on`"),
            (
                self.interpreter_of(index).is_some(),
                "a stage that an interpreter runs is on this host; leave `on` out, or write the stage in Rust",
            ),
        ];
        let conflicts = conflicts.into_iter().filter(|(holds, _)| *holds);
        conflicts.map(|(_, why)| Mistake::Conflict { stage: stage.name.clone(), why }).collect()
    }
}

#[cfg(all(test, feature = "hosts"))]
mod tests {
    use tensorpost_core::api::hosts::Anywhere;

    use super::*;
    use crate::limits::DEFAULT_MAILBOX;
    use crate::plan::{Kind, RESULTS, StagePlan, Tap};

    /// A source, replicas of a stage, and a sink.
    fn line(on: [On; 3]) -> Plan {
        let mut plan = Plan::new("line".to_owned());
        let results = |stage| Tap { stage, output: RESULTS, branch: 0 };
        plan.add(StagePlan::new(Kind::Source, "source"), &[]);
        plan.add(StagePlan::new(Kind::Stage, "stage"), &[results(0)]);
        plan.add(StagePlan::new(Kind::Sink, "sink"), &[results(1)]);
        plan.stages[1].replicas = 3;
        for (stage, on) in plan.stages.iter_mut().zip(on) {
            stage.on = on;
        }
        plan.complete()
    }

    #[test]
    fn a_mailbox_has_room_for_all_that_one_gateway_sends_for() {
        let mailboxes = |on| {
            let plan = line(on);
            [1, 2].map(|stage| plan.mailbox(stage))
        };
        let one = DEFAULT_MAILBOX;
        assert_eq!(mailboxes([On::default(), On::default(), On::default()]), [one, one]);
        // One sender, three senders, and each time the program.
        assert_eq!(mailboxes([On::default(), Anywhere.into(), On::default()]), [2 * one, 4 * one]);
        assert_eq!(mailboxes([On::HostNumber(1), On::default(), On::default()]), [2 * one, one]);
        assert_eq!(mailboxes([On::default(), On::default(), On::HostNumber(1)]), [one, 4 * one]);
    }
}
