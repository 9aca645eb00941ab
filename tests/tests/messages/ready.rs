//! Ready-made stages in pipelines across processes, and the pool of workers: its bounds, errors and deaths.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use tensorpost::pipeline::Batch;
use tensorpost::prelude::*;
use tensorpost_actors::image::convolve::Convolution;
use tensorpost_actors::image::{ImageSize, decode};
use tensorpost_actors::ready::{
    Batcher, BatcherArgs, Convolve, Edges, Images, ImagesArgs, Job, Named, Product, ProductArgs, Repeat,
    Resize, ResizeArgs, SavePng, SavePngArgs, SaveRaw, SaveSafetensors, SaveSafetensorsArgs, TaskError,
    TaskPool, TaskPoolError, TaskPoolSettings, Tee, TeeArgs, Throttle, ThrottleArgs, Unbatch,
};
use tensorpost_tests::cases;
use tensorpost_tests::harness::{Builder, Case};
use tensorpost_tests::wait::until;

const PHOTOGRAPHS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/data");

pub(crate) fn cases() -> Vec<Case> {
    cases![
        photographs_become_edges_and_nothing_is_copied,
        batches_are_gathered_by_shape_and_taken_apart_again,
        a_builder_gathers_named_items,
        what_passes_is_seen_and_slowed_down,
        a_pool_does_all_tasks_within_its_bounds,
        an_error_of_a_task_is_its_result,
        tasks_of_a_dead_worker_are_lost_or_go_to_others,
        a_pool_without_workers_says_so,
    ]
}

/// Runs a pipeline whose types `program` knows.
fn run(builder: Builder, pipeline: &Pipeline) -> tensorpost::pipeline::Report {
    let node = builder.start().expect("a node");
    node.run_pipeline(pipeline).expect("it starts").wait().expect("it ends well")
}

fn photographs_become_edges_and_nothing_is_copied(builder: Builder) {
    let out = tempfile::tempdir().expect("a folder");
    let size = ImageSize::new(40, 30).expect("in bounds");
    let pipeline = Pipeline::new("edges");
    let args = ImagesArgs::folder(PHOTOGRAPHS).repeat(Repeat::Images(7));
    pipeline
        .source::<Images>(args)
        .stage::<Resize<Named>>(ResizeArgs::bytes(size))
        .stage::<Convolve<Named>>(Convolution::mean(3).expect("odd"))
        .stage::<Edges<Named>>(())
        .sink::<SavePng<Named>>(SavePngArgs { folder: out.path().to_owned(), gain: 0.5 });
    let report = run(builder, &pipeline);
    assert_eq!(report.stage("SavePng").map(|stage| stage.items_in), Some(7));
    let written = |name: &str| decode::decode(out.path().join(name)).expect("a picture");
    assert_eq!(written("00001-chelsea.png").size, size);
    // The files come again in the same order, with the same results.
    assert_eq!(written("00000-camera.png").pixels, written("00005-camera.png").pixels);
    assert!(written("00000-camera.png").pixels.iter().any(|&byte| byte > 100), "there are edges");
}

/// A source of small matrices: of three shapes in turn if it is told so.
struct Ramps {
    stream: DeviceStream,
    count: u64,
    is_mixed: bool,
    next: u64,
}

impl Source for Ramps {
    type Args = (u64, bool);
    type Out = Named;

    fn create((count, is_mixed): (u64, bool), env: &Env) -> anyhow::Result<Self> {
        Ok(Ramps { stream: env.stream(), count, is_mixed, next: 0 })
    }

    fn next(&mut self) -> anyhow::Result<Option<Named>> {
        let id = self.next;
        if id == self.count {
            return Ok(None);
        }
        self.next += 1;
        let rows = if self.is_mixed && id % 5 == 4 { 3 } else { 2 };
        let values: Vec<f32> = (0..rows * 2).map(|at| (id * 10) as f32 + at as f32).collect();
        Ok(Some(Named::new(id, "ramp", self.stream.from_slice(&[rows, 2], &values)?.freeze())))
    }
}

