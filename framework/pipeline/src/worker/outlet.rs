//! An output of an actor: chooses the stages that an item goes to.

use std::ops::Range;
use std::rc::Rc;

use futures_util::future::FutureExt;
use smallvec::SmallVec;
use tensorpost_core::api::actor::{CodeError, Env};

use super::ack_guard::AckGuard;
use super::args::{BranchArgs, OutletArgs, ReplicaPlace};
use super::branch::{Branch, Modes, NotYet, Unsendable};
use super::fork_tracker::ForkTracker;
use super::meter::{Meter, Toward};
use super::pick::{Choice, Pick};
use super::waits::Wait;
use crate::item::{EndOf, Item, ItemId, ItemOrder, Tag};
use crate::out::Emitted;

/// An item that could not go at once.
pub(super) enum Later<T: Item> {
    /// It still has to go to its receiver.
    One(NotYet<T>),
    /// It goes to all branches. One could not take it at once; it still has to go to that branch, and to all
    /// branches from this index on.
    Rest(Box<(NotYet<T>, usize, Emitted<T>)>),
}

/// An output: one or several branches.
pub(super) struct Outlet<T: Item> {
    pick: Pick<T>,
    branches: Vec<Rc<Branch<T>>>,
    /// Tracks which branches still have something of an item, if a stage wants to know.
    fork_tracker: Option<Rc<ForkTracker>>,
}

impl<T: Item> Outlet<T> {
    pub(super) fn new(args: OutletArgs, modes: Modes, meter: &Meter, env: &Env) -> Result<Self, CodeError> {
        let pick = Pick::among_branches(&args.select)?;
        let branch = |args: BranchArgs| Branch::new(args, modes, meter, env).map(Rc::new);
        let fork_tracker = ForkTracker::new(args.tell, args.tell_still, args.source, args.branches.len());
        let branches = args.branches.into_iter().map(branch).collect::<Result<Vec<_>, _>>()?;
        if !branches.is_empty() {
            env.note_emitted(0); // so that there is a counter before the first item
        }
        Ok(Outlet { pick, branches, fork_tracker })
    }

    /// Sends an item to its receivers, and returns when they have accepted it. If a receiver has died, the
    /// item is lost there; that is noted, and is not an error.
    pub(super) async fn send(&self, emitted: Emitted<T>) -> Result<(), Unsendable> {
        let Emitted { tag, item, ack_guard } = emitted;
        match self.pick.choose(&item, self.branches.len(), |at| self.branches[at].load()) {
            Choice::One(at) => {
                let mark = self.mark(&tag, at..at + 1).pop().flatten();
                self.branches[at].send(tag, item, ack_guard.into_iter().chain(mark).collect()).await
            }
            Choice::All => {
                let Some((last, others)) = self.branches.split_last() else { return Ok(()) };
                // All ack guards are made before the first item is sent: the first may be settled before the
                // next is sent.
                let mut marks = self.mark(&tag, 0..self.branches.len());
                let of_last = marks.pop().flatten();
                for (branch, mark) in others.iter().zip(marks) {
                    let ack_guard = ack_guard.iter().cloned().chain(mark).collect();
                    branch.send(tag.clone(), item.clone(), ack_guard).await?;
                }
                last.send(tag, item, ack_guard.into_iter().chain(of_last).collect()).await
            }
            // Every branch is gone: the first one names the loss.
            Choice::None => match self.branches.first() {
                Some(branch) => branch.send(tag, item, ack_guard).await,
                None => Ok(()),
            },
        }
    }

    /// As [`send`](Self::send), if no wait is needed. Nearly every item takes this path. A future would have
    /// room for everything that can happen to an item, and would be moved for each one.
    pub(super) fn send_now(&self, emitted: Emitted<T>) -> Result<(), Later<T>> {
        if self.fork_tracker.is_some() {
            return Err(Later::One(NotYet::Untouched(Box::new(emitted))));
        }
        match self.pick.choose(&emitted.item, self.branches.len(), |at| self.branches[at].load()) {
            Choice::One(at) => self.branches[at].send_now(emitted).map_err(Later::One),
            Choice::All => self.send_all_now(emitted),
            Choice::None => Err(Later::One(NotYet::Untouched(Box::new(emitted)))),
        }
    }

    /// As [`send_now`](Self::send_now), to each branch.
    fn send_all_now(&self, emitted: Emitted<T>) -> Result<(), Later<T>> {
        let Some((last, others)) = self.branches.split_last() else { return Ok(()) };
        for (at, branch) in others.iter().enumerate() {
            if let Err(first) = branch.send_now(emitted.clone()) {
                return Err(Later::Rest(Box::new((first, at + 1, emitted))));
            }
        }
        last.send_now(emitted).map_err(Later::One)
    }

