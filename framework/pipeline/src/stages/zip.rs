//! Pairs the items of two flows.

use std::collections::{HashMap, HashSet};
use std::marker::PhantomData;

use anyhow::Context as _;
use tensorpost_core::api::actor::{Code, Env};

use super::halves::{Bond, Recent, WaitingHalves};
use crate::limits::MAX_WAITING;
use crate::pairs::{PartnerNews, Partners};
use crate::worker::args::Pairing;
use crate::worker::pick::NumberOf;
use crate::{Either, HeldItem, Item, ItemId, Out, Pair, Stage};

/// Marks each item with the flow that it comes from.
pub(crate) struct Lift<A, B, const LEFT: bool>(PhantomData<(A, B)>);

impl<A: Item, B: Item> Stage for Lift<A, B, true> {
    type Args = PhantomData<(A, B)>;
    type In = A;
    type Out = Either<A, B>;

    fn create(_: PhantomData<(A, B)>, _: &Env) -> anyhow::Result<Self> {
        Ok(Lift(PhantomData))
    }

    fn process(&mut self, item: A, out: &mut Out<Either<A, B>>) -> anyhow::Result<()> {
        out.emit(Either::Left(item));
        Ok(())
    }
}

impl<A: Item, B: Item> Stage for Lift<A, B, false> {
    type Args = PhantomData<(A, B)>;
    type In = B;
    type Out = Either<A, B>;

    fn create(_: PhantomData<(A, B)>, _: &Env) -> anyhow::Result<Self> {
        Ok(Lift(PhantomData))
    }

    fn process(&mut self, item: B, out: &mut Out<Either<A, B>>) -> anyhow::Result<()> {
        out.emit(Either::Right(item));
        Ok(())
    }
}

/// Pairs the items that have the same bond.
pub(crate) struct Zip<A: Item, B: Item> {
    key: Option<NumberOf<Either<A, B>>>,
    waiting: WaitingHalves<(A, HeldItem), (B, HeldItem)>,
    /// Under at-least-once delivery: the senders and sources that wait for the halves that wait here.
    pairing: Option<Pairing>,
    /// For each source that makes nothing more before something is acknowledged: all items that it has under
    /// way. The report of a source is kept until the source may have gone on, because a half was let go or
    /// something newer came. A source repeats its report while it stands still.
    still: HashMap<u16, HashSet<ItemId>>,
    /// If items are paired by key, left and right: the items of which a fork says that nothing more comes on
    /// that side.
    settled: [Recent; 2],
    /// The items that were let go at a standstill. Their source may hear of it late: an item in a batch is
    /// acknowledged only with the others.
    let_go: Recent,
    /// Left and right: whether that side has ended.
    ended: [bool; 2],
    /// How often the whole pipeline has stood still since the last pair.
    standstills: u32,
}

/// How many of the waiting halves are let go at a standstill: one in eight, so that halves whose flows can go
/// on keep their partners. It is twice as many at the next standstill if no pair was made in between: a
/// standstill is noticed late, and flows whose halves seldom match would take that long for each half.
fn share(waiting: usize, standstills: u32) -> usize {
    waiting.div_ceil(8 >> standstills.min(3))
}

impl<A: Item, B: Item> Zip<A, B> {
    fn new(key: Option<NumberOf<Either<A, B>>>) -> Self {
        Zip {
            key,
            waiting: WaitingHalves::new(),
            pairing: None,
            still: HashMap::new(),
            settled: Default::default(),
            let_go: Recent::default(),
            ended: [false; 2],
            standstills: 0,
        }
    }

    /// Notes that an item came. A source that did not name it when it stood still has made more since then.
    fn came(&mut self, held: &HeldItem) {
        if self.still.is_empty() {
            return;
        }
        for id in held.ids() {
            if self.still.get(&id.source).is_some_and(|under_way| !under_way.contains(&id)) {
                self.still.remove(&id.source);
            }
        }
    }

    /// Whether a half is one of the items that its sources wait for, as far as they have reported. A half
    /// that is newer than their reports may have a partner on the way, which they could not know of.
    fn is_waited_for(&self, held: &HeldItem) -> bool {
        held.ids().iter().any(|id| self.still.get(&id.source).is_none_or(|under_way| under_way.contains(id)))
    }

