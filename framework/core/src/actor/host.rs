//! Actors in a worker: the table of the types that a program knows; starting and stopping actors of these
//! types.

#[cfg(feature = "foreign")]
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

use super::handles::Handles;
use super::inbox::{ActorInbox, Close, InboxTask, Running};
use super::linked::Table;
use super::receive::Receive;
use super::standing::Call;
use super::{Env, RemoteActor};
use crate::fault;
use crate::ids::{ActorId, DeviceId};
use crate::message::codec;
use crate::message::portable::Describe;
use crate::message::portable::interfaces::Interfaces;
use crate::observe::metrics::user::Owner;
use crate::os::{process, vital};
use crate::stream::turn::Turn;
use crate::tensor::{DeviceStream, TensorError};
use crate::transport::Transport;
use crate::transport::control_channel::Location;
use crate::transport::lifecycle::{EndReason, RestartWhen};

/// Called once when an actor has ended, with the reason if it was a failure, and whether its senders were
/// told to wait for another life.
pub(crate) type OnActorEnd = Box<dyn FnOnce(Option<EndReason>, bool) + Send>;

/// The actor types that a process knows: those that its program [links](super::linked), and some by names of
/// other programs'.
#[derive(Clone, Debug, Default)]
pub struct Program(HashMap<&'static str, ActorType>);

/// Starts an actor of one type, on this thread; done when it takes messages.
type StartFn = fn(Starting) -> LocalBoxFuture<'static, Result<(), String>>;

/// What an actor is started with: its environment, where its tensors have to be, its arguments, how; whom it
/// tells.
struct Starting {
    env: Env,
    receive: Receive,
    args: Vec<u8>,
    how: How,
    ended: OnActorEnd,
    hosted: Hosted,
}

/// How actors of a type are started.
#[derive(Clone, Debug)]
pub(super) struct ActorType {
    start: StartFn,
    /// The portable messages that they take.
    portable: Vec<Describe>,
}

impl ActorType {
    pub(super) fn of<A: RemoteActor>() -> Self {
        let portable = Handles::<A>::of().portable();
        ActorType { start: |starting| start::<A>(starting).boxed_local(), portable }
    }
}

/// How an actor is run.
#[derive(Clone, Copy, Debug)]
pub(super) struct How {
    /// Whether the process's reader is on another thread than the actor.
    pub(super) own_thread: bool,
    pub(super) restarts: RestartWhen,
}

/// The actors of a process, to be stopped while they run or get ready. Of one that has ended it keeps
/// nothing, its stream's clock least of all.
#[derive(Clone, Default)]
struct Hosted(Arc<Mutex<Vec<Weak<dyn Close>>>>);

impl Hosted {
    fn add(&self, actor: Arc<dyn Close>) {
        let mut all = self.0.lock();
        all.retain(|hosted| hosted.strong_count() > 0);
        all.push(Arc::downgrade(&actor));
    }
}

impl Program {
    /// Adds an actor type under the name of another one, which is in other programs.
    #[cfg(feature = "foreign")]
    pub(crate) fn register_as<A: RemoteActor, Other: RemoteActor>(&mut self) {
        self.register_named::<A>(type_name::<Other>());
    }

    /// Adds an actor type under the name that other programs know it by.
    #[cfg(feature = "foreign")]
    pub(crate) fn register_named<A: RemoteActor>(&mut self, name: &'static str) {
        self.0.insert(name, ActorType::of::<A>());
    }

    /// By its key, if the program that named it is this one; by its name, if that is another.
    fn find(&self, key: u64, name: &str) -> Option<&ActorType> {
        let linked = Table::get();
        let by_path = || linked.types.get(&(*linked.by_path.get(name)?)?);
        self.0.get(name).or_else(|| linked.types.get(&key)).or_else(by_path)
    }

    /// The schemas of the portable messages that its actors take.
    pub(crate) fn interfaces(&self) -> Interfaces {
        let types = self.0.values().chain(Table::get().types.values());
        Interfaces::of(types.flat_map(|kind| kind.portable.iter().copied()))
    }
}

/// The keys of the messages that `A` lists, in order.
pub(crate) fn takes<A: RemoteActor>() -> Arc<[u64]> {
    Handles::<A>::of().sorted().collect()
}

/// The keys of the messages that `A` takes, in order, where this program knows all: what another program's
/// actors of that name handle, that one knows.
pub(crate) fn takes_only<A: RemoteActor>() -> Option<Vec<u64>> {
    let handles = Handles::<A>::of();
    let knows_all = A::ELSEWHERE.is_none() && !A::TAKES_ANY && !handles.takes_any();
    knows_all.then(|| handles.sorted().collect())
}

/// Creates and starts an actor on this thread, which has an actix system and ends with the actor if it is its
/// own.
async fn start<A: RemoteActor>(start: Starting) -> Result<(), String> {
    let Starting { env, receive, args, how, ended, hosted } = start;
    if let Some(why) = Handles::<A>::of().refusal() {
        return Err(why);
    }
    let context: Arc<dyn std::any::Any + Send + Sync> = env.transport.clone();
    let args = codec::decode::<A::Args>(&args, Vec::new(), Some(context));
    let args = args.map_err(|error| format!("its arguments cannot be read: {error}"))?;
    let inbox = ActorInbox::<A>::new(&env, receive, how);
    // Before `create`, so that what it sends to itself, or has others send, is there when it starts.
    env.transport.serve_at(env.location.index, inbox.clone()).map_err(|error| error.to_string())?;
    hosted.add(Arc::clone(&inbox) as _);
    // Whoever asks for its stop is told when this drops: here, or behind the actor.
    let running = Running::new(Arc::clone(&inbox));
    let owner = Owner::new(env.actor, &env.name);
    if how.own_thread {
        owner.own_thread();
    }
    let created = {
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
        // Before the actor in the order of declaration, so dropped after it.
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
    // Boxed, so that what tokio has of a task is compiled once, and not for each type of actor.
    actix::spawn(life.boxed_local());
    Ok(())
}

/// Has an actor get itself ready, while messages wait in its mailbox. Ends early where the actor is to stop
/// or to fail.
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

/// The last part of a type's path, without its arguments.
pub(crate) fn short(type_name: &str) -> &str {
    let end = type_name.find('<').unwrap_or(type_name.len());
    type_name[..end].rsplit("::").next().unwrap_or(type_name)
}

/// A program that a worker runs, other than that of its node.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct WorkerProgram {
    /// Looked for as a shell does it.
    pub path: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// Variables beside those of the node's process.
    pub environment: Vec<(String, String)>,
    /// What to do where it does not start, to be put behind an error's text.
    pub remedy: &'static str,
}

/// What an actor is made of, in each of its lives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewActor {
    /// A name to find it by in the registry; without one it is only known by its address.
    pub name: Option<String>,
    /// What people see; its name, or that of its type, where nothing is said.
    pub label: Option<String>,
    /// The path of its type, or the name that another program knows it by.
    pub type_name: String,
    /// The type, in processes of the same program file.
    pub type_key: u64,
    /// Its encoded arguments. With everything else they have to fit a message to the worker, or the node
    /// refuses.
    #[serde(with = "codec::bytes")]
    pub args: Vec<u8>,
    /// The device that it works on.
    pub device: DeviceId,
    /// The device that the tensors of its messages are copied to.
    pub receive_on: Option<DeviceId>,
    /// Whether it gets a thread of its own.
    pub own_thread: bool,
    /// Messages that one sending process may have unhandled in its mailbox.
    pub capacity: u32,
    /// The keys of the messages that it handles, in order, where the node's program knows them.
    pub takes: Option<Vec<u64>>,
}

