//! The end that reads a [`Topic`](super::Topic).

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tensorpost_core::api::actor::{Address, AskError, Env, LookupError, Registry};
use tensorpost_core::api::fork::{INHERITED, Inert};
use tensorpost_core::api::node::Node;
use tokio::sync::{oneshot, watch};
use tokio::time::{sleep, timeout};

use super::topic::MOST_NUMBER;
use super::{Newer, Newest, Publishable, Version};

/// How long a reader waits before it looks again for a missing topic; doubled up to [`LONGEST_PAUSE`]. The
/// registry has no event for a new name.
const FIRST_PAUSE: Duration = Duration::from_millis(2);

/// See [`FIRST_PAUSE`].
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// The latest version of a value that is published under a name. Clones share the version, but each notes for
/// itself which version it has seen.
///
/// When the last clone drops, the topic is no longer asked. A version lives as long as it has a holder; a
/// subscriber holds the newest one.
pub struct Subscriber<M: Publishable> {
    newest: watch::Receiver<Option<Arc<Version<M>>>>,
    of: Arc<Followed>,
    /// Dropping it ends the task that asks.
    asking: Arc<Inert<oneshot::Sender<()>>>,
}

/// The state of a followed value.
struct Followed {
    name: String,
    /// Whether there is, or was, a topic of this name.
    found: AtomicBool,
    /// Why the actor that has the name is no topic of this type.
    refused: Mutex<Option<String>>,
}

impl Followed {
    /// Notes why the actor that has the name is no topic of this type. The log gets each reason once.
    fn refuse(&self, why: String) {
        if self.refusal().as_ref() != Some(&why) {
            tracing::warn!(topic = self.name, "it is no topic of this type: {why}");
            self.set_refusal(Some(why));
        }
    }

    fn set_refusal(&self, why: Option<String>) {
        *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }

    fn refusal(&self) -> Option<String> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The reason why there will be no more versions. The last one stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TopicClosed {
    /// The node is shutting down.
    #[error("the node is shutting down; no more versions will come")]
    NodeStopping,
    /// This process was forked from the one that follows the topic.
    #[error("{INHERITED}")]
    Forked,
}

/// There was no version in time, see [`Subscriber::ready`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotReady {
    /// Nothing was published in time.
    #[error(
        "nothing was published under `{name}` within {within:?}: {}",
        if *.topic { "its topic has no version yet" } else { "there is no topic of this name" }
    )]
    Late {
        /// The name that is followed.
        name: String,
        /// The time that it waited.
        within: Duration,
        /// Whether there was a topic of this name.
        topic: bool,
    },
    /// The actor that has the name is no topic of this type, as `why` says.
    #[error("nothing was published under `{name}` within {within:?}: {why}")]
    Refused {
        /// The name that is followed.
        name: String,
        /// The time that it waited.
        within: Duration,
        /// The reason.
        why: String,
    },
    /// The node is shutting down.
    #[error(transparent)]
    Closed(#[from] TopicClosed),
}

/// The owner of a [`Subscriber`]: an actor, by its [`Env`], or the program that started the node.
pub trait Follower: sealed::Sealed {
    #[doc(hidden)]
    fn registry(&self) -> Registry;

    #[doc(hidden)]
    fn run(&self, asking: impl Future<Output = ()> + Send + 'static);
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Env {}
    impl Sealed for super::Node {}
}

impl Follower for Env {
    fn registry(&self) -> Registry {
        Env::registry(self)
    }

    fn run(&self, asking: impl Future<Output = ()> + Send + 'static) {
        match tokio::runtime::Handle::try_current() {
            // Use the runtime of this thread's actors, so that a version needs no switch of threads.
            Ok(runtime) => drop(runtime.spawn(asking)),
            Err(_) => run_on_a_thread(asking),
        }
    }
}

impl Follower for Node {
    fn registry(&self) -> Registry {
        Node::registry(self)
    }

    fn run(&self, asking: impl Future<Output = ()> + Send + 'static) {
        run_on_a_thread(asking);
    }
}

fn run_on_a_thread(asking: impl Future<Output = ()> + Send + 'static) {
    let run = move || match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(asking),
        Err(error) => tracing::error!(%error, "no runtime: a published value is not followed"),
    };
    if let Err(error) = std::thread::Builder::new().name("tp-latest".into()).spawn(run) {
        tracing::error!(%error, "no thread: a published value is not followed");
    }
}

impl<M: Publishable> Subscriber<M> {
    /// Follows the value that is published under `name`, from `&env` of an actor (in its `create`, or later
    /// on its thread) or from `&node`. The topic need not exist yet, and another topic may take the name
    /// later.
    pub fn follow(from: &impl Follower, name: &str) -> Self {
        let (newest, reader) = watch::channel(None);
        let (asking, dropped) = oneshot::channel::<()>();
        let of = Arc::new(Followed {
            name: name.to_owned(),
            found: AtomicBool::new(false),
            refused: Mutex::default(),
        });
        let (registry, followed) = (from.registry(), Arc::clone(&of));
        from.run(async move {
            tokio::select! {
                () = follow(&registry, &followed, &newest) => {}
                () = registry.stopping() => {}
                _ = dropped => {}
            }
        });
        Subscriber { newest: reader, of, asking: Arc::new(Inert::new(asking)) }
    }

