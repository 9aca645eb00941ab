//! The typed part of a stage: starts its actor with the addresses of its receivers.

use std::marker::PhantomData;
use std::rc::Rc;

use tensorpost_core::api::actor::{Address, RemoteActor};
use tensorpost_core::api::device::Device;
#[cfg(feature = "foreign")]
use tensorpost_core::api::node::NodeBuilder;
use tensorpost_core::api::node::{ActorError, Node, Restart, Spawn};

use super::dead::DeadItem;
use super::hosts::Home;
use super::item::{EdgeMessage, Item};
use super::stages::Identity;
use super::traits::{Source, Stage};
use super::worker::args::{
    BranchArgs, Config, Control, Keys, OutletArgs, Pairer, PartnerArgs, Receiver, Run, Select, SourceArgs,
    StageArgs,
};
use super::worker::branch::overflow::OverflowArgs;
use super::worker::{SourceActor, StageActor};

/// The typed part of a stage, behind an interface without types.
pub(super) trait Work {
    /// Returns a function that starts a replica in a worker that is named later. Replicas that are added
    /// later start on another thread, which does not have the arguments.
    fn defer(&self, site: Site<'_>) -> Result<Starter, ActorError>;

    /// Returns a stage that passes on the items that this one makes.
    fn relay(&self) -> Rc<dyn Work>;
}

/// Starts a replica in a worker. Each call starts another one.
pub(super) type Starter = Box<dyn Fn(Home) -> Result<Started, ActorError> + Send + Sync>;

/// The parameters with which a replica is started.
pub(super) struct Site<'s> {
    pub(super) node: &'s Node,
    pub(super) device: Device,
    pub(super) mailbox: u32,
    pub(super) own_thread: bool,
    pub(super) restart: Restart,
    /// The name under which its senders look it up.
    pub(super) name: Option<String>,
    pub(super) config: Config,
    pub(super) results: Way<'s>,
    pub(super) dead: Way<'s>,
}

/// The way out of a replica.
pub(super) struct Way<'s> {
    pub(super) select: Select,
    pub(super) branches: Vec<WayTo<'s>>,
    pub(super) tell: Vec<PartnerArgs>,
    pub(super) tell_still: Vec<Pairer>,
    pub(super) source: u16,
    /// Whether the replica's program does not know the types of its items.
    pub(super) untyped: bool,
}

/// The way to another stage.
pub(super) struct WayTo<'s> {
    pub(super) stage: String,
    pub(super) index: u16,
    pub(super) lane: u32,
    pub(super) select: Select,
    pub(super) number: Option<u32>,
    pub(super) window: Option<u32>,
    pub(super) max_bytes: Option<u64>,
    pub(super) depth: usize,
    pub(super) restarts: bool,
    pub(super) settle_first: bool,
    pub(super) restarts_together: bool,
    pub(super) feedback: bool,
    pub(super) overflow: Option<OverflowArgs>,
    pub(super) to: Vec<Door<'s>>,
}

/// The way to a replica.
pub(super) enum Door<'s> {
    /// The address of the actor that takes the items.
    At(&'s Address<Control>),
    Named(String),
    /// The place has no replica, or one that may come and go.
    Nobody,
}

/// A replica that runs.
#[derive(Clone)]
pub(super) struct Started {
    pub(super) run: Address<Run>,
    pub(super) control: Address<Control>,
    /// The address of the actor that takes the items; none for sources.
    pub(super) inlet: Option<Address<Control>>,
    pub(super) keys: Keys,
}

/// A source.
pub(super) struct SourceWork<S: Source>(pub(super) S::Args);

/// A stage.
pub(super) struct StageWork<S: Stage>(pub(super) S::Args);

/// Adds the actor that runs a stage of Python to a worker's program.
#[cfg(feature = "foreign")]
pub fn stage_of_python<S: Stage<Args = crate::python::Order>>(builder: NodeBuilder) -> NodeBuilder {
    builder.actor_named::<StageActor<S>>(crate::python::STAGE)
}

