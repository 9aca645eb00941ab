//! The way from an actor to one stage: chooses the replica that an item goes to, keeps the actor from running
//! too far ahead, and follows every message until it is answered.
//!
//! An item passes three steps. *Room*: the window has room for it and its bytes. *Accepted*: the receiver's
//! mailbox has taken it; the caller is free. *Answered*: a task follows the ask and settles the item, or
//! finds out that it was lost. The counts go up when an item is accepted and down when it is answered. A
//! resent item is counted again before its first sending is taken out: `idle` waits for zero, and must not
//! see zero while an item is still to come.
//!
//! On a death of the receiver every ask that it had accepted fails here. The item is sent again if a copy was
//! kept, and named as lost otherwise; a stage that restores an order is told in both cases that it need not
//! wait.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Instant;

use futures_util::future::FutureExt;
use tensorpost_core::api::actor::{Address, Ask, AskError, CodeError, Env};
use tensorpost_core::api::message;

use super::ack_guard::AckGuards;
use super::answers::{Unanswered, is_final, why};
use super::args::{BranchArgs, Control, Receiver};
use super::meter::{Cause, Meter, Toward};
use super::pick::{Choice, Load, Pick};
use super::waits::Wait;
use crate::item::{EdgeMessage, EndOf, Item, ItemId, Tag};
use crate::out::Emitted;
use delivery::{Tried, Turned};
use overflow::Overflow;
use room::Room;
use watch::Watch;

mod delivery;
mod lost;
mod overflow;
mod replicas;
mod room;
mod watch;

/// The way to one stage: its replicas, and the messages that were sent to them.
pub(super) struct Branch<T: Item> {
    stage: String,
    index: u16,
    lane: u32,
    /// See [`BranchArgs::key`].
    key: Option<u64>,
    /// See [`BranchArgs::items`].
    items: u64,
    pick: Pick<T>,
    to: Vec<To<T>>,
    /// The number of loops around the receiver.
    depth: usize,
    pub(super) feedback: bool,
    restarts: bool,
    pub(super) settle_first: bool,
    restarts_together: bool,
    modes: Modes,
    room: Room,
    /// The items that wait for a receiver that drops items when it has no room.
    overflow: Option<Rc<Overflow<T>>>,
    tally: Tally,
    /// The end, once it was sent. New replicas of the receiver must get it too.
    said_end: Cell<Option<EndOf>>,
    meter: Meter,
    env: Env,
}

/// The ways in which the actor treats items that it has sent; see [`Config`](super::args::Config).
#[derive(Clone, Copy)]
pub(super) struct Modes {
    pub(super) chain: bool,
    pub(super) resend: bool,
    /// Whether it makes the items itself: there is no sender before it that could send anything again.
    pub(super) origin: bool,
}

/// The fate of the items that went this way.
#[derive(Default)]
struct Tally {
    /// Items that the receiver has answered (`handled`), and that it has accepted.
    handled: Cell<u64>,
    accepted: Cell<u64>,
    /// The item that waits to be accepted.
    held_up: Cell<Option<ItemId>>,
}

/// The way to one replica.
struct To<T: Item> {
    /// The name of a replica that was not there when this actor was started.
    name: Option<String>,
    address: RefCell<Option<Address<EdgeMessage<T>>>>,
    unanswered: Cell<u32>,
    exited: Cell<bool>,
    /// Whether the place has a replica that takes items.
    open: Cell<bool>,
    /// The replica there that was sent its end because it leaves: it is sent once.
    leaving: RefCell<Option<Address<Control>>>,
}

/// An item that was sent and is not answered.
struct Underway<T> {
    to: usize,
    tag: Tag,
    bytes: u64,
    /// A copy to send again.
    copy: Option<T>,
    /// When it was accepted, for the trace.
    since: Option<Instant>,
    /// The ack guards of the items that it came from.
    ack_guard: AckGuards,
}

/// An item that could not be sent at once.
pub(super) enum NotYet<T: Item> {
    /// Its receiver is not chosen yet.
    Untouched(Box<Emitted<T>>),
    /// This branch has no room, or its receiver must be looked up.
    On(Rc<Branch<T>>, Box<Emitted<T>>),
    /// The receiver has no room, or has refused the item.
    Asked(Rc<Branch<T>>, Box<Asked<T>>),
}

