//! Actors and stages that wait for their state before their first message; and publishing without waiting.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::{Signal, kill_process};
use tensorpost::node::ActorError;
use tensorpost::prelude::*;
use tensorpost::published::{NotReady, TopicClosed};
use tensorpost_tests::cases;
use tensorpost_tests::harness::{Builder, Case};
use tensorpost_tests::wait::{ask, deliver, stop, until};
use tensorpost_tests::want;
use tracing::field::{Field, Visit};
use tracing_subscriber::layer::SubscriberExt;

/// How long a test waits for events that must come.
const LONG: Duration = Duration::from_secs(30);
/// How long a test waits for events that must not come.
const SHORT: Duration = Duration::from_millis(20);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, GpuMessage)]
struct Weights(u64);

/// "I get ready; this is my address."
#[derive(Serialize, Deserialize, GpuMessage)]
struct GetsReady(Address<Frame>);

/// The reply is how many frames came before this one, and the current weights.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = (u64, Option<u64>))]
struct Frame;

/// How an actor gets ready.
#[derive(Clone, Serialize, Deserialize)]
enum How {
    /// It waits for weights, and says so.
    Waits(Address<GetsReady>),
    Fails,
    Panics,
}

/// Counts frames, with the weights at that moment.
struct Detect {
    how: How,
    weights: Subscriber<Weights>,
    frames: u64,
    itself: Address<Frame>,
}

impl Actor for Detect {
    type Context = Context<Self>;

    fn started(&mut self, _: &mut Context<Self>) {
        assert!(self.weights.latest().is_some(), "it has started, and is not ready");
    }
}

impl RemoteActor for Detect {
    type Args = How;

    fn create(how: How, env: &Env) -> anyhow::Result<Self> {
        Ok(Detect { how, weights: Subscriber::follow(env, "weights"), frames: 0, itself: env.address() })
    }

    async fn prepare(&mut self, _: &Env) -> anyhow::Result<()> {
        match &self.how {
            How::Waits(tell) => tell.send(GetsReady(self.itself.clone())).await?,
            How::Fails => anyhow::bail!("there is no model"),
            How::Panics => panic!("the model is bad"),
        }
        self.weights.ready(LONG).await?;
        Ok(())
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Frame>();
    }
}

impl Handler<Frame> for Detect {
    type Result = MessageResult<Frame>;

    fn handle(&mut self, _: Frame, _: &mut Context<Self>) -> Self::Result {
        self.frames += 1;
        MessageResult((self.frames - 1, self.weights.latest().map(|version| version.value.0)))
    }
}

fn topic(node: &Node) -> Publisher<Weights> {
    Publisher::new(node.spawn::<Topic<Weights>>(()).name("weights").start().unwrap().address())
}

fn messages_wait_until_an_actor_is_ready_and_others_do_not(builder: Builder) {
    let node = builder.start().unwrap();
    let publisher = topic(&node);
    let (tell, mut told) = node.channel::<GetsReady>().unwrap();
    let worker = node.worker("detectors").unwrap();
    for own_thread in [false, true] {
        std::thread::scope(|scope| {
            let spawn =
                node.spawn::<Detect>(How::Waits(tell.clone())).worker(worker).restart(Restart::on_failure(1));
            let starting = scope.spawn(|| if own_thread { spawn.own_thread() } else { spawn }.start());
            let GetsReady(address) = told.blocking_recv().unwrap();
            let accepted = |_| {
                let mut frame = address.ask(Frame);
                node.block_on(frame.accepted()).unwrap();
                frame
            };
            let frames: Vec<_> = (0..3).map(accepted).collect();
            deliver(&node, &address, Frame);
            if own_thread {
                // The weights have been there since the first round, so it may be ready already.
                starting.join().unwrap().unwrap();
            } else {
                // Its process serves another one meanwhile.
                let other = node.spawn::<Idle>(()).worker(worker).start().unwrap();
                ask(&node, &other.address(), Ping);
                let metrics = node.metrics().unwrap();
                let waiting = metrics.actors().find(|(_, actor)| actor.name == "Detect").unwrap().1;
                assert_eq!((waiting.queued, waiting.handled), (4, 0));
                assert!(!starting.is_finished());
                node.block_on(publisher.publish(Weights(7))).unwrap();
                starting.join().unwrap().unwrap();
            }
            for (before, frame) in (0..).zip(frames) {
                assert_eq!(node.block_on(frame).unwrap(), (before, Some(7)));
            }
            assert_eq!(ask(&node, &address, Frame), (4, Some(7)));
        });
    }
}

