//! The results of a pipeline in the program that runs it.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream::Stream;
use tensorpost_core::api::actor::Channel;
use tensorpost_core::api::node::{ActorError, Node, block_on};

use super::error::PipelineError;
use super::flow::Flow;
use super::item::Item;
use super::launch::Steps;
use super::plan::Kind;
use super::report::Report;
use super::run::{Running, begin};
use super::stages::SendTo;
use super::work::{Site, StageWork, Starter, Work};

/// The items of a flow that ends in the program: an iterator (`for item in &mut results`) and a [`Stream`].
/// Items that the program does not take wait, and the pipeline with them. The items end when the pipeline has
/// ended, whatever the reason; [`wait`](Self::wait) tells it, and so does awaiting this value. Dropping it
/// cancels the pipeline, as dropping [`Running`] does.
#[must_use = "dropping it cancels the pipeline"]
pub struct Results<T: Item> {
    /// Dropped before the pipeline, which then does not wait for the program.
    channel: Channel<T>,
    /// Resolves when the pipeline has ended; `None` after that.
    ended: Option<BoxFuture<'static, ()>>,
    running: Running,
}

impl<T: Item, At> Flow<T, At> {
    /// Ends the flow in this program, and starts the pipeline on a node of its own.
    ///
    /// ```
    /// # use tensorpost::prelude::*;
    /// # #[derive(Clone, Serialize, Deserialize, GpuMessage)] struct Number(u64);
    /// # fn main() -> anyhow::Result<()> {
    /// let numbers = Pipeline::new("squares").items("count", |_| (0..10).map(Number));
    /// let mut squares = numbers.map("square", |Number(n)| Ok(Number(n * n))).start_here()?;
    /// let mut sum = 0;
    /// for Number(square) in &mut squares {
    ///     sum += square; // it is the program's own
    /// }
    /// assert_eq!((sum, squares.wait()?.is_complete()), (285, true));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`Pipeline::start`](super::Pipeline::start).
    pub fn start_here(self) -> Result<Results<T>, PipelineError> {
        block_on(self.results(None, Steps::Here))
    }

    /// As [`start_here`](Self::start_here), for async code: it does not block the thread.
    ///
    /// # Errors
    /// As for [`Pipeline::start`](super::Pipeline::start).
    ///
    /// # Cancel safety
    /// As for [`Pipeline::start`](super::Pipeline::start).
    pub async fn start_here_async(self) -> Result<Results<T>, PipelineError> {
        self.results(None, Steps::Aside).await
    }

    /// As [`start_here`](Self::start_here), on an existing node.
    ///
    /// # Errors
    /// As for [`run_pipeline`](super::RunPipeline::run_pipeline).
    pub fn start_here_on(self, node: &Node) -> Result<Results<T>, PipelineError> {
        block_on(self.results(Some(node), Steps::Here))
    }

    /// As [`start_here_on`](Self::start_here_on), for async code: it does not block the thread.
    ///
    /// # Errors
    /// As for [`run_pipeline`](super::RunPipeline::run_pipeline).
    ///
    /// # Cancel safety
    /// As for [`run_pipeline_async`](super::RunPipeline::run_pipeline_async).
    pub async fn start_here_on_async(self, node: &Node) -> Result<Results<T>, PipelineError> {
        self.results(Some(node), Steps::Aside).await
    }

    /// Runs the pipeline on a node of its own, and calls `consume` in this program for each item; `consume`
    /// may capture.
    ///
    /// # Errors
    /// Errors of the pipeline, and the first error of `consume`, which cancels the pipeline.
    pub fn for_each_here(self, mut consume: impl FnMut(T) -> anyhow::Result<()>) -> anyhow::Result<Report> {
        let mut results = self.start_here()?;
        for item in &mut results {
            consume(item)?;
        }
        Ok(results.wait()?)
    }

    /// Runs the pipeline on a node of its own, and returns the items.
    ///
    /// # Errors
    /// As for [`Pipeline::run`](super::Pipeline::run).
    pub fn collect(self) -> Result<Vec<T>, PipelineError> {
        let mut results = self.start_here()?;
        let items = results.into_iter().collect();
        results.wait()?;
        Ok(items)
    }

    async fn results(self, node: Option<&Node>, steps: Steps) -> Result<Results<T>, PipelineError> {
        let here = Rc::new(Here::<T>(RefCell::default()));
        let end: Flow<T> = self.then("here", Rc::clone(&here) as Rc<dyn Work>, Kind::Sink);
        let pipeline = end.pipeline();
        let running = match node {
            Some(node) => begin(node, &pipeline, false, false, steps).await?,
            None => pipeline.start_with(false, steps).await?,
        };
        let Some(channel) = here.0.take() else { unreachable!("a sink that has started has its channel") };
        Ok(Results { channel, ended: Some(running.ended().boxed()), running })
    }
}

/// A sink in the program: it sends to a channel that is made with it.
struct Here<T: Item>(RefCell<Option<Channel<T>>>);

impl<T: Item> Work for Here<T> {
    fn defer(&self, site: Site<'_>) -> Result<Starter, ActorError> {
        let (address, channel) = site.node.channel()?;
        self.0.replace(Some(channel));
        StageWork::<SendTo<T>>(address).defer(site)
    }

    fn relay(&self) -> Rc<dyn Work> {
        unreachable!("nothing comes out of a sink")
    }
}

impl<T: Item> Results<T> {
    /// Returns the running pipeline.
    pub fn running(&self) -> &Running {
        &self.running
    }

    /// Drops the items that were not taken, and waits for the end as [`Running::wait`] does.
    ///
    /// # Errors
    /// The cause, with the report.
    pub fn wait(mut self) -> Result<Report, PipelineError> {
        self.into_iter().for_each(drop);
        self.running.wait()
    }

    fn poll_item(&mut self, task: &mut Context<'_>) -> Poll<Option<T>> {
        if let Poll::Ready(item) = pin!(self.channel.recv()).poll(task) {
            return Poll::Ready(item.ok());
        }
        if let Some(ended) = &mut self.ended {
            ready!(ended.poll_unpin(task));
            self.ended = None;
        }
        // All items were put into the channel before the pipeline ended.
        Poll::Ready(self.channel.try_recv())
    }
}

impl<T: Item> Stream for Results<T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Option<T>> {
        self.poll_item(task)
    }
}

impl<T: Item> IntoFuture for Results<T> {
    type Output = Result<Report, PipelineError>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(mut self) -> Self::IntoFuture {
        Box::pin(async move {
            while poll_fn(|task| self.poll_item(task)).await.is_some() {}
            self.running.await
        })
    }
}

/// The iterator blocks the thread.
impl<'r, T: Item> IntoIterator for &'r mut Results<T> {
    type Item = T;
    type IntoIter = Box<dyn Iterator<Item = T> + 'r>;

    fn into_iter(self) -> Self::IntoIter {
        Box::new(std::iter::from_fn(move || block_on(poll_fn(|task| self.poll_item(task)))))
    }
}

impl<T: Item> std::fmt::Debug for Results<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Results({:?})", self.running)
    }
}
