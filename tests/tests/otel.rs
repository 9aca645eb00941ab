//! One trace through several processes: the context of a sampled span travels with messages and with items.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use opentelemetry::trace::TracerProvider as _;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{Sampler, SdkTracer, SdkTracerProvider, SpanData, SpanExporter};
use rustix::process::getppid;
use tensorpost::observe::Telemetry;
use tensorpost::prelude::*;
use tensorpost_tests::cases;
use tensorpost_tests::harness::{self, Builder};
use tensorpost_tests::pipes::{Count, CountArgs, Numbered};
use tensorpost_tests::wait::until;
use tracing::{Instrument, Subscriber};
use tracing_opentelemetry::OpenTelemetryLayer;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;

/// The parent of a span that has none.
const NONE: &str = "0000000000000000";

/// The file into which all processes of this program write their spans, a line each.
fn path(of_the_node: u32) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("spans-{of_the_node}"))
}

/// Writes each span as a line: name, trace, span, parent, process.
#[derive(Debug)]
struct Lines(File);

impl Lines {
    fn of(node: u32) -> Self {
        Lines(OpenOptions::new().create(true).append(true).open(path(node)).unwrap())
    }
}

impl SpanExporter for Lines {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        for span in batch {
            let (context, parent) = (span.span_context, span.parent_span_id);
            let (trace, own, process) = (context.trace_id(), context.span_id(), std::process::id());
            let line = format!("{}\t{trace}\t{own}\t{parent}\t{process}\n", span.name);
            // It is one write, so that lines of several processes do not mix.
            (&self.0).write_all(line.as_bytes()).unwrap();
        }
        Ok(())
    }
}

fn layer<S>(node: u32, sampler: Sampler) -> OpenTelemetryLayer<S, SdkTracer>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let provider =
        SdkTracerProvider::builder().with_simple_exporter(Lines::of(node)).with_sampler(sampler).build();
    OpenTelemetryLayer::new(provider.tracer("test"))
}

/// Runs with a subscriber that samples all, or nothing.
fn observed<R>(sampler: Sampler, run: impl FnOnce() -> R) -> R {
    let subscriber = tracing_subscriber::registry().with(layer(std::process::id(), sampler));
    tracing::subscriber::with_default(subscriber, run)
}

/// A span, read back.
#[derive(Clone, Debug, PartialEq)]
struct Written {
    name: String,
    trace: String,
    span: String,
    parent: String,
    process: String,
}

fn written() -> Vec<Written> {
    let text = fs::read_to_string(path(std::process::id())).unwrap_or_default();
    let line = |line: &str| {
        let mut parts = line.split('\t').map(str::to_owned);
        let mut next = || parts.next().unwrap_or_default();
        Written { name: next(), trace: next(), span: next(), parent: next(), process: next() }
    };
    // A line that is still being written has no end yet.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.lines().map(line).collect()
}

/// Waits for this many spans of the trace of this root.
fn trace_of(root: &str, count: usize) -> Vec<Written> {
    let mut trace = Vec::new();
    until("all spans are written", || {
        let all = written();
        let Some(first) = all.iter().find(|span| span.name == root) else { return false };
        trace = all.iter().filter(|span| span.trace == first.trace).cloned().collect();
        trace.len() >= count
    });
    trace
}

/// Returns the spans from the root of a trace down, where each has one child.
fn chain_of<'a>(all: &'a [Written], trace: &str) -> Vec<&'a Written> {
    let mut chain: Vec<&Written> = Vec::new();
    let below = |parent: &str| all.iter().find(|span| span.trace == trace && span.parent == parent);
    while let Some(next) = below(chain.last().map_or(NONE, |last| &last.span)) {
        chain.push(next);
    }
    chain
}

#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = u64)]
struct Question(u64);

/// Asks another actor, where there is one.
#[derive(RemoteActor)]
#[remote_actor(args = Option<Address<Question>>, create = Relay::of, handles(Question, Numbered))]
struct Relay {
    next: Option<Address<Question>>,
}

impl Relay {
    fn of(next: Option<Address<Question>>, _: &Env) -> anyhow::Result<Self> {
        Ok(Relay { next })
    }
}

impl Handler<Question> for Relay {
    type Result = ResponseFuture<u64>;

    fn handle(&mut self, question: Question, _: &mut Context<Self>) -> Self::Result {
        let next = self.next.clone();
        let answer = async move {
            match next {
                Some(next) => next.ask(Question(question.0 + 1)).await.map_or(0, |answer| answer + 1),
                None => question.0,
            }
        };
        // The future goes on when the handler has returned.
        Box::pin(answer.in_current_span())
    }
}

impl Handler<Numbered> for Relay {
    type Result = ();

