//! The end of a host, in order and not.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};
use tensorpost::actor::{AskFailure, EndReason, Refusal, SendFailure};
use tensorpost::node::WorkerState;
use tensorpost::prelude::*;
use tensorpost_core::os::PidFd;
use tensorpost_tests::cases;
use tensorpost_tests::harness::{Builder, Case};
use tensorpost_tests::wait::{ask, deliver, numbers, stop, until, until_free};

use crate::actors::{Bounce, Count, Echo, Echoer, Gatekeeper, Hold, Item, Never, PassOn};
use crate::roaming::{Roamer, is_on};
use crate::{Other, find, head};

fn the_end_of_the_head_ends_the_others(builder: Builder) {
    let node = head(builder);
    let mut other = Other::start(&node);
    let echo = find::<Echo>(&node, "echo");
    ask(&node, &echo, Echo::empty());
    assert!(node.shutdown(Duration::from_secs(10)).expect("a report").is_clean());
    other.ends();
}

/// All hosts drain together: at no moment is anything queued or running on both.
fn what_is_under_way_between_hosts_outlives_a_shutdown(builder: Builder) {
    let node = head(builder);
    let mut others = [Other::serving(&node), Other::serving(&node)];
    let hosts = node.hosts().expect("hosts");
    let there = [1, 2].map(|at| node.spawn::<Echoer>(()).on(&hosts[at]).start().expect("an actor there"));
    let here = node.spawn::<Echoer>(()).start().expect("an actor here");
    let (last, mut items) = node.channel::<Item>().expect("a channel");
    // Messages go between the two agents, and between one of them and the head.
    for [first, second] in [[&there[0], &there[1]], [&here, &there[1]]] {
        let (next, after) = (second.address(), first.address());
        let bounce = Bounce { left: 21, next, after, last: last.clone() };
        deliver(&node, &first.address(), bounce);
    }
    let taking = std::thread::spawn(move || {
        let mut count = 0;
        while items.blocking_recv().is_ok() {
            count += 1;
        }
        count
    });
    drop((there, here, last));
    assert!(node.shutdown(Duration::from_secs(20)).expect("a report").is_clean());
    others.iter_mut().for_each(Other::ends);
    drop(node);
    assert_eq!(taking.join().expect("it ended"), 2, "lost on the way");
}

/// HOST-10: the agent says nothing to the head, and can end nobody. Its workers have ended by themselves
/// before the head's verdict, 5 s later, and items that they had sent stay where they are.
fn workers_of_an_agent_that_stands_still_end_by_themselves(builder: Builder) {
    /// They end 10 s after the last beat that was answered; the rest is for processes that end slowly on a
    /// busy machine.
    const BOUND: Duration = Duration::from_secs(13);

    let node = head(builder);
    let stopped = Other::start(&node);
    // An actor of the first host goes on here.
    let goes_on_there = Other::serving(&node);
    let hosts = node.hosts().expect("hosts");
    let placed = node.spawn::<Echoer>(()).on(&hosts[1]).restart(Restart::on_failure(3));
    let placed = placed.start().expect("an actor there");
    let policy = Restart::on_failure(3).on_other_hosts();
    let roams = node.spawn::<Echoer>(()).on(&hosts[1]).name("roams").restart(policy).start();
    let roams = roams.expect("an actor there");
    let here = node.spawn::<Echoer>(()).start().expect("an actor here");
    let (echo, again) = (find::<Echo>(&node, "echo"), find::<Echo>(&node, "again"));
    let workers = [&echo, &again, &placed.address(), &roams.address()]
        .map(|address| PidFd::open(ask(&node, address, Echo::empty()).pid).expect("a process"));
    let (to, mut items) = node.channel::<Item>().expect("a channel");
    deliver(&node, &find::<PassOn>(&node, "echo"), PassOn { to, items: u32::MAX });
    let came = Arc::new(AtomicU64::new(0));
    let coming = Arc::clone(&came);
    let taking = std::thread::spawn(move || {
        while items.blocking_recv().is_ok() {
            coming.fetch_add(1, Relaxed);
        }
    });
    until("items come", || came.load(Relaxed) > 100);
    let (mut watch, mut goes_on) = (node.watch(&echo), node.watch(&roams.address::<Echo>()));
    let mut never = roams.ask(Never);
    node.block_on(never.accepted()).expect("it is accepted");
    let gateway = stopped.gateway();
    stopped.stop();
    kill_process(gateway, Signal::STOP).expect("it is there");
    let since = Instant::now();

    for worker in workers {
        assert!(worker.wait(Some(Duration::from_secs(20))).expect("a process"), "it works on");
    }
    assert!(since.elapsed() < BOUND, "{:?}", since.elapsed());
    assert!(watch.try_recv().is_none(), "the head has spoken its verdict before");
    assert!(goes_on.try_recv().is_none(), "another life of it may have begun");

    // The gateway has more of its messages, and a session that is not over.
    let before = came.load(Relaxed);
    kill_process(gateway, Signal::CONT).expect("it is there");
    let event = watch.blocking_recv().expect("an event");
    assert!(event.is_final() && event.to_string().contains("host 1"), "{event}");
    assert_eq!(came.load(Relaxed), before, "sent by a worker that had ended");

    // Where its policy says so, an actor goes on on another host from the verdict on. An ask waits meanwhile.
    let down = goes_on.blocking_recv().expect("an event");
    assert!(matches!(&down, Lifecycle::Down { will_restart: true, .. }), "{down}");
    assert!(down.to_string().contains("host 1 `other`"), "{down}");
    let lost = node.block_on(never).expect_err("its life is over").to_string();
    assert!(lost.contains("host 1 `other`") && lost.contains("nobody knows"), "{lost}");
    let mut roams = Roamer { actor: roams, watch: goes_on };
    let echoed = roams.is_up(&node, 1);
    assert!(is_on(&goes_on_there, &echoed));
    assert_eq!(find::<Echo>(&node, "roams"), roams.actor.address());
    roams.outlives_gateways(&node, &goes_on_there, 2);
    drop((placed, roams, here, echo, again, watch, node));
    taking.join().expect("it ended");
}

