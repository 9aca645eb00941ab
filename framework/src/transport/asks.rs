//! Asks on their way: who waits for which reply.

use std::sync::atomic::Ordering;

use super::Transport;
use super::inbox::Refusal;
use super::incoming::Parts;
use crate::ids::{ActorId, ProcessId};
use crate::transport::lifecycle::ExitedProcess;

/// Why an ask got no reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AskFailure {
    /// The receiver said so.
    #[error("{}", refusal_text(.0))]
    Refused(Refusal),
    /// The process with the actor ended, or broke the protocol, before it replied.
    #[error("{0}")]
    ProcessExited(ExitedProcess),
    /// The reply was malformed.
    #[error("the reply could not be read: {0}")]
    BadReply(String),
}

impl AskFailure {
    /// Whether asking again makes sense. The handler may have run: nobody knows how far.
    pub fn is_retryable(&self) -> bool {
        match self {
            AskFailure::Refused(refusal) => *refusal == Refusal::Restarting,
            AskFailure::ProcessExited(exited) => exited.restarts,
            AskFailure::BadReply(_) => false,
        }
    }
}

fn refusal_text(refusal: &Refusal) -> String {
    match refusal {
        Refusal::NoSuchActor => "there is no such actor (any more)".into(),
        Refusal::Restarting => {
            "the actor failed before it came to the message, and is being restarted; ask again".into()
        }
        Refusal::Undelivered(why) => format!("the message was not delivered: {why}"),
        Refusal::Panicked => "its handler panicked; the actor's log and its supervisor say how".into(),
        Refusal::NoReply => {
            "the handler ended without a reply: its future panicked, or the actor stopped".into()
        }
        Refusal::BadReply(why) => format!("the reply could not be sent: {why}"),
        Refusal::Tainted(by) => {
            format!("a tensor in it, or in the reply, depends on work that {by} had not done when it died")
        }
    }
}

/// Takes the reply: decodes it, or passes the failure on.
pub(crate) type Answer = Box<dyn FnOnce(Result<Parts<'_>, AskFailure>) + Send + Sync>;

pub(super) struct Pending {
    peer: ProcessId,
    actor: ActorId,
    answer: Answer,
}

impl Transport {
    /// Notes an ask before it is sent; the number goes along with it.
    pub(crate) fn expect_reply(&self, peer: ProcessId, actor: ActorId, answer: Answer) -> u64 {
        let correlation = self.next_correlation.fetch_add(1, Ordering::Relaxed);
        self.asks.insert(correlation, Pending { peer, actor, answer });
        correlation
    }

    /// Nobody waits for the reply any more. A reply that comes all the same is dropped, and its leases go back.
    pub(crate) fn forget_ask(&self, correlation: u64) {
        self.asks.remove(&correlation);
    }

    /// The ask that a reply from `peer` belongs to.
    pub(super) fn take_ask(&self, correlation: u64, peer: ProcessId) -> Option<Answer> {
        self.asks
            .remove_if(&correlation, |_, pending| pending.peer == peer)
            .map(|(_, pending)| pending.answer)
    }

    /// The peer will not reply any more.
    pub(super) fn fail_asks(&self, peer: ProcessId) {
        let lost = self.asks.iter().filter(|entry| entry.peer == peer);
        let lost: Vec<_> = lost.map(|entry| (*entry.key(), entry.actor)).collect();
        for (correlation, actor) in lost {
            if let Some(answer) = self.take_ask(correlation, peer) {
                answer(Err(AskFailure::ProcessExited(self.exited(peer, actor))));
            }
        }
    }
}
