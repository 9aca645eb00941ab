//! How a pipeline is being ended before its sources have: who has asked for it, what it may still wait for,
//! and which sources have heard it.
//!
//! The conductor owns it, and acts on it.

use std::collections::HashSet;
use std::time::Instant;

use futures_util::future::{FutureExt as _, LocalBoxFuture};
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tensorpost_core::api::actor::Ask;

use crate::report::Waiting;
use crate::worker::args::Control;

/// See the module.
#[derive(Default)]
pub(super) struct Stop {
    pub(super) cancelled: bool,
    /// Whether the sources were told to stop.
    pub(super) sources_told: bool,
    pub(super) killed: bool,
    /// Why the pipeline stands still, if it was killed for that.
    pub(super) stands_still: Option<String>,
    /// When Ctrl-C or `SIGTERM` came.
    pub(super) signalled: Option<Instant>,
    /// When the pipeline is killed, if it has not ended by then.
    pub(super) kill_at: Option<Instant>,
    /// Whether the node shuts down. A member that the node kills then has not stopped in time.
    pub(super) node_stops: bool,
    /// The waits of the members when the first of them was killed.
    pub(super) stood_in: Option<Vec<Waiting>>,
    /// The orders to stop on their way to sources; each resolves to the source that has heard it.
    orders: FuturesUnordered<LocalBoxFuture<'static, Option<usize>>>,
    heard: HashSet<usize>,
}

impl Stop {
    /// Has the pipeline killed at this time, unless it is killed earlier.
    pub(super) fn by(&mut self, deadline: Instant) {
        self.kill_at = Some(self.kill_at.map_or(deadline, |before| before.min(deadline)));
    }

    /// Whether a source was told to stop and has not heard it: it stands in the code of the source.
    pub(super) fn is_deaf(&self, source: usize) -> bool {
        self.sources_told && !self.heard.contains(&source)
    }

    /// Sends a source the order to stop.
    pub(super) fn tell(&self, source: usize, order: Ask<Control>) {
        // A source that ends before it answers need not hear it.
        self.orders.push(async move { order.await.is_ok().then_some(source) }.boxed_local());
    }

    /// Waits until the next order has arrived, or was lost with its source. `None` if none is on its way.
    ///
    /// # Cancel safety
    /// A wait that is dropped loses nothing.
    pub(super) async fn next_heard(&mut self) -> Option<()> {
        let heard = self.orders.next().await?;
        self.heard.extend(heard);
        Some(())
    }

    /// Gives up the orders that no source has heard.
    pub(super) fn forget_orders(&mut self) {
        self.orders.clear();
    }
}
