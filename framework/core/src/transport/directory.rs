//! Where actors are, and names for them: what the node said, and questions to it.
//!
//! An address remembers one location. What is known here replaces it: an actor that was restarted is
//! elsewhere, and one that is being restarted is nowhere for a while, during which its senders wait in its
//! queue. That queue goes with the actor from life to life, so those who wait keep their order (MBX-1).
//!
//! Used by [`Route`](super::route) for each message where anything has ever moved, by what the node says, and
//! by the actors of this process, which go away and come back.
//!
//! **Invariants.** What the node said last is true, and replaces what an address remembers. An actor has one
//! queue here for all its lives. Whoever waits in it is woken by each change (MOVED: what is known is seen by
//! whoever sees that there is something).
//!
//! An actor of another host is where the node says, from the first message on: its address has a place that
//! means something at its home alone (HOST-2), and what reaches it from here is a mailbox of this host's
//! gateway. One that has no place there any more *rests*: whoever sends to it next has the node asked again,
//! and waits in the queue that it had (MBX-1). Of those that rest, and of those that have ended, the last
//! [`MAX_RESTING`] are known; who sends to another has the node asked too (MBX-2). One that
//! [roams](ActorId::roams) is asked for in the same way, on all hosts.
//!
//! **Locks.** `resting`, then a shard of the table, then those of [`Actors`] and [`Links`], and a queue's
//! locations. Nobody is woken under a shard, and nothing is sent to the node under one.
//!
//! **On a crash** of an actor's process the node says whether it comes back; until then its senders wait
//! here. **On cancellation** of a registration or a lookup the answer finds nobody, and is dropped.

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
use crate::transport::control_channel::{ControlChannel, ControlChannelClosed, Location, Named, ToNode};
use crate::transport::lifecycle::{EndReason, ExitedProcess, ProcessDown, Whereabouts};

#[derive(Debug)]
pub(super) struct Directory {
    me: ProcessId,
    /// The host that this process runs on, in a node with several.
    host: AtomicU16,
    /// What the node has said of actors that did not stay where they were started.
    known: DashMap<ActorId, Known>,
    /// Whether there is any, so that a send need not look where nothing ever moved.
    moved: AtomicBool,
    /// Actors of other hosts that rest or have ended, those that do for longest first. One may be in it that
    /// does neither any more.
    resting: Mutex<VecDeque<ActorId>>,
    next: AtomicU64,
    registrations: DashMap<u64, oneshot::Sender<Result<(), ActorId>>>,
    lookups: DashMap<u64, oneshot::Sender<Option<Named>>>,
}

#[derive(Debug)]
struct Known {
    /// `None` while the node is being asked, or has to be.
    at: Option<Whereabouts>,
    /// It is of another host, and has no place here: the node has to be asked.
    rests: bool,
    /// Where its senders wait.
    queue: Queue,
    /// Whether what happens at its location wakes them.
    arrived: bool,
}

/// The way to an actor.
#[derive(Debug)]
pub(super) enum Way {
    /// It is there. Its senders wait in the queue, if one came along with it: see [`Directory::arrive_at`].
    To(Location, Option<Queue>),
    /// It will be somewhere; its senders wait here.
    Later(Queue),
    /// Its restarts are used up.
    GaveUp(EndReason),
    /// There is none.
    Nowhere,
    /// Its process has ended, and it does not come back.
    Exited(ExitedProcess),
}

/// Where an actor has settled.
#[derive(Clone, Copy)]
pub(super) enum Arrival<'a> {
    /// In this process.
    Here(&'a dyn Inbox),
    /// In another.
    There(&'a Link),
}

impl Directory {
    /// Of process `me`.
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
        }
    }

    pub(super) fn registered(&self, ticket: u64, result: Result<(), ActorId>) {
        if let Some((_, waiting)) = self.registrations.remove(&ticket) {
            // Whoever asked may have given up.
            let _ = waiting.send(result);
        }
    }

    pub(super) fn found(&self, ticket: u64, found: Option<Named>) {
        if let Some((_, waiting)) = self.lookups.remove(&ticket) {
            let _ = waiting.send(found);
        }
    }
}

impl Known {
    /// Of an actor that the node is asked for. Its senders wait in `queue`.
    fn asked(queue: Queue) -> Self {
        Known { at: None, rests: false, queue, arrived: false }
    }

