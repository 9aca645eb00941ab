//! Actors that the program of one host starts on another.
//!
//! Each node of several hosts has a mailbox in its own process, the *starter*, under a number that the others know
//! ([`starter_of`]). A spawn that names another host asks its starter, as any actor is asked. That node starts a worker, and the actor
//! in it, as if its own program had spawned it, and supervises it by the policy that came along: its next lives are on the same
//! host. A pipeline starts workers there first, and then actors in them; what it says of them at its end ([`Order`]) is said once and
//! not answered.
//!
//! Used by [`Spawn::start`](super::Spawn::start), by [`Supervisor`] for workers of other hosts, and by a node as soon as its host is one
//! of several.
//!
//! **Invariants.** WIRE-1: a starter hears its own gateway alone, and a gateway passes on to a starter what comes from its node's own
//! process alone (`gateway/proxy.rs`): no worker has anything started. Other hosts start actors in, and give orders about, workers that
//! were started for other hosts, and no others. MBX-2: so many starts are under way at a time, and as many
//! questions of all other hosts wait as the mailbox takes.
//!
//! **Threads.** Each start under way has one, because it waits for a worker. The reader, which delivers here, waits for nothing.
//!
//! **On a crash** of the other host, or its loss, the asker gets an error that names it: whether the actor runs there, nobody
//! knows. **On cancellation** nothing: who spawns blocks.

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Weak};

use futures_util::future::{FutureExt as _, join_all};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tensorpost_derive::GpuMessage;

use super::hosts::OnHost;
use super::limits::{LOAD_DEADLINE, MAX_FAILURE_TEXT, MAX_NAME, MAX_STARTS, cut};
use super::restart::Restart;
use super::spawn::ActorError;
use super::supervisor::{Closed, Making, NodeError, SpawnError, Supervisor, WorkerId};
use super::{Node, Spawn};
use crate::actor::{Address, NewActor, RemoteActor};
use crate::ids::{ActorId, ProcessId};
use crate::limits::{DEFAULT_MAILBOX, cuda_connections};
use crate::message::{GpuMessage as _, codec, message_key};
use crate::observe::text::shown;
use crate::transport::Transport;
use crate::transport::control_channel::Location;
use crate::transport::hosts::{Host, starter_of};
use crate::transport::inbox::{Delivery, Inbox, LocalCredits, LocalMessage, Receipt, Refusal, Undelivered};

/// What one node asks of another.
#[derive(Debug, Serialize, Deserialize, GpuMessage)]
#[gpu_message(crate = crate, reply = Answer)]
pub(super) enum Request {
    /// Start this.
    Start(Box<ToStart>),
    /// Start a worker for actors that follow.
    Worker(Box<NewWorker>),
    /// Do this with a worker that was started for another host. Not answered.
    Order(u64, Order),
    /// How many actors are in workers there?
    Load,
}

/// A worker to start.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct NewWorker {
    pub(super) name: String,
    /// Of it, on each GPU.
    pub(super) streams: usize,
}

/// Where an actor is started.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum StartIn {
    /// In a worker of its own.
    New(NewWorker),
    /// In one that was started for another host.
    This(u64),
}

/// An actor, with a worker for it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ToStart {
    pub(super) worker: StartIn,
    pub(super) restart: Restart,
    pub(super) actor: NewActor,
}

/// What is to become of a worker: as the [`Supervisor`]'s methods with these names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Order {
    Kill,
    Retire,
    AskToStop,
    LetGo,
}

/// What the other node answers.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    /// It takes messages. Its place means something there alone (HOST-2).
    Started {
        actor: ActorId,
        location: Location,
        worker: u64,
    },
    Worker(u64),
    Load(usize),
    /// It did not start, for this reason.
    No(String),
}

/// The mailbox of a node for what other hosts ask of it.
struct Starter {
    actor: ActorId,
    gateway: ProcessId,
    local: Arc<LocalCredits>,
    supervisor: Weak<Supervisor>,
    starts: Arc<Mutex<Starts>>,
}

/// What is under way, and what waits.
#[derive(Default)]
struct Starts {
    threads: usize,
    waiting: VecDeque<(Request, Receipt)>,
    /// The workers that were started for other hosts, but for some that have ended.
    workers: HashSet<WorkerId>,
}

