//! A pool of workers: tasks in, results out, both bounded. It serves the purposes of Python's
//! `multiprocessing.Pool`, without a pipeline.
//!
//! **Order.** Tasks begin in the order in which they were submitted; results come as they are done, each with
//! its task's number. **Bounds.** At most [`queue`](TaskPoolSettings::queue) tasks wait,
//! [`ahead`](TaskPoolSettings::ahead) are with each worker, and as many results wait as tasks. Beyond that,
//! submitting waits. **On an error** of a task, its result is that error, and its worker goes on. **On the
//! death of a worker** the tasks that it had become results with an error; tasks that it had not taken yet go
//! to others. With no worker left, every task becomes such a result. **On drop** waiting tasks are dropped;
//! workers finish the tasks that they have, and the results are dropped.

mod driver;
mod worker;

pub use worker::{Assign, Job, Worker};

use std::fmt;
use std::thread;

use tensorpost::node::ActorError;
use tensorpost::prelude::*;
use tokio::sync::mpsc;

/// The size of a [`TaskPool`].
#[derive(Clone, Debug)]
pub struct TaskPoolSettings {
    /// Worker processes, at least 1.
    pub workers: u32,
    /// The device that they compute on.
    pub device: Device,
    /// Number of tasks that wait for a worker, at least 1.
    pub queue: usize,
    /// Number of tasks with one worker at a time, at least 1. With 2, the worker has the next task at hand
    /// when it finishes one.
    pub ahead: u32,
}

impl TaskPoolSettings {
    /// Returns settings for `workers` workers on the host, 64 waiting tasks, and 2 tasks with each worker.
    pub fn workers(workers: u32) -> Self {
        TaskPoolSettings { workers, device: Device::host(), queue: 64, ahead: 2 }
    }

    /// Sets the device that the workers compute on.
    pub fn on(self, device: Device) -> Self {
        TaskPoolSettings { device, ..self }
    }
}

/// The reason why a task has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TaskError {
    /// The worker could not do it.
    #[error("the task failed: {0}")]
    Failed(String),
    /// The worker ended while it had the task.
    #[error("the task is lost: {0}")]
    Lost(String),
    /// The task could not be sent to any worker.
    #[error("the task was sent to no worker: {0}")]
    NotSent(String),
}

/// A pool that could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TaskPoolError {
    /// A worker was not started.
    #[error(transparent)]
    Worker(#[from] ActorError),
    /// The thread that hands out tasks could not be started.
    #[error("the thread of a task pool could not be started; are there too many?")]
    Thread(#[source] std::io::Error),
    /// A pool without workers, without a queue or with no task ahead.
    #[error(
        "a task pool of {workers} workers, {ahead} tasks each and a queue of {queue}; each must be at least 1"
    )]
    Empty {
        /// The number that was asked for.
        workers: u32,
        /// The number that was asked for.
        ahead: u32,
        /// The number that was asked for.
        queue: usize,
    },
}

/// Workers that do tasks of one kind.
///
/// ```standalone_crate
/// use tensorpost::prelude::*;
/// use tensorpost_actors::ready::{Job, TaskPool, TaskPoolSettings, Worker};
///
/// #[derive(Clone, Serialize, Deserialize, GpuMessage)]
/// struct Numbers(Tensor);
///
/// struct Sum;
///
/// impl Job for Sum {
///     type Args = ();
///     type Task = Numbers;
///     type Done = u64;
///
///     fn create((): (), _: &Env) -> anyhow::Result<Self> {
///         Ok(Sum) // in the worker process
///     }
///
///     fn run(&mut self, numbers: Numbers) -> anyhow::Result<u64> {
///         Ok(numbers.0.to_vec::<u64>()?.iter().sum())
///     }
/// }
///
/// fn main() -> anyhow::Result<()> {
///     let node = Node::builder().start()?;
///     let mut pool = TaskPool::<Sum>::start(&node, (), TaskPoolSettings::workers(2))?;
///     let stream = node.host_stream()?;
///     let tasks = (0..100_u64).filter_map(|n| stream.from_slice(&[2], &[n, 2 * n]).ok()).map(|n| Numbers(n.freeze()));
///     let mut total = 0;
///     for (_number, result) in pool.map(tasks) {
///         total += result?;
///     }
///     assert_eq!(total, 3 * 4950);
///     Ok(())
/// }
/// ```
pub struct TaskPool<J: Job> {
    tasks: mpsc::Sender<(u64, J::Task)>,
    results: mpsc::Receiver<TaskOutcome<J>>,
    /// The number of the next task.
    next: u64,
    /// Tasks whose results were not taken.
    open: u64,
}

/// A task's number and its result.
pub type TaskOutcome<J> = (u64, Result<<J as Job>::Done, TaskError>);

