//! The receipt of a message: the reply to its asker, and the credit that goes back to its sender.

use std::sync::Arc;

use tokio::sync::oneshot;

use crate::clock::ClockDomain;
use crate::ids::ProcessId;
use crate::message::scope;
use crate::stream::turn::Turn;
use crate::transport::inbox::{LocalCredits, Receipt, Refusal};
use crate::transport::{AskFailure, PublishingThread, Transport};

/// The receipt of a message. Its drop sends the reply, if there is one, and then hands the sender's credit
/// back.
pub(in crate::actor) enum Done<R> {
    Remote(Receipt),
    Local(LocalReceipt<R>),
}

/// The receipt of a message from the same process.
pub(in crate::actor) struct LocalReceipt<R> {
    credits: Arc<LocalCredits>,
    transport: Arc<Transport>,
    answer: Option<oneshot::Sender<Result<R, AskFailure>>>,
    /// The thread of the asker.
    asked_on: PublishingThread,
}

impl<R> LocalReceipt<R> {
    /// Makes the receipt of a message whose credit was taken.
    pub(in crate::actor) fn new(
        credits: Arc<LocalCredits>,
        transport: Arc<Transport>,
        answer: Option<oneshot::Sender<Result<R, AskFailure>>>,
    ) -> Self {
        transport.actors.opened();
        LocalReceipt { credits, transport, answer, asked_on: PublishingThread::current() }
    }

    /// Sends an answer, if somebody has asked.
    pub(super) fn answer(&mut self, with: impl FnOnce(&Transport) -> Result<R, AskFailure>) {
        if self.transport.is_inherited() {
            return;
        }
        let Some(answer) = self.answer.take() else { return };
        let with = with(&self.transport);
        self.transport.publish_before_local_answer(self.asked_on);
        // The asker may have given up.
        let _ = answer.send(with);
    }

    /// Takes the answer's channel out of the receipt of a message that was not taken. The asker is told
    /// nothing then.
    pub(in crate::actor) fn take_answer(&mut self) -> Option<oneshot::Sender<Result<R, AskFailure>>> {
        self.answer.take()
    }
}

impl<R> Drop for LocalReceipt<R> {
    fn drop(&mut self) {
        if self.transport.is_inherited() {
            // The parent answers, and wakes the asker there.
            std::mem::forget(self.answer.take());
            return;
        }
        self.answer(|_| Err(AskFailure::Refused(Refusal::of_an_end())));
        self.credits.hand_back();
        self.transport.actors.done();
    }
}

impl<R: serde::Serialize> Done<R> {
    pub(in crate::actor) fn wants_reply(&self) -> bool {
        match self {
            Done::Remote(receipt) => receipt.wants_reply(),
            Done::Local(receipt) => receipt.answer.is_some(),
        }
    }

    #[cfg(feature = "bindings")]
    pub(super) fn is_inherited(&self) -> bool {
        match self {
            Done::Remote(receipt) => receipt.transport().is_inherited(),
            Done::Local(receipt) => receipt.transport.is_inherited(),
        }
    }

    /// Notes that the message was taken by a receiver that gives no reply. The reply is `()`, if that is its
    /// type.
    pub(in crate::actor) fn taken(self)
    where
        R: 'static,
    {
        if !self.wants_reply() {
            return;
        }
        // A type without a value allocates nothing.
        if let Ok(nothing) = (Box::new(()) as Box<dyn std::any::Any>).downcast::<R>() {
            self.reply(*nothing, false);
        }
    }

    /// For `may_hold_tensors` see [`GpuMessage`].
    pub(super) fn reply(self, reply: R, may_hold_tensors: bool) {
        // A reply that a future gives outside of a handler is a turn of its own.
        let _turn = Turn::begin();
        match self {
            Done::Remote(receipt) => receipt.reply(reply),
            Done::Local(mut receipt) => receipt.answer(|transport| {
                let tainted = may_hold_tensors.then(|| taint_in(transport.domain(), &reply)).flatten();
                match tainted {
                    Some(by) => Err(AskFailure::Refused(Refusal::Tainted(by))),
                    None => Ok(reply),
                }
            }),
        }
    }

    pub(super) fn refuse(self, why: Refusal) {
        match self {
            Done::Remote(receipt) => receipt.refuse(&why),
            Done::Local(mut receipt) => receipt.answer(|_| Err(AskFailure::Refused(why))),
        }
    }

    /// Refuses a message that nobody can read.
    #[cfg(feature = "raw")]
    pub(super) fn refuse_unread(self, why: String) {
        if let Done::Remote(receipt) = &self {
            receipt.blame_sender();
        }
        self.refuse(Refusal::Undelivered(why));
    }

    pub(in crate::actor) fn sender(&self) -> ProcessId {
        match self {
            Done::Remote(receipt) => receipt.sender(),
            Done::Local(receipt) => receipt.transport.process(),
        }
    }

    /// Returns the process that sent the message, unless it is this one.
    #[inline]
    pub(super) fn sent_by_other(&self) -> Option<ProcessId> {
        match self {
            Done::Remote(receipt) => Some(receipt.sender()),
            Done::Local(_) => None,
        }
    }
}

/// Returns the process whose death took the data of a tensor in `value`, if any did.
pub(super) fn taint_in<T: serde::Serialize>(domain: &ClockDomain, value: &T) -> Option<ProcessId> {
    // The search is only worth its price if anything is tainted at all.
    domain.has_taint().then(|| scope::taint_in(value))?.map(|tainted| tainted.by)
}
