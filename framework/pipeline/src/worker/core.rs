//! What the actors around sources and stages share: their configuration, their counts, and their end.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use tensorpost_core::api::actor::Env;
use tensorpost_core::api::observe::monotonic_ns;
use tokio::sync::Notify;

use super::args::{Config, Event};
use super::meter::{Counts, Failure, Meter, Toward};
use super::retained::Retained;
use super::waits::Wait;
use crate::item::ItemId;

/// Spans in one message.
const SPANS: usize = 2048;

/// Between two looks at what an actor that has ended had sent.
const LAST_WORDS: Duration = Duration::from_millis(20);

/// An actor's part in the run of its pipeline.
pub(super) struct Part {
    pub(super) config: Config,
    pub(super) meter: Meter,
    pub(super) env: Env,
    /// What the stage keeps beyond its calls.
    pub(super) retained: Retained,
    /// When this life began.
    born: u64,
    finished: Cell<bool>,
    /// The actor has ended.
    gone: Cell<bool>,
    changed: Notify,
    reporting: Cell<bool>,
    waits: RefCell<Box<Waits>>,
    toward: RefCell<Box<Sent>>,
}

/// Lists what the actor waits for.
type Waits = dyn Fn() -> Vec<Wait>;
/// Lists what became of what the actor has sent.
type Sent = dyn Fn() -> Vec<Toward>;

impl Part {
    pub(super) fn new(config: Config, env: &Env) -> Rc<Self> {
        #[cfg(feature = "testing")]
        crate::testing::note(&config.events);
        let meter = Meter::new(config.index, config.replica, config.trace);
        let retained = Retained::new(config.places);
        Rc::new(Part {
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
                // A conductor that has gone needs no event.
                let _ = events.send(event).await;
            });
        }
        self.meter.failed(failure, fatal);
        if self.has_failed() {
            self.give_up();
        }
    }

    /// A stage that has failed for good passes nothing on, whatever it failed of. The report names the items
    /// that it keeps, and their senders do not wait for them.
    fn give_up(&self) {
        for id in self.retained.give_up().iter().flat_map(|item| item.tag.ids()) {
            self.meter.note(|counts| counts.skipped += 1);
            let (stage, why) = (self.config.stage.clone(), "the stage kept it when it failed".to_owned());
            self.meter.failed_too(Failure { stage, id: Some(id), why, attempts: 0 });
        }
    }

    /// The next stages have accepted an item.
    pub(super) fn emitted(&self) {
        self.meter.note(|counts| counts.items_out += 1);
        self.env.note_emitted(1);
    }

    /// Whether an error has failed the pipeline here.
    pub(super) fn has_failed(&self) -> bool {
        self.meter.fatal()
    }

    /// All is done and told.
    pub(super) async fn finish(&self) {
        while self.meter.traces() && self.tell_spans().await {}
        self.finished.set(true);
        self.changed.notify_waiters();
    }

    pub(super) fn is_finished(&self) -> bool {
        self.finished.get()
    }

    /// Resolves to the counts, when all is done.
    pub(super) async fn finished(self: Rc<Self>) -> Counts {
        loop {
            let changed = self.changed.notified();
            if self.is_finished() {
                return self.counts();
            }
            changed.await;
        }
    }

    /// How to find out what the actor waits for.
    pub(super) fn waits_as(&self, waits: impl Fn() -> Vec<Wait> + 'static) {
        *self.waits.borrow_mut() = Box::new(waits);
    }

    /// How to find out what became of what the actor has sent.
    pub(super) fn toward_as(&self, toward: impl Fn() -> Vec<Toward> + 'static) {
        *self.toward.borrow_mut() = Box::new(toward);
    }

    /// The actor has ended, and its process may go on. What it had sent is still followed there, and told
    /// until all of it was answered.
    pub(super) fn end(&self) {
        self.gone.set(true);
        // Now: the task that tells what became of the rest goes on, and has this.
        drop((self.retained.give_up(), self.retained.dropped()));
        self.changed.notify_waiters();
    }

    /// Begins to tell how far it is. On a task of its own: the actor takes no message while it waits for
    /// room.
    pub(super) fn report(self: &Rc<Self>) {
        if self.reporting.replace(true) {
            return;
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
                // After its answer nobody reads reports.
                if part.is_finished() {
                    return;
                }
                // Progress that nobody has room for is old when there is room.
                let _ = part.config.events.try_send(part.progress());
            }
            part.last_words().await;
        });
    }

    /// Tells what became of what an actor that has ended had sent, until all of it was answered.
    async fn last_words(&self) {
        let mut told = None;
        while !self.is_finished() {
            let Counts { lost, in_flight, .. } = self.meter.counts();
            let news = told.replace(lost) != Some(lost) || in_flight == 0;
            // A conductor that has gone needs no event.
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
