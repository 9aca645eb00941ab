//! The node's behaviour when it, or a worker, may open no more files. See `lacks.rs`.

use rustix::process::{Resource, Rlimit, setrlimit};
use tensorpost::node::{Spawned, WorkerState};
use tensorpost::prelude::*;
use tensorpost_tests::cases;
use tensorpost_tests::harness::{Builder, Case};
use tensorpost_tests::holder::{Hold, Holder, LetGo, Make};
use tensorpost_tests::wait::{ask, numbers, until};
use tensorpost_tests::want::{
    Allocate, Greedy, LONG, Last, Open, Scene, Tell, Through, all_files_but, end, first_node, has, limit,
    pid, play, serve,
};

/// The descriptors that a process in want of them may have.
const FEW: u64 = 64;

fn make(node: &Node, holder: &Spawned<Holder>) -> Result<Tensor, String> {
    let make = Make { elements: vec![1, 2, 3], door: None };
    node.block_on(holder.address().ask(make).timeout(LONG)).map_err(|error| error.to_string())
}

fn few_files_in_the_node() {
    let before = first_node(Node::builder());
    setrlimit(Resource::Nofile, Rlimit { current: Some(FEW), maximum: Some(FEW) }).unwrap();
    let node = Node::builder().start().unwrap();
    let mut holders = Vec::new();
    let why = loop {
        match node.spawn::<Holder>(()).start() {
            Ok(holder) => holders.push(holder),
            Err(error) => break error.to_string(),
        }
        serve(&node, &holders[holders.len() - 1..]);
    };
    has(&why, &["could not be started", "ulimit -n"]);
    assert!(holders.len() >= 2, "{} workers are few for {FEW} descriptors", holders.len());
    println!("{} workers, then: {why}", holders.len());
    // The descriptors that were kept free are for the actors that run.
    for holder in &holders[1..] {
        assert_eq!(make(&node, holder).unwrap().to_vec::<u32>().unwrap(), [1, 2, 3]);
    }
    serve(&node, &holders);
    // There is room again when they have ended, for their tensors too.
    for ended in holders.drain(1..) {
        node.supervisor().kill_worker(ended.worker());
        node.supervisor().await_end(ended.worker());
    }
    until("a worker can be started", || {
        node.spawn::<Holder>(()).start().map(|new| holders.push(new)).is_ok()
    });
    serve(&node, &holders);

    // The program takes them all: memory that a worker makes cannot become known to others.
    let taken = all_files_but(0);
    let why = make(&node, &holders[1]).unwrap_err();
    has(&why, &["ulimit -n"]);
    println!("{why}");
    let ended = holders.remove(1);
    node.supervisor().await_end(ended.worker());
    serve(&node, &holders);
    drop(taken);
    until("a worker can be started", || {
        node.spawn::<Holder>(()).start().map(|new| holders.push(new)).is_ok()
    });
    serve(&node, &holders);
    end(node, (holders, ended), before);
}

fn few_files_in_a_worker() {
    let before = first_node(Node::builder());
    let node = Node::builder().start().unwrap();
    let stream = node.host_stream().unwrap();
    let holder = node.spawn::<Holder>(()).start().unwrap();
    let greedy = node.spawn::<Greedy>(()).name("greedy").restart(Restart::on_failure(3)).start().unwrap();
    limit(pid(&node, &greedy), Resource::Nofile, Some(FEW));
    ask(&node, &greedy.address(), Open(Some(0)));
    // It cannot make memory, and its error says what to raise.
    let (made, why) = ask(&node, &greedy.address(), Allocate { count: 1, bytes: 100 });
    assert_eq!(made, 0);
    has(&why.unwrap(), &["ulimit -n"]);
    // Nor can it make a link to a new process.
    let why = ask(&node, &greedy.address(), Tell(holder.address())).unwrap();
    has(&why, &["there is no way", "ulimit -n"]);
    println!("{why}");
    ask(&node, &greedy.address(), Open(None));
    assert_eq!(ask(&node, &greedy.address(), Tell(holder.address())), None);
    until("the message comes", || ask(&node, &holder.address(), LetGo) == [5]);
    assert_eq!(ask(&node, &greedy.address(), Allocate { count: 1, bytes: 100 }), (1, None));
    // It cannot take in a tensor that it would have to map: it ends, gives the reason, and comes back.
    ask(&node, &greedy.address(), Open(Some(0)));
    let error = node.block_on(greedy.address().ask(Last(numbers(&stream, 1, 3))).timeout(LONG)).unwrap_err();
    has(&error.to_string(), &["greedy", "ulimit -n"]);
    println!("{error}");
    assert_eq!(ask(&node, &greedy.address(), Last(numbers(&stream, 1, 3))), 3);
    assert_eq!(node.report().unwrap().restarts[0].restarts, 1);
    let held = [holder];
    serve(&node, &held);
    end(node, (held, greedy, stream), before);
}

