//! Everything is bounded (MBX-2): mailboxes, rings, leases and pools. Senders that wait at a bound go on in
//! order (MBX-1).

use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tensorpost_core::lease::{PoolError, PoolOptions};
use tensorpost_core::limits::{MAX_FORWARDED, MAX_FORWARDS, MAX_GRANTED, MAX_TENSORS, RING_BYTES};
use tensorpost_core::tensor::{DType, Tensor, TensorError};
use tensorpost_core::testing::{Cluster, Lack, Unsent};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

fn numbers(cluster: &Cluster, process: usize, count: usize) -> Tensor {
    cluster.stream(process).from_slice(&[count], &vec![1_f32; count]).expect("memory").freeze()
}

/// The log of a thread, as text.
#[derive(Clone, Default)]
struct Said(Arc<Mutex<String>>);

impl Said {
    /// Runs `work`, and returns what this thread logs meanwhile.
    fn during<T>(work: impl FnOnce() -> T) -> (T, String) {
        let said = Said::default();
        let log = tracing_subscriber::registry().with(said.clone());
        let result = tracing::subscriber::with_default(log, work);
        let text = said.0.lock().clone();
        (result, text)
    }
}

impl<S: Subscriber> Layer<S> for Said {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        event.record(&mut Said(Arc::clone(&self.0)));
    }
}

impl Visit for Said {
    fn record_debug(&mut self, _: &Field, value: &dyn Debug) {
        *self.0.lock() += &format!("{value:?}\n");
    }
}

#[test]
fn a_mailbox_takes_its_capacity_from_each_sender() {
    let cluster = Cluster::new(3);
    let (to, inbox) = cluster.inbox::<u32>(2, 3);
    let (other, at_other) = cluster.inbox::<u32>(2, 1);
    for sender in [0, 1] {
        for n in 0..3 {
            cluster.send(sender, &to, n);
        }
        let (back, unsent) = cluster.try_send(sender, &to, 77).expect_err("the fourth");
        assert_eq!((back, unsent), (77, Unsent::NotNow(Lack::Credit)), "the message comes back");
    }
    // A delivered message still takes its place until it is handled.
    cluster.run_until_idle();
    assert_eq!(inbox.len(), 6);
    assert_eq!(cluster.try_send(0, &to, 7), Err((7, Unsent::NotNow(Lack::Credit))));
    // Another mailbox of the same process does not stand in the way of this one.
    cluster.send(0, &other, 1);
    // Dropping a receipt gives a credit to its own sender and no other.
    let mut received = inbox.take();
    let from_first = received.iter().position(|r| r.sender() == cluster.process(0)).expect("one of three");
    drop(received.remove(from_first));
    cluster.run_until_idle();
    cluster.send(0, &to, 3);
    assert_eq!(cluster.try_send(0, &to, 4), Err((4, Unsent::NotNow(Lack::Credit))));
    assert_eq!(cluster.try_send(1, &to, 4), Err((4, Unsent::NotNow(Lack::Credit))));
    drop(received);
    cluster.run_until_idle();
    assert_eq!(inbox.take_one().message, 3);
    assert_eq!(at_other.take_one().message, 1);
}

/// WIRE-1: anybody may have written an address, and the capacity in it. Only the mailbox's own process says
/// how much it takes.
#[test]
fn an_address_that_lies_about_a_mailbox_costs_nobody_a_link() {
    let cluster = Cluster::new(2);
    let (to, inbox) = cluster.inbox::<u32>(1, 2);
    for says in [1000, 0, 1] {
        let mut lie = to;
        lie.location.capacity = says;
        cluster.send(0, &lie, 0);
        cluster.send(0, &lie, 1);
        assert_eq!(cluster.try_send(0, &lie, 2), Err((2, Unsent::NotNow(Lack::Credit))), "it says {says}");
        cluster.run_until_idle();
        assert!(!cluster.gave_up(1, 0), "it says {says}");
        assert_eq!(inbox.take().len(), 2);
        cluster.run_until_idle();
    }
    // The address names a place with no actor. An actor that comes there later is still reached by senders
    // that know it.
    let mut early = to;
    early.location.index += 1;
    cluster.send(0, &early, 7);
    cluster.run_until_idle();
    assert_eq!(cluster.transport(1).stats().dead_letters, 1);
    let (next, at_next) = cluster.inbox::<u32>(1, 3);
    assert_eq!(next.location.index, early.location.index);
    (0..3).for_each(|n| cluster.send(0, &next, n));
    assert_eq!(cluster.try_send(0, &next, 3), Err((3, Unsent::NotNow(Lack::Credit))));
    cluster.run_until_idle();
    assert_eq!(at_next.take().len(), 3);
    assert!(!cluster.gave_up(1, 0));
}

