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

/// The tasks, shared by the futures that hand them out.
struct Tasks<T> {
    submitted: Mutex<mpsc::Receiver<(u64, T)>>,
    /// Tasks that a worker did not take, for another worker.
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
        // There is no worker left, or no task: answer every task that was not sent.
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

/// Gives a worker one task after the other, until the worker is gone or no task is left.
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
                // The news of the worker's end may come later than this error: tasks that it got until then
                // would be lost too.
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

/// Returns whether the worker has ended for good: workers are not restarted.
fn has_ended(failure: &AskFailure) -> bool {
    match failure {
        AskFailure::ProcessExited(_) => true,
        AskFailure::Refused(why) => {
            matches!(why, Refusal::NoSuchActor | Refusal::Panicked(_) | Refusal::NoReply)
        }
        _ => false,
    }
}

/// Returns whether the worker takes no more tasks.
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
                // If nobody waits, the notification is kept for the next waiter.
                () = self.again.notified() => {}
                task = async { self.submitted.lock().await.recv().await } => return task,
            }
        }
    }
}

/// Runs a future on this thread. It needs no timer or socket of the runtime.
fn run_here(work: impl Future<Output = ()>) {
    match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(work),
        // The results end, and so does the wait for them.
        Err(error) => eprintln!("a task pool could not start: {error}"),
    }
}
