//! The costs of a worker's death for the others, across real processes (DEATH-1, DEATH-3). They lose the dead
//! worker's own work and data that depends on it, which is never mistaken for good data, and nothing else.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tensorpost::actor::DeadReason;
use tensorpost::node::{Spawned, WorkerState};
use tensorpost::prelude::*;
use tensorpost_tests::cases;
use tensorpost_tests::gate::{Door, Gate};
use tensorpost_tests::harness::{self, Builder, Case};
use tensorpost_tests::wait::{ask, deliver, stop, until};

const ELEMENTS: usize = 1000;

/// A tensor on its way down a chain.
#[derive(Serialize, Deserialize, GpuMessage)]
struct Item {
    id: u32,
    #[tensor(dtype = f32)]
    tensor: Tensor,
}

/// "Make items with these numbers, all elements the number, and send them on." If there is a door, the stream
/// waits at it until the process is killed.
#[derive(Serialize, Deserialize, GpuMessage)]
struct Make {
    ids: Vec<u32>,
    door: Option<Door>,
    /// Another receiver of the items.
    also: Option<Address<Item>>,
}

/// "Make an item with this number by a kernel that panics when it has written half of it, and send it on."
#[derive(Serialize, Deserialize, GpuMessage)]
struct Slip(u32);

/// "Stand at the door."
#[derive(Serialize, Deserialize, GpuMessage)]
struct Stand(Door);

/// "How many items have you handled?"
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = usize)]
struct Count;

/// "What do you have?"
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Report)]
struct Look;

/// "Give me the result for item `0`."
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Option<Tensor>)]
struct Give(u32);

#[derive(Debug, Serialize, Deserialize)]
struct Report {
    pid: u32,
    /// For each item its number, the tensor that came, and the tensor that was made of it.
    items: Vec<(u32, Seen, Seen)>,
    /// The sum of all items that came, added up in place.
    sum: Seen,
    /// Numbers of the dead letters, and the processes that they name.
    dead_letters: Vec<(u32, String)>,
}

/// The state of a tensor's data.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum Seen {
    Good(f32),
    /// Lost with this process.
    Lost(String),
    /// It must never be this.
    Garbage(String),
}

/// Returns the state of its data once that is known: before, it may be pending.
fn outcome(tensor: &Tensor) -> Seen {
    let elements = tensor.to_vec();
    seen(tensor.status(), elements)
}

fn seen(status: TensorStatus, elements: Result<Vec<f32>, TensorError>) -> Seen {
    match (status, elements) {
        (TensorStatus::Ready, Ok(all)) if all.iter().all(|element| *element == all[0]) => Seen::Good(all[0]),
        (TensorStatus::Tainted { by }, Err(TensorError::Tainted { by: also })) if by == also => {
            Seen::Lost(by.to_string())
        }
        (status, elements) => Seen::Garbage(format!("{status:?}: {:?}", elements.map(|all| all[0]))),
    }
}

#[derive(Serialize, Deserialize)]
struct StageArgs {
    next: Option<Address<Item>>,
}

struct Stage {
    stream: DeviceStream,
    next: Option<Address<Item>>,
    items: Vec<(u32, Tensor, Tensor)>,
    sum: TensorMut,
    dead_letters: Vec<(u32, String)>,
}

impl Actor for Stage {
    type Context = Context<Self>;
}

impl RemoteActor for Stage {
    type Args = StageArgs;

    fn create(args: StageArgs, env: &Env) -> anyhow::Result<Self> {
        let stream = env.stream();
        let sum = stream.zeros(DType::F32, &[ELEMENTS])?;
        Ok(Stage { stream, next: args.next, items: Vec::new(), sum, dead_letters: Vec::new() })
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Item>().message::<Make>().message::<Slip>().message::<Stand>();
        on.message::<Count>().message::<Look>().message::<Give>();
    }

    fn dead_letter(&mut self, letter: DeadLetter, _: &mut Context<Self>) {
        let DeadReason::Tainted { by } = letter.reason() else { return };
        let item = letter.into_message::<Item>().expect("nothing else has a tensor");
        assert_eq!(item.tensor.status(), TensorStatus::Tainted { by });
        self.dead_letters.push((item.id, by.to_string()));
    }
}

impl Stage {
    fn send_on(&self, id: u32, tensor: Tensor) {
        if let Some(next) = &self.next {
            send(next, Item { id, tensor });
        }
    }
}

