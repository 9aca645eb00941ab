//! The collector of a stage's results, and the handles of items that the stage has not passed on yet.

use std::collections::HashMap;
use std::fmt;

use tensorpost_core::api::actor::Address;
use tensorpost_core::api::message::GpuMessage;

use super::item::{ItemId, ItemOrder, Tag};
use super::push::{Pushed, ToAccept, ToAnswer};
use super::worker::ack_guard::{AckGuard, AckGuards};
use super::worker::retained::{Retained, RetainedItem};

/// Collects the results of a stage. They are sent when the stage's call has returned; until then they are
/// kept here, so one call should not make more than fit into memory.
///
/// To try a stage without a pipeline:
///
/// ```
/// use tensorpost::prelude::*;
///
/// #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, GpuMessage)]
/// struct Number(u32);
///
/// fn twice(number: Number, out: &mut Out<Number>) {
///     out.emit(number.clone());
///     out.emit(number);
/// }
///
/// let mut out = Out::new();
/// twice(Number(3), &mut out);
/// assert_eq!(out.take(), [Number(3), Number(3)]);
/// ```
pub struct Out<T> {
    emitted: Vec<Emitted<T>>,
    current: Option<Current>,
    retained: Retained,
    left_over: Vec<(Tag, String)>,
    /// Messages to be sent to actors.
    pushed: Vec<Pushed<T>>,
}

/// The item that the stage is called with.
pub(super) struct Current {
    pub(super) tag: Tag,
    pub(super) ack_guard: AckGuard,
    /// Whether an item that the stage holds is not answered to its sender.
    pub(super) holds: bool,
}

/// A result to be sent.
#[derive(Clone)]
pub(super) struct Emitted<T> {
    pub(super) tag: Tag,
    pub(super) item: T,
    /// The items that are answered when this one is.
    pub(super) ack_guard: AckGuards,
}

/// An item that a stage keeps beyond its call: it counts as being worked on, and becomes part of the result
/// that it is given to with [`Out::emit_for`]. Dropping it says that nothing comes of it. Dropping it in a
/// call that fails says that it failed with that call.
#[must_use = "dropping it says that nothing comes of the item"]
pub struct HeldItem {
    id: ItemId,
    /// Its number among the items that its stage keeps.
    number: u64,
    retained: Retained,
}

impl<T> Default for Out<T> {
    fn default() -> Self {
        Out::new()
    }
}

impl<T> Out<T> {
    /// Makes an empty collector, for trying a stage out.
    pub fn new() -> Self {
        Out::during(None, &Retained::default())
    }

    /// Takes the results emitted since the last call.
    pub fn take(&mut self) -> Vec<T> {
        self.emitted.drain(..).map(|emitted| emitted.item).collect()
    }

    /// Emits a result of the item that the stage is called with.
    pub fn emit(&mut self, item: T) {
        let (tag, ack_guard) = self.here();
        self.emitted.push(Emitted { tag, item, ack_guard: ack_guard.into_iter().collect() });
    }

    /// Emits a result that is known by `id`, the id of one of the items that went into the current item.
    pub fn emit_as(&mut self, id: ItemId, item: T) {
        let (mut tag, ack_guard) = self.here();
        (tag.id, tag.also, tag.parts) = (id, Vec::new(), Vec::new());
        self.emitted.push(Emitted { tag, item, ack_guard: ack_guard.into_iter().collect() });
    }

