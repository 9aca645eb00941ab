//! The beginning and the end of nodes, workers and actors, and the effects on messages under way.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use actix::fut::wrap_future;
use futures_util::future::join_all;
use rustix::process::{Pid, Signal, kill_process};
use tensorpost::actor::{AskFailure, MAX_ACTORS};
use tensorpost::node::{Spawned, WorkerId, WorkerState};
use tensorpost::prelude::*;
use tensorpost_tests::cases;
use tensorpost_tests::gate::Gate;
use tensorpost_tests::harness::{Builder, Case};
use tensorpost_tests::holder::{Check, End, Hold, Holder, How, LetGo, Make, Seen};
use tensorpost_tests::wait::{ask, deliver, numbers, until, until_free};

/// An item that is counted and passed on.
#[derive(Debug, Serialize, Deserialize, GpuMessage)]
struct Item {
    number: u64,
    tensor: Option<Tensor>,
}

/// Counts items, and writes the count into a file when it stops.
struct Stage {
    file: PathBuf,
    next: Option<Address<Item>>,
    count: u64,
    sum: u64,
}

impl Actor for Stage {
    type Context = Context<Self>;

    fn stopped(&mut self, _: &mut Self::Context) {
        std::fs::write(&self.file, format!("{} {}", self.count, self.sum)).expect("the folder is there");
    }
}

impl RemoteActor for Stage {
    type Args = (PathBuf, Option<Address<Item>>);

    fn create((file, next): Self::Args, _: &Env) -> anyhow::Result<Self> {
        Ok(Stage { file, next, count: 0, sum: 0 })
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Item>();
    }
}

impl Handler<Item> for Stage {
    type Result = ();

    fn handle(&mut self, item: Item, ctx: &mut Context<Self>) {
        self.count += 1;
        self.sum +=
            item.tensor.as_ref().map_or(item.number, |tensor| u64::from(tensor.item::<u32>().unwrap()));
        if let Some(next) = &self.next {
            let sent = next.send(item);
            // The next stage's count shows whether it arrived.
            ctx.spawn(wrap_future(async move { drop(sent.await) }));
        }
    }
}

const ITEMS: u64 = 600;

/// Runs three stages, two of them in one worker, with all their items.
fn pipeline(node: &Node, folder: &Path) {
    let file = |name: &str| folder.join(name);
    let worker = node.worker("first two").unwrap();
    let last = node.spawn::<Stage>((file("last"), None)).start().unwrap();
    let second = node
        .spawn::<Stage>((file("second"), Some(last.address())))
        .worker(worker)
        .mailbox(8)
        .start()
        .unwrap();
    let first = node
        .spawn::<Stage>((file("first"), Some(second.address())))
        .worker(worker)
        .own_thread()
        .start()
        .unwrap();
    let stream = node.host_stream().unwrap();
    node.block_on(async {
        let address = first.address();
        let sends: Vec<_> = (0..ITEMS)
            .map(|number| {
                let tensor = number.is_multiple_of(10).then(|| numbers(&stream, number as u32, 1));
                address.send(Item { number, tensor })
            })
            .collect();
        join_all(sends).await.into_iter().for_each(|sent| sent.unwrap());
    });
}

fn all_was_handled(folder: &Path) {
    for name in ["first", "second", "last"] {
        let counted = std::fs::read_to_string(folder.join(name)).unwrap();
        assert_eq!(counted, format!("{ITEMS} {}", ITEMS * (ITEMS - 1) / 2), "{name}");
    }
}

fn a_shutdown_handles_everything_that_was_accepted(builder: Builder) {
    let folder = tempfile::tempdir().unwrap();
    let node = builder.start().unwrap();
    pipeline(&node, folder.path());
    let report = node.shutdown(Duration::from_secs(40)).unwrap();
    assert!(report.is_clean(), "{report:?}");
    all_was_handled(folder.path());
}

fn dropping_the_node_handles_everything_that_was_accepted(builder: Builder) {
    let folder = tempfile::tempdir().unwrap();
    let node = builder.start().unwrap();
    pipeline(&node, folder.path());
    drop(node);
    all_was_handled(folder.path());
}