/// Sends now, or as soon as the link is there.
fn send(to: &Address<Item>, item: Item) {
    let sent = to.send(item);
    actix::spawn(async move {
        if let Err(error) = sent.await {
            assert!(
                matches!(error.reason, SendFailure::Tainted(_) | SendFailure::ProcessExited(_)),
                "{error}"
            );
        }
    });
}

impl Handler<Make> for Stage {
    type Result = ();

    fn handle(&mut self, make: Make, _: &mut Context<Self>) {
        if let Some(door) = make.door {
            let any = self.stream.empty(DType::U8, &[1]).unwrap().freeze();
            self.stream.run((any.of::<u8>(),), move |_| drop(door.pass())).unwrap();
        }
        for id in make.ids {
            let mut tensor = self.stream.empty(DType::F32, &[ELEMENTS]).unwrap();
            self.stream.run((tensor.of_mut::<f32>(),), move |(all,)| all.fill(id as f32)).unwrap();
            let tensor = tensor.freeze();
            if let Some(also) = &make.also {
                send(also, Item { id, tensor: tensor.clone() });
            }
            self.send_on(id, tensor);
        }
    }
}

impl Handler<Item> for Stage {
    type Result = ();

    fn handle(&mut self, Item { id, tensor }: Item, _: &mut Context<Self>) {
        let mut made = self.stream.empty(DType::F32, &[ELEMENTS]).unwrap();
        let add = |(to, from): (&mut [f32], &[f32])| {
            to.iter_mut().zip(from).for_each(|(to, from)| *to = from + 1.0)
        };
        match self.stream.run((made.of_mut::<f32>(), tensor.of::<f32>()), add) {
            Ok(()) => {}
            // The process learned it after the handler had begun: as a dead letter, a moment later.
            Err(TensorError::Tainted { by }) => return self.dead_letters.push((id, by.to_string())),
            Err(error) => panic!("{error}"),
        }
        let add =
            |(sum, from): (&mut [f32], &[f32])| sum.iter_mut().zip(from).for_each(|(sum, from)| *sum += from);
        // Once the sum is lost it stays lost.
        let _ = self.stream.run((self.sum.of_mut::<f32>(), tensor.of::<f32>()), add);
        let made = made.freeze();
        self.send_on(id, made.clone());
        self.items.push((id, tensor, made));
    }
}

impl Handler<Slip> for Stage {
    type Result = ();

    fn handle(&mut self, Slip(id): Slip, _: &mut Context<Self>) {
        let mut tensor = self.stream.empty(DType::F32, &[ELEMENTS]).unwrap();
        let half = move |(all,): (&mut [f32],)| {
            all[..ELEMENTS / 2].fill(id as f32);
            panic!("a slip");
        };
        self.stream.run((tensor.of_mut::<f32>(),), half).unwrap();
        self.send_on(id, tensor.freeze());
    }
}

impl Handler<Stand> for Stage {
    type Result = ();

    fn handle(&mut self, Stand(door): Stand, _: &mut Context<Self>) {
        door.pass().expect("the gate is there");
    }
}

impl Handler<Count> for Stage {
    type Result = MessageResult<Count>;

    fn handle(&mut self, _: Count, _: &mut Context<Self>) -> Self::Result {
        MessageResult(self.items.len())
    }
}

impl Handler<Look> for Stage {
    type Result = MessageResult<Look>;

    fn handle(&mut self, _: Look, _: &mut Context<Self>) -> Self::Result {
        let look = |tensor: &Tensor| {
            let elements = tensor.to_vec();
            assert_eq!(self.stream.download::<f32>(tensor).is_ok(), elements.is_ok());
            seen(tensor.status(), elements)
        };
        let items = self.items.iter().map(|(id, came, made)| (*id, look(came), look(made))).collect();
        let sum = self.sum.as_slice().map(<[f32]>::to_vec);
        MessageResult(Report {
            pid: std::process::id(),
            items,
            sum: seen(self.sum.status(), sum),
            dead_letters: self.dead_letters.clone(),
        })
    }
}

impl Handler<Give> for Stage {
    type Result = MessageResult<Give>;

    fn handle(&mut self, Give(id): Give, _: &mut Context<Self>) -> Self::Result {
        MessageResult(self.items.iter().find(|(of, ..)| *of == id).map(|(_, _, made)| made.clone()))
    }
}

