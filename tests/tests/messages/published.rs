//! Published state: readers have whole versions, the newest wins, and old ones return.

use std::collections::VecDeque;
use std::time::Duration;

use futures_util::future::join_all;
use tensorpost::node::Spawned;
use tensorpost::prelude::*;
use tensorpost::published::{Publisher, Subscriber, Topic};
use tensorpost_core::__private::{Describe, Describer, Field, Interface, Shape};
use tensorpost_tests::cases;
use tensorpost_tests::gate::{Door, Gate};
use tensorpost_tests::harness::{Builder, Case};
use tensorpost_tests::wait::{ask, until, until_allocations};

/// Every element of every tensor is `step`.
#[derive(Clone, Serialize, Deserialize, GpuMessage)]
struct Weights {
    step: u64,
    layers: Vec<Tensor>,
}

const LAYERS: usize = 3;

/// Returns the weights of one step, each layer written by a kernel of its own.
fn weights(stream: &DeviceStream, step: u64) -> Weights {
    let layer = |elements: usize| {
        let mut layer = stream.empty(DType::U64, &[elements]).unwrap();
        stream.run((layer.of_mut::<u64>(),), move |(layer,)| layer.fill(step)).unwrap();
        layer.freeze()
    };
    Weights { step, layers: [100, 1000, 10].map(layer).into() }
}

fn is_whole(weights: &Weights) -> bool {
    weights.layers.len() == LAYERS
        && weights
            .layers
            .iter()
            .all(|layer| layer.as_slice::<u64>().unwrap().iter().all(|e| *e == weights.step))
}

/// "Read until step `until` is there." It passes the door first. The reply lists the versions that it saw.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Seen)]
struct Read {
    until: u64,
    door: Option<Door>,
}

#[derive(Serialize, Deserialize)]
struct Seen {
    /// Number and step of each version, in the order in which they came.
    versions: Vec<(u64, u64)>,
    /// Whether all of them were whole.
    whole: bool,
}

/// "What do you have?" The reply is number and step, if the version is whole.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Option<(u64, u64)>)]
struct Have;

struct Reader {
    weights: Subscriber<Weights>,
}

impl Actor for Reader {
    type Context = Context<Self>;
}

impl RemoteActor for Reader {
    type Args = ();

    fn create((): (), env: &Env) -> anyhow::Result<Self> {
        Ok(Reader { weights: Subscriber::follow(env, "weights") })
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Read>().message::<Have>();
    }
}

impl Handler<Read> for Reader {
    type Result = ResponseFuture<Seen>;

    fn handle(&mut self, read: Read, _: &mut Context<Self>) -> Self::Result {
        let mut weights = self.weights.clone();
        if let Some(door) = &read.door {
            door.pass().expect("the gate is there");
        }
        Box::pin(async move {
            let mut seen = Seen { versions: Vec::new(), whole: true };
            loop {
                if let Some(version) = weights.latest() {
                    seen.versions.push((version.number, version.value.step));
                    seen.whole &= is_whole(&version.value);
                    if version.value.step >= read.until {
                        return seen;
                    }
                }
                weights.changed().await.expect("the node is there");
            }
        })
    }
}

impl Handler<Have> for Reader {
    type Result = MessageResult<Have>;

    fn handle(&mut self, _: Have, _: &mut Context<Self>) -> Self::Result {
        let version = self.weights.latest().filter(|version| is_whole(&version.value));
        MessageResult(version.map(|version| (version.number, version.value.step)))
    }
}

/// "Publish these steps."
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Result<Vec<u64>, String>)]
struct Train(std::ops::Range<u64>);

struct Trainer {
    stream: DeviceStream,
    weights: Publisher<Weights>,
}

impl Actor for Trainer {
    type Context = Context<Self>;
}

impl RemoteActor for Trainer {
    type Args = Publisher<Weights>;