/// An item that was offered to a receiver.
pub(super) struct Asked<T: Item> {
    ask: Ask<EdgeMessage<T>>,
    accepted: Option<Result<(), AskError<EdgeMessage<T>>>>,
    underway: Underway<T>,
    /// When it was offered.
    from: Instant,
}

/// An item that cannot be sent to any receiver.
pub(super) struct Unsendable {
    pub(super) tag: Tag,
    pub(super) why: String,
}

impl<T: Item> Branch<T> {
    pub(super) fn new(args: BranchArgs, modes: Modes, meter: &Meter, env: &Env) -> Result<Self, CodeError> {
        let room = Room::new(&args, modes.resend);
        let to = args.to.into_iter().map(|receiver| {
            let is_open = !matches!(receiver, Receiver::Nobody);
            let (name, address) = match receiver {
                Receiver::At(address) => (None, Some(with_key(address.cast(), args.key))),
                Receiver::Named(name) => (Some(name), None),
                Receiver::Nobody => (None, None),
            };
            To {
                name,
                address: RefCell::new(address),
                unanswered: Cell::new(0),
                exited: Cell::new(false),
                open: Cell::new(is_open),
                leaving: RefCell::default(),
            }
        });
        Ok(Branch {
            stage: args.stage,
            index: args.index,
            lane: args.lane,
            key: args.key,
            items: args.items,
            pick: Pick::among_replicas(&args.select)?,
            to: to.collect(),
            depth: args.depth,
            feedback: args.feedback,
            restarts: args.restarts,
            settle_first: args.settle_first,
            restarts_together: args.restarts_together,
            modes,
            room,
            overflow: args.overflow.map(|args| {
                env.note_dropped(0); // so that there is a counter before the first drop
                Rc::new(Overflow::new(args))
            }),
            tally: Tally::default(),
            said_end: Cell::new(None),
            meter: meter.clone(),
            env: env.clone(),
        })
    }

    pub(super) fn load(&self) -> Load {
        Load {
            unanswered: self.to.iter().map(|to| to.unanswered.get()).sum(),
            exited: self.to.iter().all(To::takes_nothing),
        }
    }

    /// Returns what the actor waits for here, for the report of a pipeline that does not move.
    pub(super) fn waits(&self) -> impl Iterator<Item = Wait> {
        let stage = self.index;
        let room = self.tally.held_up.get().map(|id| Wait::Room { stage, id });
        let count = self.room.unanswered();
        room.into_iter().chain((count > 0).then_some(Wait::Answers { stage, count }))
    }

    /// Returns what became of the items that went this way.
    pub(super) fn toward(&self) -> Toward {
        let dropped = self.overflow.as_ref().map_or(0, |overflow| overflow.dropped());
        let kept = self.overflow.as_ref().map_or(0, |overflow| overflow.waiting());
        let waiting = kept + u32::from(self.tally.held_up.get().is_some());
        let (handled, accepted) = (self.tally.handled.get(), self.tally.accepted.get());
        Toward { stage: self.index, handled, accepted, waiting, dropped }
    }

    fn replica(&self, at: usize) -> Load {
        Load { unanswered: self.to[at].unanswered.get(), exited: self.to[at].takes_nothing() }
    }

    pub(super) async fn send(
        self: &Rc<Self>,
        tag: Tag,
        item: T,
        ack_guard: AckGuards,
    ) -> Result<(), Unsendable> {
        if let Some(overflow) = &self.overflow {
            self.put(overflow, Emitted { tag, item, ack_guard });
            return Ok(());
        }
        self.send_in_turn(tag, item, ack_guard).await
    }