impl Inbox for Starter {
    fn actor(&self) -> ActorId {
        self.actor
    }

    fn capacity(&self) -> u32 {
        DEFAULT_MAILBOX
    }

    fn deliver(&self, delivery: Delivery<'_>) -> Result<(), Undelivered> {
        let Delivery { key, body, tensors, receipt, .. } = delivery;
        if receipt.sender() != self.gateway || key != message_key::<Request>() {
            receipt.refuse(&Refusal::NoSuchActor);
            return Err(Undelivered::Unregistered { key });
        }
        match codec::decode::<Request>(body, tensors, None) {
            Ok(request) => {
                self.take(request, receipt);
                Ok(())
            }
            Err(error) => {
                let why = error.to_string();
                receipt.refuse(&Refusal::Undelivered(why.clone()));
                Err(Undelivered::Malformed { message: Request::NAME, why })
            }
        }
    }

    fn offer(&self, key: u64, message: LocalMessage) -> Result<(), (LocalMessage, Undelivered)> {
        // Who wants to start something here does.
        Err((message, Undelivered::Unregistered { key }))
    }

    fn local(&self) -> &Arc<LocalCredits> {
        &self.local
    }
}

impl Starter {
    fn take(&self, request: Request, receipt: Receipt) {
        if let Request::Order(worker, order) = request {
            // At once, so that orders keep their order.
            return self.obey(WorkerId(worker), order);
        }
        let mut starts = self.starts.lock();
        starts.waiting.push_back((request, receipt));
        if starts.threads >= MAX_STARTS {
            return; // one that is done with its own takes it
        }
        starts.threads += 1;
        drop(starts);
        let (starts, supervisor) = (Arc::clone(&self.starts), self.supervisor.clone());
        let thread = std::thread::Builder::new().name("tensorpost-start".to_owned());
        if let Err(error) = thread.spawn(move || run(&starts, &supervisor)) {
            let mut starts = self.starts.lock();
            starts.threads -= 1;
            // Another thread comes to it, if there is one.
            let unheard = if starts.threads == 0 { starts.waiting.pop_back() } else { None };
            drop(starts);
            if let Some((_, receipt)) = unheard {
                receipt.reply(Answer::No(format!("the node has no thread to start it with: {error}")));
            }
        }
    }

    fn obey(&self, worker: WorkerId, order: Order) {
        // WIRE-1: not a worker that this host's program has started, nor the gateway.
        if !self.starts.lock().workers.contains(&worker) {
            return tracing::warn!(%worker, ?order, "another host speaks of a worker that is not its own; dropped");
        }
        let Some(supervisor) = self.supervisor.upgrade() else { return };
        match order {
            Order::Kill => supervisor.kill_worker(worker),
            Order::Retire => supervisor.retire(worker),
            Order::AskToStop => supervisor.ask_to_stop(worker),
            Order::LetGo => supervisor.let_go(worker),
        }
    }
}

/// Answers until nothing waits.
fn run(starts: &Mutex<Starts>, supervisor: &Weak<Supervisor>) {
    loop {
        let next = {
            let mut starts = starts.lock();
            let next = starts.waiting.pop_front();
            starts.threads -= usize::from(next.is_none());
            next
        };
        let Some((request, receipt)) = next else { return };
        let no = |why: &dyn fmt::Display| Answer::No(shown(why.to_string(), MAX_FAILURE_TEXT));
        receipt.reply(match (supervisor.upgrade(), request) {
            (None, _) => no(&Closed::Ended),
            (Some(supervisor), Request::Load) => {
                supervisor.load().map_or_else(|error| no(&error), Answer::Load)
            }
            (Some(supervisor), Request::Start(to_start)) => {
                start(&supervisor, starts, *to_start).unwrap_or_else(|error| no(&error))
            }
            (Some(supervisor), Request::Worker(new)) => match worker_for(&supervisor, starts, &new) {
                Ok(worker) => Answer::Worker(worker.0),
                Err(error) => no(&error),
            },
            // It was obeyed when it came.
            (Some(_), Request::Order(..)) => no(&"an order has no answer"),
        });
    }
}

