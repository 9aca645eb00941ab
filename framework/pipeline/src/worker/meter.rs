//! The counters of one actor of a pipeline.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use tensorpost_core::api::observe::Histogram;

use crate::item::ItemId;
use crate::limits::{MAX_NAMED, MAX_TRACED, MAX_WHY, MOST_TIME};

/// An item on which a stage failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Failure {
    /// The stage.
    pub stage: String,
    /// The item; `None` if the stage failed without one.
    pub id: Option<ItemId>,
    /// The error of the stage, with its causes.
    pub why: String,
    /// How often it was tried.
    pub attempts: u32,
}

/// An item that was lost or left over. It was lost if a process that it needed ended, when the stage had
/// accepted it or before it could be sent. It was left over if the item that it waited for did not come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LostItem {
    /// The stage at which it was lost.
    pub stage: String,
    /// The item.
    pub id: ItemId,
    /// The error of the sender, or the reason that the stage gave.
    pub why: String,
}

/// The cause of a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Its receiver ended, or dropped it: by a death or a panic, which the conductor sees too; otherwise
    /// nothing explains it.
    Ended,
    /// Its data was lost with a process, of this pipeline or not (DEATH-3).
    Tainted,
    /// An actor outside of the pipeline had it, and ended or dropped it. The owner of that actor knows why.
    Outside,
    /// Its receiver goes on and could not read it. No death explains that.
    Unread,
}

impl Cause {
    /// Whether the item could be sent again.
    pub(crate) fn is_a_death(self) -> bool {
        self != Cause::Unread
    }
}

/// The counts of the items that an actor sent to one stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Toward {
    pub(crate) stage: u16,
    /// Items that it has answered.
    pub(crate) handled: u64,
    /// Items that it has accepted.
    pub(crate) accepted: u64,
    /// Items that wait here for room there.
    pub(crate) waiting: u32,
    /// Items that were dropped because it had no room.
    pub(crate) dropped: u64,
}

/// Counts of one actor, as they travel.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Counts {
    pub(crate) stage: u16,
    pub(crate) replica: u16,
    /// When the life of the actor that counted began, on the clock of the machine.
    pub(crate) life: u64,
    pub(crate) items_in: u64,
    pub(crate) items_out: u64,
    /// For a source with a rate: times that passed without an item.
    pub(crate) missed: u64,
    pub(crate) errors: u64,
    pub(crate) retries: u64,
    pub(crate) skipped: u64,
    pub(crate) dead_letters: u64,
    /// All lost items, and among them those whose data was lost with a process (`lost_tainted`), those that
    /// an actor outside had (`lost_outside`), and those that a receiver could not read (`lost_unread`).
    pub(crate) lost: u64,
    pub(crate) lost_tainted: u64,
    pub(crate) lost_outside: u64,
    pub(crate) lost_unread: u64,
    pub(crate) resent: u64,
    pub(crate) busy: Duration,
    pub(crate) waiting: Duration,
    /// The time from the first item to the last.
    pub(crate) active: Duration,
    pub(crate) calls: Histogram,
    pub(crate) bytes_not_copied: u64,
    /// Waits on the actor's stream, and the time in them if the device tells.
    pub(crate) stream_waits: u64,
    pub(crate) stream_waited: Option<Duration>,
    pub(crate) in_flight: u64,
    pub(crate) bytes_in_flight: u64,
    pub(crate) failures: Vec<Failure>,
    pub(crate) lost_items: Vec<LostItem>,
    pub(crate) left_over: u64,
    pub(crate) left_over_items: Vec<LostItem>,
    /// By receiving stage.
    pub(crate) toward: Vec<Toward>,
    /// For a source that has ended: how many items it has made.
    pub(crate) made: u64,
    /// For a source: how many items it makes in all, if it knows.
    pub(crate) length: Option<u64>,
    /// The error that fails the pipeline.
    pub(crate) fatal: Option<Failure>,
}

impl Counts {
    /// Makes these the counts of a life that has ended: it makes no more items than it has made.
    pub(crate) fn of_the_past(mut self) -> Self {
        self.length = self.length.map(|_| self.items_out);
        self
    }

