//! The end of a stage: hears it from all senders, finishes, passes it on, and answers it.
//!
//! Used by the steps of [`Core`]. **After a death** items may come behind the end. A source that begins anew
//! says its end once more behind these, and that end is passed on and answered like the first: its sender,
//! and with it the run, waits for what came late. **On a crash** of this process its senders say their ends
//! again to its next life.

use std::collections::HashSet;
use std::rc::Rc;

use super::super::ack_guard::AckGuard;
use super::super::args::Pairing;
use super::Core;
use crate::item::EndOf;
use crate::pairs::Partners;
use crate::traits::Stage;

/// Which ends came, and what is done about them.
#[derive(Default)]
pub(super) struct Ends {
    pub(super) lanes: HashSet<u32>,
    /// Answered when this stage is done too.
    ack_guard: Vec<AckGuard>,
    pub(super) begun: bool,
    /// Something has come since, of which the next stages have not heard the end.
    pub(super) late: bool,
    /// The end is being passed on.
    passing: bool,
    /// It is to be passed on once more.
    again: bool,
    /// A sender has said that this replica leaves its stage.
    leaves: bool,
}

impl<S: Stage> Core<S> {
    /// A sender has said its end.
    pub(super) async fn end_came(self: &Rc<Self>, lane: u32, of: EndOf, ack_guard: AckGuard) {
        self.ends.borrow_mut().leaves |= of == EndOf::Receiver;
        // A sender that leaves is to be gone when it has done what it had, and not when all is over.
        let ack_guard = (of != EndOf::Sender).then_some(ack_guard);
        self.ended(vec![lane], ack_guard).await;
    }

    /// From these senders something comes after all.
    pub(super) fn opens(&self, lanes: &[u32]) {
        let mut ends = self.ends.borrow_mut();
        // Behind the end they are late, as whatever comes then.
        if !ends.begun {
            ends.lanes.retain(|lane| !lanes.contains(lane));
        }
    }

    /// Nothing more comes from these senders. When that holds for all of them, the stage finishes and the end
    /// is passed on.
    pub(super) async fn ended(self: &Rc<Self>, lanes: Vec<u32>, ack_guard: Option<AckGuard>) {
        {
            let expected = &self.part.config.lanes;
            let mut ends = self.ends.borrow_mut();
            if ends.begun {
                // A source that had said its end may die before all is answered, and begin anew: then this is
                // the end behind what came late. Its answer too says that this stage is done, and all behind
                // it, which have to hear it. Of one without an answer nobody waits for that.
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
        // What still waits in the order goes first, without what is missing: nobody is left to send that.
        // Only then the stage has seen everything and may finish.
        self.order.borrow_mut().close();
        self.in_order().await;
        self.call(None, S::finish).await;
        // A stage that has failed has given up what it kept.
        self.nothing_of(None).await;
        self.begin_end();
    }

    /// Passes the end on beside the mailbox, which stays open: after a death items may still go round a loop,
    /// or be sent again, and those behind this stage answer its end only when they could pass them on to it.
    fn begin_end(self: &Rc<Self>) {
        self.ends.borrow_mut().passing = true;
        let core = Rc::clone(self);
        crate::worker::spawn(async move { core.end().await });
    }

    /// Says that nothing more comes from here, and is done when all was answered. One at a time, because two
    /// would wait for the same word that all is answered.
    async fn end(&self) {
        loop {
            // Those that come from now on are about what goes behind this end.
            let senders = std::mem::take(&mut self.ends.borrow_mut().ack_guard);
            // Both before either is waited for: where they come together again, the receiver is done when it
            // has both.
            let of = if self.ends.borrow().leaves { EndOf::Sender } else { EndOf::Flow };
            self.results.say_end(of).await;
            self.dead.say_end(of).await;
            self.results.ended().await;
            self.dead.ended().await;
            self.pushes.idle().await;
            // Only now the senders' ends are answered: an answer says that this stage is done, and all behind
            // it.
            self.part.finish().await;
            drop(senders);
            let mut ends = self.ends.borrow_mut();
            if !std::mem::take(&mut ends.again) {
                ends.passing = false;
                return;
            }
        }
    }

    /// Some senders have ended, and others have not: of a stage that pairs, it may be one side.
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
