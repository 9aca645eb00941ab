//! Actors in a worker: the table of the actor types that a program knows, and starting and stopping actors of
//! these types.

#[cfg(feature = "bindings")]
use std::any::type_name;
use std::collections::HashMap;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::task::Poll;

use actix::{Arbiter, AsyncContext, Context};
use futures_util::future::{FutureExt, LocalBoxFuture};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use super::blocking::Call;
use super::handles::Handles;
use super::inbox::{ActorInbox, Close, InboxTask, Running};
use super::linked::Table;
use super::receive::Receive;
use super::{Env, RemoteActor};
use crate::fault;
use crate::ids::{ActorId, DeviceId};
use crate::message::codec;
use crate::message::portable::Describe;
use crate::message::portable::interfaces::Interfaces;
use crate::observe::metrics::user::Owner;
use crate::os::{process, stack, vital};
use crate::stream::turn::Turn;
use crate::tensor::{DeviceStream, TensorError};
use crate::transport::Transport;
use crate::transport::control_channel::Location;
use crate::transport::lifecycle::{EndReason, RestartWhen};

/// Called once when an actor has ended, with the reason if it failed. The flag says whether its senders were
/// told to wait for another life.
pub(crate) type OnActorEnd = Box<dyn FnOnce(Option<EndReason>, bool) + Send>;

