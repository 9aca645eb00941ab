//! The end that publishes.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use serde::{Deserialize, Serialize};

use super::{Follower, Publish, Publishable};
use crate::actor::{self, Address, Ask, AskError, LookupError};

/// Replaces the value on a [`Topic`](super::Topic). It can be cloned, and sent in messages and arguments; who publishes
/// through several at once gets the order in which the topic takes them.
#[derive(Serialize, Deserialize)]
#[serde(bound = "")]
pub struct Publisher<M: Publishable> {
    topic: Address<Publish<M>>,
}

impl<M: Publishable> Publisher<M> {
    /// Makes a publisher for the topic at this address.
    pub fn new(topic: Address<Publish<M>>) -> Self {
        Publisher { topic }
    }

    /// Makes a publisher for the topic under `name`.
    ///
    /// # Errors
    /// There is none, or the node is gone.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn named(from: &impl Follower, name: &str) -> Result<Self, LookupError> {
        Ok(Self::new(actor::lookup(from.transport(), name).await?))
    }

    /// Replaces the value, and resolves to the number of its version when it is there to be read. Sending was tried when
    /// this returns; readers that have older versions are not waited for.
    ///
    /// # Errors
    /// [`AskError`] gives the value back where it was not sent.
    ///
    /// # Cancel safety
    /// Dropping the future before it resolves may or may not have published.
    pub fn publish(&self, value: M) -> Publishing<M> {
        Publishing(self.topic.ask(Publish { value }))
    }
}

/// The future of [`Publisher::publish`].
#[must_use = "what found no room waits only while it is polled"]
pub struct Publishing<M: Publishable>(Ask<Publish<M>>);

impl<M: Publishable> Future for Publishing<M> {
    type Output = Result<u64, AskError<Publish<M>>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx)
    }
}

impl<M: Publishable> Clone for Publisher<M> {
    fn clone(&self) -> Self {
        Publisher { topic: self.topic.clone() }
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