/// Starts a worker here for another host.
fn worker_for(
    supervisor: &Supervisor,
    starts: &Mutex<Starts>,
    NewWorker { name, streams }: &NewWorker,
) -> Result<WorkerId, SpawnError> {
    let making = Making { program: None, connections: cuda_connections(*streams) };
    let worker = supervisor.spawn_worker_of(name, making)?;
    let mut starts = starts.lock();
    // MBX-2: no more than the node lists.
    let listed: HashSet<_> = supervisor.workers().into_iter().map(|status| status.worker).collect();
    starts.workers.retain(|worker| listed.contains(worker));
    starts.workers.insert(worker);
    Ok(worker)
}

/// Starts an actor here for another host, which wrote all of this (WIRE-1).
fn start(supervisor: &Supervisor, starts: &Mutex<Starts>, to_start: ToStart) -> Result<Answer, ActorError> {
    let ToStart { worker, restart, mut actor } = to_start;
    actor.label = actor.label.map(|label| cut(label, MAX_NAME));
    let (worker, is_new) = match worker {
        StartIn::New(new) => (worker_for(supervisor, starts, &new)?, true),
        StartIn::This(worker) => (WorkerId(worker), false),
    };
    if !starts.lock().workers.contains(&worker) {
        return Ok(Answer::No(format!("{worker} was not started for another host")));
    }
    let started = supervisor.start_supervised(worker, actor, restart.bounded()).inspect_err(|_| {
        if is_new {
            // Nobody else knows of it.
            supervisor.retire(worker);
        }
    });
    let (actor, location) = started?;
    Ok(Answer::Started { actor, location, worker: worker.0 })
}

impl<A: RemoteActor> Spawn<'_, A> {
    /// Starts it on another host of the node, one of [`Node::hosts`], or on [the one with the fewest
    /// actors](crate::node::hosts::Anywhere). That host's node starts a worker for it and supervises it: a restart policy brings it
    /// back there. A watch sees its ends as that of any actor. Its [name](Self::name) is unique on its host.
    ///
    /// A [worker](Self::worker), a [group](Self::group) and an actor that runs another program are of this host.
    ///
    /// ```no_run
    /// use tensorpost::hosts::{Anywhere, Hosts};
    /// use tensorpost::prelude::*;
    ///
    /// # #[derive(Serialize, Deserialize, GpuMessage)] struct Frame;
    /// # struct Blur;
    /// # impl Actor for Blur { type Context = Context<Self>; }
    /// # impl RemoteActor for Blur {
    /// #     type Args = ();
    /// #     fn create(_: (), _: &Env) -> anyhow::Result<Self> { Ok(Blur) }
    /// #     fn handles(_: &mut Handles<Self>) {}
    /// # }
    /// # fn main() -> anyhow::Result<()> {
    /// // On all hosts but the head this runs what the head starts there, and returns from `start` no more.
    /// let hosts = Hosts::from_environment()?.map(Hosts::agents_serve);
    /// let node = Node::builder().hosts(hosts).start()?;
    /// for host in node.hosts()? {
    ///     node.spawn::<Blur>(()).on(&host).restart(Restart::on_failure(3)).start()?;
    /// }
    /// node.spawn::<Blur>(()).on(Anywhere).start()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn on(mut self, host: impl Into<OnHost>) -> Self {
        self.on = Some(host.into());
        self
    }
}

impl Node {
    /// Has other hosts start actors here from now on; nothing for a node that has this host alone.
    pub(super) fn serve_other_hosts(&self) -> Result<(), NodeError> {
        let failed = |error: &dyn fmt::Display| NodeError::Hosts(error.to_string());
        let supervisor = self.supervisor();
        let Some(gateway) = supervisor.gateway().map_err(|error| failed(&error))? else { return Ok(()) };
        let adopted = supervisor.adopt_actor(None, DEFAULT_MAILBOX);
        let (actor, location) = adopted.map_err(|error| failed(&error))?;
        if actor != starter_of(self.transport().host()) {
            return Err(failed(&format_args!("{actor} is not the first actor of this host")));
        }
        let starter = Starter {
            actor,
            gateway,
            local: LocalCredits::new(DEFAULT_MAILBOX),
            supervisor: Arc::downgrade(supervisor),
            starts: Arc::default(),
        };
        let served = self.transport().serve_at(location.index, Arc::new(starter));
        served.map_err(|error| failed(&error))?;
        supervisor.reaches_others_by(self.transport());
        supervisor.serve_hosts();
        Ok(())
    }

