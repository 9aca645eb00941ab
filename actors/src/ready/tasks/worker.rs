//! The side of the worker process.

use std::fmt;
use std::marker::PhantomData;

use serde::de::DeserializeOwned;
use tensorpost::prelude::*;

/// The work of a pool's workers.
pub trait Job: Sized + 'static {
    /// The arguments of `create`; every worker gets a clone.
    type Args: Serialize + DeserializeOwned + Clone + 'static;
    /// The type of a task.
    type Task: Item;
    /// The type of a result; tensors may be anywhere inside.
    type Done: Serialize + DeserializeOwned + Send + 'static;

    /// Creates the job, in the worker process.
    ///
    /// # Errors
    /// Anything that keeps the job from working; starting the pool reports it.
    fn create(args: Self::Args, env: &Env) -> anyhow::Result<Self>;

    /// Does a task. While it runs, its process reads no messages.
    ///
    /// # Errors
    /// Any fault of the task; its result reports it, and the next task is done.
    fn run(&mut self, task: Self::Task) -> anyhow::Result<Self::Done>;
}

/// The actor around a [`Job`].
// Boxed, because actors move and a job need not be movable.
pub struct Worker<J>(Box<J>);

/// A task for a worker.
#[derive(Serialize, Deserialize, GpuMessage)]
#[serde(bound(serialize = "T: Serialize", deserialize = "T: DeserializeOwned"))]
#[gpu_message(reply = Result<D, String>)]
pub struct Assign<T, D> {
    task: T,
    done: PhantomData<D>,
}

impl<T, D> Assign<T, D> {
    pub(super) fn new(task: T) -> Self {
        Assign { task, done: PhantomData }
    }

    pub(super) fn into_task(self) -> T {
        self.task
    }
}

impl<J: Job> Actor for Worker<J> {
    type Context = Context<Self>;
}

impl<J: Job> RemoteActor for Worker<J> {
    type Args = J::Args;

    fn create(args: J::Args, env: &Env) -> anyhow::Result<Self> {
        Ok(Worker(Box::new(J::create(args, env)?)))
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Assign<J::Task, J::Done>>();
    }
}

impl<J: Job> Handler<Assign<J::Task, J::Done>> for Worker<J> {
    type Result = MessageResult<Assign<J::Task, J::Done>>;

    fn handle(&mut self, assign: Assign<J::Task, J::Done>, _: &mut Context<Self>) -> Self::Result {
        // Run the task's own checks: as a part of another message it was not checked.
        let checked = assign.task.check().map_err(anyhow::Error::from);
        let done = checked.and_then(|()| self.0.run(assign.into_task()));
        MessageResult(done.map_err(|error| format!("{error:#}")))
    }
}

impl<J> fmt::Debug for Worker<J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Worker")
    }
}

impl<T, D> fmt::Debug for Assign<T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Assign")
    }
}
