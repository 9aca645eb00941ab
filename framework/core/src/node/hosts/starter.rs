//! Actors that the program of one host starts on another.
//!
//! The node of each host has a mailbox in its own process, the *starter*, under a number that the others
//! know ([`starter_of`]). A spawn that names another host asks that host's starter, as any actor is
//! asked. The node there starts a worker, and the actor in it, as if its own program had spawned it. It
//! supervises the actor by the policy in the request: the next lives are on the same host, unless the
//! policy lets the actor outlive that host (`supervisor/hosts/roaming.rs`). A pipeline starts workers
//! there first, and then actors in them. Its orders about them at its end ([`WorkerOrder`]) are repeated
//! until they are heard.
//!
//! Used by [`Spawn::start`](crate::node::Spawn::start), by [`Supervisor`] for workers of other hosts, and by
//! a node as soon as its host has joined others.
//!
//! **Invariants.** WIRE-1: a starter takes messages only from its own gateway, and a gateway passes messages
//! to a starter only if its node's own process sent them (`gateway/proxy.rs`). So no worker can start
//! anything. A host starts actors in, and gives orders about, only workers that were started for it; this
//! host's own gateway says which host speaks ([`from_host`](crate::transport::gateway_messages::from_host)).
//! MBX-2: the starts under way are bounded, and the mailbox bounds the questions that wait.
//!
//! **Threads.** Each start under way has a thread, because it waits for a worker. The reader, which delivers
//! here, waits for nothing.
//!
//! **On a crash** or loss of the other host the asking host gets an error that names it; nobody knows whether
//! the actor runs there. If the asking host is lost or ends, the workers that were started for it end too:
//! nobody else knows of them. **On cancellation** the start goes on: a thread waits for it.

mod devices;
mod groups;
mod life;
mod messages;
mod next_life;
mod orders;
mod repeated_starts;
mod retry;

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::Mutex;

pub(in crate::node) use self::groups::{Speaker, Then};
pub(in crate::node) use self::life::{NextLife, Roams};
pub(in crate::node) use self::messages::{
    Answer, Extent, FencedMessage, InGroup, NewWorker, OfGroup, Request, Says, Show, StartIn, ToStart,
    starter,
};
pub(in crate::node) use self::next_life::{first_life, next_life};
pub(in crate::node) use self::orders::Orders;
use super::all_hosts::{self, LastSnapshot, show};
use super::fenced_send::pass_on;
use crate::actor::{Interpreter, Python, RemoteActor};
use crate::gateway::dropped::dropped;
use crate::ids::{ActorId, ProcessId};
use crate::limits::DEFAULT_MAILBOX;
use crate::message::{GpuMessage as _, codec, message_key};
use crate::node::group::Supervision;
use crate::node::hosts::OnHost;
use crate::node::hosts::wait::wait_for;
use crate::node::limits::{LOAD_DEADLINE, MAX_FAILURE_TEXT, MAX_HOST_SHOWS, MAX_NAME, MAX_STARTS, cut};
use crate::node::spawn::ActorError;
use crate::node::supervisor::hosts::{
    gateway_of, guest_of, has_joined, hear_of_group, joins_group, load_of, serve_hosts, start_guest,
    started_for,
};
use crate::node::supervisor::{
    Making, NodeClosed, NodeError, SpawnError, StartError, Supervisor, WorkerId, WorkerOrder,
};
use crate::node::{Node, Spawn};
use crate::observe::text::shown;
use crate::transport::Transport;
use crate::transport::control_channel::Location;
use crate::transport::gateway_messages::{Host, starter_of};
use crate::transport::inbox::{Delivery, Inbox, LocalCredits, Receipt, Refusal, Undelivered};

/// The host that asks, as this host's gateway names it, and its request.
type Asked = (u16, Request);

/// The mailbox of a node for requests of other hosts.
struct Starter {
    actor: ActorId,
    gateway: Arc<Mutex<Option<ProcessId>>>,
    local: Arc<LocalCredits>,
    supervisor: Weak<Supervisor>,
    starts: Arc<Mutex<Starts>>,
    /// Requests to show figures, and the load, have a queue of their own, so that no worker's start holds
    /// them up.
    shows: Arc<Mutex<Starts>>,
    /// So have messages to pass on, which wait for room in a mailbox.
    passes: Arc<Mutex<Starts>>,
    /// So have messages about groups, which wait for the ends of workers.
    groups: Arc<Mutex<Starts>>,
    last_snapshot: Arc<LastSnapshot>,
}

