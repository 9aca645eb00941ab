//! Sends a stage's messages to actors outside of its pipeline ([`Out::send`], [`Out::ask`]), and waits for
//! their answers.
//!
//! A message goes when the call has returned, before the results of that call. The stage takes no other item
//! before the actor has accepted the message, and has answered it if it is an ask. A task follows each
//! accepted message until it is answered, as on every hop; the stage does not end before all answers have
//! come. Under at-least-once delivery, and in a loop, the item is not answered before.
//!
//! **On a death of the actor** the messages that it had accepted are named as lost, or left to the sender
//! that can send the item again. An actor that does not come back takes no more messages; that is an error of
//! the stage.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Instant;

use tensorpost_core::api::observe::TraceContext;
use tokio::sync::Notify;
use tracing::Instrument;

use super::ack_guard::AckGuard;
use super::core::Part;
use super::waits::Wait;
use crate::item::{Item, Tag};
use crate::out::{Emitted, Out};
use crate::push::{Pushed, Taken, Unserved};

/// See the module.
pub(super) struct Pushes {
    part: Rc<Part>,
    unanswered: Cell<u32>,
    /// The actor that has to take something before the stage goes on.
    held_up: RefCell<Option<String>>,
    emptied: Notify,
}

impl Pushes {
    pub(super) fn new(part: &Rc<Part>) -> Rc<Self> {
        Rc::new(Pushes {
            part: Rc::clone(part),
            unanswered: Cell::new(0),
            held_up: RefCell::new(None),
            emptied: Notify::new(),
        })
    }

    /// Sends the messages of a call, and puts the results of their replies among those of the call.
    pub(super) async fn send<T: Item>(self: &Rc<Self>, out: &mut Out<T>) {
        let mut made = Vec::new();
        for Pushed { at, of, push } in out.take_pushed() {
            *self.held_up.borrow_mut() = Some(push.to());
            let from = Instant::now();
            // The receiver's span is a child of the call's span, although the call has returned.
            let context = of.as_ref().map_or_else(TraceContext::default, |(tag, _)| tag.span);
            let span = context.child(|| tracing::info_span!("send", otel.kind = "producer", to = push.to()));
            let sending = span.in_scope(|| push.begin());
            let taken = sending.instrument(span).await;
            self.part.meter.note(|counts| counts.waiting += from.elapsed());
            *self.held_up.borrow_mut() = None;
            match taken {
                Ok(Taken::Answered(items)) => made.push((at, of, items)),
                Ok(Taken::Following(answer)) => {
                    let pushes = Rc::clone(self);
                    // Outside of a chain, the item is released when the message was accepted.
                    let chain = self.part.config.chain;
                    let (tag, ack_guard) = of.map(|(tag, guard)| (tag, chain.then_some(guard))).unzip();
                    self.unanswered.update(|unanswered| unanswered + 1);
                    crate::worker::spawn(async move {
                        if let Err(unserved) = answer.await {
                            pushes.unserved(tag, ack_guard.flatten(), unserved);
                        }
                        pushes.answered();
                    });
                }
                Err(unserved) => {
                    let (tag, ack_guard) = of.unzip();
                    self.unserved(tag, ack_guard, unserved);
                }
            }
        }
        // From the last on, so that the indices of those before stay valid.
        for (at, of, items) in made.into_iter().rev() {
            let tag = of.as_ref().map_or_else(Tag::of_nothing, |(tag, _)| tag.clone());
            let emitted = items.into_iter().map(|item| {
                let ack_guard = of.iter().map(|(_, guard)| guard.clone()).collect();
                Emitted { tag: tag.clone(), item, ack_guard }
            });
            out.insert(at, emitted);
        }
    }

    /// Handles a message of which nothing comes.
    fn unserved(&self, tag: Option<Tag>, ack_guard: Option<AckGuard>, unserved: Unserved) {
        let (part, Unserved { why, lost }) = (&self.part, unserved);
        let again = part.config.resend && lost.is_some_and(|cause| cause.is_a_death());
        match (tag, lost) {
            // The sender that still has the item sends it again.
            (Some(_), Some(_)) if again => ack_guard.iter().for_each(AckGuard::lose),
            (Some(tag), Some(cause)) => part.meter.lost(&part.config.stage, tag.ids(), cause, &why),
            (tag, _) => {
                part.failed(tag.map(|tag| tag.id), why, 1, part.config.on_error.fails());
            }
        }
    }

    fn answered(&self) {
        self.unanswered.update(|unanswered| unanswered.saturating_sub(1));
        if self.unanswered.get() == 0 {
            self.emptied.notify_one();
        }
    }

    /// Waits until everything was answered.
    pub(super) async fn idle(&self) {
        while self.unanswered.get() > 0 {
            self.emptied.notified().await;
        }
    }

    /// Returns what the stage waits for at actors.
    pub(super) fn waits(&self) -> impl Iterator<Item = Wait> {
        let room = self.held_up.borrow().clone().map(|actor| Wait::Actor { actor });
        let count = self.unanswered.get();
        room.into_iter().chain((count > 0).then_some(Wait::Actors(count)))
    }
}