impl<J: Job> TaskPool<J> {
    /// Starts the workers, each with a clone of `args`.
    ///
    /// # Errors
    /// [`TaskPoolError`] says what could not be started.
    pub fn start(node: &Node, args: J::Args, settings: TaskPoolSettings) -> Result<Self, TaskPoolError> {
        let TaskPoolSettings { workers, device, queue, ahead } = settings;
        if workers == 0 || ahead == 0 || queue == 0 {
            return Err(TaskPoolError::Empty { workers, ahead, queue });
        }
        let mut addresses = Vec::new();
        for _ in 0..workers {
            let worker = node.spawn::<Worker<J>>(args.clone()).device(device.clone());
            addresses.push(worker.mailbox(ahead).start()?.address());
        }
        let (submit, tasks) = mpsc::channel(queue);
        // Room for the result of every task under way, so that workers never wait for a slow reader of
        // results.
        let (done, results) = mpsc::channel(queue.saturating_add(workers as usize * ahead as usize));
        let driven = thread::Builder::new().name("tp-tasks".into()).spawn(move || {
            driver::drive::<J>(addresses, ahead, tasks, done);
        });
        driven.map_err(TaskPoolError::Thread)?;
        Ok(TaskPool { tasks: submit, results, next: 0, open: 0 })
    }

    /// Hands in a task and returns its number. It waits while too many tasks wait. Another future has to take
    /// results meanwhile, or this waits for ever: [`map`](Self::map) does both,
    /// [`try_submit`](Self::try_submit) does not wait.
    ///
    /// # Errors
    /// The pool has no worker left; the task is given back.
    ///
    /// # Cancel safety
    /// If the future is dropped before it resolves, the task was not handed in, and is dropped.
    pub async fn submit(&mut self, task: J::Task) -> Result<u64, J::Task> {
        let number = self.next;
        match self.tasks.send((number, task)).await {
            Ok(()) => Ok(self.submitted()),
            Err(refused) => Err(refused.0.1),
        }
    }

    /// Submits a task as [`submit`](Self::submit) does, without waiting.
    ///
    /// # Errors
    /// Too many tasks wait, or the pool has no worker left; the task is given back.
    pub fn try_submit(&mut self, task: J::Task) -> Result<u64, J::Task> {
        match self.tasks.try_send((self.next, task)) {
            Ok(()) => Ok(self.submitted()),
            Err(refused) => Err(refused.into_inner().1),
        }
    }

    fn submitted(&mut self) -> u64 {
        self.open += 1;
        self.next += 1;
        self.next - 1
    }

    /// Returns the next result; `None` once the result of every task was taken.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<TaskOutcome<J>> {
        if self.open == 0 {
            return None;
        }
        let outcome = self.results.recv().await?;
        self.open -= 1;
        Some(outcome)
    }

    /// Returns the next result as [`next`](Self::next) does, and blocks the thread. It panics in async code.
    pub fn blocking_next(&mut self) -> Option<TaskOutcome<J>> {
        if self.open == 0 {
            return None;
        }
        let outcome = self.results.blocking_recv()?;
        self.open -= 1;
        Some(outcome)
    }

    /// Returns the number of tasks whose results were not taken yet.
    pub fn open(&self) -> u64 {
        self.open
    }

    /// Does all of `tasks`, taking them as there is room, and returns their results as they come, with those
    /// of earlier tasks among them. It may block the thread.
    pub fn map<I>(&mut self, tasks: I) -> Map<'_, J, I::IntoIter>
    where
        I: IntoIterator<Item = J::Task>,
    {
        Map { pool: self, tasks: Some(tasks.into_iter()), waiting: None }
    }
}

/// The iterator of [`TaskPool::map`].
pub struct Map<'p, J: Job, I> {
    pool: &'p mut TaskPool<J>,
    tasks: Option<I>,
    waiting: Option<J::Task>,
}

impl<J: Job, I: Iterator<Item = J::Task>> Iterator for Map<'_, J, I> {
    type Item = TaskOutcome<J>;

    fn next(&mut self) -> Option<TaskOutcome<J>> {
        while let Some(task) = self.waiting.take().or_else(|| self.tasks.as_mut()?.next()) {
            if let Err(task) = self.pool.try_submit(task) {
                if self.pool.open == 0 {
                    // Nothing is under way and there is still no room, so no worker is left.
                    self.pool.next += 1;
                    let why = "the pool has no worker left".to_owned();
                    return Some((self.pool.next - 1, Err(TaskError::NotSent(why))));
                }
                self.waiting = Some(task);
                return self.pool.blocking_next();
            }
        }
        self.tasks = None;
        self.pool.blocking_next()
    }
}

impl<J: Job> fmt::Debug for TaskPool<J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TaskPool({} tasks, of which {} are open)", self.next, self.open)
    }
}

impl<J: Job, I> fmt::Debug for Map<'_, J, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Map({:?})", self.pool)
    }
}
