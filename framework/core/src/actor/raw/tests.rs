//! Publishing together, on a device that records the commands of its streams.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tensorpost_derive::GpuMessage;

use super::*;
use crate::device::fake::Muted;
use crate::lease::PoolOptions;
use crate::testing::Cluster;

#[derive(Debug, Serialize, Deserialize, GpuMessage)]
#[gpu_message(crate = crate)]
struct Item {
    tensor: Tensor,
}

/// All sends and releases together are one clock write. No peer can see them before the end, or before
/// `publish`.
#[test]
fn what_goes_out_together_is_one_clock_write() {
    let fakes = Muted::default();
    let options = PoolOptions { budget: 1 << 20, first_chunk: 1 << 20 };
    let cluster = Cluster::with_device(2, options, || fakes.make());
    let (to, _inbox) = cluster.inbox::<Item>(1, 8);
    cluster.connect();
    let address: Address<Item> = Address::new(Arc::clone(cluster.transport(0)), to.actor, to.location);
    let written = || cluster.stream(0).from_slice(&[4], &[1_u32, 2, 3, 4]).expect("memory is there").freeze();
    let writes = || fakes.clock_writes(0);
    let link = cluster.transport(0).link(cluster.process(1)).expect("they are connected");
    let is_published = || link.unpublished_frames().is_none();
    let (tensors, more, last) = ([written(), written(), written()], [written(), written()], written());
    fakes.forget(0);
    let [sent, first, second] = tensors;
    let together = Together::begin();
    drop(first);
    address.try_send(Item { tensor: sent }).expect("there is room");
    drop(second);
    assert_eq!((writes(), is_published()), (0, false));
    Together::publish();
    assert_eq!((writes(), is_published()), (1, true));
    // The same `Together` goes on.
    let [sent, dropped] = more;
    drop(dropped);
    address.try_send(Item { tensor: sent }).expect("there is room");
    assert_eq!((writes(), is_published()), (1, false));
    drop(together);
    assert_eq!((writes(), is_published()), (2, true));
    // Without one, each send is published at once.
    Together::publish();
    address.try_send(Item { tensor: last }).expect("there is room");
    assert_eq!((writes(), is_published()), (3, true));
}
