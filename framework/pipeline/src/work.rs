//! The typed part of a stage: starts its actor with the addresses of its receivers.

use std::marker::PhantomData;
use std::rc::Rc;

use tensorpost_core::api::actor::{Address, RemoteActor};
use tensorpost_core::api::device::Device;
#[cfg(feature = "bindings")]
use tensorpost_core::api::node::NodeBuilder;
use tensorpost_core::api::node::{ActorError, Node, Restart, Spawn};

use super::dead::DeadItem;
use super::hosts::Home;
use super::item::{EdgeMessage, Item};
use super::stages::Identity;
use super::traits::{Source, Stage};
use super::worker::args::{Config, Control, Keys, OutletArgs, Run};
use super::worker::stage_args::{SourceArgs, StageArgs};
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
    pub(super) results: OutletArgs,
    pub(super) dead: OutletArgs,
    /// Whether the replica's program does not know the types of its items.
    pub(super) untyped: bool,
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
#[cfg(feature = "bindings")]
pub fn stage_of_python<S: Stage<Args = crate::python::PythonStage>>(builder: NodeBuilder) -> NodeBuilder {
    builder.actor_named::<StageActor<S>>(crate::python::STAGE)
}

/// As [`stage_of_python`], for a source.
#[cfg(feature = "bindings")]
pub fn source_of_python<S: Source<Args = crate::python::PythonStage>>(builder: NodeBuilder) -> NodeBuilder {
    builder.actor_named::<SourceActor<S>>(crate::python::SOURCE)
}

impl<S: Source> Work for SourceWork<S> {
    fn defer(&self, site: Site<'_>) -> Result<Starter, ActorError> {
        let results = keyed::<S::Out>(&site, &site.results);
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
        let results = keyed::<S::Out>(&site, &site.results);
        let dead = keyed::<DeadItem<S::In>>(&site, &site.dead);
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

/// Returns an output for items of type `T`, with the key of their messages if the replica's program does not
/// know it.
fn keyed<T: Item>(site: &Site<'_>, output: &OutletArgs) -> OutletArgs {
    let key = site.untyped.then(Address::<EdgeMessage<T>>::usual_key);
    let mut output = output.clone();
    output.branches.iter_mut().for_each(|branch| branch.key = key);
    output
}
