//! Sleeping readers, each in its own task: no reader stays asleep while somebody waits for it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tensorpost_core::lease::PoolOptions;
use tensorpost_core::limits::{MAX_FORWARDED, MAX_TENSORS, RETURN_BACKLOG};
use tensorpost_core::tensor::{DType, Tensor};
use tensorpost_core::testing::Cluster;
use tensorpost_core::transport::AskFailure;

/// Longer than anything here takes, and shorter than a person waits for a test.
const WAIT_FOR_READER: Duration = Duration::from_secs(10);

/// Runs `test` beside the readers of all processes.
fn with_readers(cluster: &Cluster, processes: usize, test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let readers: Vec<_> =
            (0..processes).map(|i| tokio::spawn(Arc::clone(cluster.transport(i)).run())).collect();
        test.await;
        for (i, reader) in readers.into_iter().enumerate() {
            cluster.transport(i).stop();
            reader.await.expect("it does not panic").expect("it reads");
        }
    });
}

async fn until(what: &str, mut happens: impl FnMut() -> bool) {
    let deadline = Instant::now() + WAIT_FOR_READER;
    while !happens() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        // Long enough for every reader to end its spin and go to sleep.
        tokio::time::sleep(Duration::from_micros(200)).await;
    }
}

fn batch(cluster: &Cluster) -> Vec<Tensor> {
    (0..MAX_TENSORS).map(|_| cluster.stream(0).zeros(DType::U8, &[1]).expect("memory").freeze()).collect()
}

#[test]
fn a_sleeping_reader_is_woken_by_a_frame() {
    let cluster = Cluster::new(2);
    let (to, inbox) = cluster.inbox::<u32>(1, 8);
    cluster.connect();
    with_readers(&cluster, 2, async {
        for n in 0..20 {
            tokio::time::sleep(Duration::from_millis(2)).await;
            cluster.send(0, &to, n);
            until("the message", || !inbox.is_empty()).await;
            assert_eq!(inbox.take_one().message, n);
        }
    });
}

/// DEATH-1: a node kills its workers and is dropped while a thread of the program waits for a reply.
#[test]
fn an_ask_of_a_dead_process_ends_although_nobody_reads_any_more() {
    let cluster = Cluster::new(2);
    let (to, _inbox) = cluster.inbox::<u32>(1, 8);
    let asked = cluster.ask::<_, u32>(0, &to, 1);
    cluster.run_until_idle();
    cluster.end(1);
    cluster.transport(0).stop();
    with_readers(&cluster, 1, async {});
    let failure = asked.take().expect("it ended").expect_err("without a reply");
    assert!(matches!(failure, AskFailure::ProcessExited(lost) if lost.process == cluster.process(1)));
}

/// An owner need not wake up for entries that others post to it, until they run out of room.
#[test]
fn a_sleeping_owner_reads_before_its_peers_run_out_of_room() {
    let cluster = Cluster::new(3);
    let (to_b, at_b) = cluster.inbox::<Vec<Tensor>>(1, 8);
    let (to_c, at_c) = cluster.inbox::<Vec<Tensor>>(2, 8);
    cluster.connect();
    cluster.send(0, &to_b, batch(&cluster));
    cluster.run_until_idle();
    let tensors = at_b.take_one().message;
    with_readers(&cluster, 3, async {
        // In each round C posts a hold and a release of every tensor into its return ring to A.
        for round in 0..MAX_FORWARDED / (2 * MAX_TENSORS) + 8 {
            until("a credit", || cluster.try_send(1, &to_c, tensors.clone()).is_ok()).await;
            until(&format!("the tensors of round {round}"), || !at_c.is_empty()).await;
            // A goes to sleep. The holds and releases come while nobody there looks.
            tokio::time::sleep(Duration::from_millis(5)).await;
            drop(at_c.take());
        }
        drop(tensors);
    });
    cluster.run_until_idle();
    assert_eq!(cluster.leases(0), 0);
    // A reads long before that, so the entries touch no more memory.
    let touched = cluster.ring_bytes(2, 0);
    assert!(touched < 2 * RETURN_BACKLOG * 64, "{touched} bytes");
}