/// "Are you there?"
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = u32)]
struct Ping;

struct Idle;

impl Actor for Idle {
    type Context = Context<Self>;
}

impl RemoteActor for Idle {
    type Args = ();

    fn create((): (), _: &Env) -> anyhow::Result<Self> {
        Ok(Idle)
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Ping>();
    }
}

impl Handler<Ping> for Idle {
    type Result = MessageResult<Ping>;

    fn handle(&mut self, _: Ping, _: &mut Context<Self>) -> Self::Result {
        MessageResult(std::process::id())
    }
}

fn each_life_gets_ready_or_is_a_failure_for_its_policy(builder: Builder) {
    let node = builder.start().unwrap();
    let publisher = topic(&node);
    node.block_on(publisher.publish(Weights(3))).unwrap();
    let (tell, told) = node.channel::<GetsReady>().unwrap();
    let policy = Restart::on_failure(3);
    let detect = node.spawn::<Detect>(How::Waits(tell)).name("detect").restart(policy).start().unwrap();
    assert_eq!(ask(&node, &detect.address(), Frame), (0, Some(3)));
    let mut watch = node.watch(&detect.address::<Frame>());
    node.supervisor().kill_worker(detect.worker());
    assert!(matches!(watch.blocking_recv(), Some(Lifecycle::Down { will_restart: true, .. })));
    assert!(matches!(watch.blocking_recv(), Some(Lifecycle::Up { incarnation: 1, .. })));
    assert_eq!(ask(&node, &detect.address(), Frame), (0, Some(3)));
    drop(told); // later lives have nobody to tell, and so do not get ready
    node.supervisor().kill_worker(detect.worker());
    until("its policy is used up", || matches!(watch.blocking_recv(), Some(Lifecycle::GaveUp { .. })));
    let error = node.block_on(detect.address().ask(Frame)).unwrap_err();
    assert!(matches!(error, AskError::NotSent(SendError { reason: SendFailure::GaveUp(_), .. })), "{error}");
}

fn an_actor_that_does_not_get_ready_does_not_start(builder: Builder) {
    let node = builder.start().unwrap();
    let start = |how| match node.spawn::<Detect>(how).start() {
        Err(ActorError::Start(error)) => error.to_string(),
        other => panic!("{other:?}"),
    };
    assert!(start(How::Fails).contains("there is no model"));
    assert!(start(How::Panics).contains("`prepare` panicked: the model is bad"));
}

fn a_shutdown_does_not_wait_for_an_actor_that_gets_ready(builder: Builder) {
    let node = builder.start().unwrap();
    let (tell, mut told) = node.channel::<GetsReady>().unwrap();
    std::thread::scope(|scope| {
        let starting = scope.spawn(|| node.spawn::<Detect>(How::Waits(tell)).start());
        told.blocking_recv().unwrap();
        drop(told);
        assert!(node.shutdown(LONG).unwrap().is_clean());
        assert!(starting.join().unwrap().is_err());
    });
}

fn a_subscriber_says_what_it_waited_for(builder: Builder) {
    let node = builder.start().unwrap();
    let mut weights = Subscriber::<Weights>::follow(&node, "weights");
    let late = node.block_on(weights.ready(SHORT)).unwrap_err();
    assert!(late.to_string().contains("there is no topic of this name"), "{late}");
    let publisher = topic(&node);
    until("the topic is found", || {
        node.block_on(weights.ready(SHORT)).unwrap_err().to_string().contains("has no version yet")
    });
    node.block_on(publisher.publish(Weights(1))).unwrap();
    let version = node.block_on(weights.ready(LONG)).unwrap();
    assert_eq!((version.number, &version.value), (1, &Weights(1)));
    // It is there from now on.
    assert_eq!(node.block_on(weights.ready(Duration::ZERO)).unwrap(), version);
    let mut never = Subscriber::<Weights>::follow(&node, "nothing");
    drop(node.shutdown(LONG));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    assert_eq!(runtime.block_on(never.ready(LONG)), Err(NotReady::Closed(TopicClosed::NodeStopping)));
}

