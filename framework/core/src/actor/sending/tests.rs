//! The cost of a send on a stream that puts clock writes off, as a GPU's does.

use serde::{Deserialize, Serialize};
use tensorpost_derive::GpuMessage;

use super::*;
use crate::actor::{AskError, Channel, ChannelError};
use crate::device::fake::Muted;
use crate::lease::PoolOptions;
use crate::limits::{MAX_ACTORS, MAX_GRANTED, MAX_TENSORS};
use crate::stream::turn::Turn;
use crate::tensor::Tensor;
use crate::testing::Cluster;
use crate::transport::inbox::LocalCredits;

#[derive(Debug, Serialize, Deserialize, GpuMessage)]
#[gpu_message(crate = crate)]
struct Item {
    tensor: Tensor,
}

/// A mailbox whose actor stops between the sender's check and the message.
struct Stopping(Arc<LocalCredits>);

impl Inbox for Stopping {
    fn actor(&self) -> ActorId {
        ActorId(1)
    }

    fn capacity(&self) -> u32 {
        8
    }

    fn deliver(&self, _: crate::transport::inbox::Delivery<'_>) -> Result<(), Undelivered> {
        Err(Undelivered::Stopped)
    }

    fn offer(
        &self,
        _: u64,
        message: crate::transport::inbox::LocalMessage,
    ) -> Result<(), (crate::transport::inbox::LocalMessage, Undelivered)> {
        Err((message, Undelivered::Stopped))
    }

    fn local(&self) -> &Arc<LocalCredits> {
        &self.0
    }
}

#[derive(Debug, Serialize, Deserialize, GpuMessage)]
#[gpu_message(crate = crate)]
struct Batch {
    tensors: Vec<Tensor>,
}

/// The receiver keeps all messages. Nobody handles any, so no room comes back. Each sender, and a receiver
/// that waits in vain for a message or a reply, is told which limit it met.
#[test]
fn who_keeps_too_many_tensors_is_named_to_both_sides() {
    let cluster = Cluster::new(2);
    let (to, inbox) = cluster.inbox::<Batch>(1, 1 << 10);
    let address: Address<Batch> = Address::new(Arc::clone(cluster.transport(0)), to.actor, to.location);
    let address = address.with_key(to.key);
    let tensor = || cluster.stream(0).from_slice(&[1], &[1_u32]).expect("memory").freeze();
    let batch = |count| Batch { tensors: (0..count).map(|_| tensor()).collect() };
    let mut kept = Vec::new();
    for _ in 0..MAX_GRANTED / MAX_TENSORS {
        assert!(cluster.transport(1).held_to_the_limit().is_none());
        address.try_send(batch(MAX_TENSORS)).expect("there is room");
        cluster.run_until_idle();
        kept.extend(inbox.take());
    }
    const { assert!(MAX_GRANTED >= 20_000) };
    let now = address.try_send(batch(1)).expect_err("one more");
    let waiting = address.send(now.message).timeout(Duration::ZERO);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let late = runtime.block_on(waiting).expect_err("nobody drops any");
    assert!(late.is_retryable());
    let (silent, _unread) = cluster.inbox::<Batch>(0, 8);
    cluster.connect();
    let asker = cluster.address::<Batch>(1, &silent).with_key(silent.key);
    let asked = runtime.block_on(asker.ask(batch(0)).timeout(Duration::ZERO)).expect_err("nobody answers");
    assert!(matches!(asked, AskError::LeasesOut(_)) && asked.is_retryable(), "{asked:?}");
    let (nowhere, here) = (MAX_ACTORS as u16 - 1, cluster.transport(1));
    let (_inbox, mut channel) = Channel::<Batch>::new(ActorId(9), nowhere, 8, here, Box::new(|| ()), None);
    let received = runtime.block_on(channel.recv_timeout(Duration::ZERO)).expect_err("nobody sends");
    assert!(matches!(received, ChannelError::LeasesOut { .. }), "{received:?}");
    let there = cluster.transport(1).held_to_the_limit().expect("it keeps all").to_string();
    let of_sender = [now.reason.to_string(), late.reason.to_string()];
    for text in of_sender.into_iter().chain([asked.to_string(), received.to_string(), there]) {
        let (holder, owner) = (cluster.process(1), cluster.process(0));
        let says =
            format!("{holder} holds {MAX_GRANTED} tensors of {owner}, of {MAX_GRANTED} that one process may");
        assert!(text.contains(&says) && text.contains("copies of small ones"), "{text}");
    }
    let survey = cluster.transport(0).survey();
    assert_eq!(survey.links.iter().map(|link| link.granted).max(), Some(MAX_GRANTED as u64));
    // A full mailbox is no lack of leases.
    kept.drain(..kept.len() - 1).for_each(drop);
    cluster.run_until_idle();
    let received = runtime.block_on(channel.recv_timeout(Duration::ZERO));
    assert!(matches!(received, Err(ChannelError::TimedOut)), "{received:?}");
    while address.try_send(batch(0)).is_ok() {
        cluster.run_until_idle();
    }
    let full = address.try_send(batch(1)).expect_err("a message too many");
    assert!(matches!(full.reason, SendFailure::Full), "{full}");
}

/// The ask comes back with the channel for its reply, so the next attempt is an ask again.
#[test]
fn an_ask_that_finds_its_actor_stopping_stays_an_ask() {
    let cluster = Cluster::new(1);
    let (to, _inbox) = cluster.inbox::<Item>(0, 8);
    let address: Address<Item> = Address::new(Arc::clone(cluster.transport(0)), to.actor, to.location);
    let stopping: Arc<dyn Inbox> = Arc::new(Stopping(LocalCredits::new(8)));
    let tensor = cluster.stream(0).from_slice(&[1], &[1_u32]).expect("memory").freeze();
    let (answer, mut told) = oneshot::channel();
    let (mut message, mut answer) = (Some(Item { tensor }), Some(answer));
    let refused = super::offer(&address, &stopping, &mut message, &mut answer);
    assert!(matches!(refused, Err(SendFailure::NoSuchActor)), "{refused:?}");
    assert!(message.is_some() && answer.is_some());
    assert!(told.try_recv().is_err_and(|error| error == oneshot::error::TryRecvError::Empty));
}

/// Outside of a handler, the data of a tensor and the end of its lease are one clock write, as inside of one.
#[test]
fn a_send_is_one_clock_write() {
    let fakes = Muted::default();
    let options = PoolOptions { budget: 1 << 20, first_chunk: 1 << 20 };
    let cluster = Cluster::with_device(2, options, || fakes.make());
    let (to, _inbox) = cluster.inbox::<Item>(1, 8);
    cluster.connect();
    let address: Address<Item> = Address::new(Arc::clone(cluster.transport(0)), to.actor, to.location);
    let written = || {
        let tensor = cluster.stream(0).from_slice(&[4], &[1_u32, 2, 3, 4]).expect("memory").freeze();
        fakes.forget(0);
        tensor
    };
    let writes = || fakes.clock_writes(0);
    let tensor = written();
    address.try_send(Item { tensor }).expect("room");
    assert_eq!(writes(), 1);
    let two = [written(), written()];
    {
        let _handler = Turn::begin();
        for tensor in two {
            address.try_send(Item { tensor }).expect("room");
        }
        assert_eq!(writes(), 0);
    }
    assert_eq!(writes(), 1);
}
