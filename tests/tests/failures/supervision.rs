//! Restarts: which actors come back, where their addresses lead meanwhile, and when a supervisor gives up
//! (DEATH-2).

use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::future::join_all;
use rustix::process::{Pid, Signal, kill_process};
use tensorpost::actor::{AskFailure, EndReason};
use tensorpost::node::{RestartReport, Spawned, WorkerId, WorkerState, WorkerStatus};
use tensorpost::prelude::*;
use tensorpost_tests::cases;
use tensorpost_tests::gate::{Door, Gate};
use tensorpost_tests::harness::{Builder, Case};
use tensorpost_tests::holder::{Check, End, Health, Hold, Holder, How, LetGo, Make, Read, Seen};
use tensorpost_tests::wait::{ask, deliver, numbers, until, until_free};

/// Restarts at once, as often as any test here needs.
const SOON: Restart = Restart::on_failure(50).backoff(Duration::from_millis(1), Duration::from_millis(5));

/// Restarts after a delay in which a test can look.
const LATE: Restart = Restart::on_failure(50).backoff(Duration::from_millis(400), Duration::from_millis(400));

/// How long a send that has to fail may wait.
const WAIT_FOR_ROOM: Duration = Duration::from_secs(5);

/// Its `create` follows the orders in its file.
struct Fragile {
    incarnation: u32,
}

impl Actor for Fragile {
    type Context = Context<Self>;
}

impl RemoteActor for Fragile {
    type Args = PathBuf;

    fn create(file: PathBuf, env: &Env) -> anyhow::Result<Self> {
        match std::fs::read_to_string(file)?.as_str() {
            "fail" => anyhow::bail!("it does not want to"),
            "panic" => panic!("it cannot"),
            "exit" => std::process::exit(4),
            _ => Ok(Fragile { incarnation: env.incarnation() }),
        }
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Life>();
    }
}

/// Hands its address out in its `create`, which then fails: with an error, or with its process.
struct Premature;

impl Actor for Premature {
    type Context = Context<Self>;
}

impl RemoteActor for Premature {
    type Args = (Address<Here>, Door, bool);

    fn create((to, door, exits): Self::Args, env: &Env) -> anyhow::Result<Self> {
        // The send is tried until the link is there: `create` cannot wait.
        let mut here = Here(env.address());
        while let Err(error) = to.try_send(here) {
            anyhow::ensure!(error.is_retryable(), "{error}");
            here = error.message;
            std::thread::yield_now();
        }
        env.publish();
        door.pass()?;
        if exits {
            std::process::exit(4);
        }
        anyhow::bail!("it does not want to")
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Life>();
    }
}

impl Handler<Life> for Premature {
    type Result = u32;

    fn handle(&mut self, _: Life, _: &mut Context<Self>) -> u32 {
        0
    }
}

/// "This is my address."
#[derive(Debug, Serialize, Deserialize, GpuMessage)]
struct Here(Address<Life>);

/// "Which life is this?"
#[derive(Debug, Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = u32)]
struct Life;

impl Handler<Life> for Fragile {
    type Result = u32;

    fn handle(&mut self, _: Life, _: &mut Context<Self>) -> u32 {
        self.incarnation
    }
}

/// Passes labels on to a holder that it knows from its arguments.
struct Relay {
    to: Address<Hold>,
    stream: DeviceStream,
}

impl Actor for Relay {
    type Context = Context<Self>;
}

impl RemoteActor for Relay {
    type Args = Address<Hold>;

    fn create(to: Address<Hold>, env: &Env) -> anyhow::Result<Self> {
        Ok(Relay { to, stream: env.stream() })
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Pass>();
    }
}

/// "Send this on, with a tensor." The reply comes when it was handled, or says why it was not.
#[derive(Debug, Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Result<u32, String>)]
struct Pass(u64);

impl Handler<Pass> for Relay {
    type Result = ResponseFuture<Result<u32, String>>;

    fn handle(&mut self, Pass(label): Pass, _: &mut Context<Self>) -> Self::Result {
        let asking = self.to.ask(Hold::with(label, numbers(&self.stream, 0, 4)));
        Box::pin(async move { asking.await.map(|_| std::process::id()).map_err(|error| error.to_string()) })
    }
}