    /// Returns the latest version: at once where one has come, or else when the first comes. Call it in
    /// [`prepare`](tensorpost_core::api::actor::RemoteActor::prepare) of an actor or a stage, so that its
    /// first message finds a version in each of its lives. It needs a tokio runtime with time, which workers
    /// and [`Node::block_on`](tensorpost_core::api::node::Node::block_on) have.
    ///
    /// # Errors
    /// [`NotReady`]: nothing was published `within` this time, or the node is shutting down.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn ready(&mut self, within: Duration) -> Result<Arc<Version<M>>, NotReady> {
        if self.asking.is_inherited() {
            return Err(TopicClosed::Forked.into());
        }
        let first = self.newest.wait_for(Option::is_some);
        if let Ok(first) = timeout(within, first).await {
            let version = first.ok().and_then(|version| version.clone());
            return version.ok_or(NotReady::Closed(TopicClosed::NodeStopping));
        }
        let name = self.of.name.clone();
        if let Some(why) = self.of.refusal() {
            return Err(NotReady::Refused { name, within, why });
        }
        let topic = self.of.found.load(Ordering::Relaxed);
        Err(NotReady::Late { name, within, topic })
    }

    /// Returns the latest version that has come; `None` before the first. Never waits. From here on
    /// [`changed`](Self::changed) waits for a newer one.
    ///
    /// Versions arrive when the thread of the process's transport is free. In a worker that is the thread of
    /// its actors: a busy handler sees only the version that had come before.
    pub fn latest(&mut self) -> Option<Arc<Version<M>>> {
        self.newest.borrow_and_update().clone()
    }

    /// Resolves when there is a version that this handle has not seen.
    ///
    /// # Errors
    /// The node is shutting down.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn changed(&mut self) -> Result<(), TopicClosed> {
        if self.asking.is_inherited() {
            return Err(TopicClosed::Forked);
        }
        self.newest.changed().await.map_err(|_| TopicClosed::NodeStopping)
    }
}

/// Asks the topic that has the name, in all its lives, for newer and newer versions.
async fn follow<M: Publishable>(
    registry: &Registry,
    of: &Followed,
    newest: &watch::Sender<Option<Arc<Version<M>>>>,
) {
    let (mut than, mut life, mut pause) = (0, 0, FIRST_PAUSE);
    loop {
        match registry.lookup::<Newer<M>>(&of.name).await {
            Ok(topic) => {
                of.found.store(true, Ordering::Relaxed);
                of.set_refusal(None);
                if ask(&topic, newest, &mut than, &mut life).await {
                    pause = FIRST_PAUSE;
                }
            }
            // The name belongs to another actor.
            Err(error @ LookupError::Unhandled { .. }) => {
                of.found.store(true, Ordering::Relaxed);
                of.refuse(error.to_string());
            }
            Err(LookupError::NodeExited | LookupError::Forked) => return,
            // It may come.
            Err(_) => {}
        }
        sleep(pause).await;
        pause = (2 * pause).min(LONGEST_PAUSE);
    }
}

/// Takes version after version until the topic fails. Returns whether there was one, and no lie.
async fn ask<M: Publishable>(
    topic: &Address<Newer<M>>,
    newest: &watch::Sender<Option<Arc<Version<M>>>>,
    than: &mut u64,
    life: &mut u64,
) -> bool {
    let mut any = false;
    loop {
        let error: AskError<Newer<M>> = match topic.ask(Newer::new(*than, *life)).await {
            // The topic is shutting down, and this process soon will too.
            Ok(Newest { value: None, .. }) => return any,
            Ok(Newest { life: from, number, value: Some(value) }) => {
                // Refuse a topic that breaks the order, or whose number would leave none for a later topic.
                if number <= *than || number > MOST_NUMBER {
                    tracing::error!(number, than, "a topic gave a version with a number that cannot be");
                    // Also where it gave others first: it is asked less and less often, and fills no log.
                    return false;
                }
                (*than, *life, any) = (number, from, true);
                // The earlier version drops here, unless it has a holder.
                newest.send_replace(Some(Arc::new(Version { number, value })));
                continue;
            }
            Err(error) => error,
        };
        tracing::debug!(%error, "a topic does not answer; its readers keep what they have");
        return any;
    }
}

impl<M: Publishable> Clone for Subscriber<M> {
    fn clone(&self) -> Self {
        Subscriber { newest: self.newest.clone(), of: Arc::clone(&self.of), asking: Arc::clone(&self.asking) }
    }
}

impl<M: Publishable> fmt::Debug for Subscriber<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.newest.borrow().as_ref().map_or(0, |version| version.number);
        write!(f, "Subscriber<{}>(`{}`, version {number})", M::NAME, self.of.name)
    }
}
