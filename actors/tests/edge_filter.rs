//! The edge filter as an actor in a worker: in place where it may, beside where it must not, and a failure that is told.
//!
//! A program of its own without the test harness, because its workers are this program again.

use tensorpost::prelude::*;
use tensorpost_actors::image::ImageSize;
use tensorpost_actors::image::edge::edges;
use tensorpost_actors::stages::{EdgeFilter, EdgeFilterArgs, Edges, End, Event, Next, Planes};

const WIDTH: usize = 9;
const HEIGHT: usize = 5;

fn main() -> anyhow::Result<()> {
    let builder = Node::builder().actor::<EdgeFilter>().run_if_worker();
    let node = builder.start()?;
    let (item, mut results) = node.channel::<Edges>()?;
    let (end, mut ends) = node.channel::<End>()?;
    let (events, mut news) = node.channel::<Event>()?;
    let filter =
        node.spawn::<EdgeFilter>(EdgeFilterArgs { check: true, next: Next { item, end }, events }).start()?;
    let gpu = node.host()?;
    let send = |id, pixels: Tensor| {
        let planes = Planes { id, name: "noise".to_owned(), pixels };
        node.block_on(filter.address().send(planes)).map_err(anyhow::Error::from)
    };

    let values: Vec<f32> = (0..3 * WIDTH * HEIGHT).map(|at| (at * 37 % 101) as f32).collect();
    let size = ImageSize::new(WIDTH as u32, HEIGHT as u32)?;
    let (mut luma, mut wanted) = (vec![0.0; size.pixels()], vec![0.0; size.pixels()]);
    edges(&values, size, &mut luma, &mut wanted)?;

    // Shared: this process keeps a handle, so nothing may be written over it.
    let kept = gpu.from_slice(&[3, HEIGHT, WIDTH], &values)?.freeze();
    send(0, kept.clone())?;
    let beside = results.blocking_recv()?;
    assert_eq!((beside.id, beside.magnitude.to_vec::<f32>()?), (0, wanted.clone()));
    assert_ne!(beside.magnitude.lease().id(), kept.lease().id());
    assert_eq!(kept.to_vec::<f32>()?, values);

    // Moved all the way: the result lies in the same memory, and comes home with it.
    let moved = gpu.from_slice(&[3, HEIGHT, WIDTH], &values)?.freeze();
    let memory = moved.lease().id();
    send(1, moved)?;
    let in_place = results.blocking_recv()?;
    assert_eq!((in_place.id, in_place.magnitude.to_vec::<f32>()?), (1, wanted));
    assert_eq!(in_place.magnitude.lease().id(), memory);

    // No image: told at once, in the report too, and the end comes all the same.
    send(2, gpu.zeros(DType::F32, &[3, 0, WIDTH])?.freeze())?;
    let Event::Failed(failure) = news.blocking_recv()? else { panic!("a failure is told") };
    assert!(
        failure.to_string().starts_with("edge filter failed at frame 2: an image of 9 x 0 pixels"),
        "{failure}"
    );
    send(3, kept)?;
    node.block_on(filter.address().send(End { frames: 4, stages: Vec::new() }))?;
    let end = ends.blocking_recv()?;
    let report = &end.stages[0];
    assert_eq!((end.frames, report.frames, report.in_place), (4, 2, 1));
    assert_eq!(report.failure.as_ref(), Some(&failure));
    assert!(results.try_recv().is_none(), "nothing comes after a failure");
    println!("the edge filter: ok");
    Ok(())
}
