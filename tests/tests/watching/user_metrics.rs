//! Metrics of user code: values from the macros of the `metrics` crate in workers arrive in the node's
//! recorder.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit, counter, gauge, histogram,
};
use parking_lot::Mutex;
use tensorpost::prelude::*;
use tensorpost_tests::cases;
use tensorpost_tests::harness::{Builder, Case};
use tensorpost_tests::wait::{ask, until};

/// The recorder of this process: for each series its value, and for histograms the sum and the number of
/// samples.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<BTreeMap<String, f64>>>);

struct Series(Kept, String);

impl Series {
    fn update(&self, to: impl FnOnce(f64) -> f64) {
        let mut all = self.0.0.lock();
        let value = all.entry(self.1.clone()).or_default();
        *value = to(*value);
    }
}

impl CounterFn for Series {
    fn increment(&self, value: u64) {
        self.update(|before| before + value as f64);
    }

    fn absolute(&self, value: u64) {
        self.update(|before| before.max(value as f64));
    }
}

impl GaugeFn for Series {
    fn increment(&self, value: f64) {
        self.update(|before| before + value);
    }

    fn decrement(&self, value: f64) {
        self.update(|before| before - value);
    }

    fn set(&self, value: f64) {
        self.update(|_| value);
    }
}

impl HistogramFn for Series {
    fn record(&self, value: f64) {
        self.update(|before| before + value);
        Series(self.0.clone(), format!("count of {}", self.1)).update(|before| before + 1.0);
    }
}

impl Kept {
    fn series(&self, key: &Key) -> Arc<Series> {
        let labels: Vec<_> = key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        Arc::new(Series(self.clone(), format!("{} {}", key.name(), labels.join(" "))))
    }
}

impl Recorder for Kept {
    fn describe_counter(&self, name: KeyName, unit: Option<Unit>, text: SharedString) {
        *self.0.lock().entry(format!("{} ({unit:?}): {text}", name.as_str())).or_default() += 1.0;
    }
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.series(key))
    }
    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.series(key))
    }
    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.series(key))
    }
}

/// Installs it once; all cases share it, and tell their values apart by the names of their workers.
fn recorder() -> &'static Kept {
    static KEPT: OnceLock<Kept> = OnceLock::new();
    KEPT.get_or_init(|| {
        let kept = Kept::default();
        assert!(metrics::set_global_recorder(kept.clone()).is_ok());
        kept
    })
}

fn value(series: &str) -> Option<f64> {
    recorder().0.lock().get(series).copied()
}

/// "Count this many."
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = u32)]
struct Count(u64);

/// "Name this many series."
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = u32)]
struct Flood(usize);

/// "Describe a counter." One case alone sends it.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = u32)]
struct Describe;

struct Counting {
    made: Counter,
}

impl Actor for Counting {
    type Context = Context<Self>;
}

impl RemoteActor for Counting {
    type Args = ();

    fn create((): (), _: &Env) -> anyhow::Result<Self> {
        metrics::describe_counter!("made_in_create", Unit::Count, "named before there was a message");
        Ok(Counting { made: counter!("made_in_create") })
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Count>().message::<Flood>().message::<Describe>();
    }
}

impl Handler<Count> for Counting {
    type Result = ResponseFuture<u32>;

    fn handle(&mut self, Count(count): Count, _: &mut Context<Self>) -> Self::Result {
        counter!("counted", "kind" => "big").increment(count);
        gauge!("level").set(count as f64 / 2.0);
        histogram!("took").record(0.25);
        self.made.increment(1);
        Box::pin(async {
            tokio::task::yield_now().await;
            counter!("in_a_future").increment(1);
            std::process::id()
        })
    }
}

impl Handler<Describe> for Counting {
    type Result = MessageResult<Describe>;

    fn handle(&mut self, _: Describe, _: &mut Context<Self>) -> Self::Result {
        metrics::describe_counter!("counted", Unit::Count, "said by each actor");
        MessageResult(0)
    }
}

impl Handler<Flood> for Counting {
    type Result = MessageResult<Flood>;

    fn handle(&mut self, Flood(series): Flood, _: &mut Context<Self>) -> Self::Result {
        for number in 0..series {
            counter!("flood", "number" => number.to_string()).increment(1);
        }
        counter!("no name").increment(1);
        MessageResult(0)
    }
}

fn metrics_of_a_handler_arrive_with_their_actor_and_their_worker(builder: Builder) {
    recorder();
    let node = builder.start().unwrap();
    let worker = node.worker("counts").unwrap();
    let first = node.spawn::<Counting>(()).name("first").worker(worker).start().unwrap();
    // On a thread of its own, and without a name.
    let second = node.spawn::<Counting>(()).worker(worker).own_thread().start().unwrap();
    for _ in 0..3 {
        ask(&node, &first.address(), Count(2));
    }
    ask(&node, &second.address(), Count(10));
    let elsewhere = node.spawn::<Counting>(()).name("elsewhere").start().unwrap();
    for said in [&first, &first, &elsewhere] {
        ask(&node, &said.address(), Describe);
    }
    node.metrics().unwrap(); // all is in the recorder when it returns
    let described = value("made_in_create (Some(Count)): named before there was a message");
    assert!(described >= Some(1.0), "{described:?}");
    let described = value("counted (Some(Count)): said by each actor");
    assert_eq!(described, Some(1.0), "the recorder gets the first of all");
    for (series, expected) in [
        ("counted actor=first worker=counts kind=big", 6.0),
        ("level actor=first worker=counts", 1.0),
        ("took actor=first worker=counts", 0.75),
        ("count of took actor=first worker=counts", 3.0),
        ("made_in_create actor=first worker=counts", 3.0),
        // Where several actors share a thread, nobody knows whose task it is.
        ("in_a_future worker=counts", 3.0),
        ("counted actor=Counting worker=counts kind=big", 10.0),
        ("in_a_future actor=Counting worker=counts", 1.0),
    ] {
        assert_eq!(value(series), Some(expected), "{series}: {:#?}", recorder().0.lock());
    }
}

