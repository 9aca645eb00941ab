//! The node's handling of its processes' requests: link messages, chunks, actors and names.
//!
//! Nothing here touches a socket: [`Broker::handle`] turns one message into the deliveries it causes. It
//! believes nothing that a process says (WIRE-1): a bad message leads to a [`Complaint`], for the log and for
//! the count against its sender. A process that waits for an answer still gets one.
//!
//! When two workers link, the node itself passes on their clock pages, and ignores the page that a worker
//! shows. Nobody could release a page that the node does not know, and the worker's peers would wait for ever
//! (WIRE-1, DEATH-1).
//!
//! A process that joins is first told the locations of all actors that have moved: an address in its actors'
//! arguments may be as old as the actor.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;

use crate::clock::ProcessPages;
use crate::clock::taint::TaintRange;
use crate::ids::{ActorId, ChunkId, ProcessId};
use crate::node::chunks::{ChunkRefused, Chunks, NotMapped};
use crate::node::deaths::Deaths;
use crate::node::fences::Fences;
use crate::node::limits::{MAX_CHUNKS, MAX_PARKED};
use crate::node::link_messages::LinkMessages;
use crate::node::questions::{NotAsked, Ping, Question, Questions, TooMany};
use crate::node::reclaim::Reclaims;
use crate::node::registry::{NameError, Registry, check_name};
use crate::node::roster::Roster;
use crate::node::watches::Watches;
use crate::os::peer_fd;
use crate::os::remedy::OPEN_FILES;
use crate::transport::control_channel::{FromNode, Location, Named, ToNode};
use crate::transport::lifecycle::{EndReason, Lifecycle, ProcessDown};

use self::neighbours::{NeighbourActors, Tables};

mod links;
pub(crate) mod neighbours;

/// A message on its way to a process, with its descriptors.
#[derive(Debug)]
pub(crate) struct Delivery {
    pub(crate) to: ProcessId,
    pub(crate) message: FromNode,
    pub(crate) descriptors: Vec<OwnedFd>,
}

impl Delivery {
    /// Makes a delivery without descriptors.
    pub(crate) fn plain(to: ProcessId, message: FromNode) -> Self {
        Delivery { to, message, descriptors: Vec::new() }
    }

    /// The same for each of these processes.
    pub(crate) fn to_all(
        all: impl IntoIterator<Item = ProcessId>,
        message: FromNode,
    ) -> impl Iterator<Item = Self> {
        all.into_iter().map(move |to| Delivery::plain(to, message.clone()))
    }
}

