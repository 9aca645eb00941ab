//! The numbers of frames: frames that were not received are sent again, in order, and nothing arrives twice.

use std::collections::VecDeque;

use super::Violation;
use super::steps::{Step, Steps};
use crate::frame::Body;
use crate::ids::Seq;
use crate::limits::{ACK_AT, MAX_UNACKED};

#[derive(Debug)]
pub(super) struct Numbering {
    steps: Steps,
    /// The number of the first frame of `unacked`.
    first: Seq,
    unacked: VecDeque<Body>,
    /// The number of notes in `unacked`.
    notes: usize,
    /// The number of frames of `unacked` that were sent over the present connection.
    sent: usize,
    /// The last number that was sent over any connection.
    sent_ever: Seq,
    received: Seq,
    /// The last received number that the other side knows of.
    said: Seq,
}

impl Numbering {
    pub(super) fn new(steps: Steps) -> Self {
        Numbering {
            steps,
            first: 1,
            unacked: VecDeque::new(),
            notes: 0,
            sent: 0,
            sent_ever: 0,
            received: 0,
            said: 0,
        }
    }

    pub(super) fn received(&self) -> Seq {
        self.received
    }

    /// Returns the number of frames that are kept for the other side.
    pub(super) fn kept(&self) -> usize {
        self.unacked.len()
    }

    /// Returns the number of notes among them.
    pub(super) fn notes(&self) -> usize {
        self.notes
    }

    /// Returns the number that the next frame gets.
    pub(super) fn next_seq(&self) -> Seq {
        self.first + self.unacked.len() as Seq
    }

    pub(super) fn push(&mut self, body: Body) -> Seq {
        let seq = self.next_seq();
        self.notes += usize::from(matches!(body, Body::Note(_)));
        self.unacked.push_back(body);
        seq
    }

    pub(super) fn next_frame(&mut self) -> Option<(Seq, Body)> {
        let body = self.unacked.get(self.sent)?.clone();
        let seq = self.first + self.sent as Seq;
        self.sent += 1;
        self.sent_ever = self.sent_ever.max(seq);
        if !self.steps.does(Step::KeepUntilAcked) {
            self.forget(seq);
        }
        Some((seq, body))
    }

    /// Returns whether something has to be sent by itself. A few acknowledgements wait for a frame that goes
    /// anyway, or for the next beat. Each sent alone would cost a system call here and wake the other side,
    /// before the message is passed on.
    pub(super) fn has_frames(&self) -> bool {
        self.sent < self.unacked.len() || self.received - self.said >= ACK_AT
    }

    /// Returns the number to acknowledge, if any.
    pub(super) fn next_ack(&mut self) -> Option<Seq> {
        (self.said < self.received).then(|| {
            self.said = self.received;
            self.received
        })
    }

    pub(super) fn acked(&mut self, received: Seq) -> Result<(), Violation> {
        self.within(received, self.first + self.sent as Seq - 1)?;
        self.forget(received);
        Ok(())
    }

    /// Checks that the other side can have received frames up to this one.
    pub(super) fn can_resume(&self, received: Seq) -> Result<(), Violation> {
        self.within(received, self.sent_ever)
    }

    /// Begins a new connection, over which the other side has acknowledged frames up to `received`.
    pub(super) fn resume(&mut self, received: Seq) {
        self.forget(received);
        if self.steps.does(Step::SendAgain) {
            self.sent = 0;
        }
        // The greeting of this side acknowledges it.
        self.said = self.received;
    }

    fn within(&self, received: Seq, most: Seq) -> Result<(), Violation> {
        let least = self.first - 1;
        let can_be = (least..=most).contains(&received);
        if can_be { Ok(()) } else { Err(Violation::Received { found: received, least, most }) }
    }

    fn forget(&mut self, up_to: Seq) {
        while self.first <= up_to {
            let Some(body) = self.unacked.pop_front() else { return };
            self.notes -= usize::from(matches!(body, Body::Note(_)));
            self.first += 1;
            self.sent = self.sent.saturating_sub(1);
        }
    }

    /// Checks that this frame comes next.
    pub(super) fn expect(&self, seq: Seq) -> Result<(), Violation> {
        let expected = self.received + 1;
        if seq != expected {
            return Err(Violation::OutOfOrder { found: seq, expected });
        }
        // The frames that follow from taking it are kept, too.
        if self.unacked.len() >= MAX_UNACKED {
            return Err(Violation::Unacknowledged { frames: self.unacked.len() });
        }
        Ok(())
    }

    /// Records that the frame was taken.
    pub(super) fn took(&mut self, seq: Seq) {
        self.received = seq;
    }
}