    fn create(weights: Publisher<Weights>, env: &Env) -> anyhow::Result<Self> {
        Ok(Trainer { stream: env.stream(), weights })
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Train>();
    }
}

impl Handler<Train> for Trainer {
    type Result = ResponseFuture<Result<Vec<u64>, String>>;

    fn handle(&mut self, train: Train, _: &mut Context<Self>) -> Self::Result {
        let (stream, publisher) = (self.stream.clone(), self.weights.clone());
        Box::pin(async move {
            let mut numbers = Vec::new();
            for step in train.0 {
                let published = publisher.publish(weights(&stream, step)).await;
                numbers.push(published.map_err(|error| error.to_string())?);
            }
            Ok(numbers)
        })
    }
}

struct Scene {
    node: Node,
    stream: DeviceStream,
    topic: Spawned<Topic<Weights>>,
    publisher: Publisher<Weights>,
}

impl Scene {
    fn new(builder: Builder) -> Self {
        let node = builder.start().unwrap();
        let stream = node.host_stream().unwrap();
        let topic = node.spawn::<Topic<Weights>>(()).name("weights").start().unwrap();
        let publisher = Publisher::new(topic.address());
        Scene { node, stream, topic, publisher }
    }

    fn reader(&self) -> Spawned<Reader> {
        self.node.spawn::<Reader>(()).start().unwrap()
    }

    fn publish(&self, steps: std::ops::RangeInclusive<u64>) {
        self.node.block_on(async {
            for step in steps {
                self.publisher.publish(weights(&self.stream, step)).await.unwrap();
            }
        });
    }

    fn until_has(&self, reader: &Spawned<Reader>, number: u64, step: u64) {
        until("the version is there", || ask(&self.node, &reader.address(), Have) == Some((number, step)));
    }
}

/// LEASE-1, MBX-2: whatever state the readers are in, each sees whole versions in order, and no version stays
/// longer than a reader holds it.
fn a_thousand_versions_four_readers(builder: Builder) {
    let scene = Scene::new(builder);
    let readers: Vec<Spawned<Reader>> = (0..4).map(|_| scene.reader()).collect();
    let reads: Vec<_> =
        readers.iter().map(|reader| reader.address().ask(Read { until: 1000, door: None })).collect();
    scene.publish(1..=1000);
    for read in reads {
        let seen = scene.node.block_on(read).unwrap();
        assert!(seen.whole, "a version was torn");
        assert!(seen.versions.iter().all(|(number, step)| number == step), "the only publisher counts alike");
        assert!(seen.versions.is_sorted_by(|a, b| a < b), "in order, each once");
        assert_eq!(seen.versions.last(), Some(&(1000, 1000)));
    }
    until_allocations(&scene.node, LAYERS);
}

/// The newest wins: of fifty versions a busy reader gets those that were on their way, and the last.
fn a_slow_reader_skips_versions_and_holds_few(builder: Builder) {
    let scene = Scene::new(builder);
    let reader = scene.reader();
    scene.publish(1..=1);
    scene.until_has(&reader, 1, 1);
    let gate = Gate::new();
    let read = reader.address().ask(Read { until: 50, door: Some(gate.door()) });
    let arrival = gate.arrival();
    scene.publish(2..=50);
    // These are the topic's, the reader's, and one that is on its way.
    until("old versions return while a reader is busy", || {
        scene.node.transport().poll(&mut Default::default());
        scene.stream.pool().stats().allocations <= 3 * LAYERS
    });
    arrival.open();
    let seen = scene.node.block_on(read).unwrap();
    assert!(seen.whole && seen.versions.len() <= 3, "{:?}", seen.versions);
    assert_eq!(seen.versions.last(), Some(&(50, 50)));
    until_allocations(&scene.node, LAYERS);
}