fn after_a_shutdown_everything_says_so_and_nothing_waits(builder: Builder) {
    let node = builder.start().unwrap();
    let stream = node.host_stream().unwrap();
    let holder = node.spawn::<Holder>(()).start().unwrap();
    let (home, mut channel) = node.channel::<Hold>().unwrap();
    ask(&node, &holder.address(), Hold::label(1));
    let tensor = numbers(&stream, 3, 1);
    assert!(node.shutdown(Duration::from_secs(20)).unwrap().is_clean());
    let error = node.block_on(holder.address().send(Hold::with(2, tensor))).unwrap_err();
    assert!(matches!(error.reason, SendFailure::ProcessExited(_) | SendFailure::NoSuchActor), "{error}");
    assert_eq!(error.message.tensors[0].item::<u32>().unwrap(), 3);
    assert!(node.block_on(holder.address().ask(Seen)).is_err());
    assert!(node.spawn::<Holder>(()).start().unwrap_err().to_string().contains("the node has shut down"));
    assert!(node.worker("late").is_err() && node.channel::<Hold>().is_err());
    assert!(node.lookup::<Hold>("late").is_err());
    // The node's own mailbox is in its own process, and goes on.
    deliver(&node, &home, Hold::label(3));
    assert_eq!(channel.try_recv().unwrap().label, 3);
    assert!(node.shutdown(Duration::ZERO).unwrap().is_clean(), "the same report again");
}

fn sixteen_workers_start_work_and_end(builder: Builder) {
    let node = builder.start().unwrap();
    let stream = node.host_stream().unwrap();
    let holders: Vec<Spawned<Holder>> = std::thread::scope(|scope| {
        let starting: Vec<_> =
            (0..16).map(|_| scope.spawn(|| node.spawn::<Holder>(()).start().unwrap())).collect();
        starting.into_iter().map(|starting| starting.join().unwrap()).collect()
    });
    let tensor = numbers(&stream, 0, 100);
    let asked = holders.iter().map(|holder| holder.address().ask(Hold::with(1, tensor.clone())));
    let held = node.block_on(join_all(asked.collect::<Vec<_>>()));
    assert!(held.into_iter().all(|held| held.unwrap() == 1));
    let pids: HashSet<u32> = holders.iter().map(|holder| ask(&node, &holder.address(), Check).pid).collect();
    assert_eq!(pids.len(), 16);
    drop(tensor);
    holders.iter().for_each(|holder| drop(ask(&node, &holder.address(), LetGo)));
    until_free(&node);
    let report = node.shutdown(Duration::from_secs(30)).unwrap();
    assert!(report.is_clean() && report.workers.len() == 16, "{report:?}");
}

fn many_actors_share_a_worker(builder: Builder) {
    let node = builder.start().unwrap();
    let worker = node.worker("house").unwrap();
    let holders: Vec<_> = (0..20).map(|_| node.spawn::<Holder>(()).worker(worker).start().unwrap()).collect();
    let healths: Vec<_> = holders.iter().map(|holder| ask(&node, &holder.address(), Check)).collect();
    assert_eq!(healths.iter().map(|health| health.pid).collect::<HashSet<_>>().len(), 1);
    assert_eq!(healths.iter().map(|health| health.thread.as_str()).collect::<HashSet<_>>().len(), 1);
    assert_eq!(healths.iter().map(|health| health.actor).collect::<HashSet<_>>().len(), 20);
    for (holder, health) in holders.iter().zip(&healths) {
        assert_eq!(holder.actor(), health.actor);
        assert_eq!(ask(&node, &holder.address(), Hold::label(holder.actor().0)), 0);
        assert_eq!(ask(&node, &holder.address(), Seen), [holder.actor().0]);
    }
}

fn an_actor_with_a_thread_of_its_own_holds_nobody_up(builder: Builder) {
    let node = builder.start().unwrap();
    let worker = node.worker("house").unwrap();
    let spawn = || node.spawn::<Holder>(()).worker(worker);
    let (alone, other, plain) = (
        spawn().own_thread().start().unwrap(),
        spawn().own_thread().start().unwrap(),
        spawn().start().unwrap(),
    );
    let thread = |holder: &Spawned<Holder>| ask(&node, &holder.address(), Check).thread;
    assert_eq!([&alone, &other, &plain].map(thread).into_iter().collect::<HashSet<_>>().len(), 3);
    let gate = Gate::new();
    let waiting = alone.address::<Hold>().ask(Hold::at(1, &gate.door()));
    let arrival = gate.arrival();
    for label in 0..10 {
        ask(&node, &other.address(), Hold::label(label));
        ask(&node, &plain.address(), Hold::label(label));
    }
    arrival.open();
    assert_eq!(node.block_on(waiting).unwrap(), 0);
}