    /// The host that is meant, if it is another one.
    pub(super) fn other_host(&self, on: &OnHost) -> Result<Option<Host>, ActorError> {
        let supervisor = self.supervisor();
        let closed = |closed: Closed| ActorError::Start(closed.into());
        let own = self.transport().host();
        let number = match on {
            OnHost::Number(number) if *number == own => return Ok(None),
            OnHost::Number(number) => *number,
            OnHost::Anywhere => self.least_loaded(own).map_err(closed)?,
        };
        if number == own {
            return Ok(None);
        }
        supervisor.host_of(number).map(Some)
    }

    /// The host with the fewest actors in its workers; one that does not answer in time is left out.
    fn least_loaded(&self, own: u16) -> Result<u16, Closed> {
        let least = self.host_loads()?.into_iter().min();
        Ok(least.map_or(own, |(_, host)| host))
    }

    /// How many actors are in the workers of each host, with its number; of this one, and of those that answer in time.
    #[doc(hidden)] // for the pipelines, which are another crate
    pub fn host_loads(&self) -> Result<Vec<(usize, u16)>, Closed> {
        let own = self.transport().host();
        let hosts = self.supervisor().hosts()?;
        let others: Vec<_> = hosts.iter().map(|host| host.number).filter(|host| *host != own).collect();
        let asks = others.iter().map(|host| {
            let ask = starter(self.transport(), *host).ask(Request::Load);
            async move { (ask.timeout(LOAD_DEADLINE).await, *host) }
        });
        let answers = wait_for(async { join_all(asks).await }).unwrap_or_default();
        let loads = answers.into_iter().filter_map(|(answer, host)| match answer {
            Ok(Answer::Load(load)) => Some((load, host)),
            _ => None,
        });
        Ok(loads.chain([(self.supervisor().load()?, own)]).collect())
    }
}

/// Has another host start an actor.
pub(super) fn start_on(
    transport: &Arc<Transport>,
    host: &Host,
    to_start: ToStart,
) -> Result<(ActorId, Location, WorkerId), ActorError> {
    match ask_starter(transport, host, Request::Start(Box::new(to_start)))? {
        // WIRE-1: a host speaks of its own actors alone.
        Answer::Started { actor, location, worker } if actor.host() == host.number => {
            Ok((actor, location, WorkerId::of_host(host.number, worker)))
        }
        other => Err(not_done(host, other)),
    }
}

/// Asks another host's starter, and waits.
fn ask_starter(transport: &Arc<Transport>, host: &Host, request: Request) -> Result<Answer, ActorError> {
    let failed = |why: String| ActorError::Elsewhere { host: host.to_string(), why };
    let asked = starter(transport, host.number).ask(request);
    let answer = wait_for(asked).map_err(|error| failed(format!("it could not be asked: {error}")))?;
    answer.map_err(|error| failed(error.to_string()))
}

fn not_done(host: &Host, answer: Answer) -> ActorError {
    let why = match answer {
        Answer::No(why) => shown(why, MAX_FAILURE_TEXT),
        _ => "it has answered something else".to_owned(),
    };
    ActorError::Elsewhere { host: host.to_string(), why }
}