fn a_late_reader_gets_the_newest_at_once_and_nothing_else(builder: Builder) {
    let scene = Scene::new(builder);
    scene.publish(1..=20);
    let reader = scene.reader();
    let seen = ask(&scene.node, &reader.address(), Read { until: 20, door: None });
    assert_eq!((seen.whole, seen.versions), (true, vec![(20, 20)]));

    // One reader is in the program itself, and looks for a name that nobody has yet.
    let mut early = Subscriber::<Weights>::follow(&scene.node, "others");
    assert!(early.latest().is_none());
    let others = scene.node.spawn::<Topic<Weights>>(()).name("others").start().unwrap();
    let publisher = scene.node.block_on(Publisher::named(&scene.node, "others")).unwrap();
    assert_eq!(scene.node.block_on(publisher.publish(weights(&scene.stream, 7))).unwrap(), 1);
    scene.node.block_on(early.changed()).unwrap();
    let version = early.latest().unwrap();
    assert!(version.number == 1 && is_whole(&version.value));
    let quiet = scene
        .node
        .block_on(async { tokio::time::timeout(Duration::from_millis(50), early.changed()).await.is_err() });
    assert!(quiet, "the newest was seen");
    drop(others);
}

/// LEASE-4: a dead reader's leases come back, and nobody else notices.
fn a_reader_that_dies_is_dropped(builder: Builder) {
    let scene = Scene::new(builder);
    let [victim, other] = [scene.reader(), scene.reader()];
    scene.publish(1..=3);
    scene.until_has(&victim, 3, 3);
    scene.until_has(&other, 3, 3);
    scene.node.supervisor().kill_worker(victim.worker());
    scene.publish(4..=40);
    scene.until_has(&other, 40, 40);
    until_allocations(&scene.node, LAYERS);
}

/// The memory of a version outlives the process that made it; the next publisher goes on where the last one
/// ended.
fn readers_keep_the_last_version_of_a_publisher_that_died(builder: Builder) {
    let scene = Scene::new(builder);
    let trainer = || scene.node.spawn::<Trainer>(scene.publisher.clone()).start().unwrap();
    let reader = scene.reader();
    let first = trainer();
    assert_eq!(ask(&scene.node, &first.address(), Train(10..13)), Ok(vec![1, 2, 3]));
    scene.until_has(&reader, 3, 12);
    scene.node.supervisor().kill_worker(first.worker());
    until("the node knows", || scene.node.block_on(first.address().ask(Train(0..0))).is_err());
    // The version is whole, in memory of the dead, for a new reader too.
    scene.until_has(&reader, 3, 12);
    let late = scene.reader();
    scene.until_has(&late, 3, 12);
    let second = trainer();
    assert_eq!(ask(&scene.node, &second.address(), Train(20..22)), Ok(vec![4, 5]));
    scene.until_has(&reader, 5, 21);
    scene.until_has(&late, 5, 21);
}

/// Under the same name, a new topic: versions that are published there are newer than any reader's version.
fn subscribers_find_the_topic_again_when_it_is_another(builder: Builder) {
    let scene = Scene::new(builder);
    let reader = scene.reader();
    scene.publish(1..=9);
    scene.until_has(&reader, 9, 9);
    scene.node.supervisor().kill_worker(scene.topic.worker());
    until("the name is free", || scene.node.lookup::<Read>("weights").is_err());
    scene.until_has(&reader, 9, 9);

    let topic = scene.node.spawn::<Topic<Weights>>(()).name("weights").start().unwrap();
    let publisher = Publisher::<Weights>::new(topic.address());
    scene.node.block_on(publisher.publish(weights(&scene.stream, 100))).unwrap();
    scene.until_has(&reader, 10, 100);
    assert_eq!(scene.node.block_on(publisher.publish(weights(&scene.stream, 101))).unwrap(), 11);
    scene.until_has(&reader, 11, 101);
}

