//! Asks and their replies. The tensors of a reply are leases like any others, even if nobody is left to take
//! them (LEASE-2).

use tensorpost_core::tensor::Tensor;
use tensorpost_core::testing::Cluster;
use tensorpost_core::transport::AskFailure;
use tensorpost_core::transport::inbox::Refusal;

fn numbers(cluster: &Cluster, process: usize) -> Tensor {
    cluster.stream(process).from_slice(&[4], &[1_f32, 2.0, 3.0, 4.0]).expect("memory").freeze()
}

fn assert_clean(cluster: &Cluster) {
    cluster.run_until_idle();
    for i in 0..2 {
        assert_eq!(cluster.leases(i), 0, "process {i}");
        assert!(!cluster.transport(i).is_busy(), "process {i}");
    }
}

#[test]
fn a_reply_brings_tensors() {
    let cluster = Cluster::new(2);
    let (to, inbox) = cluster.inbox::<Tensor>(1, 1);
    for _ in 0..3 {
        let asked = cluster.ask::<_, (Tensor, Tensor)>(0, &to, numbers(&cluster, 0));
        cluster.run_until_idle();
        let got = inbox.take_one();
        assert!(got.receipt.wants_reply() && asked.take().is_none());
        // The reply carries one tensor that came with the ask, and one of the receiver's own.
        got.receipt.reply((got.message, numbers(&cluster, 1)));
        cluster.run_until_idle();
        let (back, new) = asked.take().expect("it came").expect("a reply");
        assert_eq!(back.lease().owner(), cluster.process(0));
        assert_eq!(new.lease().owner(), cluster.process(1));
        assert_eq!(new.to_vec::<f32>().expect("data"), [1.0, 2.0, 3.0, 4.0]);
        drop((back, new));
        assert_clean(&cluster);
    }
}

#[test]
fn a_reply_that_nobody_waits_for_gives_its_leases_back() {
    let cluster = Cluster::new(2);
    let (to, inbox) = cluster.inbox::<u32>(1, 8);
    // One ask is given up before its reply is sent, and the other while its reply is on its way. A race may
    // go either way; both end the same.
    let early = cluster.ask::<_, Tensor>(0, &to, 1);
    let late = cluster.ask::<_, Tensor>(0, &to, 2);
    cluster.run_until_idle();
    early.give_up();
    for got in inbox.take() {
        got.receipt.reply(numbers(&cluster, 1));
    }
    late.give_up();
    assert_eq!(cluster.leases(1), 2);
    assert_clean(&cluster);
}

#[test]
fn a_reply_of_another_type_gives_its_leases_back() {
    let cluster = Cluster::new(2);
    let (to, inbox) = cluster.inbox::<u32>(1, 8);
    let asked = cluster.ask::<_, String>(0, &to, 1);
    cluster.run_until_idle();
    inbox.take_one().receipt.reply(numbers(&cluster, 1));
    cluster.run_until_idle();
    assert!(matches!(asked.take(), Some(Err(AskFailure::BadReply(_)))));
    assert_clean(&cluster);
}

