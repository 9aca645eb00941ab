//! A worker is killed at every point at which the framework can be killed, and stopped, and panics. The
//! others go on serving, and nothing is left behind (LEASE-1 to LEASE-4, DEATH-2).

use std::cell::Cell;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tensorpost::node::{Spawned, WorkerState};
use tensorpost::prelude::*;
use tensorpost::testing::fault::{Action, Fault, POINTS};
use tensorpost::testing::{Usage, leaks};
use tensorpost_tests::cases;
use tensorpost_tests::harness::{self, Builder, Case};
use tensorpost_tests::holder::{Check, Hold, Holder, LetGo};
use tensorpost_tests::wait::{ask, deliver, has_stopped, until, until_free};

/// A tensor that travels over a relay and the victim to a holder.
#[derive(Serialize, Deserialize, GpuMessage)]
struct Pass {
    /// The label that the holder reports.
    label: u64,
    tensor: Tensor,
    route: Vec<Address<Pass>>,
    to: Address<Hold>,
}

/// Passes tensors on, with a copy of its own.
struct Relay {
    stream: DeviceStream,
}

impl Actor for Relay {
    type Context = Context<Self>;
}

impl RemoteActor for Relay {
    type Args = ();

    fn create((): (), env: &Env) -> anyhow::Result<Self> {
        Ok(Relay { stream: env.stream() })
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Pass>();
    }
}

impl Handler<Pass> for Relay {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, Pass { label, tensor, mut route, to }: Pass, _: &mut Context<Self>) -> Self::Result {
        // Either receiver may be gone by now; the test is about that.
        if !route.is_empty() {
            let next = route.remove(0);
            let sent = next.send(Pass { label, tensor, route, to }).timeout(Duration::from_secs(5));
            return Box::pin(async move { drop(sent.await) });
        }
        let copied = self.stream.empty(DType::U32, tensor.shape()).and_then(|mut copy| {
            let add = |(from, to): (&[u32], &mut [u32])| {
                to.iter_mut().zip(from).for_each(|(to, from)| *to = from + 1)
            };
            self.stream.run((tensor.of::<u32>(), copy.of_mut::<u32>()), add)?;
            Ok(copy.freeze())
        });
        let Ok(copy) = copied else { return Box::pin(async {}) };
        let sent = to.send(Hold { label, tensors: vec![tensor, copy], door: None });
        Box::pin(async move { drop(sent.timeout(Duration::from_secs(5)).await) })
    }
}

struct Scene {
    node: Node,
    stream: DeviceStream,
    relay: Spawned<Relay>,
    sink: Spawned<Holder>,
    /// The number of tensors that were sent over the relay; each has its number.
    passed: Cell<u64>,
}

impl Scene {
    fn new(builder: Builder) -> Self {
        let node = builder.worker_log("off").start().unwrap();
        let relay = node.spawn::<Relay>(()).name("relay").start().unwrap();
        let sink = node.spawn::<Holder>(()).name("sink").start().unwrap();
        Scene { stream: node.host_stream().unwrap(), node, relay, sink, passed: Cell::new(0) }
    }

    fn victim(&self) -> Spawned<Relay> {
        self.node.spawn::<Relay>(()).name("victim").start().unwrap()
    }

    /// Makes a tensor that becomes ready a little later, so that streams wait for it. Each becomes ready
    /// later than the last, because a message may take longer than that to arrive on a busy machine.
    fn slow(&self) -> Tensor {
        let mut tensor = self.stream.zeros(DType::U32, &[100]).expect("room");
        let later = Duration::from_millis((1 + self.passed.get() / 50).min(50));
        let write = move |(to,): (&mut [u32],)| {
            std::thread::sleep(later);
            to.fill(7);
        };
        self.stream.run((tensor.of_mut::<u32>(),), write).expect("a stream of its own");
        tensor.freeze()
    }

    /// Sends a tensor over the relay and `victim` to `to`.
    fn pass(&self, victim: &Spawned<Relay>, to: &Address<Hold>) {
        let label = self.passed.replace(self.passed.get() + 1);
        let pass = Pass { label, tensor: self.slow(), route: vec![victim.address()], to: to.clone() };
        deliver(&self.node, &self.relay.address(), pass);
    }

    /// Sends tensors over the relay and `victim` to `to` until `done`.
    fn drive(&self, victim: &Spawned<Relay>, to: &Address<Hold>, done: impl FnMut() -> bool) -> bool {
        self.drive_for(Duration::from_secs(20), victim, to, done)
    }

