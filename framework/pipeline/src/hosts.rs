//! Chooses the hosts on which the workers of a pipeline start.
//!
//! Used by `launch`, once for each pipeline, before any of its processes has started. A node that is alone,
//! or a program without the feature `hosts`, has one host, and nothing is looked up.
//!
//! **If a host is lost** meanwhile, the start fails with an error that names it.

#[cfg(feature = "hosts")]
use std::collections::HashMap;
#[cfg(feature = "hosts")]
use std::sync::Arc;
#[cfg(feature = "hosts")]
use std::time::Instant;

#[cfg(feature = "hosts")]
use parking_lot::Mutex;
use tensorpost_core::api::actor::Python;
use tensorpost_core::api::device::DeviceId;
use tensorpost_core::api::node::{ActorError, Supervisor, WorkerId};

use super::error::{Mistake, PipelineError};
#[cfg(feature = "hosts")]
use super::limits::HOST_DEADLINE;
use super::location::StageLocation;
use super::plan::Plan;

/// A worker that was started for a replica, and the device that it works on, if another host has chosen it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Home {
    pub(super) worker: WorkerId,
    pub(super) device: Option<DeviceId>,
}

/// A worker that was started for a further replica, which is about to start in it.
pub(super) struct Placed {
    pub(super) home: Home,
    #[cfg(feature = "hosts")]
    _coming: Option<Coming>,
}

/// Where the workers of further replicas of a stage start.
#[derive(Clone)]
pub(super) enum Where {
    Here,
    /// On this host, and on this device there.
    #[cfg(feature = "hosts")]
    Host(u16, Option<DeviceId>),
    /// On the host with the fewest actors at that moment, on its device with this name. Hosts that have
    /// joined meanwhile count too.
    #[cfg(feature = "hosts")]
    Anywhere(AllComing, Option<String>),
}

/// How many replicas are on their way to each host: their actors are not counted there yet. The first lock is
/// that of the thread that chooses a host, which asks all hosts meanwhile. No other thread waits for it: the
/// conductor's may drop a [`Coming`].
#[cfg(feature = "hosts")]
type AllComing = Arc<(Mutex<()>, Mutex<HashMap<u16, usize>>)>;

/// A replica on its way to a host; it counts until this is dropped.
#[cfg(feature = "hosts")]
struct Coming(u16, AllComing);

#[cfg(feature = "hosts")]
impl Drop for Coming {
    fn drop(&mut self) {
        let Coming(host, all) = &*self;
        if let Some(count) = all.1.lock().get_mut(host) {
            *count = count.saturating_sub(1);
        }
    }
}

/// The hosts of workers that are not on this host, by stage and replica.
pub(super) struct WorkerHosts {
    #[cfg(feature = "hosts")]
    of: HashMap<(usize, u16), u16>,
    /// The devices of stages that name a device of such a host.
    #[cfg(feature = "hosts")]
    devices: HashMap<(usize, u16), DeviceId>,
}

impl Where {
    /// Starts a worker at this place; it blocks.
    ///
    /// # Errors
    /// [`ActorError`] names the host, if it is another one.
    pub(super) fn start(
        &self,
        supervisor: &Supervisor,
        (name, streams, python): (&str, usize, Option<&Python>),
    ) -> Result<Placed, ActorError> {
        match self {
            Where::Here => {
                let worker = supervisor.spawn_worker_for(name, streams, python)?;
                Ok(Placed::new(worker, None))
            }
            #[cfg(feature = "hosts")]
            Where::Host(host, device) => {
                Ok(Placed::new(supervisor.spawn_worker_on(*host, name, streams, python)?, *device))
            }
            #[cfg(feature = "hosts")]
            Where::Anywhere(all, device) => {
                let coming = least_loaded(supervisor, all)?;
                let device =
                    device.as_ref().map(|device| supervisor.device_on(coming.0, device)).transpose()?;
                let worker = supervisor.spawn_worker_on(coming.0, name, streams, python)?;
                let placed = Placed::new(worker, device.map(|device| device.id()));
                Ok(Placed { _coming: Some(coming), ..placed })
            }
        }
    }
}

impl Placed {
    fn new(worker: WorkerId, device: Option<DeviceId>) -> Self {
        Placed {
            home: Home { worker, device },
            #[cfg(feature = "hosts")]
            _coming: None,
        }
    }
}

/// Returns the host with the fewest actors, replicas on their way included. One thread chooses at a time, so
/// that several do not find the same host.
#[cfg(feature = "hosts")]
fn least_loaded(supervisor: &Supervisor, all: &AllComing) -> Result<Coming, ActorError> {
    let _choosing = all.0.lock();
    // Before the hosts count: a replica that arrives meanwhile counts twice, and not at all otherwise.
    let coming = all.1.lock().clone();
    let loads = supervisor.host_loads().map_err(|closed| ActorError::Start(closed.into()))?;
    let loads = loads.into_iter().map(|(load, host)| (load + coming.get(&host).copied().unwrap_or(0), host));
    // This host is among them.
    let host = loads.min().map_or(0, |(_, host)| host);
    *all.1.lock().entry(host).or_default() += 1;
    Ok(Coming(host, Arc::clone(all)))
}