#[test]
fn an_ask_always_ends() {
    let cluster = Cluster::new(2);
    let (to, inbox) = cluster.inbox::<u32>(1, 8);
    let ask = || cluster.ask::<_, Tensor>(0, &to, 1);
    let dropped = ask();
    cluster.run_until_idle();
    drop(inbox.take());
    cluster.run_until_idle();
    assert_eq!(dropped.take().map(Result::err), Some(Some(AskFailure::Refused(Refusal::NoReply))));

    let refused = ask();
    cluster.run_until_idle();
    inbox.take_one().receipt.refuse(&Refusal::BadReply("no".into()));
    cluster.run_until_idle();
    assert_eq!(
        refused.take().map(Result::err),
        Some(Some(AskFailure::Refused(Refusal::BadReply("no".into()))))
    );

    let malformed = cluster.ask::<_, Tensor>(0, &to.disguising(), "no number");
    cluster.run_until_idle();
    assert!(matches!(malformed.take(), Some(Err(AskFailure::Refused(Refusal::Undelivered(_))))));

    let (waiting, late) = (ask(), ask());
    cluster.run_until_idle();
    let in_the_mailbox = inbox.take();
    let unread = ask();
    cluster.transport(1).withdraw(to.location.index);
    cluster.run_until_idle();
    assert_eq!(unread.take().map(Result::err), Some(Some(AskFailure::Refused(Refusal::NoSuchActor))));
    assert!(waiting.take().is_none(), "it was delivered and can still be answered");
    drop(in_the_mailbox);
    cluster.run_until_idle();
    assert_eq!(waiting.take().map(Result::err), Some(Some(AskFailure::Refused(Refusal::NoReply))));
    assert_eq!(late.take().map(Result::err), Some(Some(AskFailure::Refused(Refusal::NoReply))));
    assert_clean(&cluster);
}

/// DEATH-2.
#[test]
fn an_ask_of_a_process_that_ends_fails() {
    let cluster = Cluster::new(2);
    let (to, inbox) = cluster.inbox::<Tensor>(1, 8);
    let (read, unread) = (
        cluster.ask::<_, Tensor>(0, &to, numbers(&cluster, 0)),
        cluster.ask::<_, Tensor>(0, &to, numbers(&cluster, 0)),
    );
    cluster.run_until_idle();
    let last = cluster.ask::<_, Tensor>(0, &to, numbers(&cluster, 0));
    cluster.end(1);
    // The survivors read the frames that the process had posted before its asks fail: a reply may be among
    // them.
    cluster.run_until_idle();
    for asked in [read, unread, last] {
        let failure = asked.take().expect("it ended").expect_err("without a reply");
        assert!(
            matches!(failure, AskFailure::ProcessExited(lost) if lost.process == cluster.process(1) && !lost.restarts)
        );
    }
    cluster.run_until_idle();
    assert_eq!(cluster.leases(0), 0);
    drop(inbox);
}

/// Replies that find no room in the ring wait in order, and their asks end.
#[test]
fn replies_to_a_process_that_does_not_read_wait_for_it() {
    let cluster = Cluster::new(2);
    let (to, inbox) = cluster.inbox::<u32>(1, 100);
    let asked: Vec<_> = (0..100).map(|n| cluster.ask::<_, (u32, Vec<u8>, Tensor)>(0, &to, n)).collect();
    cluster.poll(1);
    // Each reply has 40 kB, so a quarter of them fits.
    for got in inbox.take() {
        got.receipt.reply((got.message, vec![1_u8; 40_000], numbers(&cluster, 1)));
        cluster.poll(1);
    }
    assert!(cluster.transport(1).is_busy() && cluster.leases(1) == 100);
    cluster.run_until_idle();
    for (n, asked) in asked.into_iter().enumerate() {
        let (number, bytes, _tensor) = asked.take().expect("it came").expect("a reply");
        assert_eq!((number as usize, bytes.len()), (n, 40_000));
    }
    assert_clean(&cluster);
}

/// DEATH-2: the asker runs on another thread than the reader. The reader hears of the end when room was
/// claimed and nothing written.
#[test]
fn an_ask_that_is_written_after_its_receiver_was_given_up_fails() {
    let cluster = Cluster::new(2);
    let (to, _inbox) = cluster.inbox::<Tensor>(1, 8);
    cluster.connect();
    let prepared = cluster.prepare(0, &to, numbers(&cluster, 0));
    cluster.end(1);
    cluster.run_node_until_idle();
    while cluster.poll(0) {}
    let (prepared, asked) = prepared.expecting::<Tensor>();
    prepared.commit();
    assert!(
        matches!(asked.take(), Some(Err(AskFailure::ProcessExited(_)))),
        "it waits for a reply that never comes"
    );
}
