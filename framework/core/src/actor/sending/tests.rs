//! What a send costs on a stream that puts clock writes off, as a GPU's does.

use serde::{Deserialize, Serialize};
use tensorpost_derive::GpuMessage;

use super::*;
use crate::device::fake::Muted;
use crate::lease::PoolOptions;
use crate::stream::turn::Turn;
use crate::tensor::Tensor;
use crate::testing::Cluster;
use crate::transport::inbox::LocalCredits;

#[derive(Debug, Serialize, Deserialize, GpuMessage)]
#[gpu_message(crate = crate)]
struct Item {
    tensor: Tensor,
}

/// A mailbox whose actor stops between the look at it and the message.
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

/// What comes back is the ask, with the way to whoever asked: the next attempt is an ask again.
#[test]
fn an_ask_that_finds_its_actor_stopping_stays_an_ask() {
    let cluster = Cluster::new(1);
    let (to, _inbox) = cluster.inbox::<Item>(0, 8);
    let address: Address<Item> = Address::new(Arc::clone(cluster.transport(0)), to.actor, to.location, true);
    let stopping: Arc<dyn Inbox> = Arc::new(Stopping(LocalCredits::new(8)));
    let tensor = cluster.stream(0).from_slice(&[1], &[1_u32]).expect("memory").freeze();
    let (answer, mut told) = oneshot::channel();
    let (mut message, mut answer) = (Some(Item { tensor }), Some(answer));
    let refused = super::offer(&address, &stopping, &mut message, &mut answer);
    assert!(matches!(refused, Err(SendFailure::NoSuchActor)), "{refused:?}");
    assert!(message.is_some() && answer.is_some());
    assert!(told.try_recv().is_err_and(|error| error == oneshot::error::TryRecvError::Empty));
}

/// Outside of a handler the data of a tensor and the end of its lease are one clock write, as inside of one.
#[test]
fn a_send_is_one_clock_write() {
    let fakes = Muted::default();
    let options = PoolOptions { budget: 1 << 20, first_chunk: 1 << 20 };
    let cluster = Cluster::with_device(2, options, || fakes.make());
    let (to, _inbox) = cluster.inbox::<Item>(1, 8);
    cluster.connect();
    let address: Address<Item> = Address::new(Arc::clone(cluster.transport(0)), to.actor, to.location, true);
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
