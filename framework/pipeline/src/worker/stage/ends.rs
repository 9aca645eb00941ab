//! The end of a stage: takes the ends of all senders, finishes, passes the end on, and answers the senders'
//! ends.
//!
//! Used by the steps of [`Core`]. **After a death** items may come behind the end. A source that begins anew
//! sends its end once more behind these, and that end is passed on and answered like the first: its sender,
//! and with it the run, waits for the late items. **On a crash** of this process its senders send their ends
//! again to its next life.

use std::collections::HashSet;
use std::rc::Rc;

use super::super::ack_guard::AckGuard;
use super::super::args::Pairing;
use super::Core;
use crate::item::EndOf;
use crate::pairs::Partners;
use crate::traits::Stage;

/// The ends that came, and how far they are passed on.
#[derive(Default)]
pub(super) struct Ends {
    pub(super) lanes: HashSet<u32>,
    /// The senders' ends, which are answered when this stage is done too.
    ack_guard: Vec<AckGuard>,
    pub(super) begun: bool,
    /// Whether something has come since the end was passed on: the next stages need another end behind it.
    pub(super) late: bool,
    /// Whether the end is being passed on.
    passing: bool,
    /// Whether it must be passed on once more.
    again: bool,
    /// Whether a sender has said that this replica leaves its stage.
    leaves: bool,
}

impl<S: Stage> Core<S> {
    /// Takes the end of a sender.
    pub(super) async fn end_came(self: &Rc<Self>, lane: u32, of: EndOf, ack_guard: AckGuard) {
        self.ends.borrow_mut().leaves |= of == EndOf::Receiver;
        // A sender that leaves must be able to end when its own items are finished, and not only when all is
        // over. So its end is answered at once.
        let ack_guard = (of != EndOf::Sender).then_some(ack_guard);
        self.ended(vec![lane], ack_guard).await;
    }

    /// Notes that something comes from these senders after all.
    pub(super) fn opens(&self, lanes: &[u32]) {
        let mut ends = self.ends.borrow_mut();
        // Behind the end their items are late, like all items that come then.
        if !ends.begun {
            ends.lanes.retain(|lane| !lanes.contains(lane));
        }
    }

    /// Notes that nothing more comes from these senders. When that holds for all senders, the stage finishes
    /// and the end is passed on.
    pub(super) async fn ended(self: &Rc<Self>, lanes: Vec<u32>, ack_guard: Option<AckGuard>) {
        {
            let expected = &self.part.config.lanes;
            let mut ends = self.ends.borrow_mut();
            if ends.begun {
                // A source that had sent its end may die before everything is answered, and begin anew: then
                // this is the end behind the late items. Its answer too says that this stage and all stages
                // behind it are done, so these must get the end. If the end has no ack guard, no sender waits
                // for that.
                let (true, Some(ack_guard)) = (ends.late, ack_guard) else { return };
                ends.late = false;
                ends.ack_guard.push(ack_guard);
                if ends.passing {
                    ends.again = true;
                    return;
                }
                drop(ends);
                return self.begin_end();
            }
            ends.lanes.extend(lanes);
            ends.ack_guard.extend(ack_guard);
            ends.begun = expected.iter().all(|lane| ends.lanes.contains(lane));
        }
        if !self.ends.borrow().begun {
            return self.side_ended().await;
        }
        // First come the items that still wait in the order, without the missing ones, which no sender is
        // left to send. Only then has the stage seen everything and may finish.
        self.order.borrow_mut().close();
        self.in_order().await;
        self.call(None, S::finish).await;
        // A stage that has failed has given up the items that it kept: their places are closed too.
        self.nothing_of(None).await;
        self.begin_end();
    }

    /// Passes the end on in a task of its own, so that the mailbox stays open: after a death items may still
    /// go round a loop, or be sent again. The receivers answer this stage's end only when they could pass
    /// such items on to it.
    fn begin_end(self: &Rc<Self>) {
        self.ends.borrow_mut().passing = true;
        let core = Rc::clone(self);
        crate::worker::spawn(async move { core.end().await });
    }

    /// Sends the end, and finishes when everything was answered. Only one task does this at a time, because
    /// two would wait for the same notification that everything is answered.
    async fn end(&self) {
        loop {
            // Ends that come from now on are for the items behind this end.
            let senders = std::mem::take(&mut self.ends.borrow_mut().ack_guard);
            // Both ends are sent before either is waited for: if the two flows come together again, the
            // receiver is done only when it has both.
            let of = if self.ends.borrow().leaves { EndOf::Sender } else { EndOf::Flow };
            self.results.say_end(of).await;
            self.dead.say_end(of).await;
            self.results.ended().await;
            self.dead.ended().await;
            self.pushes.idle().await;
            // Only now are the senders' ends answered: an answer says that this stage is done, and all stages
            // behind it.
            self.part.finish().await;
            drop(senders);
            let mut ends = self.ends.borrow_mut();
            if !std::mem::take(&mut ends.again) {
                ends.passing = false;
                return;
            }
        }
    }

    /// Tells a stage that pairs if all senders of one side have ended, while others have not.
    async fn side_ended(&self) {
        let Some(Pairing { sides, .. }) = &self.part.config.pairing else { return };
        for (side, left) in sides.iter().zip([true, false]) {
            let ended = side.lanes.iter().all(|lane| self.ends.borrow().lanes.contains(lane));
            if ended {
                self.partners(Partners::Ended { left }).await;
            }
        }
    }
}