#[test]
fn messages_of_one_sender_arrive_in_order() {
    let cluster = Cluster::new(2);
    let (to, inbox) = cluster.inbox::<(u32, Option<Tensor>)>(1, 64);
    let mut next = 0;
    for round in 0..40 {
        for n in 0..64 {
            let number = round * 64 + n;
            let tensor = (number % 3 == 0).then(|| numbers(&cluster, 0, 1 + number as usize % 50));
            cluster.send(0, &to, (number, tensor));
            if number % 7 == 0 {
                cluster.poll(1);
            }
        }
        cluster.run_until_idle();
        for received in inbox.take() {
            assert_eq!(received.message.0, next);
            next += 1;
        }
        cluster.run_until_idle();
    }
    assert_eq!((next, cluster.leases(0)), (40 * 64, 0));
}

#[test]
fn senders_that_wait_go_on_first_come_first_served() {
    let cluster = Cluster::new(2);
    let (to, inbox) = cluster.inbox::<u32>(1, 1);
    cluster.send(0, &to, 0);
    cluster.run_until_idle();
    let [first, second, third] = [0, 1, 2].map(|_| cluster.wait_in_line(0, &to));
    assert!(first.is_front() && !second.is_front() && !third.is_front());
    cluster.run_until_idle();
    assert_eq!([&first, &second, &third].map(|waiter| waiter.wakes()), [0, 0, 0], "nothing has changed");

    drop(inbox.take());
    cluster.run_until_idle();
    assert!(first.wakes() > 0);
    assert_eq!([&second, &third].map(|waiter| waiter.wakes()), [0, 0], "only the first is told");
    cluster.send(0, &to, 1);
    drop(first);
    assert!(second.is_front());
    assert!(second.wakes() > 0, "it looks for itself whether there is more");
    // A sender that gives up does not hold the next one up.
    drop(second);
    assert!(third.is_front() && third.wakes() > 0);
    third.remember();
    let before = third.wakes();
    cluster.run_until_idle();
    drop(inbox.take());
    cluster.run_until_idle();
    assert!(third.wakes() > before);
}

#[test]
fn a_sender_that_waits_is_told_when_the_actor_or_its_process_goes() {
    let cluster = Cluster::new(3);
    let (to, inbox) = cluster.inbox::<u32>(1, 1);
    let (there, at_c) = cluster.inbox::<u32>(2, 1);
    cluster.send(0, &to, 0);
    cluster.send(0, &there, 0);
    cluster.run_until_idle();
    let (waiter, at_gone) = (cluster.wait_in_line(0, &to), cluster.wait_in_line(0, &there));
    cluster.transport(1).withdraw(to.location.index);
    cluster.end(2);
    cluster.run_until_idle();
    assert!(waiter.wakes() > 0 && at_gone.wakes() > 0);
    assert_eq!(cluster.try_send(0, &to, 1), Err((1, Unsent::NoSuchActor)));
    assert_eq!(cluster.try_send(0, &there, 1), Err((1, Unsent::Exited)));
    drop((inbox, at_c));
}

