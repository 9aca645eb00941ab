//! The path of a lease through several processes. The tests check which processes are in the owner's lease
//! table at each step, and that every path ends with one release (LEASE-1, LEASE-2, LEASE-3).

use std::sync::{Arc, Mutex};

use serde::{Deserialize, Deserializer, Serialize};
use tensorpost_core::ids::{ActorId, ProcessId};
use tensorpost_core::limits::{MAX_INLINE_BODY, MAX_TENSORS};
use tensorpost_core::tensor::Tensor;
use tensorpost_core::testing::cluster::Shares;
use tensorpost_core::testing::{Cluster, Unsent};

fn numbers(cluster: &Cluster, process: usize, count: usize) -> Tensor {
    let elements: Vec<f32> = (0..count).map(|n| n as f32).collect();
    cluster.stream(process).from_slice(&[count], &elements).expect("memory").freeze()
}

fn shares(local: u32, holders: &[(ProcessId, u32)]) -> Option<Shares> {
    Some(Shares { local, holders: holders.to_vec() })
}

/// Checks that no memory is held anywhere, and that nothing was refused on the way.
fn assert_clean(cluster: &Cluster, processes: usize) {
    cluster.run_until_idle();
    for i in 0..processes {
        assert_eq!(cluster.leases(i), 0, "process {i}: {}", cluster.stream(i).pool().holders());
        assert_eq!(cluster.transport(i).stats().rejected, 0, "process {i}");
    }
    assert!(cluster.complaints().is_empty(), "{:?}", cluster.complaints());
}

#[test]
fn one_piece_of_memory_goes_round_three_processes() {
    let cluster = Cluster::new(3);
    let [(to_a, at_a), (to_b, at_b), (to_c, at_c)] = [0, 1, 2].map(|i| cluster.inbox::<Tensor>(i, 4));
    cluster.connect();
    let (b, c) = (cluster.process(1), cluster.process(2));
    let tensor = numbers(&cluster, 0, 100);
    let id = tensor.lease().id();
    let address = tensor.lease().address();
    assert_eq!(cluster.shares(0, id), shares(1, &[]));

    cluster.send(0, &to_b, tensor);
    // LEASE-1: the grant was in the lease table before the frame went out; the handle went with the message.
    assert_eq!(cluster.shares(0, id), shares(0, &[(b, 1)]));
    cluster.run_until_idle();
    let got = at_b.take_one();
    assert_eq!(got.message.lease().id(), id);
    cluster.send(1, &to_c, got.message);
    // The frame is on its way: the forwarder still holds it.
    assert_eq!(cluster.shares(0, id), shares(0, &[(b, 1)]));
    assert!(!cluster.poll(2), "C asks for the chunk first");
    cluster.run_node_until_idle();
    assert!(cluster.poll(2), "C takes the frame");
    cluster.poll(0);
    // LEASE-3: the next holder is in the lease table before the previous one lets go.
    assert_eq!(cluster.shares(0, id), shares(0, &[(b, 1), (c, 1)]));
    assert!(cluster.poll(1), "B sees that C has passed the frame");
    cluster.poll(0);
    assert_eq!(cluster.shares(0, id), shares(0, &[(c, 1)]));

    let got = at_c.take_one();
    cluster.send(2, &to_a, got.message);
    cluster.poll(0);
    assert_eq!(cluster.shares(0, id), shares(1, &[(c, 1)]));
    cluster.run_until_idle();
    assert_eq!(cluster.shares(0, id), shares(1, &[]));
    let got = at_a.take_one();
    assert_eq!((got.message.lease().id(), got.message.lease().address()), (id, address));
    assert_eq!(got.message.to_vec::<f32>().expect("data"), (0..100).map(|n| n as f32).collect::<Vec<_>>());
    drop(got);
    assert_eq!(cluster.shares(0, id), None);
    assert_clean(&cluster, 3);
}

type Work = Box<dyn FnOnce() + Send>;

/// The work that other processes do while a [`Meanwhile`] is decoded.
static MEANWHILE: Mutex<Option<Work>> = Mutex::new(None);