/// The addresses stay the same, with other processes behind them.
fn a_topic_and_a_publisher_that_are_restarted_go_on(builder: Builder) {
    let node = builder.start().unwrap();
    let policy = Restart::on_failure(3);
    let topic = node.spawn::<Topic<Weights>>(()).name("weights").restart(policy).start().unwrap();
    let trainer = node.spawn::<Trainer>(Publisher::new(topic.address())).restart(policy).start().unwrap();
    let reader = node.spawn::<Reader>(()).start().unwrap();
    let has = |step: u64, above: u64| {
        let mut number = 0;
        until("the version is there", || match ask(&node, &reader.address(), Have) {
            Some((found, have)) if have == step => {
                number = found;
                true
            }
            _ => false,
        });
        assert!(number > above, "{number} is not above {above}");
        number
    };
    assert_eq!(ask(&node, &trainer.address(), Train(0..5)), Ok(vec![1, 2, 3, 4, 5]));
    let number = has(4, 4);
    node.supervisor().kill_worker(trainer.worker());
    // This waits for the next life of the trainer, unless the node has not seen the end of this one yet.
    until("it trains again", || matches!(node.block_on(trainer.address().ask(Train(10..12))), Ok(Ok(_))));
    let number = has(11, number);
    node.supervisor().kill_worker(topic.worker());
    until("the topic is restarted", || {
        node.workers().iter().any(|worker| worker.worker == topic.worker() && worker.restarts > 0)
    });
    until("it publishes again", || matches!(node.block_on(trainer.address().ask(Train(20..21))), Ok(Ok(_))));
    has(20, number);
}

/// A waiting question does not delay a shutdown.
fn a_node_with_readers_shuts_down_at_once(builder: Builder) {
    let scene = Scene::new(builder);
    let readers = [scene.reader(), scene.reader()];
    scene.publish(1..=2);
    readers.iter().for_each(|reader| scene.until_has(reader, 2, 2));
    let mut own = Subscriber::<Weights>::follow(&scene.node, "weights");
    scene.node.block_on(own.changed()).unwrap();
    let report = scene.node.shutdown(Duration::from_secs(10)).unwrap();
    assert!(report.is_clean(), "{report:?}");
    assert!(own.latest().is_some(), "it keeps what it has");
    assert!(scene.node.block_on(own.changed()).is_err());
}

/// Programs in other languages can follow the topic, and so can ask with any content.
#[derive(Clone, Debug, Serialize, Deserialize, GpuMessage)]
#[gpu_message(portable)]
struct Step {
    step: u64,
}

/// The question of a reader, as a liar writes it.
#[derive(Serialize, Deserialize)]
struct Newer {
    than: u64,
    life: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct Newest {
    life: u64,
    number: u64,
    value: Option<Step>,
}

impl actix::Message for Newer {
    type Result = Newest;
}

impl GpuMessage for Newer {
    type Reply = Newest;
    const NAME: &'static str = "tensorpost::Newer";
    const SCHEMA: u64 = 0;
    const FOLLOWS: bool = true;
    const PORTABLE: Option<Describe> = Some(question);

