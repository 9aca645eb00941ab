//! A PyTorch model as a stage between two stages in Rust. Photographs are decoded in one process, and a
//! convolution in Python finds their edges in a second. A third process compares each of them with the same
//! computation in one process.
//!
//! It needs Python with the package `tensorpost` and PyTorch (`TENSORPOST_PYTHON` names another interpreter
//! than the active one), and says so in one line where these are missing. `--device cuda:0` runs the model on
//! a GPU.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use clap::Parser;
use tensorpost::actor::Python;
use tensorpost::prelude::*;
use tensorpost_actors::image::decode::EncodedImage;
use tensorpost_examples::{Place, lacks_python};

const PHOTOGRAPHS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/data");
const MODULES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/bin/16-torch-stage");

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    place: Place,
}

/// `Photograph` in `edges.py`.
#[derive(Clone, Serialize, Deserialize, GpuMessage)]
#[gpu_message(portable)]
struct Photograph {
    name: String,
    #[tensor(dtype = f32, shape = [3, _, _])]
    pixels: Tensor,
}

#[derive(Clone, Serialize, Deserialize, GpuMessage)]
#[gpu_message(portable)]
struct Found {
    name: String,
    #[tensor(dtype = f32, shape = [_, _])]
    strength: Tensor,
}

/// The photographs of the folder, by name.
struct Photographs {
    left: std::vec::IntoIter<PathBuf>,
    stream: DeviceStream,
}

#[stage]
impl Photographs {
    fn create(folder: PathBuf, env: &Env) -> anyhow::Result<Self> {
        let paths = std::fs::read_dir(&folder)?.map(|entry| entry.map(|entry| entry.path()));
        let mut paths: Vec<PathBuf> = paths.collect::<Result<_, _>>()?;
        paths.retain(|path| path.extension().is_some_and(|kind| kind == "jpg" || kind == "png"));
        paths.sort();
        Ok(Photographs { left: paths.into_iter(), stream: env.stream() })
    }

    fn next(&mut self) -> anyhow::Result<Option<Photograph>> {
        let Some(path) = self.left.next() else { return Ok(None) };
        let ((height, width), planes) = decoded(&path)?;
        let pixels = self.stream.from_slice(&[3, height, width], &planes)?;
        let name = path.file_name().context("it has a name")?.to_string_lossy().into_owned();
        Ok(Some(Photograph { name, pixels: pixels.freeze() }))
    }
}

/// Returns the rows and columns of a photograph, and its colours as three planes of numbers from 0 to 255.
fn decoded(path: &Path) -> anyhow::Result<((usize, usize), Vec<f32>)> {
    let image = EncodedImage::open(path)?.decode()?;
    let plane = |colour: usize| image.pixels.iter().skip(colour).step_by(3).map(|byte| f32::from(*byte));
    let planes = (0..3).flat_map(plane).collect();
    Ok(((image.size.height() as usize, image.size.width() as usize), planes))
}

/// Computes the model's result in this process.
fn edges(planes: &[f32], height: usize, width: usize) -> Vec<f32> {
    let at = |row: usize, column: usize| -> f32 {
        planes.chunks_exact(height * width).map(|plane| plane[row * width + column]).sum()
    };
    let mut strength = Vec::with_capacity((height - 2) * (width - 2));
    for row in 1..height - 1 {
        for column in 1..width - 1 {
            let (mut across, mut down) = (0.0, 0.0);
            for (step, weight) in [(0, 1.0), (1, 2.0), (2, 1.0)] {
                across += weight * (at(row + step - 1, column + 1) - at(row + step - 1, column - 1));
                down += weight * (at(row + 1, column + step - 1) - at(row - 1, column + step - 1));
            }
            strength.push(across.abs() + down.abs());
        }
    }
    strength
}

fn compare(found: &Found, stream: &DeviceStream) -> anyhow::Result<()> {
    let ((height, width), planes) = decoded(&Path::new(PHOTOGRAPHS).join(&found.name))?;
    let here = edges(&planes, height, width);
    let there: Vec<f32> = stream.download(&found.strength)?;
    ensure!(
        found.strength.shape() == [height - 2, width - 2],
        "{}: {:?}",
        found.name,
        found.strength.shape()
    );
    // All numbers are whole, but a library may compute them by way of fractions.
    let most = here.iter().zip(&there).map(|(here, there)| (here - there).abs()).fold(0.0, f32::max);
    ensure!(most < 0.05, "{}: an edge differs by {most}", found.name);
    println!("{}: {} edges as in one process", found.name, here.len());
    Ok(())
}

fn main() -> anyhow::Result<()> {
    let Place { device, sharing } = Args::parse().place;
    if let Some(lack) = lacks_python("torch") {
        println!("left out: {lack}");
        return Ok(());
    }
    let report = Pipeline::new("edges")
        .source::<Photographs>(PHOTOGRAPHS.into())
        .on(&device)
        .python::<Found>(Python::stage("edges:Edges").path(MODULES))
        .on(&device)
        .sink::<Compare>(())
        .on(&device)
        .pipeline()
        .node(move |node| node.sharing(sharing))
        .run()?;
    println!("{} photographs", report.stage("Compare").map_or(0, |stage| stage.items_in));
    Ok(())
}

/// The last stage.
struct Compare(DeviceStream);

#[stage]
impl Compare {
    fn create((): (), env: &Env) -> anyhow::Result<Self> {
        Ok(Compare(env.stream()))
    }

    fn consume(&mut self, found: Found) -> anyhow::Result<()> {
        compare(&found, &self.0)
    }
}
