//! Asks without an answer yet, and the callers that wait for their replies.
//!
//! The sender notes its ask here before the frame is sent, `incoming` takes the ask out for the reply, and
//! the end of a peer fails the asks that it has not answered.
//!
//! **Invariants.** A number is given out once in a process's life. An ask is answered at most once: only the
//! thread that takes it out of the table can answer it. A reply is taken only from the peer that was asked
//! (WIRE-1).
//!
//! **Locks.** The table's shards, never while an answer runs: an answer decodes, wakes a task, and may drop
//! leases.
//!
//! **On a crash** of the peer the asks to it fail after the replies that it had posted are read. **On
//! cancellation** the ask is removed, and a reply that still comes is dropped.

use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

use dashmap::DashMap;

use super::inbox::Refusal;
use super::parts::Parts;
use crate::ids::{ActorId, ProcessId};
use crate::os::fork::INHERITED;
use crate::transport::lifecycle::ExitedProcess;

/// Why an ask got no reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AskFailure {
    /// The receiver refused, for this reason.
    #[error("{}", refusal_text(.0))]
    Refused(Refusal),
    /// The process with the actor ended, or broke the protocol, before it replied.
    #[error("{0}")]
    ProcessExited(ExitedProcess),
    /// The caller would have to wait for the reply in a call that cannot wait
    /// ([`Env::without_waiting`](crate::actor::Env::without_waiting)), such as a handler of an actor or of a
    /// pipeline's stage.
    #[error(
        "it was sent, and this call cannot wait for the reply: its thread is the one that reads it; in a stage, ask with \
         `out.ask(&address, message, ..)`; in an actor, await it in the future that the handler returns (`ResponseFuture`) or \
         in `prepare`"
    )]
    Blocking,
    /// This process was forked from the one that had asked, which gets the reply.
    #[error("{INHERITED}")]
    Forked,
    /// The reply was malformed.
    #[error("the reply could not be read: {0}")]
    BadReply(String),
}

impl AskFailure {
    /// Returns whether asking again makes sense. The handler may have run, and it is not known how far.
    pub fn is_retryable(&self) -> bool {
        match self {
            AskFailure::Refused(refusal) => {
                matches!(refusal, Refusal::Restarting | Refusal::GatewayEnded(_))
            }
            AskFailure::ProcessExited(exited) => exited.restarts,
            AskFailure::BadReply(_) | AskFailure::Blocking | AskFailure::Forked => false,
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
        Refusal::Panicked(why) if why.is_empty() => {
            "its handler panicked; the actor's log and its supervisor say how".into()
        }
        Refusal::Panicked(why) => why.clone(),
        Refusal::NoReply => {
            "the handler ended without a reply: its future panicked, or the actor stopped".into()
        }
        Refusal::BadReply(why) => format!("the reply could not be sent: {why}"),
        Refusal::Failed(why)
        | Refusal::OutOfReach(why)
        | Refusal::NotPassedOn(why)
        | Refusal::GatewayEnded(why) => why.clone(),
        Refusal::Tainted(by) => {
            format!("a tensor in it, or in the reply, depends on work that {by} had not done when it died")
        }
    }
}

/// Takes the reply: decodes it, or passes the failure on.
pub(crate) type Answer = Box<dyn FnOnce(Result<Parts<'_>, AskFailure>) + Send + Sync>;

struct Pending {
    peer: ProcessId,
    actor: ActorId,
    answer: Answer,
}

/// Hashes the numbers of asks. Only this process puts numbers into the table, so no peer can choose ones that
/// collide.
#[derive(Clone, Copy, Debug, Default)]
struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, number: u64) {
        // 2^64 divided by the golden ratio: the high bits, by which the table chooses a shard, differ from
        // one number to the next.
        self.0 = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// The asks of a process that have no answer yet.
pub(crate) struct Asks {
    pending: DashMap<u64, Pending, BuildHasherDefault<Spread>>,
    next_correlation: AtomicU64,
}

impl Asks {
    pub(super) fn new() -> Self {
        Asks { pending: DashMap::default(), next_correlation: AtomicU64::new(1) }
    }

    /// Notes an ask before it is sent, and returns the number to send with it.
    pub(crate) fn expect(&self, peer: ProcessId, actor: ActorId, answer: Answer) -> u64 {
        let correlation = self.next_correlation.fetch_add(1, Ordering::Relaxed);
        self.pending.insert(correlation, Pending { peer, actor, answer });
        correlation
    }

    /// Forgets an ask whose caller no longer waits. If a reply still comes, it is dropped, and its leases go
    /// back.
    pub(super) fn forget(&self, correlation: u64) {
        self.pending.remove(&correlation);
    }

    /// Takes out the ask to which a reply from `peer` belongs.
    pub(super) fn take(&self, correlation: u64, peer: ProcessId) -> Option<Answer> {
        self.pending
            .remove_if(&correlation, |_, pending| pending.peer == peer)
            .map(|(_, pending)| pending.answer)
    }

    /// Fails the asks to a peer that will not reply any more. `why` makes the error for the callers of an
    /// actor.
    pub(super) fn fail(&self, peer: ProcessId, why: impl Fn(ActorId) -> AskFailure) {
        // Collected first and answered then, so that no shard is locked while an answer runs.
        let lost = self.pending.iter().filter(|entry| entry.peer == peer);
        let lost: Vec<_> = lost.map(|entry| (*entry.key(), entry.actor)).collect();
        for (correlation, actor) in lost {
            if let Some(answer) = self.take(correlation, peer) {
                answer(Err(why(actor)));
            }
        }
    }

    /// Returns how many have no answer yet.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn count(&self) -> usize {
        self.pending.len()
    }
}