    fn check(&self) -> Result<(), tensorpost::message::TensorCheckError> {
        Ok(())
    }
}

fn question(describer: &mut Describer) -> Interface {
    let value = Step::PORTABLE.expect("it is portable")(describer);
    let field = |name: &str, shape| Field { name: name.to_owned(), shape, optional: false };
    Interface {
        message: format!("tensorpost::Newer<{}>", value.message),
        body: Shape::Struct(vec![field("than", Shape::U64), field("life", Shape::U64)]),
        reply: Shape::Struct(vec![
            field("life", Shape::U64),
            field("number", Shape::U64),
            field("value", Shape::Option(Box::new(value.body))),
        ]),
    }
}

/// WIRE-1: any process can be a reader, and claim to have any version.
fn no_readers_question_takes_the_numbers_from_the_others(builder: Builder) {
    let node = builder.start().unwrap();
    for (index, than) in [u64::MAX, u64::MAX - 1, 1 << 63, (1 << 62) + 1, 1 << 62, 41].into_iter().enumerate()
    {
        let name = format!("steps.{index}");
        let topic = node.spawn::<Topic<Step>>(()).name(&name).start().unwrap();
        let publisher = Publisher::<Step>::new(topic.address());
        let mut reader = Subscriber::<Step>::follow(&node, &name);
        let publish = |step| node.block_on(publisher.publish(Step { step })).unwrap();
        assert_eq!(publish(1), 1);
        let lie = |than, life| {
            let liar = node.lookup::<Newer>(&name).unwrap();
            node.block_on(liar.ask(Newer { than, life }).timeout(Duration::from_secs(10)))
        };
        let Newest { life, number, value } = lie(than, 7).unwrap();
        assert!(value.is_some_and(|value| value.step == 1) && number <= (1 << 62) + 1, "{than}: {number}");
        // Nor does a claim about the present topic help it: for that it waits itself.
        let asked = node.lookup::<Newer>(&name).unwrap().ask(Newer { than: u64::MAX, life });
        let mut last = number;
        for step in 2..5 {
            let next = publish(step);
            assert!(next > last, "{than}: {next} after {last}");
            last = next;
            until("the reader has it", || reader.latest().is_some_and(|version| version.value.step == step));
            assert!(lie(than, 7 + step).unwrap().value.is_some());
        }
        drop(asked);
    }
}

/// "Ask that topic so often, at once, for what never comes." The reply is the number of questions.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Result<usize, String>)]
struct AskAtOnce(String, usize);

/// "Which step do you have?" The reply is number and step.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Option<(u64, u64)>)]
struct HaveStep;

/// A reader of steps, which also asks by itself.
struct Asker {
    env: Env,
    steps: Subscriber<Step>,
}

impl Actor for Asker {
    type Context = Context<Self>;
}

impl RemoteActor for Asker {
    type Args = ();

    fn create((): (), env: &Env) -> anyhow::Result<Self> {
        Ok(Asker { env: env.clone(), steps: Subscriber::follow(env, "steps") })
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<AskAtOnce>().message::<HaveStep>();
    }
}

impl Handler<AskAtOnce> for Asker {
    type Result = ResponseFuture<Result<usize, String>>;

    fn handle(&mut self, AskAtOnce(name, times): AskAtOnce, _: &mut Context<Self>) -> Self::Result {
        let env = self.env.clone();
        Box::pin(async move {
            let topic = env.lookup::<Newer>(&name).await.map_err(|error| error.to_string())?;
            let first = topic.ask(Newer { than: 0, life: 0 }).await.map_err(|error| error.to_string())?;
            let asks: Vec<_> =
                (0..times).map(|_| topic.ask(Newer { than: u64::MAX, life: first.life })).collect();
            let count = asks.len();
            actix::spawn(async move { drop(join_all(asks).await) });
            Ok(count)
        })
    }
}

impl Handler<HaveStep> for Asker {
    type Result = MessageResult<HaveStep>;

    fn handle(&mut self, _: HaveStep, _: &mut Context<Self>) -> Self::Result {
        MessageResult(self.steps.latest().map(|version| (version.number, version.value.step)))
    }
}

/// MBX-2: a mailbox that one process has filled has room for the questions of others.
fn who_asks_without_end_keeps_no_other_reader_waiting(builder: Builder) {
    let node = builder.start().unwrap();
    let topic = node.spawn::<Topic<Step>>(()).name("steps").mailbox(8).start().unwrap();
    let publisher = Publisher::<Step>::new(topic.address());
    let publish = |step| node.block_on(publisher.publish(Step { step })).unwrap();
    assert_eq!(publish(1), 1);
    let [evil, good] = [(), ()].map(|()| node.spawn::<Asker>(()).start().unwrap());
    let mut own = Subscriber::<Step>::follow(&node, "steps");
    let questions = AskAtOnce("steps".to_owned(), 200);
    assert_eq!(ask(&node, &evil.address(), questions), Ok(200));
    for step in 2..20 {
        assert_eq!(publish(step), step);
        until("the others have it", || {
            ask(&node, &good.address(), HaveStep) == Some((step, step))
                && own.latest().is_some_and(|version| version.value.step == step)
        });
    }
}

/// "Which versions did your reader say that it has?"
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Vec<u64>)]
struct Heard;