/// Requests under way, and requests that wait.
#[derive(Default)]
struct Starts {
    threads: usize,
    waiting: VecDeque<(Asked, Receipt)>,
    /// The workers that were started for other hosts, each with the host that asked for it. Some of them may
    /// have ended.
    workers: HashMap<WorkerId, u16>,
    /// Roaming actors that are being started, with the receipts of repeated requests for the same start.
    guests: HashMap<ActorId, Vec<Receipt>>,
}

/// It takes no local message: this process starts actors directly, not through its starter.
impl Inbox for Starter {
    fn actor(&self) -> ActorId {
        self.actor
    }

    fn capacity(&self) -> u32 {
        DEFAULT_MAILBOX
    }

    fn deliver(&self, delivery: Delivery<'_>) -> Result<(), Undelivered> {
        let Delivery { key, body, tensors, receipt, .. } = delivery;
        if Some(receipt.sender()) != *self.gateway.lock() || key != message_key::<Request>() {
            receipt.refuse(&Refusal::NoSuchActor);
            return Err(Undelivered::Unregistered { key });
        }
        match codec::decode::<Asked>(body, tensors, None) {
            Ok(asked) => {
                self.take(asked, receipt);
                Ok(())
            }
            Err(error) => Err(receipt.malformed(Request::NAME, error.to_string())),
        }
    }

    fn local(&self) -> &Arc<LocalCredits> {
        &self.local
    }
}

impl Starter {
    fn take(&self, (host, request): Asked, receipt: Receipt) {
        if let Request::Order(worker, order) = request {
            // Carried out at once, so that orders keep their order.
            self.obey(host, WorkerId(worker), order);
            return receipt.reply(Answer::Done);
        }
        let (queue, most, name) = match request {
            Request::Show(_) | Request::Load => (&self.shows, MAX_HOST_SHOWS, "tp-show"),
            Request::Behind(_) => (&self.passes, MAX_STARTS, "tp-pass"),
            Request::Group(_) => (&self.groups, MAX_STARTS, "tp-group"),
            _ => (&self.starts, MAX_STARTS, "tp-start"),
        };
        let mut starts = queue.lock();
        starts.waiting.push_back(((host, request), receipt));
        if starts.threads >= most {
            return; // a thread that is done with its own request takes it
        }
        starts.threads += 1;
        drop(starts);
        let (starts, supervisor) = (Arc::clone(queue), self.supervisor.clone());
        let last_snapshot = Arc::clone(&self.last_snapshot);
        let thread = std::thread::Builder::new().name(name.to_owned());
        if let Err(error) = thread.spawn(move || run(&starts, &supervisor, &last_snapshot)) {
            let mut starts = queue.lock();
            starts.threads -= 1;
            // Another thread takes the request, if there is one.
            let unheard = if starts.threads == 0 { starts.waiting.pop_back() } else { None };
            drop(starts);
            if let Some((_, receipt)) = unheard {
                receipt.reply(Answer::No(format!("the node has no thread to start it with: {error}")));
            }
        }
    }

    fn obey(&self, host: u16, worker: WorkerId, order: WorkerOrder) {
        // WIRE-1: the worker must not be one of this host's program, nor the gateway, nor one of a third
        // host.
        if self.starts.lock().workers.get(&worker) != Some(&host) {
            return dropped(host, &format_args!("it says {order:?} of {worker}, which is not its own"));
        }
        let Some(supervisor) = self.supervisor.upgrade() else { return };
        // MBX-2: the node bounds the number of spares.
        supervisor.order(worker, order);
    }
}