/// Four workers in a row, beginning with the first, and the channel at the end.
struct Chain {
    /// Dropped before the node, whose end waits for items that nobody has read.
    out: Channel<Item>,
    node: Node,
    stages: Vec<Spawned<Stage>>,
}

impl Chain {
    fn start(builder: Builder) -> Self {
        let node = builder.start().unwrap();
        let (home, out) = node.channel::<Item>().unwrap();
        let mut next = home;
        let mut stages = Vec::new();
        for _ in 0..4 {
            let stage = node.spawn::<Stage>(StageArgs { next: Some(next.clone()) }).start().unwrap();
            next = stage.address();
            stages.insert(0, stage);
        }
        Chain { node, stages, out }
    }

    fn make(&self, ids: impl IntoIterator<Item = u32>, door: Option<Door>) {
        deliver(
            &self.node,
            &self.stages[0].address(),
            Make { ids: ids.into_iter().collect(), door, also: None },
        );
    }

    /// Returns whether an item from the node comes out at the other end, as it should.
    fn goes_on(&mut self, id: u32) -> bool {
        let stream = self.node.host_stream().unwrap();
        let tensor = stream.from_slice(&[ELEMENTS], &[id as f32; ELEMENTS]).unwrap().freeze();
        deliver(&self.node, &self.stages[1].address(), Item { id, tensor });
        let Ok(Ok(item)) = self
            .node
            .block_on(async { tokio::time::timeout(Duration::from_millis(500), self.out.recv()).await })
        else {
            return false;
        };
        assert_eq!(outcome(&item.tensor), Seen::Good(item.id as f32 + 3.0));
        true
    }

    /// Waits until every stage behind the first has work on that many items.
    fn until_handled(&self, count: usize) {
        for stage in &self.stages[1..] {
            until("all is under way", || ask(&self.node, &stage.address(), Count) == count);
        }
    }

    /// Waits until every stage behind the first has finished that many items, on its stream too: unfinished
    /// items may be lost when a worker dies.
    fn until_done(&self, count: usize) {
        self.until_handled(count);
        for stage in 1..self.stages.len() {
            let report = self.look(stage);
            let done = report.items.iter().filter(|(.., made)| matches!(made, Seen::Good(_))).count();
            assert_eq!(done, count, "{report:?}");
        }
    }

    fn process(&self, stage: usize) -> String {
        let worker =
            self.node.workers().into_iter().find(|worker| worker.worker == self.stages[stage].worker());
        worker.expect("it was started").process.to_string()
    }

    fn pid(&self, stage: usize) -> Pid {
        let worker =
            self.node.workers().into_iter().find(|worker| worker.worker == self.stages[stage].worker());
        Pid::from_raw(worker.expect("it was started").pid.cast_signed()).expect("a process")
    }

    fn look(&self, stage: usize) -> Report {
        ask(&self.node, &self.stages[stage].address(), Look)
    }
}

/// Returns the item `id` that stage `i` behind the first sees, if it is good.
fn good(stage: usize, id: u32) -> (u32, Seen, Seen) {
    let came = id as f32 + stage as f32 - 1.0;
    (id, Seen::Good(came), Seen::Good(came + 1.0))
}