/// A message that takes long to decode, so that other processes act meanwhile.
#[derive(Serialize)]
struct Meanwhile(u8);

impl<'de> Deserialize<'de> for Meanwhile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let any = u8::deserialize(deserializer)?;
        let work = MEANWHILE.lock().expect("no panic").take();
        // The work runs on a thread of its own, so its sends do not wait for the end of the reader's turn.
        std::thread::spawn(move || work.map(|work| work())).join().expect("no panic");
        Ok(Meanwhile(any))
    }
}

/// LEASE-3 where a hold and the frame that follows from it come by two rings. C posts its hold on A's memory
/// after A has looked at C's returns. C's frame with that memory is there before A has looked at C's frames.
#[test]
fn what_comes_back_to_its_owner_is_known_from_a_hold_that_came_behind_the_look() {
    let cluster = Arc::new(Cluster::new(3));
    let (a, b, c) = (0, 1, 2);
    let (to_a, at_a) = cluster.inbox::<Tensor>(a, 4);
    let (to_wait, waited) = cluster.inbox::<Meanwhile>(a, 4);
    let [(to_b, at_b), (to_c, at_c)] = [b, c].map(|i| cluster.inbox::<Tensor>(i, 4));
    cluster.connect();
    let tensor = numbers(&cluster, a, 100);
    let id = tensor.lease().id();
    cluster.send(a, &to_b, tensor);
    cluster.run_until_idle();
    cluster.send(b, &to_c, at_b.take_one().message);
    assert!(!cluster.poll(c), "C asks for the chunk first");
    cluster.run_node_until_idle();
    assert_eq!(cluster.shares(a, id), shares(0, &[(cluster.process(b), 1)]));

    let theirs = Arc::clone(&cluster);
    *MEANWHILE.lock().expect("no panic") = Some(Box::new(move || {
        assert!(theirs.transport(c).poll(&mut Default::default()), "C takes the frame");
        theirs.send(c, &to_a, at_c.take_one().message);
    }));
    cluster.send(c, &to_wait, Meanwhile(0));
    assert!(cluster.poll(a), "A looks at C's returns, and then at its frames");
    assert_eq!(waited.take().len(), 1, "{:?}", waited.refused());
    let got = at_a.take_one();
    assert_eq!(got.message.lease().id(), id);
    assert_eq!(cluster.shares(a, id).map(|shares| shares.local), Some(1));
    drop(got);
    assert_clean(&cluster, 3);
}

/// LEASE-2: a release does not wake a sleeping owner, so a call that asks the owner for its metrics has it
/// look first.
#[test]
fn metrics_count_what_was_given_back_though_nobody_has_read() {
    let cluster = Cluster::new(2);
    let (to_b, at_b) = cluster.inbox::<Tensor>(1, 4);
    cluster.connect();
    cluster.send(0, &to_b, numbers(&cluster, 0, 1000));
    cluster.run_until_idle();
    let got = at_b.take_one();
    assert!(cluster.transport(0).metrics().bytes_in_flight >= 4000);
    drop(got);
    let metrics = cluster.transport(0).metrics();
    assert_eq!((metrics.bytes_in_flight, metrics.bytes_held), (0, 0));
    assert_clean(&cluster, 2);
}

#[test]
fn a_fan_out_to_eight_copies_nothing_and_ends_with_the_last() {
    let cluster = Cluster::new(9);
    let inboxes: Vec<_> = (1..9).map(|i| cluster.inbox::<Tensor>(i, 4)).collect();
    let tensor = numbers(&cluster, 0, 1000);
    let id = tensor.lease().id();
    for (to, _) in &inboxes {
        cluster.send(0, to, tensor.clone());
    }
    drop(tensor);
    cluster.run_until_idle();
    let all: Vec<_> = (1..9).map(|i| (cluster.process(i), 1)).collect();
    assert_eq!(cluster.shares(0, id), shares(0, &all));
    for i in 1..9 {
        assert_eq!(cluster.stream(i).pool().stats().chunk_bytes, 0, "no receiver took memory of its own");
    }
    for (done, (_, inbox)) in inboxes.iter().enumerate() {
        assert_eq!(cluster.shares(0, id), shares(0, &all[done..]));
        let got = inbox.take_one().message;
        assert_eq!(got.lease().id(), id);
        assert_eq!(got.slice(0, 999..).expect("in range").item::<f32>().expect("data"), 999.0);
        drop(got);
        cluster.run_until_idle();
    }
    assert_eq!(cluster.transport(0).stats().bytes_not_copied, 8 * 4000);
    assert_clean(&cluster, 9);
}

