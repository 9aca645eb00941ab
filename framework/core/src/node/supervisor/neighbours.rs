//! The seam between the supervisor and what lies outside this node's own processes: its neighbours.
//!
//! The supervisor knows the processes that it has started. It owns its [`Neighbours`] as one value, asks them
//! by hooks where their word decides something here, and tells them by hooks what they must hear of. Today's
//! neighbours are other hosts (the feature `hosts`, in `supervisor/hosts.rs` and below it). Without the
//! feature the value has only the defaults, which ask nobody and hear nothing. Outside `hosts` only items
//! and lints ask whether the feature is there, and no step does.
//!
//! The neighbours know nothing of the supervisor. Like its parts they are lent the processes ([`NodeState`])
//! for one call, and act through them. Where they want something of another part, such as a shutdown or the
//! start of an actor, the hook returns it as an [`Effect`]. The supervisor carries out the effects of a hook
//! in their order, before anything else. A hook returns at once: it waits for no neighbour.
//!
//! **Order.** The comments at the call sites say why a hook stands where it does: what a neighbour must hear
//! before this host's processes, and the other way round, is decided there and not behind the seam.
//!
//! **Attached processes.** A process that the node did not start is a neighbour too, and will come through
//! the same hooks. The list says for each of them whether it can.
//!
//! | hook | an attached process |
//! |---|---|
//! | `check`, `stalled`, `next_event` | yes: when it is given up, as it is never killed |
//! | `before_restarts`, `after_restarts` | no: nobody restarts it |
//! | `before_wait` | yes, if news of it must go first |
//! | `take_message` | yes: its messages are checked here before the broker sees them |
//! | `may_bring` | no: it brings descriptors of the kinds that a worker brings |
//! | `is_logged_here_alone` | no: its log stays in its own process |
//! | `is_gateway` | no |
//! | `pages_of` | yes: the pages that it is welcomed with |
//! | `worker_is_ready`, `has_ended` | yes: its hello and its end, which a descriptor of its process tells |
//! | `hold_start`, `name_given`, `is_held` | no: it starts no actor, and none is restarted in it |
//! | `take_in`, `is_to_start`, `guest_has_started`, `guest_failed` | no: its actors have ids of this node |
//! | `is_missed` | yes: one that outlives the node is told that its actors' node has ended |
//! | `groups_fail`, `restarts_end` | no: it is in no group |
//! | `shutdown_begins` | yes: it is told, and not waited for |
//! | `parties`, `ask_parties`, `has_answered`, `may_stop_actors` | no: the node waits for no attached process |
//! | `traces_of_others` | yes: its ring is a trace of its own |

use std::any::Any;
use std::collections::HashMap;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::actor::NewActor;
use crate::ids::{ActorId, ProcessId};
use crate::node::broker::{Complaint, Delivery};
use crate::node::group::{Group, Supervision};
use crate::node::shutdown::Party;
use crate::observe::log::Severity;
use crate::observe::trace::joined::HostTrace;
use crate::transport::control_channel::ToNode;
use crate::transport::lifecycle::EndReason;

use super::guest::Guest;
use super::node_state::NodeState;
use super::reply::{Reply, Started, waited_for};
use super::restarts::Supervised;
use super::run::SupervisorState;
use super::{StartError, WorkerId};

/// The start of an actor in a worker.
pub(super) struct Start {
    pub(super) worker: WorkerId,
    pub(super) actor: NewActor,
    pub(super) how: Supervision,
    pub(super) reply: Reply<Started>,
}

/// A change that the word of a neighbour, or of an actor that starts another, leads to. The supervisor
/// carries it out.
#[cfg_attr(
    not(feature = "hosts"),
    expect(dead_code, reason = "most are for a neighbour's word, and there is none")
)]
pub(super) enum Effect {
    /// Send these, together.
    Deliver(Vec<Delivery>),
    /// Start an actor, whose name a neighbour may have to agree to.
    Start(Box<Start>),
    /// Start an actor, whose name the neighbours have agreed to.
    StartNamed(Box<Start>),
    /// Start a life of an actor whose id and names are a neighbour's.
    StartGuest(Box<Start>, Guest),
    /// Handle a message of this process as if it had come now.
    Handle(ProcessId, ToNode),
    /// Give the broker a message of this process, whose name the neighbours have agreed to.
    HandleNamed(ProcessId, ToNode),
    /// Log and count what is wrong with a message of this process.
    Complain(ProcessId, Complaint),
    /// End this process: it does not do what a gateway must.
    GiveUp(ProcessId, String),
    /// Tell the neighbours whether this name is in use now.
    NameGiven(String),
    /// Begin a shutdown with this deadline, or join the one in progress.
    Shutdown(Instant),
    /// Ask all processes whether anything is under way, for the neighbour that leads the shutdown from now
    /// on.
    AskForLeader,
}