fn they_arrive_unasked_and_at_the_end(builder: Builder) {
    recorder();
    let node = builder.start().unwrap();
    let alone = node.spawn::<Counting>(()).name("unasked").start().unwrap();
    ask(&node, &alone.address(), Count(1));
    let counted = "counted actor=unasked worker=unasked kind=big";
    until("it is told", || value(counted) == Some(1.0));
    ask(&node, &alone.address(), Count(1));
    assert!(node.shutdown(Duration::from_secs(20)).unwrap().is_clean());
    assert_eq!(value(counted), Some(2.0));
    assert_eq!(value("in_a_future actor=unasked worker=unasked"), Some(2.0), "the only actor there");
}

fn a_counter_goes_on_over_the_lives_of_a_worker(builder: Builder) {
    recorder();
    let node = builder.start().unwrap();
    let phoenix = node.spawn::<Counting>(()).name("phoenix").restart(Restart::on_failure(3)).start().unwrap();
    let first = ask(&node, &phoenix.address(), Count(5));
    node.metrics().unwrap();
    node.supervisor().kill_worker(phoenix.worker());
    until("it is back", || node.block_on(phoenix.address().ask(Count(0))).is_ok_and(|pid| pid != first));
    ask(&node, &phoenix.address(), Count(2));
    node.metrics().unwrap();
    assert_eq!(value("counted actor=phoenix worker=phoenix kind=big"), Some(7.0));
}

// MBX-2.
fn series_without_end_are_dropped_and_counted(builder: Builder) {
    recorder();
    let node = builder.start().unwrap();
    let evil = node.spawn::<Counting>(()).name("evil").start().unwrap();
    ask(&node, &evil.address(), Flood(3000));
    node.metrics().unwrap();
    let arrived = recorder().0.lock().keys().filter(|series| series.starts_with("flood actor=evil")).count();
    // One of its series is that of `create`.
    assert_eq!(arrived, 1023);
    let dropped = value("tensorpost_user_metrics_dropped_total worker=evil");
    assert_eq!(dropped, Some(f64::from(3000 - 1023 + 1)), "and the one that has no name");
}

#[derive(Clone, Serialize, Deserialize, GpuMessage)]
struct Frame(u64);

/// Counts frames, under the name in its environment.
struct Detect(String);

impl Stage for Detect {
    type Args = ();
    type In = Frame;
    type Out = Frame;

    fn create((): (), env: &Env) -> anyhow::Result<Self> {
        Ok(Detect(env.name().to_owned()))
    }

    fn process(&mut self, frame: Frame, out: &mut Out<Frame>) -> anyhow::Result<()> {
        counter!("detected", "env" => self.0.clone()).increment(1);
        out.emit(frame);
        Ok(())
    }
}

fn a_stage_is_called_by_its_name_and_the_number_of_its_replica(builder: Builder) {
    recorder();
    let node = builder.start().unwrap();
    let pipeline = Pipeline::new("frames")
        .source::<Frames>(())
        .named("camera")
        .stage::<Detect>(())
        .named("detect")
        .replicas(2)
        .sink::<Total>(())
        .named("total")
        .pipeline();
    node.run_pipeline(&pipeline).unwrap().wait().unwrap();
    drop(node);
    for series in [
        "detected actor=detect.0 worker=detect.0 env=detect.0",
        "detected actor=detect.1 worker=detect.1 env=detect.1",
    ] {
        assert_eq!(value(series), Some(50.0), "{series}: {:#?}", recorder().0.lock());
    }
    assert_eq!(value("taken actor=camera.0 worker=camera"), Some(100.0));
    assert_eq!(value("frames_total actor=total.0 worker=total"), Some(100.0));
}

/// 100 frames.
struct Frames(u64);

impl Source for Frames {
    type Args = ();
    type Out = Frame;

    fn create((): (), _: &Env) -> anyhow::Result<Self> {
        Ok(Frames(0))
    }

    fn next(&mut self) -> anyhow::Result<Option<Frame>> {
        if self.0 == 100 {
            return Ok(None);
        }
        self.0 += 1;
        counter!("taken").increment(1);
        Ok(Some(Frame(self.0)))
    }
}

/// Counts them.
struct Total;

impl Sink for Total {
    type Args = ();
    type In = Frame;

    fn create((): (), _: &Env) -> anyhow::Result<Self> {
        Ok(Total)
    }

    fn consume(&mut self, _: Frame) -> anyhow::Result<()> {
        counter!("frames_total").increment(1);
        Ok(())
    }
}

pub(crate) fn cases() -> Vec<Case> {
    cases![
        metrics_of_a_handler_arrive_with_their_actor_and_their_worker,
        they_arrive_unasked_and_at_the_end,
        a_counter_goes_on_over_the_lives_of_a_worker,
        series_without_end_are_dropped_and_counted,
        a_stage_is_called_by_its_name_and_the_number_of_its_replica,
    ]
}