    /// Returns whether nothing is lost where it is forgotten: the node says it again.
    fn can_be_forgotten(&self) -> bool {
        self.is_over() && self.queue.is_unshared()
    }

    fn is_over(&self) -> bool {
        self.rests || self.at.as_ref().is_some_and(Whereabouts::is_final)
    }

    fn way(&self) -> Way {
        match &self.at {
            Some(Whereabouts::At(location)) => Way::To(*location, Some(self.queue.clone())),
            Some(Whereabouts::Restarting(_)) | None => Way::Later(self.queue.clone()),
            Some(Whereabouts::GaveUp(reason)) => Way::GaveUp(reason.clone()),
            Some(Whereabouts::Nowhere) => Way::Nowhere,
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

    pub(super) fn set_host(&self, host: u16) {
        // Before anything is heard of other hosts, and by the one thread that opens the process.
        self.host.store(host, Ordering::Relaxed);
    }

    #[cfg(feature = "hosts")]
    pub(super) fn host(&self) -> u16 {
        self.host.load(Ordering::Relaxed)
    }

    pub(super) fn is_foreign(&self, actor: ActorId) -> bool {
        // Where one lives that roams, the node says, also where that is here.
        actor.host() != self.host.load(Ordering::Relaxed) || actor.roams()
    }

    /// Returns whether an actor lives on another host, or may. From the first such on, routes are looked up:
    /// none of its addresses leads there.
    pub(super) fn meets_foreign(&self, actor: ActorId) -> bool {
        let foreign = self.is_foreign(actor);
        if foreign {
            // MOVED release, as in `note`.
            self.moved.store(true, Ordering::Release);
        }
        foreign
    }

    /// Does the same as [`way_to`](Self::way_to), for a message. Where an actor of another host is not known
    /// yet, the node is asked.
    pub(super) fn way_for(
        &self,
        actor: ActorId,
        remembered: Location,
        lifecycle: &ProcessLifecycle,
        control: &dyn ControlChannel,
    ) -> Way {
        if !self.is_foreign(actor) {
            return self.way_to(actor, remembered);
        }
        if let Some(known) = self.known.get(&actor).filter(|known| !known.rests) {
            return known.way();
        }
        if lifecycle.is_stopped() {
            return Way::Nowhere; // nobody would hear the answer
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
            return Way::Nowhere;
        }
        way
    }

    /// The way to `actor`: what the node said last, or else the location `remembered`.
    pub(super) fn way_to(&self, actor: ActorId, remembered: Location) -> Way {
        if !self.has_moved() {
            return Way::To(remembered, None);
        }
        self.known.get(&actor).map_or(Way::To(remembered, None), |known| known.way())
    }

    /// The location that an address should remember: of one that is elsewhere now, the new one.
    pub(super) fn location_of(&self, actor: ActorId, remembered: Location) -> Location {
        if self.is_foreign(actor) {
            return remembered;
        }
        match self.way_to(actor, remembered) {
            Way::To(location, _) => location,
            _ => remembered,
        }
    }

    /// The way to `actor`, whose process at `location` cannot be written to. Where this process has not heard
    /// what became of it, because it is younger than that, the node is asked.
    pub(super) fn way_after(
        &self,
        actor: ActorId,
        location: Location,
        links: &Links,
        lifecycle: &ProcessLifecycle,
        actors: &Actors,
        control: &dyn ControlChannel,
    ) -> Way {
        // Once more: between the sender's look and its attempt the node may have said where the actor is now.
        // Only a way that leads to the same process again has to be explained; with the queue that came
        // along, if the node said it.
        let known = match self.way_to(actor, location) {
            Way::To(now, queue) if now.process == location.process => queue,
            other => return other,
        };
        let process = location.process;
        let link = links.in_slot_of(process);
        // The node has said that the actor lives in a life of the slot for which there is no link, because
        // the life before still has the slot: the node told of the actor first. This is looked at before
        // anything says that the process is gone, because nothing of the new life is known here yet.
        if let Some(queue) = &known
            && link.as_ref().is_some_and(|link| link.peer < process && !lifecycle.exited.contains(link.peer))
        {
            // This process is about to hear that an earlier life of the slot has ended, and looks again then.
            return Way::Later(queue.clone());
        }
        // A peer that broke the protocol lives, and its actors with it: they are lost to this process alone,
        // and the node would say that they are where they were.
        let broken = link.is_some_and(|link| link.peer == process && link.is_broken())
            && !lifecycle.exited.contains(process);
        // In each of these cases there is nothing more to hear: the node has named this very location; or the
        // peer lives, and was given up; or the node has said how the process ended, and before that which of
        // its actors come back. A stopped reader would hear no answer.
        if known.is_some() || broken || lifecycle.exited.how(process).is_some() || lifecycle.is_stopped() {
            return Way::Exited(self.exited(process, actor, lifecycle));
        }
        // The process ended before this one began to listen. First the entry, then the question: the answer
        // finds the queue of whoever waits. Who comes second finds the entry, and does not ask again.
        let queue = self.queue_at(actor, location, links, actors);
        let way = match self.known.entry(actor) {
            Entry::Occupied(entry) => return entry.get().way(),
            Entry::Vacant(entry) => entry.insert(Known::asked(queue)).way(),
        };
        // MOVED release, as in `note`.
        self.moved.store(true, Ordering::Release);
        if control.send(ToNode::WantActor { actor }, Vec::new()).is_err() {
            self.known.remove(&actor);
            return Way::Exited(self.exited(process, actor, lifecycle));
        }
        way
    }

    /// A process has ended: its slot may have another life already, which somebody waits to reach.
    pub(super) fn look_again(&self) {
        let not_arrived = self.known.iter().filter(|known| !known.arrived);
        let queues: Vec<_> = not_arrived.map(|known| known.queue.clone()).collect();
        queues.iter().for_each(Queue::wake_front);
    }

    /// What is known of a process that ended, for whoever loses something of `actor` with it.
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

    /// The node says where an actor is.
    pub(super) fn actor_is(&self, actor: ActorId, at: Whereabouts, links: &Links, actors: &Actors) {
        if at == Whereabouts::Nowhere && !self.known.contains_key(&actor) {
            return; // nobody asked
        }
        self.note(actor, at, links, actors);
    }

    /// The node says that a process has ended, and what becomes of its actors.
    pub(super) fn on_process_down(
        &self,
        process_down: ProcessDown,
        links: &Links,
        actors: &Actors,
        lifecycle: &ProcessLifecycle,
    ) {
        // The actors first, and then how the process ended: who finds the latter (`way_after`) has missed
        // none of them.
        for (actor, location) in &process_down.restarting {
            self.note(*actor, Whereabouts::Restarting(*location), links, actors);
        }
        for actor in &process_down.gave_up {
            self.note(*actor, Whereabouts::GaveUp(process_down.reason.clone()), links, actors);
        }
        lifecycle.exited.note_how(process_down);
    }

    /// Remembers where an actor is, and wakes the first of those who wait for it.
    fn note(&self, actor: ActorId, at: Whereabouts, links: &Links, actors: &Actors) {
        let mut is_new = false;
        let is_final = at.is_final();
        let queue = {
            let mut known = self.known.entry(actor).or_insert_with(|| {
                is_new = !matches!(at, Whereabouts::Restarting(_));
                // Whoever waits at its last location, waits for its next.
                let queue = match &at {
                    Whereabouts::Restarting(location) => self.queue_at(actor, *location, links, actors),
                    _ => Queue::default(),
                };
                Known::asked(queue)
            });
            // Whoever sends first makes the link, and has it wake the others.
            self.leave_place(actor, &mut known, links);
            known.rests = false;
            known.at = Some(at);
            known.queue.clone()
        };
        if is_final && self.is_foreign(actor) {
            self.rest(actor);
        }
        // MOVED release: pairs with `has_moved`: whoever looks sees what is known where it sees this.
        self.moved.store(true, Ordering::Release);
        queue.wake_front();
        if is_new {
            // Whoever saw that it is away before the node said a word of it, waits at its last location.
            // Where that was, is not known here: those in front of all queues look again, and wake who is
            // behind them.
            links.all().iter().for_each(|link| link.wake_all_fronts());
        }
    }

    /// What happens where the actor was wakes nobody any more who waits for it.
    fn leave_place(&self, actor: ActorId, known: &mut Known, links: &Links) {
        known.arrived = false;
        known.queue.count_in(&Arc::default());
        // A link to the gateway stays, and its places are others' in turn.
        if let Some(Whereabouts::At(location)) = known.at.as_ref().filter(|_| self.is_foreign(actor))
            && let Some(link) = links.in_slot_of(location.process)
        {
            link.let_go(&known.queue);
        }
    }

    /// The node says that an actor of another host has no place here any more.
    pub(super) fn unplaced(&self, actor: ActorId, links: &Links, control: &dyn ControlChannel) {
        let is_waited_for = {
            let Some(mut known) = self.known.get_mut(&actor) else { return };
            self.leave_place(actor, &mut known, links);
            known.at = None;
            // Who joins behind this look finds that it rests, because it looks for the actor once more then.
            known.rests = known.queue.is_empty();
            !known.rests
        };
        if !is_waited_for {
            return self.rest(actor);
        }
        // After the node's end nobody waits for long.
        let _ = control.send(ToNode::WantActor { actor }, Vec::new());
    }

    /// Remembers that an actor of another host rests or has ended, and forgets another in its place.
    fn rest(&self, actor: ActorId) {
        let mut resting = self.resting.lock();
        resting.push_back(actor);
        // Two for one, so that those which cannot go yet do not stay for ever.
        for _ in 0..2 {
            if resting.len() <= MAX_RESTING {
                return;
            }
            let Some(oldest) = resting.pop_front() else { return };
            let forgotten = self.known.remove_if(&oldest, |_, known| known.can_be_forgotten());
            if forgotten.is_none() && self.known.get(&oldest).is_some_and(|known| known.is_over()) {
                // Somebody has its queue, and keeps a place in it.
                resting.push_back(oldest);
            }
        }
    }

    /// The queue of those who wait at `location`.
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

    /// Has what happens at `location` wake those who wait for `actor`, in the queue that came along with it.
    pub(super) fn arrive_at(&self, actor: ActorId, location: Location, at: Arrival<'_>) {
        let Some(known) = self.known.get(&actor) else { return };
        if known.arrived || known.at != Some(Whereabouts::At(location)) {
            return;
        }
        drop(known);
        let Some(mut known) = self.known.get_mut(&actor) else { return };
        // It may have gone on meanwhile.
        if known.at == Some(Whereabouts::At(location)) && !known.arrived {
            match at {
                Arrival::Here(inbox) => inbox.local().take_in(&known.queue),
                Arrival::There(link) => link.take_in(location.index, &known.queue),
            }
            known.arrived = true;
        }
    }

    /// An actor of this process failed and is started anew: those who wait for it in this process go on
    /// waiting, in the queue that its mailbox had.
    pub(super) fn goes_away(&self, actor: ActorId, location: Location, links: &Links, actors: &Actors) {
        self.note(actor, Whereabouts::Restarting(location), links, actors);
    }

    /// Registers `actor` under `name`. The outer error: the node is gone; the inner: another actor has the
    /// name.
    pub(super) async fn register(
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

    /// The actor under `name`.
    pub(super) async fn lookup(
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
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use super::*;
    use crate::testing::Cluster;
    use crate::transport::Transport;
    use crate::transport::control_channel::FromNode;

    /// MBX-2: and who waits for one that rests keeps its queue.
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
            assert!(matches!(way(number), Way::Later(_)), "the node is asked");
            // It knows nobody.
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

        // The last ones are known; who waits for one of them stays in front of those who come later.
        let gave_up = many - many % 3 + 1 - 3;
        assert!(matches!(way(gave_up), Way::GaveUp(EndReason::Exit(3))));
        let Way::Later(queue) = way(many - 1) else { panic!("it rests") };
        let place = queue.join();
        cluster.run_node_until_idle();
        is(many - 1, Whereabouts::At(to.location));
        transport.from_node(FromNode::Unplaced { actor: actor(many - 1) }, Vec::new());
        for number in many + 1..=2 * many {
            let _ = way(number);
            cluster.run_node_until_idle();
        }
        assert!(matches!(way(many - 1), Way::Nowhere), "it was asked for, because somebody waits");
        assert!(directory.known.get(&actor(many - 1)).is_some_and(|known| known.queue.is(&queue)));
        assert!(matches!(way(gave_up), Way::Later(_)), "it was forgotten, and is asked for");
        assert!(directory.known.len() <= MAX_RESTING + 3, "{}", directory.known.len());
        drop(place);
    }

    /// A sender that found an actor away waits in the queue of its link. The first that the node says of that
    /// actor is that it does not come back.
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
            // Of one that nobody asked for, the node says nothing.
            let wakes = usize::from(at != Whereabouts::Nowhere);
            assert_eq!((first.wakes(), second.wakes()), (wakes, 0), "{at:?}");
            drop(first);
            assert_eq!(second.wakes(), 1, "the next is woken by the one in front of it");
        }
    }
}