    /// Whether nothing more can come on one side as things are: each of its sources waits for an
    /// acknowledgement, and everything that it has under way waits here.
    ///
    /// If an item comes by several ways, or a stage makes several of it, one half here does not show that all
    /// are here. Only the fork knows that then, or the conductor's reminder helps.
    ///
    /// An item that was paired here is not known to be done with, although its pair was acknowledged. That
    /// acknowledgement may still be on its way, and its source goes on when it comes. Or it is held back by
    /// a batch in front of the fork, until the other items of that batch are acknowledged too. Only the
    /// stages between could tell the two apart. In the second case the conductor's reminder helps.
    fn stands(
        &self,
        left: bool,
        pairing: &Pairing,
        waiting: &[HashSet<ItemId>; 2],
        several: &[HashSet<ItemId>; 2],
    ) -> bool {
        let side = usize::from(!left);
        let is_full = self.waiting.held(left).count() >= pairing.sides[side].room as usize;
        if self.ended[side] || is_full {
            return true;
        }
        let here = |id: &ItemId| {
            let more_may_come = pairing.sides[side].several_ways || several[side].contains(id);
            if more_may_come && !self.settled[side].contains(id) {
                return false;
            }
            if self.let_go.contains(id) && waiting.iter().all(|waiting| !waiting.contains(id)) {
                return true;
            }
            let is_here = waiting[side].contains(id) || self.settled[side].contains(id);
            is_here && waiting.iter().any(|waiting| waiting.contains(id))
        };
        let mut sources = pairing.sides[side].sources.iter();
        sources.all(|source| self.still.get(source).is_some_and(|ids| ids.iter().all(here)))
    }

    /// Lets the oldest half go if neither side can go on, because each waits for partners that only the other
    /// could bring.
    fn end_standstill(&mut self, out: &mut Out<Pair<A, B>>) {
        let Some(pairing) = &self.pairing else { return };
        if self.waiting.count() == 0 {
            return;
        }
        let waiting = [true, false].map(|left| self.waiting.held(left).flat_map(HeldItem::ids).collect());
        let several = [true, false].map(|left| {
            let several = self.waiting.held(left).filter(|held| held.is_one_of_several());
            several.flat_map(HeldItem::ids).collect()
        });
        if ![true, false].into_iter().all(|left| self.stands(left, pairing, &waiting, &several)) {
            return;
        }
        self.let_go_oldest(1, Self::is_waited_for, out);
    }

    /// Lets the `count` halves that `which` selects and that have waited longest go. If halves wait on a side
    /// that has not ended, only halves of such a side go: its sender may go on then.
    fn let_go_oldest(
        &mut self,
        count: usize,
        which: fn(&Self, &HeldItem) -> bool,
        out: &mut Out<Pair<A, B>>,
    ) {
        let this = &*self;
        let goes_on =
            |left: &bool| !this.ended[usize::from(!*left)] && this.waiting.held(*left).next().is_some();
        let any_goes_on = [true, false].iter().any(goes_on);
        let sides = [true, false].into_iter().filter(|left| !any_goes_on || goes_on(left));
        let of_side = move |left: bool| {
            let held = this.waiting.held(left).filter(move |held| which(this, held));
            held.map(move |held| (held.age(), left))
        };
        let mut oldest: Vec<_> = sides.flat_map(of_side).collect();
        oldest.sort_unstable();
        for (age, left) in oldest.into_iter().take(count) {
            for held in self.waiting.remove(left, None, |held| held.age() == age) {
                let (ids, several) = (held.ids(), held.is_one_of_several());
                // The standstill is over: the half's sources may go on, and a second half that is let go now
                // could be the partner of their next item. News of forks may still come, and reports that
                // sources made before they heard of this.
                for id in &ids {
                    self.still.remove(&id.source);
                }
                if !several {
                    self.let_go.extend(ids);
                }
                out.leave_over(held, "no partner came for it before both sides stood still");
            }
        }
    }
}

/// The error of a join in which as many items wait as may.
pub(crate) fn too_many_wait() -> String {
    format!(
        "{MAX_WAITING} items wait for partners, and no more may: one of the flows drops the partners; drop items in front of the \
         fork, or in both flows"
    )
}

impl<A: Item, B: Item> Stage for Zip<A, B> {
    /// The closure that tells an item's key; without one, items with the same id belong together.
    type Args = Option<Code>;
    type In = Either<A, B>;
    type Out = Pair<A, B>;

    fn create(key: Option<Code>, _: &Env) -> anyhow::Result<Self> {
        Ok(Zip::new(key.map(|code| code.make()).transpose()?))
    }

    fn process(&mut self, item: Either<A, B>, out: &mut Out<Pair<A, B>>) -> anyhow::Result<()> {
        let bond = match &self.key {
            Some(key) => Bond::Key(key(&item)),
            None => Bond::Id(out.id().context("an item without an id cannot be joined")?),
        };
        anyhow::ensure!(self.waiting.count() < MAX_WAITING, too_many_wait());
        let held = out.hold();
        self.came(&held);
        let pair = match item {
            Either::Left(item) => self.waiting.left(bond, (item, held)),
            Either::Right(item) => self.waiting.right(bond, (item, held)),
        };
        if let Some(((left, left_held), (right, right_held))) = pair {
            self.standstills = 0;
            // If both halves have the same id, the pair has it once.
            if left_held.id() == right_held.id() {
                out.emit_for(Pair { left, right }, [left_held.with(right_held)]);
            } else {
                out.emit_for(Pair { left, right }, [left_held, right_held]);
            }
        } else if let Some(pairing) = &self.pairing
            && pairing.sides.iter().any(|side| self.waiting.count() >= side.room as usize)
        {
            self.end_standstill(out);
        }
        Ok(())
    }