/// A message that a process should not have sent, or a request that could not be met.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Complaint {
    #[error("{what} came with {got} descriptors instead of {want}")]
    Descriptors { what: &'static str, got: usize, want: usize },
    #[error("it wrote to {0}, which was never a process of this node")]
    UnknownProcess(ProcessId),
    #[error("it wrote to {0} a second time; a link takes each link message once")]
    LinkMessageAgain(ProcessId),
    #[error("it refused half of a link that {0} has not sent it, or has refused it before")]
    NoSuchHalf(ProcessId),
    #[error("it offered {0} fresh rings, to which it has no link, or before the last were answered")]
    OfferAgain(ProcessId),
    #[error("it answered an offer that {0} has not made, or has answered it before")]
    NoSuchOffer(ProcessId),
    #[error("it wrote to itself by way of the node")]
    ToItself,
    #[error("it published {0:?}, which belongs to another process")]
    ChunkOfOther(ChunkId),
    #[error("it published {0:?} twice")]
    ChunkAgain(ChunkId),
    #[error("it published more than {MAX_CHUNKS} chunks; give its pools larger chunks")]
    TooManyChunks,
    #[error("it says that it has unmapped {0:?}, which it had not mapped")]
    NotMapped(ChunkId),
    #[error("it withdrew {0:?}, which it has not published, or has withdrawn before")]
    NotPublished(ChunkId),
    #[error("it published {0:?} with no bytes")]
    EmptyChunk(ChunkId),
    #[error("it used a bad name: {0}")]
    Name(#[source] NameError),
    #[error("it registered {0}, which does not exist")]
    UnknownActor(ActorId),
    #[error("a descriptor for {0:?} could not be made ({1}); {OPEN_FILES}")]
    NoDescriptor(ChunkId, #[source] io::Error),
    #[error(
        "it asks for more than {MAX_PARKED} chunks at a time that their owners have not published, which no process of the framework \
         does"
    )]
    TooManyQuestions,
    #[error("it answered ping {0}, which it was not sent")]
    NotPinged(u64),
    #[error("it reported {0:?} as tainted, which cannot be its own")]
    ForgedTaint(TaintRange),
    #[error("it reported more tainted ranges than its streams can have; the rest is not believed")]
    TooMuchTaint,
    #[error("it speaks as the gateway to other hosts, which it is not")]
    NotTheGateway,
    #[error("its half of a link to {0} could not be passed on ({1}); {OPEN_FILES}")]
    NoHalf(ProcessId, #[source] io::Error),
}

impl Complaint {
    /// Whether its sender may be innocent: the node could not fulfil the request, or a frame of a peer made
    /// the sender ask. Such complaints do not count against it, or one process could have another killed.
    pub(crate) fn may_be_innocent(&self) -> bool {
        matches!(
            self,
            Complaint::NoDescriptor(..)
                | Complaint::NoHalf(..)
                | Complaint::UnknownProcess(_)
                | Complaint::TooManyQuestions
        )
    }
}

/// The answer to a bad [`ToNode::Register`]. No actor has this id: ids begin at 1.
pub(crate) const NO_ACTOR: ActorId = ActorId(0);

/// The node's knowledge about its processes, and the handling of their requests.
#[derive(Default)]
pub(crate) struct Broker {
    pub(crate) roster: Roster,
    pub(crate) registry: Registry,
    pub(crate) deaths: Deaths,
    chunks: Chunks,
    questions: Questions,
    reclaims: Reclaims,
    link_messages: LinkMessages,
    watches: Watches,
    pub(super) fences: Fences,
    /// Actors and names that neighbours have.
    pub(super) neighbours: Box<dyn NeighbourActors>,
    // The last life of each slot: every life up to it was a process once.
    lifecycle: HashMap<usize, u32>,
}

impl Broker {
    /// Makes the broker of a node with these pages of its own. On one of them it publishes what all processes
    /// must know of deaths.
    pub(crate) fn with_pages(pages: ProcessPages) -> Self {
        Broker { deaths: Deaths::with_pages(pages), ..Broker::default() }
    }

    /// Gives the broker these neighbours. It has none otherwise.
    pub(crate) fn with_neighbours(mut self, neighbours: Box<dyn NeighbourActors>) -> Self {
        self.neighbours = neighbours;
        self
    }

    /// Lends the neighbours, and beside them the tables that they use.
    pub(super) fn split(&mut self) -> (Tables<'_>, &mut (dyn NeighbourActors + 'static)) {
        let Broker { roster, registry, watches, reclaims, neighbours, .. } = self;
        (Tables { roster, registry, watches, reclaims }, &mut **neighbours)
    }

    /// Adds what neighbours must hear before any process here hears the next deliveries.
    pub(crate) fn before_deliveries(&mut self, out: &mut Vec<Delivery>) {
        let (tables, neighbours) = self.split();
        neighbours.before_deliveries(tables, out);
    }

    /// Whether there is, or was, such a process.
    pub(crate) fn knows(&self, process: ProcessId) -> bool {
        self.lifecycle.get(&process.slot()).is_some_and(|last| process.incarnation() <= *last)
    }

    /// Adds `process`: from now on it may ask, and is told the news. Returns the message that it must get
    /// first, if there is one.
    pub(crate) fn joined(&mut self, process: ProcessId) -> Option<Delivery> {
        self.roster.join(process);
        self.deaths.say_processes(self.roster.living().count());
        self.lifecycle.insert(process.slot(), process.incarnation());
        self.deaths.joined(process)
    }

    /// Tells all other processes why `process_down.process` has ended and which of its actors come back.
    /// These keep their names. A call of [`left`](Self::left) follows.
    pub(crate) fn on_process_down(&mut self, process_down: ProcessDown, out: &mut Vec<Delivery>) {
        for (actor, _) in &process_down.restarting {
            self.roster.detach(*actor);
        }
        for actor in &process_down.gave_up {
            self.given_up(*actor, process_down.reason.clone());
        }
        let others = self.roster.living().filter(|to| *to != process_down.process);
        out.extend(Delivery::to_all(others, FromNode::ProcessDown(process_down.clone())));
    }

    /// Frees the names of an actor with a restart policy that has ended for good.
    pub(crate) fn given_up(&mut self, actor: ActorId, reason: EndReason) {
        self.roster.give_up(actor, reason);
        self.registry.forget(|named| named == actor);
    }

    /// Tells everybody that waits for an actor's next life that it has ended for good.
    pub(crate) fn give_up(&mut self, actor: ActorId, reason: EndReason, out: &mut Vec<Delivery>) {
        self.given_up(actor, reason.clone());
        self.announce(actor, out);
        self.tell(&Lifecycle::GaveUp { actor, reason }, out);
    }

    /// Tells all watchers of an actor what has happened to it.
    pub(crate) fn tell(&mut self, event: &Lifecycle, out: &mut Vec<Delivery>) {
        self.split().0.tell(event, out);
    }

    /// Tells a process that has just joined the locations of all actors that have moved: it may hold
    /// addresses as old as the actors.
    pub(crate) fn brief(&self, to: ProcessId, out: &mut Vec<Delivery>) {
        out.extend(self.roster.moved().map(|(actor, at)| Delivery::plain(to, FromNode::Actor { actor, at })));
    }

    /// Tells all processes where an actor is now.
    pub(crate) fn announce(&mut self, actor: ActorId, out: &mut Vec<Delivery>) {
        let at = self.roster.whereabouts(actor);
        self.split().0.announce(actor, &at, out);
    }

    /// Whether all messages of `process` were read, so that its slot can have another life: messages of two
    /// lives in one slot never mix.
    pub(crate) fn is_reclaimed(&self, process: ProcessId) -> bool {
        !self.roster.lifecycle(process) && !self.reclaims.is_open(process)
    }

    /// Removes `process`, which has ended: frees its names and tells all others. Its chunks stay for as long
    /// as anybody can hold a lease in them (LEASE-4).
    pub(crate) fn left(&mut self, process: ProcessId, out: &mut Vec<Delivery>) {
        if !self.roster.lifecycle(process) {
            self.deaths.forget(process);
            return;
        }
        let dead = self.roster.leave(process);
        self.deaths.say_processes(self.roster.living().count());
        self.watches.left(process);
        self.left_fences(process);
        let (tables, neighbours) = self.split();
        neighbours.drop_waits(tables, process, out);
        self.link_messages.left(process);
        self.registry.forget(|actor| dead.contains(&actor));
        let unanswered = self.questions.left(process);
        out.extend(unanswered.iter().map(no_chunk));
        // Before the news of the death: a process that gives up the dead one then knows already how far its
        // clocks had come (DEATH-3).
        self.deaths.died(process, Instant::now(), out);
        // The node's own process hears it first: it releases the waits for the dead process's clocks
        // (DEATH-1).
        let mut living: Vec<_> = self.roster.living().collect();
        living.sort();
        out.extend(Delivery::to_all(living, FromNode::Exited { process }));
        // LEASE-4: in this order, so that nobody hears of a reclaim before it has heard of the death.
        let mut reclaimed = self.reclaims.left(process);
        if self.reclaims.died(process, self.roster.living()) {
            reclaimed.push(process);
        }
        self.reclaim(&reclaimed, out);
        let (tables, neighbours) = self.split();
        neighbours.has_drained(tables, out);
    }

    /// Tells all processes that the messages of these dead processes were read: their leases can be dropped
    /// (LEASE-4).
    fn reclaim(&mut self, dead: &[ProcessId], out: &mut Vec<Delivery>) {
        for process in dead {
            self.chunks.reclaimed(*process);
            out.extend(Delivery::to_all(self.roster.living(), FromNode::Reclaim { process: *process }));
        }
    }

    /// Counts the bookkeeping for processes and their messages.
    #[cfg(feature = "testing")]
    pub(crate) fn kept(&self) -> TableLengths {
        TableLengths {
            living: self.roster.living().count(),
            names: self.registry.len(),
            chunks: self.chunks.kept(),
            parked: self.questions.kept(),
            dying: self.reclaims.len(),
            pairs: self.link_messages.len(),
            watched: self.watches.len(),
            other_hosts: self.neighbours.kept_for_neighbours(),
            deaths: self.deaths.kept(),
        }
    }

    /// Returns how many chunks are kept, for processes that may hold a lease in them.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn chunks_kept(&self) -> usize {
        self.chunks.len()
    }

    /// Removes an actor that has ended: its address leads nowhere and its names are free.
    pub(crate) fn actor_ended(&mut self, actor: ActorId) {
        self.roster.remove(actor);
        self.registry.forget(|named| named == actor);
    }

    /// Takes the pings that the last calls led to. The caller sends each behind everything else that was sent
    /// to its process. It calls [`pong`](Self::pong) once it has handled everything that the process sent
    /// before its answer.
    pub(crate) fn take_pings(&mut self) -> Vec<Ping> {
        self.questions.take_pings()
    }

    /// Takes the answer of `from` to a ping: all chunks that it had published before are known now.
    pub(crate) fn pong(
        &mut self,
        from: ProcessId,
        number: u64,
        out: &mut Vec<Delivery>,
    ) -> Result<(), Complaint> {
        let unanswered =
            self.questions.pong(from, number).map_err(|NotAsked| Complaint::NotPinged(number))?;
        out.extend(unanswered.iter().map(no_chunk));
        Ok(())
    }

    /// Handles a message of `from`. Deliveries are added to `out` also when there is a complaint.
    pub(crate) fn handle(
        &mut self,
        from: ProcessId,
        message: ToNode,
        descriptors: Vec<OwnedFd>,
        out: &mut Vec<Delivery>,
    ) -> Result<(), Complaint> {
        let (tables, neighbours) = self.split();
        if let Some(result) = neighbours.handle_for_neighbours(tables, from, &message, out) {
            return result.and_then(|()| expect(&descriptors, "what is about other hosts", 0));
        }
        let mut answer = |message| out.push(Delivery::plain(from, message));
        match message {
            ToNode::Route { to, link_message } => self.link_message(from, to, link_message, descriptors, out),
            ToNode::RefuseLink { peer, number, why } => {
                expect(&descriptors, "the refusal of a link", 0)?;
                self.refuse_link(from, peer, number, why, out)
            }
            ToNode::PublishChunk { chunk, device, bytes } => {
                let got = descriptors.len();
                let wrong = if got != 2 {
                    Some(Complaint::Descriptors { what: "a chunk", got, want: 2 })
                } else if chunk.owner != from {
                    Some(Complaint::ChunkOfOther(chunk))
                } else {
                    (bytes == 0).then_some(Complaint::EmptyChunk(chunk))
                };
                if let Some(wrong) = wrong {
                    peer_fd::close(descriptors);
                    return Err(wrong);
                }
                let pair = <[OwnedFd; 2]>::try_from(descriptors);
                let pair = pair.map_err(|_| Complaint::Descriptors { what: "a chunk", got, want: 2 })?;
                self.chunks.publish(chunk, device, bytes, pair).map_err(|refused| match refused {
                    ChunkRefused::Again => Complaint::ChunkAgain(chunk),
                    ChunkRefused::TooMany => Complaint::TooManyChunks,
                })?;
                let parked = self.questions.published(chunk);
                // All of them are answered, even if one answer fails.
                parked.iter().map(|question| self.hand_out(question, out)).fold(Ok(()), Result::and)
            }
            ToNode::WantChunk { chunk, access } => {
                self.want_chunk(Question { asker: from, chunk, access }, out)?;
                expect(&descriptors, "a question for a chunk", 0)
            }
            ToNode::Unmapped { chunk, access } => {
                expect(&descriptors, "the word that a chunk is unmapped", 0)?;
                let unmapped = self.chunks.unmapped(chunk, from, access);
                unmapped.map_err(|NotMapped| Complaint::NotMapped(chunk))
            }
            ToNode::WithdrawChunk { chunk } => {
                expect(&descriptors, "the word that a chunk went back", 0)?;
                let own = Some(chunk).filter(|chunk| chunk.owner == from);
                let holders = own.and_then(|chunk| self.chunks.withdraw(chunk).ok());
                let holders = holders.ok_or(Complaint::NotPublished(chunk))?;
                let holders = holders.into_iter().filter(|to| self.roster.lifecycle(*to));
                out.extend(Delivery::to_all(holders, FromNode::ChunkWithdrawn { chunk }));
                Ok(())
            }
            ToNode::Drained { process } => {
                if self.reclaims.drained(from, process) {
                    self.reclaim(&[process], out);
                }
                let (tables, neighbours) = self.split();
                neighbours.has_drained(tables, out);
                expect(&descriptors, "the word that a ring is drained", 0)
            }
            ToNode::Tainted { round, ranges } => {
                self.deaths.answered(from, round, &ranges, Instant::now(), out)?;
                expect(&descriptors, "the word that a round is marked", 0)
            }
            ToNode::WantActor { actor } => {
                answer(FromNode::Actor { actor, at: self.roster.whereabouts(actor) });
                expect(&descriptors, "a question for an actor", 0)
            }
            ToNode::Fenced { ticket } => {
                self.fenced(from, ticket);
                expect(&descriptors, "the word that messages were taken", 0)
            }
            ToNode::Watch { ticket, actor } => {
                let exists = self.roster.actor(actor).is_some();
                let down = self.watches.watch(from, actor, exists);
                answer(FromNode::Watching { ticket, down });
                expect(&descriptors, "a request to watch", 0)
            }
            ToNode::Unwatch { actor } => {
                self.watches.unwatch(from, actor);
                expect(&descriptors, "the end of a watch", 0)
            }
            ToNode::Register { ticket, name, actor } => {
                let (result, complaint) = self.register(from, name, actor);
                answer(FromNode::Registered { ticket, result });
                complaint.map_or(Ok(()), Err)?;
                expect(&descriptors, "a registration", 0)
            }
            ToNode::Lookup { ticket, name } => {
                let found = self.registry.find(&name).and_then(|actor| {
                    if self.neighbours.is_neighbours(&self.roster, actor) {
                        // Its location has a meaning only at its home (HOST-2).
                        let location = Location { process: ProcessId::NODE, index: 0, capacity: 1 };
                        return Some(Named { actor, location, takes: None });
                    }
                    let entry = self.roster.actor(actor).filter(|entry| entry.started)?;
                    Some(Named { actor, location: entry.location, takes: entry.takes.clone() })
                });
                if found.is_none()
                    && check_name(&name).is_ok()
                    && self.neighbours.find_at_neighbours(from, ticket, &name, out)
                {
                    return expect(&descriptors, "a look-up", 0);
                }
                out.push(Delivery::plain(from, FromNode::Found { ticket, found }));
                check_name(&name).map_err(Complaint::Name)?;
                expect(&descriptors, "a look-up", 0)
            }
            // The supervisor hands those of the gateway to the part for neighbours.
            ToNode::Neighbours(_) => Err(Complaint::NotTheGateway),
            // The supervisor carries it out.
            ToNode::StartActor { .. } => Ok(()),
        }
    }

    fn want_chunk(&mut self, question: Question, out: &mut Vec<Delivery>) -> Result<(), Complaint> {
        let owner = question.chunk.owner;
        // The node has already read all chunks that the asker, or a process that has ended, published.
        if self.chunks.knows(question.chunk) || owner == question.asker || !self.roster.lifecycle(owner) {
            return self.hand_out(&question, out);
        }
        self.questions.park(question).map_err(|TooMany| {
            out.push(no_chunk(&question));
            Complaint::TooManyQuestions
        })
    }

    /// Answers a question from what the node knows now.
    fn hand_out(&mut self, question: &Question, out: &mut Vec<Delivery>) -> Result<(), Complaint> {
        let Question { asker: to, chunk, access } = *question;
        let Some(known) = self.chunks.hand_out(chunk, to, access) else {
            out.push(no_chunk(question));
            return Ok(());
        };
        match known {
            Ok((device, bytes, descriptor)) => {
                let message = FromNode::Chunk { chunk, device, bytes, access };
                out.push(Delivery { to, message, descriptors: vec![descriptor] });
                Ok(())
            }
            Err(error) => {
                out.push(no_chunk(question));
                Err(Complaint::NoDescriptor(chunk, error))
            }
        }
    }

    /// Gives a name to an actor, unless another one has it, here or at a neighbour.
    pub(crate) fn give_name(&mut self, by: ProcessId, name: String, actor: ActorId) -> Result<(), NameError> {
        if let Some(host) = self.neighbours.host_of_name(&name) {
            return Err(NameError::Elsewhere { name, host });
        }
        self.registry.register_by(by, name, actor)
    }

    fn register(
        &mut self,
        by: ProcessId,
        name: String,
        actor: ActorId,
    ) -> (Result<(), ActorId>, Option<Complaint>) {
        // This host does not know whether an actor of another host lives: its senders find out.
        if self.roster.actor(actor).is_none() && !self.neighbours.is_neighbours(&self.roster, actor) {
            return (Err(NO_ACTOR), Some(Complaint::UnknownActor(actor)));
        }
        match self.give_name(by, name, actor) {
            Ok(()) => (Ok(()), None),
            Err(NameError::Taken { holder, .. }) => (Err(holder), None),
            Err(NameError::Elsewhere { host, .. }) => (Err(ActorId::numbered(host, 0)), None),
            Err(error) => (Err(NO_ACTOR), Some(Complaint::Name(error))),
        }
    }
}