/// The actor types that a process knows: those that its program links, and some by names
/// that other programs use.
#[derive(Clone, Debug, Default)]
pub struct Program(HashMap<&'static str, ActorType>);

/// Starts an actor of one type, on this thread. Resolves when the actor takes messages.
type StartFn = fn(Starting) -> LocalBoxFuture<'static, Result<(), String>>;

/// All that starting an actor needs: its environment, the device of its tensors, its arguments, its settings,
/// and the callback for its end.
struct Starting {
    env: Env,
    receive: Receive,
    args: Vec<u8>,
    how: How,
    ended: OnActorEnd,
    live: LiveActors,
}

/// How to start actors of a type.
#[derive(Clone, Debug)]
pub(super) struct ActorType {
    start: StartFn,
    /// The portable messages that the type takes.
    portable: Vec<Describe>,
}

impl ActorType {
    pub(super) fn of<A: RemoteActor>() -> Self {
        let portable = Handles::<A>::of().portable();
        ActorType { start: |starting| start::<A>(starting).boxed_local(), portable }
    }
}

/// The settings of a running actor.
#[derive(Clone, Copy, Debug)]
pub(super) struct How {
    /// Whether the process's reader is on another thread than the actor.
    pub(super) own_thread: bool,
    pub(super) restarts: RestartWhen,
}

/// The actors of a process, to be stopped while they run or get ready. For an actor that has ended it keeps
/// nothing, least of all its stream's clock.
#[derive(Clone, Default)]
struct LiveActors(Arc<Mutex<Vec<Weak<dyn Close>>>>);

impl LiveActors {
    fn add(&self, actor: Arc<dyn Close>) {
        let mut all = self.0.lock();
        all.retain(|live| live.strong_count() > 0);
        all.push(Arc::downgrade(&actor));
    }
}

impl Program {
    /// Adds an actor type under the name of a type in other programs.
    #[cfg(feature = "bindings")]
    pub(crate) fn register_as<A: RemoteActor, Other: RemoteActor>(&mut self) {
        self.register_named::<A>(type_name::<Other>());
    }

    /// Adds an actor type under the name by which other programs know it.
    #[cfg(feature = "bindings")]
    pub(crate) fn register_named<A: RemoteActor>(&mut self, name: &'static str) {
        self.0.insert(name, ActorType::of::<A>());
    }

    /// Finds a type by its key, if this program named it, or by its name, if another program did.
    fn find(&self, key: u64, name: &str) -> Option<&ActorType> {
        let linked = Table::get();
        let by_path = || linked.types.get(&(*linked.by_path.get(name)?)?);
        self.0.get(name).or_else(|| linked.types.get(&key)).or_else(by_path)
    }

    /// Returns the schemas of the portable messages that the process's actors take.
    pub(crate) fn interfaces(&self) -> Interfaces {
        let types = self.0.values().chain(Table::get().types.values());
        Interfaces::of(types.flat_map(|kind| kind.portable.iter().copied()))
    }
}

/// Returns the keys of the messages that `A` lists, in order.
pub(crate) fn takes<A: RemoteActor>() -> Arc<[u64]> {
    Handles::<A>::of().sorted().collect()
}

/// Returns the keys of the messages that `A` takes, in order, if this program knows all of them. For a type
/// of another program, only that program knows them.
pub(crate) fn takes_only<A: RemoteActor>() -> Option<Vec<u64>> {
    let handles = Handles::<A>::of();
    let knows_all = A::WIRE_NAME.is_none() && !A::TAKES_ANY && !handles.takes_any();
    knows_all.then(|| handles.sorted().collect())
}

/// Creates and starts an actor on this thread. The thread has an actix system, and ends with the actor if it
/// is the actor's own.
async fn start<A: RemoteActor>(start: Starting) -> Result<(), String> {
    let Starting { env, receive, args, how, ended, live } = start;
    if let Some(why) = Handles::<A>::of().refusal() {
        return Err(why);
    }
    let context: Arc<dyn std::any::Any + Send + Sync> = env.transport.clone();
    let args = codec::decode::<A::Args>(&args, Vec::new(), Some(context));
    let args = args.map_err(|error| format!("its arguments cannot be read: {error}"))?;
    let inbox = ActorInbox::<A>::new(&env, receive, how);
    // The mailbox is served before `create`, so messages that `create` causes are there when the actor
    // starts.
    env.transport.serve_at(env.location.index, inbox.clone()).map_err(|error| error.to_string())?;
    live.add(Arc::clone(&inbox) as _);
    // A caller that asked for the stop is told when this drops: here, or after the actor.
    let running = Running::new(Arc::clone(&inbox));
    let owner = Owner::new(env.actor, &env.name);
    if how.own_thread {
        owner.own_thread();
    }
    let created = {
        // In a turn, so that its sends are published together. In a call, so that it cannot wait for the very
        // reader that it keeps from running.
        let (_turn, _owner) = (Turn::begin(), owner.enter());
        let _call = Call::begin(how.own_thread);
        fault::point("worker.create");
        catch_unwind(AssertUnwindSafe(|| <A as RemoteActor>::create(args, &env)))
    };
    let prepared = match created {
        Ok(Ok(mut actor)) => prepare(&mut actor, &env, &inbox, &owner).await.map(|()| actor),
        Ok(Err(error)) => Err(format!("{error:#}")),
        Err(panic) => Err(format!("`create` panicked: {}", vital::panic_text(panic.as_ref()))),
    };
    let actor = match prepared {
        Ok(actor) => actor,
        Err(why) => {
            env.transport.withdraw(env.location.index);
            inbox.shut(false);
            return Err(why);
        }
    };
    let mut ctx = Context::new();
    ctx.spawn(InboxTask::new(inbox, ended));
    let life = async move {
        // Declared before the actor, so dropped after it.
        let _running = running;
        let mut life = pin!(ctx.into_future(actor));
        poll_fn(|task| {
            let _owner = owner.enter();
            life.as_mut().poll(task)
        })
        .await;
        if how.own_thread {
            Arbiter::current().stop();
        }
    };
    // Boxed, so that tokio's code for a task is compiled once, and not for each type of actor.
    actix::spawn(life.boxed_local());
    Ok(())
}

/// Lets an actor get itself ready, while messages wait in its mailbox. Ends early if the actor is told to
/// stop or fail.
async fn prepare<A: RemoteActor>(
    actor: &mut A,
    env: &Env,
    inbox: &ActorInbox<A>,
    owner: &Owner,
) -> Result<(), String> {
    let preparing = async { <A as RemoteActor>::prepare(actor, env).await };
    let mut preparing = pin!(AssertUnwindSafe(preparing).catch_unwind());
    poll_fn(|task| {
        if let Some(why) = inbox.told_to_end(task.waker()) {
            return Poll::Ready(Err(format!("it ended before it was ready: {why}")));
        }
        let _owner = owner.enter();
        preparing.as_mut().poll(task).map(|prepared| match prepared {
            Ok(prepared) => prepared.map_err(|error| format!("{error:#}")),
            Err(panic) => Err(format!("`prepare` panicked: {}", vital::panic_text(panic.as_ref()))),
        })
    })
    .await
}

/// Returns the last part of a type's path, without its arguments.
pub(crate) fn short(type_name: &str) -> &str {
    let end = type_name.find('<').unwrap_or(type_name.len());
    type_name[..end].rsplit("::").next().unwrap_or(type_name)
}

/// A program that a worker runs, if it is another than the node's.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct WorkerProgram {
    /// Searched for as a shell does it.
    pub path: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// Variables that are added to those of the node's process.
    pub environment: Vec<(String, String)>,
    /// Advice for an error's text, if the program does not start.
    pub remedy: &'static str,
}