fn health(node: &Node, holder: &Spawned<Holder>) -> Health {
    ask(node, &holder.address(), Check)
}

fn status(node: &Node, worker: WorkerId) -> WorkerStatus {
    node.supervisor().worker(worker).expect("it is listed")
}

fn kill(pid: u32) {
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::KILL).unwrap();
}

/// Kills a worker's process, and waits until its supervisor has seen the end and this process knows of it.
fn kill_and_see(node: &Node, worker: WorkerId) {
    let WorkerStatus { pid, process, .. } = status(node, worker);
    kill(pid);
    until("its end is seen", || {
        let now = status(node, worker);
        now.process != process || !matches!(now.state, WorkerState::Running)
    });
    // The end is listed before it is announced to all, by one thread that answers when both are done.
    node.supervisor().report().unwrap();
}

fn a_killed_worker_comes_back_under_the_same_address_and_name(builder: Builder) {
    let node = builder.start().unwrap();
    let stream = node.host_stream().unwrap();
    let holder = node.spawn::<Holder>(()).name("holder").restart(SOON).start().unwrap();
    let relay = node.spawn::<Relay>(holder.address()).start().unwrap();
    let first = status(&node, holder.worker());
    for life in 1..=4_u32 {
        let before = health(&node, &holder);
        ask(&node, &holder.address(), Hold::with(7, numbers(&stream, 0, 8)));
        kill(before.pid);
        // This process is told nothing of the death: the message is sent until it arrives in the next life.
        let after = loop {
            match node.block_on(holder.address().ask(Check)) {
                Ok(health) if health.pid != before.pid => break health,
                Ok(_) => {}
                Err(error) => assert!(error.is_retryable(), "{error}"),
            }
        };
        assert_eq!(after.actor, before.actor);
        assert!(ask(&node, &holder.address(), Seen).is_empty(), "what it knew is lost with its life");
        // A process that had sent to the earlier life reaches the new one, and so does a look-up by name.
        ask(&node, &relay.address(), Pass(u64::from(life))).unwrap();
        let named = node.lookup::<Seen>("holder").unwrap();
        assert_eq!(ask(&node, &named, Seen), [u64::from(life)]);
        let now = status(&node, holder.worker());
        assert_eq!((now.restarts, now.last_end), (life, Some(EndReason::Signal(9))));
        assert_eq!(
            (now.process.slot(), now.process.incarnation()),
            (first.process.slot(), life),
            "the slot again"
        );
    }
    until_free(&node);
    let report = node.shutdown(Duration::from_secs(20)).unwrap();
    assert!(report.is_clean(), "{report:?}");
    let RestartReport { restarts, ends, name, .. } = &report.restarts[0];
    assert_eq!(
        (*restarts, name.as_str(), ends.as_slice()),
        (4, "holder", &[const { EndReason::Signal(9) }; 4][..])
    );
}

// LEASE-4.
fn what_an_earlier_life_made_is_read_right_by_the_next(builder: Builder) {
    let node = builder.start().unwrap();
    let holder = node.spawn::<Holder>(()).restart(SOON).start().unwrap();
    let mut kept = Vec::new();
    for life in 1..=3 {
        let made = ask(&node, &holder.address(), Make { elements: vec![life, 8], door: None });
        assert_eq!(made.to_vec::<u32>().unwrap(), [life, 8]);
        kept.push(made);
        kill_and_see(&node, holder.worker());
        for (made, life) in kept.iter().zip(1..) {
            assert_eq!(ask(&node, &holder.address(), Read(made.clone())), [life, 8]);
        }
    }
    drop(kept);
    until_free(&node);
    let report = node.shutdown(Duration::from_secs(20)).unwrap();
    assert!(report.is_clean(), "{report:?}");
}

