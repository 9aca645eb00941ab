//! Actors that restart together: groups that restart as one, watches, and links (DEATH-2).

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tensorpost::actor::{EndReason, Watch};
use tensorpost::node::{Group, Spawned, WorkerState};
use tensorpost::prelude::*;
use tensorpost_core::limits::WATCH_EVENTS;
use tensorpost_tests::cases;
use tensorpost_tests::gate::{Door, Gate};
use tensorpost_tests::harness::{Builder, Case};
use tensorpost_tests::holder::{Check, End, Health, Hold, Holder, How};
use tensorpost_tests::wait::{ask, deliver, until};

/// Restarts at once, as often as any test here needs.
const SOON: Restart = Restart::on_failure(50).backoff(Duration::from_millis(1), Duration::from_millis(5));

/// Restarts after a delay in which a test can look.
const LATE: Restart = Restart::on_failure(50).backoff(Duration::from_millis(400), Duration::from_millis(400));

/// Watches a holder, or is linked to it.
struct Friend {
    gate: Option<Door>,
    incarnation: u32,
    events: Vec<Lifecycle>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
enum Tie {
    Watch(Address<Hold>),
    Link(Address<Hold>),
}

impl Actor for Friend {
    type Context = Context<Self>;
}

impl RemoteActor for Friend {
    type Args = (Vec<Tie>, Option<Door>);

    fn create((ties, gate): Self::Args, env: &Env) -> anyhow::Result<Self> {
        for tie in &ties {
            match tie {
                Tie::Watch(holder) => env.watch(holder, &env.address()),
                Tie::Link(holder) => env.link(holder),
            }
        }
        Ok(Friend { gate, incarnation: env.incarnation(), events: Vec::new() })
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Lifecycle>().message::<Events>().message::<Life>();
    }
}

impl Handler<Lifecycle> for Friend {
    type Result = ();

    fn handle(&mut self, event: Lifecycle, _: &mut Context<Self>) {
        if let Some(gate) = &self.gate {
            gate.pass().unwrap();
        }
        self.events.push(event);
    }
}

/// "What has happened?"
#[derive(Debug, Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Vec<Lifecycle>)]
struct Events;

impl Handler<Events> for Friend {
    type Result = MessageResult<Events>;

    fn handle(&mut self, _: Events, _: &mut Context<Self>) -> Self::Result {
        MessageResult(self.events.clone())
    }
}

/// "Which life is this?"
#[derive(Debug, Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = u32)]
struct Life;

impl Handler<Life> for Friend {
    type Result = u32;

    fn handle(&mut self, _: Life, _: &mut Context<Self>) -> u32 {
        self.incarnation
    }
}

fn kill(pid: u32) {
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::KILL).unwrap();
}

fn health(node: &Node, holder: &Spawned<Holder>) -> Health {
    ask(node, &holder.address(), Check)
}