/// The first message to a process that cannot take its sender's half of a link, with each number of
/// descriptors at which something else fails.
fn few_files_for_a_link_to_a_worker() {
    let before = first_node(Node::builder());
    let node = Node::builder().start().unwrap();
    let greedy = node.spawn::<Greedy>(()).name("greedy").start().unwrap();
    let there = node.spawn::<Holder>(()).worker(greedy.worker()).start().unwrap();
    let sender = node.spawn::<Greedy>(()).start().unwrap();
    limit(pid(&node, &greedy), Resource::Nofile, Some(FEW));
    let needed = (0..FEW as usize).find(|left| {
        ask(&node, &greedy.address(), Open(Some(*left)));
        match ask(&node, &sender.address(), Tell(there.address())) {
            Some(why) => has(&why, &["there is no way", "worker `greedy` lacks", "ulimit -n"]),
            None => return true,
        }
        false
    });
    println!("a link takes {} descriptors", needed.expect("fewer than there are"));
    assert!(needed > Some(0));
    ask(&node, &greedy.address(), Open(None));
    assert_eq!(ask(&node, &there.address(), LetGo), [5]);
    assert_eq!(node.supervisor().worker(greedy.worker()).unwrap().state, WorkerState::Running);
    serve(&node, std::slice::from_ref(&there));
    end(node, (greedy, there, sender), before);
}

/// The node may open no more files: it makes links between others, and links to its own process.
fn few_files_for_a_link_in_the_node() {
    let before = first_node(Node::builder());
    setrlimit(Resource::Nofile, Rlimit { current: Some(4 * FEW), maximum: Some(4 * FEW) }).unwrap();
    let node = Node::builder().start().unwrap();
    let near = node.spawn::<Greedy>(()).start().unwrap();
    // Making an address makes a link, and without descriptors it makes none. `far` is reached by this address
    // alone.
    let unlinked = |name| {
        let worker = node.worker(name).unwrap();
        let _taken = all_files_but(0);
        let actor = node.spawn::<Greedy>(()).worker(worker).start().unwrap();
        let address: Address<Tell> = actor.address();
        (actor, address)
    };
    let ((far, by), (last, _)) = (unlinked("far"), unlinked("last"));
    let (holder, other) =
        (node.spawn::<Holder>(()).start().unwrap(), node.spawn::<Holder>(()).start().unwrap());
    let (to_node, mut channel) = node.channel::<Hold>().unwrap();
    let through = |to: Address<Hold>| ask(&node, &near.address(), Through { by: by.clone(), to });
    // The links of the holders exist, so that no part of them is on its way.
    serve(&node, std::slice::from_ref(&holder));
    serve(&node, std::slice::from_ref(&other));
    // Takes all descriptors but this many, once the supervisor has closed those that it had sent before: it
    // answers in order.
    let take_all_but = |left: usize| {
        assert!(node.lookup::<Hold>("nobody").is_err());
        all_files_but(left)
    };
    // From here on the node reaches `near`, and that reaches `far`.
    assert_eq!(through(holder.address()), None);
    for to in [other.address(), to_node] {
        let needed = (0..FEW as usize).find(|left| {
            let _taken = take_all_but(*left);
            match through(to.clone()) {
                Some(why) => has(&why, &["there is no way", "the node lacks", "ulimit -n"]),
                None => return true,
            }
            false
        });
        println!("a link takes {} descriptors", needed.expect("fewer than there are"));
        assert!(needed > Some(0));
    }
    assert_eq!(node.block_on(channel.recv()).unwrap().label, 5);
    // The node's own sends.
    let needed = (0..FEW as usize).find(|left| {
        let _taken = take_all_but(*left);
        match node.block_on(last.address().ask(Open(None))) {
            Err(error) => has(&error.to_string(), &["there is no way", "ulimit -n"]),
            Ok(()) => return true,
        }
        false
    });
    assert!(needed > Some(0));
    assert_eq!(ask(&node, &holder.address(), LetGo), [5]);
    assert_eq!(ask(&node, &other.address(), LetGo), [5]);
    for worker in [near.worker(), far.worker(), last.worker(), holder.worker(), other.worker()] {
        assert_eq!(node.supervisor().worker(worker).unwrap().state, WorkerState::Running);
    }
    serve(&node, &[holder, other]);
    end(node, (near, far, last, by, channel), before);
}

fn a_node_with_64_descriptors_says_so_and_serves_those_it_has(_: Builder) {
    let text = play("few_files_in_the_node");
    has(&text, &["the node may open no more files and has lost what this worker sent"]);
}

fn a_worker_with_64_descriptors_costs_itself(_: Builder) {
    play("few_files_in_a_worker");
}

fn a_first_message_to_a_worker_without_descriptors_fails_at_once(_: Builder) {
    play("few_files_for_a_link_to_a_worker");
}

fn a_first_message_that_the_node_has_no_descriptors_for_fails_at_once(_: Builder) {
    let text = play("few_files_for_a_link_in_the_node");
    has(&text, &["half of a link", "could not be passed on"]);
}

pub(crate) fn cases() -> Vec<Case> {
    cases![
        a_node_with_64_descriptors_says_so_and_serves_those_it_has,
        a_worker_with_64_descriptors_costs_itself,
        a_first_message_to_a_worker_without_descriptors_fails_at_once,
        a_first_message_that_the_node_has_no_descriptors_for_fails_at_once,
    ]
}

pub(crate) const SCENES: &[Scene] = &[
    ("few_files_in_the_node", few_files_in_the_node),
    ("few_files_in_a_worker", few_files_in_a_worker),
    ("few_files_for_a_link_to_a_worker", few_files_for_a_link_to_a_worker),
    ("few_files_for_a_link_in_the_node", few_files_for_a_link_in_the_node),
];
