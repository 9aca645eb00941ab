//! Runs a pipeline, on a node of its own or on an existing one.

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tensorpost_core::api::fork::Inert;
use tensorpost_core::api::node::{Node, NodeBuilder, Sharing, block_on, on_own_thread};
use tokio::sync::{mpsc, watch};

use super::conduct::{Command, Follow, Handle, conduct};
use super::error::PipelineError;
use super::flow::{Ending, Pipeline};
use super::item::Item;
use super::launch::{Launched, Steps, launch};
use super::plan::Scale;
use super::progress::Progress;
use super::report::Report;

/// A running pipeline. Dropping it cancels the pipeline and waits for its end; a node of its own is then shut
/// down. [`wait`](Self::wait) and [`finish`](Self::finish) block; async code awaits the value itself, or what
/// [`finishing`](Self::finishing) returns.
///
/// # Cancel safety
/// Dropping the future of an awaited pipeline drops the pipeline. [`ended`](Self::ended) does not.
#[must_use = "dropping it cancels the pipeline"]
pub struct Running {
    handle: Handle,
    thread: Option<Inert<JoinHandle<Result<Report, PipelineError>>>>,
    /// Its stages, and how the number of their replicas may change.
    stages: Vec<(String, Option<Scale>)>,
    /// Closed when it has ended.
    ended: watch::Receiver<()>,
    deadline: Duration,
    /// The deadline given to [`finish`](Self::finish).
    until: Option<Instant>,
    /// Dropped last: the actors are told to end before.
    node: Option<Node>,
}

/// The time that a node has for its own end after a pipeline that ended just before its deadline.
const LAST_MOMENT: Duration = Duration::from_secs(1);

/// Cancels a pipeline, from anywhere.
#[derive(Clone, Debug)]
pub struct Canceller(Handle);

impl Pipeline {
    /// Runs the pipeline on a node of its own, to its end.
    ///
    /// Ctrl-C and `SIGTERM` cancel it: the sources stop, and items under way are finished. A second signal
    /// kills it. It is also killed when nothing has moved for the [`hang_limit`](Self::hang_limit) since the
    /// first signal. Once a pipeline has been run like this, these signals no longer end the program by
    /// themselves.
    ///
    /// # Errors
    /// [`PipelineError`]: the mistakes in the pipeline, or the reason why it did not start, or the cause of
    /// its failure, with the report.
    pub fn run(&self) -> Result<Report, PipelineError> {
        block_on(self.start_with(true, Steps::Here))?.wait()
    }

    /// Starts the pipeline on a node of its own. Blocks until all stages are ready. Async code awaits the
    /// pipeline instead, and then its end. Like the pipeline, the future of the start stays on its thread.
    ///
    /// ```
    /// # use tensorpost::prelude::*;
    /// # #[derive(Clone, Serialize, Deserialize, GpuMessage)] struct Number(u32);
    /// # async fn later() -> anyhow::Result<()> {
    /// let numbers = Pipeline::new("numbers").items("count", |_| (0..100).map(Number));
    /// let running = numbers.for_each("print", |Number(n)| Ok(println!("{n}"))).pipeline().await?;
    /// println!("{}", running.await?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`PipelineError`], if it does not start.
    ///
    /// # Cancel safety
    /// Dropping the future of an awaited pipeline ends the workers that have started, and shuts its node
    /// down.
    pub fn start(&self) -> Result<Running, PipelineError> {
        block_on(self.start_with(false, Steps::Here))
    }

    pub(super) async fn start_with(&self, signals: bool, steps: Steps) -> Result<Running, PipelineError> {
        let adjust = self.draft.borrow().settings.node.clone();
        let builder = Node::builder();
        let builder = if let Some(adjust) = adjust { adjust(builder) } else { builder };
        self.check()?;
        let shared = self.draft.borrow().plan.shares_a_gpu();
        let builder = if shared { builder.sharing_or(Sharing::Auto) } else { builder };
        let node = steps.run(move || builder.start()).await??;
        let begun = begin(&node, self, signals, true, steps).await;
        match begun {
            Ok(mut running) => {
                running.node = Some(node);
                Ok(running)
            }
            Err(error) => {
                // The drop waits for the workers that have started.
                let _ = steps.run(move || drop(node)).await;
                Err(error)
            }
        }
    }

    /// Checks whether the pipeline can run, as [`run`](Self::run) does before it starts a process.
    ///
    /// # Errors
    /// [`PipelineError::Graph`] with all mistakes.
    pub fn check(&self) -> Result<(), PipelineError> {
        self.draft.borrow().plan.clone().complete().check()
    }

