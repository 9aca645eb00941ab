//! Stages that report events of others, give others orders and items, and say extreme numbers (WIRE-1). An
//! event counts if it came from the process of the stage that it is about. An order counts if the conductor
//! has given it, and an item if it comes from a stage before.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tensorpost::pipeline::testing::{Lie, VICTIM, order_about, send_as_another, tell};
use tensorpost::pipeline::{Pair, PipelineError, Progress, Report};
use tensorpost::prelude::*;
use tensorpost_tests::cases;
use tensorpost_tests::harness::{Builder, Case};
use tensorpost_tests::log::{listen, message_of};
use tensorpost_tests::pipes::{
    Count, CountArgs, Numbered, Obey, Orders, WriteDown, WriteDownArgs, written, written_sorted,
};
use tensorpost_tests::wait::until;

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

/// Makes items until a file is there, and then a few more.
struct UntilThere {
    file: PathBuf,
    next: u64,
    last: Option<u64>,
    began: Instant,
}

impl Source for UntilThere {
    type Args = PathBuf;
    type Out = Numbered;

    fn create(file: PathBuf, _: &Env) -> anyhow::Result<Self> {
        Ok(UntilThere { file, next: 0, last: None, began: Instant::now() })
    }

    fn next(&mut self) -> anyhow::Result<Option<Numbered>> {
        if self.last.is_none() && self.file.exists() {
            self.last = Some(self.next + 5 * ITEMS);
        }
        if self.last.is_some_and(|last| self.next >= last) {
            return Ok(None);
        }
        anyhow::ensure!(self.began.elapsed() < Duration::from_secs(60), "the liar is not done");
        std::thread::sleep(Duration::from_millis(1));
        self.next += 1;
        Ok(Some(Numbered { number: self.next - 1, tensor: None }))
    }
}

/// The ends of the names of victims that take [`Numbered`].
const TAKE_NUMBERS: [&str; 2] = ["-other", "-sink"];

/// Passes items on. From the first on it gives these stages orders, and items as if it were before them. It
/// makes a file when it is done.
struct Usurper {
    env: Env,
    begins: Option<(Vec<String>, PathBuf)>,
}

impl Stage for Usurper {
    type Args = (Vec<String>, PathBuf);
    type In = Numbered;
    type Out = Numbered;

    fn create(begins: (Vec<String>, PathBuf), env: &Env) -> anyhow::Result<Self> {
        Ok(Usurper { env: env.clone(), begins: Some(begins) })
    }

    fn process(&mut self, item: Numbered, out: &mut Out<Numbered>) -> anyhow::Result<()> {
        if let Some((stages, file)) = self.begins.take() {
            let env = self.env.clone();
            actix::spawn(async move {
                for stage in stages {
                    match order_about(&env, &stage).await {
                        Ok(told) => assert!(told > 100, "{told}"),
                        Err(error) => return tracing::error!(%error, stage, "it obeys or is gone"),
                    }
                    if !TAKE_NUMBERS.iter().any(|name| stage.ends_with(name)) {
                        continue;
                    }
                    match send_as_another(&env, &stage, &Numbered { number: u64::MAX, tensor: None }).await {
                        Ok(answered) => assert!(answered > 50, "{answered}"),
                        Err(error) => return tracing::error!(%error, stage, "it believes it or is gone"),
                    }
                }
                std::fs::write(file, "").expect("the folder is there");
            });
        }
        out.emit(item);
        Ok(())
    }
}

/// One stage cannot close, stop, redirect or hurry another, nor let go the halves that it holds. Nor can it
/// give a stage that is not behind it items, or the ends of others.
fn who_gives_others_orders_is_not_obeyed_and_is_named(builder: Builder) {
    let heard: Arc<Mutex<Vec<String>>> = Arc::default();
    let hears = Arc::clone(&heard);
    let listening = listen(move |event| hears.lock().push(message_of(event)));
    let node = builder.start().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let [file, done] = ["out", "done"].map(|name| folder.path().join(name));
    let victims = ["source", "other", "zip", "left", "sink"].map(|name| format!("{VICTIM}-{name}"));
    let [source, other, zip, left, sink] = &victims;

    let flow = Pipeline::new("orders").source::<UntilThere>(done.clone()).named(source);
    let [one, two] = flow.broadcast();
    let one = one.stage::<Usurper>((victims.to_vec(), done.clone())).named("liar");
    let two = two.stage::<Obey>(Orders::default()).named(other);
    let both = one.zip(two).named(zip).map(left, |pair: Pair<Numbered, Numbered>| Ok(pair.left));
    let end = both.sink::<WriteDown>(WriteDownArgs::to(&file)).named(sink);
    let running = node.run_pipeline(&end.pipeline().at_least_once(32)).unwrap();
    let liar =
        node.workers().into_iter().find(|worker| worker.name == "liar").expect("it was started").process;
    let report = running.wait().unwrap();

    assert!(done.exists(), "it has not told all its lies");
    assert!(report.is_complete() && report.failures.is_empty() && report.deaths.is_empty(), "{report}");
    let made = report.stage(source).map(|stage| stage.items_out).expect("it is in the plan");
    assert!(made >= 5 * ITEMS, "{report}");
    assert_eq!(written_sorted(&file), (0..made).collect::<Vec<_>>(), "{report}");
    if listening.is_some() {
        for victim in &victims {
            let says = format!("process {liar} gives `{victim}` orders that are not its to give");
            until("the log names the liar", || heard.lock().iter().any(|line| line.starts_with(&says)));
        }
    }
}

pub(crate) fn cases() -> Vec<Case> {
    cases![
        what_a_stage_tells_of_others_is_not_believed,
        numbers_at_their_ends_end_no_run,
        who_gives_others_orders_is_not_obeyed_and_is_named,
    ]
}