/// Answers requests until none waits.
fn run(starts: &Mutex<Starts>, supervisor: &Weak<Supervisor>, last_snapshot: &LastSnapshot) {
    loop {
        let next = {
            let mut starts = starts.lock();
            let next = starts.waiting.pop_front();
            starts.threads -= usize::from(next.is_none());
            next
        };
        let Some(((host, request), receipt)) = next else { return };
        let guest = repeated_starts::of(host, &request);
        let Some(receipt) = repeated_starts::begins(starts, guest, receipt) else { continue };
        let no = |why: &dyn fmt::Display| Answer::No(shown(why.to_string(), MAX_FAILURE_TEXT));
        let answer = match (supervisor.upgrade(), request) {
            (None, _) => no(&NodeClosed::Ended),
            (Some(supervisor), Request::Load) => {
                load_of(&supervisor).map_or_else(|error| no(&error), Answer::Load)
            }
            (Some(supervisor), Request::Behind(behind)) => {
                pass_on(&supervisor, *behind).unwrap_or_else(|why| no(&why))
            }
            (Some(supervisor), Request::Show(what)) => {
                show(&supervisor, what, last_snapshot).map_or_else(|why| no(&why), Answer::Shown)
            }
            (Some(supervisor), Request::Group(said)) => match hear_group(&supervisor, host, said) {
                Ok(()) => Answer::Done,
                Err(why) => no(&why),
            },
            (Some(_), Request::Device(name)) => {
                devices::look_for(&name).map_or_else(|why| no(&why), Answer::Device)
            }
            (Some(supervisor), Request::Start(to_start)) => {
                start(&supervisor, starts, host, *to_start).unwrap_or_else(|error| no(&error))
            }
            (Some(supervisor), Request::Worker(new)) => match worker_for(&supervisor, starts, host, &new) {
                Ok(worker) => Answer::Worker(worker.0),
                Err(error) => no(&error),
            },
            // `take` carried it out when it came.
            (Some(_), Request::Order(..)) => no(&"an order has no answer"),
        };
        repeated_starts::begun(starts, guest, &answer);
        receipt.reply(answer);
    }
}

/// Handles a message of another host, and waits until it is carried out.
fn hear_group(supervisor: &Supervisor, host: u16, mut said: OfGroup) -> Result<(), String> {
    let (Says::Do { why, .. } | Says::Failed { why, .. }) = &mut said.says;
    *why = shown(std::mem::take(why), MAX_FAILURE_TEXT);
    hear_of_group(supervisor, host, said).map_err(|closed| closed.to_string())?
}

/// Starts a worker here for another host. It ends with that host.
fn worker_for(
    supervisor: &Supervisor,
    starts: &Mutex<Starts>,
    host: u16,
    NewWorker { name, streams, interpreter, gpu_budget }: &NewWorker,
) -> Result<WorkerId, SpawnError> {
    // The interpreter of this host, from its environment variables, unless the program names one.
    let program = interpreter.as_ref().map(Interpreter::program);
    let making = Making { gpu_budget: *gpu_budget, ..Making::of(program, *streams) };
    let worker = supervisor.spawn_worker_of(name, making)?;
    started_for(supervisor, worker, host);
    let mut starts = starts.lock();
    // MBX-2: keep only workers that the node still lists.
    let listed: HashSet<_> = supervisor.workers().into_iter().map(|status| status.worker).collect();
    starts.workers.retain(|worker, _| listed.contains(worker));
    starts.workers.insert(worker, host);
    Ok(worker)
}

/// Starts an actor here for another host. All of `to_start` comes from that host (WIRE-1).
fn start(
    supervisor: &Supervisor,
    starts: &Mutex<Starts>,
    host: u16,
    to_start: ToStart,
) -> Result<Answer, ActorError> {
    let ToStart { worker, restart, mut actor, guest, group } = to_start;
    actor.label = actor.label.map(|label| cut(label, MAX_NAME));
    if guest.is_some_and(|guest| guest.actor.host() != host || !guest.actor.roams()) {
        return Ok(Answer::No("an actor that roams has its id from the host that starts it".to_owned()));
    }
    if let Some(guest) = guest
        && let Some((location, worker)) = guest_of(supervisor, guest.actor).map_err(StartError::from)?
    {
        // HOST-10: it lives here already, and the first answer was lost with a gateway. The checks above show
        // that the asking host is its home.
        return Ok(Answer::Started { actor: guest.actor, location, worker: worker.0 });
    }
    let (worker, is_new) = match worker {
        StartIn::New(new) => (worker_for(supervisor, starts, host, &new)?, true),
        StartIn::This(worker) => (WorkerId(worker), false),
    };
    if starts.lock().workers.get(&worker) != Some(&host) {
        return Ok(Answer::No(format!("{worker} was not started for this host")));
    }
    let group = group.map(|group| joins_group(supervisor, host, group));
    let how = Supervision { restart: restart.bounded(), group: group.clone() };
    let started = match guest {
        None => supervisor.start_supervised(worker, actor, how),
        Some(guest) => start_guest(supervisor, worker, actor, how, guest),
    };
    let started = started.inspect_err(|_| {
        if is_new {
            // Nobody else knows of the worker.
            supervisor.retire(worker);
        }
    });
    if let Some(group) = group {
        has_joined(supervisor, group);
    }
    let (actor, location) = started?;
    Ok(Answer::Started { actor, location, worker: worker.0 })
}

