//! Hands tasks to workers, on a thread of its own.

use std::cell::RefCell;
use std::collections::VecDeque;

use futures_util::future::join_all;
use tensorpost::actor::{AskFailure, Refusal};
use tensorpost::prelude::*;
use tokio::sync::{Mutex, Notify, mpsc};

use super::worker::Assign;
use super::{Job, TaskError, TaskOutcome};

type To<J> = Address<Assign<<J as Job>::Task, <J as Job>::Done>>;

/// The tasks, shared by everybody who hands them out.
struct Tasks<T> {
    submitted: Mutex<mpsc::Receiver<(u64, T)>>,
    /// Those that a worker did not take, for another.
    returned: RefCell<VecDeque<(u64, T)>>,
    again: Notify,
}

/// Returns when no more tasks can come and all are done.
pub(super) fn drive<J: Job>(
    workers: Vec<To<J>>,
    ahead: u32,
    tasks: mpsc::Receiver<(u64, J::Task)>,
    results: mpsc::Sender<TaskOutcome<J>>,
) {
    let tasks = Tasks { submitted: Mutex::new(tasks), returned: RefCell::default(), again: Notify::new() };
    run_here(async {
        let hands = workers.iter().flat_map(|worker| (0..ahead).map(move |_| worker));
        join_all(hands.map(|worker| hand_out::<J>(worker, &tasks, &results))).await;
        // There is no worker left, or no task: whatever was not sent is answered.
        let mut submitted = tasks.submitted.lock().await;
        submitted.close();
        let not_sent = || TaskError::NotSent("the pool has no worker left".to_owned());
        let returned: Vec<_> = tasks.returned.borrow_mut().drain(..).collect();
        for (number, _task) in returned {
            let _ = results.send((number, Err(not_sent()))).await;
        }
        while let Some((number, _task)) = submitted.recv().await {
            let _ = results.send((number, Err(not_sent()))).await;
        }
    });
}

/// Gives a worker one task after the other until it is gone or there are none.
async fn hand_out<J: Job>(worker: &To<J>, tasks: &Tasks<J::Task>, results: &mpsc::Sender<TaskOutcome<J>>) {
    while let Some((number, task)) = tasks.next().await {
        let result = match worker.ask(Assign::new(task)).await {
            Ok(done) => done.map_err(TaskError::Failed),
            Err(AskError::NotSent(error)) if is_gone(&error.reason) => {
                tasks.returned.borrow_mut().push_back((number, error.message.into_task()));
                tasks.again.notify_one();
                return;
            }
            Err(AskError::NotSent(error)) => Err(TaskError::NotSent(error.reason.to_string())),
            Err(error) => {
                // Its end may be heard later than this: what it was given until then would be lost too.
                let gone = matches!(&error, AskError::NoReply(failure) if has_ended(failure));
                let _ = results.send((number, Err(TaskError::Lost(error.to_string())))).await;
                if gone {
                    return;
                }
                continue;
            }
        };
        if results.send((number, result)).await.is_err() {
            return; // the pool was dropped
        }
    }
}

/// Returns whether a worker, which is not started again, does nothing more.
fn has_ended(failure: &AskFailure) -> bool {
    match failure {
        AskFailure::ProcessExited(_) => true,
        AskFailure::Refused(why) => {
            matches!(why, Refusal::NoSuchActor | Refusal::Panicked(_) | Refusal::NoReply)
        }
        _ => false,
    }
}

/// Returns whether the worker takes nothing any more.
fn is_gone(reason: &SendFailure) -> bool {
    matches!(reason, SendFailure::ProcessExited(_) | SendFailure::NoSuchActor)
}

impl<T> Tasks<T> {
    async fn next(&self) -> Option<(u64, T)> {
        loop {
            if let Some(task) = self.returned.borrow_mut().pop_front() {
                return Some(task);
            }
            tokio::select! {
                // Kept for the next who waits, if nobody does.
                () = self.again.notified() => {}
                task = async { self.submitted.lock().await.recv().await } => return task,
            }
        }
    }
}

/// Runs a future on this thread. Nothing in it needs a timer or a socket of the runtime's.
fn run_here(work: impl Future<Output = ()>) {
    match tokio::runtime::Builder::new_current_thread().build() {
        Ok(runtime) => runtime.block_on(work),
        // The results end, and so does whoever waits for them.
        Err(error) => eprintln!("a task pool could not start: {error}"),
    }
}