#[test]
fn a_full_ring_takes_more_once_it_was_read() {
    let cluster = Cluster::new(2);
    let (to, inbox) = cluster.inbox::<Vec<u8>>(1, 1000);
    cluster.connect();
    let body = vec![1_u8; 10_000];
    let mut sent = 0;
    let unsent = loop {
        match cluster.try_send(0, &to, body.clone()) {
            Ok(()) => sent += 1,
            Err((back, unsent)) => {
                assert_eq!(back, body, "the message comes back");
                break unsent;
            }
        }
    };
    assert_eq!(unsent, Unsent::NotNow(Lack::Room));
    assert!(sent >= RING_BYTES / 10_100 - 3, "only {sent} fit");
    let waiter = cluster.wait_in_line(0, &to);
    cluster.run_until_idle();
    assert!(waiter.wakes() > 0);
    // The messages were read, but nobody has handled any of them: room in the ring is no credit.
    assert_eq!(inbox.len(), sent);
    cluster.send(0, &to, body);
    cluster.run_until_idle();
    assert_eq!(inbox.take().len(), sent + 1);
}

#[test]
fn a_process_holds_no_more_than_its_share_of_leases() {
    let cluster = Cluster::new(2);
    let (to, inbox) = cluster.inbox::<Vec<Tensor>>(1, 100);
    let batch = || (0..MAX_TENSORS).map(|_| numbers(&cluster, 0, 1)).collect::<Vec<_>>();
    for _ in 0..MAX_GRANTED / MAX_TENSORS {
        cluster.send(0, &to, batch());
        cluster.run_until_idle();
    }
    assert_eq!(cluster.leases(0), MAX_GRANTED);
    let one = vec![numbers(&cluster, 0, 1)];
    let (refused, said) = Said::during(|| cluster.try_send(0, &to, one));
    let (one, unsent) = refused.expect_err("one more");
    assert_eq!(unsent, Unsent::NotNow(Lack::Leases));
    // The log names who keeps how many of whose tensors, and the remedy. It does so once a minute.
    let (holder, owner) = (cluster.process(1), cluster.process(0));
    let limit = format!("{holder} holds {MAX_GRANTED} tensors of {owner}, of {MAX_GRANTED} that one process");
    assert!(said.starts_with(&format!("messages to {holder} wait: {limit}")), "{said}");
    assert!(said.contains("copies of small ones") && said.contains("`tensorpost holders`"), "{said}");
    let (refused, said) = Said::during(|| cluster.try_send(0, &to, one));
    let (one, _) = refused.expect_err("still one more");
    assert_eq!(said, "");
    // A message without leases still goes.
    cluster.send(0, &to, vec![]);
    let waiter = cluster.wait_in_line(0, &to);
    cluster.run_until_idle();
    let before = waiter.wakes();
    drop(inbox.take());
    cluster.run_until_idle();
    assert!(waiter.wakes() > before);
    cluster.send(0, &to, one);
    cluster.run_until_idle();
    drop(inbox.take());
    cluster.run_until_idle();
    assert_eq!(cluster.leases(0), 0);
}

/// MBX-2 for leases that others forwarded: a process takes no hold for which the owner's ring might lack
/// room. The frame waits in its ring, and is taken when the owner has read.
#[test]
fn holds_that_the_owner_has_not_read_stay_bounded() {
    // Each forwards as much as it can before the owner has read its notices.
    const EACH: usize = MAX_FORWARDS / MAX_TENSORS;
    let forwarders: Vec<usize> = (2..2 + 1 + MAX_FORWARDED / MAX_FORWARDS).collect();
    let cluster = Cluster::new(2 + forwarders.len());
    let (to_c, at_c) = cluster.inbox::<Vec<Tensor>>(1, 1000);
    let inboxes: Vec<_> = forwarders.iter().map(|b| cluster.inbox::<Vec<Tensor>>(*b, 100)).collect();
    cluster.connect();
    let mut batches = Vec::new();
    for (to, inbox) in &inboxes {
        cluster.send(0, to, (0..MAX_TENSORS).map(|_| numbers(&cluster, 0, 1)).collect::<Vec<_>>());
        cluster.run_until_idle();
        batches.push(inbox.take_one().message);
    }
    let mut rounds = 0;
    // A reads nothing while the others forward and C drops.
    while rounds < EACH * forwarders.len() {
        let from = rounds / EACH;
        cluster.send(forwarders[from], &to_c, batches[from].clone());
        for _ in 0..4 {
            cluster.poll(1);
            cluster.poll(forwarders[from]);
            cluster.run_node_until_idle();
        }
        if at_c.is_empty() {
            break;
        }
        drop(at_c.take());
        rounds += 1;
    }
    assert!((2..EACH * forwarders.len()).contains(&rounds), "the frame waits after {rounds} rounds");
    assert_eq!(cluster.transport(1).stats().rejected, 0);
    cluster.run_until_idle();
    assert_eq!(at_c.take_one().message.len(), MAX_TENSORS);
    assert_eq!(cluster.transport(0).stats().rejected, 0);
    drop(batches);
    cluster.run_until_idle();
    assert_eq!(cluster.leases(0), 0);
}

