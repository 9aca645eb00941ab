//! Runs a pipeline, on a node of its own or on one that is there.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tensorpost_core::api::fork::Inert;
use tensorpost_core::api::node::{Node, NodeBuilder, Sharing};
use tokio::sync::{mpsc, watch};

use super::conduct::{Command, Follow, Handle, conduct};
use super::error::PipelineError;
use super::flow::{Ending, Pipeline};
use super::item::Item;
use super::launch::{Launched, launch};
use super::plan::Scale;
use super::progress::Progress;
use super::report::Report;

/// A pipeline that runs. Dropping it cancels the pipeline and waits for its end; a node that it has of its
/// own is then shut down.
#[must_use = "dropping it cancels the pipeline"]
pub struct Running {
    handle: Handle,
    thread: Option<Inert<JoinHandle<Result<Report, PipelineError>>>>,
    /// Its stages, with how the number of their replicas may change.
    stages: Vec<(String, Option<Scale>)>,
    /// Closed when it has ended.
    ended: watch::Receiver<()>,
    deadline: Duration,
    /// When it is to have ended.
    until: Option<Instant>,
    /// Last: its actors are told to end before.
    node: Option<Node>,
}

/// What a node has for its own end after a pipeline that ended just before its deadline.
const LAST_MOMENT: Duration = Duration::from_secs(1);

/// Cancels a pipeline, from anywhere.
#[derive(Clone, Debug)]
pub struct Canceller(Handle);

impl Pipeline {
    /// Runs the pipeline on a node of its own, to its end.
    ///
    /// Ctrl-C and `SIGTERM` cancel it: the sources stop, and what is under way is finished. A second one
    /// kills it, and so does the [`hang_limit`](Self::hang_limit) when nothing has moved for so long since
    /// the first. From then on these signals no longer end the program by themselves.
    ///
    /// # Errors
    /// [`PipelineError`]: what is wrong with the pipeline or kept it from starting, or what made it fail, with the report.
    pub fn run(&self) -> Result<Report, PipelineError> {
        self.start_with(true)?.wait()
    }

    /// Starts the pipeline on a node of its own.
    ///
    /// # Errors
    /// [`PipelineError`], if it does not start.
    pub fn start(&self) -> Result<Running, PipelineError> {
        self.start_with(false)
    }

    fn start_with(&self, signals: bool) -> Result<Running, PipelineError> {
        let adjust = self.draft.borrow().settings.node.clone();
        let builder = Node::builder();
        let builder = if let Some(adjust) = adjust { adjust(builder) } else { builder };
        self.check()?;
        let shared = self.draft.borrow().plan.shares_a_gpu();
        let builder = if shared { builder.sharing_or(Sharing::Auto) } else { builder };
        let node = builder.start()?;
        let mut running = begin(&node, self, signals, true)?;
        running.node = Some(node);
        Ok(running)
    }

    /// Checks whether it can run, as [`run`](Self::run) does before it starts a process.
    ///
    /// # Errors
    /// [`PipelineError::Graph`] with everything that is wrong.
    pub fn check(&self) -> Result<(), PipelineError> {
        self.draft.borrow().plan.clone().complete().check()
    }

    /// Every item is delivered at least once: a sender keeps a clone until the item was acknowledged, which
    /// is when all that came of it was handled down to the sinks, and sends it again when a replica dies
    /// while others of it are left. At most `unacknowledged` items of each replica of a source are under way;
    /// [`DEFAULT_UNACKNOWLEDGED`](super::limits::DEFAULT_UNACKNOWLEDGED) is a good number.
    ///
    /// Without this, an item is delivered at most once.
    pub fn at_least_once(self, unacknowledged: u32) -> Self {
        self.tune(|draft| draft.plan.at_least_once = Some(unacknowledged.max(1)))
    }

    /// Makes it an error if an item was lost or left over, also where a death under a restart policy explains
    /// it: the report of such a run comes in [`PipelineError::Incomplete`]. Without this such a run is `Ok`,
    /// and says so in the log, on the display of the report and by [`Report::is_complete`].
    pub fn require_complete(self) -> Self {
        self.tune(|draft| draft.settings.complete = true)
    }

    /// After how long without any movement, and with no stage in a call, the log says what each stage waits
    /// for; 30 s unless said otherwise. A pipeline of one host in which no stage can go on by itself, because
    /// all wait for each other or for what a limit keeps away, ends after a fifth of that, and not before
    /// [`STANDSTILL`](super::limits::STANDSTILL), with [`PipelineError::StandsStill`]. A stage that waits for
    /// an actor outside of the pipeline may go on.
    pub fn hang_limit(self, limit: Duration) -> Self {
        self.tune(|draft| draft.settings.hang_limit = limit)
    }

    /// Tells how far it is while it runs.
    pub fn progress(self, progress: Progress) -> Self {
        self.tune(|draft| draft.settings.progress = progress)
    }

    /// How often it tells; twice a second unless said otherwise.
    pub fn progress_every(self, every: Duration) -> Self {
        self.tune(|draft| draft.settings.every = every)
    }