impl<A: RemoteActor> Spawn<'_, A> {
    /// Starts the actor on another host of the node, one of [`Node::hosts`], or on [the one with the fewest
    /// actors](crate::node::hosts::Anywhere). That host's node starts a worker for it and supervises it. A
    /// restart policy brings it back there, as long as the host that started it belongs to the node. When its
    /// own host is lost, it is given up, unless the policy says [`on_other_hosts`](Restart::on_other_hosts).
    /// A watch sees its ends like those of any actor. Its [device](Self::device) is one of that host, from
    /// [`Node::device_on`]; an actor that may continue on other hosts has none.
    ///
    /// A [worker](Self::worker) must be one of that host. A [group](Self::group) may have actors on several
    /// hosts. When one of them fails, or is lost with its host and continues on another, all of them end, and
    /// this host begins the next lives when the last one has ended. When one is given up, also with its host,
    /// all are given up. An actor of [Python](crate::actor::Python) runs in that host's interpreter.
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
    /// Lets other hosts start actors here from now on. Does nothing for a node that has only this host.
    pub(super) fn serve_other_hosts(&self) -> Result<(), NodeError> {
        let failed = |error: &dyn fmt::Display| NodeError::Hosts(error.to_string());
        let supervisor = self.supervisor();
        if gateway_of(supervisor).map_err(|error| failed(&error))?.is_none() {
            return Ok(());
        }
        let adopted = supervisor.adopt_actor(None, DEFAULT_MAILBOX, None);
        let (actor, location) = adopted.map_err(|error| failed(&error))?;
        if actor != starter_of(self.transport().directory.host()) {
            return Err(failed(&format_args!("{actor} is not the first actor of this host")));
        }
        let starter = Starter {
            actor,
            gateway: Arc::clone(&supervisor.shared().all_hosts.gateway),
            local: LocalCredits::new(DEFAULT_MAILBOX),
            supervisor: Arc::downgrade(supervisor),
            starts: Arc::default(),
            shows: Arc::default(),
            passes: Arc::default(),
            groups: Arc::default(),
            last_snapshot: Arc::default(),
        };
        let served = self.transport().serve_at(location.index, Arc::new(starter));
        served.map_err(|error| failed(&error))?;
        // From now on this host can reach workers of other hosts.
        all_hosts::set(supervisor, self.transport());
        serve_hosts(supervisor);
        if let Err(error) = tensorpost_hosts::join::tell_starter(self.transport().directory.host()) {
            let file = tensorpost_hosts::join::JOINED_FILE;
            tracing::warn!(%error, "this host has joined, and the file that {file} names could not be told");
        }
        Ok(())
    }
}

/// Asks another host for its figures. Resolves to `None` if the host does not answer in time, or says that it
/// cannot.
pub(in crate::node) fn ask_for(
    transport: &Arc<Transport>,
    host: u16,
    what: Show,
    deadline: Duration,
) -> impl Future<Output = Option<Vec<u8>>> + Send + use<> {
    let ask = starter(transport, host).ask(Request::Show(what));
    async move {
        match ask.timeout(deadline).await {
            Ok(Answer::Shown(shown)) => Some(shown),
            Ok(_) | Err(_) => None,
        }
    }
}

/// Starts an actor on another host.
pub(in crate::node) fn start_on(
    transport: &Arc<Transport>,
    host: &Host,
    to_start: ToStart,
) -> Result<(ActorId, Location, WorkerId), ActorError> {
    match ask_starter(transport, host, Request::Start(Box::new(to_start)))? {
        // WIRE-1: a host may name only its own actors.
        Answer::Started { actor, location, worker } if actor.host() == host.number => {
            Ok((actor, location, WorkerId::of_host(host.number, worker)))
        }
        other => Err(not_done(host, other)),
    }
}

/// Asks another host's starter, and waits.
pub(in crate::node) fn ask_starter(
    transport: &Arc<Transport>,
    host: &Host,
    request: Request,
) -> Result<Answer, ActorError> {
    let failed = |why: String| ActorError::Elsewhere { host: host.to_string(), why };
    let asked = starter(transport, host.number).ask(request);
    let answer = wait_for(asked).map_err(|error| failed(format!("it could not be asked: {error}")))?;
    answer.map_err(|error| failed(error.to_string()))
}

pub(in crate::node) fn not_done(host: &Host, answer: Answer) -> ActorError {
    let why = match answer {
        Answer::No(why) => shown(why, MAX_FAILURE_TEXT),
        _ => "it has answered something else".to_owned(),
    };
    ActorError::Elsewhere { host: host.to_string(), why }
}

