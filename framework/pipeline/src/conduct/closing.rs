//! Ends the actors of a pipeline, when all is over.
//!
//! Used by the conductor, last. **Order.** First the node lets the workers go, then the actors are told to
//! end. So an actor that dies on this order, or that a policy would bring back, has no next life, which would
//! not be told to end. An actor on another host is told again until it has heard the order, because the order
//! is lost if a gateway ends.

use std::collections::HashSet;
use std::time::Duration;

use futures_util::future::{FutureExt as _, LocalBoxFuture};
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tensorpost_core::api::actor::{AskError, AskFailure, Refusal};

use super::{Conductor, Member};
use crate::worker::args::Directive;

/// How long members may take to hear that all is over.
const CLOSING: Duration = Duration::from_secs(1);

/// How long to wait before telling a member again that could not be reached.
const SEND_AGAIN: Duration = Duration::from_millis(50);

impl Member {
    /// Sends the order to end at once. Resolves when the member need not be told again.
    pub(super) fn close(&self) -> LocalBoxFuture<'static, ()> {
        if !self.worker.is_of_another_host() {
            let close = self.send(Directive::Close);
            return async move {
                // A member that has ended need not hear it.
                let _ = close.await;
            }
            .boxed_local();
        }
        let (control, order) = (self.control.clone(), self.order(Directive::Close));
        let mut close = control.ask(order.clone());
        async move {
            while let Err(AskError::NoReply(AskFailure::Refused(why))) = close.await {
                match why {
                    Refusal::GatewayEnded(_) => {}
                    Refusal::NotPassedOn(_) => tokio::time::sleep(SEND_AGAIN).await,
                    _ => return,
                }
                close = control.ask(order.clone());
            }
        }
        .boxed_local()
    }
}

impl Conductor {
    /// Tells the members to end. Members that are killed need no order.
    pub(super) async fn close(&mut self) {
        // An order to stop that was not heard by now is of no use, and the order to close would wait behind
        // it.
        self.stop.forget_orders();
        if self.lets_go {
            self.members.iter().for_each(|member| self.supervisor.let_go(member.worker));
        }
        if self.stop.killed {
            if self.lets_go {
                // Only after `let_go`, so that no worker is restarted.
                self.members.iter().for_each(|member| self.supervisor.kill_worker(member.worker));
            }
            return;
        }
        // All members are told: one that seemed to be gone may still be there, and would keep its worker.
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
                    // These sends may stand in the queue before the order to close.
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