/// A forwarder keeps its own lease until the receiver has passed the frame. It must not sleep through that,
/// even if another of its threads sent the frame: somebody may wait for the memory.
#[test]
fn a_sleeping_forwarder_lets_go() {
    let cluster = Cluster::with_pools(3, PoolOptions { budget: 64 << 10, first_chunk: 64 << 10 });
    let (to_b, at_b) = cluster.inbox::<Tensor>(1, 8);
    let (to_c, at_c) = cluster.inbox::<Tensor>(2, 8);
    cluster.connect();
    with_readers(&cluster, 3, async {
        for round in 0..5 {
            let all = cluster.stream(0).empty(DType::U8, &[64 << 10]).expect("the whole pool").freeze();
            cluster.send(0, &to_b, all);
            until("the tensor at B", || !at_b.is_empty()).await;
            let tensor = at_b.take_one().message;
            tokio::time::sleep(Duration::from_millis(5)).await;
            cluster.send(1, &to_c, tensor);
            until("the tensor at C", || !at_c.is_empty()).await;
            drop(at_c.take());
            let next = cluster.stream(0).empty_when_free(DType::U8, &[64 << 10]);
            let next = tokio::time::timeout(WAIT_FOR_READER, next).await;
            drop(next.unwrap_or_else(|_| panic!("round {round}: {}", cluster.stream(0).pool().holders())));
        }
    });
}

/// A process that waits for memory is woken when a holder in another process lets go.
#[test]
fn a_pool_that_is_waited_for_is_woken_by_a_release() {
    let cluster = Cluster::with_pools(2, PoolOptions { budget: 64 << 10, first_chunk: 64 << 10 });
    let (to, inbox) = cluster.inbox::<Tensor>(1, 8);
    cluster.connect();
    with_readers(&cluster, 2, async {
        for _ in 0..10 {
            let all = cluster.stream(0).empty(DType::U8, &[64 << 10]).expect("the whole pool").freeze();
            cluster.send(0, &to, all);
            until("the tensor", || !inbox.is_empty()).await;
            let next = cluster.stream(0).empty_when_free(DType::U8, &[64 << 10]);
            let release = async {
                tokio::time::sleep(Duration::from_millis(2)).await;
                drop(inbox.take());
            };
            let (next, ()) = tokio::time::timeout(WAIT_FOR_READER, async { tokio::join!(next, release) })
                .await
                .expect("woken in time");
            drop(next.expect("the whole pool again"));
        }
    });
}

/// Lets the readers go on until process `i` sleeps.
async fn until_asleep(cluster: &Cluster, i: usize) {
    let deadline = Instant::now() + WAIT_FOR_READER;
    while !cluster.sleeps(i) {
        assert!(Instant::now() < deadline, "process {i} never goes to sleep");
        tokio::task::yield_now().await;
    }
}

/// The receiver puts off the doorbell for a credit because most of the mailbox is under way. That credit is
/// the last one for a while: the receiver has nothing else to do, and its reader sleeps already. Then the
/// doorbell rings, so nobody waits for the next message in vain.
#[test]
fn deferred_credits_are_rung_for_when_the_receiver_is_idle() {
    const CAPACITY: u32 = 8;
    let cluster = Cluster::new(2);
    let (to, inbox) = cluster.inbox::<u32>(1, CAPACITY);
    cluster.connect();
    let mut deferred = 0;
    with_readers(&cluster, 2, async {
        let fill = || while cluster.try_send(0, &to, 0).is_ok() {};
        let mut at_hand = Vec::new();
        for round in 0..500 {
            fill();
            let waiter = cluster.wait_in_line(0, &to);
            waiter.wait();
            until("the messages", || {
                at_hand.extend(inbox.take());
                at_hand.len() == CAPACITY as usize
            })
            .await;
            // The sender hears of the first credit, because it has heard nothing for long. Another message
            // takes its place.
            drop(at_hand.pop());
            until("the first credit", || cluster.try_send(0, &to, 0).is_ok()).await;
            drop(waiter);
            let waiter = cluster.wait_in_line(0, &to);
            waiter.wait();
            // That rang the sender's own doorbell, which it may not have heard yet.
            for _ in 0..50 {
                tokio::task::yield_now().await;
            }
            until_asleep(&cluster, 0).await;
            until_asleep(&cluster, 1).await;
            // A change from before this point, such as that of the receiver's cursor, must not be what wakes
            // the waiter.
            waiter.remember();
            let before = waiter.wakes();
            // The sender does not hear of the second credit, unless the machine was so slow that a
            // millisecond has passed.
            drop(at_hand.pop());
            deferred += u32::from(cluster.has_deferred(1));
            until(&format!("the second credit of round {round}"), || waiter.wakes() > before).await;
            until("its place", || cluster.try_send(0, &to, 0).is_ok()).await;
            if deferred == 20 {
                break;
            }
        }
        drop(at_hand);
    });
    assert!(deferred > 0, "no wake-up was deferred in 500 rounds: this machine is too slow for this test");
}