/// No sender knows why a frame with forwarded tensors waits, so the log of its receiver says it.
#[test]
fn a_process_that_keeps_too_many_forwarded_tensors_is_named_in_its_log() {
    let cluster = Cluster::new(3);
    let (to_b, at_b) = cluster.inbox::<Vec<Tensor>>(1, 8);
    let (to_c, at_c) = cluster.inbox::<Vec<Tensor>>(2, 1000);
    cluster.connect();
    cluster.send(0, &to_b, (0..MAX_TENSORS).map(|_| numbers(&cluster, 0, 1)).collect::<Vec<_>>());
    cluster.run_until_idle();
    let batch = at_b.take_one().message;
    // There is room for the hold and the release of each tensor of one more message (LEASE-2).
    let most = (MAX_FORWARDED - 1) / MAX_TENSORS - 1;
    let mut kept = Vec::new();
    let (_, said) = Said::during(|| {
        for _ in 0..most {
            cluster.send(1, &to_c, batch.clone());
            cluster.run_until_idle();
            kept.extend(at_c.take());
        }
    });
    assert_eq!((kept.len(), said.as_str()), (most, ""));
    cluster.send(1, &to_c, batch.clone());
    let (_, said) = Said::during(|| cluster.run_until_idle());
    assert!(at_c.is_empty(), "it waits");
    let (holder, held) = (cluster.process(2), most * MAX_TENSORS);
    let (from, owner) = (cluster.process(1), cluster.process(0));
    let limit = format!("{holder} holds {held} tensors of {owner}, of {MAX_FORWARDED} that one process may");
    let says = format!("messages of {from} with tensors of {owner} wait: {limit}");
    assert!(said.starts_with(&says) && said.contains("copies of small ones"), "{said}");
    drop(kept);
    cluster.run_until_idle();
    assert_eq!(at_c.take_one().message.len(), MAX_TENSORS);
}

/// MBX-2 for forwards: while the owner reads nothing, only a sender that forwards its memory waits.
#[test]
fn forwards_that_the_owner_has_not_read_stay_bounded() {
    let cluster = Cluster::new(3);
    let (to_b, at_b) = cluster.inbox::<Vec<Tensor>>(1, 100);
    let (to_c, at_c) = cluster.inbox::<Vec<Tensor>>(2, 1000);
    cluster.connect();
    let made: Vec<Tensor> = (0..MAX_TENSORS).map(|_| numbers(&cluster, 0, 1)).collect();
    // Now C maps the memory of both, so it takes later frames at once.
    cluster.send(0, &to_c, made.clone());
    cluster.send(1, &to_c, vec![numbers(&cluster, 1, 1)]);
    cluster.send(0, &to_b, made);
    cluster.run_until_idle();
    let batch = at_b.take_one().message;
    assert_eq!(at_c.take().len(), 2);
    cluster.run_until_idle();
    let mut sent = 0;
    while cluster.try_send(1, &to_c, batch.clone()).is_ok() {
        cluster.poll(2);
        cluster.poll(1);
        drop(at_c.take());
        sent += 1;
        assert!(sent < 50, "A reads nothing");
    }
    assert_eq!(sent, MAX_FORWARDS / MAX_TENSORS);
    let waiter = cluster.wait_in_line(1, &to_c);
    // B's own memory goes as before.
    cluster.send(1, &to_c, vec![numbers(&cluster, 1, 1)]);
    let all_but_a = || {
        for _ in 0..4 {
            cluster.poll(2);
            cluster.poll(1);
        }
    };
    let until = Instant::now() + Duration::from_secs(30);
    while at_c.is_empty() {
        assert!(Instant::now() < until, "B's own message arrives");
        all_but_a();
    }
    all_but_a();
    waiter.remember();
    let before = waiter.wakes();
    all_but_a();
    assert_eq!(waiter.wakes(), before, "nothing has changed");
    cluster.run_until_idle();
    assert!(waiter.wakes() > before, "A has read them");
    cluster.send(1, &to_c, batch);
    cluster.run_until_idle();
    assert_eq!(at_c.take().len(), 2);
    cluster.run_until_idle();
    assert_eq!((cluster.leases(0), cluster.transport(0).stats().rejected), (0, 0));
}