    fn drive_for(
        &self,
        time: Duration,
        victim: &Spawned<Relay>,
        to: &Address<Hold>,
        mut done: impl FnMut() -> bool,
    ) -> bool {
        let deadline = Instant::now() + time;
        while !done() {
            if Instant::now() > deadline {
                return false;
            }
            self.pass(victim, to);
        }
        true
    }

    fn state(&self, worker: &Spawned<Relay>) -> Option<WorkerState> {
        self.node.supervisor().worker(worker.worker()).map(|status| status.state)
    }

    fn has_exited(&self, worker: &Spawned<Relay>) -> bool {
        matches!(self.state(worker), Some(WorkerState::Exited { .. }))
    }

    /// The sink lets go meanwhile, so the leases that it drops go back to the victim.
    fn lets_go_until_it_has_ended(&self, worker: &Spawned<Relay>) -> bool {
        ask(&self.node, &self.sink.address(), LetGo);
        self.has_exited(worker)
    }

    /// Checks that the survivors have let go of everything, and serve.
    fn check(&self, after: &str) {
        let (node, sink) = (&self.node, self.sink.address::<Check>());
        until(&format!("everything is let go after {after}"), || {
            ask(node, &self.sink.address(), LetGo);
            ask(node, &sink, Check).allocations == 0 && self.stream.pool().stats().allocations == 0
        });
        until_free(node);
        assert_eq!(node.stats().rejected, 0, "{after}");
    }
}

/// Points that a worker passes before anybody can tell it to die there; so the processes are armed before
/// they start.
const AT_THE_START: [&str; 2] = ["worker.open", "worker.create"];

fn a_kill_at_any_point_costs_the_killed_alone(builder: Builder) {
    let scene = Scene::new(builder);
    let node = &scene.node;
    let mut before = None;
    for (point, _) in POINTS.iter().filter(|(point, _)| !AT_THE_START.contains(point)) {
        for nth in [1, 3] {
            let bystander = node.spawn::<Holder>(()).name("bystander").start().unwrap();
            let victim = scene.victim();
            if *point == "transport.drained" {
                // The victim reads the rings of the bystander to the end, so it has to know the bystander
                // before.
                let known = || ask(node, &bystander.address(), LetGo).len() > 1;
                assert!(scene.drive(&victim, &bystander.address(), known), "the bystander is known");
                if nth > 1 {
                    continue; // It reads one to the end.
                }
            }
            node.supervisor().arm(victim.worker(), Fault::new(*point, Action::Kill).at(nth));
            node.supervisor().kill_worker(bystander.worker());
            // A worker passes some points only once in its life.
            let time = if nth == 1 { Duration::from_secs(20) } else { Duration::from_millis(300) };
            let ended = || scene.lets_go_until_it_has_ended(&victim);
            let died = scene.drive_for(time, &victim, &scene.sink.address(), ended);
            assert!(died || nth > 1, "no worker passes {point}");
            node.supervisor().kill_worker(victim.worker());
            node.supervisor().await_end(victim.worker());
            scene.check(point);
            // The first round leaves the pool's chunk and the links of the workers that live.
            let before = before.get_or_insert_with(|| settled(&scene));
            let mut grown = before.growth(&leaks());
            let deadline = Instant::now() + Duration::from_secs(10);
            while !grown.is_empty() && Instant::now() < deadline {
                // The last of the dead worker's resources go when every process has read the messages that it
                // had posted.
                ask(node, &scene.sink.address(), LetGo);
                grown = before.growth(&leaks());
            }
            assert_eq!(grown, Vec::<String>::new(), "{point}, passage {nth}");
        }
    }
}