fn come_and_go(node: &Node, count: usize) {
    let worker = node.worker("house").unwrap();
    for number in 0..count {
        let spawn = node.spawn::<Holder>(()).worker(worker);
        let holder = if number % 7 == 0 { spawn.own_thread() } else { spawn }.start();
        let holder = holder.unwrap_or_else(|error| panic!("{number}: {error}"));
        let labels = node.block_on(holder.address().ask(Seen));
        assert!(labels.unwrap_or_else(|error| panic!("{number}: {error}")).is_empty());
        deliver(node, &holder.address(), End { how: How::Stop, door: None });
        until("it has ended", || node.block_on(holder.address().send(Hold::label(0))).is_err());
    }
}

/// An actor that has ended leaves nothing in its worker: no stream, no thread.
fn actors_come_and_go_in_one_worker(builder: Builder) {
    let node = builder.start().unwrap();
    come_and_go(&node, 100);
    let status = std::fs::read_to_string(format!("/proc/{}/status", node.workers()[0].pid)).unwrap();
    let threads = status.lines().find_map(|line| line.strip_prefix("Threads:")).unwrap();
    assert!(threads.trim().parse::<u32>().unwrap() < 10, "{threads} threads");
}

fn a_worker_hosts_more_actors_one_after_the_other_than_it_can_at_once(builder: Builder) {
    let node = builder.start().unwrap();
    come_and_go(&node, MAX_ACTORS + 10);
}

fn a_node_makes_more_channels_one_after_the_other_than_it_can_have_at_once(builder: Builder) {
    let folder = tempfile::tempdir().unwrap();
    let node = builder.start().unwrap();
    for number in 0..MAX_ACTORS as u64 + 10 {
        let (home, mut channel) = node.channel::<Item>().unwrap();
        if number % 50 == 0 {
            let file = folder.path().join("stage");
            let stage = node.spawn::<Stage>((file, Some(home.clone()))).start().unwrap();
            deliver(&node, &stage.address(), Item { number, tensor: None });
            assert_eq!(channel.blocking_recv().unwrap().number, number);
        }
        deliver(&node, &home, Item { number, tensor: None });
        assert_eq!(channel.blocking_recv().unwrap().number, number);
    }
}

// DEATH-2.
fn a_worker_killed_while_idle_costs_its_senders_an_error_and_nobody_else_anything(builder: Builder) {
    let node = builder.start().unwrap();
    let stream = node.host_stream().unwrap();
    let (victim, other) =
        (node.spawn::<Holder>(()).start().unwrap(), node.spawn::<Holder>(()).start().unwrap());
    let sender = node.spawn::<Stage>((PathBuf::from("/dev/null"), None)).start().unwrap();
    ask(&node, &other.address(), Hold::label(1));
    let pid = ask(&node, &victim.address(), Check).pid;
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::KILL).unwrap();
    let Some(WorkerState::Exited { exit: Some(exit), .. }) = node.supervisor().await_end(victim.worker())
    else {
        panic!("it did not end")
    };
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&exit), Some(9));
    let mut message = Some(Hold::with(2, numbers(&stream, 5, 1)));
    until("its end is known", || match victim.address().try_send(message.take().unwrap()) {
        Ok(()) => {
            message = Some(Hold::with(2, numbers(&stream, 5, 1)));
            false
        }
        Err(error) => {
            let gone = matches!(error.reason, SendFailure::ProcessExited(_));
            assert!(gone || matches!(error.reason, SendFailure::Full), "{error}");
            message = Some(error.message);
            gone
        }
    });
    let error = node.block_on(victim.address().send(message.take().unwrap())).unwrap_err();
    assert!(matches!(error.reason, SendFailure::ProcessExited(_)) && !error.is_retryable());
    assert_eq!(error.message.tensors[0].item::<u32>().unwrap(), 5);
    let asked = node.block_on(victim.address().ask(error.message)).unwrap_err();
    let AskError::NotSent(error) = asked else { panic!("{asked:?}") };
    assert_eq!(error.message.label, 2);
    drop(error);
    // The others never noticed.
    assert_eq!(ask(&node, &other.address(), Seen), [1]);
    deliver(&node, &sender.address(), Item { number: 1, tensor: Some(numbers(&stream, 1, 1)) });
    assert!(node.spawn::<Holder>(()).start().is_ok());
    until_free(&node);
    assert!(
        node.shutdown(Duration::from_secs(20)).unwrap().workers.iter().all(|worker| worker.killed.is_none())
    );
}

