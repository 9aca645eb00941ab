//! What goes out together, on a device that notes what its streams are told.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tensorpost_derive::GpuMessage;

use super::*;
use crate::device::StreamOp;
use crate::device::fake::Fake;
use crate::lease::PoolOptions;
use crate::testing::Cluster;

#[derive(Debug, Serialize, Deserialize, GpuMessage)]
#[gpu_message(crate = crate)]
struct Item {
    tensor: Tensor,
}

/// It is one clock write, whatever of it is sent and let go of, and nobody sees it before the end, or before somebody says so.
#[test]
fn what_goes_out_together_is_one_clock_write() {
    let fakes = Mutex::new(Vec::new());
    let cluster = Cluster::with_device(2, PoolOptions { budget: 1 << 20, first_chunk: 1 << 20 }, || {
        let fake = Fake::new(1, 4, &[]);
        // Nothing is done that its streams are told, so no clock is seen to have passed.
        fake.seen.mute.store(true, Ordering::SeqCst);
        fakes.lock().push(Arc::clone(&fake));
        fake
    });
    let (to, inbox) = cluster.inbox::<Item>(1, 8);
    cluster.connect();
    let address: Address<Item> = Address::new(Arc::clone(cluster.transport(0)), to.actor, to.location, true);
    let written = || cluster.stream(0).from_slice(&[4], &[1_u32, 2, 3, 4]).expect("memory is there").freeze();
    let writes = || {
        let fakes = fakes.lock();
        fakes[0].seen.ops.lock().iter().filter(|op| matches!(op, StreamOp::Advance(_))).count()
    };
    let seen = || {
        // The receiver alone: what the sender's reader does is on another thread.
        for _ in 0..8 {
            cluster.poll(1);
            cluster.run_node_until_idle();
        }
        inbox.len()
    };
    let (tensors, more) = ([written(), written(), written()], [written(), written()]);
    fakes.lock()[0].seen.ops.lock().clear();
    let [sent, first, second] = tensors;
    let together = Together::begin();
    drop(first);
    address.try_send(Item { tensor: sent }).expect("there is room");
    drop(second);
    assert_eq!((writes(), seen()), (0, 0));
    Together::publish();
    assert_eq!((writes(), seen()), (1, 1));
    // It goes on.
    let [sent, dropped] = more;
    drop(dropped);
    address.try_send(Item { tensor: sent }).expect("there is room");
    assert_eq!((writes(), seen()), (1, 1));
    drop(together);
    assert_eq!((writes(), seen()), (2, 2));
    // Without one each goes at once.
    Together::publish();
    address.try_send(Item { tensor: written() }).expect("there is room");
    assert_eq!((writes(), seen()), (3, 3));
}
