//! What one actor of a pipeline counts.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::histogram::Histogram;
use crate::pipeline::item::ItemId;
use crate::pipeline::limits::{MAX_NAMED, MAX_TRACED};

/// An item on which a stage failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The stage.
    pub stage: String,
    /// The item; `None` where the stage failed without one.
    pub id: Option<ItemId>,
    /// What the stage said, with its causes.
    pub why: String,
    /// How often it was tried.
    pub attempts: u32,
}

/// An item that is gone: a stage had accepted it, or it could not be sent to it, when a process ended that it needed; or it
/// was left over, because what it waited for did not come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lost {
    /// The stage at which it was lost.
    pub stage: String,
    /// The item.
    pub id: ItemId,
    /// What the sender was told, or the stage says.
    pub why: String,
}

/// What took a lost item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pipeline) enum Cause {
    /// Its receiver ended, or dropped it: a death or a panic that the conductor sees too, or else nothing explains it.
    Ended,
    /// Its data was lost with a process, of this pipeline or not (DEATH-3).
    Tainted,
    /// Its receiver goes on and could not read it. No death explains that.
    Unread,
}

/// Counts of one actor, as they travel.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(in crate::pipeline) struct Counts {
    pub(in crate::pipeline) stage: u16,
    pub(in crate::pipeline) replica: u16,
    /// Which life of the actor counted.
    pub(in crate::pipeline) life: u32,
    pub(in crate::pipeline) items_in: u64,
    pub(in crate::pipeline) items_out: u64,
    pub(in crate::pipeline) errors: u64,
    pub(in crate::pipeline) retries: u64,
    pub(in crate::pipeline) skipped: u64,
    pub(in crate::pipeline) dead_letters: u64,
    /// Items lost, and of those, the ones whose data was lost with a process and the ones that a receiver could not read.
    pub(in crate::pipeline) lost: u64,
    pub(in crate::pipeline) lost_tainted: u64,
    pub(in crate::pipeline) lost_unread: u64,
    pub(in crate::pipeline) resent: u64,
    pub(in crate::pipeline) busy: Duration,
    pub(in crate::pipeline) waiting: Duration,
    /// From the first item to the last.
    pub(in crate::pipeline) active: Duration,
    pub(in crate::pipeline) calls: Histogram,
    pub(in crate::pipeline) bytes_not_copied: u64,
    /// Waits on the actor's stream, and the time in them where the device tells.
    pub(in crate::pipeline) stream_waits: u64,
    pub(in crate::pipeline) stream_waited: Option<Duration>,
    pub(in crate::pipeline) in_flight: u64,
    pub(in crate::pipeline) bytes_in_flight: u64,
    pub(in crate::pipeline) failures: Vec<Failure>,
    pub(in crate::pipeline) lost_items: Vec<Lost>,
    pub(in crate::pipeline) left_over: u64,
    pub(in crate::pipeline) left_over_items: Vec<Lost>,
    /// The error that fails the pipeline.
    pub(in crate::pipeline) fatal: Option<Failure>,
}

/// Something that took time, for a trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::pipeline) struct Span {
    pub(in crate::pipeline) what: Spanned,
    pub(in crate::pipeline) id: Option<ItemId>,
    /// Nanoseconds since 1970.
    pub(in crate::pipeline) from: u64,
    /// Nanoseconds.
    pub(in crate::pipeline) took: u64,
}

/// What took the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::pipeline) enum Spanned {
    /// A call of the stage.
    Call,
    /// Waiting until that stage had room.
    Send(u16),
    /// From acceptance by that stage until it was done with the item: the item's tensors were leased to it.
    Lease(u16),
}

/// Counts while they change. Clones share them.
#[derive(Clone)]
pub(in crate::pipeline) struct Meter(Rc<Inner>);

struct Inner {
    counts: RefCell<Counts>,
    began: RefCell<Option<Instant>>,
    spans: Option<RefCell<VecDeque<Span>>>,
    epoch: (Instant, u64),
}

