//! The publishing end.
//!
//! [`Publisher::put`] leaves the waiting to a thread of the process, on which at most one value of a
//! publisher is under way and at most one more waits, the newest (MBX-2). The lock of a publisher is held
//! while a value is offered to the topic, so that values of `put` and `publish` keep the order of the calls.
//!
//! **On a crash** of the topic the value under way fails, and the log reports it. **On the end of the node**
//! a shutdown waits for the values that wait for room, and for their acceptance, as for any message.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use serde::{Deserialize, Serialize};
use tensorpost_core::api::actor::{Address, Ask, AskError, LookupError};
use tensorpost_core::api::fork::PerProcess;
use tokio::runtime::{Builder, Handle};

use super::{Follower, Publish, Publishable};

/// Replaces the value on a [`Topic`](super::Topic). It can be cloned, and sent in messages and arguments.
/// Values that are published through several at once are ordered as the topic takes them. Clones in one
/// process are one publisher.
#[derive(Serialize, Deserialize)]
#[serde(bound = "")]
pub struct Publisher<M: Publishable> {
    topic: Address<Publish<M>>,
    #[serde(skip)]
    puts: Arc<Mutex<Puts<M>>>,
}

/// The values that were put and not published yet.
struct Puts<M> {
    under_way: bool,
    /// The newest value, which waits for the one under way.
    next: Option<M>,
}

impl<M: Publishable> Publisher<M> {
    /// Makes a publisher for the topic at this address.
    pub fn new(topic: Address<Publish<M>>) -> Self {
        Publisher { topic, puts: Arc::default() }
    }

    /// Makes a publisher for the topic under `name`.
    ///
    /// # Errors
    /// There is no such topic, or the node is gone.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn named(from: &impl Follower, name: &str) -> Result<Self, LookupError> {
        Ok(Self::new(from.registry().lookup(name).await?))
    }

    /// Replaces the value, and resolves to the number of its version when readers can get it. It does not
    /// wait for readers that have older versions.
    ///
    /// # Errors
    /// [`AskError`] gives the value back where it was not sent.
    ///
    /// # Cancel safety
    /// The call tries to send before it returns. Where there is no room, the value is sent only while the
    /// future is polled. The first value that a process sends to the topic's process is such a case, because
    /// there is no link between them yet. Dropping the future before the value is sent drops the value, even
    /// if there is room by now, and the log says so, at WARN. Dropping it later loses only the number.
    /// [`put`](Self::put) needs no future.
    pub fn publish(&self, value: M) -> Publishing<M> {
        let mut puts = self.puts();
        // The waiting value is older.
        let superseded = puts.next.take();
        let publishing = self.offer(value);
        drop(puts);
        drop(superseded);
        publishing
    }

    /// Replaces the value, without waiting, from any thread. Errors are logged, at ERROR. While the topic has
    /// no room, the newest value waits, and replaces the value that waited before; readers would skip that
    /// one too.
    pub fn put(&self, value: M) {
        let mut puts = self.puts();
        if puts.under_way {
            let skipped = puts.next.replace(value);
            drop(puts);
            return drop(skipped);
        }
        let Some(thread) = waiting_thread() else {
            tracing::error!("no thread: a value that was put is not published");
            return;
        };
        puts.under_way = true;
        let first = self.offer(value);
        drop(puts);
        let publisher = self.clone();
        thread.spawn(async move { publisher.publish_all(first).await });
    }

    async fn publish_all(&self, first: Publishing<M>) {
        let mut publishing = Some(first);
        while let Some(one) = publishing {
            if let Err(error) = one.await {
                tracing::error!(%error, value = M::NAME, "a value that was put was not published");
            }
            let mut puts = self.puts();
            let next = puts.next.take();
            puts.under_way = next.is_some();
            publishing = next.map(|next| self.offer(next));
        }
    }

    /// Sends the value if there is room.
    fn offer(&self, value: M) -> Publishing<M> {
        Publishing(self.topic.ask(Publish { value }))
    }

    fn puts(&self) -> MutexGuard<'_, Puts<M>> {
        // A panic cannot leave a half-changed state: each step leaves it whole.
        self.puts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the thread of this process that waits for the values of `put`. It lives as long as the process. It
/// is not an actor's thread, because an actor's runtime may end before the value is sent.
fn waiting_thread() -> Option<&'static Handle> {
    static THREAD: PerProcess<Option<Handle>> = PerProcess::new(|| {
        let runtime = Builder::new_current_thread().enable_all().build().ok()?;
        let handle = runtime.handle().clone();
        let run = move || runtime.block_on(std::future::pending::<()>());
        std::thread::Builder::new().name("tp-put".into()).spawn(run).ok()?;
        Some(handle)
    });
    THREAD.get().as_ref()
}

/// The future of [`Publisher::publish`].
#[must_use = "what found no room waits only while it is polled; `put` needs no polling"]
pub struct Publishing<M: Publishable>(Ask<Publish<M>>);

impl<M: Publishable> Future for Publishing<M> {
    type Output = Result<u64, AskError<Publish<M>>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx)
    }
}

impl<M: Publishable> Drop for Publishing<M> {
    fn drop(&mut self) {
        // Another attempt would publish a value that was given up.
        let Err(why) = self.0.withdraw() else { return };
        tracing::warn!(
            %why,
            value = M::NAME,
            "a value was not published: the future of `publish` was dropped before it was sent; await it, or use `put`"
        );
    }
}

impl<M> Default for Puts<M> {
    fn default() -> Self {
        Puts { under_way: false, next: None }
    }
}

impl<M: Publishable> Clone for Publisher<M> {
    fn clone(&self) -> Self {
        Publisher { topic: self.topic.clone(), puts: Arc::clone(&self.puts) }
    }
}

impl<M: Publishable> fmt::Debug for Publisher<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Publisher<{}>({:?})", M::NAME, self.topic)
    }
}

impl<M: Publishable> fmt::Debug for Publishing<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Publishing<{}>", M::NAME)
    }
}