    /// Sends an item that could not go at once.
    pub(super) async fn send_later(&self, item: Later<T>) -> Result<(), Unsendable> {
        match item {
            Later::One(item) => self.send_one_later(item).await,
            Later::Rest(rest) => {
                let (first, next, emitted) = *rest;
                self.send_one_later(first).boxed_local().await?;
                for branch in self.branches.iter().skip(next) {
                    let Emitted { tag, item, ack_guard } = emitted.clone();
                    branch.send(tag, item, ack_guard).await?;
                }
                Ok(())
            }
        }
    }

    async fn send_one_later(&self, item: NotYet<T>) -> Result<(), Unsendable> {
        match item {
            NotYet::Untouched(emitted) => self.send(*emitted).await,
            NotYet::On(branch, emitted) => {
                let Emitted { tag, item, ack_guard } = *emitted;
                branch.send(tag, item, ack_guard).await
            }
            NotYet::Asked(branch, asked) => branch.go_on(*asked).await,
        }
    }

    /// Makes the ack guard that goes with an item on each of these branches.
    fn mark(&self, tag: &Tag, branches: Range<usize>) -> SmallVec<[Option<AckGuard>; 4]> {
        match &self.fork_tracker {
            Some(fork_tracker) => fork_tracker.mark(tag, branches).into_iter().map(Some).collect(),
            None => branches.map(|_| None).collect(),
        }
    }

    /// Lets items go from now on without waiting for room: at most one more item comes, and then the end.
    pub(super) fn hurry(&self) {
        for branch in &self.branches {
            branch.hurry();
        }
    }

    /// Stops the output, because the actor has ended. Items that were sent are followed to their end, and no
    /// more are sent.
    pub(super) fn abandon(&self) {
        // The actor waits for no acknowledgement any more.
        self.go_on();
        for branch in &self.branches {
            branch.abandon();
        }
    }

    /// Sets the replicas of a stage that have changed. Never waits.
    pub(super) fn places(&self, stage: u16, places: &[ReplicaPlace]) {
        for branch in self.branches.iter().filter(|branch| branch.leads_to(stage)) {
            branch.places(places);
        }
    }

    /// Returns what the actor waits for at the receivers.
    pub(super) fn waits(&self) -> impl Iterator<Item = Wait> + '_ {
        self.branches.iter().flat_map(|branch| branch.waits())
    }

    /// Returns a function that tells what became of the items at each receiver, also when the actor has
    /// ended.
    pub(super) fn toward(&self) -> impl Fn() -> Vec<Toward> + 'static {
        let branches = self.branches.clone();
        move || branches.iter().map(|branch| branch.toward()).collect()
    }

    /// Notes that the actor makes nothing more before an acknowledgement comes: `next` waits for one, or all
    /// items are made and `next` is `None`. The stages that pair a source's items want to know this.
    pub(super) fn stand(&self, next: Option<ItemId>) {
        if let Some(fork_tracker) = &self.fork_tracker {
            let branches = self.branches.clone();
            // An item that waits for a connection, or for another life of its receiver, goes on by itself.
            let is_full = move || next.is_none() || branches.iter().any(|branch| branch.is_full());
            fork_tracker.stand(next, is_full);
        }
    }

    pub(super) fn go_on(&self) {
        if let Some(fork_tracker) = &self.fork_tracker {
            fork_tracker.go_on();
        }
    }

    /// Tells the stage that restores the order that nothing comes with this place.
    pub(super) async fn gap(&self, order: ItemOrder) {
        for branch in &self.branches {
            branch.gap(order).await;
        }
    }

    /// Sends the end, and waits until everything was answered and the receivers are done.
    pub(super) async fn end(&self) {
        self.say_end(EndOf::Flow).await;
        self.ended().await;
    }

    /// Sends the end; `of` is its reason.
    ///
    /// The end comes after all answers if it can: then nothing is lost after it.
    pub(super) async fn say_end(&self, of: EndOf) {
        for branch in &self.branches {
            branch.drained().await;
        }
        for branch in self.branches.iter().filter(|branch| branch.settle_first) {
            branch.settled().await;
        }
        // The beginning of a loop ends before the rest of it.
        for branch in self.branches.iter().filter(|branch| !branch.feedback) {
            branch.end(of).await;
        }
    }

    /// Waits until everything was answered, and the receivers are done.
    pub(super) async fn ended(&self) {
        for branch in &self.branches {
            branch.idle().await;
        }
    }
}
