//! Image stages of a pipeline write in place where they may, both for images from another process and for
//! images from a stage in the same one. Where they must not, they write into other memory.
//!
//! This is a program of its own without the test harness, because its workers are this program again.

use tensorpost::prelude::*;
use tensorpost_actors::image::ImageSize;
use tensorpost_actors::image::edge::edges;
use tensorpost_actors::image::normalise::Normalisation;
use tensorpost_actors::ready::{Edges, Label, Named, Normalise};

const WIDTH: usize = 9;
const HEIGHT: usize = 5;
const ITEMS: u64 = 4;

fn main() -> anyhow::Result<()> {
    let report = Pipeline::new("edges")
        .items("images", |env| {
            let stream = env.stream();
            let mut kept = Vec::new();
            (0..ITEMS).map(move |id| {
                let image = stream.from_slice(&[3, HEIGHT, WIDTH], &values()).expect("room").freeze();
                kept.extend(is_shared(id).then(|| image.clone()));
                Named::new(id, memory(&image), image)
            })
        })
        .stage::<Normalise<Named>>(Normalisation::IMAGENET)
        .stage::<Edges<Named>>(())
        .beside()
        .for_each("check", |found: Named| {
            let Label { id, name } = &found.label;
            anyhow::ensure!(found.tensor.to_vec::<f32>()? == wanted()?, "item {id} has other edges");
            let in_place = memory(&found.tensor) == *name;
            anyhow::ensure!(in_place != is_shared(*id), "item {id} was handled in place: {in_place}");
            Ok(())
        })
        .run()?;
    assert_eq!(report.stage("check").map(|stage| stage.items_in), Some(ITEMS));
    // Each item is three planes of floats, to the stages and from them.
    let bytes = |stage| report.stage(stage).map(|stage| stage.bytes_not_copied);
    let images = ITEMS * (3 * HEIGHT * WIDTH * size_of::<f32>()) as u64;
    assert!(bytes("images") >= Some(images) && bytes("Normalise") >= Some(images), "{report:?}");
    assert_eq!(bytes("Edges"), Some(0), "counted once in a process, where its first stage is");
    println!("in place: ok");
    Ok(())
}

/// Returns whether the source keeps a handle, so that nothing may be written over the image.
fn is_shared(id: u64) -> bool {
    id % 2 == 1
}

fn memory(tensor: &Tensor) -> String {
    format!("{:?}", tensor.lease().id())
}

fn values() -> Vec<f32> {
    (0..3 * WIDTH * HEIGHT).map(|at| (at * 37 % 101) as f32).collect()
}

fn wanted() -> anyhow::Result<Vec<f32>> {
    let size = ImageSize::new(WIDTH as u32, HEIGHT as u32)?;
    let mut image = values();
    Normalisation::IMAGENET.apply(&mut image, size)?;
    let (mut luma, mut wanted) = (vec![0.0; size.pixels()], vec![0.0; size.pixels()]);
    edges(&image, size, &mut luma, &mut wanted)?;
    Ok(wanted)
}