#[test]
fn an_owner_that_is_sent_its_own_memory_maps_nothing() {
    let cluster = Cluster::new(2);
    let [(to_a, at_a), (to_b, at_b)] = [0, 1].map(|i| cluster.inbox::<(Tensor, Tensor)>(i, 4));
    let tensor = numbers(&cluster, 0, 16);
    let address = tensor.lease().address();
    cluster.send(0, &to_b, (tensor.clone(), tensor));
    cluster.run_until_idle();
    cluster.send(1, &to_a, at_b.take_one().message);
    cluster.run_until_idle();
    let (left, right) = at_a.take_one().message;
    assert_eq!((left.lease().address(), right.lease().address()), (address, address));
    assert!(left.lease().pool().is_some(), "it is an own lease again");
    drop((left, right));
    assert_clean(&cluster, 2);
}

#[test]
fn tensors_on_one_lease_travel_as_one_lease() {
    let cluster = Cluster::new(2);
    let (to, inbox) = cluster.inbox::<Vec<Tensor>>(1, 4);
    let tensor = numbers(&cluster, 0, 12);
    let id = tensor.lease().id();
    let grid = tensor.view(&[3, 4]).expect("12 elements");
    let parts = vec![
        tensor.slice(0, 4..8).expect("in range"),
        grid.permute(&[1, 0]).expect("two axes"),
        grid.index(1, 3).expect("in range"),
        tensor.slice(0, 12..).expect("an empty slice"),
    ];
    cluster.send(0, &to, parts);
    drop((tensor, grid));
    assert_eq!(cluster.shares(0, id), shares(0, &[(cluster.process(1), 1)]));
    cluster.run_until_idle();
    let got = inbox.take_one().message;
    assert!(got.iter().all(|part| part.lease().same_as(got[0].lease())));
    let values: Vec<Vec<f32>> = got.iter().map(|part| part.to_vec().expect("data")).collect();
    assert_eq!(values[0], [4.0, 5.0, 6.0, 7.0]);
    assert_eq!(values[1], [0.0, 4.0, 8.0, 1.0, 5.0, 9.0, 2.0, 6.0, 10.0, 3.0, 7.0, 11.0]);
    assert_eq!(values[2], [3.0, 7.0, 11.0]);
    assert!(values[3].is_empty());
    // The remaining tensor keeps the lease of all.
    let last = got.into_iter().nth(2).expect("four");
    cluster.run_until_idle();
    assert_eq!(cluster.leases(0), 1);
    drop(last);
    assert_clean(&cluster, 2);
}

#[test]
fn the_same_tensor_sent_twice_is_two_leases() {
    let cluster = Cluster::new(2);
    let (to, inbox) = cluster.inbox::<Tensor>(1, 4);
    let tensor = numbers(&cluster, 0, 12);
    let id = tensor.lease().id();
    cluster.send(0, &to, tensor.clone());
    cluster.send(0, &to, tensor);
    cluster.run_until_idle();
    assert_eq!(cluster.shares(0, id), shares(0, &[(cluster.process(1), 2)]));
    let mut got = inbox.take();
    drop(got.pop());
    cluster.run_until_idle();
    assert_eq!(cluster.shares(0, id), shares(0, &[(cluster.process(1), 1)]));
    assert_eq!(got[0].message.to_vec::<f32>().expect("data").len(), 12);
    drop(got);
    assert_clean(&cluster, 2);
}