/// The lengths of the broker's tables, for tests of their bounds.
#[cfg(feature = "testing")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TableLengths {
    /// Processes that live.
    pub(crate) living: usize,
    /// Names in the registry, and processes that have registered some.
    pub(crate) names: usize,
    /// Chunks, and owners of chunks.
    pub(crate) chunks: usize,
    /// Actors and names of other hosts that processes wait for.
    pub(crate) other_hosts: usize,
    /// Questions that wait, owners that they wait for, askers and pings.
    pub(crate) parked: usize,
    /// Dead processes that some process has not drained.
    pub(crate) dying: usize,
    /// Pairs of processes that have written to each other.
    pub(crate) pairs: usize,
    /// Actors that are watched, or between two lives.
    pub(crate) watched: usize,
    /// Pages of processes, and processes that have reported tainted ranges.
    pub(crate) deaths: usize,
}

fn no_chunk(question: &Question) -> Delivery {
    let Question { asker: to, chunk, access } = *question;
    Delivery::plain(to, FromNode::NoChunk { chunk, access })
}

pub(super) fn expect(descriptors: &[OwnedFd], what: &'static str, want: usize) -> Result<(), Complaint> {
    if descriptors.len() == want {
        return Ok(());
    }
    Err(Complaint::Descriptors { what, got: descriptors.len(), want })
}

#[cfg(test)]
#[path = "broker_tests.rs"]
mod tests;
