//! The directory of actors: their locations and names, as the node reported them, and open questions to the
//! node.
//!
//! An address remembers one location. An entry of the directory replaces it. An actor that was restarted is
//! elsewhere. An actor that is being restarted has no location for a while, and its senders wait in its
//! queue. That queue goes with the actor from life to life, so waiting senders keep their order (MBX-1).
//!
//! [`Route`](super::route) uses it for each message once any actor has ever moved. The node's messages update
//! it, and so do the actors of this process when they restart.
//!
//! **Invariants.** The node's last word is true, and replaces the location that an address remembers. An
//! actor has one queue here for all its lives. Each change wakes the senders that wait in it (MOVED: a thread
//! that sees the flag `moved` also sees the entries).
//!
//! The location of an actor of another host comes from the node, from the first message on. The location in
//! its address has a meaning only on its home host (HOST-2), and messages from here reach it through a
//! mailbox of this host's gateway. If it has no location there any more, it *rests*: the next send has the
//! node asked again, and waits in the queue that the actor had (MBX-1). The last [`MAX_RESTING`] actors that
//! rest or have ended are remembered. A send to any other one has the node asked too (MBX-2). The node is
//! asked in the same way, on all hosts, for an actor that [roams](ActorId::roams).
//!
//! **Locks.** `resting`, then a shard of the table, then those of [`Actors`] and [`Links`], and a queue's
//! locations. No task is woken under a shard's lock, and no message to the node is sent under one.
//!
//! **On a crash** of an actor's process the node says whether the actor is restarted; until then its senders
//! wait here. **On cancellation** of a registration or a lookup the answer finds no waiter, and is dropped.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::actors::Actors;
use super::inbox::Inbox;
use super::links::Links;
use super::process::ProcessLifecycle;
use super::{Link, Queue};
use crate::ids::{ActorId, ProcessId};
use crate::limits::MAX_RESTING;
use crate::transport::control_channel::{
    ControlChannel, ControlChannelClosed, Location, Named, StartedActor, ToNode,
};
use crate::transport::lifecycle::{EndReason, ExitedProcess, ProcessDown, Whereabouts};

#[derive(Debug)]
pub(crate) struct Directory {
    me: ProcessId,
    /// The host that this process runs on, in a node with several.
    host: AtomicU16,
    /// The node's reports on actors that did not stay where they were started.
    known: DashMap<ActorId, Known>,
    /// Whether there is any entry, so that a send need not look here while nothing has ever moved.
    moved: AtomicBool,
    /// Actors of other hosts that rest or have ended, the longest first. It may list an actor that no longer
    /// does either.
    resting: Mutex<VecDeque<ActorId>>,
    next: AtomicU64,
    registrations: DashMap<u64, oneshot::Sender<Result<(), ActorId>>>,
    lookups: DashMap<u64, oneshot::Sender<Option<Named>>>,
    starts: DashMap<u64, oneshot::Sender<Result<StartedActor, String>>>,
}

#[derive(Debug)]
struct Known {
    /// `None` while the node is being asked, or has to be.
    at: Option<Whereabouts>,
    /// It is of another host and has no location here: the node has to be asked.
    rests: bool,
    /// The queue in which its senders wait.
    queue: Queue,
    /// Whether events at its location wake them.
    arrived: bool,
}

/// The way to an actor.
#[derive(Debug)]
pub(super) enum Resolution {
    /// It is there. Its senders wait in this queue, if it brought one along: see [`Directory::arrive_at`].
    To(Location, Option<Queue>),
    /// It will have a location later; its senders wait here.
    Later(Queue),
    /// Its restarts are used up.
    GaveUp(EndReason),
    /// There is no such actor.
    Nowhere,
    /// Its process has ended, and it is not restarted.
    Exited(ExitedProcess),
}