impl WorkerHosts {
    /// Starts a worker on the host that was chosen for it.
    pub(super) fn start_worker(
        &self,
        supervisor: &Supervisor,
        plan: &Plan,
        at: (usize, u16),
        new: (&str, usize, Option<&Python>),
    ) -> Result<WorkerId, PipelineError> {
        let stage = || plan.stages[at.0].name.clone();
        #[cfg(feature = "hosts")]
        let place = self.of.get(&at).map_or(Where::Here, |host| Where::Host(*host, None));
        #[cfg(not(feature = "hosts"))]
        let place = Where::Here;
        match place.start(supervisor, new) {
            Ok(placed) => Ok(placed.home.worker),
            Err(ActorError::Worker(source)) => Err(PipelineError::Worker { stage: stage(), source }),
            Err(source) => Err(PipelineError::Start { stage: stage(), source }),
        }
    }

    /// Returns the device of a stage's replica, if it is a device of another host.
    pub(super) fn device(&self, at: (usize, u16)) -> Option<DeviceId> {
        #[cfg(feature = "hosts")]
        return self.devices.get(&at).copied();
        #[cfg(not(feature = "hosts"))]
        {
            let _ = at;
            None
        }
    }

    /// As [`Plan::spares`], for the worker of a replica.
    pub(super) fn spares(&self, plan: &Plan, (home, replica): (usize, u16)) -> (u32, DeviceId) {
        let (count, device) = plan.spares(home);
        let inside = (0..plan.stages.len()).filter(|stage| plan.home(*stage) == home);
        let mut devices = inside.filter_map(|stage| self.device((stage, replica)));
        (count, devices.find(|device| *device != DeviceId::HOST).unwrap_or(device))
    }

    #[cfg(not(feature = "hosts"))]
    pub(super) fn further(&self, _: &Plan, _: usize) -> Where {
        Where::Here
    }

    /// Returns where further replicas of a stage start: on the host that is named, or on the best one at that
    /// time.
    #[cfg(feature = "hosts")]
    pub(super) fn further(&self, plan: &Plan, stage: usize) -> Where {
        let on = &plan.stages[stage].on;
        // The first place always has a replica.
        match (on.host(), self.of.get(&(stage, 0))) {
            (StageLocation::Anywhere, _) => {
                let device =
                    if let StageLocation::DeviceOf(_, device) = on { Some(device.clone()) } else { None };
                Where::Anywhere(AllComing::default(), device)
            }
            (_, Some(host)) => Where::Host(*host, self.device((stage, 0))),
            (_, None) => Where::Here,
        }
    }

    #[cfg(not(feature = "hosts"))]
    pub(super) fn find(_: &Supervisor, _: &Plan) -> Result<Self, PipelineError> {
        Ok(WorkerHosts {})
    }

    /// Finds the hosts of all stages, and waits for hosts that have not joined yet.
    #[cfg(feature = "hosts")]
    pub(super) fn find(supervisor: &Supervisor, plan: &Plan) -> Result<Self, PipelineError> {
        let until = Instant::now() + HOST_DEADLINE;
        let mut of = HashMap::new();
        let mut loads = None;
        for (index, stage) in plan.stages.iter().enumerate().filter(|(_, stage)| stage.on.is_host()) {
            // A stage in the worker of another is on the host of that one.
            if plan.home(index) != index {
                continue;
            }
            let failed = |source| PipelineError::Start { stage: stage.name.clone(), source };
            let closed = |closed| failed(ActorError::Start(closed));
            for replica in 0..stage.begins_with as u16 {
                let number = match stage.on.host() {
                    StageLocation::Anywhere => {
                        let loads = match &mut loads {
                            Some(loads) => loads,
                            none => {
                                let now = supervisor.host_loads();
                                none.insert(now.map_err(|error| closed(error.into()))?)
                            }
                        };
                        // Replicas that start now count too.
                        let Some(least) = loads.iter_mut().min() else { continue };
                        least.0 += 1;
                        least.1
                    }
                    on => find(supervisor, on, until).map_err(failed)?,
                };
                of.insert((index, replica), number);
            }
        }
        let devices = devices_of(supervisor, plan, &of)?;
        Ok(WorkerHosts { of, devices })
    }
}