// MBX-1.
fn what_is_sent_while_an_actor_is_restarted_waits_in_order(builder: Builder) {
    let node = builder.start().unwrap();
    let stream = node.host_stream().unwrap();
    let holder = node.spawn::<Holder>(()).mailbox(2).restart(LATE).start().unwrap();
    let relay = node.spawn::<Relay>(holder.address()).start().unwrap();
    let gate = Gate::new();
    // Two are with the holder when it dies, and lost with it; the others wait for room.
    let send = |label| holder.address::<Hold>().send(Hold::with(label, numbers(&stream, 0, 1)));
    deliver(&node, &holder.address(), Hold::at(0, &gate.door()));
    let mut sent = vec![send(1)];
    sent.extend((2..6).map(send));
    let arrival = gate.arrival();
    kill_and_see(&node, holder.worker());
    drop(arrival);
    assert!(matches!(status(&node, holder.worker()).state, WorkerState::Restarting { .. }));
    let error = holder.address().try_send(Hold::with(99, numbers(&stream, 4, 1))).unwrap_err();
    assert!(matches!(error.reason, SendFailure::Restarting) && error.is_retryable(), "{error}");
    assert_eq!(error.message.tensors[0].item::<u32>().unwrap(), 4);
    let late = node.block_on(async { send(98).timeout(Duration::from_millis(5)).await }).unwrap_err();
    assert!(matches!(late.reason, SendFailure::TimedOut) && late.message.label == 98, "{late}");
    drop((error, late));
    sent.extend((6..12).map(send));
    let passing = relay.address().ask(Pass(100));
    for sent in node.block_on(join_all(sent)) {
        sent.unwrap();
    }
    node.block_on(passing).unwrap().unwrap();
    let seen = ask(&node, &holder.address(), Seen);
    let mine: Vec<_> = seen.iter().copied().filter(|label| *label != 100).collect();
    assert_eq!(mine, (2..12).collect::<Vec<_>>());
    assert_eq!(seen.len(), mine.len() + 1, "and the other sender's, once");
    ask(&node, &holder.address(), LetGo);
    until_free(&node);
}

fn asks_that_a_life_ends_with_name_the_worker_and_whether_to_ask_again(builder: Builder) {
    for (policy, again) in [(SOON, true), (Restart::never(), false)] {
        let node = fresh(&builder).start().unwrap();
        let holder = node.spawn::<Holder>(()).name("victim").restart(policy).start().unwrap();
        health(&node, &holder); // the link is made
        let gate = Gate::new();
        let asked = holder.address().ask(Make { elements: vec![1], door: Some(gate.door()) });
        let arrival = gate.arrival();
        kill(status(&node, holder.worker()).pid);
        let error = node.block_on(asked).unwrap_err();
        drop(arrival);
        assert_eq!(error.is_retryable(), again, "{error}");
        assert!(
            error.to_string().contains("worker `victim` (p1.0) has ended: signal: 9 (SIGKILL)"),
            "{error}"
        );
        let AskError::NoReply(AskFailure::ProcessExited(exited)) = error else { panic!("{error:?}") };
        assert_eq!(exited.worker, Some(("victim".into(), EndReason::Signal(9))));
        if again {
            assert_eq!(
                ask(&node, &holder.address(), Make { elements: vec![2], door: None })
                    .to_vec::<u32>()
                    .unwrap(),
                [2]
            );
        }
    }
}

fn each_way_to_end_has_a_reason_of_its_own(builder: Builder) {
    let node = builder.start().unwrap();
    let holder = node.spawn::<Holder>(()).restart(SOON).start().unwrap();
    let mut pid = health(&node, &holder).pid;
    let mut end = |how: Option<How>, reason: fn(&EndReason) -> bool| {
        match how {
            Some(how) => deliver(&node, &holder.address(), End { how, door: None }),
            None => node.supervisor().kill_worker(holder.worker()),
        }
        until("it is back", || match node.block_on(holder.address().ask(Check)) {
            Ok(health) => std::mem::replace(&mut pid, health.pid) != health.pid,
            Err(error) => {
                assert!(error.is_retryable() || how.is_some(), "{how:?}: {error}");
                false
            }
        });
        let why = status(&node, holder.worker()).last_end.unwrap();
        assert!(reason(&why), "{how:?}: {why:?}");
    };
    end(
        Some(How::Panic),
        |why| matches!(why, EndReason::HandlerPanic(text) if text.contains("told to panic")),
    );
    end(Some(How::PanicLater), |why| matches!(why, EndReason::HandlerPanic(_)));
    end(Some(How::Exit), |why| *why == EndReason::Exit(3));
    end(None, |why| matches!(why, EndReason::KilledByNode(_)));
    // A stop that the actor itself wanted is no failure.
    deliver(&node, &holder.address(), End { how: How::Stop, door: None });
    until("it has stopped", || match node.block_on(holder.address().send(Hold::label(1))) {
        Ok(()) => false,
        Err(error) => matches!(error.reason, SendFailure::NoSuchActor) && !error.is_retryable(),
    });
    assert_eq!(status(&node, holder.worker()).restarts, 4);
}