/// The place at which an actor has arrived.
#[derive(Clone, Copy)]
pub(super) enum Arrival<'a> {
    /// In this process, with this inbox.
    Here(&'a dyn Inbox),
    /// In another process, over this link.
    There(&'a Link),
}

impl Directory {
    /// Makes the empty directory of process `me`.
    pub(super) fn new(me: ProcessId) -> Self {
        Directory {
            me,
            host: AtomicU16::new(0),
            known: DashMap::new(),
            moved: AtomicBool::new(false),
            resting: Mutex::default(),
            next: AtomicU64::new(0),
            registrations: DashMap::new(),
            lookups: DashMap::new(),
            starts: DashMap::new(),
        }
    }

    pub(super) fn registered(&self, ticket: u64, result: Result<(), ActorId>) {
        if let Some((_, waiting)) = self.registrations.remove(&ticket) {
            // The caller may have given up.
            let _ = waiting.send(result);
        }
    }

    pub(super) fn found(&self, ticket: u64, found: Option<Named>) {
        if let Some((_, waiting)) = self.lookups.remove(&ticket) {
            let _ = waiting.send(found);
        }
    }

    pub(super) fn started(&self, ticket: u64, result: Result<StartedActor, String>) {
        if let Some((_, waiting)) = self.starts.remove(&ticket) {
            let _ = waiting.send(result);
        }
    }
}

impl Known {
    /// Makes the entry of an actor for which the node is asked. Its senders wait in `queue`.
    fn asked(queue: Queue) -> Self {
        Known { at: None, rests: false, queue, arrived: false }
    }

    /// Returns whether the entry can be forgotten without loss, because the node can repeat it.
    fn can_be_forgotten(&self) -> bool {
        self.is_over() && self.queue.is_unshared()
    }

    fn is_over(&self) -> bool {
        self.rests || self.at.as_ref().is_some_and(Whereabouts::is_final)
    }

    fn way(&self) -> Resolution {
        match &self.at {
            Some(Whereabouts::At(location)) => Resolution::To(*location, Some(self.queue.clone())),
            Some(Whereabouts::Restarting(_)) | None => Resolution::Later(self.queue.clone()),
            Some(Whereabouts::GaveUp(reason)) => Resolution::GaveUp(reason.clone()),
            Some(Whereabouts::Nowhere) => Resolution::Nowhere,
        }
    }
}

impl Directory {
    /// Returns whether any actor is known not to be where it was started.
    #[inline]
    pub(super) fn has_moved(&self) -> bool {
        // MOVED acquire: pairs with `note`.
        self.moved.load(Ordering::Acquire)
    }

    pub(crate) fn set_host(&self, host: u16) {
        // Relaxed: the one thread that opens the process calls it, before it hears of other hosts.
        self.host.store(host, Ordering::Relaxed);
    }

    pub(crate) fn host(&self) -> u16 {
        self.host.load(Ordering::Relaxed)
    }

    pub(super) fn is_on_other_host(&self, actor: ActorId) -> bool {
        // The node says where a roaming actor lives, even if it lives on this host.
        actor.host() != self.host() || actor.roams()
    }

    /// Returns whether an actor lives, or may live, on another host. From the first such actor on, routes are
    /// looked up here, because the location in its address does not lead there.
    pub(crate) fn meets_other_host(&self, actor: ActorId) -> bool {
        let on_other_host = self.is_on_other_host(actor);
        if on_other_host {
            // MOVED release, as in `note`.
            self.moved.store(true, Ordering::Release);
        }
        on_other_host
    }

    /// Does the same as [`way_to`](Self::way_to), for a message. If an actor of another host is not known
    /// yet, it asks the node.
    pub(super) fn way_for(
        &self,
        actor: ActorId,
        remembered: Location,
        lifecycle: &ProcessLifecycle,
        control: &dyn ControlChannel,
    ) -> Resolution {
        if !self.is_on_other_host(actor) {
            return self.way_to(actor, remembered);
        }
        if let Some(known) = self.known.get(&actor).filter(|known| !known.rests) {
            return known.way();
        }
        if lifecycle.is_stopped() {
            return Resolution::Nowhere; // nobody would hear the answer
        }
        let way = match self.known.entry(actor) {
            Entry::Occupied(mut entry) => {
                let known = entry.get_mut();
                if !std::mem::take(&mut known.rests) {
                    return known.way();
                }
                known.way()
            }
            Entry::Vacant(entry) => entry.insert(Known::asked(Queue::default())).way(),
        };
        if control.send(ToNode::WantActor { actor }, Vec::new()).is_err() {
            self.known.remove(&actor);
            return Resolution::Nowhere;
        }
        way
    }

    /// Returns the way to `actor`: the node's last report, or else the location `remembered`.
    pub(super) fn way_to(&self, actor: ActorId, remembered: Location) -> Resolution {
        if !self.has_moved() {
            return Resolution::To(remembered, None);
        }
        self.known.get(&actor).map_or(Resolution::To(remembered, None), |known| known.way())
    }

    /// Returns the location that an address should remember: the new one, if the actor has moved.
    pub(crate) fn location_of(&self, actor: ActorId, remembered: Location) -> Location {
        if self.is_on_other_host(actor) {
            return remembered;
        }
        match self.way_to(actor, remembered) {
            Resolution::To(location, _) => location,
            _ => remembered,
        }
    }

    /// Returns the way to `actor`, whose process at `location` cannot be written to. If this process does not
    /// know what became of it, because this process is younger, it asks the node.
    pub(super) fn way_after(
        &self,
        actor: ActorId,
        location: Location,
        links: &Links,
        lifecycle: &ProcessLifecycle,
        actors: &Actors,
        control: &dyn ControlChannel,
    ) -> Resolution {
        // Looked up once more: between the sender's lookup and its attempt, the node may have said where the
        // actor is now. Only a way that leads to the same process again needs the steps below. It has a queue
        // if the node reported it.
        let known = match self.way_to(actor, location) {
            Resolution::To(now, queue) if now.process == location.process => queue,
            other => return other,
        };
        let process = location.process;
        let link = links.in_slot_of(process);
        // The node may have reported that the actor lives in a new process of the slot before it reported the
        // end of the slot's last process. There is no link yet, because the last one still has the slot. This
        // case is checked before any sign that the process is gone, because nothing of the new process is
        // known here yet.
        if let Some(queue) = &known
            && link.as_ref().is_some_and(|link| link.peer < process && !lifecycle.exited.contains(link.peer))
        {
            // This process is about to hear that the slot's earlier process has ended, and looks again then.
            return Resolution::Later(queue.clone());
        }
        // A peer that broke the protocol is alive, and so are its actors. They are lost only to this process,
        // and the node would still report them there.
        let broken = link.is_some_and(|link| link.peer == process && link.is_broken())
            && !lifecycle.exited.contains(process);
        // In each of these cases the node has no more to say. It has named this very location; or the peer is
        // alive and was given up; or the node has said how the process ended, and before that which of its
        // actors are restarted. A stopped reader would not hear the answer.
        if known.is_some() || broken || lifecycle.exited.how(process).is_some() || lifecycle.is_stopped() {
            return Resolution::Exited(self.exited(process, actor, lifecycle));
        }
        // The process ended before this one began to listen. The entry is made before the question, so that
        // the answer finds the queue of the waiting senders. A second sender finds the entry, and does not
        // ask again.
        let queue = self.queue_at(actor, location, links, actors);
        let way = match self.known.entry(actor) {
            Entry::Occupied(entry) => return entry.get().way(),
            Entry::Vacant(entry) => entry.insert(Known::asked(queue)).way(),
        };
        // MOVED release, as in `note`.
        self.moved.store(true, Ordering::Release);
        if control.send(ToNode::WantActor { actor }, Vec::new()).is_err() {
            self.known.remove(&actor);
            return Resolution::Exited(self.exited(process, actor, lifecycle));
        }
        way
    }

    /// Wakes senders after a process has ended: its slot may already have a new process, which they wait to
    /// reach.
    pub(super) fn look_again(&self) {
        let not_arrived = self.known.iter().filter(|known| !known.arrived);
        let queues: Vec<_> = not_arrived.map(|known| known.queue.clone()).collect();
        queues.iter().for_each(Queue::wake_front);
    }

    /// Returns what this process knows of a process that ended, for a caller that loses a message to or a
    /// reply of `actor` with it.
    pub(super) fn exited(
        &self,
        process: ProcessId,
        actor: ActorId,
        lifecycle: &ProcessLifecycle,
    ) -> ExitedProcess {
        let worker = lifecycle.exited.how(process).map(|last| (last.worker.clone(), last.reason.clone()));
        let known = self.known.get(&actor);
        let restarts = known.is_some_and(|known| match &known.at {
            Some(Whereabouts::Restarting(_)) => true,
            Some(Whereabouts::At(location)) => location.process != process,
            _ => false,
        });
        ExitedProcess { process, worker, restarts }
    }

    /// Notes the node's report of where an actor is.
    pub(super) fn actor_is(&self, actor: ActorId, at: Whereabouts, links: &Links, actors: &Actors) {
        if at == Whereabouts::Nowhere && !self.known.contains_key(&actor) {
            return; // nobody asked
        }
        self.note(actor, at, links, actors);
    }

    /// Notes the node's report that a process has ended, and what becomes of its actors.
    pub(super) fn on_process_down(
        &self,
        process_down: ProcessDown,
        links: &Links,
        actors: &Actors,
        lifecycle: &ProcessLifecycle,
    ) {
        // The actors first, and then how the process ended: a thread that finds the latter (`way_after`) also
        // finds every actor.
        for (actor, location) in &process_down.restarting {
            self.note(*actor, Whereabouts::Restarting(*location), links, actors);
        }
        for actor in &process_down.gave_up {
            self.note(*actor, Whereabouts::GaveUp(process_down.reason.clone()), links, actors);
        }
        lifecycle.exited.note_how(process_down);
    }

    /// Remembers where an actor is, and wakes the first sender that waits for it.
    fn note(&self, actor: ActorId, at: Whereabouts, links: &Links, actors: &Actors) {
        let mut is_new = false;
        let is_final = at.is_final();
        let queue = {
            let mut known = self.known.entry(actor).or_insert_with(|| {
                is_new = !matches!(at, Whereabouts::Restarting(_));
                // Senders that wait at its last location now wait for its next one.
                let queue = match &at {
                    Whereabouts::Restarting(location) => self.queue_at(actor, *location, links, actors),
                    _ => Queue::default(),
                };
                Known::asked(queue)
            });
            // The first sender makes the link, and has it wake the others.
            self.leave_place(actor, &mut known, links);
            known.rests = false;
            known.at = Some(at);
            known.queue.clone()
        };
        if is_final && self.is_on_other_host(actor) {
            self.rest(actor);
        }
        // MOVED release: pairs with `has_moved`. A thread that sees the flag also sees the entry.
        self.moved.store(true, Ordering::Release);
        queue.wake_front();
        if is_new {
            // A sender that found the actor away before the node reported it waits at its last location,
            // which is not known here. So the senders at the front of all queues look again, and each wakes
            // the one behind it.
            links.all().iter().for_each(|link| link.wake_all_fronts());
        }
    }

    /// Detaches the queue from the actor's last location, so that events there no longer wake its senders.
    fn leave_place(&self, actor: ActorId, known: &mut Known, links: &Links) {
        known.arrived = false;
        known.queue.count_in(&Arc::default());
        // A link to the gateway stays, and other actors reuse its places.
        if let Some(Whereabouts::At(location)) = known.at.as_ref().filter(|_| self.is_on_other_host(actor))
            && let Some(link) = links.in_slot_of(location.process)
        {
            link.let_go(&known.queue);
        }
    }

    /// Notes the node's report that an actor of another host has no location here any more.
    pub(super) fn unplaced(&self, actor: ActorId, links: &Links, control: &dyn ControlChannel) {
        let is_waited_for = {
            let Some(mut known) = self.known.get_mut(&actor) else { return };
            self.leave_place(actor, &mut known, links);
            known.at = None;
            // A sender that joins the queue after this check finds that the actor rests, because it looks the
            // actor up once more then.
            known.rests = known.queue.is_empty();
            !known.rests
        };
        if !is_waited_for {
            return self.rest(actor);
        }
        // An error means that the node has ended, and then no sender waits for long.
        let _ = control.send(ToNode::WantActor { actor }, Vec::new());
    }

    /// Remembers that an actor of another host rests or has ended, and forgets another in its place.
    fn rest(&self, actor: ActorId) {
        let mut resting = self.resting.lock();
        resting.push_back(actor);
        // Two are tried for each one added, so that entries which cannot go yet do not stay for ever.
        for _ in 0..2 {
            if resting.len() <= MAX_RESTING {
                return;
            }
            let Some(oldest) = resting.pop_front() else { return };
            let forgotten = self.known.remove_if(&oldest, |_, known| known.can_be_forgotten());
            if forgotten.is_none() && self.known.get(&oldest).is_some_and(|known| known.is_over()) {
                // A sender holds its queue, and keeps a place in it.
                resting.push_back(oldest);
            }
        }
    }

    /// Returns the queue of the senders that wait at `location`.
    fn queue_at(&self, actor: ActorId, location: Location, links: &Links, actors: &Actors) -> Queue {
        let queue = if location.process == self.me {
            let inbox = actors.inbox(location.index).filter(|inbox| inbox.actor() == actor);
            inbox.map(|inbox| inbox.local().queue().clone())
        } else {
            let link = links.in_slot_of(location.process).filter(|link| link.peer == location.process);
            link.and_then(|link| link.queue(location.index).cloned())
        };
        queue.unwrap_or_default()
    }

    /// Attaches the queue that the actor brought along to `location`, so that events there wake the senders
    /// that wait for `actor`.
    pub(super) fn arrive_at(&self, actor: ActorId, location: Location, at: Arrival<'_>) {
        let Some(known) = self.known.get(&actor) else { return };
        if known.arrived || known.at != Some(Whereabouts::At(location)) {
            return;
        }
        drop(known);
        let Some(mut known) = self.known.get_mut(&actor) else { return };
        // The actor may have moved on in the meantime.
        if known.at == Some(Whereabouts::At(location)) && !known.arrived {
            match at {
                Arrival::Here(inbox) => inbox.local().take_in(&known.queue),
                Arrival::There(link) => link.take_in(location.index, &known.queue),
            }
            known.arrived = true;
        }
    }

    /// Notes that an actor of this process failed and is restarted. Senders of this process that wait for it
    /// keep waiting, in the queue that its mailbox had.
    pub(super) fn goes_away(&self, actor: ActorId, location: Location, links: &Links, actors: &Actors) {
        self.note(actor, Whereabouts::Restarting(location), links, actors);
    }

    /// Registers `actor` under `name`. The outer error means that the node is gone, the inner one that
    /// another actor has the name.
    pub(crate) async fn register(
        &self,
        name: String,
        actor: ActorId,
        control: &dyn ControlChannel,
    ) -> Result<Result<(), ActorId>, ControlChannelClosed> {
        let ticket = self.next.fetch_add(1, Ordering::Relaxed);
        let (answer, waiting) = oneshot::channel();
        self.registrations.insert(ticket, answer);
        control.send(ToNode::Register { ticket, name, actor }, Vec::new())?;
        waiting.await.map_err(|_| ControlChannelClosed)
    }

    /// Looks up the actor under `name`.
    pub(crate) async fn lookup(
        &self,
        name: String,
        control: &dyn ControlChannel,
    ) -> Result<Option<Named>, ControlChannelClosed> {
        let ticket = self.next.fetch_add(1, Ordering::Relaxed);
        let (answer, waiting) = oneshot::channel();
        self.lookups.insert(ticket, answer);
        control.send(ToNode::Lookup { ticket, name }, Vec::new())?;
        waiting.await.map_err(|_| ControlChannelClosed)
    }

    /// Asks the node to start an actor. The outer error means that the node is gone, the inner one says why
    /// it did not start.
    pub(crate) async fn start_actor(
        &self,
        request: Vec<u8>,
        control: &dyn ControlChannel,
    ) -> Result<Result<StartedActor, String>, ControlChannelClosed> {
        let ticket = self.next.fetch_add(1, Ordering::Relaxed);
        let (answer, waiting) = oneshot::channel();
        self.starts.insert(ticket, answer);
        control.send(ToNode::StartActor { ticket, request }, Vec::new())?;
        waiting.await.map_err(|_| ControlChannelClosed)
    }
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use super::*;
    use crate::testing::Cluster;
    use crate::transport::Transport;
    use crate::transport::control_channel::FromNode;

    /// MBX-2: the directory stays bounded, and a sender that waits for a resting actor keeps its queue.
    #[test]
    fn actors_of_other_hosts_that_have_ended_or_rest_are_forgotten_in_turn() {
        let cluster = Cluster::new(2);
        let (to, _inbox) = cluster.inbox::<u32>(1, 1);
        cluster.connect();
        let transport = cluster.transport(0);
        let Transport { directory, lifecycle, .. } = &**transport;
        let actor = |number| ActorId::numbered(5, number);
        let way = |number| directory.way_for(actor(number), to.location, lifecycle, &*transport.control);
        let is = |number, at| {
            transport.from_node(FromNode::Actor { actor: actor(number), at }, Vec::new());
        };
        let many = 3 * MAX_RESTING as u64;
        for number in 1..=many {
            assert!(matches!(way(number), Resolution::Later(_)), "the node is asked");
            // The node knows no such actor.
            cluster.run_node_until_idle();
            is(number, Whereabouts::At(to.location));
            match number % 3 {
                0 => is(number, Whereabouts::Nowhere),
                1 => is(number, Whereabouts::GaveUp(EndReason::Exit(3))),
                _ => transport.from_node(FromNode::Unplaced { actor: actor(number) }, Vec::new()),
            }
        }
        assert!(directory.known.len() <= MAX_RESTING, "{}", directory.known.len());
        assert_eq!(directory.resting.lock().len(), MAX_RESTING);

        // The last ones are remembered, and a sender that waits for one of them stays in front of later
        // senders.
        let gave_up = many - many % 3 + 1 - 3;
        assert!(matches!(way(gave_up), Resolution::GaveUp(EndReason::Exit(3))));
        let Resolution::Later(queue) = way(many - 1) else { panic!("it rests") };
        let place = queue.join();
        cluster.run_node_until_idle();
        is(many - 1, Whereabouts::At(to.location));
        transport.from_node(FromNode::Unplaced { actor: actor(many - 1) }, Vec::new());
        for number in many + 1..=2 * many {
            let _ = way(number);
            cluster.run_node_until_idle();
        }
        assert!(matches!(way(many - 1), Resolution::Nowhere), "it was asked for, because somebody waits");
        assert!(directory.known.get(&actor(many - 1)).is_some_and(|known| known.queue.is(&queue)));
        assert!(matches!(way(gave_up), Resolution::Later(_)), "it was forgotten, and is asked for");
        assert!(directory.known.len() <= MAX_RESTING + 3, "{}", directory.known.len());
        drop(place);
    }

    /// A sender that found an actor away waits in the queue of its link. The node's first report on that
    /// actor is that it is not restarted.
    #[test]
    fn the_first_word_of_an_actor_wakes_who_waits_at_its_last_location() {
        for at in [Whereabouts::GaveUp(EndReason::Exit(3)), Whereabouts::Nowhere] {
            let cluster = Cluster::new(2);
            let (to, _inbox) = cluster.inbox::<u32>(1, 1);
            cluster.connect();
            cluster.send(0, &to, 1);
            let [first, second] = [(); 2].map(|()| cluster.wait_in_line(0, &to));
            let message = FromNode::Actor { actor: to.actor, at: at.clone() };
            cluster.transport(0).from_node(message, Vec::new());
            // A report that there is no such actor is ignored if no sender asked for it.
            let wakes = usize::from(at != Whereabouts::Nowhere);
            assert_eq!((first.wakes(), second.wakes()), (wakes, 0), "{at:?}");
            drop(first);
            assert_eq!(second.wakes(), 1, "the next is woken by the one in front of it");
        }
    }
}