// The first version that a process puts finds no link to the topic's process.
fn what_is_put_is_published_and_the_newest_wins(builder: Builder) {
    let node = builder.start().unwrap();
    let publisher = topic(&node);
    for step in 0..100 {
        publisher.put(Weights(step));
    }
    let mut weights = Subscriber::<Weights>::follow(&node, "weights");
    let newest = |weights: &mut Subscriber<Weights>| weights.latest().map(|version| version.value.0);
    until("the last one is there", || newest(&mut weights) == Some(99));
    // A published version is newer than the versions that were put before.
    (100..200).for_each(|step| publisher.put(Weights(step)));
    let published = node.block_on(publisher.publish(Weights(200))).unwrap();
    until("it is there", || newest(&mut weights) == Some(200));
    publisher.put(Weights(201));
    until("it is there", || newest(&mut weights) == Some(201));
    assert_eq!(weights.latest().unwrap().number, published + 1);
}

/// Keeps the events of a thread, as text.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<String>>);

impl Visit for Log {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0.lock().unwrap().push_str(&format!("{field}={value:?} "));
    }
}

impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Log {
    fn on_event(&self, event: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
        event.record(&mut self.clone());
    }
}

fn a_value_is_not_dropped_in_silence(builder: Builder) {
    const ROOM: u32 = 4;
    let node = builder.start().unwrap();
    let topic = node.spawn::<Topic<Weights>>(()).mailbox(ROOM).start().unwrap();
    let publisher = Publisher::new(topic.address());
    let log = Log::default();
    let logged = || log.0.lock().unwrap().contains("the future of `publish` was dropped before it was sent");
    tracing::subscriber::with_default(tracing_subscriber::registry().with(log.clone()), || {
        let process = want::pid(&node, &topic);
        stop(process);
        let sent = [(); ROOM as usize].map(|()| publisher.publish(Weights(0)));
        let dropped = publisher.publish(Weights(1));
        kill_process(want::pid_of(process).unwrap(), Signal::CONT).unwrap();
        for (number, one) in (1..).zip(sent) {
            assert_eq!(node.block_on(one).unwrap(), number);
        }
        // This `put` found no room. Now there is room, but that is no reason to publish a version that was
        // given up.
        drop(dropped);
        assert!(logged());
        log.0.lock().unwrap().clear();
        assert_eq!(
            node.block_on(publisher.publish(Weights(2))).unwrap(),
            u64::from(ROOM) + 1,
            "the other was not sent"
        );
        // This one finds room.
        drop(publisher.publish(Weights(3)));
        assert_eq!(node.block_on(publisher.publish(Weights(4))).unwrap(), u64::from(ROOM) + 3);
        assert!(!logged());
    });
}

#[derive(Clone, Serialize, Deserialize, GpuMessage)]
struct Picture(u64);

/// Fails where it has no weights.
struct Infer(Subscriber<Weights>);

impl Stage for Infer {
    type Args = ();
    type In = Picture;
    type Out = Picture;

    fn create((): (), env: &Env) -> anyhow::Result<Self> {
        Ok(Infer(Subscriber::follow(env, "weights")))
    }

    async fn prepare(&mut self, _: &Env) -> anyhow::Result<()> {
        self.0.ready(LONG).await?;
        Ok(())
    }

    fn process(&mut self, picture: Picture, out: &mut Out<Picture>) -> anyhow::Result<()> {
        let weights = self.0.latest().ok_or_else(|| anyhow::anyhow!("no weights"))?;
        out.emit(Picture(picture.0 + weights.value.0));
        Ok(())
    }
}

/// Makes 100 pictures, or as many as a sink has seen.
struct Pictures(u64, bool);

impl Source for Pictures {
    type Args = ();
    type Out = Picture;

    fn create((): (), _: &Env) -> anyhow::Result<Self> {
        Ok(Pictures(0, false))
    }

    async fn prepare(&mut self, _: &Env) -> anyhow::Result<()> {
        tokio::task::yield_now().await;
        self.1 = true;
        Ok(())
    }

    fn next(&mut self) -> anyhow::Result<Option<Picture>> {
        anyhow::ensure!(self.1, "it is not ready");
        self.0 += 1;
        Ok((self.0 <= 100).then_some(Picture(self.0)))
    }
}

/// Checks that it was made ready, and that all pictures have met weights.
struct Frames(u64, bool);

impl Sink for Frames {
    type Args = ();
    type In = Picture;

    fn create((): (), _: &Env) -> anyhow::Result<Self> {
        Ok(Frames(0, false))
    }

    async fn prepare(&mut self, _: &Env) -> anyhow::Result<()> {
        self.1 = true;
        Ok(())
    }

    fn consume(&mut self, picture: Picture) -> anyhow::Result<()> {
        anyhow::ensure!(self.1 && picture.0 > 1000);
        self.0 += 1;
        Ok(())
    }