/// The description of an actor, which all of its lives share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewActor {
    /// The name under which the registry finds it. Without one it is only known by its address.
    pub name: Option<String>,
    /// The text that people see. By default the name, or that of the type.
    pub label: Option<String>,
    /// The path of its type, or the name by which another program knows it.
    pub type_name: String,
    /// The type, in processes of the same program file.
    pub type_key: u64,
    /// Its encoded arguments. Together with all other fields they must fit into a message to the worker, or
    /// the node refuses the actor.
    #[serde(with = "codec::bytes")]
    pub args: Vec<u8>,
    /// The device that the actor works on.
    pub device: DeviceId,
    /// The device that the tensors of its messages are copied to.
    pub receive_on: Option<DeviceId>,
    /// Whether the actor gets a thread of its own.
    pub own_thread: bool,
    /// Messages that one sending process may have unhandled in its mailbox.
    pub capacity: u32,
    /// The keys of the messages that it handles, in order, if the node's program knows them.
    pub takes: Option<Vec<u64>>,
}

impl NewActor {
    /// Returns the text that people see.
    pub(crate) fn shown_as(&self) -> &str {
        self.label.as_deref().or(self.name.as_deref()).unwrap_or_else(|| short(&self.type_name))
    }
}

/// An order to start a life of an actor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartActor {
    /// The actor's id.
    pub actor: ActorId,
    /// The place where it lives: in this process, under an index that no other living actor of the process
    /// has.
    pub location: Location,
    /// The actor's description.
    pub made_of: NewActor,
    /// The number of this life of the actor, from 0.
    pub life: u32,
    /// The conditions under which it is restarted.
    pub restarts: RestartWhen,
}

/// The transport of a process, and the actors of a worker.
pub(crate) struct ProcessActors {
    program: Program,
    transport: Arc<Transport>,
    live: LiveActors,
}

impl ProcessActors {
    pub(crate) fn new(program: Program, transport: Arc<Transport>) -> Self {
        ProcessActors { program, transport, live: LiveActors::default() }
    }

    pub(crate) fn transport(&self) -> &Arc<Transport> {
        &self.transport
    }

    /// Opens a device, so that an actor on it starts sooner: opens its context, and a stream with the
    /// process's clock page.
    pub(crate) fn warm_up(&self, device: DeviceId) -> Result<(), TensorError> {
        let pool = self.transport.pool_for(device)?;
        // The next stream on the device is this one again.
        DeviceStream::new(pool, Arc::clone(self.transport.domain())).map(drop)
    }

    /// Starts an actor, on this thread or on one of its own.
    pub(crate) async fn start(&self, start: StartActor, ended: OnActorEnd) -> Result<(), String> {
        let StartActor { actor, location, made_of, life, restarts } = start;
        let name = made_of.shown_as().to_owned();
        let NewActor { type_name, type_key, args, device, receive_on, own_thread, .. } = made_of;
        let Some(kind) = self.program.find(type_key, &type_name) else {
            return Err(format!(
                "this worker's program has no actor type {type_name}: it is another one than that which spawns it, or an older build"
            ));
        };
        let pool = self.transport.pool_for(device).map_err(|error| error.to_string())?;
        let stream = DeviceStream::new(pool, Arc::clone(self.transport.domain()))
            .map_err(|error| error.to_string())?;
        let receive =
            Receive::new(&stream, receive_on, &self.transport).map_err(|error| error.to_string())?;
        let env = Env {
            transport: Arc::clone(&self.transport),
            stream,
            name,
            actor,
            location,
            life,
            tally: Arc::default(),
            #[cfg(feature = "bindings")]
            comes_back: restarts.after(true),
        };
        let make = kind.start;
        let how = How { own_thread, restarts };
        let starting = Starting { env, receive, args, how, ended, live: self.live.clone() };
        if !own_thread {
            return make(starting).await;
        }
        let arbiter = Arbiter::new();
        let (result, started) = oneshot::channel();
        let spawned = arbiter.spawn_fn(move || {
            process::show_thread_as(&starting.env.name);
            stack::watch();
            actix::spawn(async move {
                // The receiver is this function. It can only be gone if the worker is ending.
                let _ = result.send(make(starting).await);
            });
        });
        if !spawned {
            return Err("its thread could not be started".into());
        }
        let started = started.await.map_err(|_| "its thread ended before it was created".to_owned());
        // Only an actor ends its thread, and here there is none.
        if !matches!(started, Ok(Ok(()))) {
            arbiter.stop();
        }
        started?
    }

    /// Stops all actors, each after the messages that are in its mailbox.
    pub(crate) async fn stop(&self) {
        let live = std::mem::take(&mut *self.live.0.lock());
        let running = live.iter().filter_map(Weak::upgrade);
        let stopped: Vec<_> = running.map(|actor| actor.close()).collect();
        for stopped in stopped {
            // An error means that the actor had ended already.
            let _ = stopped.await;
        }
    }
}
