//! Two hosts, one node: photographs are decoded on one host, and their edges found on the other. The results
//! are the same to the bit as if this process did both.
//!
//! Started alone, the program starts itself once more as the other host, on this machine. Slurm or Kubernetes
//! (`examples/hosts`) start it on two machines, and nothing in it changes.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::Parser;
use tensorpost::hosts::Hosts;
use tensorpost::prelude::*;
use tensorpost_actors::image::{ImageSize, decode, edge, quantise, resize};

#[derive(Parser)]
struct Args {
    /// Folder with .jpg and .png files
    #[arg(long, value_name = "DIR", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/data"))]
    photographs: PathBuf,
}

/// A file's bytes as they are on the disk.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Result<Tensor, String>)]
struct Photograph {
    name: String,
    file: Vec<u8>,
}

/// Height, width, and red, green and blue.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Result<Tensor, String>)]
struct Pixels(Tensor);

struct Decoder {
    stream: DeviceStream,
    filter: Address<Pixels>,
}

#[actor]
impl Decoder {
    fn create(filter: Address<Pixels>, env: &Env) -> Self {
        Decoder { stream: env.stream(), filter }
    }

    #[handler]
    fn photograph(&self, photograph: Photograph) -> ResponseFuture<Result<Tensor, String>> {
        let (stream, filter) = (self.stream.clone(), self.filter.clone());
        Box::pin(async move {
            let pixels = pixels(&stream, &photograph).map_err(|error| format!("{error:#}"))?;
            // The filter is on another host, but its address is like any other.
            filter.ask(Pixels(pixels)).await.map_err(|error| error.to_string())?
        })
    }
}

struct Filter(DeviceStream);

#[actor]
impl Filter {
    fn create(env: &Env) -> Self {
        Filter(env.stream())
    }

    #[handler]
    fn pixels(&self, Pixels(pixels): Pixels) -> Result<Tensor, String> {
        edges(&self.0, &pixels).map_err(|error| format!("{error:#}"))
    }
}

fn pixels(stream: &DeviceStream, photograph: &Photograph) -> anyhow::Result<Tensor> {
    let image = decode::decode_bytes(photograph.name.as_str(), &photograph.file)?;
    let shape = [image.size.height() as usize, image.size.width() as usize, 3];
    Ok(stream.from_slice(&shape, &image.pixels)?.freeze())
}

fn edges(stream: &DeviceStream, pixels: &Tensor) -> anyhow::Result<Tensor> {
    let [height, width, _] = pixels.shape() else { anyhow::bail!("{pixels:?} is no image") };
    let size = ImageSize::new(u32::try_from(*width)?, u32::try_from(*height)?)?;
    let (mut planes, mut luma) = (vec![0.0; size.rgb_len()], vec![0.0; size.pixels()]);
    let (mut found, mut gray) = (luma.clone(), vec![0; size.pixels()]);
    resize::resize(&pixels.to_vec::<u8>()?, size, &mut planes, size, resize::Range::Bytes)?;
    edge::luma(&planes, size, &mut luma)?;
    edge::sobel(&luma, size, &mut found)?;
    quantise::to_gray8(&found, edge::SOBEL_GAIN, &mut gray)?;
    Ok(stream.from_slice(&[*height, *width], &gray)?.freeze())
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let started = Hosts::from_environment()?;
    let alone = started.is_none();
    let hosts = started.unwrap_or_else(|| Hosts::head("127.0.0.1:0").name("first"));
    // Only the head runs the code below: workers, and the other hosts, run the actors that it starts there.
    let node = Node::builder().hosts(hosts.agents_serve()).start()?;
    let other = if alone { Some(start_another(&node)?) } else { None };

    let hosts = node.await_hosts(2, Duration::from_secs(120))?;
    let [here, there, ..] = hosts.as_slice() else { anyhow::bail!("no other host has joined") };
    let filter = node.spawn::<Filter>(()).on(there).start()?;
    let decoder = node.spawn::<Decoder>(filter.address()).on(here).start()?;
    println!("host {} decodes, host {} finds the edges", here.number, there.number);
    let stream = node.host_stream()?;
    for path in photographs(&args.photographs)? {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let file = std::fs::read(&path).with_context(|| path.display().to_string())?;
        let alone =
            edges(&stream, &pixels(&stream, &Photograph { name: name.clone(), file: file.clone() })?)?;
        let found = node.block_on(decoder.ask(Photograph { name: name.clone(), file }))?;
        let found = found.map_err(anyhow::Error::msg)?;
        ensure!(found.shape() == alone.shape(), "{name}: {found:?} came back, not {alone:?}");
        ensure!(found.to_vec::<u8>()? == alone.to_vec::<u8>()?, "{name}: another image came back");
        println!("{name}: {} edges, the same to the bit", found.len());
    }
    ensure!(node.shutdown(Duration::from_secs(10))?.is_clean(), "something did not end in time");
    if let Some(mut other) = other {
        println!("the other host has ended too: {}", other.wait()?);
    }
    Ok(())
}

/// Starts this program once more, as the other host of the node, on this machine.
fn start_another(node: &Node) -> anyhow::Result<Child> {
    let hosts = node.hosts()?;
    let head = hosts.first().context("this host is one of several")?;
    let mut command = Command::new(std::env::current_exe()?);
    // The hosts' arguments are compared when they join, so pass the same ones.
    command.args(std::env::args_os().skip(1)).env("TENSORPOST_HEAD", &head.address);
    command.spawn().context("the other host cannot be started")
}

fn photographs(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
    paths.retain(|path| path.extension().is_some_and(|kind| kind == "jpg" || kind == "png"));
    paths.sort();
    Ok(paths)
}