impl Supervisor {
    /// Sends an order to the host of a worker, and returns true, if that is another host. Does not wait. If
    /// that host is lost, the order is lost without a notice: its workers end too.
    pub(in crate::node) fn tell_host_of(&self, worker: WorkerId, order: WorkerOrder) -> bool {
        let Some((host, worker)) = worker.host_and_number() else { return false };
        let Some(transport) = self.transport_to_hosts() else { return true };
        self.shared().all_hosts.orders.give(&transport, host, worker, order);
        true
    }

    /// Returns the transport to other hosts, if there are any.
    pub(in crate::node) fn transport_to_hosts(&self) -> Option<Arc<Transport>> {
        self.shared().all_hosts.transport.get().and_then(Weak::upgrade)
    }

    /// Returns how many actors are in the workers of each host, with its number: for this host, and for those
    /// that answer in time.
    #[doc(hidden)] // for the pipelines, which are another crate
    pub fn host_loads(&self) -> Result<Vec<(usize, u16)>, NodeClosed> {
        // A node that is alone is host 0.
        let Some(transport) = self.transport_to_hosts() else { return Ok(vec![(load_of(self)?, 0)]) };
        let own = transport.directory.host();
        let hosts = self.hosts()?;
        let others: Vec<_> = hosts.iter().map(|host| host.number).filter(|host| *host != own).collect();
        let asks = others.iter().map(|host| {
            let ask = starter(&transport, *host).ask(Request::Load);
            async move { (ask.timeout(LOAD_DEADLINE).await, *host) }
        });
        let answers = wait_for(async { join_all(asks).await }).unwrap_or_default();
        let loads = answers.into_iter().filter_map(|(answer, host)| match answer {
            Ok(Answer::Load(load)) => Some((load, host)),
            _ => None,
        });
        Ok(loads.chain([(load_of(self)?, own)]).collect())
    }

    /// Returns the host that `on` means, if it is not this host, whose number is `own`. For
    /// [`Anywhere`](super::Anywhere) it asks the others, and leaves those out that do not answer in time.
    pub(in crate::node) fn other_host(&self, on: OnHost, own: u16) -> Result<Option<Host>, ActorError> {
        let closed = |closed: NodeClosed| ActorError::Start(closed.into());
        let number = match on {
            OnHost::Number(number) => number,
            OnHost::Anywhere => self.least_loaded(own).map_err(closed)?,
        };
        if number == own { Ok(None) } else { self.host_of(number).map(Some) }
    }

    /// Returns the host with the fewest actors in its workers, the first of several; hosts that do not answer
    /// in time are left out.
    fn least_loaded(&self, own: u16) -> Result<u16, NodeClosed> {
        let least = self.host_loads()?.into_iter().min();
        Ok(least.map_or(own, |(_, host)| host))
    }

    /// Returns a host of the node, by its number.
    pub(in crate::node) fn host_of(&self, number: u16) -> Result<Host, ActorError> {
        let hosts = self.hosts().map_err(|closed| ActorError::Start(closed.into()))?;
        hosts.into_iter().find(|host| host.number == number).ok_or_else(|| ActorError::Elsewhere {
            host: format!("host {number}"),
            why: "it is not of this node (any more)".to_owned(),
        })
    }

    /// Starts a worker on the host with this number, or here if that is this host, and waits until it is
    /// ready. It runs the interpreter of `python`, if given, as that host finds it.
    #[doc(hidden)] // for the pipelines, which are another crate
    pub fn spawn_worker_on(
        &self,
        host: u16,
        name: &str,
        streams: usize,
        python: Option<&Python>,
    ) -> Result<WorkerId, ActorError> {
        let transport = self.transport_to_hosts();
        let is_one_of_several = transport.is_some();
        let Some(transport) = transport.filter(|transport| transport.directory.host() != host) else {
            // A node that is alone is host 0.
            return match is_one_of_several || host == 0 {
                true => Ok(self.spawn_worker_for(name, streams, python)?),
                false => Err(ActorError::Elsewhere {
                    host: format!("host {host}"),
                    why: "this node has one host; start it with `Node::builder().hosts(..)`".to_owned(),
                }),
            };
        };
        let host = self.host_of(host)?;
        let interpreter = python.map(Python::its_interpreter);
        let new = NewWorker { name: name.to_owned(), streams, interpreter, gpu_budget: None };
        match ask_starter(&transport, &host, Request::Worker(Box::new(new)))? {
            Answer::Worker(number) => Ok(WorkerId::of_host(host.number, number)),
            other => Err(not_done(&host, other)),
        }
    }
}

#[cfg(all(test, feature = "testing"))]
mod tests;
