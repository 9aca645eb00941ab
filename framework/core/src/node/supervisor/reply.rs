//! The way of an answer of the supervisor to the party that waits for it.
//!
//! **Locks.** That of the reply, which is free again before the answer is given.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};

use parking_lot::Mutex;

use super::StartError;
use crate::ids::ActorId;
use crate::transport::control_channel::Location;

/// The way of an answer to the party that waits for it. Answering never waits.
pub(in crate::node) struct Reply<T>(Arc<Mutex<Option<Answered<T>>>>);

type Answered<T> = Box<dyn FnOnce(T) + Send>;

/// The answer to the start of an actor.
pub(in crate::node) type Started = Result<(ActorId, Location), StartError>;

impl<T> Reply<T> {
    /// Makes a reply that is given to `answered`, on the supervisor's thread.
    pub(super) fn to(answered: impl FnOnce(T) + Send + 'static) -> Self {
        Reply(Arc::new(Mutex::new(Some(Box::new(answered)))))
    }

    /// Gives the answer. The first one counts.
    pub(super) fn answer(&self, answer: T) {
        let answered = self.0.lock().take();
        if let Some(answered) = answered {
            answered(answer);
        }
    }
}

impl<T> Clone for Reply<T> {
    fn clone(&self) -> Self {
        Reply(Arc::clone(&self.0))
    }
}

/// Makes a reply for a thread that waits for it. If nobody answers, the wait ends with the reply.
pub(in crate::node) fn waited_for<T: Send + 'static>() -> (Reply<T>, Receiver<T>) {
    let (sender, answer) = sync_channel(1);
    let reply = Reply::to(move |answer| {
        // The thread may have stopped waiting.
        let _ = sender.try_send(answer);
    });
    (reply, answer)
}
