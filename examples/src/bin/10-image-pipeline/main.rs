//! A real pipeline: photographs are decoded in one process, resized and normalised in a second, edge-filtered
//! in a third (in the memory that they came in), and written as PNG by a fourth. No pixel is copied between
//! them.
//!
//! With `--device cuda:0` the photographs are uploaded once and stay on the GPU until gray bytes come back
//! for the files.
//!
//! The stages are ready-made; this program connects them, and checks their results against the same
//! computation in one process.

mod args;
mod check;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use clap::Parser as _;
use tensorpost::pipeline::{Progress, Report};
use tensorpost::prelude::*;
use tensorpost_actors::image::edge::gain;
use tensorpost_actors::image::normalise::Normalisation;
use tensorpost_actors::ready::{
    Edges, Images, ImagesArgs, Named, Normalise, Repeat, Resize, ResizeArgs, SavePng, SavePngArgs,
};

use args::Args;

const NORMALISATION: Normalisation = Normalisation::IMAGENET;

fn main() -> ExitCode {
    match run(SystemTime::now()) {
        Ok(false) => ExitCode::SUCCESS,
        Ok(true) => ExitCode::from(130), // what a shell says of a program that Ctrl-C ended
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the example. Returns whether it was stopped.
fn run(began: SystemTime) -> anyhow::Result<bool> {
    // Only the first process gets here. A worker has no arguments: its stage gets them from the program that
    // started it.
    let args = Args::parse();
    let report = pipeline(&args).run()?;
    println!("{report}");
    println!("{}", summary(&report, check::first_file(&args, began)));
    println!("written to {}", args.out.display());
    let written = report.stage("write").map_or(0, |stage| stage.items_in);
    println!("{}", check::check(&args, written, report.cancelled)?);
    Ok(report.cancelled)
}

fn pipeline(args: &Args) -> Pipeline {
    let mut images = ImagesArgs::folder(&args.images).repeat(Repeat::Images(args.frames));
    images.skip_bad = args.skip_bad;
    let (device, sharing) = (&args.place.device, args.place.sharing);
    let progress = args.progress || std::io::stderr().is_terminal();
    Pipeline::new("edges")
        .source::<Images>(images)
        .named("decode")
        .on(device)
        .stage::<Resize<Named>>(ResizeArgs::bytes(args.size))
        .named("resize")
        .on(device)
        .stage::<Normalise<Named>>(NORMALISATION)
        .named("normalise")
        .on(device)
        .beside() // in the process that resizes
        .stage::<Edges<Named>>(())
        .named("edges")
        .on(device)
        .sink::<SavePng<Named>>(SavePngArgs { folder: args.out.clone(), gain: gain(&NORMALISATION) })
        .named("write")
        .on(device)
        .pipeline()
        .node(move |node| node.sharing(sharing))
        .progress(if progress { Progress::auto() } else { Progress::Off })
}

/// Returns the summary; `first` is the time from the start of the program until the first file existed.
fn summary(report: &Report, first: Option<Duration>) -> String {
    let first = first.map_or_else(|| "at an unknown time".to_owned(), |first| format!("after {first:.1?}"));
    let handed_on = report.stages.iter().filter(|stage| stage.bytes_not_copied > 0);
    let handed_on: Vec<_> =
        handed_on.map(|stage| format!("{} {} bytes", stage.stage, stage.bytes_not_copied)).collect();
    format!(
        "the first image was there {first}, the start of four processes included\n\
         handed on to another process without being copied: {}",
        handed_on.join(", ")
    )
}
