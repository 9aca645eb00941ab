//! The time at which an answer within the process is sent.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::LocalReceipt;
use crate::stream::turn::Turn;
use crate::testing::Cluster;
use crate::transport::inbox::LocalCredits;

/// An actor on another thread of the process has asked, and may pass the answer on at once. A kill after that
/// must not lose messages that the answering actor had sent before.
#[test]
fn an_answer_to_another_thread_does_not_overtake_what_its_handler_has_sent() {
    let cluster = Cluster::new(2);
    let (word, heard) = cluster.inbox::<u32>(1, 4);
    cluster.connect();
    // The first message comes with a check of the link, so the test sends one first.
    cluster.send(0, &word, 1);
    cluster.run_until_idle();
    heard.take_one();
    let receipt = || {
        let (answer, answered) = oneshot::channel();
        let credits = LocalCredits::new(1);
        assert!(credits.take());
        (LocalReceipt::new(credits, Arc::clone(cluster.transport(0)), Some(answer)), answered)
    };
    let (mut elsewhere, mut answered_elsewhere) =
        std::thread::scope(|threads| threads.spawn(receipt).join().expect("no panic"));
    let (mut here, mut answered_here) = receipt();
    let turn = Turn::begin();
    cluster.send(0, &word, 2);
    // No other code on this thread runs before the turn ends.
    here.answer(|_| Ok(7_u32));
    cluster.poll(1);
    assert!(heard.is_empty(), "it is put off to the end of the turn");
    elsewhere.answer(|_| Ok(8_u32));
    cluster.poll(1);
    assert_eq!(heard.take_one().message, 2, "a kill here would take along what is answered for");
    drop(turn);
    assert_eq!(answered_here.try_recv().expect("an answer").expect("a reply"), 7);
    assert_eq!(answered_elsewhere.try_recv().expect("an answer").expect("a reply"), 8);
}
