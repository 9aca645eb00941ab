//! Pipelines on a node that goes on.

use tensorpost::prelude::*;
use tensorpost::tensor::TensorStatus;
use tensorpost_tests::harness::Builder;
use tensorpost_tests::pipes::{Count, CountArgs, Numbered};

/// Elements of a sink's tensor, and how often the sink makes it again: some 100 ms of work, on a GPU and on
/// the host.
const LARGE: (usize, usize) = (128 << 20, 400);
const SMALL: (usize, usize) = (1 << 20, 200);

/// A sink that takes all items.
struct Takes;

impl Sink for Takes {
    type Args = ();
    type In = Numbered;

    fn create((): (), _: &Env) -> anyhow::Result<Self> {
        Ok(Takes)
    }

    fn consume(&mut self, _: Numbered) -> anyhow::Result<()> {
        Ok(())
    }
}

/// Gives its stream much work, and sends the result to the program at once.
struct Slow {
    stream: DeviceStream,
    to: Address<Numbered>,
}

impl Sink for Slow {
    type Args = Address<Numbered>;
    type In = Numbered;

    fn create(to: Address<Numbered>, env: &Env) -> anyhow::Result<Self> {
        Ok(Slow { stream: env.stream(), to })
    }

    fn consume(&mut self, item: Numbered) -> anyhow::Result<()> {
        let (elements, times) = if self.stream.kind() == DeviceKind::Cuda { LARGE } else { SMALL };
        let mut made = self.stream.empty(DType::U32, &[elements])?;
        let other = self.stream.zeros(DType::U32, &[elements])?.freeze();
        for _ in 0..times {
            self.stream.copy_into(&mut made, 0, &other)?;
        }
        self.stream.copy_into(
            &mut made,
            0,
            item.tensor.as_ref().ok_or_else(|| anyhow::anyhow!("no tensor"))?,
        )?;
        let made = Numbered { number: item.number, tensor: Some(made.freeze()) };
        Ok(self.to.try_send(made).map_err(|error| error.reason)?)
    }
}

/// Its workers end with it, but not before their streams are through: a program may hold tensors that they
/// are still making.
pub(super) fn a_pipelines_last_work_is_done_before_its_workers_end(builder: Builder) {
    let (device, _) = super::device();
    let node = builder.start().expect("a node");
    let (to, mut made) = node.channel::<Numbered>().expect("a channel");
    for _ in 0..2 {
        let flow = Pipeline::new("last work").source::<Count>(CountArgs::to(1)).on(device.clone());
        let pipeline = flow.sink::<Slow>(to.clone()).on(device.clone()).pipeline();
        node.run_pipeline(&pipeline).expect("it starts").wait().expect("it ends well");
        let made = node.block_on(made.recv()).expect("made");
        let tensor = made.tensor.expect("a tensor");
        assert_eq!(
            tensor.status(),
            TensorStatus::Pending,
            "this shows nothing unless the work outlasts the pipeline"
        );
        for worker in node.workers() {
            let end = node.supervisor().await_end(worker.worker);
            let in_order = matches!(
                &end,
                Some(tensorpost::node::WorkerState::Exited { exit: Some(exit), .. }) if exit.success()
            );
            assert!(in_order, "{}: {end:?}", worker.name);
        }
        let stream = node.stream(&device).expect("the device");
        let first = tensor.slice(0, 0..4).expect("in bounds");
        assert_eq!(stream.download::<u32>(&first).expect("there"), [0, 1, 2, 3]);
    }
}

/// Two workers of a pipeline on one GPU overlap where there is MPS. Where they do not overlap, the report
/// says why.
pub(super) fn a_report_says_why_workers_took_turns_on_a_gpu(builder: Builder) {
    let (device, _) = super::device();
    let on_gpu = device.kind() == DeviceKind::Cuda;
    let run = |node: Node| {
        let flow = Pipeline::new("shared").source::<Count>(CountArgs::to(3)).on(device.clone());
        let pipeline = flow.sink::<Takes>(()).on(device.clone()).pipeline();
        node.run_pipeline(&pipeline).expect("it starts").wait().expect("it ends well")
    };
    // If several ways were set, the first one counts.
    let isolated = Node::builder().sharing(Sharing::Isolated).sharing_or(Sharing::Auto);
    let report = run(isolated.start().expect("a node"));
    let why = on_gpu.then_some("the node was built with `Sharing::Isolated`");
    assert_eq!(report.time_slices.as_deref(), why);
    assert_eq!(report.to_string().contains("took turns"), on_gpu, "{report}");

    let node = builder.sharing_or(Sharing::Auto).start().expect("a node");
    if Device::best() != Device::host() {
        assert_eq!(node.time_slices(), None, "MPS serves wherever these tests have a GPU");
    } else {
        assert_eq!(node.time_slices(), Some("there is no GPU"));
    }
    assert_eq!(run(node).time_slices, None);
}