fn batches_are_gathered_by_shape_and_taken_apart_again(builder: Builder) {
    let out = tempfile::tempdir().expect("a folder");
    let folder = out.path().to_owned();
    let pipeline = Pipeline::new("batches");
    pipeline
        .source::<Ramps>((11, true))
        .stage::<Batcher<Named>>(BatcherArgs::of(3))
        .stage::<Unbatch<Named>>(())
        .sink::<SaveSafetensors<Named>>(SaveSafetensorsArgs { folder, per_file: 100 });
    let report = run(builder, &pipeline);
    // 0 1 2, 3, 4 (another shape), 5 6 7, 8, 9 (another shape), 10.
    assert_eq!(report.stage("Batcher").map(|stage| stage.items_out), Some(7));
    let bytes = std::fs::read(out.path().join("00000-ramp-to-00010-ramp.safetensors")).expect("one file");
    let rows = |id: u64| -> (Vec<u8>, u64) {
        let rows = if id % 5 == 4 { 3 } else { 2 };
        ((0..rows * 2).flat_map(|at| ((id * 10) as f32 + at as f32).to_le_bytes()).collect(), rows)
    };
    let text = String::from_utf8_lossy(&bytes[8..]).into_owned();
    for id in 0..11 {
        let (data, rows) = rows(id);
        assert!(
            text.contains(&format!("\"{id:05}-ramp\":{{\"dtype\":\"F32\",\"shape\":[{rows},2]")),
            "{text}"
        );
        assert!(bytes.windows(data.len()).any(|window| window == data), "the values of {id}");
    }
}

/// Declares the pipeline in every process, for the types that the builder adds.
fn gathered(out: PathBuf) -> Pipeline {
    let pipeline = Pipeline::new("gathered");
    pipeline
        .source::<Ramps>((6, false))
        .stage::<Product<Named>>(ProductArgs { shape: [2, 2], factor: vec![0.0, 1.0, 1.0, 0.0] })
        .gather(Batch::of(6))
        .stage::<Unbatch<Named>>(())
        .sink::<SaveRaw<Named>>(out);
    pipeline
}

fn a_builder_gathers_named_items(builder: Builder) {
    let out = tempfile::tempdir().expect("a folder");
    run(builder, &gathered(out.path().to_owned()));
    let bytes = std::fs::read(out.path().join("00004-ramp.f32-2x2.raw")).expect("written");
    let values: Vec<f32> = bytes.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect();
    assert_eq!(values, [42.0, 43.0, 40.0, 41.0], "its rows are swapped");
}

fn what_passes_is_seen_and_slowed_down(builder: Builder) {
    let node = builder.start().expect("a node");
    let (to, mut seen) = node.channel::<Named>().expect("a channel");
    let pipeline = Pipeline::new("tee");
    let out = tempfile::tempdir().expect("a folder");
    pipeline
        .source::<Ramps>((21, false))
        .stage::<Throttle<Named>>(ThrottleArgs { per_second: 200.0 })
        .stage::<Tee<Named>>(TeeArgs { to, every: 10 })
        .sink::<SaveRaw<Named>>(out.path().to_owned());
    let began = std::time::Instant::now();
    let running = node.run_pipeline(&pipeline).expect("it starts");
    for id in [0, 10, 20] {
        let item = seen.blocking_recv().expect("seen");
        assert_eq!((item.label.id, item.tensor.to_vec::<f32>().expect("values")[0]), (id, (id * 10) as f32));
    }
    running.wait().expect("it ends well");
    // 21 items are 20 intervals of 5 ms.
    assert!(began.elapsed().as_millis() >= 100, "{:?}", began.elapsed());
    assert_eq!(std::fs::read_dir(out.path()).expect("listed").count(), 21);
}

/// A worker that follows its task.
struct Obedient {
    stream: DeviceStream,
    factor: u64,
}

#[derive(Clone, Serialize, Deserialize, GpuMessage)]
#[expect(clippy::large_enum_variant, reason = "there are few of them")]
enum Order {
    Multiply(#[tensor(dtype = u64)] Tensor),
    Refuse,
    Panic,
    Pid,
    Die,
}

#[derive(Debug, Serialize, Deserialize)]
#[expect(clippy::large_enum_variant, reason = "there are few of them")]
enum Done {
    Product(Tensor),
    Pid(u32),
}

impl Job for Obedient {
    type Args = u64;
    type Task = Order;
    type Done = Done;

    fn create(factor: u64, env: &Env) -> anyhow::Result<Self> {
        anyhow::ensure!(factor > 0, "no factor");
        Ok(Obedient { stream: env.stream(), factor })
    }

