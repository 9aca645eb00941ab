//! A service: a camera's frames flow through a pipeline to a tracker, which clients ask over HTTP.
//!
//! The camera is live, so frames that are too old are dropped in front of the resize. The background is
//! subtracted in the frame's own memory. Two detectors share the work; their weights are replaced while they
//! run, and a detector that dies is restarted while the other goes on. Ctrl-C lets everything under way
//! finish.

mod http;
mod messages;
mod stages;
mod tracker;

use std::io::Write as _;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use clap::{Parser, Subcommand};
use metrics_exporter_prometheus::PrometheusBuilder;
use tensorpost::pipeline::Running;
use tensorpost::prelude::*;
use tensorpost_actors::image::ImageSize;
use tensorpost_actors::ready::{Resize, ResizeArgs};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use http::Service;
use messages::{Found, Frame, Weights};
use stages::{Background, Camera, Detect, WEIGHTS};
use tracker::{Latency, Tracker};

/// How long everything may take to end.
const DEADLINE: Duration = Duration::from_secs(30);

/// Track things that move in front of a camera, and report them over HTTP
#[derive(Parser)]
#[command(name = "20-service")]
struct Args {
    #[command(subcommand)]
    command: Option<Command>,

    /// Port to listen on, at 127.0.0.1; 0 for a free one
    #[arg(long, default_value_t = 8020)]
    port: u16,

    /// Frames a second that the camera takes
    #[arg(long, global = true, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rate: u32,
}

#[derive(Clone, Copy, Subcommand)]
enum Command {
    /// Run for a while, without HTTP, and print the speed
    Load {
        /// For how long
        #[arg(long, default_value_t = 5)]
        seconds: u64,
    },
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let node = Node::builder().start()?;
    let recorder = PrometheusBuilder::new().install_recorder()?;

    let topic = node.spawn::<Topic<Weights>>(()).name(WEIGHTS).start()?;
    let tracker = node.spawn::<Tracker>(()).name("tracker").start()?;
    let service = Arc::new(Service {
        stream: node.host_stream()?,
        tracker,
        weights: Publisher::new(topic.address()),
        recorder,
        node,
    });
    service.weights.put(service.new_weights(0.1)?);

    let pipeline = pipeline(args.rate, &service.tracker.address())?;
    let running = service.node.run_pipeline(&pipeline)?;

    match args.command {
        Some(Command::Load { seconds }) => load(&service, running, Duration::from_secs(seconds)),
        None => serve(service, running, args.port),
    }
}

fn pipeline(rate: u32, tracker: &Address<Found>) -> anyhow::Result<Pipeline> {
    let again = Restart::on_failure(10).within(Duration::from_secs(60));
    let pipeline = Pipeline::new("analytics");
    pipeline
        .source::<Camera>([240, 320])
        .named("camera")
        .every(Duration::from_secs(1) / rate)
        .stage::<Resize<Frame>>(ResizeArgs::unit(ImageSize::new(160, 120)?))
        .named("resize")
        .mailbox(1)
        .drop_oldest() // a camera waits for nobody
        .stage::<Background>(())
        .named("background")
        .mailbox(2) // what waits behind the place where frames are dropped grows old there
        .stage::<Detect>(())
        .named("detect")
        .mailbox(2)
        .replicas(2)
        .ordered()
        .restart(again)
        .sink_to(tracker)
        .named("to the tracker");
    Ok(pipeline)
}

/// Answers until Ctrl-C, `SIGTERM`, or the end of the pipeline.
fn serve(service: Arc<Service>, running: Running, port: u16) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
        let (mut interrupt, mut terminate) =
            (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        println!("the service is at http://{}", listener.local_addr()?);
        std::io::stdout().flush()?;
        let ended = running.ended();
        let until = async move {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
                () = ended => {}
            }
        };
        axum::serve(listener, http::routes(Arc::clone(&service))).with_graceful_shutdown(until).await
    })?;
    let report = running.finish(DEADLINE)?;
    println!("{report}");
    println!("{}", service.node.shutdown(DEADLINE)?);
    Ok(())
}

/// Runs for a time and prints the speed.
fn load(service: &Service, running: Running, time: Duration) -> anyhow::Result<()> {
    let ended = running.ended();
    // The pipeline goes on for that long, unless it fails before.
    let _ = service.node.block_on(async { tokio::time::timeout(time, ended).await });
    let report = running.finish(DEADLINE)?;
    let latency = service.node.block_on(service.tracker.ask(Latency))?;
    let dropped = report.stage("resize").map_or(0, |stage| stage.dropped);
    let (median, p99) =
        (latency.quantile(0.5).unwrap_or_default(), latency.quantile(0.99).unwrap_or_default());
    let rate = latency.count() as f64 / report.seconds;
    println!(
        "{} frames, {rate:.0} frames/s, {dropped} dropped; latency: median {median:.1?}, p99 {p99:.1?}",
        latency.count()
    );
    service.node.shutdown(DEADLINE)?;
    Ok(())
}
