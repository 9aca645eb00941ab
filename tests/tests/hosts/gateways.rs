//! Gateways that die, or stand still, on the head, on an agent, and on both: each is replaced, and all goes
//! on over the same addresses.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tensorpost::actor::{AskError, AskFailure, Refusal};
use tensorpost::node::WorkerState;
use tensorpost::prelude::*;
use tensorpost::published::{Publisher, Subscriber, Topic};
use tensorpost_core::os::PidFd;
use tensorpost_core::transport::control_channel::ToNode;
use tensorpost_tests::cases;
use tensorpost_tests::harness::{Builder, Case};
use tensorpost_tests::intruder::{as_a_gateway, control_of, say_by, start_request};
use tensorpost_tests::wait::{ask, deliver, numbers, stop, until, until_free};
use tensorpost_tests::want::pid_of;

use crate::actors::{Echo, Echoed, Echoer, Fail, Gatekeeper, Item, MayGo, Open, PassOn};
use crate::names::{Clerk, Take};
use crate::published::{State, state, until_has};
use crate::{Other, find, head};

/// "Take this." Some of them may not come.
#[derive(Serialize, Deserialize, GpuMessage)]
pub(crate) struct Mark {
    number: u32,
    tensor: Tensor,
}

/// "How many have come, which was the last, and what was wrong?"
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = (u32, u32, Vec<String>))]
pub(crate) struct Marks;

/// Checks that its messages come in order, once and whole.
#[derive(Default)]
pub(crate) struct Tally {
    count: u32,
    last: u32,
    wrong: Vec<String>,
}

impl Actor for Tally {
    type Context = Context<Self>;
}

impl RemoteActor for Tally {
    type Args = ();

    fn create((): (), _: &Env) -> anyhow::Result<Self> {
        Ok(Tally::default())
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Mark>().message::<Marks>();
    }
}

impl Handler<Mark> for Tally {
    type Result = ();

    fn handle(&mut self, Mark { number, tensor }: Mark, _: &mut Context<Self>) {
        let should: Vec<u32> = (number..).take(tensor.len()).collect();
        if number <= self.last || tensor.to_vec::<u32>().unwrap_or_default() != should {
            self.wrong.push(format!("message {number} behind {}", self.last));
        }
        (self.count, self.last) = (self.count + 1, number);
    }
}

impl Handler<Marks> for Tally {
    type Result = MessageResult<Marks>;

    fn handle(&mut self, _: Marks, _: &mut Context<Self>) -> Self::Result {
        MessageResult((self.count, self.last, self.wrong.clone()))
    }
}

/// Returns the process of this host's gateway, once there is one that has begun.
pub(crate) fn gateway_of(node: &Node) -> u32 {
    let mut pid = None;
    until("the head has a gateway", || {
        let workers = node.supervisor().workers();
        let found = workers.iter().find(|status| status.name == "gateway");
        pid = found.filter(|status| status.state == WorkerState::Running).map(|status| status.pid);
        pid.is_some()
    });
    pid.expect("it was seen")
}

fn kill(pid: Pid) {
    kill_process(pid, Signal::KILL).expect("it is there");
}

/// Items of the other host: far more than there is room for on their way.
const ITEMS: u32 = 2_000;

/// The host whose gateway dies, or both.
#[derive(Clone, Copy)]
pub(crate) struct Dies {
    head: bool,
    agent: bool,
}

impl Dies {
    pub(crate) const OF_HEAD: Self = Dies { head: true, agent: false };
    pub(crate) const OF_AGENT: Self = Dies { head: false, agent: true };

    pub(crate) fn kill(self, node: &Node, other: &Other) {
        let head = self.head.then(|| Pid::from_raw(gateway_of(node).cast_signed()).expect("a process"));
        let agent = self.agent.then(|| other.gateway());
        head.into_iter().chain(agent).for_each(kill);
    }
}

/// Returns the error of an ask that died with a gateway, which says that nobody knows the outcome.
pub(crate) fn was_lost<M: GpuMessage>(answer: Result<M::Reply, AskError<M>>) -> String {
    let Err(error) = answer else { panic!("an answer") };
    let text = error.to_string();
    let lost = matches!(&error, AskError::NoReply(AskFailure::Refused(Refusal::GatewayEnded(_))));
    assert!(lost && text.contains("nobody knows"), "{error:?}");
    text
}

/// Asks until there is an answer: again where the ask died with a gateway.
pub(crate) fn ask_again(node: &Node, to: &Address<Echo>) -> Echoed {
    loop {
        match node.block_on(to.ask(Echo::empty())) {
            Ok(echoed) => return echoed,
            lost => drop(was_lost(lost)),
        }
    }
}