    /// Emits a result of held items. It is known by the id of the first; reports name all.
    pub fn emit_for(&mut self, item: T, parts: impl IntoIterator<Item = HeldItem>) {
        let (here, here_ack_guard) = self.here();
        let (mut ids, mut shapes, mut several) = (Vec::new(), Vec::new(), here.several);
        let (mut ack_guard, mut rounds) = (AckGuards::new(), None);
        // In a call without an item, the span is that of the first held item that has one.
        let mut span = here.span;
        let mut newest: Option<ItemOrder> = None;
        for held in parts {
            // An item that was given up has been answered, but its id is still part of the result.
            let part = held.take();
            let mut part =
                part.unwrap_or_else(|id| RetainedItem { tag: Tag::of(id), ack_guard: AckGuards::new() });
            rounds.get_or_insert_with(|| part.tag.rounds.clone());
            newest = [newest, part.tag.order].into_iter().flatten().max_by_key(|order| order.number);
            span = if span.is_none() { part.tag.span } else { span };
            several |= part.tag.several;
            ids.extend(part.tag.ids());
            shapes.push(part.tag.shape());
            ack_guard.append(&mut part.ack_guard);
        }
        if ack_guard.is_empty() {
            // Under at-most-once delivery the held items have been answered. The current item is answered
            // only when its result has gone on.
            ack_guard.extend(here_ack_guard);
        }
        let mut ids = ids.into_iter();
        let id = ids.next().unwrap_or(here.id);
        let rounds = rounds.unwrap_or(here.rounds);
        if shapes.iter().all(|shape| shape.ids == 1) {
            shapes.clear();
        }
        let newest = newest.map(|order| ItemOrder { last: false, ..order });
        let order = if self.retained.keeps_places() {
            // The place is still open, so later items wait for this result.
            newest.or(here.order)
        } else {
            // If the stage is called with an item, the result has that item's place. Otherwise it has the
            // place of the newest item in it. That place was closed when the item was kept, so the result
            // passes no item that came here before.
            here.order.or(newest)
        };
        let tag = Tag { also: ids.collect(), parts: shapes, order, rounds, span, several, ..Tag::of(id) };
        self.emitted.push(Emitted { tag, item, ack_guard });
    }

    /// Emits the parts of an item that is taken apart, each known by its own ids again if the tag has them.
    pub(super) fn emit_apart(&mut self, items: Vec<T>) {
        let (tag, ack_guard) = self.here();
        let tags = tag.taken_apart(items.len());
        for (index, item) in items.into_iter().enumerate() {
            let tag = tags.as_ref().map_or(&tag, |tags| &tags[index]).clone();
            self.emitted.push(Emitted { tag, item, ack_guard: ack_guard.clone().into_iter().collect() });
        }
    }

    /// Sends a message to an actor outside of the pipeline, with backpressure. The message goes when the call
    /// has returned without an error, before the results of the call. The stage takes no other item before
    /// the actor's mailbox has accepted the message. The stage ends when all answers have come; under
    /// at-least-once delivery the item is acknowledged only then.
    ///
    /// If the actor dies, the report names the messages that it had as lost; under at-least-once delivery
    /// they are sent again. An actor that is gone for good is an error of the stage on this item, as is a
    /// message that cannot be sent. [`OnError`](super::OnError) says whether that fails the pipeline; the
    /// call is not repeated.
    ///
    /// Use this in a stage's call, which cannot wait for a future of the address.
    ///
    /// ```
    /// # use tensorpost::prelude::*;
    /// # #[derive(Clone, Serialize, Deserialize, GpuMessage)] struct Number(u32);
    /// # #[derive(Serialize, Deserialize, GpuMessage)] struct Seen(u32);
    /// fn note(number: Number, seen: &Address<Seen>, out: &mut Out<Number>) {
    ///     out.send(seen, Seen(number.0));
    ///     out.emit(number);
    /// }
    /// ```
    pub fn send<M: GpuMessage>(&mut self, address: &Address<M>, message: M) {
        let (address, at) = (address.clone(), self.emitted.len());
        let of = self.of();
        self.pushed.push(Pushed { at, of, push: Box::new(ToAccept { address, message }) });
    }

