//! Flows that combine several items into one, or two flows into one.

use std::hash::Hash;
use std::marker::PhantomData;

use tensorpost_core::api::actor::{CapturesNothing, Code, captures_nothing};

use super::flow::{AfterStage, Flow};
use super::item::Item;
use super::many::{Batch, Either, Gather, Many, Pair};
use super::pairs::Pairs;
use super::stages::{AsMany, Batcher, Gathered, Lift, Unbatch, Windows, Zip};

impl<T: Item, At> Flow<T, At> {
    /// Puts several items into one message; the last batch may be smaller. It runs in the worker of the stage
    /// before.
    pub fn batch(self, batch: Batch) -> Flow<Many<T>, AfterStage<T>> {
        let flow = self.helper::<Batcher<T, AsMany>>("batch", batch);
        flow.batch_bound(batch, true)
    }

    /// Combines several items into one whose tensors are gathered, on the device of the stage (see
    /// [`on`](Flow::on); the host unless said otherwise). It runs in the worker of the stage before.
    pub fn gather(self, batch: Batch) -> Flow<T::Gathered, AfterStage<T>>
    where
        T: Gather,
    {
        let flow = self.helper::<Batcher<T, Gathered>>("gather", batch);
        flow.batch_bound(batch, true)
    }

    /// Emits each item together with the `count - 1` items before it; the first window comes with item
    /// `count`.
    pub fn window(self, count: u32) -> Flow<Many<T>, AfterStage<T>> {
        let flow = self.helper::<Windows<T>>("window", count);
        flow.batch_bound(Batch::of(count), false)
    }

    /// Pairs items that have the same id: those that come from the same item of a source, such as the two
    /// branches of a [`broadcast`](Flow::broadcast). Items that find no partner before the end are dropped,
    /// and the report names them as [left over](super::Report::left_over). Under
    /// [at-least-once](super::Pipeline::at_least_once) delivery, which such items would hold up, that happens
    /// as soon as their fork knows that no partner will come.
    ///
    /// An item waits here for its partner. The memory for that has no bound of its own: it grows with the
    /// distance by which one flow gets ahead of the other.
    pub fn zip<B: Item, X>(self, other: Flow<B, X>) -> Flow<Pair<T, B>, AfterStage<Either<T, B>>> {
        self.pair(other, None)
    }

    /// Pairs items with the same key; among several with one key, the first with the first. It works as
    /// [`zip`](Self::zip) otherwise, but no fork knows whether a key still comes: under at-least-once
    /// delivery the oldest item is left over when neither side can go on.
    pub fn join<B: Item, X, K: Hash, L, R>(
        self,
        other: Flow<B, X>,
        left: L,
        right: R,
    ) -> Flow<Pair<T, B>, AfterStage<Either<T, B>>>
    where
        L: Fn(&T) -> K + CapturesNothing,
        R: Fn(&B) -> K + CapturesNothing,
    {
        const { captures_nothing::<L>() };
        const { captures_nothing::<R>() };
        self.with(()).join(other, move |(), item| left(item), move |(), item| right(item))
    }

    pub(super) fn pair<B: Item, X>(
        self,
        other: Flow<B, X>,
        key: Option<Code>,
    ) -> Flow<Pair<T, B>, AfterStage<Either<T, B>>> {
        let left = self.helper::<Lift<T, B, true>>("left", PhantomData);
        let right = other.helper::<Lift<T, B, false>>("right", PhantomData);
        let pairs = Pairs { sides: [left.index(), right.index()], by_id: key.is_none() };
        let both = left.merge(right).own_helper::<Zip<T, B>>("zip", key);
        both.draft().borrow_mut().plan.stages[both.index()].pairs = Some(pairs);
        both
    }
}

impl<T: Item, At> Flow<Many<T>, At> {
    /// Takes batches apart: their items go on one by one, known by their own ids again. It runs in the worker
    /// of the stage before.
    pub fn unbatch(self) -> Flow<T, AfterStage<Many<T>>> {
        self.helper::<Unbatch<T>>("unbatch", PhantomData).taking_apart()
    }
}