/// See the module. The defaults are those of a node without neighbours.
pub(super) trait Neighbours: Any + Send {
    /// Takes the steps that are due before workers begin their next lives: some of them wait for neighbours.
    fn before_restarts(&mut self, _node: &mut NodeState) {}

    /// Starts what is due for neighbours, after workers have begun their next lives.
    fn after_restarts(&mut self, _node: &mut NodeState) -> Vec<Effect> {
        Vec::new()
    }

    /// Sends neighbours what they have not heard yet, before the supervisor waits.
    fn before_wait(&mut self, _node: &mut NodeState) {}

    /// Acts on deadlines of neighbours that have passed.
    fn check(&mut self, _node: &mut NodeState, _now: Instant) -> Vec<Effect> {
        Vec::new()
    }

    /// Extends these deadlines by `_lost`, because the node itself stood still for that long.
    fn stalled(&mut self, _lost: Duration) {}

    /// Returns when the next of these deadlines, or of the steps around a restart, is due.
    fn next_event(&self, _node: &NodeState) -> Option<Instant> {
        None
    }

    /// Takes a message that is for the neighbours, or must wait for them. Returns it if the broker is to have
    /// it now.
    fn take_message(
        &mut self,
        _node: &mut NodeState,
        _from: ProcessId,
        message: ToNode,
        descriptors: Vec<OwnedFd>,
    ) -> ControlFlow<Vec<Effect>, (ToNode, Vec<OwnedFd>)> {
        ControlFlow::Continue((message, descriptors))
    }

    /// Whether a process may send this descriptor, which no other worker may.
    fn may_bring(&self, _node: &NodeState, _process: ProcessId, _fd: BorrowedFd<'_>) -> bool {
        false
    }

    /// Whether a record of this process's log is for this host's log alone.
    fn is_logged_here_alone(&self, _node: &NodeState, _process: ProcessId, _severity: Severity) -> bool {
        false
    }

    /// Whether a process passes messages on to neighbours, and so has no actor.
    fn is_gateway(&self, _node: &NodeState, _process: ProcessId) -> bool {
        false
    }

    /// Notes that the name was given to an actor, or could not be.
    fn name_given(&mut self, _node: &mut NodeState, _name: String) {}

    /// Adds the pages of neighbours to those that a worker is welcomed with.
    fn pages_of(&self, own: Vec<OwnedFd>) -> io::Result<Vec<OwnedFd>> {
        Ok(own)
    }

    /// Notes that the worker in slot `_index` is ready.
    fn worker_is_ready(&mut self, _node: &NodeState, _index: usize) -> Option<Effect> {
        None
    }

    /// Notes the end of a worker's process. Returns whether another process follows it as the way to
    /// neighbours.
    fn has_ended(
        &mut self,
        _node: &mut NodeState,
        _process: ProcessId,
        _why: &EndReason,
        _told: &mut Vec<Delivery>,
    ) -> (bool, Option<Effect>) {
        (false, None)
    }

    /// Returns the start, or keeps it until a neighbour has agreed to the actor's name.
    fn hold_start(&mut self, _node: &NodeState, start: Start) -> ControlFlow<Vec<Effect>, Start> {
        ControlFlow::Continue(start)
    }

    /// Whether a worker's next life waits for neighbours.
    fn is_held(&self, _node: &NodeState, _worker: WorkerId) -> bool {
        false
    }

    /// Makes a location in `process` for the life of an actor whose id is a neighbour's.
    fn take_in(
        &mut self,
        _node: &mut NodeState,
        process: ProcessId,
        guest: Guest,
        new: &NewActor,
    ) -> Started {
        let why = format!("{} is of no neighbour of this node", guest.actor);
        Err(StartError::Create { worker: process.to_string(), type_name: new.type_name.clone(), why })
    }

