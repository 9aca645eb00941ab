//! Tells whether a message about the run comes from a process that may send it.
//!
//! Used by the actors for each [`Control`](super::args::Control), [`Run`](super::args::Run) and
//! [`EdgeMessage`](crate::item::EdgeMessage): any process can name an actor's address, and so write to it
//! (WIRE-1). Orders count if they come from the node, which has the conductor, or from the actor's own
//! process, to which the actor sends some again. An order that comes by way of another host has the key that
//! the actor's arguments name: the gateway, which passes the order on, is another process after each restart.
//! Notices of forks and sources have a key for the same reason. So have items, gaps and ends, because a
//! stage's senders are other processes after each restart too, and send before anybody could tell the stage
//! of them. An item carries eleven bytes for that.
//!
//! **A message of another process** is dropped and counted, and the log names its sender, once a second at
//! most.

use std::cell::Cell;
use std::time::{Duration, Instant};

use tensorpost_core::api::node::ProcessId;

use super::args::{Config, Keys};

/// The least time between two lines of the log about messages that were dropped.
const PAUSE: Duration = Duration::from_secs(1);

/// The text about messages that were dropped: the verb, and what follows the stage's name.
type What = (&'static str, &'static str);

const ORDERS: What = ("gives", "orders that are not its to give");
const ITEMS: What = ("sends", "items, and is of no stage before it");

/// See the module.
pub(super) struct Gate {
    stage: String,
    replica: u16,
    keys: Keys,
    /// The sender of the message that is being handled; `None` for this process.
    sender: Cell<Option<ProcessId>>,
    /// How many messages were dropped since the last line of the log, and when that was.
    dropped: Cell<u64>,
    told: Cell<Option<Instant>>,
}

impl Gate {
    pub(super) fn new(config: &Config) -> Self {
        let Config { stage, replica, keys, .. } = config;
        let (sender, dropped, told) = (Cell::new(None), Cell::new(0), Cell::new(None));
        Gate { stage: stage.clone(), replica: *replica, keys: *keys, sender, dropped, told }
    }

    /// Notes the sender of the message that comes next.
    pub(super) fn sent_by(&self, process: Option<ProcessId>) {
        self.sender.set(process);
    }

    /// Whether an order with this key comes from the conductor.
    pub(super) fn lets_order_in(&self, key: Option<u64>) -> bool {
        let is_near = self.sender.get().is_none_or(|sender| sender == ProcessId::NODE);
        self.checked(is_near || key == Some(self.keys.order), ORDERS)
    }

    /// Whether a notice with this key comes from an actor that may tell of halves.
    pub(super) fn lets_notice_in(&self, key: u64) -> bool {
        self.checked(key == self.keys.notice, ORDERS)
    }

    /// Whether an item, a gap or an end with this key comes from a stage before this one.
    #[inline]
    pub(super) fn lets_item_in(&self, key: u64) -> bool {
        self.checked(key == self.keys.items, ITEMS)
    }

    fn checked(&self, is_good: bool, what: What) -> bool {
        if !is_good {
            self.refuse(what, Instant::now());
        }
        is_good
    }

    /// Counts a message that is dropped. Returns whether the log tells of it.
    #[cold]
    fn refuse(&self, (gives, what): What, now: Instant) -> bool {
        let dropped = self.dropped.get().saturating_add(1);
        let is_due = self.told.get().is_none_or(|at| now.saturating_duration_since(at) >= PAUSE);
        self.dropped.set(if is_due { 0 } else { dropped });
        if is_due {
            self.told.set(Some(now));
            let (stage, replica) = (&self.stage, self.replica);
            let sender =
                self.sender.get().map_or_else(|| "its own process".to_owned(), |of| format!("process {of}"));
            tracing::warn!(
                target: "tensorpost::pipeline", stage, replica, sender, dropped,
                "{sender} {gives} `{stage}` {what}; they are dropped"
            );
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate(sender: Option<ProcessId>) -> Gate {
        let keys = Keys { order: 7, notice: 8, items: 9 };
        let (stage, sender) = ("zip".to_owned(), Cell::new(sender));
        Gate { stage, replica: 0, keys, sender, dropped: Cell::new(0), told: Cell::new(None) }
    }

    #[test]
    fn the_node_and_who_has_the_key_give_orders() {
        let other = ProcessId::new(3, 1);
        for near in [None, Some(ProcessId::NODE)] {
            assert!(gate(near).lets_order_in(None) && gate(near).lets_order_in(Some(1)));
        }
        assert!(gate(other).lets_order_in(Some(7)));
        for key in [None, Some(0), Some(8), Some(9), Some(u64::MAX)] {
            assert!(!gate(other).lets_order_in(key), "{key:?}");
        }
        // A later life of the node's slot is another process.
        assert!(!gate(ProcessId::new(0, 1)).lets_order_in(None));
        for sender in [None, Some(ProcessId::NODE), other] {
            assert!(gate(sender).lets_notice_in(8) && !gate(sender).lets_notice_in(7));
            // Items of a stage beside it come from its own process.
            assert!(gate(sender).lets_item_in(9));
            assert!([0, 7, 8].into_iter().all(|key| !gate(sender).lets_item_in(key)));
        }
    }

    #[test]
    fn the_log_tells_of_many_once_a_second() {
        let (gate, begin) = (gate(ProcessId::new(3, 1)), Instant::now());
        assert!(gate.refuse(ORDERS, begin));
        for millis in 0..999 {
            assert!(!gate.refuse(ITEMS, begin + Duration::from_millis(millis)));
        }
        assert_eq!(gate.dropped.get(), 999);
        assert!(gate.refuse(ITEMS, begin + PAUSE));
        assert_eq!(gate.dropped.get(), 0);
    }
}
