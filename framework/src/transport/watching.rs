//! Who in this process watches which actor.
//!
//! The node tells a process once what happens to an actor, however many watch it here. Who begins to watch is told first
//! if the actor is down, in the node's answer; events that come before that are not for it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::Transport;
use crate::ids::ActorId;
use crate::transport::control_channel::ToNode;
use crate::transport::lifecycle::Lifecycle;

/// Takes an event, and says whether it wants more. `true`: it was so before the watching began. Called on the thread that
/// the node's messages come on; must not wait.
pub(crate) type Tell = Box<dyn Fn(&Lifecycle, bool) -> bool + Send + Sync>;

/// Somebody who watches.
pub(crate) struct Watcher {
    /// Of two watchers of one actor with the same name, the later one replaces the earlier.
    pub(crate) name: Option<(&'static str, ActorId)>,
    pub(crate) tell: Tell,
}

/// All watchers of a process.
#[derive(Default)]
pub(super) struct Watching {
    next: AtomicU64,
    asked: Mutex<HashMap<u64, (ActorId, Watcher)>>,
    watchers: Mutex<HashMap<ActorId, Vec<Watcher>>>,
}

impl Transport {
    /// From now on `watcher` is told what happens to `actor`. When the node has ended it is dropped.
    pub(crate) fn watch(&self, actor: ActorId, watcher: Watcher) {
        let ticket = self.watching.next.fetch_add(1, Ordering::Relaxed);
        // Sent under the lock, as the word that nobody watches any more is: the node hears the two in this order.
        let mut asked = self.watching.asked.lock();
        if self.control.send(ToNode::Watch { ticket, actor }, Vec::new()).is_ok() {
            asked.insert(ticket, (actor, watcher));
        }
    }

    /// The node has answered a request to watch.
    pub(super) fn watching_began(&self, ticket: u64, down: Option<&Lifecycle>) {
        let Some((actor, watcher)) = self.watching.asked.lock().remove(&ticket) else { return };
        if let Some(down) = down
            && (!(watcher.tell)(down, true) || down.is_final())
        {
            return;
        }
        let mut all = self.watching.watchers.lock();
        let here = all.entry(actor).or_default();
        let replaced: Vec<_> = match watcher.name {
            Some(name) => here.extract_if(.., |other| other.name == Some(name)).collect(),
            None => Vec::new(),
        };
        here.push(watcher);
        drop(all);
        // Without the lock: what a watcher owns is not known here.
        drop(replaced);
    }

    /// Something has happened to an actor.
    pub(super) fn lifecycle(&self, event: &Lifecycle) {
        let actor = event.actor();
        // Told without the lock. Nobody else adds or tells: what the node says comes on one thread at a time.
        let Some(mut here) = self.watching.watchers.lock().remove(&actor) else { return };
        here.retain(|watcher| (watcher.tell)(event, false));
        if event.is_final() {
            return;
        }
        if here.is_empty() {
            let asked = self.watching.asked.lock();
            if !asked.values().any(|(of, _)| *of == actor) {
                // A closed control channel is the node's end.
                let _ = self.control.send(ToNode::Unwatch { actor }, Vec::new());
            }
            return;
        }
        self.watching.watchers.lock().insert(actor, here);
    }

    /// The node has ended: nothing more will happen.
    pub(crate) fn end_watching(&self) {
        let asked = std::mem::take(&mut *self.watching.asked.lock());
        let watchers = std::mem::take(&mut *self.watching.watchers.lock());
        drop((asked, watchers));
    }
}