    fn run(&mut self, order: Order) -> anyhow::Result<Done> {
        match order {
            Order::Multiply(numbers) => {
                let product: Vec<u64> = numbers.as_slice::<u64>()?.iter().map(|n| n * self.factor).collect();
                Ok(Done::Product(self.stream.from_slice(numbers.shape(), &product)?.freeze()))
            }
            Order::Refuse => anyhow::bail!("not today"),
            Order::Panic => panic!("as it was told"),
            Order::Pid => Ok(Done::Pid(std::process::id())),
            Order::Die => std::process::abort(),
        }
    }
}

fn pool(node: &Node, settings: TaskPoolSettings) -> TaskPool<Obedient> {
    TaskPool::start(node, 3, settings).expect("a pool")
}

fn a_pool_does_all_tasks_within_its_bounds(builder: Builder) {
    let node = builder.start().expect("a node");
    let stream = node.host_stream().expect("the host");
    let order = |n: u64| Order::Multiply(stream.from_slice(&[2], &[n, n + 1]).expect("room").freeze());
    let mut pool = pool(&node, TaskPoolSettings { queue: 4, ..TaskPoolSettings::workers(3) });
    let results: BTreeMap<u64, Vec<u64>> = pool
        .map((0..500).map(order))
        .map(|(number, done)| match done {
            Ok(Done::Product(product)) => (number, product.to_vec().expect("numbers")),
            other => panic!("{number}: {other:?}"),
        })
        .collect();
    let wanted: BTreeMap<u64, Vec<u64>> = (0..500).map(|n| (n, vec![3 * n, 3 * n + 3])).collect();
    assert_eq!(results, wanted);
    assert!(pool.blocking_next().is_none() && pool.open() == 0);

    // While nobody takes results, only a bounded number of tasks is taken: 4 wait, 6 are with workers, 10
    // results wait.
    until("the pool is full", || {
        let _ = pool.try_submit(Order::Pid);
        pool.open() == 20
    });
    assert!((0..1000).all(|_| pool.try_submit(Order::Pid).is_err()), "a task beyond the bounds was taken");
    let pids: BTreeSet<u32> = std::iter::from_fn(|| pool.blocking_next())
        .map(|(number, done)| match done {
            Ok(Done::Pid(pid)) => pid,
            other => panic!("{number}: {other:?}"),
        })
        .collect();
    assert!(pids.len() <= 3 && !pids.contains(&std::process::id()), "{pids:?}");
}

fn an_error_of_a_task_is_its_result(builder: Builder) {
    let node = builder.start().expect("a node");
    let stream = node.host_stream().expect("the host");
    let floats = stream.zeros(DType::F32, &[1]).expect("room").freeze();
    let mut pool = pool(&node, TaskPoolSettings::workers(1));
    let orders = [Order::Refuse, Order::Multiply(floats), Order::Pid];
    let results: BTreeMap<u64, Result<Done, TaskError>> = pool.map(orders).collect();
    assert_eq!(results[&0].as_ref().err(), Some(&TaskError::Failed("not today".to_owned())));
    // The tensor checks of a task's type hold although the task is a part of another message.
    let refused = results[&1].as_ref().expect_err("floats").to_string();
    assert!(refused.contains("u64"), "{refused}");
    assert!(matches!(results[&2], Ok(Done::Pid(_))), "{results:?}");
}

fn tasks_of_a_dead_worker_are_lost_or_go_to_others(builder: Builder) {
    let node = builder.start().expect("a node");
    let mut pool = pool(&node, TaskPoolSettings { ahead: 1, ..TaskPoolSettings::workers(3) });
    let orders = [Order::Die, Order::Panic].into_iter().chain((0..40).map(|_| Order::Pid));
    let results: BTreeMap<u64, Result<Done, TaskError>> = pool.map(orders).collect();
    assert_eq!(results.len(), 42);
    for (number, result) in &results {
        match result {
            Err(TaskError::Lost(_)) => assert!(*number < 2, "{number}: {result:?}"),
            Ok(Done::Pid(_)) => assert!(*number >= 2, "{number}: {result:?}"),
            other => panic!("{number}: {other:?}"),
        }
    }
}

fn a_pool_without_workers_says_so(builder: Builder) {
    let node = builder.start().expect("a node");
    let none = TaskPool::<Obedient>::start(&node, 3, TaskPoolSettings::workers(0));
    assert!(matches!(none, Err(TaskPoolError::Empty { workers: 0, .. })), "{none:?}");
    let refused = TaskPool::<Obedient>::start(&node, 0, TaskPoolSettings::workers(1)).expect_err("no factor");
    assert!(refused.to_string().contains("no factor"), "{refused}");

    let mut pool = pool(&node, TaskPoolSettings { ahead: 1, ..TaskPoolSettings::workers(1) });
    let orders = std::iter::once(Order::Die).chain((0..100).map(|_| Order::Pid));
    let results: Vec<_> = pool.map(orders).collect();
    assert_eq!(results.len(), 101);
    let lost = results.iter().filter(|(_, result)| matches!(result, Err(TaskError::Lost(_)))).count();
    let not_sent = results.iter().filter(|(_, result)| matches!(result, Err(TaskError::NotSent(_)))).count();
    assert_eq!((lost, not_sent), (1, 100), "{results:?}");
    assert!(node.block_on(pool.submit(Order::Pid)).is_err(), "the task comes back");
}