/// As [`stage_of_python`], for a source.
#[cfg(feature = "foreign")]
pub fn source_of_python<S: Source<Args = crate::python::Order>>(builder: NodeBuilder) -> NodeBuilder {
    builder.actor_named::<SourceActor<S>>(crate::python::SOURCE)
}

impl<S: Source> Work for SourceWork<S> {
    fn defer(&self, site: Site<'_>) -> Result<Starter, ActorError> {
        let results = outlet::<S::Out>(&site.results);
        let args = SourceArgs { user: self.0.clone(), config: site.config.clone(), results };
        let (deferred, named) = (spawn::<SourceActor<S>>(&site, args).defer()?, site.device.id());
        let keys = site.config.keys;
        Ok(Box::new(move |Home { worker, device }| {
            let started = deferred.start_with(worker, device.unwrap_or(named))?;
            Ok(Started { run: started.address(), control: started.address(), inlet: None, keys })
        }))
    }

    fn relay(&self) -> Rc<dyn Work> {
        Rc::new(StageWork::<Identity<S::Out>>(PhantomData))
    }
}

impl<S: Stage> Work for StageWork<S> {
    fn defer(&self, site: Site<'_>) -> Result<Starter, ActorError> {
        let (results, dead) = (outlet::<S::Out>(&site.results), outlet::<DeadItem<S::In>>(&site.dead));
        let args = StageArgs::<S> { user: self.0.clone(), config: site.config.clone(), results, dead };
        let (deferred, named) = (spawn::<StageActor<S>>(&site, args).defer()?, site.device.id());
        let keys = site.config.keys;
        Ok(Box::new(move |Home { worker, device }| {
            let started = deferred.start_with(worker, device.unwrap_or(named))?;
            let inlet: Address<EdgeMessage<S::In>> = started.address();
            let (run, control, inlet) = (started.address(), started.address(), Some(inlet.cast()));
            Ok(Started { run, control, inlet, keys })
        }))
    }

    fn relay(&self) -> Rc<dyn Work> {
        Rc::new(StageWork::<Identity<S::Out>>(PhantomData))
    }
}

fn spawn<'s, A: RemoteActor>(site: &Site<'s>, args: A::Args) -> Spawn<'s, A> {
    let mut spawn = site.node.spawn::<A>(args).device(site.device.clone()).mailbox(site.mailbox);
    spawn = spawn.label(format!("{}.{}", site.config.stage, site.config.replica));
    if let Some(name) = &site.name {
        spawn = spawn.name(name);
    }
    spawn = spawn.restart(site.restart);
    if site.own_thread {
        spawn = spawn.own_thread();
    }
    spawn
}

fn outlet<T: Item>(way: &Way<'_>) -> OutletArgs {
    let receiver = |door: &Door<'_>| match door {
        Door::Named(name) => Receiver::Named(name.clone()),
        // Flows are typed, so this receiver takes the items of the flow.
        Door::At(address) => Receiver::At((*address).clone()),
        Door::Nobody => Receiver::Nobody,
    };
    let branch = |to: &WayTo<'_>| BranchArgs {
        stage: to.stage.clone(),
        index: to.index,
        lane: to.lane,
        key: way.untyped.then(Address::<EdgeMessage<T>>::usual_key),
        to: to.to.iter().map(receiver).collect(),
        select: to.select.clone(),
        number: to.number,
        window: to.window,
        max_bytes: to.max_bytes,
        depth: to.depth,
        feedback: to.feedback,
        overflow: to.overflow,
        restarts: to.restarts,
        settle_first: to.settle_first,
        restarts_together: to.restarts_together,
    };
    let branches = way.branches.iter().map(branch).collect();
    OutletArgs {
        select: way.select.clone(),
        branches,
        tell: way.tell.clone(),
        tell_still: way.tell_still.clone(),
        source: way.source,
    }
}