#[test]
fn a_full_pool_says_who_holds_its_bytes() {
    let cluster = Cluster::with_pools(2, PoolOptions { budget: 1 << 20, first_chunk: 64 << 10 });
    let (to, inbox) = cluster.inbox::<Tensor>(1, 100);
    let kept = numbers(&cluster, 0, 10 << 10);
    let error = loop {
        match cluster.stream(0).empty(DType::F32, &[10 << 10]) {
            Ok(tensor) => cluster.send(0, &to, tensor.freeze()),
            Err(error) => break error,
        }
        cluster.run_until_idle();
    };
    let TensorError::Pool(PoolError::Full { asked, in_use, budget, holders, .. }) = &error else {
        panic!("another error: {error}");
    };
    assert_eq!((*asked, *budget), (40 << 10, 1 << 20));
    assert!(*in_use >= 10 * (40 << 10), "{in_use} bytes in use");
    let (other, own) = (cluster.process(1).to_string(), format!("{} (this process)", cluster.process(0)));
    let (others, owns) = (holders.find(&other).expect("B"), holders.find(&own).expect("A"));
    assert!(others < owns, "the largest first: {holders}");
    let too_large = cluster.stream(0).empty(DType::F32, &[1 << 20]).expect_err("four times the budget");
    assert!(matches!(too_large, TensorError::Pool(PoolError::TooLarge { .. })), "{too_large}");
    drop(inbox.take());
    cluster.run_until_idle();
    drop(cluster.stream(0).empty(DType::F32, &[10 << 10]).expect("room again"));
    drop(kept);
    assert_eq!(cluster.leases(0), 0);
}

/// All of the budget that a pool has taken can be sent, to the last tensor: its chunks are few, and the node
/// knows each.
#[test]
fn the_last_tensor_of_a_budget_can_be_sent() {
    // After six chunks 20 MiB are left, which is less than the next chunk would be.
    let options = PoolOptions { budget: 83 << 20, first_chunk: 1 << 20 };
    let cluster = Cluster::with_pools(2, options);
    let (to_b, at_b) = cluster.inbox::<Tensor>(1, 4);
    cluster.connect();
    let mut tensors = Vec::new();
    let error = loop {
        match cluster.stream(0).zeros(DType::U8, &[16 << 10]) {
            Ok(tensor) => tensors.push(tensor.freeze()),
            Err(error) => break error,
        }
    };
    assert!(matches!(&error, TensorError::Pool(PoolError::Full { chunks, .. }) if *chunks <= 16), "{error}");
    cluster.run_node_until_idle();
    assert!(cluster.complaints().is_empty(), "{:?}", cluster.complaints());
    assert!(cluster.chunks_kept() <= 16, "{} chunks", cluster.chunks_kept());
    assert!(tensors.len() > (options.budget as usize >> 14) * 9 / 10, "{} tensors", tensors.len());
    for tensor in [tensors.swap_remove(0), tensors.pop().expect("many")] {
        cluster.send(0, &to_b, tensor);
        cluster.run_until_idle();
        assert_eq!(at_b.take_one().message.to_vec::<u8>().expect("data"), vec![0; 16 << 10]);
    }
}

/// A shutdown waits for a sender that waits for its first link to a process.
#[test]
fn who_waits_for_a_link_keeps_its_process_busy() {
    let cluster = Cluster::new(2);
    let (to, _inbox) = cluster.inbox::<u32>(1, 4);
    let waits = cluster.wait_in_line(0, &to);
    assert!(cluster.transport(0).is_busy());
    drop(waits);
    cluster.run_until_idle();
    assert!(!cluster.transport(0).is_busy());
}