    fn finish(&mut self) -> anyhow::Result<()> {
        anyhow::ensure!(self.0 == 100, "{} pictures", self.0);
        Ok(())
    }
}

fn a_stage_has_weights_for_its_first_item(builder: Builder) {
    let node = builder.start().unwrap();
    let publisher = topic(&node);
    let flow = Pipeline::new("pictures").source::<Pictures>(()).stage::<Infer>(()).replicas(2);
    let pipeline = flow.sink::<Frames>(()).pipeline();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // It starts only once its worker waits for them.
            until("its worker is there", || node.workers().iter().any(|worker| worker.name == "Infer.1"));
            publisher.put(Weights(1000));
        });
        let report = node.run_pipeline(&pipeline).unwrap().wait().unwrap();
        assert!(report.is_complete(), "{report}");
    });
}

/// Tells an actor of each picture.
struct Tell(Address<Ping>);

impl Sink for Tell {
    type Args = Address<Ping>;
    type In = Picture;

    fn create(to: Address<Ping>, _: &Env) -> anyhow::Result<Self> {
        Ok(Tell(to))
    }

    fn consume(&mut self, _: Picture) -> anyhow::Result<()> {
        Ok(self.0.try_send(Ping)?)
    }
}

/// "A later life gets ready."
#[derive(Serialize, Deserialize, GpuMessage)]
struct Again;

/// Panics on its fifth picture, and does not get ready again: it reports that it tries.
struct NeverAgain(Address<Again>, u64);

impl Stage for NeverAgain {
    type Args = Address<Again>;
    type In = Picture;
    type Out = Picture;

    fn create(to: Address<Again>, _: &Env) -> anyhow::Result<Self> {
        Ok(NeverAgain(to, 0))
    }

    async fn prepare(&mut self, env: &Env) -> anyhow::Result<()> {
        if env.incarnation() > 0 {
            self.0.send(Again).await?;
            std::future::pending::<()>().await;
        }
        Ok(())
    }

    fn process(&mut self, picture: Picture, out: &mut Out<Picture>) -> anyhow::Result<()> {
        self.1 += 1;
        assert!(self.1 < 5, "the fifth picture");
        out.emit(picture);
        Ok(())
    }
}

/// It has restarts left, and nobody has failed: the items that it would have got are named.
fn a_shutdown_that_meets_a_stage_that_gets_ready_is_no_failure(builder: Builder) {
    let node = builder.start().unwrap();
    let idle = node.spawn::<Idle>(()).mailbox(128).start().unwrap();
    let (tell, mut told) = node.channel::<Again>().unwrap();
    let flow = Pipeline::new("never again").source::<Pictures>(()).stage::<NeverAgain>(tell);
    let flow = flow.named("again").restart(Restart::on_failure(5));
    let running = node.run_pipeline(&flow.sink::<Tell>(idle.address()).pipeline()).unwrap();
    told.blocking_recv().unwrap();
    drop(told);
    node.shutdown(LONG).unwrap();
    let report = running.wait().unwrap();
    assert!(!report.is_complete() && !report.to_string().contains("used up"), "{report}");
}

fn a_pipeline_is_written_down_once_when_its_addresses_are_known(builder: Builder) {
    let node = builder.start().unwrap();
    let idle = node.spawn::<Idle>(()).mailbox(128).start().unwrap();
    let flow = Pipeline::new("tells").source::<Pictures>(()).sink::<Tell>(idle.address());
    node.run_pipeline(&flow.pipeline()).unwrap().wait().unwrap();
    until("all were told", || {
        node.metrics().unwrap().actor(idle.actor()).is_some_and(|actor| actor.handled == 100)
    });
}

pub(crate) fn cases() -> Vec<Case> {
    cases![
        messages_wait_until_an_actor_is_ready_and_others_do_not,
        each_life_gets_ready_or_is_a_failure_for_its_policy,
        an_actor_that_does_not_get_ready_does_not_start,
        a_shutdown_does_not_wait_for_an_actor_that_gets_ready,
        a_subscriber_says_what_it_waited_for,
        what_is_put_is_published_and_the_newest_wins,
        a_value_is_not_dropped_in_silence,
        a_stage_has_weights_for_its_first_item,
        a_pipeline_is_written_down_once_when_its_addresses_are_known,
        a_shutdown_that_meets_a_stage_that_gets_ready_is_no_failure,
    ]
}