    /// Asks an actor outside of the pipeline, and emits the results that `then` makes of the reply: one
    /// (`Some(..)`), none, or several, in their place among those of the call. It works as
    /// [`send`](Self::send), but the stage takes no other item, and none of the results of the call go on,
    /// before the reply has come. Use several replicas to ask at the same time.
    ///
    /// ```
    /// # use tensorpost::prelude::*;
    /// # #[derive(Clone, Serialize, Deserialize, GpuMessage)] struct Number(u32);
    /// #[derive(Serialize, Deserialize, GpuMessage)]
    /// #[gpu_message(reply = u32)]
    /// struct Double(u32);
    ///
    /// fn double(number: Number, by: &Address<Double>, out: &mut Out<Number>) {
    ///     out.ask(by, Double(number.0), |doubled| Some(Number(doubled)));
    /// }
    /// ```
    pub fn ask<M: GpuMessage, I: IntoIterator<Item = T>>(
        &mut self,
        address: &Address<M>,
        message: M,
        then: impl FnOnce(M::Reply) -> I + 'static,
    ) where
        T: 'static,
    {
        let (address, at) = (address.clone(), self.emitted.len());
        let of = self.of();
        self.pushed.push(Pushed { at, of, push: Box::new(ToAnswer { address, message, then }) });
    }

    fn of(&self) -> Option<(Tag, AckGuard)> {
        self.current.as_ref().map(|current| (current.tag.clone(), current.ack_guard.clone()))
    }

    /// Keeps the item that the stage is called with beyond the return of the call. Under
    /// [`ordered`](super::Flow::ordered) it keeps its place too, and later items wait until it is passed on
    /// or dropped.
    pub fn hold(&mut self) -> HeldItem {
        let (tag, ack_guard) = self.here();
        let holds = self.current.as_ref().is_some_and(|current| current.holds);
        let id = tag.id;
        let number = self
            .retained
            .keep(RetainedItem { tag, ack_guard: ack_guard.filter(|_| holds).into_iter().collect() });
        HeldItem { id, number, retained: self.retained.clone() }
    }

    /// Drops a held item, and names it in the report as left over, with the reason: nothing went wrong, but
    /// the item that it waited for did not come.
    pub fn leave_over(&mut self, held: HeldItem, why: impl Into<String>) {
        if let Ok(item) = held.take() {
            self.left_over.push((item.tag, why.into()));
        }
    }

    /// Returns the id of the item that the stage is called with; `None` if it is called for another reason.
    pub fn id(&self) -> Option<ItemId> {
        self.current.as_ref().map(|current| current.tag.id)
    }

    /// Returns the ids of all items that went into the one that the stage is called with, in order: several
    /// if it is a batch.
    pub fn ids(&self) -> Vec<ItemId> {
        self.current.iter().flat_map(|current| current.tag.ids()).collect()
    }

    /// Returns how often this item was tried before.
    pub fn attempt(&self) -> u32 {
        self.current.as_ref().map_or(0, |current| current.tag.attempt)
    }

    fn here(&self) -> (Tag, Option<AckGuard>) {
        match &self.current {
            Some(current) => (current.tag.clone(), Some(current.ack_guard.clone())),
            None => (Tag::of_nothing(), None),
        }
    }
}

impl<T> Out<T> {
    /// Makes the collector for a call with an item, or for a call for another reason.
    pub(super) fn during(current: Option<Current>, retained: &Retained) -> Self {
        let retained = retained.clone();
        Out { emitted: Vec::new(), current, retained, left_over: Vec::new(), pushed: Vec::new() }
    }

    /// Whether there is anything to send to actors.
    pub(super) fn has_pushed(&self) -> bool {
        !self.pushed.is_empty()
    }

    pub(super) fn take_pushed(&mut self) -> Vec<Pushed<T>> {
        std::mem::take(&mut self.pushed)
    }

    /// Puts results among those that were emitted, before the one with this index.
    pub(super) fn insert(&mut self, at: usize, emitted: impl Iterator<Item = Emitted<T>>) {
        self.emitted.splice(at..at, emitted);
    }

