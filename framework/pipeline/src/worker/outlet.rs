//! The way out of an actor: chooses the stages that an item goes to.

use std::ops::Range;
use std::rc::Rc;

use futures_util::future::FutureExt;
use smallvec::SmallVec;
use tensorpost_core::api::actor::{CodeError, Env};

use super::ack_guard::AckGuard;
use super::args::{BranchArgs, OutletArgs, Place};
use super::branch::{Branch, Modes, NotYet, Unsendable};
use super::fork_tracker::ForkTracker;
use super::meter::{Meter, Toward};
use super::pick::{Choice, Pick};
use super::waits::Wait;
use crate::item::{EndOf, Item, ItemId, Order, Tag};
use crate::out::Emitted;

/// An item that could not go at once.
pub(super) enum Later<T: Item> {
    /// To whom it is for.
    One(NotYet<T>),
    /// It goes to all branches: one could not take it at once, and it has yet to go there, and to those from
    /// this one on.
    Rest(Box<(NotYet<T>, usize, Emitted<T>)>),
}

/// A way out: one or several branches.
pub(super) struct Outlet<T: Item> {
    pick: Pick<T>,
    branches: Vec<Rc<Branch<T>>>,
    /// Which branches still have something of an item, where anybody wants to know.
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

    /// Sends an item to whom it is for, and returns when they have accepted it. A receiver that has died has
    /// lost it; that is noted, and no error.
    pub(super) async fn send(&self, emitted: Emitted<T>) -> Result<(), Unsendable> {
        let Emitted { tag, item, ack_guard } = emitted;
        match self.pick.choose(&item, self.branches.len(), |at| self.branches[at].load()) {
            Choice::One(at) => {
                let mark = self.mark(&tag, at..at + 1).pop().flatten();
                self.branches[at].send(tag, item, ack_guard.into_iter().chain(mark).collect()).await
            }
            Choice::All => {
                let Some((last, others)) = self.branches.split_last() else { return Ok(()) };
                // All ack guard is made before the first is sent: the first may be settled before the next is
                // sent.
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

    /// As [`send`](Self::send), if nobody need wait for that. Nearly every item goes this way: a future would
    /// have room for all that can happen to one, and be moved about with each.
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

    /// [`send_now`](Self::send_now), to each branch.
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

    /// The ack guard that goes with an item on each of these branches.
    fn mark(&self, tag: &Tag, branches: Range<usize>) -> SmallVec<[Option<AckGuard>; 4]> {
        match &self.fork_tracker {
            Some(fork_tracker) => fork_tracker.mark(tag, branches).into_iter().map(Some).collect(),
            None => branches.map(|_| None).collect(),
        }
    }

    /// From now on nothing waits for room: one more item comes at most, and then the end.
    pub(super) fn hurry(&self) {
        for branch in &self.branches {
            branch.hurry();
        }
    }

    /// The actor has ended. What has gone is followed to its end, and nothing more goes.
    pub(super) fn abandon(&self) {
        // It waits for no acknowledgement any more.
        self.go_on();
        for branch in &self.branches {
            branch.abandon();
        }
    }

    /// The replicas of a stage are others than before. Waits for nobody.
    pub(super) fn places(&self, stage: u16, places: &[Place]) {
        for branch in self.branches.iter().filter(|branch| branch.leads_to(stage)) {
            branch.places(places);
        }
    }

    /// What the actor waits for at the receivers.
    pub(super) fn waits(&self) -> impl Iterator<Item = Wait> + '_ {
        self.branches.iter().flat_map(|branch| branch.waits())
    }

    /// How to find out what became of the items at each receiver, also when the actor has ended.
    pub(super) fn toward(&self) -> impl Fn() -> Vec<Toward> + 'static {
        let branches = self.branches.clone();
        move || branches.iter().map(|branch| branch.toward()).collect()
    }

    /// Where `next` waits for an acknowledgement, or there is none and all is made, the actor makes nothing
    /// more before one comes. Of a source, those who pair its items want to know.
    pub(super) fn stand(&self, next: Option<ItemId>) {
        if let Some(fork_tracker) = &self.fork_tracker {
            let branches = self.branches.clone();
            // What waits for a connection, or for another life of its receiver, goes on by itself.
            let is_full = move || next.is_none() || branches.iter().any(|branch| branch.is_full());
            fork_tracker.stand(next, is_full);
        }
    }

    pub(super) fn go_on(&self) {
        if let Some(fork_tracker) = &self.fork_tracker {
            fork_tracker.go_on();
        }
    }

    /// Tells whoever restores the order that nothing comes with this place.
    pub(super) async fn gap(&self, order: Order) {
        for branch in &self.branches {
            branch.gap(order).await;
        }
    }

    /// Says that nothing more comes, and waits until everything was answered and the receivers are done.
    pub(super) async fn end(&self) {
        self.say_end(EndOf::Flow).await;
        self.ended().await;
    }

    /// Says that nothing more comes; `of` says why.
    ///
    /// The end comes after all answers where it can: then nothing is lost after it.
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