    /// Waits for room, and sends an item.
    async fn send_in_turn(
        self: &Rc<Self>,
        mut tag: Tag,
        item: T,
        ack_guard: AckGuards,
    ) -> Result<(), Unsendable> {
        let bytes = if self.room.counts_bytes() { bytes_of(&item) } else { 0 };
        let from = Instant::now();
        let id = tag.id;
        self.tally.held_up.set(Some(id));
        // The item gets its number only when there is room: an item that is dropped while it waits for room
        // must leave no gap in the order.
        self.room.wait(bytes, || self.has_room(bytes)).await;
        self.put_number(&mut tag);
        // Chosen after the wait, by the current loads. Receivers that have ended meanwhile are known by now.
        let sent = match self.pick.choose(&item, self.to.len(), |at| self.replica(at)) {
            Choice::One(at) => self.deliver(at, tag, item, bytes, ack_guard).await,
            Choice::None => {
                self.lost(&tag, Cause::Ended, "nobody is left to send it to").await;
                Ok(())
            }
            Choice::All => {
                let last = self.to.len() - 1;
                for at in 0..last {
                    let sent = self.deliver(at, tag.clone(), item.clone(), bytes, ack_guard.clone()).await;
                    if sent.is_err() {
                        self.tally.held_up.set(None);
                        return sent;
                    }
                }
                self.deliver(last, tag, item, bytes, ack_guard).await
            }
        };
        self.tally.held_up.set(None);
        self.meter.waited(self.index, id, from);
        sent
    }

    /// Sets the fields of the tag that the receiver needs: its key, the loops that the item is in, the sender
    /// that can send it again, and its place in the order.
    fn put_number(&self, tag: &mut Tag) {
        tag.key = self.items;
        // An item that leaves a loop is not in it any more.
        tag.rounds.truncate(self.depth);
        tag.lane = self.modes.resend.then_some(self.lane);
        tag.order = self.room.order(self.lane).or(tag.order);
    }

    /// Whether one more item with so many bytes may go.
    fn has_room(&self, bytes: u64) -> bool {
        self.room.has(bytes, self.most_items())
    }

    /// Whether an item waits for others to be answered before it may go.
    pub(super) fn is_full(&self) -> bool {
        self.room.wanted().is_some_and(|bytes| !self.has_room(bytes))
    }

    /// Lets all items go from now on, without waiting for room.
    pub(super) fn hurry(&self) {
        self.room.hurry();
    }

    /// Tells all replicas that nothing more comes: each needs an end from each of its senders. `of` says why.
    pub(super) async fn end(self: &Rc<Self>, of: EndOf) {
        self.said_end.set(Some(of));
        for at in (0..self.to.len()).filter(|at| self.to[*at].open.get()) {
            self.tell_end(at, of).await;
        }
    }

    /// Waits until all items were answered.
    pub(super) async fn settled(&self) {
        self.room.settled().await;
    }

    /// Waits until everything was answered: the items, and the ends.
    pub(super) async fn idle(&self) {
        self.room.idle().await;
    }

    /// As [`send`](Self::send), if no wait is needed. Nearly every item takes this path, and no future is
    /// made for it.
    pub(super) fn send_now(self: &Rc<Self>, emitted: Emitted<T>) -> Result<(), NotYet<T>> {
        if let Some(overflow) = &self.overflow {
            self.put(overflow, emitted);
            return Ok(());
        }
        self.offer_now(emitted)
    }

    /// Sends to a receiver that has room.
    fn offer_now(self: &Rc<Self>, emitted: Emitted<T>) -> Result<(), NotYet<T>> {
        let bytes = if self.room.counts_bytes() { bytes_of(&emitted.item) } else { 0 };
        let to = || match self.pick.choose(&emitted.item, self.to.len(), |at| self.replica(at)) {
            Choice::One(at) => Some((at, self.known_address(at)?)),
            Choice::All | Choice::None => None,
        };
        let Some((to, address)) = self.has_room(bytes).then(to).flatten() else {
            return Err(NotYet::On(Rc::clone(self), Box::new(emitted)));
        };
        // From here on the item is on its way in any case: it has its number. Nothing waits here; the time is
        // for the trace.
        let since = self.meter.traces().then(Instant::now);
        let Emitted { mut tag, item, ack_guard } = emitted;
        self.put_number(&mut tag);
        // Cloned before the item moves into the ask. A clone keeps the receiver from writing the tensor in
        // place, so it is made only if the item may be sent again.
        let copy = self.modes.resend.then(|| item.clone());
        let mut ask = self.ask(address, EdgeMessage::Item(tag.clone(), item), &Tried::default());
        let accepted = ask.try_accepted();
        let underway = Underway { to, tag, bytes, copy, since, ack_guard };
        if let Some(Ok(())) = accepted {
            if let Some(since) = since {
                self.meter.waited(self.index, underway.tag.id, since);
            }
            self.follow(ask, underway);
            return Ok(());
        }
        let from = since.unwrap_or_else(Instant::now);
        Err(NotYet::Asked(Rc::clone(self), Box::new(Asked { ask, accepted, underway, from })))
    }