    /// Writes a trace of the run, for <https://ui.perfetto.dev>. Of long runs it has the beginning of each
    /// actor ([`MAX_TRACED`](super::limits::MAX_TRACED)). Where it cannot be written the log says so, and the
    /// run counts all the same.
    pub fn trace(self, path: impl Into<PathBuf>) -> Self {
        self.tune(|draft| draft.settings.trace = Some(path.into()))
    }

    /// How long the shutdown of a node of its own may take.
    pub fn shutdown_deadline(self, deadline: Duration) -> Self {
        self.tune(|draft| draft.settings.deadline = deadline)
    }

    /// Changes the settings of a node of its own: sharing, budgets, telemetry.
    pub fn node(self, adjust: impl Fn(NodeBuilder) -> NodeBuilder + 'static) -> Self {
        self.tune(|draft| draft.settings.node = Some(Arc::new(adjust)))
    }
}

impl<I: Item> Ending<I> {
    /// [`Pipeline::run`].
    ///
    /// # Errors
    /// As for [`Pipeline::run`].
    pub fn run(&self) -> Result<Report, PipelineError> {
        self.pipeline().run()
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Node {}
}

/// Pipelines on a [`Node`] that is there.
pub trait RunPipeline: sealed::Sealed {
    /// Starts a pipeline on this node.
    ///
    /// The pipeline's workers end when it has: they finish what they have put on their streams, and tensors
    /// that came out of it stay valid. The node goes on.
    ///
    /// # Errors
    /// [`PipelineError`], if it does not start.
    fn run_pipeline(&self, pipeline: &Pipeline) -> Result<Running, PipelineError>;
}

impl RunPipeline for Node {
    fn run_pipeline(&self, pipeline: &Pipeline) -> Result<Running, PipelineError> {
        begin(self, pipeline, false, false)
    }
}

/// `alone`: the node ends with the pipeline, and its workers with it.
fn begin(node: &Node, pipeline: &Pipeline, signals: bool, alone: bool) -> Result<Running, PipelineError> {
    let (plan, works, settings) = {
        let draft = pipeline.draft.borrow();
        (draft.plan.clone().complete(), draft.works.clone(), draft.settings.clone())
    };
    plan.check()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let Launched { members, further, event_channel, workers } = launch(node, &plan, &works, &settings)?;
    let (sender, commands) = mpsc::unbounded_channel();
    let supervisor = Arc::clone(node.supervisor());
    let time_slices = node.time_slices().filter(|_| plan.shares_a_gpu()).map(str::to_owned);
    let follow = Follow {
        time_slices,
        lets_go: !alone,
        told_every: plan.told_every(&settings),
        hang_limit: settings.hang_limit,
        complete: settings.complete,
        progress: settings.progress,
        every: settings.every,
        trace: settings.trace,
        signals,
        supervisor: Arc::clone(node.supervisor()),
        registry: node.registry(),
    };
    let (ending, ended) = watch::channel(());
    let stages = plan.stages.iter().map(|stage| (stage.name.clone(), stage.scale)).collect();
    let thread = std::thread::Builder::new().name("tensorpost-pipeline".into()).spawn(move || {
        let result = runtime.block_on(conduct(plan, follow, members, further, event_channel, commands));
        let killed = result.as_ref().is_err_and(PipelineError::is_cut_short);
        for worker in workers.into_iter().filter(|_| !alone) {
            supervisor.let_go(worker);
            if killed {
                // After that, so that nothing comes back.
                supervisor.kill_worker(worker);
            }
        }
        drop(ending);
        result
    })?;
    Ok(Running {
        handle: Handle(Arc::new(Inert::new(sender))),
        thread: Some(Inert::new(thread)),
        stages,
        ended,
        until: None,
        deadline: settings.deadline,
        node: None,
    })
}

impl Running {
    /// Stops the sources; what is under way is finished, and the report comes as usual.
    pub fn cancel(&self) {
        self.handle.give(Command::Cancel);
    }

    /// A handle that cancels it, for other threads.
    pub fn canceller(&self) -> Canceller {
        Canceller(self.handle.clone())
    }