#[test]
fn nothing_travels_like_something() {
    let cluster = Cluster::new(3);
    let [(to_a, at_a), (to_b, at_b), (to_c, at_c)] = [0, 1, 2].map(|i| cluster.inbox::<Tensor>(i, 4));
    let nothing = cluster.stream(0).from_slice::<f32>(&[0, 7], &[]).expect("memory").freeze();
    cluster.send(0, &to_b, nothing);
    cluster.run_until_idle();
    cluster.send(1, &to_c, at_b.take_one().message);
    cluster.run_until_idle();
    cluster.send(2, &to_a, at_c.take_one().message);
    cluster.run_until_idle();
    let got = at_a.take_one().message;
    assert_eq!((got.shape(), got.len()), (&[0, 7][..], 0));
    drop(got);
    assert_clean(&cluster, 3);
}

#[test]
fn a_message_may_be_full_of_tensors() {
    let cluster = Cluster::new(2);
    let (to, inbox) = cluster.inbox::<Vec<Tensor>>(1, 4);
    let many: Vec<_> = (0..MAX_TENSORS).map(|_| numbers(&cluster, 0, 4)).collect();
    let too_many: Vec<_> = many.iter().chain(&many[..1]).cloned().collect();
    let (_, unsent) = cluster.try_send(0, &to, too_many).expect_err("one too many");
    assert!(matches!(&unsent, Unsent::Failed(why) if why.contains("512 tensors")), "{unsent:?}");
    cluster.send(0, &to, many);
    cluster.run_until_idle();
    assert_eq!(cluster.leases(0), MAX_TENSORS);
    assert_eq!(inbox.take_one().message.len(), MAX_TENSORS);
    assert_clean(&cluster, 2);
}

#[test]
fn a_large_body_travels_as_a_lease_that_comes_back() {
    let cluster = Cluster::new(2);
    let (to, inbox) = cluster.inbox::<(Vec<u8>, Tensor)>(1, 4);
    // A vector of numbers takes two bytes each from 128 on.
    for len in [MAX_INLINE_BODY - 100, MAX_INLINE_BODY + 1, 4 << 20] {
        let bytes: Vec<u8> = (0..len).map(|n| (n % 100) as u8).collect();
        cluster.send(0, &to, (bytes.clone(), numbers(&cluster, 0, 8)));
        let leases = 1 + usize::from(len > MAX_INLINE_BODY);
        assert_eq!(cluster.leases(0), leases, "{len} bytes");
        cluster.run_until_idle();
        let got = inbox.take_one();
        assert!(got.message.0 == bytes, "{len} bytes arrived as they were");
        // The body was copied out when it was decoded, so its lease is back while the message lives.
        assert_eq!(cluster.leases(0), 1, "{len} bytes");
        drop(got);
        cluster.run_until_idle();
        assert_eq!(cluster.leases(0), 0, "{len} bytes");
    }
    assert_clean(&cluster, 2);
}

/// LEASE-2 for a message that nobody opens.
#[test]
fn messages_to_a_withdrawn_mailbox_give_their_leases_back() {
    let cluster = Cluster::new(2);
    let (to, inbox) = cluster.inbox::<Tensor>(1, 8);
    for _ in 0..3 {
        cluster.send(0, &to, numbers(&cluster, 0, 8));
    }
    cluster.run_until_idle();
    for _ in 0..3 {
        cluster.send(0, &to, numbers(&cluster, 0, 8));
    }
    // Three messages are in the mailbox, and three are on their way.
    cluster.transport(1).withdraw(to.location.index);
    cluster.run_until_idle();
    assert_eq!(cluster.leases(0), 3, "those in the mailbox belong to whoever has it");
    drop(inbox);
    cluster.run_until_idle();
    assert_eq!(cluster.leases(0), 0);
    assert_eq!(cluster.transport(1).stats().dead_letters, 3);
    let (tensor, unsent) = cluster.try_send(0, &to, numbers(&cluster, 0, 8)).expect_err("nobody is there");
    assert_eq!(unsent, Unsent::NoSuchActor);
    drop(tensor);
    assert_clean(&cluster, 2);
}

