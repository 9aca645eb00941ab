//! The end of a pipeline's actors, when all is over.
//!
//! Used by the conductor, last. **Order.** First the node lets the workers go, then the actors are told to
//! end: one that dies with this word, or that a policy would bring back, has no next life, which nobody would
//! tell. One on another host is told until it has heard it, because a gateway may take the word along.

use std::collections::HashSet;
use std::time::Duration;

use futures_util::future::{FutureExt as _, LocalBoxFuture};
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tensorpost_core::api::actor::{AskError, AskFailure, Refusal};

use super::{Conductor, Member};
use crate::worker::args::Control;

/// How long members may take to hear that all is over.
const CLOSING: Duration = Duration::from_secs(1);

/// How long to wait before one is told again whom nobody could tell for the moment.
const AGAIN: Duration = Duration::from_millis(50);

impl Member {
    /// Tells it to end, at once. Resolves when it need not be told again.
    pub(super) fn close(&self) -> LocalBoxFuture<'static, ()> {
        let control = self.control.clone();
        if !self.worker.is_of_another_host() {
            let close = control.send(Control::Close);
            return async move {
                // One that has ended need not hear it.
                let _ = close.await;
            }
            .boxed_local();
        }
        let mut close = control.ask(Control::Close);
        async move {
            while let Err(AskError::NoReply(AskFailure::Refused(why))) = close.await {
                match why {
                    Refusal::GatewayEnded(_) => {}
                    Refusal::NotPassedOn(_) => tokio::time::sleep(AGAIN).await,
                    _ => return,
                }
                close = control.ask(Control::Close);
            }
        }
        .boxed_local()
    }
}

impl Conductor {
    /// Ends the members. Those that were killed need no word.
    pub(super) async fn close(&mut self) {
        // An order to stop that nobody has heard by now is of no use, and would keep the last word waiting
        // behind it.
        self.stops.clear();
        if self.lets_go {
            self.members.iter().for_each(|member| self.supervisor.let_go(member.worker));
        }
        if self.killed {
            if self.lets_go {
                // After that, so that nothing comes back.
                self.members.iter().for_each(|member| self.supervisor.kill_worker(member.worker));
            }
            return;
        }
        // All of them: one that seemed to be gone may be there, and would keep its worker.
        let mut untold: HashSet<_> = (0..self.members.len()).collect();
        let tell = |index: usize| {
            let told = self.members[index].close();
            async move {
                told.await;
                index
            }
        };
        let mut closes: FuturesUnordered<_> = untold.iter().copied().map(tell).collect();
        let all = async {
            while !untold.is_empty() {
                tokio::select! {
                    Some(index) = closes.next() => drop(untold.remove(&index)),
                    // They may stand in the queue before it.
                    Some(_) = self.sends.next() => {}
                }
            }
        };
        if tokio::time::timeout(CLOSING, all).await.is_ok() {
            return;
        }
        for index in untold {
            let (member, lets_go) = (&self.members[index], self.lets_go);
            let (stage, replica) = (&self.plan.stages[member.stage].name, member.replica);
            tracing::debug!(
                stage,
                replica,
                "it was not told that its pipeline is over; its worker ends all the same"
            );
            if lets_go {
                self.supervisor.retire(member.worker);
            }
        }
    }
}