    /// Takes back the results that a failed call has emitted, with all items that were in them.
    pub(super) fn withdraw(&mut self) -> impl Iterator<Item = RetainedItem> + '_ {
        self.emitted.drain(..).map(|Emitted { tag, ack_guard, .. }| RetainedItem { tag, ack_guard })
    }

    /// Takes the items that were left over, each with the reason.
    pub(super) fn take_left_over(&mut self) -> Vec<(Tag, String)> {
        std::mem::take(&mut self.left_over)
    }

    /// Returns the results, and the places in the order with which nothing more comes: that of the current
    /// item, unless the stage keeps the item, and those of items that it keeps no longer. If results have
    /// such a place, the last of them closes it, and the place is not among those returned.
    pub(super) fn finish(self) -> (Vec<Emitted<T>>, Vec<ItemOrder>) {
        let Out { mut emitted, current, retained, .. } = self;
        let mut over = retained.left();
        let here = current.and_then(|current| current.tag.order).filter(|order| order.last);
        over.extend(here.filter(|order| !retained.has(*order) && !over.iter().any(|left| left.is(*order))));
        if over.is_empty() && here.is_none() {
            return (emitted, over);
        }
        for emitted in emitted.iter_mut().rev() {
            let Some(order) = &mut emitted.tag.order else { continue };
            let before = over.len();
            over.retain(|left| !left.is(*order));
            order.last = over.len() < before;
        }
        (emitted, over)
    }
}

/// Marks those results of a call with whose ids more items come: an id is in several of them, or the stage
/// `holds` items, of which it may make more results later.
pub(super) fn mark_several<T>(emitted: &mut [Emitted<T>], holds: bool) {
    if holds {
        return emitted.iter_mut().for_each(|result| result.tag.several = true);
    }
    if emitted.len() < 2 {
        return;
    }
    let mut often: HashMap<ItemId, u32> = HashMap::new();
    for id in emitted.iter().flat_map(|result| result.tag.ids()) {
        *often.entry(id).or_default() += 1;
    }
    for result in emitted {
        let again = result.tag.ids().any(|id| often.get(&id).is_some_and(|often| *often > 1));
        result.tag.several |= again;
    }
}

impl HeldItem {
    /// Returns the id of the item.
    pub fn id(&self) -> ItemId {
        self.id
    }

    /// Returns the ids of all items that are in it: several if it is a batch.
    pub(super) fn ids(&self) -> Vec<ItemId> {
        self.retained.ids(self.number)
    }

    /// Whether more items may come with one of its ids.
    pub(super) fn is_one_of_several(&self) -> bool {
        self.retained.is_one_of_several(self.number)
    }

    /// Returns its age: items that are held later have a higher number.
    pub(super) fn age(&self) -> u64 {
        self.number
    }

    /// Merges another held item into this one, for two that have the same id.
    #[must_use = "dropping it says that nothing comes of either"]
    pub fn with(mut self, other: HeldItem) -> HeldItem {
        if let (Some(mut this), Ok(mut other)) = (self.retained.take(self.number), other.take()) {
            this.ack_guard.append(&mut other.ack_guard);
            this.tag.several |= other.tag.several;
            self.number = self.retained.keep(this);
        }
        self
    }

    /// Returns the item that is kept, or only its id if it was given up.
    fn take(self) -> Result<RetainedItem, ItemId> {
        self.retained.take(self.number).ok_or(self.id)
    }
}

impl Drop for HeldItem {
    fn drop(&mut self) {
        self.retained.drop_one(self.number);
    }
}

impl<T> fmt::Debug for Out<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Out").field("emitted", &self.emitted.len()).finish_non_exhaustive()
    }
}

