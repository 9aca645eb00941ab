//! Actors in a worker: the table of the types that a program knows; starting and stopping actors of these types.

use std::any::type_name;
use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};

use actix::{Arbiter, AsyncContext, Context};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::handles::Handles;
use super::inbox::{ActorInbox, Close, InboxTask, Running};
use super::receive::Receive;
use super::{Env, RemoteActor};
use crate::fault;
use crate::ids::{ActorId, DeviceId};
use crate::message::codec;
use crate::os::vital;
use crate::stream::turn::Turn;
use crate::tensor::DeviceStream;
use crate::transport::Transport;
use crate::transport::control_channel::Location;
use crate::transport::lifecycle::{EndReason, RestartWhen};

/// Called once when an actor has ended, with the reason if it was a failure, and whether its senders were told to wait for
/// another life.
pub(crate) type OnActorEnd = Box<dyn FnOnce(Option<EndReason>, bool) + Send>;

/// The actor types of a program; the same in the node and in every worker.
#[derive(Clone, Debug, Default)]
pub struct Program {
    types: HashMap<&'static str, ActorType>,
}

/// Starts an actor of one type: its environment, where its tensors have to be, its arguments, how.
type StartFn = fn(Env, Receive, &[u8], How, OnActorEnd) -> Result<Hosted, String>;

#[derive(Clone, Debug)]
struct ActorType {
    start: StartFn,
    keys: Vec<(&'static str, u64)>,
}

/// How an actor is run.
#[derive(Clone, Copy, Debug)]
struct How {
    own_thread: bool,
    restarts: RestartWhen,
}

/// An actor, to be stopped while it runs. Of one that has ended it keeps nothing, its stream's clock least of all.
pub(crate) struct Hosted(Weak<dyn Close>);

impl Program {
    /// Adds an actor type.
    pub(crate) fn register<A: RemoteActor>(&mut self) {
        let start = ActorType { start: start::<A>, keys: Handles::<A>::of().keys() };
        self.types.insert(type_name::<A>(), start);
    }

    /// Whether the type is known.
    pub(crate) fn knows(&self, type_name: &str) -> bool {
        self.types.contains_key(type_name)
    }

    /// Differs between programs with other actor or message types.
    pub(crate) fn fingerprint(&self) -> u64 {
        let mut types: Vec<_> = self.types.iter().map(|(name, kind)| (*name, &kind.keys)).collect();
        types.sort_unstable();
        // SipHash with fixed keys: the same in every process of one build.
        let mut hasher = DefaultHasher::new();
        types.hash(&mut hasher);
        hasher.finish()
    }
}

/// Whether `A` lists the message with this key.
pub(crate) fn takes<A: RemoteActor>(key: u64) -> bool {
    Handles::<A>::of().takes(key)
}

/// Creates and starts an actor on this thread, which has an actix system and ends with the actor if it is its own.
fn start<A: RemoteActor>(
    env: Env,
    receive: Receive,
    args: &[u8],
    how: How,
    ended: OnActorEnd,
) -> Result<Hosted, String> {
    let context: Arc<dyn std::any::Any + Send + Sync> = env.transport.clone();
    let args = codec::decode::<A::Args>(args, Vec::new(), Some(context));
    let args = args.map_err(|error| format!("its arguments cannot be read: {error}"))?;
    let inbox = ActorInbox::<A>::new(&env, receive, how.restarts);
    // Before `create`, so that what it sends to itself, or has others send, is there when it starts.
    env.transport.serve_at(env.location.index, inbox.clone()).map_err(|error| error.to_string())?;
    let created = {
        let _turn = Turn::begin();
        fault::point("worker.create");
        catch_unwind(AssertUnwindSafe(|| <A as RemoteActor>::create(args, &env)))
    };
    let why = match created {
        Ok(Ok(actor)) => {
            let mut ctx = Context::new();
            ctx.spawn(InboxTask::new(Arc::clone(&inbox), ended));
            let hosted: Weak<dyn Close> = Arc::downgrade(&(Arc::clone(&inbox) as _));
            actix::spawn(async move {
                // Before the actor in the order of declaration, so dropped after it.
                let _running = Running::new(inbox);
                ctx.into_future(actor).await;
                if how.own_thread {
                    Arbiter::current().stop();
                }
            });
            return Ok(Hosted(hosted));
        }
        Ok(Err(error)) => format!("{error:#}"),
        Err(panic) => format!("`create` panicked: {}", vital::panic_text(panic.as_ref())),
    };
    env.transport.withdraw(env.location.index);
    Err(why)
}

/// An order to start an actor.
pub(crate) struct Start {
    pub(crate) actor: ActorId,
    pub(crate) location: Location,
    pub(crate) name: String,
    pub(crate) type_name: String,
    pub(crate) args: Vec<u8>,
    pub(crate) device: DeviceId,
    pub(crate) receive_on: Option<DeviceId>,
    pub(crate) own_thread: bool,
    /// Which life of the actor this is, from 0.
    pub(crate) life: u32,
    pub(crate) restarts: RestartWhen,
}

/// The actors of one worker.
pub(crate) struct WorkerActors {
    program: Program,
    transport: Arc<Transport>,
    hosted: Mutex<Vec<Hosted>>,
}

impl WorkerActors {
    pub(crate) fn new(program: Program, transport: Arc<Transport>) -> Self {
        WorkerActors { program, transport, hosted: Mutex::default() }
    }

    /// Starts an actor, on this thread or on one of its own.
    pub(crate) async fn start(&self, start: Start, ended: OnActorEnd) -> Result<(), String> {
        let Some(kind) = self.program.types.get(start.type_name.as_str()) else {
            return Err(format!(
                "this program does not know the actor type {}; add it with `Node::builder().actor::<…>()`",
                start.type_name
            ));
        };
        let pool = self.transport.pool_for(start.device).map_err(|error| error.to_string())?;
        let stream = DeviceStream::new(pool, Arc::clone(self.transport.domain()))
            .map_err(|error| error.to_string())?;
        let receive =
            Receive::new(&stream, start.receive_on, &self.transport).map_err(|error| error.to_string())?;
        let env = Env {
            transport: Arc::clone(&self.transport),
            stream,
            name: start.name,
            actor: start.actor,
            location: start.location,
            life: start.life,
        };
        let make = kind.start;
        let how = How { own_thread: start.own_thread, restarts: start.restarts };
        let hosted = if start.own_thread {
            let arbiter = Arbiter::new();
            let (result, started) = oneshot::channel();
            let spawned = arbiter.spawn_fn(move || {
                // Whoever waits is this function; it can only be gone if the worker is ending.
                let _ = result.send(make(env, receive, &start.args, how, ended));
            });
            if !spawned {
                return Err("its thread could not be started".into());
            }
            let started = started.await.map_err(|_| "its thread ended before it was created".to_owned());
            if !matches!(started, Ok(Ok(_))) {
                arbiter.stop();
            }
            started??
        } else {
            make(env, receive, &start.args, how, ended)?
        };
        let mut all = self.hosted.lock();
        all.retain(|hosted| hosted.0.strong_count() > 0);
        all.push(hosted);
        Ok(())
    }

    /// Stops all actors, each after the messages that are in its mailbox.
    pub(crate) async fn stop(&self) {
        let hosted = std::mem::take(&mut *self.hosted.lock());
        let running = hosted.iter().filter_map(|hosted| hosted.0.upgrade());
        let stopped: Vec<_> = running.map(|actor| actor.close()).collect();
        for stopped in stopped {
            // An error is an actor that had ended already.
            let _ = stopped.await;
        }
    }
}