fn one_that_is_always_restarted_comes_back_after_a_stop(builder: Builder) {
    let node = builder.start().unwrap();
    let holder = node.spawn::<Holder>(()).restart(Restart::always(1)).start().unwrap();
    let pid = health(&node, &holder).pid;
    deliver(&node, &holder.address(), End { how: How::Stop, door: None });
    until("it is back", || node.block_on(holder.address().ask(Check)).is_ok_and(|now| now.pid != pid));
    deliver(&node, &holder.address(), End { how: How::Stop, door: None });
    until("it is given up", || match node.block_on(holder.address().send(Hold::label(1))) {
        Ok(()) => false,
        Err(error) => matches!(error.reason, SendFailure::GaveUp(EndReason::Normal)),
    });
    let report = node.shutdown(Duration::from_secs(20)).unwrap();
    assert_eq!(report.restarts[0].ends, [EndReason::Normal, EndReason::Normal]);
}

fn fragile(node: &Node, file: &Path) -> Spawned<Fragile> {
    std::fs::write(file, "work").unwrap();
    let policy = Restart::on_failure(3).backoff(Duration::from_millis(1), Duration::from_millis(2));
    node.spawn::<Fragile>(file.to_path_buf()).name("fragile").restart(policy).start().unwrap()
}

fn one_that_dies_while_it_starts_is_given_up_at_its_budget(builder: Builder) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mood");
    for (mood, last) in [
        ("fail", EndReason::CreateFailed("it does not want to".into())),
        ("panic", EndReason::CreateFailed("`create` panicked: it cannot".into())),
        ("exit", EndReason::Exit(4)),
    ] {
        let node = fresh(&builder).start().unwrap();
        let fragile = fragile(&node, &file);
        assert_eq!(ask(&node, &fragile.address(), Life), 0);
        std::fs::write(&file, mood).unwrap();
        kill_and_see(&node, fragile.worker());
        // The ask waits until there is nothing to wait for.
        let error = node.block_on(fragile.address().ask(Life)).unwrap_err();
        assert!(!error.is_retryable(), "{error}");
        let AskError::NotSent(error) = error else { panic!("{error:?}") };
        assert!(matches!(&error.reason, SendFailure::GaveUp(reason) if *reason == last), "{error}");
        assert!(error.to_string().contains(&last.to_string()), "{error}");
        assert!(node.lookup::<Life>("fragile").is_err(), "its name is free");
        let now = status(&node, fragile.worker());
        assert!(matches!(now.state, WorkerState::Exited { .. }), "{now:?}");
        let report = node.shutdown(Duration::from_secs(20)).unwrap();
        let ends = [EndReason::Signal(9), last.clone(), last.clone(), last];
        assert_eq!((report.restarts[0].restarts, report.restarts[0].ends.as_slice()), (3, &ends[..]));
    }
}

fn one_that_recovers_before_its_budget_is_used_up_goes_on(builder: Builder) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mood");
    let node = builder.start().unwrap();
    let fragile = fragile(&node, &file);
    std::fs::write(&file, "fail").unwrap();
    kill_and_see(&node, fragile.worker());
    until("it has failed to start", || {
        matches!(status(&node, fragile.worker()).last_end, Some(EndReason::CreateFailed(_)))
    });
    std::fs::write(&file, "work").unwrap();
    let life = node.block_on(fragile.address().ask(Life)).unwrap();
    assert!(life == 2 || life == 3, "{life}");
}

