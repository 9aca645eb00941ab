//! A pipeline in a few lines: photographs are decoded in one process, resized by two that share the work,
//! their edges found in a fourth, and written by a fifth, in the order of the photographs.
//!
//! `--device cuda:0` computes on a GPU, `--progress` reports the progress, `--trace FILE` writes a trace for
//! <https://ui.perfetto.dev>, and `--report` prints the table of stages.

use std::path::PathBuf;

use clap::Parser;
use tensorpost::pipeline::Progress;
use tensorpost::prelude::*;
use tensorpost_actors::image::ImageSize;
use tensorpost_actors::ready::{
    Edges, Images, ImagesArgs, Named, Repeat, Resize, ResizeArgs, SavePng, SavePngArgs,
};
use tensorpost_examples::Place;

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    place: Place,
    /// Folder with .jpg, .jpeg and .png files
    #[arg(long, value_name = "DIR", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/data"))]
    photographs: PathBuf,
    /// Images to process: the photographs over and over
    #[arg(long, default_value_t = 20)]
    images: u64,
    #[arg(long)]
    progress: bool,
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    #[arg(long)]
    report: bool,
    /// Folder to write to
    #[arg(long, default_value_os_t = std::env::temp_dir().join("tensorpost-pipeline"))]
    out: PathBuf,
}

fn main() -> anyhow::Result<()> {
    // A worker has no arguments, and needs none: its stage gets them from the program that started it.
    let args = Args::parse();
    let Place { device, sharing } = args.place;
    let images = ImagesArgs::folder(args.photographs);
    let mut pipeline = Pipeline::new("edges")
        .source::<Images>(images.repeat(Repeat::Images(args.images)))
        .on(&device)
        .stage::<Resize<Named>>(ResizeArgs::bytes(ImageSize::new(192, 128)?))
        .on(&device)
        .replicas(2)
        .ordered()
        .stage::<Edges<Named>>(())
        .on(&device)
        .sink::<SavePng<Named>>(SavePngArgs { folder: args.out.clone(), gain: 0.25 })
        .on(&device)
        .pipeline()
        .node(move |node| node.sharing(sharing))
        .progress(if args.progress { Progress::auto() } else { Progress::Off });
    if let Some(trace) = args.trace {
        pipeline = pipeline.trace(trace);
    }
    let report = pipeline.run()?;
    print!("{}", pipeline.describe());
    if args.report {
        println!("{report}");
    }
    let written = report.stage("SavePng").map_or(0, |stage| stage.items_in);
    println!("{written} images of edges written");
    Ok(())
}