/// The other points of the list. A failure of the first start is reported to the caller; a later life that
/// cannot start uses up the budget.
fn a_kill_at_the_start_is_an_error_and_stops_at_the_budget(builder: Builder) {
    let scene = Scene::new(builder);
    let (node, supervisor) = (&scene.node, scene.node.supervisor());
    let policy = Restart::on_failure(3).backoff(Duration::from_millis(1), Duration::from_millis(2));
    let spawn = || node.spawn::<Relay>(()).name("victim").restart(policy);
    // The first message leaves the pool's chunk and the links of the workers that live.
    let warm = spawn().start().unwrap();
    let arrives = |victim: &Spawned<Relay>| {
        let sink = scene.sink.address();
        assert!(scene.drive(victim, &sink, || !ask(node, &scene.sink.address(), LetGo).is_empty()));
    };
    arrives(&warm);
    supervisor.arm_starts("victim", Fault::new("worker.create", Action::Kill));
    supervisor.kill_worker(warm.worker());
    until("it is given up", || scene.has_exited(&warm));
    scene.check("the first one");
    let before = settled(&scene);
    let nothing_is_left = |after: &str| {
        supervisor.disarm_starts();
        scene.check(after);
        let deadline = Instant::now() + Duration::from_secs(10);
        let grown = loop {
            ask(node, &scene.sink.address(), LetGo);
            let grown = before.growth(&leaks());
            if grown.is_empty() || Instant::now() > deadline {
                break grown;
            }
        };
        assert_eq!(grown, Vec::<String>::new(), "{after}");
        assert!(node.lookup::<Pass>("victim").is_err(), "its name is free after {after}");
    };
    for point in AT_THE_START {
        // The node hears of a panic in `create` before the process ends.
        let panic = if point == "worker.create" { "was armed" } else { "101" };
        for (action, last) in [(Action::Kill, "SIGKILL"), (Action::Panic, panic)] {
            let what = format!("{action:?} at {point}");
            // In its first life.
            supervisor.arm_starts("victim", Fault::new(point, action));
            let error = spawn().start().expect_err(&what).to_string();
            assert!(error.contains("victim") && error.contains(last), "{what}: {error}");
            nothing_is_left(&what);
            // In all but the first.
            let victim = spawn().start().unwrap();
            arrives(&victim);
            supervisor.arm_starts("victim", Fault::new(point, action));
            supervisor.kill_worker(victim.worker());
            until("it is given up", || scene.has_exited(&victim));
            // The error of a waiter for its end, and of a sender, says so: it does not come back.
            let to = scene.sink.address();
            let pass = Pass { label: 0, tensor: scene.slow(), route: Vec::new(), to };
            let error = node.block_on(victim.address().send(pass)).unwrap_err();
            assert!(
                matches!(&error.reason, SendFailure::GaveUp(why) if why.to_string().contains(last)),
                "{error}"
            );
            let status = supervisor.worker(victim.worker()).unwrap();
            assert_eq!(status.restarts, 3, "{what}");
            let report = node.report().unwrap();
            let ends = report.restarts.iter().find(|past| past.worker == victim.worker()).unwrap();
            assert_eq!(ends.ends.len(), 4, "{what}: {ends:?}");
            assert!(ends.ends[1..].iter().all(|end| end.to_string().contains(last)), "{what}: {ends:?}");
            drop(error);
            nothing_is_left(&what);
        }
    }
}

/// The deadline ends a start that stands still.
fn a_worker_that_stops_at_its_start_is_given_up_at_the_deadline(builder: Builder) {
    let node = builder.start_deadline(Duration::from_millis(500)).start().unwrap();
    node.supervisor().arm_starts("frozen", Fault::new("worker.open", Action::Stop));
    let error = node.spawn::<Holder>(()).name("frozen").start().unwrap_err().to_string();
    assert!(error.contains("frozen") && error.contains("did not open"), "{error}");
    until("its process is gone", || leaks().children.is_empty());
    node.supervisor().disarm_starts();
    // The deadline is short: on a machine that is busy the next one may miss it too.
    let mut again = None;
    until("another one starts", || {
        again = node.spawn::<Holder>(()).name("frozen").start().ok();
        again.is_some()
    });
    assert!(ask(&node, &again.unwrap().address(), LetGo).is_empty());
}

/// Returns the node's usage when nothing is left to do after a death.
fn settled(scene: &Scene) -> Usage {
    let mut last = leaks();
    loop {
        ask(&scene.node, &scene.sink.address(), LetGo);
        let now = leaks();
        if last.growth(&now).is_empty() && now.growth(&last).is_empty() {
            return now;
        }
        last = now;
    }
}

fn a_worker_that_stops_in_the_middle_of_a_send_goes_on_where_it_was(builder: Builder) {
    /// The label of a tensor that does not go over the relay.
    const DIRECT: u64 = u64::MAX;

    let scene = Scene::new(builder);
    let (node, sink) = (&scene.node, scene.sink.address());
    let victim = scene.victim();
    let pid = node.supervisor().worker(victim.worker()).unwrap().pid;
    let mut came = Vec::new();
    for point in ["transport.send.granted", "transport.send.written", "transport.send.published"] {
        node.supervisor().arm(victim.worker(), Fault::new(point, Action::Stop));
        assert!(
            scene.drive(&victim, &sink, || {
                // Few tensors are on their way: with all mailboxes full when the victim stops, the next send
                // would wait until the relay gives its sends up.
                let mut stopped = false;
                until(&format!("what is on its way arrives, or it stops at {point}"), || {
                    came.extend(ask(node, &scene.sink.address(), LetGo));
                    stopped = has_stopped(pid);
                    stopped || came.len() as u64 + 8 > scene.passed.get()
                });
                stopped
            }),
            "{point}"
        );
        // The others do without it.
        let tensor = scene.slow();
        ask(node, &sink, Hold::with(DIRECT, tensor));
        // The victim's earlier sends come on top. At the last point those can be everything that it was
        // given. A frame is visible there, and a sink that is awake, or is woken by others, takes it without
        // the doorbell.
        let seen = ask(node, &scene.sink.address(), LetGo);
        assert!(seen.contains(&DIRECT), "{point}");
        came.extend(seen.into_iter().filter(|label| *label != DIRECT));
        // So one more is sent, which it gets when it goes on.
        scene.pass(&victim, &sink);
        kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::CONT).unwrap();
        let passed: Vec<u64> = (0..scene.passed.get()).collect();
        until(&format!("what was on its way at {point} arrives"), || {
            came.extend(ask(node, &scene.sink.address(), LetGo));
            came.len() >= passed.len()
        });
        // Nothing is lost, and nothing comes twice (MBX-1).
        assert_eq!(came, passed, "{point}");
        scene.check(point);
    }
    assert!(!scene.has_exited(&victim));
}

