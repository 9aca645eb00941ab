//! State with tensors in it, published under a name: readers have the latest version, whole, and no process
//! stops for a new one.
//!
//! A [`Topic`] is an actor that keeps the newest version of a value and gives it out; it is started like any
//! other actor, under the name that the value is to have. The process that makes the value has a
//! [`Publisher`], and a process that uses it has a [`Subscriber`]. A version is one message: its tensors are
//! leases like any others, so publishing copies no tensor, for any number of readers.
//!
//! - **Consistent.** A version is published as one value and read as one value. A new version consists of new
//!   tensors, so nothing that a reader has ever changes: memory is reused when its last reader has let go,
//!   and not before (LEASE-1).
//! - **Nobody waits for a reader.** A reader asks the topic for something newer than its version, one
//!   question at a time. So at most one version is on its way to it (MBX-2), and a slow reader skips
//!   versions: the newest wins.
//! - **Late readers** get the newest version as soon as they ask.
//! - **A version costs each reader a round trip.** In return the topic keeps no list of readers, and a reader
//!   that is slow or dead costs nothing but an unanswered question.
//! - **Bounds.** At most three versions are held for a reader: the one that it has, one that has arrived, and
//!   one on its way. All readers share the topic's mailbox: 128 in one process need a larger `.mailbox(n)`.
//! - **A reader that dies** takes its leases with it (LEASE-4); the topic drops its question with the next
//!   version.
//! - **From another language** a program publishes the value by sending it, as a message, to the topic's
//!   address: an [`Address`](crate::actor::Address) of `M`, which a Python actor gets as an argument, or
//!   finds under the topic's name.
//! - **Over several hosts** the same holds. A version goes to each other host once for all its readers there,
//!   and is copied on the way, so its tensors are in memory of that host.
//! - **When the publisher dies**, readers and the topic keep the last version: its memory outlives its owner.
//!   A new publisher goes on with the next number.
//! - **When the topic dies**, readers keep their versions, and look for its name until it exists again. It
//!   comes back empty: a new reader has nothing until somebody publishes again. So give the topic a restart
//!   policy, watch it, and publish anew on `Up`, as below. Versions of a new topic have higher numbers than
//!   any version that its readers have had.
//!
//! ```no_run
//! use std::time::Duration;
//! use tensorpost::prelude::*;
//! use tensorpost::published::Publish;
//!
//! #[derive(Clone, Serialize, Deserialize, GpuMessage)]
//! struct Weights {
//!     step: u64,
//!     layers: Vec<Tensor>,
//! }
//!
//! # fn main() -> anyhow::Result<()> {
//! let node = Node::builder().start()?;
//! let topic = node.spawn::<Topic<Weights>>(()).name("weights").restart(Restart::on_failure(10)).start()?;
//!
//! // Who trains, usually in another process; a publisher can be in an actor's arguments, too.
//! let publisher = Publisher::<Weights>::new(topic.address());
//! let layer = node.host_stream()?.zeros(DType::F32, &[16, 4])?.freeze();
//! let number = node.block_on(publisher.publish(Weights { step: 0, layers: vec![layer] }))?;
//! assert_eq!(number, 1);
//!
//! // In a loop that waits for nothing: the newest is published, and what goes wrong is in the log.
//! publisher.put(Weights { step: 1, layers: vec![] });
//!
//! // A topic that dies comes back empty.
//! let mut watch = node.watch(&topic.address::<Publish<Weights>>());
//! let (again, newest) = (publisher.clone(), Weights { step: 1, layers: vec![] });
//! std::thread::spawn(move || {
//!     while let Some(event) = watch.blocking_recv() {
//!         if matches!(event, Lifecycle::Up { .. }) {
//!             again.put(newest.clone());
//!         }
//!     }
//! });
//!
//! // Who evaluates: in an actor's `create`, `Subscriber::follow(env, "weights")`, and `ready` in its `prepare`.
//! let mut weights = Subscriber::<Weights>::follow(&node, "weights");
//! let version = node.block_on(weights.ready(Duration::from_secs(10)))?;
//! println!("version {}: {:?}", version.number, version.value.layers);
//! # Ok(())
//! # }
//! ```

mod publisher;
mod subscriber;
mod topic;

use tensorpost_core::api::message::GpuMessage;

pub use publisher::{Publisher, Publishing};
pub use subscriber::{Follower, NotReady, Subscriber, TopicClosed};
use topic::{Newer, Newest};
pub use topic::{Publish, Topic};

/// A type that can be published: a message without a reply whose clones share their tensors.
pub trait Publishable: GpuMessage<Reply = ()> + Clone + Sync {}

impl<M: GpuMessage<Reply = ()> + Clone + Sync> Publishable for M {}

/// One version of a published value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version<M> {
    /// Counts from 1; later versions have higher numbers.
    pub number: u64,
    /// The value, whole.
    pub value: M,
}