/// DEATH-1, DEATH-3, with work enqueued in all four when the first is killed.
fn a_chain_whose_first_dies_loses_what_it_had_not_done_and_nothing_else(builder: Builder) {
    let mut chain = Chain::start(builder);
    chain.make(1..=5, None);
    chain.until_done(5);
    let mut out: Vec<Item> = (0..5).map(|_| chain.out.blocking_recv().unwrap()).collect();
    let gate = Gate::new();
    chain.make(6..=9, Some(gate.door()));
    let at_the_door = gate.arrival();
    chain.until_handled(9);
    out.extend((0..4).map(|_| chain.out.blocking_recv().unwrap()));
    let dead = chain.process(0);
    // A thread that waits for the end of the chain, four processes away.
    let last = out.last().expect("nine items").tensor.clone();
    assert_eq!(last.status(), TensorStatus::Pending);
    let waiter = std::thread::spawn(move || (last.to_vec::<f32>(), Instant::now()));
    let killed = Instant::now();
    kill_process(chain.pid(0), Signal::KILL).unwrap();
    let (result, ended) = waiter.join().unwrap();
    println!("from the kill to the end of a wait four processes away: {:?}", ended - killed);
    assert!(matches!(result, Err(TensorError::Tainted { by }) if by.to_string() == dead));
    for stage in 1..4 {
        let report = chain.look(stage);
        let lost = || Seen::Lost(dead.clone());
        let expected: Vec<_> =
            (1..=5).map(|id| good(stage, id)).chain((6..=9).map(|id| (id, lost(), lost()))).collect();
        assert_eq!(report.items, expected, "stage {stage}");
        assert_eq!(report.sum, lost(), "stage {stage}");
    }
    for (item, id) in out.iter().zip(1..) {
        let expected = if id <= 5 { Seen::Good(id as f32 + 3.0) } else { Seen::Lost(dead.clone()) };
        assert_eq!((item.id, outcome(&item.tensor)), (id, expected));
    }
    // An ask for one of them is told why there is no reply.
    let refused = chain.node.block_on(chain.stages[3].address().ask(Give(7))).unwrap_err();
    assert!(refused.to_string().contains(&dead), "{refused}");
    let kept = ask(&chain.node, &chain.stages[3].address(), Give(3)).expect("it has it");
    assert_eq!(kept.to_vec::<f32>().unwrap(), [6.0; ELEMENTS]);
    // The sender of a lost tensor gets it back.
    let sent = chain.stages[2].address().try_send(out.pop().expect("nine items")).unwrap_err();
    assert!(matches!(sent.reason, SendFailure::Tainted(_)) && !sent.is_retryable(), "{sent}");
    // DEATH-2: the others go on.
    assert!((20..30).all(|id| chain.goes_on(id)));
    drop(at_the_door);
}

/// It came before the death and is taken after it: from the mailbox, and from the ring.
fn what_waits_in_a_mailbox_or_a_ring_becomes_a_dead_letter(builder: Builder) {
    let node = builder.start().unwrap();
    let [in_mailbox, in_ring] = [true, false].map(|own_thread| {
        let stage = node.spawn::<Stage>(StageArgs { next: None });
        // With a thread of its own, it does not hold its process's reader up.
        if own_thread { stage.own_thread().start().unwrap() } else { stage.start().unwrap() }
    });
    for receiver in [in_mailbox, in_ring] {
        let source = node.spawn::<Stage>(StageArgs { next: Some(receiver.address()) }).start().unwrap();
        let (standing, undone) = (Gate::new(), Gate::new());
        deliver(&node, &source.address(), Make { ids: vec![1], door: None, also: None });
        until("one has come", || ask(&node, &receiver.address(), Count) == 1);
        deliver(&node, &receiver.address(), Stand(standing.door()));
        let stands = standing.arrival();
        deliver(&node, &source.address(), Make { ids: vec![2], door: None, also: None });
        assert_eq!(ask(&node, &source.address(), Count), 0);
        let (also, mut copies) = node.channel::<Item>().unwrap();
        let make = Make { ids: vec![3, 4], door: Some(undone.door()), also: Some(also) };
        deliver(&node, &source.address(), make);
        let ready = copies.blocking_recv().unwrap().tensor.ready().expect("it is not there yet");
        assert_eq!(ask(&node, &source.address(), Count), 0, "its turn has ended: all are on their way");
        let at_the_door = undone.arrival();
        let worker = node.workers().into_iter().find(|worker| worker.worker == source.worker()).unwrap();
        node.supervisor().kill_worker(source.worker());
        let clocks = node.transport().domain();
        // By then every process has heard of the death.
        until("the dead is released", || clocks.passed(&ready).expect("its page is known"));
        stands.open();
        until("all were taken", || ask(&node, &receiver.address(), Look).dead_letters.len() == 2);
        let report = ask(&node, &receiver.address(), Look);
        assert_eq!(report.items, [good(1, 1), good(1, 2)]);
        let dead = worker.process.to_string();
        assert_eq!(report.dead_letters, [(3, dead.clone()), (4, dead)]);
        drop(at_the_door);
    }
}

