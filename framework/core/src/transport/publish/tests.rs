//! Tests the order in which a turn's end publishes the entries of the turn.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use tensorpost_derive::GpuMessage;

use crate::stream::turn::Turn;
use crate::tensor::Tensor;
use crate::testing::{Cluster, Received, Target, TestInbox};
use crate::transport::link::Link;
use crate::transport::wake_reasons;

/// How long an expected event may take, and how long an unexpected one must stay out.
const LIMIT: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(100);

/// The last process holds memory of the one before it, and is about to drop it and to send a word to process
/// 0.
struct Scene {
    cluster: Cluster,
    holder: usize,
    owner: usize,
    /// The holder's link to the owner.
    link: Arc<Link>,
    word: Target<u32>,
    heard: Arc<TestInbox<u32>>,
}

impl Scene {
    /// Makes a scene of this many processes, and returns the holder's tensor with it.
    fn of(processes: usize) -> (Self, Received<Tensor>) {
        let cluster = Cluster::new(processes);
        let (holder, owner) = (processes - 1, processes - 2);
        let (to_holder, at_holder) = cluster.inbox::<Tensor>(holder, 4);
        // With three, the link to process 0 is the first in the order of links.
        let (word, heard) = cluster.inbox::<u32>(0, 4);
        cluster.connect();
        let tensor = cluster.stream(owner).from_slice(&[4], &[1_u32, 2, 3, 4]).expect("memory").freeze();
        cluster.send(owner, &to_holder, tensor);
        cluster.run_until_idle();
        let held = at_holder.take_one();
        cluster.run_until_idle();
        let link = cluster.transport(holder).link(cluster.process(owner)).expect("connected");
        (Scene { cluster, holder, owner, link, word, heard }, held)
    }

    fn send(&self) {
        self.cluster.send(self.holder, &self.word, 1);
    }

    /// Drops and sends in one turn of the holder, on a thread of its own. The turn ends after `stop` has
    /// taken a lock that its end needs, and `look` has to release that lock.
    fn end_turn<'a, S>(
        &'a self,
        held: Received<Tensor>,
        stop: impl FnOnce(&'a Link) -> S,
        look: impl FnOnce(S),
    ) {
        let (sent, ready) = channel();
        let (go, wait) = channel::<()>();
        std::thread::scope(|threads| {
            threads.spawn(move || {
                let turn = Turn::begin();
                drop(held);
                self.send();
                sent.send(()).expect("the test waits");
                wait.recv().expect("the test goes on");
                drop(turn);
            });
            ready.recv().expect("it sends");
            let stopped = stop(&self.link);
            go.send(()).expect("it waits");
            look(stopped);
        });
    }
}

/// The frame would say that the tensor is dropped. Here the end of the turn is stopped before it publishes
/// frames.
#[test]
fn a_drop_is_to_be_seen_before_a_frame_that_was_sent_after_it() {
    let (scene, held) = Scene::of(2);
    scene.end_turn(held, Link::hold_frames, |frames| {
        let until = Instant::now() + LIMIT;
        while scene.cluster.leases(scene.owner) > 0 && Instant::now() < until {
            scene.cluster.poll(scene.owner);
        }
        assert_eq!(scene.cluster.leases(scene.owner), 0, "the drop waits for the frame");
        assert!(scene.heard.is_empty());
        drop(frames);
    });
    scene.cluster.run_until_idle();
    assert_eq!(scene.heard.take_one().message, 1);
}

/// The receiver may tell the owner, a third process. Here the end of the turn is stopped before it publishes
/// the drop.
#[test]
fn a_drop_is_to_be_seen_before_a_frame_to_another() {
    let (scene, held) = Scene::of(3);
    scene.end_turn(held, Link::hold_notices, |notices| {
        let until = Instant::now() + LOOK;
        while Instant::now() < until {
            scene.cluster.poll(0);
            assert!(scene.heard.is_empty(), "the frame has overtaken the drop");
        }
        drop(notices);
    });
    scene.cluster.run_until_idle();
    assert_eq!(scene.heard.take_one().message, 1);
    assert_eq!(scene.cluster.leases(scene.owner), 0);
}

/// Another thread has taken the mark of the drop, and is stopped before it publishes the drop.
#[test]
fn a_drop_whose_mark_another_has_taken_is_to_be_seen_before_a_frame_too() {
    let (scene, held) = Scene::of(2);
    let turn = Turn::begin();
    drop(held);
    assert_ne!(scene.link.take_due(), 0);
    scene.send();
    drop(turn);
    scene.cluster.poll(scene.owner);
    assert_eq!(scene.heard.take_one().message, 1);
    assert_eq!(scene.cluster.leases(scene.owner), 0, "the frame has overtaken the drop");
}

/// The asker forgets its request when it has the answer, even if the answering process is killed before it
/// publishes the rest.
#[test]
fn an_answer_does_not_overtake_what_its_handler_has_sent_to_others() {
    let cluster = Cluster::new(3);
    let (question, asked) = cluster.inbox::<u32>(2, 4);
    let (word, heard) = cluster.inbox::<u32>(1, 4);
    cluster.connect();
    let answer = cluster.ask::<_, u32>(0, &question, 7);
    cluster.run_until_idle();
    let asked = asked.take_one();
    // The first word also takes a lookup of the link, so it is sent before the turn begins.
    cluster.send(2, &word, 1);
    cluster.run_until_idle();
    heard.take_one();
    let turn = Turn::begin();
    cluster.send(2, &word, 2);
    cluster.poll(1);
    assert!(heard.is_empty(), "it is put off");
    asked.receipt.reply(8_u32);
    cluster.poll(1);
    assert_eq!(heard.take_one().message, 2, "a kill here would take along what is answered for");
    drop(turn);
    cluster.run_until_idle();
    assert_eq!(answer.take().expect("an answer").expect("a reply"), 8);
}

