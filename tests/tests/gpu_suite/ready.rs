//! Compares ready-made stages on the device with the same stages on the host.

use std::path::Path;

use tensorpost::prelude::*;
use tensorpost_actors::image::ImageSize;
use tensorpost_actors::image::convolve::Convolution;
use tensorpost_actors::image::normalise::Normalisation;
use tensorpost_actors::image::stats::Stats;
use tensorpost_actors::ready::{
    Batcher, BatcherArgs, Convolve, Edges, Images, ImagesArgs, Measure, Named, Normalise, Product,
    ProductArgs, Resize, ResizeArgs, SavePng, SavePngArgs, SaveRaw, SaveSafetensors, SaveSafetensorsArgs,
    Unbatch,
};
use tensorpost_tests::harness::Builder;

const SIZE: u32 = 24;

/// The results: files by name, statistics, and products.
struct Made {
    files: Vec<(String, Vec<u8>)>,
    stats: Vec<Stats>,
    products: Vec<f32>,
}

/// Gives an item to a stage, and returns the results.
fn through<S: Stage>(stage: &mut S, item: S::In) -> Vec<S::Out> {
    let mut out = Out::new();
    stage.process(item, &mut out).expect("processed");
    out.take()
}

fn make(stream: &DeviceStream, photographs: &Path) -> Made {
    let out = tempfile::tempdir().expect("a folder");
    let folder = || out.path().to_owned();
    let mut images = Images::new(ImagesArgs::folder(photographs), stream).expect("photographs");
    let size = ImageSize::new(SIZE, SIZE).expect("in bounds");
    let mut resize = Resize::<Named>::new(ResizeArgs::bytes(size), stream).expect("a stage");
    let mut normalise = Normalise::<Named>::new(Normalisation::IMAGENET, stream).expect("a stage");
    let mut convolve = Convolve::<Named>::new(Convolution::mean(5).expect("odd"), stream).expect("a stage");
    let mut edges = Edges::<Named>::new(stream).expect("a stage");
    let mut batcher = Batcher::<Named>::new(BatcherArgs::of(2), stream).expect("a stage");
    let mut measure = Measure::<Named>::new(stream).expect("a stage");
    let factor = (0..3 * SIZE).map(|at| (at % 7) as f32 - 3.0).collect();
    let args = ProductArgs { shape: [3, SIZE as usize], factor };
    let mut product = Product::<Named>::new(args, stream).expect("a stage");
    let mut png =
        SavePng::<Named>::new(SavePngArgs { folder: folder(), gain: 40.0 }, stream).expect("a sink");
    let mut raw = SaveRaw::<Named>::new(folder(), stream).expect("a sink");
    let args = SaveSafetensorsArgs { folder: folder(), per_file: 2 };
    let mut safetensors = SaveSafetensors::<Named>::new(args, stream).expect("a sink");

    let (mut stats, mut products) = (Vec::new(), Vec::new());
    while let Some(image) = images.next().expect("decoded") {
        let image = through(&mut resize, image).remove(0);
        let image = through(&mut normalise, image).remove(0);
        png.consume(image.clone()).expect("written");
        let image = through(&mut convolve, image).remove(0);
        let image = through(&mut edges, image).remove(0);
        png.consume(Named::new(image.label.id, "edges", image.tensor.clone())).expect("written");
        for batch in through(&mut batcher, image) {
            for image in through(&mut Unbatch::<Named>::default(), batch) {
                let summary = through(&mut measure, image.clone()).remove(0);
                stats.push(summary.read(stream).expect("there"));
                raw.consume(image.clone()).expect("written");
                safetensors.consume(image.clone()).expect("kept");
                let product = through(&mut product, image).remove(0);
                products.extend(stream.download::<f32>(&product.tensor).expect("there"));
            }
        }
    }
    let mut files: Vec<(String, Vec<u8>)> = std::fs::read_dir(out.path())
        .expect("listed")
        .map(|entry| {
            let entry = entry.expect("an entry");
            let name = entry.file_name().to_string_lossy().into_owned();
            (name, std::fs::read(entry.path()).expect("read"))
        })
        .collect();
    files.sort();
    Made { files, stats, products }
}

/// All but means, deviations and cuBLAS's products are equal to the bit.
pub(super) fn ready_made_stages_agree_with_the_host(builder: Builder) {
    let (device, _) = super::device();
    let photographs = tempfile::tempdir().expect("a folder");
    for (name, bytes) in super::images::PHOTOGRAPHS {
        std::fs::write(photographs.path().join(name), bytes).expect("written");
    }
    let node = builder.start().expect("a node");
    let found = make(&node.stream(&device).expect("the device"), photographs.path());
    let wanted = make(&node.host_stream().expect("the host"), photographs.path());
    // 5 images and their edges as PNG, 4 edges that fill batches as raw bytes, in 2 files of safetensors.
    assert_eq!(found.files.len(), 16);
    for (found, wanted) in found.files.iter().zip(&wanted.files) {
        assert_eq!(found.0, wanted.0);
        assert!(found.1 == wanted.1, "{} differs", found.0);
    }
    assert_eq!(found.stats.len(), wanted.stats.len());
    for (found, wanted) in found.stats.iter().zip(&wanted.stats) {
        assert!(found.agrees(wanted), "{found:?} {wanted:?}");
    }
    assert_eq!(found.products.len(), wanted.products.len());
    let largest = wanted.products.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
    for (at, (found, wanted)) in found.products.iter().zip(&wanted.products).enumerate() {
        assert!((found - wanted).abs() <= 1e-5 * largest, "{at}: {found} {wanted}");
    }
}