/// Sends marks until it is told to stop; adds each accepted mark to `sent`, and all of them are accepted.
fn send_marks(node: &Node, to: Address<Mark>, stop: &AtomicBool, sent: &AtomicU32) {
    let stream = node.host_stream().expect("a stream");
    while !stop.load(Relaxed) {
        let number = sent.load(Relaxed) + 1;
        // The lengths make no pieces, one, and several.
        let length = [0, 100, 100_000][number as usize % 3];
        deliver(node, &to, Mark { number, tensor: numbers(&stream, number, length) });
        sent.store(number, Relaxed);
    }
}

/// HOST-3, HOST-5, LEASE-4, DEATH-2. All kinds of messages between two hosts are under way as it happens.
fn all_goes_on(builder: Builder, dies: Dies) {
    let node = head(builder);
    let other = Other::start(&node);
    let hosts = node.hosts().expect("hosts");
    let tally = node.spawn::<Tally>(()).on(&hosts[1]).start().expect("an actor there");
    let topic = node.spawn::<Topic<State>>(()).on(&hosts[1]).name("state").start().expect("a topic");
    let publisher = Publisher::<State>::new(topic.address());
    let mut reader = Subscriber::<State>::follow(&node, "state");
    let stream = node.host_stream().expect("a stream");
    node.block_on(publisher.publish(state(&stream, 1))).expect("it is published");
    drop(until_has(&mut reader, 1));
    let (echo, again) = (find::<Echo>(&node, "echo"), find::<Echo>(&node, "again"));
    let gate = node.spawn::<Gatekeeper>(()).on(&hosts[1]).start().expect("an actor there");
    let may_go = gate.address::<MayGo>();
    let mut watch = node.watch(&again);
    let before = ask(&node, &echo, Echo::empty());
    let (to, mut items) = node.channel::<Item>().expect("a channel");
    deliver(&node, &find::<PassOn>(&node, "echo"), PassOn { to, items: ITEMS });
    assert_eq!(items.blocking_recv().expect("it comes").number, 0);
    let (done, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    std::thread::scope(|scope| {
        let (until_done, count) = (Arc::clone(&done), Arc::clone(&sent));
        let (sending, to) = (&node, tally.address());
        scope.spawn(move || send_marks(sending, to, &until_done, &count));
        until("marks go", || sent.load(Relaxed) > 20);
        let mut accepted = may_go.ask(MayGo);
        node.block_on(accepted.accepted()).expect("it is accepted");
        let asks: Vec<_> = (0..10).map(|_| may_go.ask(MayGo)).collect();
        dies.kill(&node, &other);

        // Every ask gets an answer: that it was lost, or, where it had not been sent yet, the usual one.
        println!("{}", was_lost(node.block_on(accepted)));
        let asking = &node;
        let answers = scope.spawn(move || asking.block_on(futures_util::future::join_all(asks)));
        // The same actors answer, over the same addresses. Before that a message may still go to a gateway
        // that is dying, and be lost.
        let after = ask_again(&node, &echo);
        assert_eq!((after.pid, after.actor), (before.pid, before.actor));
        deliver(&node, &gate.address(), Open);
        for answer in answers.join().expect("answers").into_iter().filter(Result::is_err) {
            was_lost(answer);
        }
        let so_far = sent.load(Relaxed);
        until("marks go on", || sent.load(Relaxed) > so_far + 20);
        done.store(true, Relaxed);
    });
    // The marks come in order, at most once, and all that were sent later come.
    let (count, last, wrong) = ask(&node, &tally.address(), Marks);
    assert_eq!((last, wrong), (sent.load(Relaxed), Vec::new()));
    println!("{count} of {last} messages came");
    // Those of the other host wait for this: most were not sent when it happened.
    let mut number = 0;
    while number + 1 < ITEMS {
        let item = items.blocking_recv().expect("it comes");
        assert!(item.number > number, "item {} behind {number}", item.number);
        let should: Vec<u32> = (item.number..).take(100).collect();
        assert_eq!(item.tensor.to_vec::<u32>().expect("numbers"), should);
        number = item.number;
    }
    // Versions, watches and names.
    node.block_on(publisher.publish(state(&stream, 2))).expect("it is published");
    drop(until_has(&mut reader, 2));
    deliver(&node, &find::<Fail>(&node, "again"), Fail);
    let down = watch.blocking_recv().expect("an event");
    assert!(matches!(&down, Lifecycle::Down { will_restart: true, .. }), "{down}");
    let up = watch.blocking_recv().expect("an event");
    assert!(matches!(&up, Lifecycle::Up { incarnation: 1, .. }), "{up}");
    let clerk = node.spawn::<Clerk>(()).on(&hosts[1]).start().expect("an actor there");
    let taken = ask(&node, &clerk.address(), Take("desk".to_owned()));
    assert_eq!(taken, Ok(()));
    assert!(node.spawn::<Echoer>(()).name("desk").start().is_err(), "the head gave it to the other host");
    assert_eq!(node.hosts().expect("hosts"), hosts);
    // No lease stays.
    drop((items, reader, publisher));
    until_free(&node);
    other.end();
}

fn the_gateway_of_the_head_dies_and_all_goes_on(builder: Builder) {
    all_goes_on(builder, Dies::OF_HEAD);
}

fn the_gateway_of_an_agent_dies_and_all_goes_on(builder: Builder) {
    all_goes_on(builder, Dies::OF_AGENT);
}

fn both_gateways_die_and_all_goes_on(builder: Builder) {
    all_goes_on(builder, Dies { head: true, agent: true });
}

/// A name that was given back while nobody could report it is free, and of the actors that wanted a name
/// meanwhile one has it.
fn names_stay_unique_whichever_gateway_dies(builder: Builder) {
    const ROUNDS: usize = 3;
    let node = head(builder);
    let other = Other::start(&node);
    let hosts = node.hosts().expect("hosts");
    let clerks = [0, 1].map(|host| node.spawn::<Clerk>(()).on(&hosts[host]).start().expect("a clerk"));
    for round in 0..ROUNDS {
        let name = format!("lens {round}");
        let lens = node.spawn::<Echoer>(()).on(&hosts[1]).name(&name).start().expect("the name is free");
        let mut watch = node.watch(&lens.address::<Echo>());
        let dies = Dies { head: round % 3 != 1, agent: round % 3 != 0 };
        // Its messages may be lost with a gateway; its end, and the news that its name is free, may not.
        let mut fails = lens.address::<Echo>().ask(Echo::empty());
        node.block_on(fails.accepted()).expect("it is accepted");
        deliver(&node, &lens.address(), Fail);
        let _ = node.block_on(fails);
        std::thread::sleep(Duration::from_millis([0, 1, 5][round]));
        dies.kill(&node, &other);
        // Where it has ended, nobody takes the message.
        let _ = node.block_on(lens.address::<Fail>().send(Fail));
        let takes = clerks.each_ref().map(|clerk| clerk.address().ask(Take(format!("desk {round}"))));
        let end = watch.blocking_recv().expect("an event");
        assert!(end.is_final(), "{end}");
        let had = takes.map(|take| match node.block_on(take) {
            Ok(taken) => taken.is_ok(),
            // It may have the name: the next ask finds that it does.
            Err(error) => {
                was_lost::<Take>(Err(error));
                false
            }
        });
        assert!(had != [true, true], "both have it");
        until("the name is free again", || node.spawn::<Echoer>(()).name(&name).start().is_ok());
        // One has the other name by now, or can get it.
        let again = clerks
            .each_ref()
            .map(|clerk| ask(&node, &clerk.address(), Take(format!("desk {round}"))).is_ok());
        assert!(again != [true, true], "both have it");
        assert!(again != [false, false] || had != [false, false], "nobody has it, and nobody may");
    }
    other.end();
}

/// The end of a worker on another host is reported until the report was heard.
fn orders_about_workers_are_heard_though_a_gateway_dies(builder: Builder) {
    let node = head(builder);
    let mut other = Other::serving(&node);
    let workers =
        ["one", "two"].map(|name| node.supervisor().spawn_worker_on(1, name, 1, None).expect("a worker"));
    assert_eq!(other.workers().len(), 2);
    let gateway = gateway_of(&node);
    stop(gateway);
    workers.into_iter().for_each(|worker| node.supervisor().retire(worker));
    kill(pid_of(gateway).expect("a process"));
    until("the workers have ended", || other.workers().is_empty());
    assert!(node.shutdown(Duration::from_secs(10)).expect("a report").is_clean());
    other.ends();
}

/// A gateway that stands still is ended and replaced before the time of an agent is over (HOST-10).
fn gateways_that_stand_still_are_replaced_in_time(builder: Builder) {
    let node = head(builder);
    let others = [Other::start(&node), Other::serving(&node)];
    let hosts = node.hosts().expect("hosts");
    let gate = node.spawn::<Gatekeeper>(()).on(&hosts[1]).start().expect("an actor there");
    let placed = node.spawn::<Echoer>(()).on(&hosts[2]).start().expect("an actor there");
    let addresses = [find::<Echo>(&node, "echo"), placed.address()];
    let before = addresses.each_ref().map(|address| ask(&node, address, Echo::empty()).pid);
    let mut open = gate.address::<MayGo>().ask(MayGo);
    node.block_on(open.accepted()).expect("it is accepted");
    // The gateway of the head, for which all agents wait, and the gateway of one of them.
    stop(gateway_of(&node));
    stop(others[1].gateway().as_raw_pid().cast_unsigned());
    let since = Instant::now();
    was_lost(node.block_on(open));
    let after = addresses.each_ref().map(|address| ask_again(&node, address).pid);
    assert_eq!(after, before, "they are the same workers");
    // The workers go by the next gateway's page: the moment of the one before is over by then.
    let over = Duration::from_secs(12).saturating_sub(since.elapsed());
    let worker = PidFd::open(before[1]).expect("a process");
    assert!(!worker.wait(Some(over)).expect("a process"), "it went by a page that nobody writes any more");
    let after = addresses.each_ref().map(|address| ask(&node, address, Echo::empty()).pid);
    assert_eq!(after, before, "they are the same workers");
    assert_eq!(node.hosts().expect("hosts"), hosts);
    // The message may have come there, and waits at the gate until then.
    deliver(&node, &gate.address(), Open);
    let [first, mut second] = others;
    drop(gate);
    first.end();
    drop(placed);
    drop(node);
    second.ends();
}

/// HOST-10: nobody answers the head for the agent any more.
fn an_agent_whose_gateway_dies_over_and_over_ends(builder: Builder) {
    let node = head(builder);
    let mut other = Other::start(&node);
    let echo = find::<Echo>(&node, "echo");
    ask(&node, &echo, Echo::empty());
    let status = other.ends_without("gateway");
    assert_eq!(status.code(), Some(1), "its workers were killed");
}

fn a_head_whose_gateway_dies_over_and_over_goes_on_without_the_others(builder: Builder) {
    let node = head(builder);
    let mut other = Other::start(&node);
    let echo = find::<Echo>(&node, "echo");
    let here = node.spawn::<Echoer>(()).start().expect("an actor here");
    let mut watch = node.watch(&echo);
    ask(&node, &echo, Echo::empty());
    until("no gateway follows", || {
        let workers = node.supervisor().workers();
        let gateway = workers.iter().find(|status| status.name == "gateway").expect("it is listed");
        if matches!(gateway.state, WorkerState::Running | WorkerState::Starting) {
            node.supervisor().kill_worker(gateway.worker);
        }
        node.hosts().expect("hosts").is_empty()
    });
    let end = watch.blocking_recv().expect("an event");
    assert!(end.is_final() && end.to_string().contains("gateway"), "{end}");
    let refused = node.block_on(echo.send(Echo::empty())).expect_err("there is no way");
    assert!(refused.to_string().contains("gateway"), "{refused}");
    ask(&node, &here.address(), Echo::empty());
    // Nobody answers its beats.
    assert_eq!(other.end_of().code(), Some(1), "its workers were killed");
}

/// WIRE-1. A gateway has no actors that could start others, and the node reads what it sends with care.
fn a_gateway_that_was_taken_over_has_no_actor_started(builder: Builder) {
    #[derive(Serialize)]
    enum Up {
        Node(ToNode),
    }
    let node = head(builder);
    let control = control_of(pid_of(gateway_of(&node)).expect("a process")).expect("its control socket");
    let says = |message: &[u8]| assert!(say_by(control.as_fd(), message, &[]), "the node does not hear it");
    let start = ToNode::StartActor { ticket: 1, request: start_request(json!("Here"), 9) };
    let start = rmp_serde::to_vec_named(&Up::Node(start)).expect("it is short");
    (0..5).for_each(|_| says(&start));
    (0..5).for_each(|_| says(&as_a_gateway(&[0xc1; 64])));
    until("the node complains of each", || {
        let workers = node.supervisor().workers();
        // A start that is begun has an answer, and nobody complains of it.
        workers.iter().any(|status| status.name == "gateway" && status.complaints == 10)
    });
    assert_eq!(node.supervisor().workers().len(), 1, "a worker was started");
    let other = Other::start(&node);
    ask(&node, &find::<Echo>(&node, "echo"), Echo::empty());
    other.end();
}

pub(crate) fn cases() -> Vec<Case> {
    cases![
        a_gateway_that_was_taken_over_has_no_actor_started,
        orders_about_workers_are_heard_though_a_gateway_dies,
        gateways_that_stand_still_are_replaced_in_time,
        a_head_whose_gateway_dies_over_and_over_goes_on_without_the_others,
        the_gateway_of_the_head_dies_and_all_goes_on,
        the_gateway_of_an_agent_dies_and_all_goes_on,
        both_gateways_die_and_all_goes_on,
        names_stay_unique_whichever_gateway_dies,
        an_agent_whose_gateway_dies_over_and_over_ends,
    ]
}
