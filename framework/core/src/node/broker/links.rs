//! The messages that processes send each other through the node: halves of links, answers to them, fresh
//! memory for their rings.
//!
//! Part of the broker, which is called for one message at a time.
//! [`link_messages`](crate::node::link_messages) counts the messages of each pair and bounds them.
//!
//! **Invariants.** A link message goes to the life of a process that it names, or to nobody (WIRE-1). A
//! process that waits for an answer gets one, even if the node lacks descriptors.
//!
//! **Locks.** None. **On a crash** of a process nothing of its messages is kept. **On cancellation** nothing
//! happens.

use std::io;
use std::os::fd::OwnedFd;

use super::{Broker, Complaint, Delivery, expect};
use crate::ids::ProcessId;
use crate::node::link_messages::Verdict;
use crate::transport::WhyRefused;
use crate::transport::control_channel::{FromNode, LinkMessage};

/// How many descriptors a half has.
const HALF: usize = 5;

impl Broker {
    pub(super) fn link_message(
        &mut self,
        from: ProcessId,
        to: ProcessId,
        link_message: LinkMessage,
        descriptors: Vec<OwnedFd>,
        out: &mut Vec<Delivery>,
    ) -> Result<(), Complaint> {
        match link_message {
            LinkMessage::Link { number } => {
                expect(&descriptors, "a link", HALF)?;
                self.half(from, to, number, Ok(descriptors), out)
            }
            LinkMessage::Rings { number } => {
                expect(&descriptors, "fresh rings", 1)?;
                self.offer(from, to, number, Some(descriptors), out)
            }
            LinkMessage::RingsAnswer { number, .. } => {
                expect(&descriptors, "the answer to fresh rings", 0)?;
                if !self.may_write(from, to, out)? {
                    return Ok(());
                }
                if !self.link_messages.offer_answered(from, to, number) {
                    return Err(Complaint::NoSuchOffer(to));
                }
                out.push(passed_on(from, to, link_message, descriptors));
                Ok(())
            }
        }
    }

    pub(super) fn refuse_link(
        &mut self,
        from: ProcessId,
        peer: ProcessId,
        number: u64,
        why: WhyRefused,
        out: &mut Vec<Delivery>,
    ) -> Result<(), Complaint> {
        if !self.may_write(from, peer, out)? {
            return Ok(());
        }
        match self.link_messages.refuse(from, peer, number) {
            Verdict::Due => {
                out.push(refused((peer, from), number, from, why));
                // It may have sent its own half while it refused: that half is void too, so that nobody waits
                // for it.
                let own = self.link_messages.void(peer, from);
                out.extend(own.map(|number| refused((from, peer), number, from, why)));
                Ok(())
            }
            Verdict::Late => Ok(()),
            Verdict::Forged => Err(Complaint::NoSuchHalf(peer)),
        }
    }

    /// Handles a half of a link to `to`, with its descriptors, or with the error that made the node lose
    /// them.
    pub(crate) fn half(
        &mut self,
        from: ProcessId,
        to: ProcessId,
        number: u64,
        descriptors: io::Result<Vec<OwnedFd>>,
        out: &mut Vec<Delivery>,
    ) -> Result<(), Complaint> {
        if !self.may_write(from, to, out)? {
            return Ok(());
        }
        if !self.link_messages.half(from, to, number) {
            return Err(Complaint::LinkMessageAgain(to));
        }
        // WIRE-1: pass on the page that the node can release, and not one of the process's choice.
        let clocks = || self.deaths.clocks(from).transpose();
        let whole = descriptors.and_then(|mut descriptors| {
            if let (Some(first), Some(clocks)) = (descriptors.first_mut(), clocks()?) {
                *first = clocks;
            }
            Ok(descriptors)
        });
        match whole {
            Ok(descriptors) => {
                let message = FromNode::LinkMessage { from, link_message: LinkMessage::Link { number } };
                out.push(Delivery { to, message, descriptors });
                Ok(())
            }
            Err(error) => {
                // Both sides hear of it, so nobody waits for this half, nor for an answer to the other one.
                let why = WhyRefused::of(&error);
                let others = self.link_messages.void(from, to);
                out.push(refused((from, to), number, ProcessId::NODE, why));
                out.extend(others.map(|number| refused((to, from), number, ProcessId::NODE, why)));
                Err(Complaint::NoHalf(to, error))
            }
        }
    }

    /// Whether a link message can go to `to`. If not, its sender is told.
    fn may_write(&self, from: ProcessId, to: ProcessId, out: &mut Vec<Delivery>) -> Result<bool, Complaint> {
        if to == from {
            return Err(Complaint::ToItself);
        }
        if self.roster.lifecycle(to) {
            return Ok(true);
        }
        let mut answer = |message| out.push(Delivery::plain(from, message));
        if self.knows(to) {
            answer(FromNode::Exited { process: to });
            return Ok(false);
        }
        answer(FromNode::Nobody { process: to });
        Err(Complaint::UnknownProcess(to))
    }

    /// Handles an offer of fresh rings for the link to `to`, with their descriptor, if the node has not lost
    /// it.
    pub(crate) fn offer(
        &mut self,
        from: ProcessId,
        to: ProcessId,
        number: u64,
        descriptors: Option<Vec<OwnedFd>>,
        out: &mut Vec<Delivery>,
    ) -> Result<(), Complaint> {
        if !self.may_write(from, to, out)? {
            return Ok(());
        }
        match self.link_messages.offer(from, to, number) {
            Verdict::Due => {}
            Verdict::Late => return Ok(()),
            Verdict::Forged => return Err(Complaint::OfferAgain(to)),
        }
        let Some(descriptors) = descriptors else {
            // Its sender goes on as before, and may try again.
            self.link_messages.offer_answered(to, from, number);
            let answer = LinkMessage::RingsAnswer { number, is_taken: false };
            out.push(passed_on(to, from, answer, Vec::new()));
            return Ok(());
        };
        out.push(passed_on(from, to, LinkMessage::Rings { number }, descriptors));
        Ok(())
    }
}

fn passed_on(
    from: ProcessId,
    to: ProcessId,
    link_message: LinkMessage,
    descriptors: Vec<OwnedFd>,
) -> Delivery {
    Delivery { to, message: FromNode::LinkMessage { from, link_message }, descriptors }
}

/// Makes the message that the half of `whose.0` leads to no link with `whose.1`.
fn refused(whose: (ProcessId, ProcessId), number: u64, by: ProcessId, why: WhyRefused) -> Delivery {
    let (to, peer) = whose;
    let message = FromNode::LinkRefused { peer, number, by, name: String::new(), why };
    Delivery::plain(to, message)
}