    /// Has the stage with this name go on with `replicas` replicas, which its
    /// [`replicas_up_to`](super::Flow::replicas_up_to) or [`autoscale`](super::Flow::autoscale) allows; the
    /// latter goes on from there by itself. Returns at once. A new replica takes items when its process has
    /// started and its `create` and `prepare` are done. One that leaves takes no more items, finishes those
    /// that it has and ends. [`StageSnapshot::replicas`](super::StageSnapshot::replicas) says how many there
    /// are. Where a replica cannot be started, the log says why, and the others go on. A pipeline that ends,
    /// or is stopped, does not change any more.
    ///
    /// ```
    /// # use tensorpost::prelude::*;
    /// # #[derive(Clone, Serialize, Deserialize, GpuMessage)] struct Number(u64);
    /// # fn main() -> anyhow::Result<()> {
    /// let flow = Pipeline::new("squares").items("count", |_| (0..1000).map(Number));
    /// let flow = flow.map("square", |Number(n)| Ok(Number(n * n))).replicas_up_to(3).ordered();
    /// let running = flow.for_each("drop", |_| Ok(())).pipeline().start()?; // with one replica
    /// running.scale("square", 3)?;
    /// assert!(running.scale("square", 4).is_err(), "more than was said");
    /// assert_eq!(running.wait()?.stage("drop").map(|stage| stage.items_in), Some(1000));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`PipelineError::Scale`]: there is no such stage, or the number of its replicas cannot change, or not to this.
    pub fn scale(&self, stage: &str, replicas: u32) -> Result<(), PipelineError> {
        let refused = |why: String| Err(PipelineError::Scale { stage: stage.to_owned(), why });
        let Some(index) = self.stages.iter().position(|(name, _)| name == stage) else {
            let names: Vec<_> = self.stages.iter().map(|(name, _)| format!("`{name}`")).collect();
            return refused(format!("there is no such stage; its stages are {}", names.join(", ")));
        };
        let Some(scale) = self.stages[index].1 else {
            return refused(format!(
                "the number of its replicas is fixed; write it down with `.replicas_up_to({})`",
                replicas.max(2)
            ));
        };
        if replicas < scale.least {
            return refused(format!(
                "it has at least {}; `cancel` ends the pipeline, and `.autoscale({}..={})` allows fewer",
                scale.least,
                replicas.max(1),
                scale.most
            ));
        }
        if replicas > scale.most {
            return refused(format!(
                "it can have {} replicas and not {replicas}; write it down with `.replicas_up_to({replicas})` or \
                 `.autoscale({}..={replicas})`",
                scale.most, scale.least
            ));
        }
        self.handle.give(Command::Scale(index, replicas));
        Ok(())
    }

    /// Kills its workers at once, and a node of its own with them. Nothing is finished.
    pub fn kill(&self) {
        self.handle.give(Command::Kill);
    }

    /// Waits for the end. Of a pipeline with a node of its own ([`Pipeline::start`]) no process is left when
    /// this returns.
    ///
    /// On a node that was there before ([`RunPipeline::run_pipeline`]) all items are done with, but workers
    /// may still be ending: they finish what they have put on their streams, and tensors that came out of the
    /// pipeline wait for that as always. [`Supervisor::await_end`] waits for a worker, by its
    /// [`WorkerStatus`] in [`Node::workers`].
    ///
    /// # Errors
    /// The cause, with the report.
    ///
    /// [`Supervisor::await_end`]: tensorpost_core::api::node::Supervisor::await_end
    /// [`WorkerStatus`]: tensorpost_core::api::node::WorkerStatus
    pub fn wait(mut self) -> Result<Report, PipelineError> {
        self.end()
    }

    /// Ends it: stops the sources, finishes what is under way, and kills what has not ended `deadline` from
    /// now. A source whose `next` takes long ends soon if it looks at
    /// [`Env::is_stopping`](tensorpost_core::api::actor::Env::is_stopping).
    ///
    /// # Errors
    /// The cause, with the report. [`PipelineError::Killed`] when the deadline came: the error, and
    /// [`Report::waiting`], name who did not stop and what it stood in.
    pub fn finish(mut self, deadline: Duration) -> Result<Report, PipelineError> {
        let now = Instant::now();
        // A deadline past the end of time is none; a year will do.
        let until = now.checked_add(deadline).unwrap_or(now + Duration::from_secs(365 * 24 * 3600));
        self.handle.give(Command::Finish(until));
        self.until = Some(until);
        self.end()
    }

    /// Resolves when it has ended; [`wait`](Self::wait) has its report then.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub fn ended(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut ended = self.ended.clone();
        async move {
            // Nothing is ever sent: the error is the end.
            while ended.changed().await.is_ok() {}
        }
    }

    /// Whether it has ended.
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(|thread| thread.is_inherited() || thread.is_finished())
    }

    /// The node that it runs on, if that is its own.
    pub fn node(&self) -> Option<&Node> {
        self.node.as_ref()
    }

    fn end(&mut self) -> Result<Report, PipelineError> {
        let Some(thread) = self.thread.take() else { return Ok(Report::default()) };
        let thread = thread.into_inner().ok_or(PipelineError::Forked)?;
        let result = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        if let Some(node) = self.node.take() {
            let killed = result.as_ref().is_err_and(PipelineError::is_cut_short);
            let left = |until: Instant| until.saturating_duration_since(Instant::now()).max(LAST_MOMENT);
            let deadline = self.until.map_or(self.deadline, |until| self.deadline.min(left(until)));
            // Whatever is not done by then is killed, and was not a part of the pipeline.
            let _ = node.shutdown(if killed { Duration::ZERO } else { deadline });
        }
        result
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.cancel();
            if let Some(thread) = self.thread.take().and_then(Inert::into_inner)
                && let Ok(Err(error)) = thread.join()
            {
                tracing::warn!(target: "tensorpost::pipeline", %error, "a pipeline that was dropped had failed");
            }
        }
    }
}

impl Canceller {
    /// Stops the sources; what is under way is finished.
    pub fn cancel(&self) {
        self.0.give(Command::Cancel);
    }
}

impl std::fmt::Debug for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Running").field("finished", &self.is_finished()).finish_non_exhaustive()
    }
}