    /// Delivers every item at least once: a sender keeps a clone until the item is acknowledged, and sends it
    /// again when a replica dies while others of its stage are left. An item is acknowledged when everything
    /// that came of it was handled, down to the sinks. At most `unacknowledged` items of each replica of a
    /// source are under way; [`DEFAULT_UNACKNOWLEDGED`](super::limits::DEFAULT_UNACKNOWLEDGED) is a good
    /// number.
    ///
    /// Without this, an item is delivered at most once.
    pub fn at_least_once(self, unacknowledged: u32) -> Self {
        self.tune(|draft| draft.plan.at_least_once = Some(unacknowledged.max(1)))
    }

    /// Makes it an error if an item was lost or left over, even if a death under a restart policy explains
    /// it: the report of such a run comes in [`PipelineError::Incomplete`]. Without this such a run is `Ok`;
    /// the log, the display of the report and [`Report::is_complete`] tell that it is incomplete.
    pub fn require_complete(self) -> Self {
        self.tune(|draft| draft.settings.complete = true)
    }

    /// Sets after how long without any movement, and with no stage in a call, the log says what each stage
    /// waits for; 30 s unless said otherwise. In a pipeline of one host it may happen that no stage can go on
    /// by itself, because all wait for each other or for items that a limit keeps away. Such a pipeline ends
    /// with [`PipelineError::StandsStill`] after a fifth of that time, but not before
    /// [`STANDSTILL`](super::limits::STANDSTILL) or four times [`progress_every`](Self::progress_every). A
    /// stage that waits for an actor outside of the pipeline may go on.
    pub fn hang_limit(self, limit: Duration) -> Self {
        self.tune(|draft| draft.settings.hang_limit = limit)
    }

    /// Shows the progress while the pipeline runs.
    pub fn progress(self, progress: Progress) -> Self {
        self.tune(|draft| draft.settings.progress = progress)
    }

    /// Sets how often the progress is shown; twice a second unless said otherwise.
    pub fn progress_every(self, every: Duration) -> Self {
        self.tune(|draft| draft.settings.every = every)
    }

    /// Writes a trace of the run, for <https://ui.perfetto.dev>. A trace of a long run has the first events
    /// of each actor ([`MAX_TRACED`](super::limits::MAX_TRACED)). If it cannot be written, the log says so,
    /// and the result of the run is the same.
    pub fn trace(self, path: impl Into<PathBuf>) -> Self {
        self.tune(|draft| draft.settings.trace = Some(path.into()))
    }

    /// Sets how long the shutdown of the pipeline's own node may take.
    pub fn shutdown_deadline(self, deadline: Duration) -> Self {
        self.tune(|draft| draft.settings.deadline = deadline)
    }

    /// Changes the settings of the pipeline's own node: sharing, budgets, telemetry.
    pub fn node(self, adjust: impl Fn(NodeBuilder) -> NodeBuilder + 'static) -> Self {
        self.tune(|draft| draft.settings.node = Some(Arc::new(adjust)))
    }
}

impl IntoFuture for Pipeline {
    type Output = Result<Running, PipelineError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output>>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.start_with(false, Steps::Aside).await })
    }
}

impl<I: Item> Ending<I> {
    /// As [`Pipeline::run`].
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

/// Runs pipelines on an existing [`Node`].
pub trait RunPipeline: sealed::Sealed {
    /// Starts a pipeline on this node.
    ///
    /// The pipeline's workers end when the pipeline has ended: they finish the work on their streams, and
    /// tensors that came out of the pipeline stay valid. The node goes on.
    ///
    /// # Errors
    /// [`PipelineError`], if it does not start.
    fn run_pipeline(&self, pipeline: &Pipeline) -> Result<Running, PipelineError>;

    /// As [`run_pipeline`](Self::run_pipeline), for async code: it does not block the thread.
    ///
    /// # Errors
    /// As for [`run_pipeline`](Self::run_pipeline).
    ///
    /// # Cancel safety
    /// Dropping the future ends the workers that have started.
    fn run_pipeline_async(&self, pipeline: &Pipeline)
    -> impl Future<Output = Result<Running, PipelineError>>;
}

impl RunPipeline for Node {
    fn run_pipeline(&self, pipeline: &Pipeline) -> Result<Running, PipelineError> {
        block_on(begin(self, pipeline, false, false, Steps::Here))
    }

