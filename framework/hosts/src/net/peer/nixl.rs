//! A peer's NIXL lane. Its state is under the lock of the session, whose spans it names. The work that it
//! orders is done without that lock.

use std::time::Duration;

use super::super::lanes::nixl as lane_ends;
use super::{Peer, State};
use crate::nixl::{Do, Heard, Lane, Lie, Say};
use crate::session::{Link, Session};
use crate::verdict::Moment;

impl Peer {
    /// Returns how often NIXL failed, so that gRPC was used.
    pub fn nixl_failures(&self) -> u64 {
        self.state.lock().nixl.as_ref().map_or(0, Lane::fallen_back)
    }

    /// Calls `work` with the NIXL lane, and carries out the orders that it returns.
    pub(in crate::net) fn nixl(&self, work: impl FnOnce(&mut Lane, &mut Session, Duration) -> Vec<Do>) {
        let _ = self.try_nixl(|lane, session, now| Ok(work(lane, session, now)));
    }

    fn try_nixl(
        &self,
        work: impl FnOnce(&mut Lane, &mut Session, Duration) -> Result<Vec<Do>, Lie>,
    ) -> Result<(), Lie> {
        let now = Moment::now().after_boot();
        let mut guard = self.state.lock();
        let State { session, nixl: Some(lane), .. } = &mut *guard else { return Ok(()) };
        let before = session.wakes();
        let done = work(lane, session, now);
        let after = session.wakes();
        drop(guard);
        self.wakers.wake(before, after);
        self.wakers.says.notify_waiters();
        if let Some(own) = self.own.upgrade() {
            lane_ends::carry_out(&own, done?);
        }
        Ok(())
    }

    /// Returns the number of routes over which this host writes.
    #[cfg(test)]
    pub(in crate::net) fn nixl_routes(&self) -> usize {
        self.state.lock().nixl.as_ref().map_or(0, Lane::routes_used)
    }

    /// Waits for a stream of the NIXL lane.
    #[cfg(test)]
    pub(in crate::net) async fn until_nixl(&self) {
        let there = |state: &mut State| {
            let link = state.nixl.as_ref().and_then(Lane::link);
            (link.is_some() && link == state.session.link()).then_some(())
        };
        self.until(&self.wakers.says, there).await;
    }

    /// Takes a frame that came on the stream of the NIXL lane.
    pub(in crate::net) fn take_say(&self, link: Link, say: Say) -> Result<(), Lie> {
        self.try_nixl(|lane, session, now| lane.take(link, say, session, now))
    }

    /// Handles the result of an order.
    pub(in crate::net) fn heard(&self, heard: Heard) {
        self.nixl(|lane, session, now| lane.heard(heard, session, now));
    }

    /// Returns the next frame to send on the stream, as [`next_frame`](Self::next_frame) does.
    pub(in crate::net) async fn next_say(&self, link: Link) -> Option<Say> {
        self.until(&self.wakers.says, |state| {
            let State { session, nixl: Some(lane), .. } = state else { return Some(None) };
            if session.link() != Some(link) || lane.link() != Some(link) {
                return Some(None);
            }
            if self.pulse.is_over(Moment::now()) {
                return None;
            }
            lane.next_say(link, session).map(Some)
        })
        .await
    }

    /// Waits until the lane has work under way; returns `false` once it is not of that connection any more.
    pub(in crate::net) async fn until_nixl_waits(&self, link: Link) -> bool {
        self.until(&self.wakers.says, |state| match &state.nixl {
            Some(lane) if lane.link() == Some(link) => lane.is_waiting().then_some(true),
            _ => Some(false),
        })
        .await
    }
}