/// Returns the devices of other hosts that stages name, and asks each host once for each device.
#[cfg(feature = "hosts")]
fn devices_of(
    supervisor: &Supervisor,
    plan: &Plan,
    hosts: &HashMap<(usize, u16), u16>,
) -> Result<HashMap<(usize, u16), DeviceId>, PipelineError> {
    let mut known = HashMap::<(u16, &str), DeviceId>::new();
    let mut devices = HashMap::new();
    for (index, stage) in plan.stages.iter().enumerate() {
        let StageLocation::DeviceOf(_, name) = &stage.on else { continue };
        for replica in 0..stage.begins_with as u16 {
            let worker = if stage.beside.is_some() { 0 } else { replica };
            let Some(host) = hosts.get(&(plan.home(index), worker)).copied() else { continue };
            let device = match known.get(&(host, name.as_str())) {
                Some(device) => *device,
                None => {
                    let found = supervisor.device_on(host, name);
                    found.map_err(|source| PipelineError::Start { stage: stage.name.clone(), source })?.id()
                }
            };
            known.insert((host, name), device);
            devices.insert((index, replica), device);
        }
    }
    Ok(devices)
}

/// Returns the number of a host that is named, as soon as it has joined the node.
#[cfg(feature = "hosts")]
fn find(supervisor: &Supervisor, on: &StageLocation, until: Instant) -> Result<u16, ActorError> {
    let closed = |closed: tensorpost_core::api::node::NodeClosed| ActorError::Start(closed.into());
    let late = format!(
        "it has not joined this node within {} s; are its program and its key the same?",
        HOST_DEADLINE.as_secs()
    );
    let mut hosts = supervisor.hosts().map_err(closed)?;
    loop {
        let found = hosts.iter().find(|host| match on {
            // The host was part of the node, and numbers are not given twice.
            StageLocation::Host(wanted) => host.number == wanted.number,
            StageLocation::HostNumber(number) => host.number == *number,
            StageLocation::HostNamed(name) => host.name == *name,
            _ => false,
        });
        if let Some(found) = found {
            return Ok(found.number);
        }
        let why = match on {
            _ if hosts.is_empty() => "this node has one host; start it with `Node::builder().hosts(..)`",
            StageLocation::Host(_) => "it is not of this node (any more)",
            StageLocation::HostNumber(number) if hosts.iter().any(|host| host.number > *number) => {
                "it is not of this node any more"
            }
            _ if Instant::now() >= until => late.as_str(),
            _ => {
                // Waits until the hosts are others, and not until there are more: one may leave before the
                // wanted one joins.
                let left = until.saturating_duration_since(Instant::now());
                hosts = supervisor.await_other_hosts(hosts, left).map_err(closed)?;
                continue;
            }
        };
        return Err(ActorError::Elsewhere { host: on.to_string(), why: why.to_owned() });
    }
}

/// Whether it is a host, and not a device of one.
fn names_a_host(on: &StageLocation) -> bool {
    on.is_host() && on.host() == on
}

impl Plan {
    /// Whether items for the stage, or orders of the pipeline to it, may come from other hosts: then one
    /// process, the gateway of its host, sends for several.
    pub(super) fn hears_other_hosts(&self, stage: usize) -> bool {
        let on = |stage: usize| Some(&self.stages[self.home(stage)].on).filter(|on| on.is_host());
        on(stage).is_some() || self.edges_to(stage).any(|(_, edge)| on(edge.from.stage).is_some())
    }

    /// Returns the mistakes in a stage that may be on another host.
    pub(super) fn host_mistakes(&self, index: usize) -> Vec<Mistake> {
        let (stage, home) = (&self.stages[index], &self.stages[self.home(index)]);
        if !(stage.on.is_host() || home.on.is_host()) {
            return Vec::new();
        }
        let device = !stage.on.is_host() && stage.on.to_string() != "host";
        let conflicts = [
            (
                stage.on.is_host() && stage.beside.is_some() && stage.on.host() != home.on.host(),
                "it is in the worker of another stage, and so on that one's host; leave `on` or `beside` out",
            ),
            (
                device,
                "it is in a worker of another host, and names a device of this one; name that host's with `.on((host, \"cuda:0\"))`, or leave `beside` out",
            ),
            (
                stage.on.host() != &stage.on && !names_a_host(stage.on.host()),
                "of the two that `on` names the first has to be a host, as in `.on((&host, \"cuda:0\"))`",
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
    fn line(on: [StageLocation; 3]) -> Plan {
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
        assert_eq!(
            mailboxes([StageLocation::default(), StageLocation::default(), StageLocation::default()]),
            [one, one]
        );
        // One sender and three senders, and in both cases the program.
        assert_eq!(
            mailboxes([StageLocation::default(), Anywhere.into(), StageLocation::default()]),
            [2 * one, 4 * one]
        );
        assert_eq!(
            mailboxes([StageLocation::HostNumber(1), StageLocation::default(), StageLocation::default()]),
            [2 * one, one]
        );
        assert_eq!(
            mailboxes([StageLocation::default(), StageLocation::default(), StageLocation::HostNumber(1)]),
            [one, 4 * one]
        );
    }
}