fn a_first_start_that_fails_is_reported_and_not_repeated(builder: Builder) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mood");
    std::fs::write(&file, "fail").unwrap();
    let node = builder.start().unwrap();
    let error = node.spawn::<Fragile>(file).restart(SOON).start().unwrap_err();
    assert!(error.to_string().contains("it does not want to"), "{error}");
    // The worker that was started for it does not stay either.
    let has_exited = |worker: &WorkerStatus| matches!(worker.state, WorkerState::Exited { .. });
    until("its worker has ended", || node.workers().iter().all(has_exited));
    assert!(node.shutdown(Duration::from_secs(20)).unwrap().restarts.is_empty());
}

/// The end shows at once and in every way: no send is accepted for the dead actor, or told that its place is
/// unknown.
fn who_has_waited_for_an_end_finds_it_everywhere(builder: Builder) {
    let node = builder.start().unwrap();
    let ends = |holder: &Spawned<Holder>| {
        health(&node, holder);
        node.supervisor().kill_worker(holder.worker());
        let ended = node.supervisor().await_end(holder.worker());
        let error = holder.address().try_send(Hold::label(1)).unwrap_err();
        assert!(matches!(ended, Some(WorkerState::Exited { .. })), "{ended:?}");
        (error.reason, status(&node, holder.worker()).state)
    };
    for _ in 0..20 {
        let holder = node.spawn::<Holder>(()).name("mortal").start().unwrap();
        let now = ends(&holder);
        assert!(matches!(now, (SendFailure::ProcessExited(_), WorkerState::Exited { .. })), "{now:?}");
        assert!(node.lookup::<Hold>("mortal").is_err());
    }
    let holder = node.spawn::<Holder>(()).restart(LATE).start().unwrap();
    for _ in 0..3 {
        let now = ends(&holder);
        assert!(matches!(now, (SendFailure::Restarting, WorkerState::Restarting { .. })), "{now:?}");
    }
}