#[test]
fn a_message_to_another_actor_in_the_same_place_is_a_dead_letter() {
    let cluster = Cluster::new(2);
    let (to, inbox) = cluster.inbox::<Tensor>(1, 2);
    let mut wrong = to;
    wrong.actor = ActorId(999);
    for _ in 0..5 {
        // MBX-2: the credit comes back, or the third message would find none.
        cluster.send(0, &wrong, numbers(&cluster, 0, 8));
        cluster.run_until_idle();
    }
    assert_eq!(cluster.transport(1).stats().dead_letters, 5);
    assert!(inbox.is_empty());
    cluster.send(0, &to, numbers(&cluster, 0, 8));
    cluster.run_until_idle();
    drop(inbox.take_one());
    assert_clean(&cluster, 2);
}

#[derive(Serialize)]
struct Sent {
    first: Tensor,
    text: String,
}

#[derive(Debug, Deserialize)]
struct Other {
    #[expect(dead_code, reason = "decoded, and dropped when the next field fails")]
    first: Tensor,
    #[expect(dead_code, reason = "never decoded")]
    text: Vec<u32>,
}

#[test]
fn a_body_of_another_type_gives_its_leases_back() {
    let cluster = Cluster::new(2);
    let (to, _inbox) = cluster.inbox::<Tensor>(1, 2);
    let (unknown, other) = cluster.inbox::<Other>(1, 2);
    for round in 1..=3 {
        let sent = Sent { first: numbers(&cluster, 0, 8), text: "text".into() };
        cluster.send(0, &to.of(), sent);
        cluster.run_until_idle();
        assert_eq!(cluster.transport(1).stats().dead_letters, round, "its key is not the mailbox's");
        assert_eq!(cluster.leases(0), 0);
    }
    // The key is right, and the body fails after its tensor was decoded.
    for round in 1..=3 {
        let sent = Sent { first: numbers(&cluster, 0, 8), text: "text".into() };
        cluster.send(0, &unknown.disguising(), sent);
        cluster.run_until_idle();
        assert_eq!((other.refused().len(), cluster.leases(0)), (round, 0), "{:?}", other.refused());
    }
    assert_clean(&cluster, 2);
}

/// LEASE-4, as far as the owner's side goes.
#[test]
fn the_leases_of_a_process_that_ended_are_dropped_by_their_owners() {
    let cluster = Cluster::new(3);
    let (to_b, at_b) = cluster.inbox::<Tensor>(1, 8);
    let (to_c, at_c) = cluster.inbox::<Tensor>(2, 8);
    for _ in 0..3 {
        cluster.send(0, &to_b, numbers(&cluster, 0, 8));
    }
    cluster.run_until_idle();
    // B forwards one tensor that C has not looked at, keeps two, and does not look at a fourth.
    let mut held = at_b.take();
    cluster.send(1, &to_c, held.remove(0).message);
    cluster.send(0, &to_b, numbers(&cluster, 0, 8));
    assert_eq!(cluster.leases(0), 4);
    cluster.end(1);
    cluster.run_until_idle();
    // The frame that B had sent is still read, and the next holder is in the lease table before B's leases go
    // (LEASE-3).
    let got = at_c.take_one();
    assert_eq!(cluster.shares(0, got.message.lease().id()), shares(0, &[(cluster.process(2), 1)]));
    assert_eq!(cluster.leases(0), 1, "{}", cluster.stream(0).pool().holders());
    drop(got);
    let (back, unsent) = cluster.try_send(0, &to_b, numbers(&cluster, 0, 8)).expect_err("it has ended");
    assert_eq!(unsent, Unsent::Exited);
    drop(back);
    assert!(at_c.is_empty());
    assert_clean(&cluster, 1);
}

/// LEASE-3: a lease that was forwarded to a process that ended before it looked goes back to its owner.
#[test]
fn what_was_on_its_way_to_a_process_that_ended_goes_back() {
    let cluster = Cluster::new(3);
    let [(to_b, at_b), (to_c, at_c)] = [1, 2].map(|i| cluster.inbox::<Tensor>(i, 8));
    cluster.connect();
    let tensor = numbers(&cluster, 0, 8);
    let id = tensor.lease().id();
    cluster.send(0, &to_b, tensor);
    cluster.run_until_idle();
    cluster.send(1, &to_c, at_b.take_one().message);
    cluster.end(2);
    cluster.run_until_idle();
    assert_eq!(cluster.shares(0, id), None, "{}", cluster.stream(0).pool().holders());
    drop(at_c);
    assert_clean(&cluster, 2);
}