/// Waits on this thread, or where that is one of an async runtime's, on one of its own.
fn wait_for<F: Future<Output: Send> + Send>(future: F) -> std::io::Result<F::Output> {
    let wait = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        Ok(runtime.block_on(future))
    };
    if tokio::runtime::Handle::try_current().is_err() {
        return wait();
    }
    std::thread::scope(|scope| {
        let thread = scope.spawn(wait);
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

impl Supervisor {
    /// Workers of other hosts are reached by this from now on.
    fn reaches_others_by(&self, transport: &Arc<Transport>) {
        // A host is one of its node once.
        let _ = self.elsewhere.set(Arc::downgrade(transport));
    }

    /// A host of the node, by its number.
    pub(super) fn host_of(&self, number: u16) -> Result<Host, ActorError> {
        let hosts = self.hosts().map_err(|closed| ActorError::Start(closed.into()))?;
        hosts.into_iter().find(|host| host.number == number).ok_or_else(|| ActorError::Elsewhere {
            host: format!("host {number}"),
            why: "it is not of this node (any more)".to_owned(),
        })
    }

    /// Starts a worker on the host with this number, or here where that is this one, and waits until it is ready.
    #[doc(hidden)] // for the pipelines, which are another crate
    pub fn spawn_worker_on(&self, host: u16, name: &str, streams: usize) -> Result<WorkerId, ActorError> {
        let transport = self.elsewhere.get().and_then(Weak::upgrade);
        let Some(transport) = transport.filter(|transport| transport.host() != host) else {
            // A node that is alone is host 0.
            return match self.elsewhere.get().is_some() || host == 0 {
                true => Ok(self.spawn_worker_with(name, streams)?),
                false => Err(ActorError::Elsewhere {
                    host: format!("host {host}"),
                    why: "this node has one host; start it with `Node::builder().hosts(..)`".to_owned(),
                }),
            };
        };
        let host = self.host_of(host)?;
        let new = NewWorker { name: name.to_owned(), streams };
        match ask_starter(&transport, &host, Request::Worker(Box::new(new)))? {
            Answer::Worker(number) => Ok(WorkerId::of_host(host.number, number)),
            other => Err(not_done(&host, other)),
        }
    }

    /// Has the host of a worker do this with it, if that is another one. Does not wait, and nobody hears of it where that host is lost:
    /// its workers end too.
    pub(super) fn tell_host_of(&self, worker: WorkerId, order: Order) -> bool {
        let Some((host, number)) = worker.elsewhere() else { return false };
        let Some(transport) = self.elsewhere.get().and_then(Weak::upgrade) else { return true };
        let mut sending = starter(&transport, host).send(Request::Order(number, order));
        if (&mut sending).now_or_never().is_some() {
            return true;
        }
        // Other questions fill its mailbox.
        let thread = std::thread::Builder::new().name("tensorpost-order".to_owned());
        if let Err(error) = thread.spawn(move || wait_for(sending)) {
            tracing::warn!(%worker, ?order, %error, "its host was not told");
        }
        true
    }
}

/// The address of another host's starter. The place in it means nothing here.
fn starter(transport: &Arc<Transport>, host: u16) -> Address<Request> {
    let location = Location { process: ProcessId::NODE, index: 0, capacity: DEFAULT_MAILBOX };
    Address::new(Arc::clone(transport), starter_of(host), location, true)
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::actor::AskError;
    use crate::testing::Cluster;
    use crate::transport::AskFailure;

    // WIRE-1.
    #[test]
    fn nobody_but_the_gateway_has_anything_started() {
        let cluster = Cluster::new(3);
        let (node, gateway, worker) = (0, 1, 2);
        let actor = starter_of(0);
        let starter = Arc::new(Starter {
            actor,
            gateway: cluster.process(gateway),
            local: LocalCredits::new(DEFAULT_MAILBOX),
            supervisor: Weak::new(),
            starts: Arc::default(),
        });
        let index = cluster.transport(node).serve(|_| starter).expect("its first");
        cluster.connect();
        let ask = |from: usize| {
            let location = Location { process: cluster.process(node), index, capacity: 4 };
            let to = Address::<Request>::new(Arc::clone(cluster.transport(from)), actor, location, true);
            let mut asked = to.ask(Request::Load);
            loop {
                cluster.run_until_idle();
                // The answer comes from another thread.
                if let Some(answer) = (&mut asked).now_or_never() {
                    return answer;
                }
                std::thread::yield_now();
            }
        };
        let refused = ask(worker).expect_err("a worker asks");
        assert!(matches!(refused, AskError::NoReply(AskFailure::Refused(Refusal::NoSuchActor))), "{refused}");
        // And from the node's own process, which does it by itself.
        assert!(ask(node).is_err());
        let answer = ask(gateway).expect("it is heard");
        assert!(matches!(&answer, Answer::No(why) if why.contains("shut down")), "{answer:?}");
    }
}