impl Meter {
    pub(in crate::pipeline) fn new(stage: u16, replica: u16, trace: bool) -> Self {
        // Every process has the same clock of the day; a step of it during the start shifts one process's spans.
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Meter(Rc::new(Inner {
            counts: RefCell::new(Counts { stage, replica, ..Counts::default() }),
            began: RefCell::new(None),
            spans: trace.then(RefCell::default),
            epoch: (Instant::now(), since_1970.as_nanos() as u64),
        }))
    }

    pub(in crate::pipeline) fn note(&self, change: impl FnOnce(&mut Counts)) {
        change(&mut self.0.counts.borrow_mut());
    }

    /// Whether an error has failed the pipeline.
    pub(in crate::pipeline) fn fatal(&self) -> bool {
        self.0.counts.borrow().fatal.is_some()
    }

    pub(in crate::pipeline) fn counts(&self) -> Counts {
        self.0.counts.borrow().clone()
    }

    /// A call of the stage, that began at `from` and ended now.
    pub(in crate::pipeline) fn called(&self, from: Instant, id: Option<ItemId>) {
        let now = Instant::now();
        let took = now - from;
        let began = *self.0.began.borrow_mut().get_or_insert(from);
        let mut counts = self.0.counts.borrow_mut();
        counts.busy += took;
        counts.active = now - began;
        counts.calls.add(took);
        drop(counts);
        self.span(Spanned::Call, id, from, now);
    }

    /// Time until `stage` had accepted something.
    pub(in crate::pipeline) fn waited(&self, stage: u16, id: ItemId, from: Instant) {
        let now = Instant::now();
        self.0.counts.borrow_mut().waiting += now - from;
        self.span(Spanned::Send(stage), Some(id), from, now);
    }

    pub(in crate::pipeline) fn span(&self, what: Spanned, id: Option<ItemId>, from: Instant, to: Instant) {
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

    pub(in crate::pipeline) fn traces(&self) -> bool {
        self.0.spans.is_some()
    }

    /// The oldest spans, at most `count`.
    pub(in crate::pipeline) fn take_spans(&self, count: usize) -> Vec<Span> {
        let Some(spans) = &self.0.spans else { return Vec::new() };
        let mut spans = spans.borrow_mut();
        let count = count.min(spans.len());
        spans.drain(..count).collect()
    }

    pub(in crate::pipeline) fn failed(&self, failure: Failure, fatal: bool) {
        let mut counts = self.0.counts.borrow_mut();
        counts.errors += 1;
        if fatal && counts.fatal.is_none() {
            counts.fatal = Some(failure.clone());
        }
        if counts.failures.len() < MAX_NAMED {
            counts.failures.push(failure);
        }
    }

    /// An item that goes down with the one on which a call failed.
    pub(in crate::pipeline) fn failed_too(&self, failure: Failure) {
        let mut counts = self.0.counts.borrow_mut();
        if counts.failures.len() < MAX_NAMED {
            counts.failures.push(failure);
        }
    }

    pub(in crate::pipeline) fn left_over(&self, stage: &str, ids: impl Iterator<Item = ItemId>, why: &str) {
        let mut counts = self.0.counts.borrow_mut();
        for id in ids {
            counts.left_over += 1;
            if counts.left_over_items.len() < MAX_NAMED {
                counts.left_over_items.push(Lost { stage: stage.to_owned(), id, why: why.to_owned() });
            }
        }
    }

    pub(in crate::pipeline) fn lost(
        &self,
        stage: &str,
        ids: impl Iterator<Item = ItemId>,
        cause: Cause,
        why: &str,
    ) {
        let mut counts = self.0.counts.borrow_mut();
        for id in ids {
            counts.lost += 1;
            match cause {
                Cause::Ended => {}
                Cause::Tainted => counts.lost_tainted += 1,
                Cause::Unread => counts.lost_unread += 1,
            }
            if counts.lost_items.len() < MAX_NAMED {
                counts.lost_items.push(Lost { stage: stage.to_owned(), id, why: why.to_owned() });
            }
        }
    }
}
