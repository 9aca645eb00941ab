//! Who in this process watches which actor.
//!
//! The node tells a process once what happens to an actor, however many watch it here. Who begins to watch is
//! told first if the actor is down, in the node's answer; events that come before that are not for it.
//!
//! **Locks.** `asked`, then nothing; `watchers`, then nothing. What is sent to the node about watching goes
//! under `asked`, so that the node hears it in the order in which it was true. Watchers are told, and
//! dropped, without a lock.
//!
//! **On a crash** of the watched its end is the event. **On cancellation** a watcher says at the next event
//! that it wants no more.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::ids::ActorId;
use crate::transport::control_channel::{ControlChannel, ToNode};
use crate::transport::lifecycle::Lifecycle;

/// Takes an event, and says whether it wants more. `true`: it was so before the watching began. Called on the
/// thread that the node's messages come on; must not wait.
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

impl Watching {
    /// From now on `watcher` is told what happens to `actor`. When the node has ended it is dropped.
    pub(super) fn watch(&self, actor: ActorId, watcher: Watcher, control: &dyn ControlChannel) {
        let ticket = self.next.fetch_add(1, Ordering::Relaxed);
        // Sent under the lock, as the word that nobody watches any more is: the node hears the two in this
        // order.
        let mut asked = self.asked.lock();
        if control.send(ToNode::Watch { ticket, actor }, Vec::new()).is_ok() {
            asked.insert(ticket, (actor, watcher));
        }
    }

    /// The node has answered a request to watch.
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
        // Without the lock: what a watcher owns is not known here.
        drop(replaced);
    }

    /// Something has happened to an actor.
    pub(super) fn tell(&self, event: &Lifecycle, control: &dyn ControlChannel) {
        let actor = event.actor();
        // Told without the lock. Nobody else adds or tells: what the node says comes on one thread at a time.
        let Some(mut here) = self.watchers.lock().remove(&actor) else { return };
        here.retain(|watcher| (watcher.tell)(event, false));
        if event.is_final() {
            return;
        }
        if here.is_empty() {
            let asked = self.asked.lock();
            if !asked.values().any(|(of, _)| *of == actor) {
                // A closed control channel is the node's end.
                let _ = control.send(ToNode::Unwatch { actor }, Vec::new());
            }
            return;
        }
        self.watchers.lock().insert(actor, here);
    }

    /// The node has ended: nothing more will happen.
    pub(super) fn end(&self) {
        let asked = std::mem::take(&mut *self.asked.lock());
        let watchers = std::mem::take(&mut *self.watchers.lock());
        drop((asked, watchers));
    }
}
