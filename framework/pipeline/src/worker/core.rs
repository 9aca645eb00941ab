//! The part that the actors around sources and stages share: their configuration, their counts, and their
//! end.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use tensorpost_core::api::actor::Env;
use tensorpost_core::api::observe::monotonic_ns;
use tokio::sync::Notify;

use super::args::{Config, Event};
use super::gate::Gate;
use super::meter::{Counts, Failure, Meter, Toward};
use super::retained::Retained;
use super::waits::Wait;
use crate::item::ItemId;

/// Spans in one message.
const SPANS: usize = 2048;

/// The time between two looks at the unanswered items of an actor that has ended.
const LAST_WORDS: Duration = Duration::from_millis(20);

/// An actor's part in the run of its pipeline.
pub(super) struct Part {
    pub(super) config: Config,
    pub(super) meter: Meter,
    pub(super) env: Env,
    pub(super) gate: Gate,
    /// The items that the stage keeps beyond its calls.
    pub(super) retained: Retained,
    /// When this life began.
    born: u64,
    finished: Cell<bool>,
    /// Whether the actor has ended.
    gone: Cell<bool>,
    changed: Notify,
    reporting: Cell<bool>,
    waits: RefCell<Box<Waits>>,
    toward: RefCell<Box<Sent>>,
}

/// Lists what the actor waits for.
type Waits = dyn Fn() -> Vec<Wait>;
/// Lists what became of the items that the actor has sent.
type Sent = dyn Fn() -> Vec<Toward>;

impl Part {
    pub(super) fn new(config: Config, env: &Env) -> Rc<Self> {
        #[cfg(feature = "testing")]
        crate::testing::note(&config.events);
        let meter = Meter::new(config.index, config.replica, config.trace);
        let retained = Retained::new(config.places);
        Rc::new(Part {
            gate: Gate::new(&config),
            config,
            meter,
            env: env.clone(),
            retained,
            born: monotonic_ns(),
            finished: Cell::new(false),
            gone: Cell::new(false),
            changed: Notify::new(),
            reporting: Cell::new(false),
            waits: RefCell::new(Box::new(Vec::new)),
            toward: RefCell::new(Box::new(Vec::new)),
        })
    }

    /// Notes that the stage failed, and fails the pipeline if `fatal`.
    pub(super) fn failed(&self, id: Option<ItemId>, why: String, attempts: u32, fatal: bool) {
        let failure = Failure { stage: self.config.stage.clone(), id, why, attempts };
        if fatal && !self.has_failed() {
            let events = self.config.events.clone();
            let event = Event::Failed(failure.clone());
            crate::worker::spawn(async move {
                // If the conductor has ended, it needs no event.
                let _ = events.send(event).await;
            });
        }
        self.meter.failed(failure, fatal);
        if self.has_failed() {
            self.give_up();
        }
    }

    /// Gives up the items that the stage keeps. A stage that has failed for good passes nothing on, whatever
    /// the cause. The report names these items, and their senders do not wait for them.
    fn give_up(&self) {
        for id in self.retained.give_up().iter().flat_map(|item| item.tag.ids()) {
            self.meter.note(|counts| counts.skipped += 1);
            let (stage, why) = (self.config.stage.clone(), "the stage kept it when it failed".to_owned());
            self.meter.failed_too(Failure { stage, id: Some(id), why, attempts: 0 });
        }
    }

    /// Notes that the next stages have accepted an item.
    pub(super) fn emitted(&self) {
        self.meter.note(|counts| counts.items_out += 1);
        self.env.note_emitted(1);
    }

    /// Whether an error has failed the pipeline here.
    pub(super) fn has_failed(&self) -> bool {
        self.meter.fatal()
    }

    /// Notes that everything is done, after sending all spans.
    pub(super) async fn finish(&self) {
        while self.meter.traces() && self.tell_spans().await {}
        self.finished.set(true);
        self.changed.notify_waiters();
    }

    pub(super) fn is_finished(&self) -> bool {
        self.finished.get()
    }

    /// Resolves to the counts, when everything is done.
    pub(super) async fn finished(self: Rc<Self>) -> Counts {
        loop {
            let changed = self.changed.notified();
            if self.is_finished() {
                return self.counts();
            }
            changed.await;
        }
    }

    /// Sets the function that lists what the actor waits for.
    pub(super) fn waits_as(&self, waits: impl Fn() -> Vec<Wait> + 'static) {
        *self.waits.borrow_mut() = Box::new(waits);
    }

    /// Sets the function that lists what became of the items that the actor has sent.
    pub(super) fn toward_as(&self, toward: impl Fn() -> Vec<Toward> + 'static) {
        *self.toward.borrow_mut() = Box::new(toward);
    }

    /// Notes that the actor has ended; its process may go on. The process still follows the items that the
    /// actor had sent, and reports until all of them were answered.
    pub(super) fn end(&self) {
        self.gone.set(true);
        // Dropped now: the task that reports the last items goes on, and keeps `self` alive.
        drop((self.retained.give_up(), self.retained.dropped()));
        self.changed.notify_waiters();
    }

    /// Starts the task that reports the progress. It is a task of its own because the actor takes no message
    /// while it waits for room.
    pub(super) fn report(self: &Rc<Self>) {
        if self.reporting.replace(true) {
            return;
        }
        #[cfg(feature = "testing")]
        if let Some(name) = crate::testing::name_for_liars(&self.config) {
            let part = Rc::clone(self);
            crate::worker::spawn(async move { drop(part.env.register(&name).await) });
        }
        let every = self.config.every;
        let part = Rc::clone(self);
        crate::worker::spawn(async move {
            let mut ticks = tokio::time::interval(Duration::from_millis(every.max(1)));
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            while !part.gone.get() {
                tokio::select! {
                    _ = ticks.tick() => {}
                    () = part.changed.notified() => continue,
                }
                // After the actor's answer the conductor reads no reports.
                if part.is_finished() {
                    return;
                }
                // If there is no room, the report is dropped: it would be old when there is room.
                let _ = part.config.events.try_send(part.progress());
            }
            part.last_words().await;
        });
    }

    /// Reports what becomes of the items of an actor that has ended, until all of them were answered.
    async fn last_words(&self) {
        let mut told = None;
        while !self.is_finished() {
            let Counts { lost, in_flight, .. } = self.meter.counts();
            let news = told.replace(lost) != Some(lost) || in_flight == 0;
            // If the conductor has ended, it needs no event.
            if (news && self.config.events.send(self.progress()).await.is_err()) || in_flight == 0 {
                return;
            }
            tokio::time::sleep(LAST_WORDS).await;
        }
    }

    fn progress(&self) -> Event {
        let waits = (self.waits.borrow())();
        Event::Progress(Box::new(self.counts()), waits)
    }

    fn counts(&self) -> Counts {
        let mut counts = self.meter.counts();
        counts.life = self.born;
        counts.toward = (self.toward.borrow())();
        counts.bytes_not_copied = self.env.stats().bytes_not_copied;
        (counts.stream_waits, counts.stream_waited) = self.env.stream().waits();
        counts
    }

    async fn tell_spans(&self) -> bool {
        let spans = self.meter.take_spans(SPANS);
        let (stage, replica) = (self.config.index, self.config.replica);
        let more = spans.len() == SPANS;
        let event = Event::Spans { stage, replica, pid: std::process::id(), spans };
        self.config.events.send(event).await.is_ok() && more
    }
}