    /// Bounds the counts of a worker: lists and texts that are too long are cut (MBX-2), and times are
    /// limited so that their sums cannot overflow.
    pub(crate) fn bounded(mut self) -> Self {
        for time in
            [&mut self.busy, &mut self.waiting, &mut self.active].into_iter().chain(&mut self.stream_waited)
        {
            *time = (*time).min(MOST_TIME);
        }
        self.toward.truncate(usize::from(u16::MAX));
        let cut = |all: &mut Vec<LostItem>| {
            all.truncate(MAX_NAMED);
            all.iter_mut().for_each(|lost| [&mut lost.stage, &mut lost.why].into_iter().for_each(cut));
        };
        [&mut self.lost_items, &mut self.left_over_items].into_iter().for_each(cut);
        self.failures.truncate(MAX_NAMED);
        self.failures = self.failures.into_iter().map(Failure::bounded).collect();
        self.fatal = self.fatal.map(Failure::bounded);
        // Rebuilt, so that it is well formed.
        let mut calls = Histogram::default();
        calls.merge(&self.calls);
        self.calls = calls;
        self
    }

    /// Adds the counts of another life that is over for good: one sum is kept for all replicas that have
    /// left.
    pub(crate) fn absorb(&mut self, other: Counts) {
        for (count, more) in [
            (&mut self.items_in, other.items_in),
            (&mut self.items_out, other.items_out),
            (&mut self.missed, other.missed),
            (&mut self.errors, other.errors),
            (&mut self.retries, other.retries),
            (&mut self.skipped, other.skipped),
            (&mut self.dead_letters, other.dead_letters),
            (&mut self.lost, other.lost),
            (&mut self.lost_tainted, other.lost_tainted),
            (&mut self.lost_outside, other.lost_outside),
            (&mut self.lost_unread, other.lost_unread),
            (&mut self.resent, other.resent),
            (&mut self.bytes_not_copied, other.bytes_not_copied),
            (&mut self.stream_waits, other.stream_waits),
            (&mut self.left_over, other.left_over),
        ] {
            *count = count.saturating_add(more);
        }
        self.busy = self.busy.saturating_add(other.busy);
        self.waiting = self.waiting.saturating_add(other.waiting);
        self.active = self.active.saturating_add(other.active);
        self.calls.merge(&other.calls);
        // `None` if the device of either life does not tell: a sum of the other alone would be wrong.
        let waited = self.stream_waited.zip(other.stream_waited);
        self.stream_waited = waited.map(|(one, other)| one.saturating_add(other));
        let named = |named: &[LostItem]| MAX_NAMED.saturating_sub(named.len());
        self.failures.extend(other.failures.into_iter().take(MAX_NAMED.saturating_sub(self.failures.len())));
        self.lost_items.extend(other.lost_items.into_iter().take(named(&self.lost_items)));
        self.left_over_items.extend(other.left_over_items.into_iter().take(named(&self.left_over_items)));
        for of in other.toward {
            match self.toward.iter_mut().find(|toward| toward.stage == of.stage) {
                Some(toward) => {
                    toward.handled = toward.handled.saturating_add(of.handled);
                    toward.accepted = toward.accepted.saturating_add(of.accepted);
                    toward.dropped = toward.dropped.saturating_add(of.dropped);
                }
                None => self.toward.push(of),
            }
        }
        self.fatal = self.fatal.take().or(other.fatal);
    }
}

impl Failure {
    /// Bounds the texts of a failure that a worker has reported.
    pub(crate) fn bounded(mut self) -> Self {
        [&mut self.stage, &mut self.why].into_iter().for_each(cut);
        self
    }
}

/// Cuts a text from another process.
fn cut(text: &mut String) {
    text.truncate(text.floor_char_boundary(MAX_WHY));
}

/// Something that took time, for a trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Span {
    pub(crate) what: Spanned,
    pub(crate) id: Option<ItemId>,
    /// Nanoseconds since 1970.
    pub(crate) from: u64,
    /// Nanoseconds.
    pub(crate) took: u64,
}

/// The kind of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Spanned {
    /// A call of the stage.
    Call,
    /// Waiting until that stage had room.
    Send(u16),
    /// From acceptance by that stage until it was done with the item: the item's tensors were leased to it.
    Lease(u16),
}

/// The counts while they change. Clones share them.
#[derive(Clone)]
pub(crate) struct Meter(Rc<Inner>);

struct Inner {
    counts: RefCell<Counts>,
    began: RefCell<Option<Instant>>,
    spans: Option<RefCell<VecDeque<Span>>>,
    epoch: (Instant, u64),
}