// DEATH-2: asks and sends that wait for the dead worker fail.
fn asks_and_waiting_sends_to_a_worker_that_dies_fail_with_gone(builder: Builder) {
    for dies_itself in [false, true] {
        let node = fresh(&builder).start().unwrap();
        let stream = node.host_stream().unwrap();
        let victim = node.spawn::<Holder>(()).mailbox(3).start().unwrap();
        let gate = Gate::new();
        let how = if dies_itself { How::Exit } else { How::Stop };
        deliver(&node, &victim.address(), End { how, door: Some(gate.door()) });
        let arrival = gate.arrival();
        let asked = victim.address::<Hold>().ask(Hold::with(1, numbers(&stream, 1, 1)));
        let made = victim.address::<Make>().ask(Make { elements: vec![1], door: None });
        let waiting: Vec<_> = (2..6)
            .map(|label| victim.address::<Hold>().send(Hold::with(label, numbers(&stream, 1, 1))))
            .collect();
        if dies_itself {
            arrival.open();
        } else {
            node.supervisor().kill_worker(victim.worker());
        }
        let failed = node.block_on(asked).unwrap_err();
        assert!(
            matches!(failed, AskError::NoReply(AskFailure::ProcessExited(_))) && !failed.is_retryable(),
            "{failed:?}"
        );
        // The error names the worker and says how it ended.
        let end = if dies_itself { "exit status: 3" } else { "the node was asked to kill it" };
        assert!(
            failed.to_string().contains("worker `Holder`") && failed.to_string().contains(end),
            "{failed}"
        );
        let failed = node.block_on(made).unwrap_err();
        assert!(matches!(failed, AskError::NoReply(AskFailure::ProcessExited(_))), "{failed:?}");
        for (label, sent) in (2..).zip(node.block_on(join_all(waiting))) {
            let error = sent.unwrap_err();
            assert!(matches!(error.reason, SendFailure::ProcessExited(_)), "{error}");
            assert_eq!(error.message.label, label);
        }
        until_free(&node);
    }
}

/// "Call yourself so often."
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = u64)]
struct CallYourself(u64);

#[derive(Default)]
struct Deep;

#[actor]
impl Deep {
    #[handler]
    fn call_yourself(&mut self, CallYourself(times): CallYourself) -> u64 {
        deep(times)
    }
}

fn deep(times: u64) -> u64 {
    let room = std::hint::black_box([times; 64]);
    if times == 0 { 0 } else { 1 + deep(times - 1).min(room[0]) }
}

// DEATH-2.
fn an_overflowed_stack_is_told_by_the_name_of_its_thread(builder: Builder) {
    let node = builder.start().unwrap();
    for deep in [node.spawn::<Deep>(()), node.spawn::<Deep>(()).own_thread()] {
        let deep = deep.start().unwrap();
        let call = |times| node.block_on(deep.address().ask(CallYourself(times)));
        assert_eq!(call(100).unwrap(), 100);
        let why = call(u64::MAX).unwrap_err().to_string();
        assert!(why.contains("its thread `tp:Deep") && why.contains("has overflowed its stack:"), "{why}");
    }
}

/// The node's own mailbox closes when it is dropped.
fn a_channel_that_is_dropped_tells_its_senders(builder: Builder) {
    let folder = tempfile::tempdir().unwrap();
    let node = builder.start().unwrap();
    let stream = node.host_stream().unwrap();
    let (home, channel) = node.channel::<Item>().unwrap();
    let stage = node.spawn::<Stage>((folder.path().join("stage"), Some(home.clone()))).start().unwrap();
    deliver(&node, &stage.address(), Item { number: 1, tensor: Some(numbers(&stream, 0, 1)) });
    deliver(&node, &home, Item { number: 2, tensor: Some(numbers(&stream, 0, 1)) });
    drop(channel);
    let error =
        node.block_on(home.send(Item { number: 3, tensor: Some(numbers(&stream, 9, 1)) })).unwrap_err();
    assert!(matches!(error.reason, SendFailure::NoSuchActor), "{error}");
    assert_eq!(error.message.tensor.unwrap().item::<u32>().unwrap(), 9);
    until_free(&node);
}