impl NewActor {
    /// What people see.
    pub(crate) fn shown_as(&self) -> &str {
        self.label.as_deref().or(self.name.as_deref()).unwrap_or_else(|| short(&self.type_name))
    }
}

/// An order to start a life of an actor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartActor {
    /// Its id.
    pub actor: ActorId,
    /// Where it lives: in this process, under an index that no other living actor of the process has.
    pub location: Location,
    /// The actor.
    pub made_of: NewActor,
    /// Which life of the actor this is, from 0.
    pub life: u32,
    /// When it is started anew.
    pub restarts: RestartWhen,
}

/// The transport of a process, and the actors of a worker.
pub(crate) struct ProcessActors {
    program: Program,
    transport: Arc<Transport>,
    hosted: Hosted,
}

impl ProcessActors {
    pub(crate) fn new(program: Program, transport: Arc<Transport>) -> Self {
        ProcessActors { program, transport, hosted: Hosted::default() }
    }

    pub(crate) fn transport(&self) -> &Arc<Transport> {
        &self.transport
    }

    /// Opens a device, so that an actor on it starts sooner: its context, and a stream with the process's
    /// clock page.
    pub(crate) fn warm_up(&self, device: DeviceId) -> Result<(), TensorError> {
        let pool = self.transport.pool_for(device)?;
        // The next stream on the device is the same again.
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
            #[cfg(feature = "foreign")]
            comes_back: restarts.after(true),
        };
        let make = kind.start;
        let how = How { own_thread, restarts };
        let starting = Starting { env, receive, args, how, ended, hosted: self.hosted.clone() };
        if !own_thread {
            return make(starting).await;
        }
        let arbiter = Arbiter::new();
        let (result, started) = oneshot::channel();
        let spawned = arbiter.spawn_fn(move || {
            process::show_thread_as(&starting.env.name);
            actix::spawn(async move {
                // Whoever waits is this function; it can only be gone if the worker is ending.
                let _ = result.send(make(starting).await);
            });
        });
        if !spawned {
            return Err("its thread could not be started".into());
        }
        let started = started.await.map_err(|_| "its thread ended before it was created".to_owned());
        if !matches!(started, Ok(Ok(()))) {
            arbiter.stop();
        }
        started?
    }

    /// Stops all actors, each after the messages that are in its mailbox.
    pub(crate) async fn stop(&self) {
        let hosted = std::mem::take(&mut *self.hosted.0.lock());
        let running = hosted.iter().filter_map(Weak::upgrade);
        let stopped: Vec<_> = running.map(|actor| actor.close()).collect();
        for stopped in stopped {
            // An error is an actor that had ended already.
            let _ = stopped.await;
        }
    }
}
