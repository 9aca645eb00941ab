//! The end of a pipeline's actors, when all is over.
//!
//! Used by the conductor, last. **Order.** First the node lets the workers go, then the actors are told to end: one that
//! dies with this word, or that a policy would bring back, has no next life, which nobody would tell.

use std::collections::HashSet;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::Conductor;
use crate::worker::args::Control;

/// How long members may take to hear that all is over.
const CLOSING: Duration = Duration::from_secs(1);

impl Conductor {
    /// Ends the members. Those that were killed need no word.
    pub(super) async fn close(&mut self) {
        // An order to stop that nobody has heard by now is of no use, and would keep the last word waiting behind it.
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
            let close = self.members[index].control.send(Control::Close);
            async move {
                // One that has ended need not hear it.
                let _ = close.await;
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