fn two_nodes_in_one_process_have_nothing_to_do_with_each_other(builder: Builder) {
    let other = fresh(&builder).start().unwrap();
    let node = builder.start().unwrap();
    let (one, two) = (node.spawn::<Holder>(()).start().unwrap(), other.spawn::<Holder>(()).start().unwrap());
    ask(&node, &one.address(), Hold::with(1, numbers(&node.host_stream().unwrap(), 0, 1)));
    ask(&other, &two.address(), Hold::with(2, numbers(&other.host_stream().unwrap(), 0, 1)));
    // Each has one worker of its own by now, and the number of the other's says nothing here.
    for (node, of_other) in [(&node, two.worker()), (&other, one.worker())] {
        let refused = node.spawn::<Holder>(()).worker(of_other).start().unwrap_err();
        assert!(refused.to_string().contains("is no worker of this node"), "{refused}");
    }
    drop(node);
    assert_eq!(ask(&other, &two.address(), LetGo), [2]);
    until_free(&other);
}

/// Returns the process and the variable of a worker, from its environment as the kernel has it.
fn connections(node: &Node, worker: WorkerId) -> (u32, String) {
    let pid = node.workers().into_iter().find(|status| status.worker == worker).expect("it is there").pid;
    let environment = std::fs::read(format!("/proc/{pid}/environ")).expect("it runs");
    let found = environment
        .split(|&byte| byte == 0)
        .find_map(|variable| variable.strip_prefix(b"CUDA_DEVICE_MAX_CONNECTIONS="));
    (pid, String::from_utf8_lossy(found.expect("each worker has it")).into_owned())
}

/// A worker asks the driver for as many hardware queues as its actors need, in each of its lives; the figure
/// is fixed when it starts.
fn a_worker_has_hardware_queues_for_the_streams_that_it_was_made_with(builder: Builder) {
    let node = builder.start().unwrap();
    let alone = node.spawn::<Holder>(()).restart(Restart::on_failure(1)).start().unwrap();
    let several = node.spawn::<Holder>(()).streams(4).restart(Restart::on_failure(1)).start().unwrap();
    let many = node.spawn::<Holder>(()).streams(usize::MAX).start().unwrap();
    let shared = node.worker("shared").unwrap();
    let all = [(alone.worker(), "3"), (several.worker(), "6"), (many.worker(), "32"), (shared, "8")];
    // A value in the node's own environment holds for all workers.
    let said = std::env::var("CUDA_DEVICE_MAX_CONNECTIONS").ok();
    let all = all.map(|(worker, queues)| (worker, said.clone().unwrap_or_else(|| queues.to_owned())));
    let first = all.clone().map(|(worker, expected)| {
        let (pid, connections) = connections(&node, worker);
        assert_eq!(connections, expected, "{worker}");
        pid
    });
    for pid in &first[..2] {
        kill_process(Pid::from_raw(*pid as i32).unwrap(), Signal::KILL).unwrap();
    }
    for (before, (worker, expected)) in first.into_iter().zip(all).take(2) {
        let status = || node.workers().into_iter().find(|status| status.worker == worker);
        until("it has another life", || {
            status().is_some_and(|now| now.pid != before && now.state == WorkerState::Running)
        });
        assert_eq!(connections(&node, worker).1, expected, "{worker}");
    }
}

/// Another builder of the same program.
fn fresh(_: &Builder) -> Builder {
    Node::builder()
}

pub(crate) fn cases() -> Vec<Case> {
    cases![
        a_shutdown_handles_everything_that_was_accepted,
        dropping_the_node_handles_everything_that_was_accepted,
        after_a_shutdown_everything_says_so_and_nothing_waits,
        sixteen_workers_start_work_and_end,
        many_actors_share_a_worker,
        an_actor_with_a_thread_of_its_own_holds_nobody_up,
        actors_come_and_go_in_one_worker,
        a_worker_hosts_more_actors_one_after_the_other_than_it_can_at_once,
        a_node_makes_more_channels_one_after_the_other_than_it_can_have_at_once,
        a_worker_killed_while_idle_costs_its_senders_an_error_and_nobody_else_anything,
        asks_and_waiting_sends_to_a_worker_that_dies_fail_with_gone,
        an_overflowed_stack_is_told_by_the_name_of_its_thread,
        a_channel_that_is_dropped_tells_its_senders,
        two_nodes_in_one_process_have_nothing_to_do_with_each_other,
        a_worker_has_hardware_queues_for_the_streams_that_it_was_made_with,
    ]
}
