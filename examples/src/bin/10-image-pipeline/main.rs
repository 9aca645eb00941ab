//! A real pipeline: photographs are decoded in one process, resized and normalised in a second, edge-filtered in a third,
//! and written as PNG with a table of statistics by a fourth. No pixel is copied between them.
//!
//! With `--device cuda:0` the photographs are uploaded once and stay on the GPU until gray bytes come back for the files.
//!
//! The stages are `tensorpost_actors::stages`; this program starts them, follows them, and checks what they made against
//! the same computation in one process.

mod args;
mod check;
mod follow;
mod report;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Parser as _;
use tensorpost::node::{NodeBuilder, WorkerId};
use tensorpost::prelude::*;
use tensorpost_actors::image::normalise::Normalisation;
use tensorpost_actors::source::ImageFolder;
use tensorpost_actors::stages::{
    EdgeFilter, EdgeFilterArgs, Event, ImageSource, ImageSourceArgs, MAILBOX, Next, PngSink, PngSinkArgs,
    Produce, Resize, ResizeArgs, edge_gain,
};
use tracing_subscriber::EnvFilter;

use args::Args;
use check::Settings;
use follow::Ending;

/// How long a shutdown lets the stages finish. Each has a few frames at most.
const SHUTDOWN: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    let began = Instant::now();
    // First: a worker process, which is this program again, goes on inside and does not come back.
    let builder = Node::builder()
        .actor::<ImageSource>()
        .actor::<Resize>()
        .actor::<EdgeFilter>()
        .actor::<PngSink>()
        .run_if_worker();
    // What goes wrong in a worker is in its log, which comes here.
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    match run(builder, &Args::parse(), began) {
        Ok(Ending::Finished) => ExitCode::SUCCESS,
        Ok(Ending::Stopped) => ExitCode::from(130), // what a shell says of a program that Ctrl-C ended
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(
    builder: NodeBuilder<tensorpost::actor::Program>,
    args: &Args,
    began: Instant,
) -> anyhow::Result<Ending> {
    // Looked at here as well, so that a folder without photographs is said before any process starts.
    let folder = ImageFolder::open(&args.images)?;
    let normalisation = Normalisation::IMAGENET;
    let settings = Settings { size: args.size, normalisation, gain: edge_gain(&normalisation) };

    let node = builder.sharing(args.sharing()).start()?;
    let (events, mut news) = node.channel::<Event>()?;
    let (source, workers) = start_stages(&node, args, &settings, events)?;

    let produced = Instant::now();
    node.block_on(source.send(Produce { frames: args.frames }))?;
    let supervisor = Arc::clone(node.supervisor());
    let outcome = follow::follow(&mut news, &supervisor, &workers, args.frames, produced)?;
    drop(news);
    node.shutdown(SHUTDOWN)?;

    let startup = produced - began;
    print!("{}", report::table(&outcome.end.stages));
    println!("{}", report::summary(&outcome, startup));
    println!("written to {}", args.out.display());
    let checked = check::check(&folder, &args.out, &settings, &outcome, args.frames)
        .context("the pipeline's output is wrong")?;
    println!("{checked}");
    Ok(outcome.ending)
}

/// Starts the stages from the last to the first: each is told the address of the next.
fn start_stages(
    node: &Node,
    args: &Args,
    settings: &Settings,
    events: Address<Event>,
) -> anyhow::Result<(Address<Produce>, Vec<WorkerId>)> {
    let sink = PngSinkArgs { folder: args.out.clone(), gain: settings.gain, events: events.clone() };
    let device = || args.device.clone();
    let sink = node.spawn::<PngSink>(sink).device(device()).name("write").mailbox(MAILBOX).start()?;

    let edges = EdgeFilterArgs { check: args.check_stages, next: Next::to(&sink), events: events.clone() };
    let edges = node.spawn::<EdgeFilter>(edges).device(device()).name("edges").mailbox(MAILBOX).start()?;

    let resize = ResizeArgs {
        size: settings.size,
        normalisation: settings.normalisation,
        check: args.check_stages,
        next: Next::to(&edges),
        events: events.clone(),
    };
    let resize = node.spawn::<Resize>(resize).device(device()).name("resize").mailbox(MAILBOX).start()?;

    let source = ImageSourceArgs {
        folder: args.images.clone(),
        skip_bad: args.skip_bad,
        next: Next::to(&resize),
        events,
    };
    let source = node.spawn::<ImageSource>(source).device(device()).name("decode").start()?;
    let workers = vec![source.worker(), resize.worker(), edges.worker(), sink.worker()];
    Ok((source.address(), workers))
}