    /// Notes that a worker will be told to start an actor that was not in the roster before.
    fn is_to_start(&mut self, _node: &mut NodeState, _actor: ActorId, _new: &NewActor) {}

    /// Notes that an actor takes messages, for the first time on this host.
    fn guest_has_started(&mut self, _node: &mut NodeState, _actor: ActorId, _life: u32) {}

    /// Notes that an actor could not begin its first life on this host.
    fn guest_failed(&mut self, _node: &mut NodeState, _actor: ActorId) {}

    /// Whether a neighbour must know that an actor ends because this host does, although its id is this
    /// host's.
    fn is_missed(&self, _actor: ActorId) -> bool {
        false
    }

    /// Notes that these groups restart, because of a failure here; those in `_given_up` do not come back.
    fn groups_fail(
        &mut self,
        _node: &mut NodeState,
        _groups: &[Group],
        _given_up: &[Group],
        _delay: Duration,
        _why: &str,
    ) {
    }

    /// Notes which actors were under restart policies, because a shutdown ends these.
    fn restarts_end(&mut self, _supervised: &HashMap<ActorId, Supervised>) {}

    /// Notes that a shutdown begins: nothing is begun for neighbours from here on.
    fn shutdown_begins(&mut self, _node: &mut NodeState) {}

    /// Returns the neighbours that are asked in a shutdown whether anything is under way.
    fn parties(&self, _node: &NodeState) -> Vec<Party> {
        Vec::new()
    }

    /// Asks them. `_left` is the time until the shutdown's deadline.
    fn ask_parties(&mut self, _node: &mut NodeState, _round: u64, _left: Duration) {}

    /// Notes that a process has answered in a round, or will not: the neighbour that leads the shutdown may
    /// wait for that.
    fn has_answered(&mut self, _node: &mut NodeState) {}

    /// Whether the actors may stop, or a neighbour has still to be heard.
    fn may_stop_actors(&mut self, _node: &mut NodeState) -> bool {
        true
    }

    /// Returns the neighbours' traces of the run, for the trace at `_path`. `None` if a neighbour has this
    /// host's, and this host writes none.
    fn traces_of_others(&mut self, _node: &mut NodeState, _path: &Path) -> Option<Vec<(String, HostTrace)>> {
        Some(Vec::new())
    }
}

#[cfg(feature = "hosts")]
impl super::Shared {
    /// Has the supervisor's thread run `step` with the neighbours, behind all earlier commands.
    pub(super) fn run_neighbours(
        &self,
        step: impl FnOnce(&mut dyn Neighbours, &mut NodeState) -> Option<Effect> + Send + 'static,
    ) -> Result<(), super::NodeClosed> {
        self.run(move |state| {
            let effect = step(&mut *state.neighbours, &mut state.node);
            state.carry_out(effect);
        })
    }
}

impl SupervisorState {
    /// Carries out these effects, in their order.
    pub(super) fn carry_out(&mut self, effects: impl IntoIterator<Item = Effect>) {
        for effect in effects {
            match effect {
                Effect::Deliver(deliveries) => self.node.deliver(deliveries),
                Effect::Start(start) => self.start_actor(*start),
                Effect::StartNamed(start) => self.start_as(*start, None),
                Effect::StartGuest(start, guest) => self.start_as(*start, Some(guest)),
                Effect::Handle(from, message) => self.broker_message(from, message, Vec::new()),
                Effect::HandleNamed(from, message) => {
                    let result =
                        self.node.with_broker(|broker, told| broker.handle(from, message, Vec::new(), told));
                    self.node.note(from, result);
                }
                Effect::Complain(from, complaint) => self.node.note(from, Err(complaint)),
                Effect::GiveUp(process, why) => {
                    if let Some(worker) = self.node.workers.of_mut(process) {
                        worker.give_up(why);
                    }
                }
                Effect::NameGiven(name) => self.neighbours.name_given(&mut self.node, name),
                Effect::Shutdown(deadline) => {
                    let (reply, _nobody_waits) = waited_for();
                    self.begin_stopping(deadline, reply);
                }
                Effect::AskForLeader => {
                    if let Some(stopping) = &mut self.node.stopping {
                        stopping.be_led();
                    }
                    self.begin_round();
                }
            }
        }
    }
}
