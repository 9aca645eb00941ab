//! The watchers of actors in this process.
//!
//! The node sends a process each event of an actor once, no matter how many watchers are here. If the actor
//! is down, a new watcher is told that first, from the node's answer. Events that arrive before that answer
//! are not for it.
//!
//! **Locks.** `asked`, then nothing; `watchers`, then nothing. Messages to the node about watching are sent
//! under `asked`, so that the node hears them in the right order. Watchers are told, and dropped, without a
//! lock.
//!
//! **On a crash** of the watched actor its end is the event. **On cancellation** a watcher says at the next
//! event that it wants no more.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::ids::ActorId;
use crate::transport::control_channel::{ControlChannel, ToNode};
use crate::transport::lifecycle::Lifecycle;

/// Takes an event, and returns whether it wants more. The second argument is true if the event happened
/// before the watching began. It is called on the thread that receives the node's messages, and must not
/// wait.
pub(crate) type Tell = Box<dyn Fn(&Lifecycle, bool) -> bool + Send + Sync>;

/// A watcher of an actor.
pub(crate) struct Watcher {
    /// If two watchers of one actor have the same name, the later one replaces the earlier.
    pub(crate) name: Option<(&'static str, ActorId)>,
    pub(crate) tell: Tell,
}

/// All watchers of a process.
#[derive(Default)]
pub(crate) struct Watching {
    next: AtomicU64,
    asked: Mutex<HashMap<u64, (ActorId, Watcher)>>,
    watchers: Mutex<HashMap<ActorId, Vec<Watcher>>>,
}

impl Watching {
    /// Tells `watcher` from now on what happens to `actor`. The watcher is dropped when the node has ended.
    pub(super) fn watch(&self, actor: ActorId, watcher: Watcher, control: &dyn ControlChannel) {
        let ticket = self.next.fetch_add(1, Ordering::Relaxed);
        // Sent under the lock, as `Unwatch` is, so that the node hears the two in this order.
        let mut asked = self.asked.lock();
        if control.send(ToNode::Watch { ticket, actor }, Vec::new()).is_ok() {
            asked.insert(ticket, (actor, watcher));
        }
    }

    /// Handles the node's answer to a request to watch.
    pub(super) fn began(&self, ticket: u64, down: Option<&Lifecycle>) {
        let Some((actor, watcher)) = self.asked.lock().remove(&ticket) else { return };
        if let Some(down) = down
            && (!(watcher.tell)(down, true) || down.is_final())
        {
            return;
        }
        let mut all = self.watchers.lock();
        let here = all.entry(actor).or_default();
        let replaced: Vec<_> = match watcher.name {
            Some(name) => here.extract_if(.., |other| other.name == Some(name)).collect(),
            None => Vec::new(),
        };
        here.push(watcher);
        drop(all);
        // Dropped without the lock, because a watcher may own anything.
        drop(replaced);
    }

    /// Tells the watchers of an actor of an event.
    pub(super) fn tell(&self, event: &Lifecycle, control: &dyn ControlChannel) {
        let actor = event.actor();
        // Told without the lock. No other thread adds or tells, because the node's messages arrive on one
        // thread at a time.
        let Some(mut here) = self.watchers.lock().remove(&actor) else { return };
        here.retain(|watcher| (watcher.tell)(event, false));
        if event.is_final() {
            return;
        }
        if here.is_empty() {
            let asked = self.asked.lock();
            if !asked.values().any(|(of, _)| *of == actor) {
                // If the control channel is closed, the node has ended.
                let _ = control.send(ToNode::Unwatch { actor }, Vec::new());
            }
            return;
        }
        self.watchers.lock().insert(actor, here);
    }

    /// Drops all watchers: the node has ended, and no event will follow.
    pub(crate) fn end(&self) {
        let asked = std::mem::take(&mut *self.asked.lock());
        let watchers = std::mem::take(&mut *self.watchers.lock());
        drop((asked, watchers));
    }
}