/// LEASE-4: a sender reserves what its frame needs, the receiver dies and is reclaimed, and only then does
/// the sender grant it a lease.
#[test]
fn a_lease_that_is_granted_after_the_reclaim_is_dropped() {
    let cluster = Cluster::new(2);
    let (to, _inbox) = cluster.inbox::<Tensor>(1, 4);
    cluster.connect();
    let tensor = numbers(&cluster, 0, 8);
    let id = tensor.lease().id();
    let prepared = cluster.prepare(0, &to, tensor);
    cluster.end(1);
    cluster.run_until_idle();
    prepared.commit();
    cluster.run_until_idle();
    assert_eq!(cluster.shares(0, id), None, "{}", cluster.stream(0).pool().holders());
    assert_clean(&cluster, 1);
}

/// LEASE-4: the owner's next life has never heard that its last one ended.
#[test]
fn memory_of_an_earlier_life_is_good_in_the_next() {
    let mut cluster = Cluster::new(2);
    let (to_node, at_node) = cluster.inbox::<Tensor>(0, 8);
    cluster.send(1, &to_node, numbers(&cluster, 1, 5));
    cluster.run_until_idle();
    let kept = at_node.take_one().message;
    assert_eq!(kept.to_vec::<f32>().expect("data").len(), 5);
    cluster.end(1);
    cluster.run_until_idle();
    let again = cluster.revive(1);
    let (to_again, at_again) = cluster.inbox::<Tensor>(again, 8);
    cluster.send(0, &to_again, kept);
    cluster.run_until_idle();
    let got = at_again.take_one();
    assert_eq!(got.message.to_vec::<f32>().expect("data"), [0.0, 1.0, 2.0, 3.0, 4.0]);
    drop(got);
    assert_clean(&cluster, 1);
    assert_eq!(cluster.transport(again).stats().rejected, 0);
    assert_eq!(cluster.chunks_mapped(again), 0, "it is unmapped with the last lease");
}

/// LEASE-4: a process that joined after the owner had ended knows only the owner's next life, by a link.
#[test]
fn memory_of_an_earlier_life_is_good_for_who_joined_after_it() {
    let mut cluster = Cluster::new(3);
    let (to_a, at_a) = cluster.inbox::<Tensor>(0, 8);
    cluster.send(1, &to_a, numbers(&cluster, 1, 5));
    cluster.run_until_idle();
    let kept = at_a.take_one().message;
    assert_eq!(kept.to_vec::<f32>().expect("data").len(), 5);
    for ended in [1, 2] {
        cluster.end(ended);
        cluster.run_until_idle();
    }
    let [again, young] = [1, 2].map(|i| cluster.revive(i));
    let (to_young, at_young) = cluster.inbox::<Tensor>(young, 8);
    cluster.send(again, &to_young, numbers(&cluster, again, 1));
    cluster.run_until_idle();
    drop(at_young.take_one());
    cluster.send(0, &to_young, kept);
    cluster.run_until_idle();
    let got = at_young.take_one();
    assert_eq!(got.message.to_vec::<f32>().expect("data"), [0.0, 1.0, 2.0, 3.0, 4.0]);
    drop(got);
    assert_clean(&cluster, 1);
    assert_eq!(cluster.transport(young).stats().rejected, 0);
}

#[test]
fn memory_outlives_its_owner() {
    let cluster = Cluster::new(2);
    let (to, inbox) = cluster.inbox::<Tensor>(1, 8);
    cluster.send(0, &to, numbers(&cluster, 0, 5));
    cluster.run_until_idle();
    cluster.end(0);
    cluster.run_until_idle();
    let got = inbox.take_one();
    assert_eq!(got.message.to_vec::<f32>().expect("data"), [0.0, 1.0, 2.0, 3.0, 4.0]);
    drop(got);
    assert_clean(&cluster, 0);
}