impl fmt::Debug for HeldItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HeldItem({})", self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(number: u64, last: bool) -> ItemOrder {
        ItemOrder { lane: 3, life: 0, number, last }
    }

    /// A call with the item that has this place in an order.
    fn call(number: u64, retained: &Retained) -> Out<u32> {
        let tag = Tag { order: Some(place(number, true)), ..Tag::of(ItemId { source: 0, number }) };
        Out::during(Some(Current { tag, ack_guard: AckGuard::default(), holds: false }), retained)
    }

    #[test]
    fn a_result_of_held_items_keeps_its_place_though_no_item_is_at_hand() {
        let retained = Retained::default();
        let held = [4, 7].map(|number| {
            let mut out = call(number, &retained);
            let held = out.hold();
            assert_eq!(out.finish().1, [place(number, true)], "nothing more is said to have it");
            held
        });
        let mut out = Out::<u32>::during(None, &retained);
        out.emit_for(1, held);
        let (emitted, gap) = out.finish();
        assert_eq!((emitted[0].tag.order, gap), (Some(place(7, false)), vec![]));
        // In a call with an item, the result has that item's place.
        let held = call(8, &retained).hold();
        let mut out = call(9, &retained);
        out.emit_for(2, [held]);
        let (emitted, gap) = out.finish();
        assert_eq!((emitted[0].tag.order, gap), (Some(place(9, true)), vec![]));
    }

    /// A `join` must not take one result of an item for all of them.
    #[test]
    fn results_of_which_more_may_come_are_marked() {
        let marked = |out: Out<u32>, holds: bool| -> Vec<bool> {
            let (mut emitted, _) = out.finish();
            mark_several(&mut emitted, holds);
            emitted.iter().map(|result| result.tag.several).collect()
        };
        let retained = Retained::default();
        let mut one = call(0, &retained);
        one.emit(1);
        assert_eq!(marked(one, false), [false]);
        let mut two = call(0, &retained);
        two.emit(1);
        two.emit(2);
        assert_eq!(marked(two, false), [true, true]);
        // Results of different items, as those of a batch that is taken apart.
        let held = [4, 5].map(|number| call(number, &retained).hold());
        let mut apart = Out::during(None, &retained);
        held.into_iter().for_each(|held| apart.emit_for(1, [held]));
        assert_eq!(marked(apart, false), [false, false]);
        let mut one = call(0, &retained);
        one.emit(1);
        assert_eq!(marked(one, true), [true], "the stage holds items of which it may make more");
        // The mark goes along, also through a batch.
        let mut several = call(6, &retained);
        if let Some(current) = &mut several.current {
            current.tag.several = true;
        }
        let held = call(6, &retained).hold().with(several.hold());
        assert!(held.is_one_of_several());
        let mut batch = call(7, &retained);
        batch.emit_for(1, [held]);
        assert_eq!(marked(batch, false), [true]);
    }

    #[test]
    fn what_is_held_keeps_its_place_until_it_is_passed_on_or_dropped() {
        let retained = Retained::new(true);
        let held = [4, 6, 7].map(|number| {
            let mut out = call(number, &retained);
            let held = out.hold();
            assert_eq!(out.finish().1, [], "something may come with it");
            held
        });
        let [four, six, seven] = held;
        // Both results are emitted in the call of another item, which has a result of its own.
        let mut out = call(8, &retained);
        out.emit_for(1, [four]);
        out.emit(2);
        out.emit_for(3, [six, seven]);
        let (emitted, over) = out.finish();
        let orders: Vec<_> = emitted.iter().map(|emitted| emitted.tag.order.unwrap()).collect();
        assert_eq!(orders, [place(4, true), place(8, true), place(7, true)]);
        assert_eq!(over, [place(6, true)], "it went with a newer one");
        // An item that is dropped in its own call, and one that is kept.
        let mut out = call(9, &retained);
        drop(out.hold());
        assert_eq!(out.finish().1, [place(9, true)]);
        let mut out = call(10, &retained);
        let ten = out.hold();
        out.emit(4);
        let (emitted, over) = out.finish();
        assert_eq!((emitted[0].tag.order, over), (Some(place(10, false)), vec![]));
        drop(ten);
        assert_eq!(Out::<u32>::during(None, &retained).finish().1, [place(10, true)]);
        // An item that is dropped and held once more, as in a call that is tried again, has its place still.
        drop(call(11, &retained).hold());
        let eleven = call(11, &retained).hold();
        assert_eq!(Out::<u32>::during(None, &retained).finish().1, []);
        drop(eleven);
        assert_eq!(Out::<u32>::during(None, &retained).finish().1, [place(11, true)]);
    }
}