    /// Goes on with an item that was offered and not accepted at once.
    pub(super) async fn go_on(self: &Rc<Self>, asked: Asked<T>) -> Result<(), Unsendable> {
        let Asked { mut ask, accepted, underway, from } = asked;
        let id = underway.tag.id;
        self.tally.held_up.set(Some(id));
        let accepted = match accepted {
            Some(accepted) => accepted,
            None => ask.accepted().await,
        };
        let sent = match accepted {
            Ok(()) => {
                self.follow(ask, underway);
                Ok(())
            }
            Err(error) => {
                let Underway { to, mut tag, bytes, ack_guard, .. } = underway;
                let mut tried = Tried::default();
                match self.turned_away(error, to, &mut tag, &ack_guard, &mut tried).await {
                    Turned::To(other, item) => {
                        self.deliver_past(other, tag, item, bytes, ack_guard, tried).await
                    }
                    Turned::Away(end) => end,
                }
            }
        };
        self.tally.held_up.set(None);
        self.meter.waited(self.index, id, from);
        sent
    }

    /// Follows an accepted item until it is answered.
    fn follow(self: &Rc<Self>, ask: Ask<EdgeMessage<T>>, mut underway: Underway<T>) {
        self.tally.accepted.update(|accepted| accepted + 1);
        // Counted before the task runs: `idle` and the window must see the item from the moment it was
        // accepted.
        self.begin(underway.to, underway.bytes);
        // In a chain the items that it came from are not answered before it is. An item that leaves its
        // outermost loop has left when it is accepted: if the next stages keep it, that must not keep other
        // items out of the loop.
        let chain = self.modes.resend || (self.modes.chain && self.depth > 0);
        if !(chain || self.restarts_together) {
            underway.ack_guard = AckGuards::new();
        }
        underway.since = self.meter.traces().then(Instant::now);
        let branch = Rc::clone(self);
        // Not boxed, because there is one task for each item.
        actix::spawn(Watch { branch, ask, underway: Some(underway), rest: None });
    }

    /// Handles an item that the receiver had accepted and does not answer: sends it again if another replica
    /// can take it, and names it as lost otherwise. It is counted as answered last of all, so that `idle`
    /// does not see zero meanwhile.
    async fn unanswered(self: &Rc<Self>, error: &AskError<EdgeMessage<T>>, underway: Underway<T>) {
        let Underway { to, tag, bytes, copy, since: _, ack_guard } = underway;
        let why = why(error);
        match Unanswered::of(error) {
            Unanswered::Tainted => {
                // The receiver has named the item, unless items are sent again. Sending a copy would not
                // help: it is as tainted.
                if self.modes.resend {
                    self.lost_here(&tag, &why, &ack_guard).await;
                } else {
                    self.settle(&tag);
                }
                self.answered(to, bytes);
                return;
            }
            Unanswered::Refused => {
                self.lost(&tag, Cause::Unread, &why).await;
                self.answered(to, bytes);
                return;
            }
            // The item is lost to this receiver; the next item finds out whether the receiver has ended.
            Unanswered::Lost => {}
            // A receiver with a restart policy is not gone: its address waits for the next life, which takes
            // the item.
            Unanswered::Exited => self.to[to].exited.set(!self.restarts),
        }
        let other = copy.as_ref().map(|copy| self.pick.choose(copy, self.to.len(), |at| self.replica(at)));
        if let (Some(Choice::One(other)), Some(copy)) = (other, copy) {
            self.meter.note(|counts| counts.resent += 1);
            let again = Tag { attempt: tag.attempt + 1, ..tag.clone() };
            // The second sending is counted before the first is taken out, so that `idle` does not see zero
            // for a moment.
            if self.deliver_again(other, again, copy, bytes, ack_guard).await {
                self.answered(to, bytes);
                return;
            }
        }
        self.lost(&tag, Cause::Ended, &why).await;
        self.answered(to, bytes);
    }