/// Another thread has taken the mark of the word, and is stopped before it publishes the word. It may be
/// stopped until the process is killed.
#[test]
fn an_answer_does_not_overtake_a_message_whose_mark_another_has_taken() {
    let cluster = Cluster::new(3);
    let (question, asked) = cluster.inbox::<u32>(2, 4);
    let (word, heard) = cluster.inbox::<u32>(1, 4);
    cluster.connect();
    let answer = cluster.ask::<_, u32>(0, &question, 7);
    cluster.run_until_idle();
    let asked = asked.take_one();
    cluster.send(2, &word, 1);
    cluster.run_until_idle();
    heard.take_one();
    let link = cluster.transport(2).link(cluster.process(1)).expect("connected");
    let turn = Turn::begin();
    cluster.send(2, &word, 2);
    assert_ne!(link.take_due(), 0);
    asked.receipt.reply(8_u32);
    cluster.poll(1);
    assert_eq!(heard.take_one().message, 2, "a kill here would take along what is answered for");
    drop(turn);
    cluster.run_until_idle();
    assert_eq!(answer.take().expect("an answer").expect("a reply"), 8);
}

/// One thread publishes the frames of others too, and those may tell of drops.
#[test]
fn a_frame_that_another_thread_publishes_does_not_overtake_a_drop() {
    let (scene, held) = Scene::of(3);
    let turn = Turn::begin();
    drop(held);
    scene.send();
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let turn = Turn::begin();
            scene.send();
            let transport = scene.cluster.transport(scene.holder);
            let to_word = transport.link(scene.cluster.process(0)).expect("connected");
            transport.publish_if_due(&to_word);
            assert_ne!(scene.link.take_due(), 0, "nobody has published for the drop's own mark");
            drop(turn);
        });
    });
    scene.cluster.poll(0);
    assert_eq!(scene.heard.take().len(), 2, "the frames of both are to be seen");
    scene.cluster.poll(scene.owner);
    assert_eq!(scene.cluster.leases(scene.owner), 0, "the first frame has overtaken the drop");
    drop(turn);
}

/// A message that has only a body.
#[derive(serde::Serialize, serde::Deserialize, GpuMessage)]
#[gpu_message(crate = crate)]
struct Said(u32);

/// It is published as it is written, and is so small that it needs no turn. But a drop on another thread may
/// be the reason why it is sent.
#[test]
fn a_drop_on_another_thread_is_to_be_seen_before_a_frame_that_is_sent_outside_of_a_turn() {
    let (scene, held) = Scene::of(2);
    let (to, said) = scene.cluster.inbox::<Said>(scene.owner, 4);
    let address = scene.cluster.address(scene.holder, &to).with_key(to.key);
    let (dropped, is_dropped) = channel();
    let (go, wait) = channel::<()>();
    let (is_sent, leases) = std::thread::scope(|threads| {
        threads.spawn(move || {
            let turn = Turn::begin();
            drop(held);
            dropped.send(()).expect("the test waits");
            wait.recv().expect("the test goes on");
            drop(turn);
        });
        is_dropped.recv().expect("it drops");
        let is_sent = address.try_send(Said(7)).is_ok();
        scene.cluster.poll(scene.owner);
        let leases = scene.cluster.leases(scene.owner);
        go.send(()).expect("it waits");
        (is_sent, leases)
    });
    assert!(is_sent);
    assert_eq!((said.take_one().message.0, leases), (7, 0), "the frame has overtaken the drop");
}

/// A turn's end finds due entries without a search of all links, and counts none twice, even if a link with a
/// mark on it is removed.
#[test]
fn what_is_due_is_counted() {
    let cluster = Cluster::new(4);
    let inboxes: Vec<_> = (1..4).map(|i| cluster.inbox::<u32>(i, 8)).collect();
    cluster.connect();
    let links = &cluster.transport(0).links;
    assert_eq!(links.count_due(), 0);
    let together = Turn::begin();
    for _ in 0..2 {
        inboxes.iter().for_each(|(to, _)| cluster.send(0, to, 7));
    }
    assert_eq!(links.count_due(), 3);
    drop(together);
    assert_eq!(links.count_due(), 0);
    cluster.run_until_idle();
    assert!(inboxes.iter().all(|(_, inbox)| inbox.len() == 2));
    let link = links.to(cluster.process(2)).expect("it is there");
    link.note_due(wake_reasons::ROOM);
    link.note_due(wake_reasons::CREDIT);
    assert_eq!(links.count_due(), 1);
    links.remove(&link);
    drop(link);
    assert_eq!(links.count_due(), 0);
}

/// A turn's end takes marks that are set while it searches. It must not stop after as many marks as there
/// were before, or its own would be left over and nobody would publish them.
#[test]
fn nothing_is_left_where_others_mark_meanwhile() {
    let cluster = Cluster::new(4);
    cluster.connect();
    let transport = cluster.transport(0);
    let turns = &|peer: usize| {
        let link = transport.links.to(cluster.process(peer)).expect("it is there");
        for number in 0..50_000 {
            link.note_due(wake_reasons::ROOM);
            transport.links.with_all(|links| transport.publish_all(links));
            assert_eq!(link.take_due(), 0, "turn {number} to process {peer}");
        }
    };
    std::thread::scope(|threads| {
        for peer in 1..4 {
            threads.spawn(move || turns(peer));
        }
    });
    assert_eq!(transport.links.count_due(), 0);
}