    fn finish(&mut self, out: &mut Out<Pair<A, B>>) -> anyhow::Result<()> {
        for held in self.waiting.drain() {
            out.leave_over(held, "no partner came for it");
        }
        Ok(())
    }

    fn partners(&mut self, PartnerNews(notice): PartnerNews<'_>, out: &mut Out<Pair<A, B>>) {
        match notice {
            Partners::Begin(pairing) => self.pairing = Some(pairing),
            // If halves are paired by key, another item may be the partner.
            Partners::Alone { left, ids, again } if self.key.is_some() => {
                if !again {
                    self.settled[usize::from(!left)].extend(ids.iter().copied());
                    self.end_standstill(out);
                }
            }
            Partners::Still { source, ids } => {
                self.still.insert(source, ids.iter().copied().collect());
                let under_way: HashSet<_> = self.still.values().flatten().copied().collect();
                for settled in self.settled.iter_mut().chain([&mut self.let_go]) {
                    settled.retain(|id| !self.still.contains_key(&id.source) || under_way.contains(id));
                }
                self.end_standstill(out);
            }
            // Under at-most-once delivery no sender waits for a half.
            Partners::Standstill if self.pairing.is_some() => {
                // Nothing moves, so no partner is on its way either.
                self.let_go_oldest(share(self.waiting.count(), self.standstills), |_, _| true, out);
                self.standstills = self.standstills.saturating_add(1);
            }
            Partners::Standstill => {}
            Partners::Alone { left, ids, again } => {
                for id in ids {
                    for held in self.waiting.remove(!left, Some(Bond::Id(*id)), |held| held.id() == *id) {
                        // An item that is sent again comes again with its partner, so this half is not left
                        // over.
                        if again { drop(held) } else { out.leave_over(held, "no partner came for it") }
                    }
                }
            }
            Partners::Ended { left } => {
                self.ended[usize::from(!left)] = true;
                self.end_standstill(out);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};
    use tensorpost_core::api::message::GpuMessage;

    use super::*;
    use crate::item::Tag;
    use crate::out::Current;
    use crate::worker::ack_guard::AckGuard;
    use crate::worker::args::PairSide;
    use crate::worker::retained::Retained;

    #[derive(Clone, Serialize, Deserialize, GpuMessage)]
    #[gpu_message(crate = tensorpost_core)]
    struct Number(u64);

    fn id(number: u64) -> ItemId {
        ItemId { source: 0, number }
    }

    fn ids(numbers: &[u64]) -> Vec<ItemId> {
        numbers.iter().copied().map(id).collect()
    }

    /// A join by number of the two branches of one source.
    struct Joined {
        zip: Zip<Number, Number>,
        retained: Retained,
    }

    impl Joined {
        fn new() -> Self {
            let key = |half: &Either<Number, Number>| match half {
                Either::Left(Number(number)) | Either::Right(Number(number)) => *number,
            };
            let side = || PairSide { lanes: Vec::new(), room: 8, several_ways: false, sources: vec![0] };
            let mut joined = Joined { zip: Zip::new(Some(Box::new(key))), retained: Retained::default() };
            joined.told(Partners::Begin(Pairing { sides: [side(), side()] }));
            joined
        }

        /// Gives the zip a half, and returns whether its partner waited for it.
        fn came(&mut self, half: Either<Number, Number>) -> bool {
            let (Either::Left(Number(number)) | Either::Right(Number(number))) = &half;
            let tag = Tag::of(id(*number));
            self.came_as(tag, half)
        }

        fn came_as(&mut self, tag: Tag, half: Either<Number, Number>) -> bool {
            let current = Current { tag, ack_guard: AckGuard::default(), holds: true };
            let mut out = Out::during(Some(current), &self.retained);
            self.zip.process(half, &mut out).expect("there is room for it");
            !out.take().is_empty()
        }

        fn left(&mut self, number: u64) -> bool {
            self.came(Either::Left(Number(number)))
        }

        fn right(&mut self, number: u64) -> bool {
            self.came(Either::Right(Number(number)))
        }

        /// Gives the zip news, and returns which halves are left over then.
        fn told(&mut self, news: Partners<'_>) -> Vec<u64> {
            let mut out = Out::during(None, &self.retained);
            self.zip.partners(PartnerNews(news), &mut out);
            out.take_left_over().iter().map(|(tag, _)| tag.id.number).collect()
        }

        /// The fork reports that nothing more of these items comes on the left.
        fn no_left(&mut self, numbers: &[u64]) -> Vec<u64> {
            self.told(Partners::Alone { left: true, ids: &ids(numbers), again: false })
        }

        /// The source reports that it waits for one of these items.
        fn still(&mut self, numbers: &[u64]) -> Vec<u64> {
            self.told(Partners::Still { source: 0, ids: &ids(numbers) })
        }
    }

    const NONE: [u64; 0] = [];

    /// The fork repeats its news, faster than a busy machine reads them.
    #[test]
    fn a_standstill_is_over_when_a_half_was_let_go() {
        let mut joined = Joined::new();
        assert!(!joined.right(0) && !joined.right(3));
        assert_eq!(joined.no_left(&[0, 3]), NONE, "the source may go on");
        assert_eq!(joined.still(&[0, 3]), [0]);
        assert_eq!(joined.no_left(&[0, 3]), NONE, "the source may have heard of 0");
        assert!(!joined.right(4));
        assert_eq!(joined.no_left(&[3]), NONE);
        assert_eq!(joined.still(&[3, 4]), NONE, "the left half of 4 comes");
        assert!(joined.left(4));
        assert_eq!(joined.no_left(&[3]), NONE, "the source may have heard of 4");
        assert_eq!(joined.still(&[3]), [3]);
    }

    /// The source had reported several times before it heard that a half was let go.
    #[test]
    fn a_half_that_is_newer_than_the_word_of_its_source_keeps_its_partner() {
        let mut joined = Joined::new();
        assert!(!joined.right(0));
        assert_eq!(joined.no_left(&[0]), NONE);
        assert_eq!(joined.still(&[0]), [0]);
        assert_eq!(joined.still(&[0]), NONE);
        assert!(!joined.right(1));
        assert_eq!(joined.no_left(&[0]), NONE, "read before the left half of 1");
        assert_eq!(joined.still(&[0]), NONE, "said before 1 was made");
        assert_eq!(joined.no_left(&[0]), NONE);
        assert_eq!(
            joined.told(Partners::Ended { left: false }),
            NONE,
            "its end came before that of the left"
        );
        assert!(joined.left(1));
    }

    /// The items of one batch are acknowledged together, so their source stands still until the last of them
    /// is let go.
    #[test]
    fn a_source_that_does_not_hear_of_a_half_says_again_that_it_waits() {
        let mut joined = Joined::new();
        assert!(!joined.right(5) && !joined.right(6));
        assert_eq!(joined.no_left(&[5, 6]), NONE);
        assert_eq!(joined.still(&[5, 6]), [5]);
        assert_eq!(joined.still(&[5, 6]), [6]);
        assert_eq!(joined.still(&[5, 6]), NONE);
    }

    /// A stage on the left makes two of an item, and the second is still on its way.
    #[test]
    fn a_half_of_several_is_not_taken_for_all_of_them() {
        let mut joined = Joined::new();
        let several = || Tag { several: true, ..Tag::of(id(0)) };
        assert!(!joined.right(0));
        assert!(!joined.came_as(several(), Either::Left(Number(100))));
        assert_eq!(joined.still(&[0]), NONE, "the second left half comes");
        assert!(joined.came_as(several(), Either::Left(Number(0))));
        assert_eq!(joined.still(&[0]), NONE);
        assert_eq!(joined.told(Partners::Standstill), [0], "the pipeline stands still");
        // Where the fork says that nothing more comes, all is here.
        assert!(!joined.right(1));
        assert!(!joined.came_as(Tag { several: true, ..Tag::of(id(1)) }, Either::Right(Number(101))));
        assert_eq!(joined.no_left(&[1]), NONE);
        assert_eq!(joined.still(&[1]), NONE, "more may come on the right");
        assert_eq!(joined.told(Partners::Alone { left: false, ids: &ids(&[1]), again: false }), [1]);
    }

    #[test]
    fn an_item_that_comes_by_several_ways_is_not_known_to_be_all_there() {
        let mut joined = Joined::new();
        let pairing = joined.zip.pairing.as_mut().expect("it was told");
        pairing.sides[0].several_ways = true;
        assert!(!joined.right(0));
        assert!(!joined.came_as(Tag::of(id(0)), Either::Left(Number(100))));
        assert_eq!(joined.still(&[0]), NONE, "it may come by the other way too");
        assert_eq!(joined.no_left(&[0]), [0], "nothing more comes by either");
    }

    #[test]
    fn more_go_at_each_standstill_without_a_pair() {
        assert_eq!(
            [0, 1, 2, 3, 4, u32::MAX].map(|standstills| share(20, standstills)),
            [3, 5, 10, 20, 20, 20]
        );
        assert_eq!([0, 1, 2].map(|standstills| share(1, standstills)), [1, 1, 1]);
    }
}