fn actors_that_share_a_worker_come_back_together_if_they_have_a_policy(builder: Builder) {
    let node = builder.start().unwrap();
    let worker = node.worker("house").unwrap();
    let spawn = |policy| node.spawn::<Holder>(()).worker(worker).restart(policy).start().unwrap();
    let (one, other, mortal) = (spawn(SOON), spawn(SOON), spawn(Restart::never()));
    let before = health(&node, &one).pid;
    kill_and_see(&node, worker);
    let back = |holder: &Spawned<Holder>| loop {
        match node.block_on(holder.address().ask(Check)) {
            Ok(health) => break health,
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
    };
    let (one_now, other_now) = (back(&one), back(&other));
    assert!(one_now.pid != before && one_now.pid == other_now.pid);
    assert_eq!((one_now.actor, other_now.actor), (one.actor(), other.actor()));
    let error = node.block_on(mortal.address().send(Hold::label(1))).unwrap_err();
    assert!(matches!(error.reason, SendFailure::ProcessExited(_)) && !error.is_retryable(), "{error}");
    assert!(error.to_string().contains("worker `house`"), "{error}");
}

/// Its neighbours did nothing wrong.
fn an_actor_that_panics_in_a_shared_worker_comes_back_alone(builder: Builder) {
    let node = builder.start().unwrap();
    let worker = node.worker("house").unwrap();
    let spawn = |policy| node.spawn::<Holder>(()).worker(worker).restart(policy).start().unwrap();
    let (panics, other) = (spawn(LATE), spawn(Restart::never()));
    let relay = node.spawn::<Relay>(panics.address()).worker(worker).start().unwrap();
    let far = node.spawn::<Relay>(panics.address()).start().unwrap();
    ask(&node, &other.address(), Hold::label(5));
    let before = health(&node, &panics);
    for round in 0..3 {
        // Messages of the same process, of the node and of another worker wait for it.
        let gate = Gate::new();
        deliver(&node, &panics.address(), End { how: How::Panic, door: Some(gate.door()) });
        let arrival = gate.arrival();
        let lost = panics.address().ask(Seen);
        arrival.open();
        let error = node.block_on(lost).unwrap_err();
        assert!(error.is_retryable(), "{error}");
        let passing = [relay.address().ask(Pass(1)), far.address().ask(Pass(2))];
        let mine = panics.address().send(Hold::label(3));
        node.block_on(mine).unwrap();
        for passed in node.block_on(join_all(passing)) {
            passed.unwrap().unwrap();
        }
        let mut seen = ask(&node, &panics.address(), Seen);
        seen.sort_unstable();
        assert_eq!(seen, [1, 2, 3], "in round {round}");
        assert_eq!(health(&node, &panics).pid, before.pid);
    }
    assert_eq!(ask(&node, &other.address(), Seen), [5]);
    assert_eq!(status(&node, worker).restarts, 3);
}

/// Addresses in the arguments of an actor are as old as the actor's first start.
fn an_actor_that_comes_back_finds_others_that_have_moved(builder: Builder) {
    let node = builder.start().unwrap();
    let holder = node.spawn::<Holder>(()).restart(SOON).start().unwrap();
    let relay = node.spawn::<Relay>(holder.address()).restart(SOON).start().unwrap();
    for round in 0..3 {
        kill_and_see(&node, holder.worker());
        kill_and_see(&node, relay.worker());
        let passed = loop {
            match node.block_on(relay.address().ask(Pass(round))) {
                Ok(passed) => break passed,
                Err(error) => assert!(error.is_retryable(), "{error}"),
            }
        };
        passed.unwrap();
        assert_eq!(ask(&node, &holder.address(), Seen), [round]);
    }
    // And an actor that was never there before.
    let late = node.spawn::<Relay>(holder.address()).start().unwrap();
    ask(&node, &late.address(), Pass(9)).unwrap();
    assert_eq!(ask(&node, &holder.address(), Seen), [2, 9]);
}

fn a_shutdown_does_not_wait_for_what_is_to_come_back(builder: Builder) {
    let node = builder.start().unwrap();
    let policy = Restart::on_failure(9).backoff(Duration::from_secs(600), Duration::from_secs(600));
    let holder = node.spawn::<Holder>(()).restart(policy).start().unwrap();
    kill_and_see(&node, holder.worker());
    let waiting = holder.address::<Hold>().send(Hold::label(1));
    let report = node.shutdown(Duration::from_secs(20)).unwrap();
    assert!(report.drained && report.took < Duration::from_secs(10), "{report:?}");
    let error = node.block_on(waiting).unwrap_err();
    assert!(matches!(error.reason, SendFailure::GaveUp(_)) && error.message.label == 1, "{error}");
}

/// DEATH-2: the page of the mailbox says that it comes back, and the node says that it does not.
fn one_without_a_restart_left_in_a_shared_worker_fails_who_waits(builder: Builder) {
    let node = builder.start().unwrap();
    let worker = node.worker("house").unwrap();
    let spawn = |policy| node.spawn::<Holder>(()).worker(worker).mailbox(1).restart(policy).start().unwrap();
    let other = spawn(Restart::never());
    for _ in 0..10 {
        let holder = spawn(Restart::on_failure(0));
        let gate = Gate::new();
        deliver(&node, &holder.address(), End { how: How::Panic, door: Some(gate.door()) });
        let arrival = gate.arrival();
        let sends = [1, 2].map(|label| holder.address::<Hold>().send(Hold::label(label)));
        arrival.open();
        let sent = node.block_on(async { join_all(sends.map(|send| send.timeout(WAIT_FOR_ROOM))).await });
        // The first message may have found the room that the panic left, and is lost with the life. The
        // second cannot have found room.
        let reason = sent.into_iter().next_back().unwrap().unwrap_err().reason;
        assert!(matches!(reason, SendFailure::GaveUp(EndReason::HandlerPanic(_))), "{reason:?}");
    }
    health(&node, &other);
}

/// As above, but here the shutdown is the reason that it has no restart left.
fn one_that_fails_while_the_node_drains_fails_who_waits(builder: Builder) {
    let node = builder.start().unwrap();
    let (worker, apart) = (node.worker("house").unwrap(), node.worker("apart").unwrap());
    let spawn = |policy| node.spawn::<Holder>(()).worker(worker).mailbox(1).restart(policy).start().unwrap();
    let (holder, other) = (spawn(SOON), spawn(Restart::never()));
    health(&node, &other);
    let mut events = node.watch(&holder.address::<Hold>());
    let gate = Gate::new();
    deliver(&node, &holder.address(), End { how: How::Panic, door: Some(gate.door()) });
    let arrival = gate.arrival();
    let sends = [1, 2].map(|label| holder.address::<Hold>().send(Hold::label(label)));
    let report = std::thread::scope(|threads| {
        let report = threads.spawn(|| node.shutdown(Duration::from_secs(20)).unwrap());
        until("the shutdown has begun", || node.spawn::<Holder>(()).worker(apart).start().is_err());
        arrival.open();
        let sent = node.block_on(async { join_all(sends.map(|send| send.timeout(WAIT_FOR_ROOM))).await });
        let reason = sent.into_iter().next_back().unwrap().unwrap_err().reason;
        assert!(matches!(reason, SendFailure::GaveUp(EndReason::HandlerPanic(_))), "{reason:?}");
        report.join().unwrap()
    });
    assert!(report.drained && report.took < Duration::from_secs(10), "{report:?}");
    let event = events.blocking_recv();
    assert!(matches!(event, Some(Lifecycle::GaveUp { .. })), "{event:?}");
}

/// The address of an actor may be known before the actor has started.
fn who_watches_one_that_does_not_start_hears_of_it(builder: Builder) {
    let node = builder.start().unwrap();
    for exits in [false, true] {
        let (here, mut channel) = node.channel::<Here>().unwrap();
        let gate = Gate::new();
        let event = std::thread::scope(|threads| {
            let args = (here, gate.door(), exits);
            let starting = threads.spawn(|| node.spawn::<Premature>(args).own_thread().start());
            let Here(address) = channel.blocking_recv().unwrap();
            let mut watch = node.watch(&address);
            // The node has heard of it, because it answers in order.
            node.supervisor().report().unwrap();
            gate.arrival().open();
            starting.join().unwrap().unwrap_err();
            let mut event = None;
            until("it is told", || {
                event = watch.try_recv();
                event.is_some()
            });
            event
        });
        let Some(Lifecycle::Down { reason, will_restart: false, .. }) = event else { panic!("{event:?}") };
        let expected =
            if exits { EndReason::Exit(4) } else { EndReason::CreateFailed("it does not want to".into()) };
        assert_eq!(reason, expected);
    }
}

/// Another builder of the same program.
fn fresh(_: &Builder) -> Builder {
    Node::builder()
}

pub(crate) fn cases() -> Vec<Case> {
    cases![
        a_killed_worker_comes_back_under_the_same_address_and_name,
        what_an_earlier_life_made_is_read_right_by_the_next,
        what_is_sent_while_an_actor_is_restarted_waits_in_order,
        asks_that_a_life_ends_with_name_the_worker_and_whether_to_ask_again,
        each_way_to_end_has_a_reason_of_its_own,
        one_that_is_always_restarted_comes_back_after_a_stop,
        one_that_dies_while_it_starts_is_given_up_at_its_budget,
        one_that_recovers_before_its_budget_is_used_up_goes_on,
        a_first_start_that_fails_is_reported_and_not_repeated,
        who_has_waited_for_an_end_finds_it_everywhere,
        actors_that_share_a_worker_come_back_together_if_they_have_a_policy,
        an_actor_that_panics_in_a_shared_worker_comes_back_alone,
        an_actor_that_comes_back_finds_others_that_have_moved,
        a_shutdown_does_not_wait_for_what_is_to_come_back,
        one_without_a_restart_left_in_a_shared_worker_fails_who_waits,
        one_that_fails_while_the_node_drains_fails_who_waits,
        who_watches_one_that_does_not_start_hears_of_it,
    ]
}