/// An actor that has the name of a topic, and answers with these numbers.
struct FalseTopic {
    env: Env,
    numbers: VecDeque<u64>,
    heard: Vec<u64>,
}

impl Actor for FalseTopic {
    type Context = Context<Self>;
}

impl RemoteActor for FalseTopic {
    type Args = Vec<u64>;

    fn create(numbers: Vec<u64>, env: &Env) -> anyhow::Result<Self> {
        Ok(FalseTopic { env: env.clone(), numbers: numbers.into(), heard: Vec::new() })
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Newer>().message::<Heard>().waits();
    }
}

impl Handler<Newer> for FalseTopic {
    type Result = ResponseFuture<Newest>;

    fn handle(&mut self, newer: Newer, _: &mut Context<Self>) -> Self::Result {
        self.heard.push(newer.than);
        let (number, stopping) = (self.numbers.pop_front(), self.env.stopping());
        Box::pin(async move {
            match number {
                Some(number) => Newest { life: number, number, value: Some(Step { step: number }) },
                None => {
                    stopping.await;
                    Newest { life: 0, number: 0, value: None }
                }
            }
        })
    }
}

impl Handler<Heard> for FalseTopic {
    type Result = MessageResult<Heard>;

    fn handle(&mut self, _: Heard, _: &mut Context<Self>) -> Self::Result {
        MessageResult(self.heard.clone())
    }
}

/// WIRE-1: a reader keeps its version where the next one has an old number, or one that would leave none for
/// a later topic.
fn a_false_topics_numbers_are_refused_and_the_last_version_stays(builder: Builder) {
    let node = builder.start().unwrap();
    let lies: [u64; 6] = [(1 << 63) + 1, 5, 4, 1, 0, u64::MAX];
    let numbers = [vec![5], lies.to_vec(), vec![6]].concat();
    let topic = node.spawn::<FalseTopic>(numbers).name("false").start().unwrap();
    let mut reader = Subscriber::<Step>::follow(&node, "false");
    let mut seen: Vec<(u64, u64)> = Vec::new();
    until("it has the last one", || {
        let version = reader.latest().map(|version| (version.number, version.value.step));
        if seen.last() != version.as_ref() {
            seen.extend(version);
        }
        seen.last() == Some(&(6, 6))
    });
    assert!([&[(5, 5), (6, 6)][..], &[(6, 6)]].contains(&seen.as_slice()), "{seen:?}");
    // After each lie it asked for something newer than what it kept.
    let asked = [vec![0], vec![5; lies.len() + 1], vec![6]].concat();
    until("it asks on", || ask(&node, &topic.address(), Heard) == asked);
}

pub(crate) fn cases() -> Vec<Case> {
    cases![
        who_asks_without_end_keeps_no_other_reader_waiting,
        a_false_topics_numbers_are_refused_and_the_last_version_stays,
        no_readers_question_takes_the_numbers_from_the_others,
        a_thousand_versions_four_readers,
        a_slow_reader_skips_versions_and_holds_few,
        a_late_reader_gets_the_newest_at_once_and_nothing_else,
        a_reader_that_dies_is_dropped,
        readers_keep_the_last_version_of_a_publisher_that_died,
        subscribers_find_the_topic_again_when_it_is_another,
        a_topic_and_a_publisher_that_are_restarted_go_on,
        a_node_with_readers_shuts_down_at_once,
    ]
}