fn a_panic_while_reading_a_message_costs_that_message(builder: Builder) {
    let scene = Scene::new(builder);
    let victim = scene.victim();
    scene.node.supervisor().arm(victim.worker(), Fault::new("wire.decoded", Action::Panic).at(2));
    let mut arrived = 0;
    assert!(scene.drive(&victim, &scene.sink.address(), || {
        arrived += ask(&scene.node, &scene.sink.address(), LetGo).len();
        arrived > 10
    }));
    scene.check("a panic while decoding");
    assert!(!scene.has_exited(&victim));
}

// A worker whose reader has panicked would hang unreachable, and so would all its senders.
fn a_panic_of_the_reader_ends_the_worker(builder: Builder) {
    let scene = Scene::new(builder);
    let victim = scene.victim();
    scene.node.supervisor().arm(victim.worker(), Fault::new("transport.take.frame", Action::Panic).at(2));
    assert!(scene.drive(&victim, &scene.sink.address(), || scene.lets_go_until_it_has_ended(&victim)));
    scene.check("a panic of the reader");
}

// Its clock would never move again, with every process waiting for it.
fn a_panic_of_a_streams_thread_ends_the_worker(builder: Builder) {
    let scene = Scene::new(builder);
    let victim = scene.victim();
    scene.node.supervisor().arm(victim.worker(), Fault::new("stream.waiting", Action::Panic).at(2));
    assert!(scene.drive(&victim, &scene.sink.address(), || scene.lets_go_until_it_has_ended(&victim)));
    scene.check("a panic of a stream's thread");
}

// Half a link never opens: there is another attempt, or the worker ends.
fn a_panic_before_half_a_link_is_sent_leaves_nobody_waiting(builder: Builder) {
    let scene = Scene::new(builder);
    let victim = scene.victim();
    scene.node.supervisor().arm(victim.worker(), Fault::new("transport.link.begin", Action::Panic));
    let mut arrived = 0;
    assert!(scene.drive(&victim, &scene.sink.address(), || {
        arrived += ask(&scene.node, &scene.sink.address(), LetGo).len();
        arrived > 10 || scene.has_exited(&victim)
    }));
    scene.check("a panic before the half of a link is sent");
}

fn a_delay_is_no_end(builder: Builder) {
    let scene = Scene::new(builder);
    let victim = scene.victim();
    let delay = Action::Delay(Duration::from_millis(30));
    scene.node.supervisor().arm(victim.worker(), Fault::new("transport.take.frame", delay));
    let begin = Instant::now();
    let mut arrived = 0;
    assert!(scene.drive(&victim, &scene.sink.address(), || {
        arrived += ask(&scene.node, &scene.sink.address(), LetGo).len();
        arrived > 10
    }));
    scene.check("a delay");
    assert!(!scene.has_exited(&victim) && begin.elapsed() > Duration::from_millis(30));
}

pub(crate) fn cases() -> Vec<Case> {
    let cases = cases![
        a_kill_at_any_point_costs_the_killed_alone,
        a_kill_at_the_start_is_an_error_and_stops_at_the_budget,
        a_worker_that_stops_at_its_start_is_given_up_at_the_deadline,
        a_worker_that_stops_in_the_middle_of_a_send_goes_on_where_it_was,
        a_panic_while_reading_a_message_costs_that_message,
        a_panic_of_the_reader_ends_the_worker,
        a_panic_of_a_streams_thread_ends_the_worker,
        a_panic_before_half_a_link_is_sent_leaves_nobody_waiting,
        a_delay_is_no_end,
    ];
    harness::alone(cases).into_iter().map(|case| case.within(harness::DEADLINE * 2)).collect()
}