/// Returns its health in a life after the one in `before`.
fn next_life(node: &Node, holder: &Spawned<Holder>, before: u32) -> Health {
    loop {
        match node.block_on(holder.address().ask(Check)) {
            Ok(health) if health.pid != before => return health,
            Ok(_) => {}
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
    }
}

fn in_group(node: &Node, group: &Group, policy: Restart) -> Spawned<Holder> {
    node.spawn::<Holder>(()).group(group).restart(policy).start().unwrap()
}

fn one_for_all_restarts_all_together_and_counts_once(builder: Builder) {
    let node = builder.start().unwrap();
    let group = node.group("shards", Strategy::OneForAll);
    let members: Vec<_> = (0..3).map(|_| in_group(&node, &group, SOON)).collect();
    let stranger = node.spawn::<Holder>(()).restart(SOON).start().unwrap();
    let untouched = health(&node, &stranger).pid;
    for round in 1..=3_u32 {
        let before: Vec<_> = members.iter().map(|member| health(&node, member).pid).collect();
        let victim = round as usize % 3;
        match round {
            // The first victim panics, and the others are killed.
            1 => deliver(&node, &members[victim].address(), End { how: How::Panic, door: None }),
            _ => kill(before[victim]),
        }
        for (member, before) in members.iter().zip(&before) {
            next_life(&node, member, *before);
        }
        for (number, member) in members.iter().enumerate() {
            let status = node.supervisor().worker(member.worker()).unwrap();
            assert_eq!((status.restarts, status.process.incarnation()), (round, round));
            let why = status.last_end.unwrap();
            assert_eq!(matches!(why, EndReason::Group(_)), number != victim, "{number}: {why}");
        }
    }
    assert_eq!(health(&node, &stranger).pid, untouched);
    // Each worker caused one end, and only that one is counted against it: see the next case.
    let report = node.report().unwrap();
    assert_eq!(report.restarts.len(), 3);
    for worker in &report.restarts {
        assert_eq!((worker.restarts, worker.ends.len()), (3, 3));
        let others = worker.ends.iter().filter(|end| matches!(end, EndReason::Group(_)));
        assert_eq!(others.count(), 2);
    }
}

fn what_others_do_costs_no_restart(builder: Builder) {
    let node = builder.start().unwrap();
    let group = node.group("pair", Strategy::OneForAll);
    let few = Restart::on_failure(1).backoff(Duration::from_millis(1), Duration::from_millis(1));
    let (frail, rich) = (in_group(&node, &group, SOON), in_group(&node, &group, few));
    for _ in 0..3 {
        let (one, other) = (health(&node, &frail).pid, health(&node, &rich).pid);
        kill(one);
        next_life(&node, &frail, one);
        next_life(&node, &rich, other);
    }
    let (one, other) = (health(&node, &frail).pid, health(&node, &rich).pid);
    kill(other);
    next_life(&node, &rich, other);
    next_life(&node, &frail, one);
}

fn a_group_is_given_up_as_a_whole(builder: Builder) {
    let node = builder.start().unwrap();
    let group = node.group("pair", Strategy::OneForAll);
    let once = Restart::on_failure(1).backoff(Duration::from_millis(1), Duration::from_millis(1));
    let (first, second) = (in_group(&node, &group, once), in_group(&node, &group, SOON));
    let mut watch = node.watch(&second.address::<Hold>());
    let (one, other) = (health(&node, &first).pid, health(&node, &second).pid);
    kill(one);
    let one = next_life(&node, &first, one).pid;
    next_life(&node, &second, other);
    kill(one);
    until("both are given up", || {
        [&first, &second].into_iter().all(|member| {
            let result = node.block_on(member.address().send(Hold::label(1)));
            matches!(result.map_err(|error| error.reason), Err(SendFailure::GaveUp(_)))
        })
    });
    for member in [&first, &second] {
        let status = node.supervisor().worker(member.worker()).unwrap();
        assert!(matches!(status.state, WorkerState::Exited { .. }), "{status:?}");
    }
    let events: Vec<_> = std::iter::from_fn(|| watch.blocking_recv()).collect();
    let [Lifecycle::Down { .. }, Lifecycle::Up { incarnation: 1, .. }, Lifecycle::GaveUp { reason, .. }] =
        events.as_slice()
    else {
        panic!("{events:?}");
    };
    assert!(matches!(reason, EndReason::Group(_)), "{reason}");
}

/// A worker that is in two groups ties them together, and the other actors of a worker restart with it.
fn group_restarts_pass_on_from_group_to_group(builder: Builder) {
    let node = builder.start().unwrap();
    let (left, right) = (node.group("left", Strategy::OneForAll), node.group("right", Strategy::OneForAll));
    let loose = node.group("loose", Strategy::OneForOne);
    let both = node.worker("both").unwrap();
    let there =
        |group: &Group| node.spawn::<Holder>(()).worker(both).group(group).restart(SOON).start().unwrap();
    let (in_left, in_right) = (there(&left), there(&right));
    let (far_left, far_right) = (in_group(&node, &left, SOON), in_group(&node, &right, SOON));
    let (one, other) = (in_group(&node, &loose, SOON), in_group(&node, &loose, SOON));
    let all = [&in_left, &in_right, &far_left, &far_right];
    for victim in [&far_left, &in_right] {
        let before: Vec<_> = all.iter().map(|member| health(&node, member).pid).collect();
        kill(health(&node, victim).pid);
        for (member, before) in all.iter().zip(before) {
            next_life(&node, member, before);
        }
    }
    let (before, kept) = (health(&node, &one).pid, health(&node, &other).pid);
    kill(before);
    next_life(&node, &one, before);
    assert_eq!(health(&node, &other).pid, kept, "one for one");
}

/// The next lives begin together: none before the last of the old ones has ended.
fn nobody_begins_anew_before_the_last_has_ended(builder: Builder) {
    let node = builder.start().unwrap();
    let group = node.group("pair", Strategy::OneForAll);
    let (quick, slow) = (in_group(&node, &group, SOON), in_group(&node, &group, SOON));
    let before = health(&node, &quick).pid;
    let gate = Gate::new();
    // In a handler that does not end, it cannot end by itself, and is killed after a while.
    deliver(&node, &slow.address(), Hold::at(1, &gate.door()));
    let arrival = gate.arrival();
    let (mut quicks, mut slows) = (node.watch(&quick.address::<Hold>()), node.watch(&slow.address::<Hold>()));
    kill(before);
    assert!(matches!(quicks.blocking_recv(), Some(Lifecycle::Down { will_restart: true, .. })));
    assert!(matches!(slows.blocking_recv(), Some(Lifecycle::Down { will_restart: true, .. })));
    assert_eq!(quicks.try_recv(), None, "it waits for the other");
    assert!(matches!(quicks.blocking_recv(), Some(Lifecycle::Up { incarnation: 1, .. })));
    assert!(matches!(slows.blocking_recv(), Some(Lifecycle::Up { incarnation: 1, .. })));
    drop(arrival);
}

fn who_watches_hears_of_each_life_in_order(builder: Builder) {
    let node = builder.start().unwrap();
    let policy = Restart::on_failure(2).backoff(Duration::from_millis(1), Duration::from_millis(1));
    let holder = node.spawn::<Holder>(()).restart(policy).start().unwrap();
    let actor = holder.actor();
    let tie = || vec![Tie::Watch(holder.address()), Tie::Watch(holder.address())];
    let friend = node.spawn::<Friend>((tie(), None)).start().unwrap();
    let mut watch = node.watch(&holder.address::<Hold>());
    // The friend's own request goes through the node, behind this answer.
    assert_eq!(ask(&node, &friend.address(), Events), []);
    let first = health(&node, &holder).pid;
    kill(first);
    let second = next_life(&node, &holder, first).pid;
    deliver(&node, &holder.address(), End { how: How::Panic, door: None });
    next_life(&node, &holder, second);
    deliver(&node, &holder.address(), End { how: How::Exit, door: None });
    let events: Vec<_> = std::iter::from_fn(|| watch.blocking_recv()).collect();
    assert!(events.iter().all(|event| event.actor() == actor));
    let [
        Lifecycle::Down { reason: EndReason::Signal(9), will_restart: true, .. },
        Lifecycle::Up { incarnation: 1, .. },
        Lifecycle::Down { reason: EndReason::HandlerPanic(_), will_restart: true, .. },
        Lifecycle::Up { incarnation: 2, .. },
        Lifecycle::GaveUp { reason: EndReason::Exit(3), .. },
    ] = events.as_slice()
    else {
        panic!("{events:?}");
    };
    until("the friend has heard the same", || ask(&node, &friend.address(), Events) == events);
    // A watcher that comes later hears how it ended.
    let mut late = node.watch(&holder.address::<Hold>());
    assert_eq!(late.blocking_recv().as_ref(), events.last());
    assert_eq!(late.blocking_recv(), None);
    let late = node.spawn::<Friend>((tie(), None)).start().unwrap();
    // The friend asks twice, and both times the end is over already.
    until("a late friend hears it too", || ask(&node, &late.address(), Events).last() == events.last());
    assert_eq!(watch.missed(), 0);
}

fn a_normal_end_is_an_end_and_no_failure(builder: Builder) {
    let node = builder.start().unwrap();
    let holder = node.spawn::<Holder>(()).start().unwrap();
    let mut watch = node.watch(&holder.address::<Hold>());
    let linked = node.spawn::<Friend>((vec![Tie::Link(holder.address())], None)).start().unwrap();
    ask(&node, &linked.address(), Events);
    deliver(&node, &holder.address(), End { how: How::Stop, door: None });
    let event = watch.blocking_recv();
    assert!(
        matches!(event, Some(Lifecycle::Down { reason: EndReason::Normal, will_restart: false, .. })),
        "{event:?}"
    );
    assert_eq!(ask(&node, &linked.address(), Life), 0, "it lives on");
}

fn an_actor_fails_with_what_it_is_linked_to(builder: Builder) {
    let node = builder.start().unwrap();
    let holder = node.spawn::<Holder>(()).restart(LATE).start().unwrap();
    let house = node.worker("house").unwrap();
    let tie = vec![Tie::Link(holder.address())];
    // One friend is alone in its process, and one shares it: there only the actor fails.
    let alone = node.spawn::<Friend>((tie.clone(), None)).restart(SOON).start().unwrap();
    let shared = node.spawn::<Friend>((tie.clone(), None)).worker(house).restart(SOON).start().unwrap();
    let mortal = node.spawn::<Friend>((tie, None)).start().unwrap();
    let neighbour = node.spawn::<Holder>(()).worker(house).start().unwrap();
    let house_pid = health(&node, &neighbour).pid;
    let mut ends = node.watch(&mortal.address::<Life>());
    for round in 1..=3 {
        let watches = [node.watch(&alone.address::<Life>()), node.watch(&shared.address::<Life>())];
        // The lives follow the requests, and the answers to these two.
        let lives = [&alone, &shared].map(|friend| {
            loop {
                match node.block_on(friend.address().ask(Life)) {
                    Ok(life) => break life,
                    Err(error) => assert!(error.is_retryable(), "{error}"),
                }
            }
        });
        assert_eq!(lives, [round - 1; 2], "while the other is away, being linked to it costs no life");
        let before = health(&node, &holder).pid;
        kill(before);
        for mut watch in watches {
            let event = watch.blocking_recv();
            let Some(Lifecycle::Down { reason: EndReason::Linked(why), will_restart: true, .. }) = &event
            else {
                panic!("{event:?}");
            };
            assert!(why.contains("SIGKILL"), "{why}");
        }
        next_life(&node, &holder, before);
    }
    let event = ends.blocking_recv();
    assert!(
        matches!(&event, Some(Lifecycle::Down { reason: EndReason::Linked(_), will_restart: false, .. })),
        "{event:?}"
    );
    assert_eq!(health(&node, &neighbour).pid, house_pid);
}

fn who_is_linked_to_what_is_gone_fails_at_once(builder: Builder) {
    let node = builder.start().unwrap();
    let holder = node.spawn::<Holder>(()).start().unwrap();
    let mut watch = node.watch(&holder.address::<Hold>());
    kill(health(&node, &holder).pid);
    assert!(watch.blocking_recv().is_some_and(|event| event.is_final()));
    let friend = node.spawn::<Friend>((vec![Tie::Link(holder.address())], None)).start().unwrap();
    let mut ends = node.watch(&friend.address::<Life>());
    let event = ends.blocking_recv();
    assert!(
        matches!(&event, Some(Lifecycle::Down { reason: EndReason::Linked(why), .. }) if why.contains("SIGKILL")),
        "{event:?}"
    );
}

// MBX-2.
fn events_that_nobody_takes_are_dropped_and_counted(builder: Builder) {
    let node = builder.start().unwrap();
    let house = node.worker("house").unwrap();
    let _neighbour = node.spawn::<Holder>(()).worker(house).start().unwrap();
    let policy = Restart::on_failure(1000).backoff(Duration::ZERO, Duration::ZERO);
    // It shares a worker with others: its lives are short and cheap.
    let holder = node.spawn::<Holder>(()).worker(house).restart(policy).start().unwrap();
    let mut watch = node.watch(&holder.address::<Hold>());
    let ends = WATCH_EVENTS / 2 + 10;
    for _ in 0..ends {
        let _ = node.block_on(holder.address().send(End { how: How::Panic, door: None }));
        let _ = node.block_on(holder.address().ask(Check));
    }
    health(&node, &holder);
    until("all have ended", || {
        let restarts = node.report().unwrap().restarts;
        restarts.iter().map(|worker| worker.restarts as usize).sum::<usize>() >= ends
    });
    let last = drain(&mut watch);
    assert!(last.len() <= WATCH_EVENTS, "{}", last.len());
    assert!(watch.missed() >= 20, "{}", watch.missed());
    assert!(matches!(last.last(), Some(Lifecycle::Up { .. })), "the last ones are kept: {:?}", last.last());
}

fn drain(watch: &mut Watch) -> Vec<Lifecycle> {
    std::iter::from_fn(|| watch.try_recv()).collect()
}

/// Its mailbox stays full for long, and nothing else waits for it.
fn a_slow_watcher_holds_nobody_up(builder: Builder) {
    let node = builder.start().unwrap();
    let gate = Gate::new();
    let holder = node.spawn::<Holder>(()).restart(SOON).start().unwrap();
    let args = (vec![Tie::Watch(holder.address())], Some(gate.door()));
    let slow = node.spawn::<Friend>(args).mailbox(1).own_thread().start().unwrap();
    ask(&node, &slow.address(), Life);
    let mut pid = health(&node, &holder).pid;
    let mut arrivals = Vec::new();
    for round in 0..4 {
        kill(pid);
        pid = next_life(&node, &holder, pid).pid;
        if round == 0 {
            arrivals.push(gate.arrival());
        }
    }
    arrivals.drain(..).for_each(|arrival| arrival.open());
    for _ in 1..8 {
        gate.pass_one();
    }
    let events = ask(&node, &slow.address(), Events);
    let lives: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            Lifecycle::Up { incarnation, .. } => Some(*incarnation),
            _ => None,
        })
        .collect();
    assert_eq!((events.len(), lives.as_slice()), (8, &[1, 2, 3, 4][..]));
}

pub(crate) fn cases() -> Vec<Case> {
    cases![
        one_for_all_restarts_all_together_and_counts_once,
        what_others_do_costs_no_restart,
        a_group_is_given_up_as_a_whole,
        group_restarts_pass_on_from_group_to_group,
        nobody_begins_anew_before_the_last_has_ended,
        who_watches_hears_of_each_life_in_order,
        a_normal_end_is_an_end_and_no_failure,
        an_actor_fails_with_what_it_is_linked_to,
        who_is_linked_to_what_is_gone_fails_at_once,
        events_that_nobody_takes_are_dropped_and_counted,
        a_slow_watcher_holds_nobody_up,
    ]
}