    async fn run_pipeline_async(&self, pipeline: &Pipeline) -> Result<Running, PipelineError> {
        begin(self, pipeline, false, false, Steps::Aside).await
    }
}

/// Starts a pipeline on a node. `alone` says that the node ends with the pipeline, and its workers with it.
pub(super) async fn begin(
    node: &Node,
    pipeline: &Pipeline,
    signals: bool,
    alone: bool,
    steps: Steps,
) -> Result<Running, PipelineError> {
    let (plan, works, settings) = {
        let draft = pipeline.draft.borrow();
        (draft.plan.clone().complete(), draft.works.clone(), draft.settings.clone())
    };
    plan.check()?;
    let launched = launch(node, &plan, &works, &settings, steps).await?;
    let Launched { members, further, event_channel, workers } = launched;
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
    let conducting = move || -> Result<Report, PipelineError> {
        // Made on this thread: async code, which may run `begin`, must not drop a runtime.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let workers = workers.keep();
        let result = runtime.block_on(conduct(plan, follow, members, further, event_channel, commands));
        let killed = result.as_ref().is_err_and(PipelineError::is_cut_short);
        for worker in workers.into_iter().filter(|_| !alone) {
            supervisor.let_go(worker);
            if killed {
                // Only after `let_go`, so that no worker is restarted.
                supervisor.kill_worker(worker);
            }
        }
        // A replica that was starting when all was over is not waited for.
        runtime.shutdown_background();
        drop(ending);
        result
    };
    let thread = std::thread::Builder::new().name("tp-pipeline".into()).spawn(conducting)?;
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
    /// Stops the sources; items under way are finished, and the report comes as usual.
    pub fn cancel(&self) {
        self.handle.give(Command::Cancel);
    }

    /// Returns a handle that cancels the pipeline, for other threads.
    pub fn canceller(&self) -> Canceller {
        Canceller(self.handle.clone())
    }

    /// Sets the number of replicas of the stage with this name, within the bounds of its
    /// [`replicas_up_to`](super::Flow::replicas_up_to) or [`autoscale`](super::Flow::autoscale); the latter
    /// goes on from there by itself. Returns at once. A new replica takes items when its process has started
    /// and its `create` and `prepare` are done. A replica that leaves takes no more items, finishes those
    /// that it has and ends. [`StageSnapshot::replicas`](super::StageSnapshot::replicas) says how many there
    /// are. If a replica cannot be started, the log says why, and the others go on. A pipeline that ends, or
    /// is stopped, does not change any more.
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
    /// [`PipelineError::Scale`]: there is no such stage, or the number of its replicas cannot change, or
    /// cannot be this.
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

    /// Kills the pipeline's workers at once, and its own node with them. Nothing is finished.
    pub fn kill(&self) {
        self.handle.give(Command::Kill);
    }

    /// Waits for the end. If the pipeline has a node of its own ([`Pipeline::start`]), no process of it is
    /// left when this returns.
    ///
    /// On an existing node ([`RunPipeline::run_pipeline`]) all items have been handled, but workers may still
    /// be ending. They finish the work on their streams, and the receivers of tensors that came out of the
    /// pipeline wait for that work as always. [`Supervisor::await_end`] waits for a worker, by its
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

    /// Ends the pipeline: stops the sources, finishes the items under way, and kills workers that have not
    /// ended `deadline` from now. A source whose `next` takes long ends soon if it checks
    /// [`Env::is_stopping`](tensorpost_core::api::actor::Env::is_stopping).
    ///
    /// # Errors
    /// The cause, with the report. [`PipelineError::Killed`] if the deadline passed: the error, and
    /// [`Report::waiting`], name the replicas that did not stop, and the calls that they stood in.
    pub fn finish(self, deadline: Duration) -> Result<Report, PipelineError> {
        self.finishing(deadline).wait()
    }

    /// Tells the pipeline to end as [`finish`](Self::finish) does, and returns at once, for async code:
    /// `running.finishing(deadline).await`.
    pub fn finishing(mut self, deadline: Duration) -> Self {
        let now = Instant::now();
        // A deadline that the clock cannot represent becomes one in a year.
        let until = now.checked_add(deadline).unwrap_or(now + Duration::from_secs(365 * 24 * 3600));
        self.handle.give(Command::Finish(until));
        self.until = Some(until);
        self
    }

    /// Resolves when the pipeline has ended; [`wait`](Self::wait) then returns its report.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub fn ended(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut ended = self.ended.clone();
        async move {
            // Nothing is ever sent: the error means the end.
            while ended.changed().await.is_ok() {}
        }
    }

    /// Whether the pipeline has ended.
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(|thread| thread.is_inherited() || thread.is_finished())
    }

    /// Returns the node that the pipeline runs on, if that is its own.
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
            // A worker that has not ended by then is killed; it is not part of the pipeline.
            let _ = node.shutdown(if killed { Duration::ZERO } else { deadline });
        }
        result
    }
}

impl IntoFuture for Running {
    type Output = Result<Report, PipelineError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(mut self) -> Self::IntoFuture {
        Box::pin(async move {
            // In a forked child it counts as ended, and `end` says what is wrong.
            if !self.is_finished() {
                self.ended().await;
            }
            on_own_thread("tp-end", move || self.end()).await?
        })
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
    /// Stops the sources; items under way are finished.
    pub fn cancel(&self) {
        self.0.give(Command::Cancel);
    }
}

impl std::fmt::Debug for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Running").field("finished", &self.is_finished()).finish_non_exhaustive()
    }
}
