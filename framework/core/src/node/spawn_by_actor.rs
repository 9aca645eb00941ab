//! Actors that actors start.
//!
//! The node starts them and supervises them, as those of the program. The actor that asks gets a handle, and
//! its own end changes nothing for them.

use std::any::type_name;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;

use super::control::encode;
use super::limits::MAX_START_REQUEST;
use super::spawn::{ActorError, Spawn};
use super::spawned::Spawned;
use super::supervisor::{NodeClosed, StartError, StartPlace, StartRequest, WorkerId, too_long};
use crate::actor::{Env, RemoteActor, takes, would_block};
use crate::transport::Transport;
use crate::transport::control_channel::{ControlChannelClosed, StartedActor};

impl Env {
    /// Prepares the start of an actor, by default in a worker process of its own. The node supervises it like
    /// one that the program starts. It lives on when this actor ends; to end it, send it a message on which
    /// it stops. A worker of its own ends with its last actor. Await the spawn to start it.
    ///
    /// ```
    /// use tensorpost::prelude::*;
    ///
    /// #[derive(Serialize, Deserialize, GpuMessage)]
    /// #[gpu_message(reply = u64)]
    /// struct Square(u64);
    ///
    /// struct Worker;
    ///
    /// #[actor]
    /// impl Worker {
    ///     fn create(_: (), _: &Env) -> Self {
    ///         Worker
    ///     }
    ///
    ///     #[handler]
    ///     fn square(&mut self, Square(number): Square) -> u64 {
    ///         number * number
    ///     }
    /// }
    ///
    /// /// Has a worker of its own for each question.
    /// struct Master {
    ///     env: Env,
    /// }
    ///
    /// #[actor]
    /// impl Master {
    ///     fn create(_: (), env: &Env) -> Self {
    ///         Master { env: env.clone() }
    ///     }
    ///
    ///     #[handler]
    ///     fn square(&mut self, question: Square) -> ResponseFuture<u64> {
    ///         let env = self.env.clone();
    ///         Box::pin(async move {
    ///             match env.spawn::<Worker>(()).restart(Restart::on_failure(3)).await {
    ///                 Ok(worker) => worker.ask(question).await.unwrap_or(0),
    ///                 Err(error) => {
    ///                     eprintln!("{error}");
    ///                     0
    ///                 }
    ///             }
    ///         })
    ///     }
    /// }
    ///
    /// # fn main() -> anyhow::Result<()> {
    /// let node = Node::builder().start()?;
    /// let master = node.spawn::<Master>(()).start()?;
    /// assert_eq!(node.block_on(master.ask(Square(7)))?, 49);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ActorError`] says what is wrong: with the arguments, the worker, or what `create` or `prepare`
    /// returned. One process has at most 64 starts under way, and a request with its arguments at most 64
    /// KiB. The node keeps at most 8 MiB of the actors that the actors of one worker have started. An actor
    /// whose worker is given must be in this actor's worker ([`here`](Spawn::here)) or in one that was
    /// started for an actor of it. An actor in Python is started by the program, or by another one in Python.
    pub fn spawn<A: RemoteActor>(&self, args: A::Args) -> Spawn<'_, A, Env> {
        Spawn::new(self, args)
    }
}

impl<A: RemoteActor> Spawn<'_, A, Env> {
    /// Starts it in the worker of the actor that starts it, which takes no new process.
    pub fn here(mut self) -> Self {
        self.here = true;
        self
    }

    /// Encodes the request to the node.
    fn request(self) -> Result<Vec<u8>, ActorError> {
        self.check()?;
        if A::worker_program(&self.args).is_some() || A::WIRE_NAME.is_some() {
            return Err(ActorError::OtherProgram(type_name::<A>()));
        }
        if self.how.restart.roams() {
            let why =
                "an actor that an actor starts stays on its host; leave `on_other_hosts` out of its policy";
            return Err(ActorError::Refused(why.to_owned()));
        }
        let place = match self.worker {
            Some(worker) => StartPlace::In(worker),
            None if self.here => StartPlace::Here,
            None => {
                StartPlace::New { name: self.shown_as(), streams: self.streams, gpu_budget: self.gpu_budget }
            }
        };
        if self.spares > 0 && !matches!(place, StartPlace::New { .. }) {
            let why = "spare workers replace a worker of the actor's own; leave `spares` out, or `worker` and `here`";
            return Err(ActorError::Refused(why.to_owned()));
        }
        let (spares, transport) = (self.spares, Arc::clone(&self.by.transport));
        let (actor, how) = self.describe(&transport)?;
        let request = StartRequest { place, actor, restart: how.restart, spares };
        let request = encode(&request).map_err(|error| ActorError::Refused(error.to_string()))?;
        if request.len() > MAX_START_REQUEST {
            return Err(ActorError::Refused(too_long(request.len())));
        }
        Ok(request)
    }
}

impl<A: RemoteActor> IntoFuture for Spawn<'_, A, Env> {
    type Output = Result<Spawned<A>, ActorError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        let transport = Arc::clone(&self.by.transport);
        let request = self.request();
        Box::pin(async move {
            let StartedActor { actor, location, worker } = ask(&transport, request?).await?;
            Ok(Spawned::new(transport, (actor, location), WorkerId(worker), takes::<A>()))
        })
    }
}

async fn ask(transport: &Transport, request: Vec<u8>) -> Result<StartedActor, ActorError> {
    let closed = |closed: NodeClosed| ActorError::from(StartError::from(closed));
    if transport.is_inherited() {
        return Err(closed(NodeClosed::Forked));
    }
    if would_block().await {
        return Err(ActorError::Blocking);
    }
    let started = transport.directory.start_actor(request, &*transport.control).await;
    started.map_err(|ControlChannelClosed| closed(NodeClosed::Ended))?.map_err(ActorError::Refused)
}
