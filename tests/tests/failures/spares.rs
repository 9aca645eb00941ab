//! Spare workers: an actor that has ended goes on in a process that had waited, whatever happens to that
//! process (DEATH-2).

use std::collections::HashSet;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use std::sync::Arc;
use tensorpost::actor::EndReason;
use tensorpost::device::DeviceId;
use tensorpost::node::{ActorError, Spawned, WorkerId, WorkerState, WorkerStatus};
use tensorpost::observe::ProcessState;
use tensorpost::prelude::*;
use tensorpost::testing::fault::{Action, Fault};
use tensorpost_tests::cases;
use tensorpost_tests::gate::{Door, Gate};
use tensorpost_tests::harness::{Builder, Case};
use tensorpost_tests::holder::{Check, End, Health, Hold, Holder, How, Make, Read, Seen};
use tensorpost_tests::log;
use tensorpost_tests::wait::{ask, deliver, numbers, until, until_free};

/// Restarts at once, as often as any test here needs.
const SOON: Restart = Restart::on_failure(50).backoff(Duration::from_millis(1), Duration::from_millis(5));

/// Waits at a door in its `create`, in all lives but the first.
struct Gated(u32);

impl Actor for Gated {
    type Context = Context<Self>;
}

impl RemoteActor for Gated {
    type Args = Door;

    fn create(door: Door, env: &Env) -> anyhow::Result<Self> {
        if env.incarnation() > 0 {
            door.pass()?;
        }
        Ok(Gated(env.incarnation()))
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<WhereAreYou>();
    }
}

/// "Which life is this, in which process?"
#[derive(Debug, Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = (u32, u32))]
struct WhereAreYou;

impl Handler<WhereAreYou> for Gated {
    type Result = MessageResult<WhereAreYou>;

    fn handle(&mut self, _: WhereAreYou, _: &mut Context<Self>) -> Self::Result {
        MessageResult((self.0, std::process::id()))
    }
}

fn status(node: &Node, worker: WorkerId) -> WorkerStatus {
    node.supervisor().worker(worker).expect("it is listed")
}

/// Returns the processes that wait for this worker, either the ready ones or the others.
fn spares(node: &Node, worker: WorkerId, ready: bool) -> Vec<WorkerStatus> {
    let mut all = node.workers();
    all.retain(|status| status.state == WorkerState::Spare { of: worker, ready });
    all
}

/// Returns the processes that wait for this worker, once there are this many.
fn until_spares(node: &Node, worker: WorkerId, count: usize) -> Vec<WorkerStatus> {
    let mut found = Vec::new();
    until("there are spares", || {
        found = spares(node, worker, true);
        found.len() == count
    });
    found
}

fn pid_of(number: u32) -> Pid {
    Pid::from_raw(number.cast_signed()).expect("a process")
}

fn kill(pid: u32) {
    kill_process(pid_of(pid), Signal::KILL).expect("it is not waited for yet");
}

fn exists(pid: u32) -> bool {
    test_kill_process(pid_of(pid)).is_ok()
}