    /// Sends the end. A receiver that is gone need not get it; its next life needs it too, so it is sent
    /// again there.
    async fn tell_end(self: &Rc<Self>, at: usize, of: EndOf) {
        let Ok(address) = self.address(at).await else { return };
        let (key, lane) = (self.items, self.lane);
        let end = move || EdgeMessage::End { key, lane, of };
        let mut ask = address.ask(end());
        let refused = ask.accepted().await.err();
        if refused.is_some() && !self.restarts {
            self.to[at].exited.set(true);
            return;
        }
        self.begin_end();
        let branch = Rc::clone(self);
        crate::worker::spawn(async move {
            let mut answer = match refused {
                Some(error) => Err(error),
                None => ask.await,
            };
            while let Err(error) = &answer
                && branch.restarts
                && !is_final(error)
            {
                answer = address.ask(end()).await;
            }
            if answer.is_err() && !branch.restarts {
                branch.to[at].exited.set(true);
            }
            branch.end_answered();
        });
    }

    /// Counts an end, so that `idle` waits for its answer, which comes when the receiver is done.
    fn begin_end(&self) {
        self.room.begin_end();
        self.meter.note(|counts| counts.in_flight += 1);
    }

    fn end_answered(&self) {
        self.meter.note(|counts| counts.in_flight = counts.in_flight.saturating_sub(1));
        self.room.end_answered();
    }

    /// Counts an item as under way.
    fn begin(&self, at: usize, bytes: u64) {
        self.room.sent(bytes);
        self.to[at].unanswered.update(|unanswered| unanswered + 1);
        self.meter.note(|counts| {
            counts.in_flight += 1;
            counts.bytes_in_flight += bytes;
        });
    }

    /// Takes an item's number out of the window, if it has one from here, so that later ones may go.
    fn settle(&self, tag: &Tag) {
        if let Some(order) = tag.order {
            self.room.settle(order.number);
        }
    }

    /// Takes an item out of the counts, and wakes the tasks that wait for room or for all answers.
    fn answered(&self, at: usize, bytes: u64) {
        self.to[at].unanswered.update(|unanswered| unanswered.saturating_sub(1));
        self.meter.note(|counts| {
            counts.in_flight = counts.in_flight.saturating_sub(1);
            counts.bytes_in_flight = counts.bytes_in_flight.saturating_sub(bytes);
        });
        self.room.answered(bytes);
    }

    fn known_address(&self, at: usize) -> Option<Address<EdgeMessage<T>>> {
        self.to[at].address.borrow().clone()
    }

    async fn address(&self, at: usize) -> Result<Address<EdgeMessage<T>>, String> {
        if let Some(address) = self.known_address(at) {
            return Ok(address);
        }
        let to = &self.to[at];
        // A replica without an address has a name.
        let name = to.name.as_deref().unwrap_or_default();
        let found = self.env.lookup_with_key(name, self.key).boxed_local().await;
        let found = found.map_err(|error| error.to_string())?;
        *to.address.borrow_mut() = Some(found.clone());
        Ok(found)
    }
}

/// Sets the key of messages to this address, if there is one.
fn with_key<M: message::GpuMessage>(address: Address<M>, key: Option<u64>) -> Address<M> {
    match key {
        Some(key) => address.with_key(key),
        None => address,
    }
}

/// Returns the bytes that an item keeps in use: those of its tensors, and of its body.
fn bytes_of<T: Item>(item: &T) -> u64 {
    // An item that cannot be encoded is not sent either; the send reports why.
    message::bytes_of(item).unwrap_or(0)
}