/// Mailboxes of all small sizes, whose senders are woken only by their reader.
#[test]
fn senders_of_any_mailbox_come_through() {
    for capacity in 1..=9 {
        let cluster = Cluster::new(2);
        let (to, inbox) = cluster.inbox::<u32>(1, capacity);
        cluster.connect();
        with_readers(&cluster, 2, async {
            let send = async {
                for n in 0..2000 {
                    let mut waiter = None;
                    let deadline = Instant::now() + WAIT_FOR_READER;
                    while cluster.try_send(0, &to, n).is_err() {
                        let waiter = waiter.get_or_insert_with(|| cluster.wait_in_line(0, &to));
                        let before = waiter.wakes();
                        waiter.wait();
                        if cluster.try_send(0, &to, n).is_ok() {
                            break;
                        }
                        while waiter.wakes() == before {
                            assert!(
                                Instant::now() < deadline,
                                "message {n} to a mailbox of {capacity} waits in vain"
                            );
                            tokio::task::yield_now().await;
                        }
                    }
                }
            };
            let take = async {
                let mut next = 0;
                while next < 2000 {
                    for received in inbox.take() {
                        assert_eq!(received.message, next);
                        next += 1;
                    }
                    if next % 64 == 0 {
                        tokio::time::sleep(Duration::from_micros(100)).await;
                    }
                    tokio::task::yield_now().await;
                }
            };
            tokio::join!(send, take);
        });
    }
}

/// One look takes a limited number of a process's frames and then turns to other processes. The next look
/// takes the rest, even if nothing more comes.
#[test]
fn what_a_look_leaves_is_taken_by_the_next() {
    const MANY: u32 = 1000;
    let cluster = Cluster::new(2);
    cluster.connect();
    let (to, inbox) = cluster.inbox::<u32>(1, MANY);
    for number in 0..MANY {
        cluster.send(0, &to, number);
    }
    assert!(cluster.poll(1));
    let first = inbox.take().len();
    assert!(first < MANY as usize, "one look took all: {first}");
    while cluster.poll(1) {}
    assert_eq!(first + inbox.take().len(), MANY as usize);
}

/// A forwarder keeps its own lease until the receiver has passed the frame (LEASE-3). It notices that also
/// while other links keep it busy: the owner may wait for the memory.
#[test]
fn a_busy_forwarder_lets_go() {
    let cluster = Cluster::new(3);
    let (to_b, at_b) = cluster.inbox::<Tensor>(1, 8);
    let (to_c, at_c) = cluster.inbox::<Tensor>(2, 8);
    cluster.connect();
    let tensor = cluster.stream(0).zeros(DType::U8, &[1]).expect("memory").freeze();
    let id = tensor.lease().id();
    cluster.send(0, &to_b, tensor);
    cluster.run_until_idle();
    cluster.send(1, &to_c, at_b.take_one().message);
    let b = cluster.process(1);
    let b_holds = || {
        while cluster.poll(0) {}
        cluster.shares(0, id).expect("somebody has it").holders.iter().any(|(holder, _)| *holder == b)
    };
    cluster.glance(1);
    assert!(b_holds(), "the frame is not passed yet");
    while at_c.is_empty() {
        // C asks the node for the owner's memory.
        cluster.glance(2);
        cluster.run_node_until_idle();
    }
    cluster.glance(1);
    assert!(!b_holds());
    drop(at_c.take());
    cluster.run_until_idle();
    assert_eq!(cluster.leases(0), 0);
}