/// Asks until there is an answer: an ask that is under way when a life ends is lost.
fn at_last<M: GpuMessage>(node: &Node, address: &Address<M>, message: impl Fn() -> M) -> M::Reply {
    loop {
        match node.block_on(address.ask(message())) {
            Ok(reply) => return reply,
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
    }
}

/// Returns its health in the life after the one in `before`.
fn next(node: &Node, holder: &Spawned<Holder>, before: &Health) -> Health {
    loop {
        let now = at_last(node, &holder.address(), || Check);
        if now.pid != before.pid {
            return now;
        }
    }
}

/// No process is started between a death and the next life: the spare existed, and was known, before.
fn the_next_life_is_a_process_that_waited(builder: Builder) {
    let node = builder.start().unwrap();
    let stream = node.host_stream().unwrap();
    let holder = node.spawn::<Holder>(()).name("holder").restart(SOON).spares(1).start().unwrap();
    let mut lives = HashSet::new();
    let mut kept = Vec::new();
    for life in 1..=3_u32 {
        let before = ask(&node, &holder.address(), Check);
        let spare = until_spares(&node, holder.worker(), 1).remove(0);
        assert_eq!((spare.name.as_str(), spare.actors), ("holder (spare)", 0));
        assert!(spare.worker != holder.worker() && spare.pid != before.pid);
        // It is never the life of a slot that another process had.
        assert!(lives.insert(status(&node, holder.worker()).process) && !lives.contains(&spare.process));
        let metrics = node.metrics().unwrap();
        let shown = metrics.processes.iter().find(|of| of.process == spare.process).expect("it is shown");
        assert_eq!((shown.name.as_str(), shown.state), ("holder (spare)", ProcessState::Spare));
        assert!(shown.metrics.actors.is_empty() && shown.metrics.bytes_held == 0, "{shown:?}");

        kept.push(ask(&node, &holder.address(), Make { elements: vec![life, 8], door: None }));
        ask(&node, &holder.address(), Hold::with(7, numbers(&stream, 0, 8)));
        kill(before.pid);
        let after = next(&node, &holder, &before);
        assert_eq!((after.pid, after.actor), (spare.pid, before.actor));
        assert!(ask(&node, &holder.address(), Seen).is_empty(), "what it knew is lost with its life");
        let now = status(&node, holder.worker());
        assert_eq!((now.name.as_str(), now.process, now.pid), ("holder", spare.process, spare.pid));
        assert_eq!(
            (now.state, now.restarts, now.last_end),
            (WorkerState::Running, life, Some(EndReason::Signal(9)))
        );
        let listed = node.workers().iter().filter(|status| status.name == "holder").count();
        assert_eq!(listed, 1, "in one slot");
        // A look-up by name finds it, tensors that its earlier lives made are read right, and its own memory
        // is a new life's.
        let named = node.lookup::<Seen>("holder").unwrap();
        assert!(ask(&node, &named, Seen).is_empty());
        for (made, life) in kept.iter().zip(1..) {
            assert_eq!(ask(&node, &holder.address(), Read(made.clone())), [life, 8]);
        }
        let made = ask(&node, &holder.address(), Make { elements: vec![9], door: None });
        assert_eq!(made.to_vec::<u32>().unwrap(), [9]);
    }
    drop(kept);
    until_free(&node);
    let report = node.shutdown(Duration::from_secs(20)).unwrap();
    assert!(report.is_clean() && report.workers.len() == 1, "{report:?}");
}

/// Several actors of one worker go on together, and a panic that ends the process is an end like any other.
fn a_shared_worker_goes_on_in_one_spare(builder: Builder) {
    let node = builder.start().unwrap();
    let worker = node.worker("house").unwrap();
    let spawn = || node.spawn::<Holder>(()).worker(worker).restart(SOON);
    let (one, other) = (spawn().spares(1).start().unwrap(), spawn().start().unwrap());
    let before = ask(&node, &one.address(), Check);
    let spare = until_spares(&node, worker, 1).remove(0);
    deliver(&node, &one.address(), End { how: How::Exit, door: None });
    assert_eq!(next(&node, &one, &before).pid, spare.pid);
    assert_eq!(next(&node, &other, &before).pid, spare.pid);
}

fn a_spare_that_ends_is_replaced_and_nobody_is_charged(builder: Builder) {
    let node = builder.start().unwrap();
    let holder = node.spawn::<Holder>(()).restart(SOON).spares(2).start().unwrap();
    let before = ask(&node, &holder.address(), Check);
    let mut known = HashSet::from([before.pid]);
    for _ in 0..3 {
        let now = until_spares(&node, holder.worker(), 2);
        known.extend(now.iter().map(|spare| spare.pid));
        let pids = [now[0].pid, now[1].pid];
        pids.into_iter().for_each(kill);
        until("there are others", || {
            let ready = spares(&node, holder.worker(), true);
            ready.len() == 2 && ready.iter().all(|spare| !known.contains(&spare.pid))
        });
    }
    assert_eq!(ask(&node, &holder.address(), Check).pid, before.pid);
    let report = node.shutdown(Duration::from_secs(20)).unwrap();
    assert!(report.is_clean() && report.restarts.is_empty(), "{report:?}");
}

/// The death of a spare of which nobody has heard yet is not charged to the worker.
fn when_its_spare_has_died_too_a_worker_gets_a_new_process(builder: Builder) {
    let node = builder.start().unwrap();
    let holder = node.spawn::<Holder>(()).restart(SOON).spares(1).start().unwrap();
    for life in 1..=3 {
        let before = ask(&node, &holder.address(), Check);
        let spare = until_spares(&node, holder.worker(), 1).remove(0);
        kill(spare.pid);
        kill(before.pid);
        let after = next(&node, &holder, &before);
        assert_ne!(after.pid, spare.pid);
        assert_eq!(status(&node, holder.worker()).restarts, life);
    }
}

/// A spare that has taken over is the worker: its end is charged, and the next spare follows.
fn one_that_dies_while_it_takes_over_is_followed_by_the_next(builder: Builder) {
    let node = builder.start().unwrap();
    let gate = Gate::new();
    let gated = node.spawn::<Gated>(gate.door()).name("gated").restart(SOON).spares(2).start().unwrap();
    let (life, first) = ask(&node, &gated.address(), WhereAreYou);
    assert_eq!(life, 0);
    let mut waiting: HashSet<u32> =
        until_spares(&node, gated.worker(), 2).iter().map(|spare| spare.pid).collect();
    // It waits in its `create`, in a process that was a spare.
    let mut after = |dies: u32| {
        kill(dies);
        let arrival = gate.arrival();
        let mut pid = dies;
        until("it is listed", || {
            pid = status(&node, gated.worker()).pid;
            pid != dies
        });
        assert!(waiting.remove(&pid));
        (arrival, pid)
    };
    let (_in_the_first, spare) = after(first);
    let (in_the_second, spare) = after(spare);
    in_the_second.open();
    assert_eq!(at_last(&node, &gated.address(), || WhereAreYou), (2, spare));
    assert_eq!(status(&node, gated.worker()).restarts, 2);
}

/// A spare that is still starting becomes the worker when it has started: another process would be later.
fn a_worker_waits_for_its_spare_that_is_starting(builder: Builder) {
    let node = builder.start().unwrap();
    let holder = node.spawn::<Holder>(()).name("holder").restart(SOON).start().unwrap();
    let before = ask(&node, &holder.address(), Check);
    node.supervisor().arm_starts("holder", Fault::new("worker.open", Action::Stop));
    node.supervisor().keep_spares(holder.worker(), 1, DeviceId::HOST);
    let mut spare = None;
    until("a spare stands still at its start", || {
        spare = spares(&node, holder.worker(), false)
            .first()
            .map(|spare| spare.pid)
            .filter(|pid| is_stopped(*pid));
        spare.is_some()
    });
    let spare = spare.unwrap();
    kill(before.pid);
    until("it is the worker", || status(&node, holder.worker()).pid == spare);
    assert_eq!(status(&node, holder.worker()).state, WorkerState::Starting);
    node.supervisor().disarm_starts();
    kill_process(pid_of(spare), Signal::CONT).unwrap();
    assert_eq!(next(&node, &holder, &before).pid, spare);
    until_spares(&node, holder.worker(), 1);
}

/// Nothing is left in it, so nothing else would end it.
fn a_worker_that_is_retired_while_it_comes_back_ends(builder: Builder) {
    let node = builder.start().unwrap();
    let holder = node.spawn::<Holder>(()).name("holder").restart(SOON).start().unwrap();
    let worker = holder.worker();
    node.supervisor().arm_starts("holder", Fault::new("worker.open", Action::Stop));
    kill(status(&node, worker).pid);
    until("its next process stands still at its start", || {
        let now = status(&node, worker);
        now.state == WorkerState::Starting && is_stopped(now.pid)
    });
    node.supervisor().disarm_starts();
    node.supervisor().retire(worker);
    kill_process(pid_of(status(&node, worker).pid), Signal::CONT).unwrap();
    until("it ends", || matches!(status(&node, worker).state, WorkerState::Exited { .. }));
}

fn is_stopped(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
}

/// Spares that cannot start are started more and more seldom, the log says so more and more seldom, and the
/// worker goes on.
fn spares_that_cannot_start_do_not_take_the_machines_time(builder: Builder) {
    let said = Arc::new(Mutex::new(Vec::new()));
    let hears = Arc::clone(&said);
    let listening = log::listen(move |event| {
        let text = log::message_of(event);
        if text.contains("a spare of worker `hopeless`") {
            hears.lock().push((Instant::now(), text));
        }
    });
    let Some(_listening) = listening else { return };
    let node = builder.start().unwrap();
    let policy = Restart::on_failure(5).backoff(Duration::from_millis(30), Duration::from_secs(1));
    let holder = node.spawn::<Holder>(()).name("hopeless").restart(policy).start().unwrap();
    let before = ask(&node, &holder.address(), Check);
    node.supervisor().arm_starts("hopeless", Fault::new("worker.open", Action::Kill));
    let began = Instant::now();
    node.supervisor().keep_spares(holder.worker(), 1, DeviceId::HOST);
    until("four have failed", || said.lock().iter().any(|(_, text)| text.contains("(4 in a row)")));
    let said = std::mem::take(&mut *said.lock());
    let texts: Vec<_> = said.iter().map(|(_, text)| text.as_str()).collect();
    assert_eq!(texts.len(), 3, "of the first, the second and the fourth: {texts:?}");
    assert!(texts[0].contains("another is started in 30ms (1 in a row): signal: 9 (SIGKILL)"), "{texts:?}");
    // Another thread writes the log, later than the events in it.
    let took = said[2].0.duration_since(began);
    assert!(took >= Duration::from_millis(30 + 60 + 120), "{took:?}");
    // A list of the workers shows no heap of dead spares.
    assert!(node.workers().len() <= 2, "{:?}", node.workers());
    assert_eq!(ask(&node, &holder.address(), Check).pid, before.pid);
    node.supervisor().disarm_starts();
    until_spares(&node, holder.worker(), 1);
    assert_eq!(status(&node, holder.worker()).restarts, 0);
}

/// Spares of an actor that does not come back any more end by themselves.
fn spares_end_with_what_they_wait_for(builder: Builder) {
    let node = builder.start().unwrap();
    for stops in [true, false] {
        let policy = if stops { SOON } else { Restart::on_failure(0) };
        let holder = node.spawn::<Holder>(()).restart(policy).spares(2).start().unwrap();
        let pids = until_spares(&node, holder.worker(), 2).into_iter().map(|spare| spare.pid);
        match stops {
            true => deliver(&node, &holder.address(), End { how: How::Stop, door: None }),
            false => node.supervisor().kill_worker(holder.worker()),
        }
        until("they have ended", || pids.clone().all(|pid| !exists(pid)));
        assert!(spares(&node, holder.worker(), true).is_empty());
    }
    let report = node.shutdown(Duration::from_secs(20)).unwrap();
    assert!(report.is_clean(), "{report:?}");
}

/// Some spares are ready, others have just been started.
fn a_shutdown_ends_spares_at_once(builder: Builder) {
    let node = builder.start().unwrap();
    let spawn = |name: &str| node.spawn::<Holder>(()).name(name).restart(SOON).start().unwrap();
    let (ready, starting) = (spawn("ready"), spawn("starting"));
    node.supervisor().keep_spares(ready.worker(), 2, DeviceId::HOST);
    node.supervisor().arm_starts("starting", Fault::new("worker.open", Action::Stop));
    node.supervisor().keep_spares(starting.worker(), 3, DeviceId::HOST);
    until_spares(&node, ready.worker(), 2);
    until("they start", || spares(&node, starting.worker(), false).len() == 3);
    let pids: Vec<_> = node.workers().into_iter().map(|status| status.pid).collect();
    let report = node.shutdown(Duration::from_secs(20)).unwrap();
    assert!(report.is_clean() && report.took < Duration::from_secs(15), "{report:?}");
    assert_eq!(report.workers.len(), 2, "{report:?}");
    assert!(pids.into_iter().all(|pid| !exists(pid)));
}

fn spares_that_would_never_be_used_are_refused(builder: Builder) {
    let node = builder.start().unwrap();
    for (policy, count) in [(Restart::never(), 1), (Restart::on_failure(1), Node::MAX_SPARES + 1)] {
        let refused = node.spawn::<Holder>(()).restart(policy).spares(count).start().unwrap_err();
        assert!(matches!(refused, ActorError::Spares(asked) if asked == count), "{refused}");
        assert!(refused.to_string().contains(".restart(..)"), "{refused}");
    }
    assert!(node.workers().is_empty());
}

pub(crate) fn cases() -> Vec<Case> {
    cases![
        the_next_life_is_a_process_that_waited,
        a_shared_worker_goes_on_in_one_spare,
        a_spare_that_ends_is_replaced_and_nobody_is_charged,
        when_its_spare_has_died_too_a_worker_gets_a_new_process,
        one_that_dies_while_it_takes_over_is_followed_by_the_next,
        a_worker_waits_for_its_spare_that_is_starting,
        a_worker_that_is_retired_while_it_comes_back_ends,
        spares_that_cannot_start_do_not_take_the_machines_time,
        spares_end_with_what_they_wait_for,
        a_shutdown_ends_spares_at_once,
        spares_that_would_never_be_used_are_refused,
    ]
}