impl Meter {
    pub(crate) fn new(stage: u16, replica: u16, trace: bool) -> Self {
        // All processes have the same wall clock; if it is set during the start, the spans of one process are
        // shifted.
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Meter(Rc::new(Inner {
            counts: RefCell::new(Counts { stage, replica, ..Counts::default() }),
            began: RefCell::new(None),
            spans: trace.then(RefCell::default),
            epoch: (Instant::now(), since_1970.as_nanos() as u64),
        }))
    }

    pub(crate) fn note(&self, change: impl FnOnce(&mut Counts)) {
        change(&mut self.0.counts.borrow_mut());
    }

    /// Whether an error has failed the pipeline.
    pub(crate) fn fatal(&self) -> bool {
        self.0.counts.borrow().fatal.is_some()
    }

    pub(crate) fn counts(&self) -> Counts {
        self.0.counts.borrow().clone()
    }

    /// Notes a call of the stage that began at `from` and ended now.
    pub(crate) fn called(&self, from: Instant, id: Option<ItemId>) {
        let now = Instant::now();
        let took = now - from;
        let began = *self.0.began.borrow_mut().get_or_insert(from);
        let mut counts = self.0.counts.borrow_mut();
        counts.busy += took;
        counts.active = now - began;
        counts.calls.note(took);
        drop(counts);
        self.span(Spanned::Call, id, from, now);
    }

    /// Notes the time until `stage` had accepted an item.
    pub(crate) fn waited(&self, stage: u16, id: ItemId, from: Instant) {
        let now = Instant::now();
        self.0.counts.borrow_mut().waiting += now - from;
        self.span(Spanned::Send(stage), Some(id), from, now);
    }

    pub(crate) fn span(&self, what: Spanned, id: Option<ItemId>, from: Instant, to: Instant) {
        if let Some(spans) = &self.0.spans {
            let mut spans = spans.borrow_mut();
            if spans.len() < MAX_TRACED {
                let since = from.saturating_duration_since(self.0.epoch.0).as_nanos() as u64;
                spans.push_back(Span {
                    what,
                    id,
                    from: self.0.epoch.1 + since,
                    took: (to - from).as_nanos() as u64,
                });
            }
        }
    }

    pub(crate) fn traces(&self) -> bool {
        self.0.spans.is_some()
    }

    /// Takes the oldest spans, at most `count`.
    pub(crate) fn take_spans(&self, count: usize) -> Vec<Span> {
        let Some(spans) = &self.0.spans else { return Vec::new() };
        let mut spans = spans.borrow_mut();
        let count = count.min(spans.len());
        spans.drain(..count).collect()
    }

    pub(crate) fn failed(&self, failure: Failure, fatal: bool) {
        let mut counts = self.0.counts.borrow_mut();
        counts.errors += 1;
        if fatal && counts.fatal.is_none() {
            counts.fatal = Some(failure.clone());
        }
        if counts.failures.len() < MAX_NAMED {
            counts.failures.push(failure);
        }
    }

    /// Notes an item that failed together with the one on which a call failed.
    pub(crate) fn failed_too(&self, failure: Failure) {
        let mut counts = self.0.counts.borrow_mut();
        if counts.failures.len() < MAX_NAMED {
            counts.failures.push(failure);
        }
    }

    pub(crate) fn left_over(&self, stage: &str, ids: impl Iterator<Item = ItemId>, why: &str) {
        let mut counts = self.0.counts.borrow_mut();
        for id in ids {
            counts.left_over += 1;
            if counts.left_over_items.len() < MAX_NAMED {
                counts.left_over_items.push(LostItem { stage: stage.to_owned(), id, why: why.to_owned() });
            }
        }
    }

    pub(crate) fn lost(&self, stage: &str, ids: impl Iterator<Item = ItemId>, cause: Cause, why: &str) {
        let mut counts = self.0.counts.borrow_mut();
        for id in ids {
            counts.lost += 1;
            match cause {
                Cause::Ended => {}
                Cause::Tainted => counts.lost_tainted += 1,
                Cause::Outside => counts.lost_outside += 1,
                Cause::Unread => counts.lost_unread += 1,
            }
            if counts.lost_items.len() < MAX_NAMED {
                counts.lost_items.push(LostItem { stage: stage.to_owned(), id, why: why.to_owned() });
            }
        }
    }
}