/// A third process that is stopped cannot answer. It keeps nobody waiting, and is asked again when it goes
/// on.
fn a_stopped_worker_keeps_nobody_waiting(builder: Builder) {
    let mut chain = Chain::start(builder);
    chain.make(1..=2, None);
    chain.until_done(2);
    let gate = Gate::new();
    chain.make(3..=4, Some(gate.door()));
    let at_the_door = gate.arrival();
    chain.until_handled(4);
    let out: Vec<Item> = (0..4).map(|_| chain.out.blocking_recv().unwrap()).collect();
    let (dead, stopped) = (chain.process(0), chain.pid(2));
    stop(stopped.as_raw_nonzero().get().cast_unsigned());
    let killed = Instant::now();
    kill_process(chain.pid(0), Signal::KILL).unwrap();
    let report = chain.look(1);
    assert_eq!(report.items[2], (3, Seen::Lost(dead.clone()), Seen::Lost(dead.clone())));
    // Behind the stopped stage: data that it had not finished by then is not believed.
    assert!(matches!(out[3].tensor.to_vec::<f32>(), Err(TensorError::Tainted { .. })));
    println!("with one stopped, waits end after {:?}", killed.elapsed());
    assert!(killed.elapsed() < Duration::from_secs(10), "it held the others up");
    assert_eq!(out[1].tensor.to_vec::<f32>().unwrap(), [5.0; ELEMENTS]);
    kill_process(stopped, Signal::CONT).unwrap();
    for stage in 1..4 {
        let lost = || Seen::Lost(dead.clone());
        let report = chain.look(stage);
        let expected = [good(stage, 1), good(stage, 2), (3, lost(), lost()), (4, lost(), lost())];
        assert_eq!(report.items, expected, "stage {stage}");
    }
    // Its data is believed again as soon as the others have heard of its answer.
    let mut ids = 20..;
    until("an item gets past it", || chain.goes_on(ids.next().expect("no end")));
    assert!((100..110).all(|id| chain.goes_on(id)));
    drop(at_the_door);
}

/// Two die at the same moment, and the second depends on the first.
fn two_deaths_at_once_release_everybody(builder: Builder) {
    let mut chain = Chain::start(builder);
    chain.make(1..=2, None);
    chain.until_done(2);
    let gate = Gate::new();
    chain.make(3..=4, Some(gate.door()));
    let at_the_door = gate.arrival();
    chain.until_handled(4);
    let out: Vec<Item> = (0..4).map(|_| chain.out.blocking_recv().unwrap()).collect();
    let (first, second) = (chain.pid(0), chain.pid(1));
    kill_process(first, Signal::KILL).unwrap();
    kill_process(second, Signal::KILL).unwrap();
    for stage in 2..4 {
        let report = chain.look(stage);
        assert_eq!(report.items[..2], [good(stage, 1), good(stage, 2)]);
        for (_, came, made) in &report.items[2..] {
            assert!(matches!((came, made), (Seen::Lost(_), Seen::Lost(_))), "{report:?}");
        }
    }
    for (item, id) in out.iter().zip(1..) {
        let status = item.tensor.to_vec::<f32>();
        assert_eq!(status.is_ok(), id <= 2, "item {id}: {:?}", item.tensor.status());
    }
    drop(at_the_door);
}

/// A kernel on the host that panics is like a kernel on a GPU that faults: its worker ends and says why, and
/// nobody takes its half-written data for good.
fn a_host_kernel_that_panics_ends_its_worker_and_is_never_read(builder: Builder) {
    let mut chain = Chain::start(builder);
    chain.make(1..=2, None);
    chain.until_done(2);
    let dead = chain.process(0);
    deliver(&chain.node, &chain.stages[0].address(), Slip(3));
    let Some(WorkerState::Exited { why: Some(why), .. }) =
        chain.node.supervisor().await_end(chain.stages[0].worker())
    else {
        panic!("it did not say why it ended");
    };
    assert!(why.contains("a slip") && why.contains("host stream"), "{why}");
    let mut ids = 20..;
    until("an item gets to the end", || chain.goes_on(ids.next().expect("no end")));
    for stage in 1..4 {
        let report = chain.look(stage);
        assert_eq!(report.items[..2], [good(stage, 1), good(stage, 2)], "stage {stage}");
        // It may have died before the item was posted.
        let third = report.items.iter().find(|(id, ..)| *id == 3);
        assert!(third.is_none_or(|(_, came, _)| *came == Seen::Lost(dead.clone())), "{report:?}");
    }
}

pub(crate) fn cases() -> Vec<Case> {
    harness::alone(cases![
        a_chain_whose_first_dies_loses_what_it_had_not_done_and_nothing_else,
        what_waits_in_a_mailbox_or_a_ring_becomes_a_dead_letter,
        a_stopped_worker_keeps_nobody_waiting,
        two_deaths_at_once_release_everybody,
        a_host_kernel_that_panics_ends_its_worker_and_is_never_read,
    ])
}