fn a_lost_host_answers_its_asks_with_its_name_and_what_was_started_for_it_ends(builder: Builder) {
    let node = head(builder);
    let serving = Other::serving(&node);
    let mut other = Other::asking(&node);
    assert_eq!(serving.workers().len(), 1, "{:?}", serving.workers());
    // WIRE-1: the head knows the worker's number, but may not end it.
    let there = || {
        let workers = node.report().expect("a report").workers.into_iter();
        workers.filter(|of| of.worker.host() == Some(1) && of.name != "gateway").collect::<Vec<_>>()
    };
    let its_own = there().pop().expect("a worker");
    node.supervisor().retire(its_own.worker);
    // A worker that the head has started there is not the lost host's. That host hears of it behind the
    // order.
    let hosts = node.hosts().expect("hosts");
    let stays = node.spawn::<Echoer>(()).on(&hosts[1]).start().expect("an actor there");
    let still = there().into_iter().find(|of| of.worker == its_own.worker).expect("it is there");
    assert_eq!((still.state, still.pid), (WorkerState::Running, its_own.pid));
    let (echo, never) = (find::<Echo>(&node, "echo"), find::<Never>(&node, "echo"));
    let mut watch = node.watch(&echo);
    ask(&node, &echo, Echo::empty());
    let mut open = never.ask(Never);
    node.block_on(open.accepted()).expect("it is accepted");
    // Tensors are on their way, in the mailbox, and in front of it.
    let (counter, gate) = (find::<Hold>(&node, "counter"), node.spawn::<Gatekeeper>(()).start());
    deliver(&node, &counter, Hold(gate.as_ref().expect("an actor").address()));
    let (counter, stream) = (find::<Count>(&node, "counter"), node.host_stream().expect("a stream"));
    let sent = |number| counter.send(Count { number, tensor: numbers(&stream, number, 1_000) });
    let sent: Vec<_> = (0..40).map(sent).collect();
    let workers = other.processes().into_iter();
    let workers: Vec<_> =
        workers.map(|(pid, _)| PidFd::open(pid.cast_unsigned()).expect("a process")).collect();
    // A gateway that sees the actors' end before its own would take more messages for them, and drop those.
    stop(other.gateway().as_raw_pid().cast_unsigned());
    other.kill();
    let since = Instant::now();
    for worker in workers {
        assert!(worker.wait(Some(Duration::from_secs(20))).expect("a process"), "it works on");
    }
    let error = node.block_on(open).expect_err("it is never answered");
    println!("15 s of silence ended its ask after {:?}", since.elapsed());
    let text = error.to_string();
    assert!(matches!(error, AskError::NoReply(AskFailure::Refused(Refusal::OutOfReach(_)))), "{error:?}");
    assert!(text.contains("host 2 `other`") && text.contains("nobody knows"), "{text}");
    let event = watch.blocking_recv().expect("an event");
    assert!(event.is_final() && event.to_string().contains("`other`"), "{event}");
    let refused = node.block_on(echo.send(Echo::empty())).expect_err("it is lost");
    assert!(matches!(&refused.reason, SendFailure::GaveUp(EndReason::OutOfReach(_))), "{refused:?}");
    assert!(refused.to_string().contains("`other`"), "{refused}");
    let sent = node.block_on(futures_util::future::join_all(sent));
    let refused: Vec<_> = sent.into_iter().filter_map(|sent| Some(sent.err()?.to_string())).collect();
    // Eight were taken, by two mailboxes. With the verdict the places of messages on their way come back.
    // Until the node has said that the actor is out of reach, a waiting send may get one.
    assert!(
        refused.len() >= 20 && refused.iter().all(|why| why.contains("`other`")),
        "{}: {refused:?}",
        refused.len()
    );
    until_free(&node);
    // The gateway answers the askers, and the node keeps the list.
    until("it is off the list", || node.hosts().expect("hosts").len() == 2);
    // Otherwise the worker would come back, and nobody would ever ask it to end.
    until("what it had started ends", || serving.workers().len() == 1);
    ask(&node, &stays.address(), Echo::empty());

    // Another host joins, with another number, and all goes on.
    let next = Other::start(&node);
    let echo = find::<Echo>(&node, "echo");
    assert_eq!(ask(&node, &echo, Echo::empty()).number, 1);
    assert_eq!(node.hosts().expect("hosts")[2].number, 3);
    next.end();
}

pub(crate) fn cases() -> Vec<Case> {
    cases![
        the_end_of_the_head_ends_the_others,
        what_is_under_way_between_hosts_outlives_a_shutdown,
        workers_of_an_agent_that_stands_still_end_by_themselves,
        a_lost_host_answers_its_asks_with_its_name_and_what_was_started_for_it_ends,
    ]
}
