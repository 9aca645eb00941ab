//! Stages that report events of others, and extreme numbers (WIRE-1): an event counts if it came from the
//! process of the stage that it is about.

use tensorpost::pipeline::testing::{Lie, tell};
use tensorpost::pipeline::{PipelineError, Progress, Report};
use tensorpost::prelude::*;
use tensorpost_tests::cases;
use tensorpost_tests::harness::{Builder, Case};
use tensorpost_tests::pipes::{Count, CountArgs, Numbered, WriteDown, WriteDownArgs, written};

const ITEMS: u64 = 20;

/// Passes items on, and lies with the first of them.
struct Liar {
    lies: Lies,
    has_lied: bool,
}

/// The stages about which it lies, by number and name, and its lies.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Lies {
    of: Vec<(u16, String)>,
    fails: bool,
}

impl Stage for Liar {
    type Args = Lies;
    type In = Numbered;
    type Out = Numbered;

    fn create(lies: Lies, _: &Env) -> anyhow::Result<Self> {
        Ok(Liar { lies, has_lied: false })
    }

    fn process(&mut self, item: Numbered, out: &mut Out<Numbered>) -> anyhow::Result<()> {
        if !std::mem::replace(&mut self.has_lied, true) {
            for (stage, name) in &self.lies.of {
                for life in [0, 1, 2, u64::MAX] {
                    anyhow::ensure!(tell(*stage, name, 0, Lie::Progress { life }));
                    anyhow::ensure!(tell(*stage, name, u16::MAX, Lie::Progress { life }));
                }
                anyhow::ensure!(tell(*stage, name, 0, Lie::Spans));
                anyhow::ensure!(!self.lies.fails || tell(*stage, name, 0, Lie::Failed));
            }
        }
        out.emit(item);
        Ok(())
    }
}

/// `count`, `liar` and `write`, with those lies.
fn run(builder: Builder, lies: Lies) -> Result<Report, PipelineError> {
    let node = builder.start().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out");
    let source = Pipeline::new("lies").source::<Count>(CountArgs::to(ITEMS)).named("count");
    let liar = source.stage::<Liar>(lies).named("liar");
    let sink = liar.sink::<WriteDown>(WriteDownArgs::to(path.clone())).named("write");
    let pipeline = sink.pipeline().trace(folder.path().join("trace.json"));
    let pipeline = pipeline.progress(Progress::to(|snapshot| drop(format!("{snapshot:?}"))));
    let ran = node.run_pipeline(&pipeline).unwrap().wait();
    if ran.is_ok() {
        assert_eq!(written(&path).len() as u64, ITEMS);
    }
    ran
}

/// One stage cannot report another's counts, fail the run in its name, or invent a life of it.
fn what_a_stage_tells_of_others_is_not_believed(builder: Builder) {
    let of = [(0, "count"), (2, "write"), (7, "nobody"), (u16::MAX, "")];
    let of = of.map(|(stage, name)| (stage, name.to_owned())).into();
    let report = run(builder, Lies { of, fails: true }).unwrap();
    assert!(report.is_complete() && report.failures.is_empty(), "{report}");
    for stage in &report.stages {
        let (taken, made) = (stage.items_in.max(stage.items_out), stage.items_out);
        assert!(taken == ITEMS && made <= ITEMS && stage.errors == 0 && stage.dropped == 0, "{report}");
    }
}

/// About itself it can say anything: the report has its numbers, and comes.
fn numbers_at_their_ends_end_no_run(builder: Builder) {
    let lies = Lies { of: vec![(1, "liar".to_owned())], fails: false };
    match run(builder, lies) {
        Err(PipelineError::Incomplete { report }) => {
            assert!(report.to_json().contains("18446744073709551615"), "{report}");
            assert_eq!(report.stage("liar").map(|stage| stage.items_in), Some(u64::MAX), "{report}");
            assert_eq!(report.stage("count").map(|stage| stage.items_out), Some(ITEMS), "{report}");
        }
        other => panic!("it says that it has lost items: {other:?}"),
    }
}

pub(crate) fn cases() -> Vec<Case> {
    cases![what_a_stage_tells_of_others_is_not_believed, numbers_at_their_ends_end_no_run]
}