    fn handle(&mut self, _: Numbered, _: &mut Context<Self>) {}
}

/// Passes items on.
struct Pass;

impl Stage for Pass {
    type Args = ();
    type In = Numbered;
    type Out = Numbered;

    fn create((): (), _: &Env) -> anyhow::Result<Self> {
        Ok(Pass)
    }

    fn process(&mut self, item: Numbered, out: &mut Out<Numbered>) -> anyhow::Result<()> {
        out.emit(item);
        Ok(())
    }
}

/// Asks in a span of this name.
fn ask_in(node: &Node, relay: &Address<Question>, name: &'static str, number: u64) -> u64 {
    let root = tracing::info_span!("request", otel.name = name);
    node.block_on(async { relay.ask(Question(number)).await }.instrument(root)).unwrap()
}

fn a_handler_runs_in_a_span_under_its_senders_in_another_process(builder: Builder) {
    let node = start(builder);
    let last = node.spawn::<Relay>(None).start().unwrap();
    let first = node.spawn::<Relay>(Some(last.address())).start().unwrap();
    observed(Sampler::AlwaysOn, || assert_eq!(ask_in(&node, &first.address(), "through two", 1), 3));
    let trace = trace_of("through two", 3);
    let chain = chain_of(&trace, &trace[0].trace);
    let names: Vec<_> = chain.iter().map(|span| span.name.as_str()).collect();
    assert_eq!((names.as_slice(), trace.len()), (&["through two", "Question", "Question"][..], 3));
    let processes: Vec<u32> = chain.iter().map(|span| span.process.parse().unwrap()).collect();
    assert_eq!(processes[0], std::process::id());
    assert!(processes[1] != processes[0] && processes[2] != processes[0], "{processes:?}");
    assert_ne!(processes[1], processes[2]);
    assert!(node.shutdown(Duration::from_secs(20)).unwrap().is_clean());
}

fn what_is_not_sampled_is_recorded_by_nobody(builder: Builder) {
    let node = start(builder);
    let relay = node.spawn::<Relay>(None).start().unwrap();
    let relay = relay.address();
    observed(Sampler::AlwaysOff, || assert_eq!(ask_in(&node, &relay, "not sampled", 40), 40));
    observed(Sampler::AlwaysOn, || {
        // Without a span there is no context either.
        assert_eq!(node.block_on(relay.ask(Question(41))).unwrap(), 41);
        assert_eq!(ask_in(&node, &relay, "sampled", 42), 42);
    });
    let trace = trace_of("sampled", 2);
    let handled = chain_of(&trace, &trace[0].trace)[1];
    // The actor took one after the other, so the spans of the first two would be there by now.
    let all = written();
    assert_eq!(all.iter().filter(|span| span.process == handled.process).collect::<Vec<_>>(), [handled]);
    assert!(all.iter().all(|span| span.name != "not sampled"));
    assert!(node.shutdown(Duration::from_secs(20)).unwrap().is_clean());
}

fn items_of_a_pipeline_have_a_trace_each_from_the_source_to_the_actor(builder: Builder) {
    const ITEMS: usize = 3;
    let node = start(builder);
    let relay = node.spawn::<Relay>(None).start().unwrap();
    let source = Pipeline::new("traced").source::<Count>(CountArgs::to(ITEMS as u64)).named("numbers");
    let end = source.stage::<Pass>(()).named("pass").sink_to(&relay.address::<Numbered>()).named("sink");
    node.run_pipeline(&end.pipeline()).unwrap().wait().unwrap();
    until("all items are traced to the end", || {
        let all = written();
        let is_whole = |root: &&Written| {
            let names: Vec<_> =
                chain_of(&all, &root.trace).into_iter().map(|span| span.name.as_str()).collect();
            names == ["numbers", "pass", "sink", "send", "Numbered"]
        };
        // The last call of the source, which returned no item, is a trace of one span.
        all.iter().filter(|span| span.name == "numbers").filter(is_whole).count() == ITEMS
    });
    assert!(node.shutdown(Duration::from_secs(20)).unwrap().is_clean());
}

fn start(builder: Builder) -> Node {
    let builder = builder.worker_telemetry(|_| {
        let node = getppid().map_or(0, |node| node.as_raw_nonzero().get() as u32);
        Telemetry::new(layer(node, Sampler::ParentBased(Box::new(Sampler::AlwaysOn))))
    });
    builder.start().unwrap()
}

fn main() {
    harness::run(cases![
        a_handler_runs_in_a_span_under_its_senders_in_another_process,
        what_is_not_sampled_is_recorded_by_nobody,
        items_of_a_pipeline_have_a_trace_each_from_the_source_to_the_actor,
    ])
}
